"""What tests/test_pipeline.py runs on ranks."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from minidist import pipeline, train
from minidist.engine import Settings
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.llama import LlamaConfig, llama
from minidist.nn.optim import SGD, AdamW
from minidist.nn.precision import PRECISIONS
from minidist.nn.tensor import Array
from minidist.pipeline import Pipeline
from minidist.pp import options as pipeline_options
from minidist.pp import zero_bubble
from minidist.pp.schedules import Receive

VOCABULARY, CONTEXT, BATCH = 23, 6, 12


def model(name: str, layers: int) -> list[Unit]:
    tied = "untied" not in name
    if name.startswith("gpt"):
        return gpt(GPTConfig(VOCABULARY, CONTEXT, layers, heads=3, width=12, dropout=0.1, tied=tied))
    sizes = {"heads": 2, "kv_heads": 1, "width": 12, "hidden": 17, "dropout": 0.1}
    return llama(LlamaConfig(VOCABULARY, CONTEXT, layers, tied=tied, **sizes))  # type: ignore[arg-type]


def settings(precision: str, optimizer: str, accumulate: int, clip: float, recompute: str = "none") -> Settings:
    return Settings(
        precision=PRECISIONS[precision],
        optimizer=AdamW(weight_decay=0.1) if optimizer == "adamw" else SGD(momentum=0.9),
        learning_rate=lambda update: (1e-2 if optimizer == "adamw" else 1e-1) / (update + 1),
        clip=clip,
        accumulate=accumulate,
        recompute=recompute,
        seed=5,
    )


def cut(units: list[Unit], parts: int) -> list[range]:
    """Consecutive parts, uneven where they must be."""
    return [range(part[0], part[-1] + 1) for part in np.array_split(np.arange(len(units)), parts)]


def tokens(step: int) -> tuple[Array, Array]:
    drawn = np.random.default_rng(step).integers(0, VOCABULARY, (BATCH, CONTEXT + 1))
    return drawn[:, :-1], drawn[:, 1:]


class Recording(Pipeline):
    """Remembers the first step's gradients, before clipping."""

    def step(self) -> None:
        if self.steps == 0:
            self.first = {unit: self.flats[unit].grad.copy() for unit in self.own}
        super().step()


class OneBuffer(Recording):
    """The bug: one receive buffer for all micro-batches of a chunk."""

    def incoming(self, message: Receive) -> Array:
        buffer = super().incoming(message)
        self.buffers = getattr(self, "buffers", {})
        shared = self.buffers.setdefault((message.what, message.chunk), buffer)
        self.mail[message.what, message.micro_batch, message.chunk] = shared
        return shared


def train_one(comm: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Some steps; on rank 0 losses, first gradients and final parameters by name, and each rank's counts."""
    units = model(case["model"], case["layers"])
    replicas = tuple(case.get("replicas", ()))
    parts = cut(units, (len(replicas) or comm.size) * case.get("chunks", 1))
    wanted = settings(case["precision"], case["optimizer"], case["m"], case["clip"], case.get("recompute", "none"))
    kind = OneBuffer if case.get("one buffer") else Recording
    engine = kind(units, wanted, comm, parts, case["schedule"], case["steps"], replicas)
    losses = np.array([engine.train_batch(*tokens(step)) for step in range(case["steps"])])
    validation = engine.evaluate(*tokens(99))
    flats = {unit: engine.flats[unit] for unit in engine.own}
    gradients = {p.name: view for unit, flat in flats.items() for p, view in flat.views(engine.first[unit])}
    parameters = {p.name: view for flat in flats.values() for p, view in flat.views(flat.master)}
    held = {p.name: view for flat in engine.flats for p, view in flat.views(flat.master)}
    copies = comm.all_gather_object(held)
    for name, array in held.items():  # copies of a unit stay the same, to the last bit
        assert all(np.array_equal(array, other[name]) for other in copies if name in other), name
    return {
        "losses": sum(comm.all_gather_object(losses)),
        "validation": sum(comm.all_gather_object(validation)),
        "gradients": engine.gathered(gradients),
        "parameters": engine.gathered(parameters),
        "spans": [(s.letter, s.start, s.end, s.micro_batch, s.chunk) for s in engine.worker.timeline.spans],
        "counted": engine.counted(),
    }


def train_all(comm: Any, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: train_one(comm, case) for name, case in cases.items()}


def chapters(comm: Any, lines: dict[str, str], folder: str) -> dict[str, Any]:
    """The chapter as the command line runs it; its exit status and its report."""
    found = {}
    for name, line in lines.items():
        made = train.parser("", "pipeline")
        pipeline_options.add_options(made)
        report = Path(folder) / f"{name}.json"
        job = pipeline_options.prepare(made, [*shlex.split(line), "--json", str(report)], comm.size)
        assert isinstance(job, train.Job)
        status = pipeline.main(comm, job)
        comm.ledger.check_requests()
        comm.barrier()
        found[name] = {"status": status, "report": json.loads(report.read_text())}
    return found


def table(comm: Any) -> list[dict[str, Any]]:
    return zero_bubble.table(comm)
