"""V-shaped pipelines: Qi et al., "Pipeline parallelism with controllable memory", 2024, arXiv 2405.15362, as the README
of github.com/sail-sg/zero-bubble-pipeline-parallelism has them.

A stage has two chunks. Times are those of a chunk: F, B and W take one each, and 1F1B idles 6(p-1) of them. The README
rounds: a half, a third. What follows is exact for the patterns in `minidist/pp/folded.py`.
"""

from minidist.papers.figure import Figure, decimals, format_whole


def idle(schedule: str, p: int) -> int:
    """What a step takes longer than its work: V-Half half of 1F1B's 6(p-1), V-Min two thirds, and both
    one less if the pattern fits p so. A stage of ZB-V works from its first forward to its last W: 0."""
    return {
        "zb-v": 0,
        "v-half": 3 * (p - 1) - (p % 2 == 0),
        "v-min": 4 * (p - 1) - (p > 1 and p % 3 > 0),
    }[schedule]


def in_flight(schedule: str, p: int, stage: int) -> int:
    """Chunks of micro-batches that a stage holds, of which 1F1B's fullest holds 2p: ZB-V as many, V-Half and V-Min about
    a half and a third."""
    return {
        "zb-v": 2 * p,
        "v-half": p + 3 - stage % 2,
        "v-min": 2 * ((p + 4) // 3 - (p % 3 == 2 and stage % 3 == 1)),
    }[schedule]


def fills(schedule: str, p: int) -> int:
    """From how many micro-batches on both formulas hold."""
    return 2 * p - 1 if schedule == "zb-v" else 2 * p


# ---- what it prints --------------------------------------------------------------------------------------------------


def _row(schedule: str, name: str, p: int, bubble: str, activations: str) -> list[Figure]:
    """A row of the README's table, relative to 1F1B, at p stages for which its round numbers are near."""
    of = "ZB README", f"{name}, p = {p}"
    found = [Figure(of[0], f"{of[1]}, bubble", bubble, "of 1F1B's", "idle / 6(p-1)", None, decimals(2), "code")]
    held = Figure(of[0], f"{of[1]}, activations", activations, "of 1F1B's", "chunks / 2p", None, format_whole, "code")
    return [*found, held] if activations else found


TABLE = {
    ("zb-v", 8): _row("zb-v", "ZB-V", 8, "0.00", "1"),
    ("v-half", 9): _row("v-half", "V-Half", 9, "0.50", ""),
    ("v-min", 9): _row("v-min", "V-Min", 9, "0.67", ""),
}
FIGURES = [figure for row in TABLE.values() for figure in row]
