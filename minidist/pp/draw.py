"""--draw: the timelines of schedules, from one process and without MPI."""

import argparse
import io
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from typing import Any

from minidist import UsageError
from minidist.cli.paths import check_writable, write_json
from minidist.mpi import environment
from minidist.pp.instructions import StagePlace
from minidist.pp.options import chunks_of, contiguous_of
from minidist.pp.schedules import SCHEDULES
from minidist.pp.timeline import Timeline, idle_part, in_flight, print_timelines, summary
from minidist.pp.watch import UNIT_COSTS, simulate

MOST_DRAWN = 2000  # forwards of a schedule; a terminal shows some 30 in a line
NOTES = {
    (False, "loop"): "",
    (True, "loop"): "; small: later chunks",
    (True, "v"): "; small: on the way back",
    (False, "cross"): "; small: from the other end",
}


def heading(name: str, v: int) -> str:
    """The line above a schedule's picture."""
    return f"{name}  {SCHEDULES[name].paper}{NOTES[v > 1, SCHEDULES[name].shape]}"


def timelines_of(name: str, p: int, m: int, options: argparse.Namespace) -> tuple[list[Timeline], int]:
    """What p workers do with m micro-batches, by the clock, and the number of chunks of a stage. Raises UsageError if
    the schedule does not allow p and m."""
    at, schedule = places_of(name, p, m, options), SCHEDULES[name]
    v = chunks_at(at[0])
    return simulate([(place, schedule.instructions(place)) for place in at], *costs_of(options, v)), v


def places_of(name: str, p: int, m: int, options: argparse.Namespace) -> list[StagePlace]:
    """The places of all workers. Raises UsageError if the schedule does not allow p and m."""
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
    # Without a flush, enough for more than one screen: PipeDream updates after each micro-batch, 2BW after m.
    to_update, updates = (m, 1) if schedule.flushes else (m, 9) if name == "2bw" else (1, 9 * m)
    return schedule.places(p, to_update, v, updates, contiguous=contiguous)


def chunks_at(place: StagePlace) -> int:
    """The number of chunks of a stage, each a v-th of its time. In a cross, a stage has one of each of two models."""
    return 1 if place.shape == "cross" else place.chunks


def costs_of(options: argparse.Namespace, v: int) -> tuple[dict[str, float], float]:
    """--costs, of a whole stage, for the clock. There a chunk takes them in full, and so a message v times its time."""
    if not options.costs:
        return UNIT_COSTS, 0.0
    costs = dict(zip(("F", "B", "W", "message", "F&B"), options.costs, strict=False))
    return costs, v * costs.pop("message", 0.0)


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
    (p, m), report, overlaps = sizes(options), dict[str, Any](), False
    check_writable("--json", options.json if options.json != "-" else None)
    with redirect_stdout(io.StringIO()) if options.json == "-" else nullcontext():
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
            report[name] = figures(timelines, v)
            overlaps |= any(span.along for timeline in timelines for span in timeline.spans)
        print("F: forward, B: backward of the input, W: of the weights; a digit is the last one")
        print("of its micro-batch; in flight: the most that each stage holds; …: goes on.")
        if overlaps:
            print("F1&B2 is a forward that overlaps with a backward, W included.")
        if not all(SCHEDULES[name].flushes for name in report):
            print("Without a flush, below: each one's version of the weights; |: a new one is made.")
    if options.json:
        write_json(options.json, {"chapter": "pipeline", "drawn": report})
    return 0


def figures(timelines: Sequence[Timeline], v: int) -> dict[str, Any]:
    """A step's time, the part of it that stages idle, and the most chunks in flight on each stage."""
    time = max(timeline.end for timeline in timelines)
    flying = [in_flight(timeline) for timeline in timelines]
    return {"time": time / v, "idle": idle_part(timelines, time), "in_flight": flying}
