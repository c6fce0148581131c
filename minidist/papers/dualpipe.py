"""DualPipe: DeepSeek-V3 Technical Report, 2024, arXiv 2412.19437, and github.com/deepseek-ai/DualPipe.

PP: stages. F: a forward; B: a whole backward; W: the gradient of weights; F&B: a forward and a backward that overlap.
Its B is whole: Zero Bubble's T_B is the gradient of the input alone, and this one's B - W.
"""

from minidist.papers.figure import Figure


def idle(pp: int, f: float, b: float, w: float, both: float) -> float:
    """(PP/2-1)(F&B + B - 3W) (table 2). We ran the repository's own order in 480 settings: the rank that idles most
    idles this long if F = B - W and W <= F; every rank does if also F&B = F + B. Otherwise it may be more or less."""
    return (pp / 2 - 1) * (both + b - 3 * w)


def in_flight(pp: int) -> int:
    """Micro-batches, or chunks of them, whose activations a rank holds: PP + 1 (table 2)."""
    return pp + 1


def idle_as_printed(schedule: str, pp: int, f: float, b: float, w: float) -> float:
    """Table 2's bubble of any of its schedules, without overlap: F&B = F + B."""
    if schedule == "dualpipe":
        return idle(pp, f, b, w, f + b)
    return (pp - 1) * {"1f1b": f + b, "zb-h1": f + b - 2 * w}[schedule]


# ---- what it prints --------------------------------------------------------------------------------------------------

UNIT = {"f": 1.0, "b": 2.0, "w": 1.0}  # the times of the clock: F, and a backward of which W is one half
STAGES = (4, 8, 16)


def _table_2(schedule: str, name: str, bubble: str, activations: str) -> dict[tuple[str, int], list[Figure]]:
    """A row for each number of stages: bubble, in F, and micro-batches held, both as a formula that is filled in."""
    made = {}
    for pp in STAGES:
        held = in_flight(pp) if schedule == "dualpipe" else pp
        value = idle_as_printed(schedule, pp, **UNIT)
        made[schedule, pp] = [
            Figure("DSV3 Table 2", f"{name}, PP = {pp}, bubble", f"{value:.0f}", "F", bubble),
            Figure("DSV3 Table 2", f"{name}, PP = {pp}, activations", str(held), "", activations),
        ]
    return made


TABLE_2 = {
    **_table_2("1f1b", "1F1B", "(PP-1)(F+B)", "PP"),
    **_table_2("zb-h1", "ZB1P", "(PP-1)(F+B-2W)", "PP"),
    **_table_2("dualpipe", "DualPipe", "(PP/2-1)(F&B+B-3W)", "PP+1"),
}
PARAMETERS = {
    schedule: Figure("DSV3 Table 2", f"{name}, parameters", printed, "Ψ", "all ranks' / Ψ")
    for schedule, name, printed in (("1f1b", "1F1B", "1"), ("zb-h1", "ZB1P", "1"), ("dualpipe", "DualPipe", "2"))
}
FIGURES = [*PARAMETERS.values(), *(figure for row in TABLE_2.values() for figure in row)]
