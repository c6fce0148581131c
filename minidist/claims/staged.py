"""Figures of pipelines, counted on ranks that are its stages: bubbles by their clocks, what they hold and send."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minidist.claims.declared import Job, report_on, sent
from minidist.papers import chimera, dualpipe, v_shapes, zero_bubble
from minidist.papers.figure import Figure

Count = Callable[[Any], float]

# ---- Zero Bubble -----------------------------------------------------------------------------------------------------


def bubble(model: str, m: int, schedule: str) -> Count:
    """The bubble rate by the ranks' clocks."""

    def read(report: dict[str, Any]) -> float:
        [row] = [row for row in report["rows"] if (row["model"], row["m"], row["schedule"]) == (model, m, schedule)]
        return row["bubble"]

    return read


def zero_bubble_on(p: int) -> Job:
    """Table 5: the rows for p stages."""
    rows = [row for row in zero_bubble.TABLE_5 if row.p == p]
    gives = [(figure, bubble(row.model, row.m, schedule)) for row in rows for schedule, figure in row.bubble.items()]
    return Job(p, "pipeline --zero-bubble-table", gives)


# ---- what stages idle, hold and send ---------------------------------------------------------------------------------


def most_idle(report: dict[str, Any]) -> float:
    """The idle time of the stage that idles most, between its first and its last work, in forwards."""
    return max(rank["end"] - rank["start"] - rank["busy"] for rank in report["counted"])


def idle_share(report: dict[str, Any]) -> float:
    """The largest share of a stage's time in which it idles."""
    return max(1 - rank["busy"] / (rank["end"] - rank["start"]) for rank in report["counted"])


def held_by(stages: Callable[[Iterable[float]], float]) -> Count:
    """Micro-batches in flight, or chunks of them: max, on the fullest stage; min, on the emptiest."""
    return lambda report: stages(rank["in_flight"] for rank in report["counted"])


def weights(report: dict[str, Any]) -> float:
    """Copies of the model's parameters that all stages hold together, kept versions included."""
    nbytes = {"mixed": 2, "fp32": 4}[report["precision"]]
    return sum(rank["parameters"] + rank["stash"] for rank in report["memory"]) / nbytes / report["parameters"]


def versions_of(stages: Callable[[Iterable[float]], float]) -> Count:
    """Versions of its parameters that a stage holds: max, of all stages the most; min, the fewest."""
    return lambda report: stages((rank["parameters"] + rank["stash"]) / rank["parameters"] for rank in report["memory"])


def sent_on(report: dict[str, Any]) -> float:
    """Bytes of activations and their gradients, from all stages."""
    moved = ("activations", "gradients")
    return sum(sent(report, phase, rank=rank) for rank in range(report["ranks"]) for phase in moved)


def pipeline_on(p: int, schedule: str, gives: Sequence[tuple[Figure, Count]] = ()) -> Job:
    """A schedule on p ranks, with 2p micro-batches: enough for every formula."""
    model = f"--steps 1 --layers {2 * p} --width 8 --heads 2 --context 4 --untied --validate 0"
    return Job(p, f"pipeline --schedule {schedule} {model} --batch {2 * p} -m {2 * p}", gives)


def relative(count: Count, p: int) -> Count:
    """What is counted, as a multiple of what 1F1B's ranks count."""
    baseline = pipeline_on(p, "1f1b")
    return lambda report: count(report) / count(report_on(p, baseline.line))


def multiple(count: Count, of: int) -> Count:
    return lambda report: count(report) / of


def folded() -> list[Job]:
    """Jobs for DeepSeek-V3's table 2, and for Zero Bubble's README. There V shapes, whose stages have two chunks, are
    relative to 1F1B's 6(p-1) and 2p half stages."""
    gives: dict[tuple[str, int], list[tuple[Figure, Count]]] = {
        at: [(idle, most_idle), (held, held_by(max))] for at, (idle, held) in dualpipe.TABLE_2.items()
    }
    for schedule, figure in dualpipe.PARAMETERS.items():
        gives[schedule, 8].append((figure, weights))
    for (schedule, p), figure in v_shapes.TABLE.items():
        gives[schedule, p] = [(figure, multiple(most_idle, 6 * (p - 1)))]
    gives["zb-v", 8].append((v_shapes.ZB_V_HOLDS, multiple(held_by(max), 2 * 8)))
    for schedule, (idle, held) in v_shapes.ZERO_BUBBLE.items():
        gives.setdefault((schedule, 8), []).extend([(idle, relative(most_idle, 8)), (held, relative(held_by(max), 8))])
    for (schedule, p), figure in v_shapes.SENT.items():
        gives[schedule, p].append((figure, relative(sent_on, p)))
    return [pipeline_on(p, schedule, given) for (schedule, p), given in gives.items()]


# ---- Chimera ---------------------------------------------------------------------------------------------------------

CELLS: dict[str, Count] = {
    "bubble": idle_share,
    "weights": weights,
    "weights_least": versions_of(min),
    "weights_most": versions_of(max),
    "activations_least": held_by(min),
    "activations_most": held_by(max),
}


def chimera_of(d: int) -> Job:
    """Chimera's bubble on the clock alone, because in its table a backward takes as long as a forward."""
    line = f"pipeline --draw chimera --pp {d} -m {d} --costs 1,0.5,0.5"
    return Job(1, line, [(chimera.TABLE_2[d], lambda report: report["drawn"]["chimera"]["idle"])])


def compared(schedule: str) -> Job:
    """A row of its table 2, with as many micro-batches as stages, over several updates if the pipeline has no flush."""
    d, updates = chimera.D, {"pipedream": 2 * chimera.D, "2bw": 4}.get(schedule, 1)
    small = f"--layers {2 * d} --width 8 --heads 2 --context 4 --untied --validate 0"
    line = f"pipeline --schedule {schedule} {small} --batch {d} -m {1 if schedule == 'pipedream' else d}"
    row = chimera.OTHERS[schedule]
    return Job(d, f"{line} --steps {updates}", [(figure, CELLS[what]) for what, figure in row.items()])


JOBS = [
    *(zero_bubble_on(p) for p in (8, 16, 32)),
    *folded(),
    *map(chimera_of, chimera.TABLE_2),
    *map(compared, chimera.OTHERS),
]
