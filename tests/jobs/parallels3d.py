"""What tests/test_parallel3d.py runs on ranks: small models on grids of data-, pipeline- and tensor-parallel ranks."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from jobs import engines, pipelines
from minidist.data_parallel import DataParallel
from minidist.engine import Settings
from minidist.layout import Layout, Mesh
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.llama import LlamaConfig, llama
from minidist.nn.optim import AdamW
from minidist.nn.precision import LossScale
from minidist.parallel3d import grid
from minidist.train import Driver

VOCABULARY, BATCH, STEPS = 23, 12, 2  # 23 is divisible by no number of ranks above 1


class Sizes(NamedTuple):
    """Of a model that a grid can cut: heads, shared key/value heads and positions by t; Llama's MLP it cannot."""

    heads: int
    kv_heads: int
    layers: int


def sizes_of(grid: Sequence[int], chunks: int) -> Sizes:
    _, pipeline, tensor = grid
    heads = 8 if 8 % tensor == 0 else 6
    return Sizes(heads, max(heads // 2, tensor), max(4, pipeline * chunks - 2))


def model(name: str, sizes: Sizes) -> list[Unit]:
    tied, context = "untied" not in name, sizes.heads
    if name.startswith("gpt"):
        return gpt(GPTConfig(VOCABULARY, context, sizes.layers, sizes.heads, width=24, dropout=0.1, tied=tied))
    width, hidden = 48, 37
    return llama(LlamaConfig(VOCABULARY, context, sizes.layers, *sizes[:2], width, hidden, dropout=0.1, tied=tied))


def settings(case: dict[str, Any]) -> Settings:
    """SGD is there because Adam hides a wrong scale of the gradients, and without clipping, because that would too.

    The gradient of a key's bias is zero but for rounding errors. With its usual ε of 1e-8 Adam would make steps of them
    that are large enough to be seen."""
    made = pipelines.settings(case["precision"], case["optimizer"], case["m"], case["clip"], case["recompute"])
    if case["optimizer"] == "adamw":
        made.optimizer = AdamW(weight_decay=0.1, eps=1e-6)
    return made


def place_of(comm: Any, case: dict[str, Any]) -> tuple[DataParallel, Driver]:
    """The engine of a place in the grid, and what drives it."""
    dp, pp, tp = case["grid"]
    units = model(case["model"], sizes_of(case["grid"], case["chunks"]))
    parts = pipelines.cut(units, pp * case["chunks"])
    hosts = dp // case.get("shard", dp)
    layout = Layout(dp, pp, 1, tp, hosts, schedule=case["schedule"], chunks=case["chunks"], parts=parts)
    driver = grid(units, settings(case), comm, layout, case["zero"], case["sequence"])
    return cast(DataParallel, driver.engine), driver


def train(driver: Driver, context: int) -> dict[str, Any]:
    """Some steps, of the units that this rank has."""
    return engines.follow(driver, [tokens(step, context) for step in range(STEPS)], tokens(99, context))


def tokens(step: int, context: int) -> tuple[np.ndarray, np.ndarray]:
    return engines.batch(step, BATCH, context, VOCABULARY)


def context_of(case: dict[str, Any]) -> int:
    return sizes_of(case["grid"], case["chunks"]).heads


def train_all(comm: Any, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """On rank 0 what each case has given, and in what, to the last bit, ranks differ that should not."""
    results = {}
    for name, case in cases.items():
        engine, driver = place_of(comm, case)
        result = train(driver, context_of(case))
        result["losses"] = engines.on_all(comm, result["losses"])
        copies = {key: hashlib.blake2b(array.tobytes()).hexdigest() for key, array in result["parameters"].items()}
        copies["norms"] = repr(result["norms"])
        everyone = {pair for other in comm.all_gather_object(copies) for pair in other.items()}
        result["differ"] = [key for key, times in Counter(key for key, _ in everyone).items() if times > 1]
        for kind in ("gradients", "parameters"):
            result[kind] = engine.collect_on_rank_0(result[kind])
        results[name] = result if comm.rank == 0 else {}
    return results


def overflow(comm: Any, cases: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [overflow_in(comm, case) for case in cases]


def overflow_in(comm: Any, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Three steps, in the second of which one rank alone has an element too large for float16."""
    engine, driver = place_of(comm, case)
    engine.loss_scale = LossScale(2.0**10)
    # Of a block what is cut: no other rank has this element.
    flat = next(flat for flat in engine.units[-2].flats if flat.name.endswith("cut"))
    engines.overflow_on_the_last(comm, engine, flat, element=1)
    after = []
    for step in range(3):
        driver.train_batch(*tokens(step, context_of(case)))
        after.append({"updates": engine.updates, "held": engines.states_of(engine)})
    return after


def along_axes(comm: Any) -> dict[str, Any]:
    """The world ranks beside which this rank finds itself on a grid of 2 x 2 x 2."""
    layout = Layout(dp=2, pp=2, tp=2)
    mesh, place = Mesh(comm, layout), layout.place(comm.rank)
    return {
        "place": {"data": place.shard, "pipeline": place.pipeline, "tensor": place.tensor},
        "data": mesh.along("host", "shard").world_ranks,
        "pipeline": mesh.along("pipeline").world_ranks,
        "tensor": mesh.along("tensor").world_ranks,
        "both": mesh.along("host", "shard", "tensor").world_ranks,
        "none": mesh.along().world_ranks,
    }
