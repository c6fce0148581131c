"""What tests/test_engines.py runs on ranks: every engine on small models, for comparison with serial training."""

import hashlib
from collections.abc import Iterable
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
    sizes: dict[str, Any] = {"layers": 2, "heads": 4, "kv_heads": 2, "width": 24, "hidden": 37, "dropout": 0.1}
    return llama(LlamaConfig(VOCABULARY, CONTEXT, tied="untied" not in name, **sizes))


def settings(precision: str, optimizer: str, accumulate: int, clip: float, **more: Any) -> Settings:
    return Settings(
        precision=PRECISIONS[precision],
        optimizer=AdamW(weight_decay=0.1) if optimizer == "adamw" else SGD(momentum=0.9, weight_decay=0.1),
        learning_rate=lambda update: 1e-2 / (update + 1),
        clip=clip,
        accumulate=accumulate,
        seed=5,
        **more,
    )


def train(engine: Engine, rows: int) -> dict[str, Any]:
    return follow(engine, [batch(step, rows) for step in range(STEPS)])


def trained(engine: Engine, rows: int, context: int) -> dict[str, Any]:
    """Two steps and a validation."""
    batches = [batch(step, rows, context) for step in range(2)]
    return follow(engine, batches, batches[-1])


def follow(driver: Any, batches: Iterable[Any], last: Any = None) -> dict[str, Any]:
    """A step on each batch, and perhaps an evaluation of another one: this rank's losses; of each step the norm of the
    gradient; the first step's gradients before clipping, and the final parameters, whole and by name."""
    engine = getattr(driver, "engine", driver)
    found = watch_gradients(engine)
    found["losses"] = [driver.train_batch(*each) for each in batches]
    found["losses"] += [driver.evaluate(*last)] if last else []
    return {**found, "parameters": by_name(engine, lambda flat: flat.master)}


def batch(seed: int, rows: int, context: int = CONTEXT, vocabulary: int = VOCABULARY) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens, and those that follow them."""
    drawn = np.random.default_rng(seed).integers(0, vocabulary, (rows, context + 1))
    return drawn[:, :-1], drawn[:, 1:]


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


def on_all(comm: Any, losses: Any) -> np.ndarray:
    """The sum of all ranks' losses."""
    total: np.ndarray = np.sum(comm.all_gather_object(np.array(losses)), axis=0)
    return total


def states_of(engine: Engine) -> str:
    """Parameters and moments that this rank holds, to the last bit."""
    held = [array for flat in engine.flats for array in (flat.param, flat.master, *flat.moments)]
    return hashlib.blake2b(b"".join(array.tobytes() for array in held)).hexdigest()


def overflow_on_the_last(comm: Any, engine: Engine, flat: Any, element: int) -> None:
    """Of the second step's gradient one element is too large for float16, on one rank alone."""
    collect = flat.collect

    def collect_and_overflow(grad: np.ndarray) -> None:
        collect(grad)
        if comm.rank == comm.size - 1 and engine.steps == 1:
            grad[element] = np.inf

    flat.collect = collect_and_overflow


def on_first(comm: Any, result: dict[str, Any]) -> dict[str, Any]:
    """A result with the sum of all ranks' losses, on rank 0."""
    result["losses"] = on_all(comm, result["losses"])
    return result if comm.rank == 0 else {}


def train_all(comm: Any, cases: list[list[Any]]) -> dict[str, Any]:
    """Each case is [engine, model, precision, optimizer, accumulate, clip, batch]; results by the case's repr."""
    results = {}
    for case in cases:
        engine_name, model_name, precision, optimizer, accumulate, clip, rows = case
        engine = ENGINES[engine_name](model(model_name), settings(precision, optimizer, accumulate, clip), comm)
        results[repr(case)] = on_first(comm, train(engine, rows))
    return results
