"""Pipelines that are folded or crossed, for the notebook: the package's orders, on the package's clock.

In a V a stage has two chunks, each half as large as a stage, so that each takes half as long and holds half as much.
"""

from functools import cache

from minidist.pp.best import Tried, try_all
from minidist.pp.draw import Sizes, timelines_of
from minidist.pp.schedules import SCHEDULES

Span = tuple[str, int, float, float, int]  # (letter, micro-batch, start, end, chunk)


def size_of_chunk(name: str) -> float:
    """Relative to a stage."""
    return 1 / SCHEDULES[name].chunks


def spans_of(name: str, p: int, m: int) -> list[list[Span]]:
    """What each stage does when. A forward that overlaps with a backward is drawn as one after the other."""
    timelines, v = timelines_of(name, Sizes(p, m))
    found = []
    for timeline in timelines:
        spans: list[Span] = []
        for span in timeline.spans:
            start, end = span.start / v, span.end / v
            if span.along:
                between = start + (end - start) / 3
                spans.append(("F", span.micro_batch, start, between, span.chunk))
                spans.append(("BW", span.along[0], between, end, span.along[1]))
            else:
                spans.append((span.letter, span.micro_batch, start, end, span.chunk))
        found.append(spans)
    return found


@cache
def tried(p: int, m: int, costs: tuple[float, ...]) -> list[Tried]:
    """Every schedule with a flush, the fastest first."""
    return try_all(Sizes(p, m, costs=costs))[0]


def fastest(p: int, m: int, held: float, costs: tuple[float, ...]) -> Tried | None:
    """The fastest schedule whose fullest stage holds at most this part of what 1F1B's first stage holds. costs: of F,
    B, W and a message, for a whole stage."""
    return next((one for one in tried(p, m, costs) if one.held <= held), None)
