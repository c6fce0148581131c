"""The schedules of a pipeline that a plan tries, and how long each idles: by formula, and by the clock.

A step ends for all ranks at once, because they sum the norm of the gradient. So idle time is a step's time minus
the time of a stage's work. In the formulas F, B and W take one unit of time each, as the papers compare schedules.

GPipe and breadth-first are not tried: they take as long as 1F1B and interleaved, and hold more. ZB-H2 is not: no stage
of it idles between its first and its last operation, but the last stage begins p-1 forwards late, and so a step takes
as long as with ZB-H1, which holds less. (The paper lets steps overlap, by updates that are validated afterwards.)

Schedules that split the backward are tried where their formulas hold: if nothing is recomputed, with ZeRO-0 and ZeRO-1.
"""

from functools import cache

from minidist.papers import dualpipe, pipelines, ptd, v_shapes, zero_bubble
from minidist.plan.choice import Choice, contiguous, divides
from minidist.pp.schedules import SCHEDULES
from minidist.pp.watch import UNIT_COSTS, simulate

TRIED = ("1f1b", "interleaved", "llama3", "zb-h1", "zb-v", "v-half", "v-min", "dualpipe", "dualpipe-v")
PLANNED = (*TRIED, "zb-h2", "gpipe", "breadth-first")  # those for which all formulas are known

BUBBLES = {  # as --explain writes them, relative to the work, and their sources
    "zb-h1": ("(p-1)/3m", "ZB table 2"),
    "zb-h2": ("(p-1)/3m", "ZB table 2"),
    "zb-v": ("(p-1)/6m", "ZB README"),
    "v-half": ("(3(p-1)-[2|p])/6m", "ZB README"),
    "v-min": ("(4(p-1)-[3∤p])/6m", "ZB README"),
    "dualpipe": ("(p-2)/3m", "DSV3 table 2"),
    "dualpipe-v": ("(2p-2)/6m", "DSV3 table 2"),
}


@cache
def orders(layers: int, pp: int, schedule: str = "") -> list[tuple[str, int]]:
    """Schedules and chunks that p stages allow: all, or of this one. Chunks may be uneven if a schedule has a fixed
    number of them; otherwise another number is as good."""
    found = []
    for name in ((schedule,) if schedule else TRIED) if pp > 1 else ("1f1b",) * (schedule in ("", "1f1b")):
        kind = SCHEDULES[name]
        most = (layers + 2) // pp if kind.any_chunks else kind.chunks
        for chunks in range(kind.chunks, most + 1):
            uneven = not kind.any_chunks and pp * chunks <= layers
            if pp % kind.stages_in == 0 and (uneven or divides(layers, pp * chunks)):
                found.append((name, chunks))
    return found


def takes(schedule: str, m: int, pp: int) -> bool:
    """Whether a schedule can have m micro-batches, and its formulas hold for them."""
    kind = SCHEDULES[schedule]
    if m % kind.micro_batches_in(pp) or m < kind.at_least(pp) or not pipelines.filled(schedule, pp, m):
        return False
    if schedule == "llama3":  # with a rest as a group of its own; otherwise it is interleaved
        return m % pp > 0
    return schedule not in ("zb-h1", "zb-h2") or m >= zero_bubble.fills(schedule, pp)


def splits(schedule: str) -> bool:
    """Whether W comes later than B."""
    return SCHEDULES[schedule].splits


def idle(schedule: str, p: int, m: int, v: int) -> float:
    """Idle time relative to the time of the work. It is the same for GPipe, 1F1B, interleaved and breadth-first (PTD,
    section 2.2; Llama 3, section 3.3.2)."""
    assert schedule in PLANNED
    if schedule == "zb-h1":
        return zero_bubble.idle(schedule, p, 1, 1, 1) / (3 * m)
    if schedule in ("zb-h2", "zb-v"):  # none within a stage's own time; but each next stage begins F later
        own = zero_bubble.idle(schedule, p, 1, 1, 1) if schedule == "zb-h2" else v_shapes.idle(schedule, p)
        return (own + p - 1) / (3 * m * v)
    if schedule in ("v-half", "v-min"):
        return v_shapes.idle(schedule, p) / (3 * m * v)
    if schedule in ("dualpipe", "dualpipe-v"):
        return dualpipe.idle(p * v, f=1, b=2, w=1, both=3) / (3 * m * v)
    return ptd.bubble(p, m, v)


def clocked_idle(choice: Choice, m: int) -> float:
    """`idle` by the logical clock, which runs the schedule's own instructions. Only as many micro-batches run as fill
    the pipeline, because the idle time does not depend on their number."""
    group = contiguous(choice.schedule, choice.pp, m) or choice.pp
    fewer = min(m, group * (2 if splits(choice.schedule) else 1) + m % group)
    return run_clock(choice.schedule, choice.pp, fewer, choice.chunks, group) * fewer / m


@cache
def run_clock(schedule: str, p: int, m: int, v: int, group: int) -> float:
    """Idle time relative to the time of the work, if all m micro-batches run."""
    kind = SCHEDULES[schedule]
    timelines = simulate([(at, kind.instructions(at)) for at in kind.places(p, m, v, contiguous=group)], UNIT_COSTS)
    work = timelines[0].busy
    return (max(timeline.end for timeline in timelines) - work) / work
