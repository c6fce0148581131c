"""What lesson 15's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minidist.cli.fields import parse
from minidist.engine import Settings
from minidist.memory.plot import recorded
from minidist.memory.pool import KINDS, NEEDED, OutOfMemory
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.plan import check as trial
from minidist.plan import command, show
from minidist.plan.choice import Choice, Wanted
from minidist.plan.headline import headline
from minidist.plan.search import Evaluator, Row, best_chunks, search
from minidist.plan.time import Cluster

Array = np.ndarray
Unit = tuple[int, int, int | None]  # parameters, bytes kept for a sequence, bytes of the input
Plan = tuple[int, bool, bool, int]  # stage, offload, recompute, sequences of a micro-batch
SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


# ---- the notebook's runs ---------------------------------------------------------------------------------------------


def run_plan(
    make: Any, shape: dict[str, Any], tokens: Array, comm: Comm, recompute: bool, micro: int, limit: int | None = None
) -> dict[str, int]:
    """Run one step: the most bytes held, the bytes sent to other ranks, and the bytes moved over the link."""
    accumulate, recomputed = len(tokens) // (micro * comm.size), "full" if recompute else "none"
    settings = Settings(recompute=recomputed, accumulate=accumulate, capacity=limit)
    engine = make(gpt(GPTConfig(**shape)), settings, comm)
    comm.ledger.reset()
    engine.link.reset()
    engine.train_batch(tokens[:, :-1], tokens[:, 1:])
    by_phase, moved = comm.ledger.by_phase(), engine.link.by_phase()
    sent = sum(counts["bytes"] for phase, counts in by_phase.items() if phase != "norm")
    link = sum(counts["bytes"] for way in moved.values() for counts in way.values())
    return {"held": engine.device.peak[NEEDED], "sent": sent, "link": link}


def try_plan(
    make: Any, shape: dict[str, Any], tokens: Array, comm: Comm, recompute: bool, micro: int, limit: int
) -> str:
    """Run a step under the limit of a device: "fits" with its bytes, or the error."""
    try:
        found = run_plan(make, shape, tokens, comm, recompute, micro, limit)
    except OutOfMemory as error:
        return str(error)
    return f"fits: {found['held']:,} bytes"


def take_largest(runs: Sequence[Mapping[Plan, Mapping[str, int]]]) -> dict[Plan, dict[str, int]]:
    """For each plan and each count, the largest value of any rank."""
    return {plan: {kind: max(rank[plan][kind] for rank in runs) for kind in runs[0][plan]} for plan in runs[0]}


def record_step(make: Any, shape: dict[str, Any], tokens: Array, comm: Comm) -> dict[str, list[int]]:
    """The second step, with one micro-batch and recomputed blocks: for each kind the bytes after each change."""
    engine = make(gpt(GPTConfig(**shape)), Settings(recompute="full", accumulate=1), comm)
    engine.train_batch(tokens[:, :-1], tokens[:, 1:])
    with recorded([engine.device]) as histories:
        engine.train_batch(tokens[:, :-1], tokens[:, 1:])
    states = histories["device"].states
    return {kind: [int(state[place]) for state in states] for place, kind in enumerate(KINDS)}


def make_planner(
    functions: Mapping[str, Callable[..., Any]],
    units: Sequence[Unit],
    psi: int,
    tokens: int,
    rates: tuple[float, float, float, float],
) -> Callable[..., tuple[Callable[..., tuple[float, float]], Callable[..., float]]]:
    """(ranks, batch) -> memory(plan) and seconds(plan), made of the five functions. rates, per second: operations,
    bytes to other ranks, bytes over the link, updated parameters."""
    rate, wire, slow, update = rates

    def of(ranks: int, batch: int, always: int = 0) -> Any:
        def memory(stage: int, offload: bool, recompute: bool, micro: int) -> tuple[float, float]:
            device, host = functions["model_states"](psi, ranks, stage, offload)
            return device + functions["passing_peak"](units, stage, recompute, micro) + always, host

        def time(stage: int, offload: bool, recompute: bool, micro: int) -> float:
            sent, link = functions["traffic"](psi, ranks, stage, offload, batch // (micro * ranks))
            work = (8 if recompute else 6) * psi * batch * tokens / ranks / rate
            return work + sent / wire + link / slow + (psi / ranks / update if offload else 0)

        return memory, time

    return of


def list_units(model: Any) -> list[Unit]:
    """The units of a published model. Layers keep what the papers say, with attention's scores; what the head keeps is
    an estimate."""
    layer, given_to_it = (model.activations(1, what, 2) / model.layers for what in ("none", "full"))
    embedding, *blocks, head = model.units
    return [
        (embedding, 0, None),
        *((size, layer, given_to_it) for size in blocks),
        (head, model.s * (4 * model.h + 4 * model.v), None),
    ]


# ---- the planner of minidist -----------------------------------------------------------------------------------------


def plan_all_axes(line: str) -> tuple[Wanted, Cluster, list[Row]]:
    """What `python -m minidist plan` answers to this line: its question, and the rows, the fastest first. Prints a
    sentence and four rows. Of rows that differ only in the number of chunks, or that tie and arrange ranks alike, there
    is the first."""
    options = parse(command.parser(), line.split()).of(command.PlanOptions)
    wanted, cluster = command.wanted_of(options), command.cluster_of(options)
    found = search(wanted, cluster)
    rows = best_chunks(found.rows)
    print(show.wrapped(headline(rows)) + "\n")
    print("\n".join(show.table(found._replace(rows=rows), len(found.rows), wanted, 4, None)))
    return wanted, cluster, rows


def check_row(wanted: Wanted, row: Row) -> list[trial.Compared]:
    """Run it on 8 ranks at most, scaled down, and print each formula next to what was counted."""
    small, choice = trial.scaled(trial.on_ranks(wanted), row.choice, most=8)
    compared = trial.compare(small, choice, trial.run(small, choice))
    print(f"scaled down to {choice.ranks} ranks\n")
    print("\n".join(show.compared([one for one in compared if one.formula])))
    return compared


def change_assumptions(wanted: Wanted, cluster: Cluster, rows: list[Row]) -> dict[tuple[str, float], int]:
    """Which row is the fastest, by its number, if one of the assumptions is half as much, or half as much again."""
    winners = {}
    for name in ("ceiling", "within", "across", "latency"):
        for factor in (0.5, 1.5):
            other = Evaluator(wanted, replace(cluster, **{name: factor * getattr(cluster, name)}))
            seconds = [other.row(row.choice).seconds.step for row in rows]
            first = seconds.index(min(seconds))
            winners[name, factor] = first + 1
            print(f"{name:8} times {factor}: row {first + 1} is the fastest")
    return winners


def ranks_of(row: Sequence[Any]) -> int:
    """As many as the planner needs for a printed row: GPUs, TP, CP, PP, DP, and so on."""
    _, tp, cp, pp, dp, *_ = row
    return Choice(dp=dp, tp=tp, cp=cp, pp=pp).ranks
