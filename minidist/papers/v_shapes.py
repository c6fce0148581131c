"""V-shaped pipelines: Qi et al., "Pipeline parallelism with controllable memory", 2024, arXiv 2405.15362, as the README
of github.com/sail-sg/zero-bubble-pipeline-parallelism has them.

A stage has two chunks. Times are those of a chunk: F, B and W take one each, and 1F1B idles 6(p-1) of them. The README
rounds: a half, a third. What follows is exact for the patterns in `minidist/pp/folded.py`.
"""

from minidist.papers.figure import Figure


def idle(schedule: str, p: int) -> int:
    """The time that a step takes in addition to its work: V-Half half of 1F1B's 6(p-1), V-Min two thirds, and both one
    less for some p. A stage of ZB-V works from its first forward to its last W: 0."""
    return {
        "zb-v": 0,
        "v-half": 3 * (p - 1) - (p % 2 == 0),
        "v-min": 4 * (p - 1) - (p > 1 and p % 3 > 0),
    }[schedule]


def in_flight(schedule: str, p: int, stage: int) -> int:
    """Chunks of micro-batches that a stage holds. 1F1B's fullest stage holds 2p; ZB-V's hold as many, V-Half's about a
    half, V-Min's about a third."""
    return {
        "zb-v": 2 * p,
        "v-half": p + 3 - stage % 2,
        "v-min": 2 * ((p + 4) // 3 - (p % 3 == 2 and stage % 3 == 1)),
    }[schedule]


def fills(schedule: str, p: int) -> int:
    """The least number of micro-batches for which both formulas hold."""
    return 2 * p - 1 if schedule == "zb-v" else 2 * p


# ---- what it prints --------------------------------------------------------------------------------------------------


def _bubble(name: str, p: int, printed: str) -> Figure:
    """A row of the README's table, which has 0, B/2 and 2B/3 of 1F1B's B, at a p for which the pattern is exact."""
    return Figure("ZB README", f"{name}, p = {p}, bubble", printed, "times 1F1B's", "idle / 6(p-1)", evidence="code")


TABLE = {
    ("zb-v", 8): _bubble("ZB-V", 8, "0.00"),
    ("v-half", 9): _bubble("V-Half", 9, "0.50"),
    ("v-min", 9): _bubble("V-Min", 9, "0.67"),
}
ZB_V_HOLDS = Figure("ZB README", "ZB-V, p = 8, activations", "1", "times 1F1B's", "chunks / 2p", evidence="code")


def _relative(name: str, p: int, what: str, printed: str) -> Figure:
    """A row of the README's tables, relative to 1F1B. It rounds: a stage of ZB2P holds 2p - 1."""
    formula = f"{what} / 1F1B's"
    return Figure("ZB README", f"{name}, p = {p}, {what}", printed, "times 1F1B's", formula, evidence="code")


ZERO_BUBBLE = {  # p = 8: bubble and activations
    "zb-h1": (_relative("ZB1P", 8, "bubble", "0.33"), _relative("ZB1P", 8, "activations", "1")),
    "zb-h2": (_relative("ZB2P", 8, "bubble", "0.00"), _relative("ZB2P", 8, "activations", "2")),
}
SENT = {  # the pipeline's communication volume
    ("zb-h1", 8): _relative("ZB1P", 8, "communication", "1"),
    ("zb-h2", 8): _relative("ZB2P", 8, "communication", "1"),
    ("zb-v", 8): _relative("ZB-V", 8, "communication", "2"),
    ("v-half", 9): _relative("V-Half", 9, "communication", "2"),
    ("v-min", 9): _relative("V-Min", 9, "communication", "2"),
}
FIGURES = [*TABLE.values(), ZB_V_HOLDS, *(figure for pair in ZERO_BUBBLE.values() for figure in pair), *SENT.values()]
