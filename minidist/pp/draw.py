"""--draw: the timelines of schedules, from one process and without MPI."""

import argparse

from minidist import UsageError
from minidist.mpi import environment
from minidist.pp.schedules import SCHEDULES, places
from minidist.pp.timeline import print_timelines, summary
from minidist.pp.watch import UNIT_COSTS, simulate

MOST_DRAWN = 1000  # forwards of a schedule; a terminal shows some 30 in a line


def draw(options: argparse.Namespace) -> int:
    """Print one schedule, or all; returns the exit status. Raises UsageError for schedules too long to show."""
    if environment.rank():
        return 0  # under mpirun one drawing is enough
    p, m = options.pp or 4, options.micro_batches or 8
    if p > 100 or p * m * (options.chunks or 1) > MOST_DRAWN:
        raise UsageError(f"{p} stages and {m} micro-batches are more than can be drawn: use fewer")
    for name in SCHEDULES if options.draw == "all" else (options.draw,):
        schedule, v = SCHEDULES[name], (options.chunks or 2) if name == "interleaved" else 1
        needs = ""
        if name == "interleaved" and m % p:
            needs = f"needs a multiple of -p {p} for -m, not {m}: use -m {-(-m // p) * p}"
        elif name == "2bw" and m < p:
            needs = f"needs at least as many micro-batches as stages, not {m}: use -m {p}"
        if needs and options.draw != "all":
            raise UsageError(f"{name} {needs}")
        if needs:  # the others can be compared nevertheless
            print(f"{name} is left out, it {needs}", end="\n\n")
            continue
        # Without a flush, more than one screen of it: PipeDream updates after each micro-batch, 2BW after m.
        to_update, updates = (m, 1) if schedule.flushes else (m, 9) if name == "2bw" else (1, 9 * m)
        streams = [(at, schedule.instructions(at)) for at in places(p, to_update, v, updates)]
        timelines = simulate(streams, UNIT_COSTS)
        heading = f"{name}  {schedule.paper}" + "; small: later chunks" * (v > 1)
        print_timelines(heading, timelines, goes_on=not schedule.flushes)
        every = "every micro-batch" if to_update == 1 else f"every {m} micro-batches"
        print(summary(timelines, v) if schedule.flushes else f"no flush; an update after {every}", end="\n\n")
    print("F: forward, B: backward of the input, W: of the weights, each with the last")
    print("digit of its micro-batch; in flight: the most that each stage holds; …: goes on.")
    print("Without a flush, below: each one's version of the weights; |: a new one is made.")
    return 0
