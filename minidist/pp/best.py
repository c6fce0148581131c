"""--best: which schedule to take. Each one runs on the clock; the fastest that fits is drawn.

python -m minidist.pipeline --best --pp 8 -m 32 --held 0.6 --costs 1,1.2,0.8,0.1
"""

import io
import math
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from typing import NamedTuple

from minidist import UsageError
from minidist.cli.paths import check_writable, write_json
from minidist.cli.tables import make_table, show
from minidist.mpi import environment
from minidist.pp.draw import Sizes, figures, heading, timelines_of
from minidist.pp.schedules import SCHEDULES
from minidist.pp.timeline import Timeline, print_timelines, summary


class Tried(NamedTuple):
    """A schedule as the clock has seen it."""

    name: str
    chunks: int
    timelines: Sequence[Timeline]
    time: float  # of a step
    idle: float  # the part of it that a stage idles
    held: float  # activations on the fullest stage, relative to those that 1F1B holds on its first
    parameters: int  # copies of each


def choose(sizes: Sizes, held: float | None, json: str | None) -> int:
    """Print how all schedules do, and draw the best; returns the exit status. Raises UsageError if none fits."""
    if environment.rank():
        return 0  # under mpirun one answer is enough
    sizes.check()
    allowed = 1.0 if held is None else held
    check_writable("--json", json if json != "-" else None)
    tried, reasons = try_all(sizes)
    fits = [one for one in tried if one.held <= allowed]
    if not fits:
        least = math.ceil(1000 * min(one.held for one in tried)) / 1000
        raise UsageError(f"no schedule holds as little as {allowed:g} of what 1F1B does: use --held {least:g}")
    with redirect_stdout(io.StringIO()) if json == "-" else nullcontext():
        table = make_table(left=("schedule",), right=("a step takes", "idle", "holds", "parameters", ""))
        for one in tried:
            numbers = f"{one.time:.4g}", f"{one.idle:.1%}", f"{one.held:.3g}", f"{one.parameters}x"
            table.add_row(one.name, *numbers, "best" if one is fits[0] else "fits" if one in fits else "")
        show(f"{sizes.p} stages, {sizes.m} micro-batches: each schedule by the clock", table)
        print("holds: activations on the fullest stage, relative to those of 1F1B on its first;")
        print("times are in the unit of --costs. Schedules without a flush are left out: their")
        print("losses are not those of serial training.")
        for reason in reasons:
            print(f"Left out, too: {reason}.")
        print()
        print_timelines(heading(fits[0].name, fits[0].chunks), fits[0].timelines, chunks=fits[0].chunks)
        print(summary(fits[0].timelines, fits[0].chunks))
    if json:
        rows = [{"schedule": one.name, **one._asdict(), "fits": one in fits} for one in tried]
        rows = [{key: value for key, value in row.items() if key not in ("name", "timelines")} for row in rows]
        write_json(json, {"chapter": "pipeline", "best": fits[0].name, "tried": rows})
    return 0


def try_all(sizes: Sizes) -> tuple[list[Tried], list[str]]:
    """Every schedule with a flush, the fastest first; and why others cannot have p stages and m micro-batches."""
    tried, reasons = list[Tried](), list[str]()
    for name, schedule in SCHEDULES.items():
        if schedule.flushes:
            try:
                timelines, v = timelines_of(name, sizes)
            except UsageError as error:
                reasons.append(str(error).partition(": use")[0])
                continue
            seen = figures(timelines, v)
            held = max(seen["in_flight"]) / min(sizes.p, sizes.m)
            copies = 2 if schedule.shape == "cross" else 1
            tried.append(Tried(name, v, timelines, seen["time"], seen["idle"], held, copies))
    return sorted(tried, key=lambda one: one.time), reasons
