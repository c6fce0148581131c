"""What tests/test_offload.py runs on ranks."""

import itertools
import math
from functools import partial
from typing import Any

import numpy as np

from jobs import engines
from minidist import infinity
from minidist.data_parallel import DataParallel
from minidist.engine import Engine
from minidist.memory.files import SwapFile
from minidist.memory.pool import OutOfMemory
from minidist.mpi.comm import Comm
from minidist.nn.optim import clipping_factor, sum_of_squares
from minidist.nn.precision import LossScale
from minidist.nn.tensor import Array
from minidist.offload import ENGINES, Offload
from minidist.zero2 import ZeRO2

STEPS = 7


def with_file(stage: int, units: Any, settings: Any, comm: Comm) -> infinity.Infinity:
    """ZeRO-Infinity's engine, with a file in the folder for temporary files."""
    return infinity.ENGINES[stage](units, settings, comm, SwapFile("--disk", None))


def train(make: Any, model: str, precision: str, mode: str, accumulate: int, *comm: Any) -> dict[str, Any]:
    settings = engines.settings(precision, "adamw", accumulate, clip=0.5, recompute=mode)
    return engines.train(make(engines.model(model), settings, *comm), rows=12)


def matrix(comm: Comm, chapter: str, ways: list[tuple[str, int]]) -> dict[str, Any]:
    """{"engine, model, precision, mode, accumulate": losses, summed over ranks, and rank 0's parameters}, of the
    stages of a chapter in some ways (mode, accumulate)."""
    makers: dict[str, Any] = {"data_parallel": DataParallel, "zero2": ZeRO2}
    made = {"offload": ENGINES.__getitem__, "infinity": lambda stage: partial(with_file, stage)}[chapter]
    makers |= {f"{chapter} {stage}": made(stage) for stage in ENGINES}
    found = {}
    for model, precision, (mode, accumulate) in itertools.product(("gpt", "gpt untied"), ("mixed", "fp64"), ways):
        for name, make in makers.items():
            if precision == "fp64" and not name.startswith(chapter):
                continue  # serial training is the truth there
            result = train(make, model, precision, mode, accumulate, comm)
            losses = engines.on_all(comm, result["losses"]).tolist()
            key = f"{name}, {model}, {precision}, {mode}, {accumulate}"
            found[key] = {"losses": losses, "parameters": result["parameters"]}
    return found if comm.rank == 0 else {}


# ---- delayed updates -------------------------------------------------------------------------------------------------


def tokens(step: int) -> tuple[Array, Array]:
    return engines.batch(step, 12)


def delayed(comm: Comm, cases: list[tuple[int, str, int, float]]) -> list[dict[str, Any]]:
    """Each case is (stage, precision, steps before the delay, loss scale); losses of some steps and of a last look."""
    found = []
    for stage, precision, after, scale in cases:
        settings = engines.settings(precision, "adamw", 1, clip=0.5)
        engine = ENGINES[stage](engines.model("gpt"), settings, comm, delay_after=after, threads=2)
        engine.loss_scale = LossScale(scale)
        losses = [engine.train_batch(*tokens(step)) for step in range(STEPS)]
        late = engine.pending is not None
        engine.settle()
        losses.append(engine.evaluate(*tokens(STEPS)))
        losses = engines.on_all(comm, losses).tolist()
        found.append({"losses": losses, "updates": engine.updates, "scale": engine.loss_scale.scale, "late": late})
    return found


def serial_delayed(precision: str, after: int, scale: float) -> dict[str, Any]:
    """The same loop written out, with nothing but the passes from the engine: parameters are given to it, gradients are
    taken from it."""
    settings = engines.settings(precision, "adamw", 1, clip=0.5)
    engine = Engine(engines.model("gpt"), settings)
    adam, loss_scale = settings.optimizer, LossScale(scale)
    masters = [np.array(flat.initial(settings.seed), engine.precision.updated) for flat in engine.flats]
    moments: list[Any] = [[np.zeros_like(master) for _ in range(2)] for master in masters]
    waiting: list[tuple[list[Array], float]] = []
    losses: list[float] = []
    updates = 0

    def update(grads: list[Array], factor: float) -> int:
        for flat, master, grad, state in zip(engine.flats, masters, grads, moments, strict=True):
            lr = settings.learning_rate(updates)
            adam.update(master, grad, state, scale=factor, lr=lr, step=updates + 1, decayed=flat.decayed)
            flat.param[...] = master
        return updates + 1

    for step in range(STEPS):
        engine.loss_scale.scale, engine.steps = loss_scale.scale, step  # which dropout depends on
        loss = engine.forward(*tokens(step))
        engine.backward(loss)
        losses.append(loss.value)
        grads = [flat.grad.copy() for flat in engine.flats]
        for flat in engine.flats:
            flat.grad.fill(0)
        if waiting:  # the step before's, which has been computed in the meantime
            updates = update(*waiting.pop())
        norm = math.sqrt(sum(map(sum_of_squares, grads))) / loss_scale.scale
        if math.isfinite(norm):
            factor = clipping_factor(norm, settings.clip) / loss_scale.scale
            if step < after:
                updates = update(grads, factor)
            else:
                waiting.append((grads, factor))
        if engine.scaled:
            loss_scale.update(not math.isfinite(norm))
    late = bool(waiting)
    if waiting:
        updates = update(*waiting.pop())
    losses.append(engine.evaluate(*tokens(STEPS)))
    return {"losses": losses, "updates": updates, "scale": loss_scale.scale, "late": late}


class Broken(Offload):
    """Its host fails in the middle of an update."""

    def update_beside(self, scale: float) -> None:
        if self.updates == 1:
            raise OutOfMemory("out of memory in a thread")
        super().update_beside(scale)


def breaks(comm: Comm) -> str:
    """What becomes of a failure beside the passes."""
    settings = engines.settings("fp32", "adamw", 1, clip=0.5)
    engine = Broken(engines.model("gpt"), settings, comm, delay_after=0)
    try:
        for step in range(STEPS):
            engine.train_batch(*tokens(step))
    except OutOfMemory as error:
        return f"step {engine.steps}: {error}"
    return "nothing"


def overflow(comm: Comm) -> list[Any]:
    """What is moved in each step, from a loss scale at which the first ones overflow."""
    engine = Offload(engines.model("gpt"), engines.settings("mixed", "adamw", 1, clip=0.5), comm)
    engine.loss_scale = LossScale(2.0**22)
    found = []
    for step in range(STEPS):
        engine.link.reset()
        updates = engine.updates
        engine.train_batch(*tokens(step))
        found.append([engine.updates > updates, engine.link.by_phase()])
    return found
