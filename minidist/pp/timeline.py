"""Timelines of a pipeline: drawn in the terminal, or written for a trace viewer. The times are those of logical clocks.

`write_trace` writes the Trace Event Format, which https://ui.perfetto.dev and chrome://tracing open: a row for each
rank, a slice for each piece of work, an arrow for each message.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minidist import former_names
from minidist.cli.paths import write_output
from minidist.cli.tables import make_console

COLOURS = {"F": "blue", "R": "cyan", "B": "green", "W": "yellow", "F&B": "magenta"}
NAMES = {"F": "forward", "R": "recompute", "B": "input gradient", "W": "weight gradient", "F&B": "both"}
MICROSECONDS = 1000  # of the trace to a unit of logical time


@dataclass(frozen=True)
class WorkSpan:
    """One piece of work."""

    letter: str
    start: float
    end: float
    micro_batch: int
    chunk: int
    version: int = 0  # of the weights: how many updates of the stream have made it
    along: tuple[int, int] | None = None  # F&B: micro-batch and chunk of the backward that the forward overlaps

    @property
    def label(self) -> str:
        """The span as drawn: letter, and last digit of the micro-batch; small for later chunks."""
        parts = [("F", self.micro_batch, self.chunk), ("B", *self.along)] if self.along else []
        parts = parts or [(self.letter, self.micro_batch, self.chunk)]
        return "&".join(f"{x.lower() if chunk else x}{k % 10}" for x, k, chunk in parts)


@dataclass(frozen=True)
class Mail:
    """A message as one of its ends saw it; both call it by the same name: what, micro-batch, boundary of the model."""

    name: tuple[str, int, int]
    time: float
    sent: bool


@dataclass
class Timeline:
    """What one rank did."""

    title: str
    spans: list[WorkSpan] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)  # when the weights were updated
    mail: list[Mail] = field(default_factory=list)

    @property
    def start(self) -> float:
        return self.spans[0].start

    @property
    def end(self) -> float:
        return self.spans[-1].end

    @property
    def busy(self) -> float:
        return sum(span.end - span.start for span in self.spans)


def print_timelines(heading: str, timelines: Sequence[Timeline], goes_on: bool = False, chunks: int = 1) -> None:
    """Print a line for each rank: two columns per unit of time, or one if the line then fits, or if a stage has several
    chunks. A longer timeline, or one that `goes_on`, is cut.

    Each piece of work shows its letter, and, if there is room, the last digit of its micro-batch. Second and later
    chunks of a stage have small letters. If weights change under way (`goes_on`), a second line has the version of the
    weights below each F and B, and a bar where the next version is made.
    """
    from rich.text import Text

    console = make_console(highlight=False)
    title_width = max(len(timeline.title) for timeline in timelines) + 2
    room = console.width - title_width - 1
    end = max(timeline.end for timeline in timelines)
    scale = 1 if chunks > 1 or (end <= room < 2 * end and not goes_on) else 2
    if heading:
        console.print(Text(heading, style="bold"))
    for timeline in timelines:
        line, column = Text(timeline.title.ljust(title_width)), 0
        for span in timeline.spans:
            first, stop = int(span.start * scale), int(span.end * scale)
            if stop > room:
                line.append(" " * (room - column) + "…")
                break
            line.append(" " * (first - column))
            label = span.label[: stop - first].ljust(stop - first, "-")
            line.append(label, style=COLOURS[span.letter])
            column = stop
        console.print(line)
        if goes_on:
            console.print(Text(" " * title_width + versions_line(timeline, scale, room)))


def versions_line(timeline: Timeline, scale: int, room: int) -> str:
    """Below each F and B of a drawn timeline the last digit of the version of its weights; `|` where one is made."""
    marks = [" "] * room
    for span in timeline.spans:
        if span.letter in "FB" and span.end * scale <= room:
            marks[int(span.start * scale)] = str(span.version % 10)
    for made in timeline.steps:
        if 0 < made * scale <= room:
            marks[int(made * scale) - 1] = "|"
    return "".join(marks).rstrip()


def in_flight(timeline: Timeline, chunks: int = 1) -> float:
    """The most micro-batches between their F and the end of their W. In one of v `chunks`, one counts as 1/v."""
    now, most = 0, 0
    for span in timeline.spans:
        now += span.letter in ("F", "F&B")
        most = max(most, now)
        now -= span.letter in ("W", "F&B")
    return most / chunks


def idle_part(timelines: Sequence[Timeline], time: float) -> float:
    """The part of `time` that stages idle, on average: in an order by hand, one may have more work than another."""
    return 1 - sum(timeline.busy for timeline in timelines) / (time * len(timelines))


def summary(timelines: Sequence[Timeline], chunks: int = 1) -> str:
    """The figures below a drawing of a whole step. chunks: the number in a stage; together they take a unit of time."""
    step = max(timeline.end for timeline in timelines)
    flying = " ".join(f"{in_flight(timeline, chunks):g}" for timeline in timelines)
    told = f"{step / chunks:g} units of time, {tell_idle(timelines)}; in flight {flying}"
    return told if len(told) <= 80 else told.replace("; in flight", ";\nin flight")


def tell_idle(timelines: Sequence[Timeline]) -> str:
    """The idle part of a whole step; and of a stage's own time, between its first and its last work, if that is shorter
    on all stages: ZB-H2 has "zero bubble" in it."""
    step = max(timeline.end for timeline in timelines)
    longest = max(timeline.end - timeline.start for timeline in timelines)
    own = "" if math.isclose(longest, step) else f" (of a stage's own time, {idle_part(timelines, longest):.1%})"
    return f"{idle_part(timelines, step):.1%} idle{own}"


def write_trace(path: str, timelines: Sequence[Timeline], pipelines: Sequence[Sequence[int]]) -> None:
    """Write the trace of all ranks. timelines: in order of rank. pipelines: the ranks of each.

    A slice F3 c1 v1 is micro-batch 3's forward through chunk 1 of the stage, with the weights after 1 update; chunks
    and versions are named if there are several.
    """
    pipeline_of = {rank: i for i, ranks in enumerate(pipelines) for rank in ranks}
    spans = [span for timeline in timelines for span in timeline.spans]
    with_chunks, with_versions = any(span.chunk for span in spans), any(span.version for span in spans)
    arrows: dict[tuple[int, str, int, int], int] = {}  # (pipeline, name) -> a whole number: Perfetto draws no others
    pid = len(timelines) + 1  # Perfetto calls rows of this number, and of number 0, the main thread
    process = {"name": "ranks, in simulated time"}
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": pid, "args": process}]
    for rank, timeline in enumerate(timelines):
        pipeline = pipeline_of[rank]
        here = {"pid": pid, "tid": rank + 1}
        where = f"pipeline {pipeline}, " if len(pipelines) > 1 else ""
        title = {"name": f"rank {rank} ({where}{timeline.title})"}
        events.append({"ph": "M", "name": "thread_name", **here, "args": title})
        events.append({"ph": "M", "name": "thread_sort_index", **here, "args": {"sort_index": rank}})
        for span in timeline.spans:
            name = f"{span.letter[0]}{span.micro_batch}"
            name += f" c{span.chunk}" * with_chunks + f" v{span.version}" * with_versions
            if span.along:
                name += f" & B{span.along[0]} c{span.along[1]}"
            what = {"micro-batch": span.micro_batch, "chunk": span.chunk, "version": span.version}
            times = {"ts": span.start * MICROSECONDS, "dur": (span.end - span.start) * MICROSECONDS}
            events.append({"ph": "X", "name": name, "cat": NAMES[span.letter], **here, **times, "args": what})
        for mail in timeline.mail:
            # An arrow starts inside the slice that made the message, so a little before its end, and is bound to the
            # slice that begins where it arrives.
            time = mail.time * MICROSECONDS
            end = {"ph": "s", "ts": time - 1} if mail.sent else {"ph": "f", "bp": "e", "ts": time}
            number = arrows.setdefault((pipeline, *mail.name), len(arrows) + 1)
            events.append({**end, "name": mail.name[0], "cat": "message", "id": number, **here})
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"time": "simulated: a logical clock's"}}
    write_output(path, json.dumps(document).encode())


__getattr__ = former_names(__name__)
