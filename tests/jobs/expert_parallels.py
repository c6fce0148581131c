"""What tests/test_expert_parallel.py runs on ranks: mixtures of experts, whose experts are divided."""

from dataclasses import replace
from typing import Any

import numpy as np

from ep.oracle import with_oracle
from jobs import engines
from jobs.pipelines import cut
from minidist.checkpoints import checkpoint
from minidist.engine import Engine
from minidist.expert_parallel import ExpertGroup, expert_parallel, share_experts, split
from minidist.fsdp import FSDP
from minidist.layout import Layout, Mesh
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Block, Unit
from minidist.nn.llama import LlamaConfig, llama
from minidist.nn.mixture import Mixture, Routing, RoutingPlan, Tally, with_experts
from minidist.papers.context import positions
from minidist.parallel3d import grid

VOCABULARY, CONTEXT, BATCH, EXPERTS, STEPS = 11, 3, 8, 8, 2
ALPHA = 0.3

# (model, k, capacity factor, precision, optimizer, micro-batches, recomputation): what serial training needs to know
Model = tuple[str, int, float | None, str, str, int, str]


def model(case: Model) -> list[Unit]:
    name, top, capacity, *_ = case
    if name == "gpt":
        units = gpt(GPTConfig(VOCABULARY, CONTEXT, layers=2, heads=2, width=6))
    else:
        units = llama(LlamaConfig(VOCABULARY, CONTEXT, layers=2, heads=2, kv_heads=2, width=8, hidden=7))
    return with_experts(units, EXPERTS, Routing(top, capacity, ALPHA))


def settings(case: Model, **more: Any) -> Any:
    *_, precision, optimizer, accumulate, recompute = case
    return engines.settings(precision, optimizer, accumulate, clip=0.5, recompute=recompute, **more)


def train(driver: Any) -> dict[str, Any]:
    """Losses, norms, gradients and parameters, from weights large enough for every gradient to be felt."""
    engine = getattr(driver, "engine", driver)
    for flat in engine.flats:
        whole = np.zeros(flat.padded)
        for parameter, view in flat.views(whole):
            drawn = np.random.default_rng([*parameter.name.encode()]).standard_normal(parameter.spans()[0])
            view[...] = parameter.initial(engine.settings.seed) + 0.3 * parameter.part(drawn)
        flat.master[...] = whole[engine.piece(flat)]
        engine.refresh(flat)
    engine.after_update()
    return engines.follow(driver, [engines.batch(step, BATCH, CONTEXT, VOCABULARY) for step in range(STEPS)])


def serial(
    case: Model, ranks: int, cp: int = 1, how: str = "zigzag", hosts: tuple[int, int] = (1, 1)
) -> tuple[dict[str, Any], list[Unit]]:
    """By a mixture that is written token by token, which is told how many ranks fill experts on their own, and which
    positions they have. hosts: their number, and the number that a token may go to."""
    units = with_oracle(model(case), ranks, case[0] == "llama", positions(CONTEXT, cp, how) if cp > 1 else (), hosts)
    return train(Engine(units, settings(case))), units


def run(comm: Any, case: Model, ep: int, zero: int, bucket_size: int | None = None) -> dict[str, Any]:
    made = settings(case, bucket_size=bucket_size)
    engine = expert_parallel(model(case), made, comm, Layout(dp=comm.size, ep=ep), zero)
    plans = watch_plans(engine)
    return {**train(engine), "plans": plans}


def run_fsdp(comm: Any, case: Model, ep: int) -> dict[str, Any]:
    """ZeRO-3 that gathers ahead."""
    experts, copies = Mesh(comm, Layout(dp=comm.size, ep=ep)).experts()
    units = split(model(case), ExpertGroup(experts, comm, np.float64))
    share_experts(units, copies)
    return train(FSDP(units, settings(case), comm, forward_prefetch=True))


def weights_of(comm: Any, case: Model, ep: int) -> dict[str, np.ndarray]:
    engine = expert_parallel(model(case), settings(case), comm, Layout(dp=comm.size, ep=ep))
    return checkpoint.weights(engine, writer=comm.rank == 0)


def run_grid(comm: Any, case: Model, layout: Layout, zero: int, **how: Any) -> dict[str, Any]:
    """On a grid of ranks; accumulation is over a pipeline's micro-batches."""
    units = model(case)
    layout = replace(layout, micro_batches=case[5], parts=cut(units, layout.pp * layout.chunks))
    driver = grid(units, settings(case), comm, layout, zero, **how)
    return train(driver)


def watch_plans(engine: Engine) -> list[list[RoutingPlan]]:
    """Where each mixture's plans will be, in order of its forwards."""
    found = []
    for unit in engine.units:
        if isinstance(unit, Block) and isinstance(unit.mlp, Mixture):
            found.append(plans := list[RoutingPlan]())
            tally = unit.mlp.tally

            def tallied(chosen: Any, plan: RoutingPlan, plans: Any = plans, tally: Any = tally) -> Tally:
                plans.append(plan)
                return tally(chosen, plan)

            object.__setattr__(unit.mlp, "tally", tallied)
    return found


def joined(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What all ranks found: the sum of their losses; and every expert, from the ranks that hold it."""
    found = {name: {k: v for rank in ranks for k, v in rank[name].items()} for name in ("gradients", "parameters")}
    return {**found, "norms": ranks[0]["norms"], "losses": np.sum([rank["losses"] for rank in ranks], axis=0)}


def run_all(comm: Any, cases: list[Any]) -> list[dict[str, Any]]:
    """Each case is (what serial training needs to know, P, ZeRO's stage)."""
    return [joined(comm.all_gather_object(run(comm, *case))) for case in cases]
