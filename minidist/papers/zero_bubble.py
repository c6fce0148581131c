"""Zero Bubble: Qi et al. 2023, arXiv 2401.10241. p stages, which count from 1, and m micro-batches."""

from typing import NamedTuple

from minidist.papers.figure import Figure


def idle(schedule: str, p: int, t_f: float, t_b: float, t_w: float) -> float:
    """Idle time of a stage between its first and its last operation, in the unit of the times (table 2).

    1F1B (p-1)(T_F+T_B+T_W), ZB-H1 (p-1)(T_F+T_B-T_W), ZB-H2 (p-1)(T_F+T_B-2T_W): for the stage that idles most,
    if there are enough micro-batches to fill the pipeline (see `fills`).
    """
    return (p - 1) * (t_f + t_b + {"1f1b": 1, "zb-h1": -1, "zb-h2": -2}[schedule] * t_w)


def in_flight(schedule: str, p: int) -> int:
    """How many micro-batches a stage i of p holds: ZB-H1 (p-i+1) before B and (i-1) before W, p together; ZB-H2
    (2p-2i+1) and (2i-2), 2p-1 together (table 2)."""
    return {"zb-h1": p, "zb-h2": 2 * p - 1}[schedule]


def waiting_for_w(schedule: str, stage: int) -> int:
    """How many of the micro-batches in flight wait only for W."""
    return {"zb-h1": stage - 1, "zb-h2": 2 * stage - 2}[schedule]


def fills(schedule: str, p: int) -> int:
    """The least number of micro-batches for which `idle` holds: as many as a stage has in flight; for 1F1B, any."""
    return 1 if schedule == "1f1b" else in_flight(schedule, p)


# ---- what it prints --------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """A setting of the experiments: times of one stage in ms (table 9), and the bubble rate of each schedule (table 5).

    A bubble rate is (cost - m(T_F+T_B+T_W))/cost, cost the longest that any stage takes from its first to its last
    operation, with T_comm for each message: ranks measure it on their clocks.
    """

    model: str
    p: int
    m: int
    t_f: float
    t_b: float
    t_w: float
    t_comm: float
    bubble: dict[str, Figure]


def _row(model: str, p: int, m: int, t_f: float, t_b: float, t_w: float, t_comm: float, *printed: str) -> Setting:
    """A row, with what is printed for 1F1B, ZB-H1 and ZB-H2."""
    formula = "(cost - m(T_F+T_B+T_W))/cost"
    bubble = {
        schedule: Figure("ZB Table 5", f"{model}, m = {m}, {schedule}", rate, "", formula)
        for schedule, rate in zip(("1f1b", "zb-h1", "zb-h2"), printed, strict=True)
    }
    return Setting(model, p, m, t_f, t_b, t_w, t_comm, bubble)


TABLE_5 = [
    _row("1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601, "0.2431", "0.1585", "0.1083"),
    _row("1.5B", 8, 32, 18.513, 18.086, 9.331, 0.626, "0.1985", "0.1242", "0.0837"),
    _row("1.5B", 8, 64, 18.546, 18.097, 9.321, 0.762, "0.1240", "0.0674", "0.0444"),
    _row("6.2B", 8, 24, 29.718, 29.444, 19.927, 0.527, "0.2347", "0.1323", "0.0698"),
    _row("6.2B", 8, 32, 29.802, 29.428, 19.530, 0.577, "0.1898", "0.1045", "0.0559"),
    _row("6.2B", 8, 64, 29.935, 29.621, 19.388, 0.535, "0.1091", "0.0554", "0.0294"),
    _row("14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377, "0.2552", "0.1397", "0.0672"),
    _row("14.6B", 16, 64, 11.307, 11.254, 8.101, 0.379, "0.2082", "0.1088", "0.0516"),
    _row("14.6B", 16, 128, 11.325, 11.308, 8.109, 0.378, "0.1251", "0.0576", "0.0266"),
    _row("28.3B", 32, 96, 10.419, 10.207, 7.715, 0.408, "0.2646", "0.1421", "0.0641"),
    _row("28.3B", 32, 128, 10.408, 10.204, 7.703, 0.408, "0.2168", "0.1106", "0.0490"),
    _row("28.3B", 32, 256, 10.402, 10.248, 7.698, 0.460, "0.1352", "0.0594", "0.0257"),
]

FIGURES = [figure for row in TABLE_5 for figure in row.bubble.values()]
