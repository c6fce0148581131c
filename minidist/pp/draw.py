"""--draw and --best: the timelines of schedules, from one process and without MPI."""

import argparse
from typing import NamedTuple

from minidist import UsageError
from minidist.cli.tables import make_table, show
from minidist.mpi import environment
from minidist.pp.fit import chunks_of, contiguous_of
from minidist.pp.schedules import SCHEDULES
from minidist.pp.timeline import Timeline, in_flight, print_timelines, summary
from minidist.pp.watch import UNIT_COSTS, simulate

MOST_DRAWN = 1000  # forwards of a schedule; a terminal shows some 30 in a line
NOTES = {
    (False, "loop"): "",
    (True, "loop"): "; small: later chunks",
    (True, "v"): "; small: on the way back",
    (False, "cross"): "; small: from the other end",
}


def heading(name: str, v: int) -> str:
    """Of a schedule's picture."""
    return f"{name}  {SCHEDULES[name].paper}{NOTES[v > 1, SCHEDULES[name].shape]}"


def timelines_of(name: str, p: int, m: int, options: argparse.Namespace) -> tuple[list[Timeline], int]:
    """What p workers do with m micro-batches, by the clock, and the chunks of a stage. Raises UsageError if the schedule
    cannot have these."""
    schedule, asked = SCHEDULES[name], options.chunks if SCHEDULES[name].any_chunks else None
    v = chunks_of(name, asked)
    if p % schedule.stages_in:
        raise UsageError(f"{name} needs an even number of stages, not {p}: use -p {p + 1}")
    multiple, least = schedule.micro_batches_in(p), schedule.at_least(p)
    if m % multiple or m < least:
        good = -(-max(m, least) // multiple) * multiple
        needs = f"a multiple of {multiple}" if m % multiple else f"at least {least}"
        raise UsageError(f"{name} needs {needs} for -m, not {m}: use -m {good}")
    contiguous = contiguous_of(name, p, m, options.contiguous if name == "llama3" else None)
    # Without a flush, more than one screen of it: PipeDream updates after each micro-batch, 2BW after m.
    to_update, updates = (m, 1) if schedule.flushes else (m, 9) if name == "2bw" else (1, 9 * m)
    at = schedule.places(p, to_update, v, updates, contiguous=contiguous)
    costs, message = UNIT_COSTS, 0.0
    if options.costs:  # of a whole stage: here a chunk takes them, and a message v times its time
        names = ("F", "B", "W", "message", "F&B")
        costs = dict(zip(names, options.costs, strict=False))
        message = v * costs.pop("message", 0.0)
    return simulate([(place, schedule.instructions(place)) for place in at], costs, message), v


def sizes(options: argparse.Namespace) -> tuple[int, int]:
    """Stages and micro-batches to draw. Raises UsageError if they are too many to show."""
    p, m = options.pp or 4, options.micro_batches or 8
    if p > 100 or p * m * (options.chunks or 1) > MOST_DRAWN:
        raise UsageError(f"{p} stages and {m} micro-batches are more than can be drawn: use fewer")
    return p, m


def draw(options: argparse.Namespace) -> int:
    """Print one schedule, or all; returns the exit status. Raises UsageError for schedules too long to show."""
    if environment.rank():
        return 0  # under mpirun one drawing is enough
    p, m = sizes(options)
    for name in SCHEDULES if options.draw == "all" else (options.draw,):
        try:
            timelines, v = timelines_of(name, p, m, options)
        except UsageError as error:
            if options.draw != "all":
                raise
            print(f"{name} is left out, it {str(error).removeprefix(name).strip()}", end="\n\n")
            continue  # the others can be compared nevertheless
        schedule = SCHEDULES[name]
        print_timelines(heading(name, v), timelines, not schedule.flushes, v)
        every = f"every {m} micro-batches" if name == "2bw" else "every micro-batch"
        print(summary(timelines, v) if schedule.flushes else f"no flush; an update after {every}", end="\n\n")
    print("F: forward, B: backward of the input, W: of the weights, each with the last")
    print("digit of its micro-batch; in flight: the most that each stage holds; …: goes on.")
    print("F1&B2 is a forward that overlaps with a backward, W included.")
    print("Without a flush, below: each one's version of the weights; |: a new one is made.")
    return 0


class Tried(NamedTuple):
    """A schedule as the clock has seen it."""

    name: str
    chunks: int
    timelines: list[Timeline]
    time: float  # of a step
    idle: float  # the part of it that a stage idles
    held: float  # activations on the fullest rank, relative to 1F1B's
    parameters: int  # copies of each


def choose(options: argparse.Namespace) -> int:
    """--best: run every schedule with a flush on the clock, and draw the fastest that holds no more than is allowed;
    returns the exit status. Raises UsageError if none does."""
    if environment.rank():
        return 0
    (p, m), allowed = sizes(options), 1.0 if options.held is None else options.held
    tried, cannot = list[Tried](), list[str]()
    for name, schedule in SCHEDULES.items():
        if not schedule.flushes:
            continue
        try:
            timelines, v = timelines_of(name, p, m, options)
        except UsageError as error:
            cannot.append(str(error).partition(": use")[0])
            continue
        time, held = max(timeline.end for timeline in timelines), max(map(in_flight, timelines))
        copies = 2 if schedule.shape == "cross" else 1
        idle = 1 - timelines[0].busy / time
        tried.append(Tried(name, v, timelines, time / v, idle, held / v / min(p, m), copies))
    tried.sort(key=lambda one: one.time)
    fits = [one for one in tried if one.held <= allowed]
    if not fits:
        least = min(one.held for one in tried)
        raise UsageError(f"no schedule holds as little as {allowed:g} of what 1F1B does: use --held {least:.3g}")
    table = make_table(left=("schedule",), right=("a step takes", "idle", "holds", "parameters", ""))
    for one in tried:
        numbers = f"{one.time:.4g}", f"{one.idle:.1%}", f"{one.held:.3g}", f"{one.parameters}x"
        table.add_row(one.name, *numbers, "best" if one is fits[0] else "fits" if one in fits else "")
    show(f"{p} stages, {m} micro-batches: each schedule by the clock", table)
    print("holds: activations on the fullest rank, relative to what 1F1B holds on its first;")
    print("times are in the unit of --costs. Without a flush, losses are not those of")
    print("serial training: those schedules are left out.")
    for reason in cannot:
        print(f"Left out, too: {reason}.")
    print()
    print_timelines(heading(fits[0].name, fits[0].chunks), fits[0].timelines, chunks=fits[0].chunks)
    print(summary(fits[0].timelines, fits[0].chunks))
    return 0
