"""Published runs: what was chosen, what the model says of it, and what was measured.

One number is fitted, the ceiling: the share of its peak that a device reaches. It is set on SC 2021's table 1, by
`fit`, and is the same for all other runs and devices. Where a run is off by more than 15 %, the reason stands next to
it. `trained.py` has the runs that trained a model, `measured.py` the peaks of memory,
`measured_time.py` the steps of these runs.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from minidist.cli.paths import check_writable, write_json
from minidist.papers import korthikanti, llama3, megascale, ptd
from minidist.papers.figure import plain
from minidist.papers.models import Model
from minidist.plan import measured, measured_time, trained
from minidist.plan.choice import Choice, Wanted, divides
from minidist.plan.printed import A100, H100, Published, gpt
from minidist.plan.search import Evaluator, search
from minidist.plan.show import count, wrapped
from minidist.plan.ties import Row
from minidist.plan.time import CEILING, Cluster, flops_a_token
from minidist.pp.options import divisors

NARROW = "its matrices are narrow, and a device reaches less of its peak with these; the ceiling is one for all widths"
WIDE = "its matrices are the widest, 25,600, and a device reaches more of its peak with these"
MESSAGES = (
    "the ZeRO-3 that PTD measured hides few of its messages: on twice the GPUs a step takes as long (175B: 67 s on 768"
    " and on 1,536). The model hides gathers behind work, as FSDP does, and lets all ranks of a host send at once"
)
OVERLAPS = (
    "MegaScale hides tensor and pipeline messages, attends within a window, and runs attention and MLP in parallel: by"
    " its table 3, all that takes MFU from 47.7 to 65.3 %"
)


def table_1() -> Iterator[Published]:
    """SC 2021: tensor and pipeline parallelism, full recomputation. Micro-batches and chunks are not printed."""
    for row in ptd.TABLE_1:
        wanted = Wanted("", gpt(row.layers, row.h, row.heads), row.batch, 2048, "mixed", sequence=False)
        choice = Choice(row.gpus // row.t // row.p, row.t, 1, row.p, zero=0, recompute="every:1")
        work = ptd.flops(row.batch, row.layers, row.h)
        seconds = work / (plain(row.rate.printed) * 1e12 * row.gpus)
        name = f"PTD {row.size.printed}B, {row.gpus} GPUs"
        cluster = replace(A100, ranks=row.gpus)
        yield Published(name, wanted, choice, cluster, seconds, row.rate, NARROW if row.h <= 4096 else "", True, True)


def table_2() -> Iterator[Published]:
    """SC 2021: ZeRO-3, one micro-batch in a step; and PTD, with t = 8 and as many stages as make 96 and 280 ranks."""
    for run in ptd.TABLE_2_RUNS:
        heads = run.h // 128
        sizes = {("ZeRO-3", 640): 2560}.get((run.scheme, run.gpus), {96: 1536, 105: 2240}[run.layers])
        wanted = Wanted("", gpt(run.layers, run.h, heads), sizes, 2048, "mixed", sequence=False)
        if run.scheme == "ZeRO-3":
            choice = Choice(run.gpus, zero=3, recompute="every:1", rows=run.rows)
        else:
            p = {96: 12, 105: 35}[run.layers]
            choice = Choice(run.gpus // 8 // p, 8, 1, p, zero=0, recompute="every:1", rows=run.rows)
        seconds = ptd.flops(sizes, run.layers, run.h) / (plain(run.rate.printed) * 1e12 * run.gpus)
        name = f"{run.scheme} {'175B' if run.layers == 96 else '530B'}, {run.gpus} GPUs"
        cluster, mine = replace(A100, ranks=run.gpus), run.scheme == "PTD"
        yield Published(name, wanted, choice, cluster, seconds, run.rate, "" if mine else MESSAGES, open=mine)


def selective() -> Iterator[Published]:
    """Korthikanti's table 5: sequence parallelism, selective recomputation; three chunks for 175B and 530B."""
    figures = {figure.cell: figure for figure in korthikanti.FIGURES if figure.source == "Korthikanti Table 5"}
    stages = {"22B": (1, 1), "175B": (8, 3), "530B": (35, 3), "1T": (64, 1)}
    for name, of in korthikanti.TABLE_3.items():
        gpus, batch = korthikanti.ON[name]
        p, v = stages[name]
        wanted = Wanted("", gpt(of.layers, of.h, of.a), batch, korthikanti.S, "mixed")
        schedule = "interleaved" if v > 1 else "1f1b"
        choice = Choice(1, 8, 1, p, 1, schedule, v, 0, 1, "selective", of.b)
        printed, cluster = figures[f"{name}, present work"], replace(A100, ranks=gpus)
        called, reason = f"Korthikanti {name}, {gpus} GPUs", WIDE if of.h > 20_480 else ""
        yield Published(called, wanted, choice, cluster, plain(printed.printed), printed, reason)


def table_of_megascale() -> Iterator[Published]:
    """MegaScale's table 2: eight tensor ranks, eight stages of six chunks."""
    for run in megascale.TABLE_2:
        wanted = Wanted("", gpt(megascale.LAYERS, megascale.H, 96, megascale.V), run.batch, megascale.S, "bf16")
        choice = Choice(run.gpus // 64, 8, 1, 8, 1, "interleaved", 6, 1, 1, "selective", 1)
        yield Published(
            f"{run.system} {run.gpus} GPUs", wanted, choice, replace(A100, ranks=run.gpus),
            plain(run.seconds.printed), run.seconds, OVERLAPS if run.system == megascale.MEGASCALE else "",
        )  # fmt: skip


def of_llama() -> Iterator[Published]:
    """Llama 3's table 4, in steps of 16 M tokens; DP is 8 in the third row. Gradients are divided, parameters not
    (section 3.3.2); attention keeps no probabilities."""
    model = Model.like(llama3.MODELS["llama3-405b"])
    for run in llama3.TABLE_4:
        batch, gpus = 2**24 // run.context, run.tp * run.cp * run.pp * run.dp
        wanted = Wanted("", model, batch, run.context, "bf16", scheme="all-gather")
        choice = Choice(run.dp, run.tp, run.cp, run.pp, 1, "interleaved", 8, 2, 1, "selective", 1)
        work = wanted.tokens * flops_a_token(model, run.context)
        seconds = work / (plain(run.rate.printed) * 1e12 * gpus)
        name = f"Llama 3 {run.context // 1024}K, {gpus} GPUs"
        yield Published(name, wanted, choice, replace(H100, ranks=gpus), seconds, run.rate)


def all_runs() -> list[Published]:
    return [*table_1(), *table_2(), *selective(), *table_of_megascale(), *of_llama(), *trained.models()]


def evaluate(run: Published, ceiling: float = CEILING) -> Row:
    """What the model says of a run. If its choices are not printed: the best of them."""
    evaluator, at = Evaluator(run.wanted, replace(run.cluster, ceiling=ceiling)), run.choice
    if not run.open:
        return evaluator.row(at)
    tried = []
    for rows in divisors(run.wanted.batch // at.dp):
        m = run.wanted.batch // at.dp // rows
        if rows > 8:
            break
        for v in range(1, run.wanted.model.layers // at.pp + 1 if at.pp > 1 and m % at.pp == 0 else 2):
            if divides(run.wanted.model.layers, at.pp * v):
                schedule = "interleaved" if v > 1 else "1f1b"
                tried.append(evaluator.row(replace(at, schedule=schedule, chunks=v, rows=rows)))
    fitting = [row for row in tried if row.held.total <= run.cluster.memory] or tried
    return min(fitting, key=lambda row: row.seconds.step)


def fit() -> float:
    """The ceiling for which SC 2021's table 1 comes out right on average, each run weighted by its GPUs; to two
    decimals."""

    def off(ceiling: float) -> float:
        runs = list(table_1())
        return sum(run.cluster.ranks * math.log(ratio(run, evaluate(run, ceiling))) for run in runs)

    low, high = 0.2, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if off(middle) > 0 else (middle, high)
    return round(middle, 2)


def ratio(run: Published, row: Row) -> float:
    """The model's tokens a second, relative to those that were measured."""
    return run.seconds / row.seconds.step


# ---- on the screen ---------------------------------------------------------------------------------------------------


class Stands(NamedTuple):
    """Where a row stands among all that fit, by the model."""

    place: int
    fit: int
    listed: bool  # whether it is one of them; otherwise the place is that of its time


def standing(wanted: Wanted, cluster: Cluster, choice: Choice, step: float) -> Stands:
    """Search, and find the place of a step of this many seconds."""
    rows = search(wanted, cluster).rows
    faster = sum(row.seconds.step < step * (1 - 1e-9) for row in rows)
    return Stands(faster + 1, len(rows), any(row.choice == choice for row in rows))


def main(json: str | None) -> int:
    """Print what the model says of published runs; 1 if a step is off by more than 15 % without a known reason, or
    a peak of memory by more than its bound."""
    from minidist.cli.progress import StatusLine  # needs NumPy

    if json != "-":
        check_writable("--json", json)
    evaluated = [(run, evaluate(run)) for run in all_runs()]
    status, stands = StatusLine(shown=True), list[Stands]()
    with ProcessPoolExecutor() as pool:  # a search for each run
        asked = [(run.wanted, run.cluster, row.choice, row.seconds.step) for run, row in evaluated]
        for (run, _), place in zip(evaluated, pool.map(standing, *zip(*asked, strict=True)), strict=True):
            status.show(run.name, len(stands) / len(evaluated))
            stands.append(place)
    status.close()
    if json != "-":
        print("\n".join([*measured.lines(), *measured_time.lines(), *lines(evaluated, stands)]))
    if json:
        runs = [as_row(each, place) for each, place in zip(evaluated, stands, strict=True)]
        write_json(
            json, {"memory": measured.as_rows(), "times": measured_time.as_rows(), "ceiling": CEILING, "runs": runs}
        )
    return (
        1
        if measured.is_far_off() or any(abs(ratio(run, row) - 1) > OFF and not run.reason for run, row in evaluated)
        else 0
    )


OFF = 0.15


def lines(evaluated: Sequence[tuple[Published, Row]], stands: Sequence[Stands]) -> Iterator[str]:
    """A line for each run, and the reasons below."""
    yield f"{'run':26} {'row':>14} {'tokens/s':>8} {'model':>6} {'MFU':>5} {'model':>5} {'off':>5}"
    reasons: dict[str, str] = {}
    for (run, row), (place, fit, listed) in zip(evaluated, stands, strict=True):
        off = ratio(run, row) - 1
        mark = ""
        if abs(off) > OFF:
            mark = reasons.setdefault(run.reason, f"({len(reasons) + 1})")
        measured = run.wanted.tokens / run.seconds
        mfu = row.mfu * measured / row.tokens
        stands_at, rates = f"{'' if listed else '~'}{place} of {fit}", f"{count(measured):>8} {count(row.tokens):>6}"
        shares = f"{100 * mfu:5.1f} {100 * row.mfu:5.1f} {round(100 * off):+4d}%"
        yield f"{run.name:26} {stands_at:>14} {rates} {shares} {mark}".rstrip()
    yield ""
    for reason, mark in reasons.items():
        yield wrapped(f"{mark} {reason or 'no reason is known'}.")
    if larger := [run.name for run, row in evaluated if row.held.total > run.cluster.memory]:
        yield wrapped(
            f"By the formulas, {len(larger)} of them need more than a device has: {'; '.join(larger)}. They keep less"
            " than the formulas say, for example no scores of attention, or a part of what a layer keeps."
        )
    tested = [abs(ratio(run, row) - 1) for run, row in evaluated if not run.fitted]
    yield wrapped(
        f"The ceiling, {CEILING:.0%} of a device's peak, is set on the {len(evaluated) - len(tested)} runs of PTD's"
        f" table 1 alone. Of the {len(tested)} others, {sum(off <= OFF for off in tested)} are within 15 %."
    )
    yield wrapped(
        "row: its place among all that fit, by the model. A run with ~ is not among them. It needs too much memory, or"
        " a large search leaves out its kind, and the place is that of its time. tokens/s: measured, then by the model;"
        " so is MFU, in %."
    )


def as_row(run_and_row: tuple[Published, Row], place: Stands) -> dict[str, Any]:
    """A run for machines."""
    run, row = run_and_row
    return {
        "run": run.name,
        "choice": vars(row.choice),
        "stands": place.place,
        "fit": place.fit,
        "listed": place.listed,
        "printed": f"{run.printed.printed} {run.printed.unit}",
        "seconds": run.seconds,
        "model_seconds": row.seconds.step,
        "tokens_per_second": run.wanted.tokens / run.seconds,
        "model_tokens_per_second": row.tokens,
        "model_mfu": row.mfu,
        "reason": run.reason,
        "fitted": run.fitted,
    }
