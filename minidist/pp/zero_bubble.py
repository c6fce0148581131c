"""Zero Bubble's table 5 again: its bubble rates, from ranks that exchange nothing but logical time.

    mpirun -n 8 python -m minidist.pipeline --zero-bubble-table        (and -n 16, -n 32)

Qi et al., "Zero bubble pipeline parallelism", 2023, arXiv 2401.10241. The paper measures how long a stage of its models
takes for F, B and W and how long a message takes (table 9), and derives what part of a step each schedule idles (table
5). Here every rank is a stage: it goes through its schedule on a clock that these times drive.
"""

from typing import Any

from minidist.claims.published import print_zero_bubble
from minidist.cli.paths import write_json
from minidist.mpi.comm import Comm
from minidist.papers.zero_bubble import TABLE_5, Setting
from minidist.pp.schedules import SCHEDULES
from minidist.pp.watch import OverRanks, StageClock

RANKS = tuple(sorted({row.p for row in TABLE_5}))


def bubble_rate(comm: Comm, row: Setting, schedule: str) -> float | None:
    """The bubble rate on rank 0, None elsewhere. All ranks must call."""
    at = SCHEDULES[schedule].places(row.p, row.m)[comm.rank]
    watch = StageClock(at, OverRanks(at, comm), {"F": row.t_f, "B": row.t_b, "W": row.t_w}, row.t_comm)
    for instruction in SCHEDULES[schedule].instructions(at):
        watch.see(instruction)
    spans = comm.gather_object(watch.timeline.end - watch.timeline.start)
    if spans is None:
        return None
    cost = max(spans)
    return (cost - row.m * (row.t_f + row.t_b + row.t_w)) / cost


def table(comm: Comm) -> list[dict[str, Any]]:
    """The rows of table 5 with as many stages as there are ranks, measured next to printed; on rank 0 only."""
    rows = []
    for row in TABLE_5:
        if row.p == comm.size:
            for schedule, figure in row.bubble.items():
                rate = bubble_rate(comm, row, schedule)
                if rate is not None:
                    known = {"model": row.model, "p": row.p, "m": row.m, "schedule": schedule}
                    both = {"bubble": rate, "printed": float(figure.printed)}
                    rows.append({**known, **both, "holds": figure.agrees(rate)})
    return rows


def main(comm: Comm, json_file: str | None) -> int:
    """Print the table; returns 1 if a number differs from the printed one."""
    rows = table(comm)
    if comm.rank > 0:
        return int(comm.broadcast_object(None))
    if json_file != "-":
        print_zero_bubble(rows)
    if json_file:
        write_json(json_file, {"chapter": "pipeline", "rows": rows})
    return int(comm.broadcast_object(0 if all(row["holds"] for row in rows) else 1))
