"""--draw: the timelines of schedules, from one process and without MPI."""

import io
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from typing import Any, NamedTuple

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


class Sizes(NamedTuple):
    """What is drawn: stages, micro-batches, and where a schedule leaves it open, chunks and Llama 3's turns. costs:
    times of F, B and W; of a message; of an overlapping pair."""

    p: int
    m: int
    chunks: int | None = None
    contiguous: int | None = None
    costs: tuple[float, ...] = ()

    def check(self) -> None:
        """Raise UsageError if they are too many to show."""
        if self.p > 100 or self.p * self.m * (self.chunks or 1) > MOST_DRAWN:
            raise UsageError(f"{self.p} stages and {self.m} micro-batches are more than can be drawn: use fewer")


def heading(name: str, v: int) -> str:
    """The line above a schedule's picture."""
    return f"{name}  {SCHEDULES[name].paper}{NOTES[v > 1, SCHEDULES[name].shape]}"


def timelines_of(name: str, sizes: Sizes) -> tuple[list[Timeline], int]:
    """What p workers do with m micro-batches, by the clock, and the number of chunks of a stage. Raises UsageError if
    the schedule does not allow p and m."""
    at, schedule = places_of(name, sizes), SCHEDULES[name]
    v = chunks_at(at[0])
    return simulate([(place, schedule.instructions(place)) for place in at], *costs_of(sizes.costs, v)), v


def places_of(name: str, sizes: Sizes) -> list[StagePlace]:
    """The places of all workers. Raises UsageError if the schedule does not allow p and m."""
    schedule, (p, m, *_) = SCHEDULES[name], sizes
    v = chunks_of(name, sizes.chunks if schedule.any_chunks else None)
    if p % schedule.stages_in:
        raise UsageError(f"{name} needs an even number of stages, not {p}: use -p {p + 1}")
    multiple, least = schedule.micro_batches_in(p), schedule.at_least(p)
    if m % multiple or m < least:
        good = -(-max(m, least) // multiple) * multiple
        needs = f"a multiple of {multiple}" if m % multiple else f"at least {least}"
        raise UsageError(f"{name} needs {needs} for -m, not {m}: use -m {good}")
    contiguous = contiguous_of(name, p, m, sizes.contiguous if name == "llama3" else None)
    # Without a flush, enough for more than one screen: PipeDream updates after each micro-batch, 2BW after m.
    to_update, updates = (m, 1) if schedule.flushes else (m, 9) if name == "2bw" else (1, 9 * m)
    return schedule.places(p, to_update, v, updates, contiguous=contiguous)


def chunks_at(place: StagePlace) -> int:
    """The number of chunks of a stage, each a v-th of its time. In a cross, a stage has one of each of two models."""
    return 1 if place.shape == "cross" else place.chunks


def costs_of(given: tuple[float, ...], v: int) -> tuple[dict[str, float], float]:
    """--costs, of a whole stage, for the clock. There a chunk takes them in full, and so a message v times its time."""
    if not given:
        return UNIT_COSTS, 0.0
    costs = dict(zip(("F", "B", "W", "message", "F&B"), given, strict=False))
    return costs, v * costs.pop("message", 0.0)


def draw(which: str, sizes: Sizes, json: str | None) -> int:
    """Print one schedule, or all; returns the exit status. Raises UsageError for schedules too long to show."""
    if environment.rank():
        return 0  # under mpirun one drawing is enough
    sizes.check()
    report, overlaps = dict[str, Any](), False
    check_writable("--json", json if json != "-" else None)
    with redirect_stdout(io.StringIO()) if json == "-" else nullcontext():
        for name in SCHEDULES if which == "all" else (which,):
            try:
                timelines, v = timelines_of(name, sizes)
            except UsageError as error:
                if which != "all":
                    raise
                print(f"{name} is left out, it {str(error).removeprefix(name).strip()}", end="\n\n")
                continue  # the others can be compared nevertheless
            schedule = SCHEDULES[name]
            print_timelines(heading(name, v), timelines, not schedule.flushes, v)
            every = f"every {sizes.m} micro-batches" if name == "2bw" else "every micro-batch"
            print(summary(timelines, v) if schedule.flushes else f"no flush; an update after {every}", end="\n\n")
            report[name] = figures(timelines, v)
            overlaps |= any(span.along for timeline in timelines for span in timeline.spans)
        print("A line is a stage. F0: forward of micro-batch 0; B0: its backward of the input,")
        print("W0: of the weights. A digit is a number's last; small: later chunks; …: goes on.")
        if any(SCHEDULES[name].flushes for name in report):
            print("Below: a step's time, where F, B and W take one unit each, and how much of it")
            print("stages idle; in flight: the most micro-batches that stages 0, 1, ... hold.")
        if overlaps:
            print("F0&B1 is a forward that overlaps with a backward, W included.")
        if not all(SCHEDULES[name].flushes for name in report):
            print("Without a flush, below: each one's version of the weights; |: a new one is made.")
    if json:
        write_json(json, {"chapter": "pipeline", "drawn": report})
    return 0


def figures(timelines: Sequence[Timeline], v: int) -> dict[str, Any]:
    """A step's time, the part of it that stages idle, and the most micro-batches in flight on each stage."""
    time = max(timeline.end for timeline in timelines)
    flying = [in_flight(timeline, v) for timeline in timelines]
    return {"time": time / v, "idle": idle_part(timelines, time), "in_flight": flying}
