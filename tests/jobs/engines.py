"""What tests/test_engines.py runs on ranks: every engine on small models, for comparison with serial training."""

from typing import Any

import numpy as np

from minidist.data_parallel import DataParallel, Overlapped
from minidist.engine import Engine, Settings
from minidist.fsdp import FSDP
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.llama import LlamaConfig, llama
from minidist.nn.optim import SGD, AdamW
from minidist.nn.precision import PRECISIONS
from minidist.offload import Offload, Offload1, Offload3
from minidist.zero1 import ZeRO1
from minidist.zero2 import ZeRO2
from minidist.zero3 import ZeRO3

VOCABULARY, CONTEXT, STEPS = 23, 8, 3

ENGINES = {
    "data_parallel": DataParallel,
    "data_parallel server": lambda units, settings, comm: DataParallel(units, settings, comm, reduce="server"),
    "data_parallel overlap": Overlapped,
    "zero1": ZeRO1,
    "zero2": ZeRO2,
    "zero3": ZeRO3,
    "zero3 keep_last": lambda units, settings, comm: ZeRO3(units, settings, comm, keep_last=True),
    "fsdp": lambda units, settings, comm: FSDP(units, settings, comm, forward_prefetch=True),
    "offload zero1": Offload1,
    "offload": Offload,
    "offload zero3": lambda units, settings, comm: Offload3(units, settings, comm, threads=2),
}


def model(name: str) -> list[Unit]:
    """A model whose unit sizes are divisible by no number of ranks above 1."""
    if name.startswith("gpt"):
        config = GPTConfig(VOCABULARY, CONTEXT, layers=2, heads=3, width=15, dropout=0.1, tied="untied" not in name)
        return gpt(config)
    return llama(
        LlamaConfig(
            VOCABULARY,
            CONTEXT,
            layers=2,
            heads=4,
            kv_heads=2,
            width=24,
            hidden=37,
            dropout=0.1,
            tied="untied" not in name,
        )
    )


def settings(precision: str, optimizer: str, accumulate: int, clip: float) -> Settings:
    return Settings(
        precision=PRECISIONS[precision],
        optimizer=AdamW(weight_decay=0.1) if optimizer == "adamw" else SGD(momentum=0.9, weight_decay=0.1),
        learning_rate=lambda update: 1e-2 / (update + 1),
        clip=clip,
        accumulate=accumulate,
        seed=5,
    )


def train(engine: Engine, batch: int) -> dict[str, Any]:
    """Some steps; this rank's losses, the first step's gradients before clipping, and the final parameters, by name."""
    watched = watch_gradients(engine)
    return {
        "losses": [step_on(engine, tokens(step, batch, CONTEXT)) for step in range(STEPS)],
        "gradients": watched["gradients"],
        "parameters": by_name(engine, lambda flat: flat.master),
    }


def tokens(step: int, batch: int, context: int) -> np.ndarray:
    return np.random.default_rng(step).integers(0, VOCABULARY, (batch, context + 1))


def batch(seed: int, rows: int, context: int = CONTEXT, vocabulary: int = VOCABULARY) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens, and those that follow them."""
    drawn = np.random.default_rng(seed).integers(0, vocabulary, (rows, context + 1))
    return drawn[:, :-1], drawn[:, 1:]


def step_on(engine: Engine, batch: np.ndarray) -> float:
    """A step, in as many micro-batches as the engine has; this rank's loss."""
    loss = 0.0
    for part in np.split(batch, engine.settings.accumulate):
        micro_batch = engine.forward(part[:, :-1], part[:, 1:])
        engine.backward(micro_batch)
        loss += micro_batch.value
        engine.step()
    return loss


def trained(engine: Engine, rows: int, context: int) -> dict[str, Any]:
    """Two steps and a validation: this rank's losses, norms, the first step's gradients, the parameters in the end."""
    watched, batches = watch_gradients(engine), [tokens(step, rows, context) for step in range(2)]
    losses = [step_on(engine, batch) for batch in batches]
    losses.append(engine.evaluate(batches[-1][:, :-1], batches[-1][:, 1:]))
    return {
        "losses": np.array(losses),
        "norms": np.array(watched["norms"]),
        "gradients": watched["gradients"],
        "parameters": by_name(engine, lambda flat: flat.master),
    }


def watch_gradients(engine: Engine) -> dict[str, Any]:
    """Where each step's norm and the first step's gradients, whole and by name, will be: before clipping, summed over
    all who have a part of them."""
    found: dict[str, Any] = {"norms": []}
    sum_over_axes = engine.sum_over_axes

    def watched() -> None:
        sum_over_axes()
        found["norms"].append(engine.squared_norm())
        if engine.steps == 0:
            found["gradients"] = by_name(engine, lambda flat: engine.owned(flat)[1])

    engine.sum_over_axes = watched  # type: ignore[method-assign]
    return found


def by_name(engine: Engine, piece: Any) -> dict[str, np.ndarray]:
    """Whole arrays from everyone's pieces, cut at the parameters' borders."""
    return {
        name: whole.astype(np.float64)
        for flat in engine.flats
        for name, whole in engine.whole_parameters(flat, piece(flat)).items()
    }


def on_first(comm: Any, result: dict[str, Any]) -> dict[str, Any]:
    """A result with the sum of all ranks' losses, on rank 0."""
    result["losses"] = np.sum(comm.all_gather_object(np.array(result["losses"])), axis=0)
    return result if comm.rank == 0 else {}


def train_all(comm: Any, cases: list[list[Any]]) -> dict[str, Any]:
    """Each case is [engine, model, precision, optimizer, accumulate, clip, batch]; results by the case's repr."""
    results = {}
    for case in cases:
        engine_name, model_name, precision, optimizer, accumulate, clip, batch = case
        engine = ENGINES[engine_name](model(model_name), settings(precision, optimizer, accumulate, clip), comm)
        results[repr(case)] = on_first(comm, train(engine, batch))
    return results
