"""What tests/nn/test_recompute.py runs: every engine and every kind of grid, under each policy of recomputation."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobs import engines
from jobs.pipelines import cut
from minidist.engine import Engine, Settings
from minidist.fsdp import FSDP
from minidist.layout import Layout
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.precision import PRECISIONS
from minidist.parallel3d import LADDER, grid
from minidist.train import Driver

POLICIES = ("selective", "full", "every:2", "every:3", "sqrt", "log")
VOCABULARY, CONTEXT, BATCH, LAYERS, STEPS = 23, 4, 12, 5, 2


def train(make: Any, model: str, precision: str, mode: str, *comm: Any) -> dict[str, Any]:
    """Some steps on a model of two layers with dropout; losses, gradients and parameters."""
    settings = engines.settings(precision, "adamw", accumulate=1, clip=0.5, recompute=mode)
    return engines.train(make(engines.model(model), settings, *comm), rows=6)


def train_all(comm: Any) -> dict[str, Any]:
    """{"engine, mode": results of this rank}, in float64."""
    return {
        f"{name}, {mode}": train(make, "llama" if name == "zero2" else "gpt", "fp64", mode, comm)
        for name, make in engines.ENGINES.items()
        for mode in ("none", "selective", "full")
    }


# ---- more layers, and every policy -----------------------------------------------------------------------------------


def model(dropout: float, width: int = 16) -> list[Unit]:
    return gpt(GPTConfig(VOCABULARY, CONTEXT, LAYERS, heads=4, width=width, dropout=dropout))


def settings(precision: str, accumulate: int, recompute: str) -> Settings:
    return engines.settings(precision, "adamw", accumulate, clip=0.5, recompute=recompute)


def losses(driver: Driver) -> list[float]:
    """Of some steps, on random tokens; this rank's part."""
    drawn = [np.random.default_rng(step).integers(0, VOCABULARY, (BATCH, CONTEXT + 1)) for step in range(STEPS)]
    return [driver.train_batch(tokens[:, :-1], tokens[:, 1:]) for tokens in drawn]


def serial(precision: str, accumulate: int, dropout: float, recompute: str = "none") -> list[float]:
    return losses(Engine(model(dropout), settings(precision, accumulate, recompute)))


def on_each(comm: Any, made: dict[str, Callable[[], Driver]]) -> dict[str, list[float]]:
    """Each one's losses, over all ranks."""
    return {name: list(engines.on_all(comm, losses(make()))) for name, make in made.items()}


def name_of(*case: Any) -> str:
    return " ".join(map(str, case))


ENGINES = (*LADDER, FSDP)


def stages(comm: Any, policies: Sequence[str], kinds: Sequence[tuple[int, float]]) -> dict[str, list[float]]:
    """Data parallelism, the three stages of ZeRO, and FSDP, on units most of which three ranks do not divide."""

    def maker(precision: str, recompute: str, stage: int, accumulate: int, dropout: float) -> Callable[[], Driver]:
        return lambda: ENGINES[stage](model(dropout), settings(precision, accumulate, recompute), comm)

    each = itertools.product(("fp64", "mixed"), ("none", *policies), range(5))
    cases = [(*stage, *kind) for stage in each for kind in kinds]
    return on_each(comm, {name_of(*case): maker(*case) for case in cases})


# Of four ranks: data, pipeline, tensor; ZeRO's stage; sequence parallelism; schedule and chunks.
GRIDS = (
    ((1, 1, 4), 0, False, "1f1b", 1),
    ((1, 1, 4), 0, True, "1f1b", 1),
    ((2, 1, 2), 3, True, "1f1b", 1),
    ((2, 1, 2), 1, False, "1f1b", 1),
    ((1, 2, 2), 2, True, "gpipe", 1),
    ((2, 2, 1), 3, False, "1f1b", 1),
    ((1, 4, 1), 0, False, "zb-h1", 1),
    ((2, 2, 1), 3, False, "interleaved", 2),
    ((1, 2, 2), 0, False, "zb-h2", 1),
)
ON_GRIDS = [
    (layout, recompute, (0.0, 0.1)[(i + j) % 3 > 0])
    for (i, layout), (j, recompute) in itertools.product(enumerate(GRIDS), enumerate(POLICIES))
]
MICRO_BATCHES = 4


def grids(comm: Any, cases: Sequence[Any]) -> dict[str, list[float]]:
    """Tensor and sequence parallelism and pipelines, in float64."""

    def maker(layout: Sequence[Any], recompute: str, dropout: float) -> Callable[[], Driver]:
        (dp, pp, tp), zero, sequence, schedule, chunks = layout

        def make() -> Driver:
            units = model(dropout)
            axes = Layout(dp, pp, 1, tp, schedule=schedule, chunks=chunks, parts=cut(units, pp * chunks))
            return grid(units, settings("fp64", MICRO_BATCHES, recompute), comm, axes, zero, sequence)

        return make

    return on_each(comm, {name_of(*case): maker(*case) for case in cases})


# ---- how often the units of 100 layers run, and what they keep -------------------------------------------------------


def counted(recompute: str, layers: int) -> dict[str, int]:
    """Of one step of an engine, in float32: forwards of blocks, and the most bytes of activations."""
    units = gpt(GPTConfig(VOCABULARY, CONTEXT, layers, heads=1, width=4))
    engine = Engine(units, Settings(precision=PRECISIONS["fp32"], recompute=recompute))
    calls = 0
    for block in units[1:-1]:
        call = type(block).__call__

        class Counted(type(block)):  # type: ignore[misc]
            def __call__(self, *given: Any, call: Any = call) -> Any:
                nonlocal calls
                calls += 1
                return call(self, *given)

        block.__class__ = Counted
    engine.train_batch(*engines.batch(0, 2, CONTEXT, VOCABULARY))
    return {"calls": calls, "activations": engine.device.peak["activations"]}
