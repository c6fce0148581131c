"""What tests/test_pipeline.py runs on ranks."""

import shlex
from typing import Any

import numpy as np

from jobs import engines
from minidist.engine import Settings
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.llama import LlamaConfig, llama
from minidist.nn.optim import SGD, AdamW
from minidist.nn.precision import PRECISIONS
from minidist.nn.tensor import Array
from minidist.pipeline import Pipeline, pipeline_of
from minidist.pp import zero_bubble
from minidist.pp.instructions import Instruction, Receive
from minidist.programs.chapter import find

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
    return engines.batch(step, BATCH, CONTEXT, VOCABULARY)


class OneBuffer(Pipeline):
    """The bug: one receive buffer for all micro-batches of a chunk."""

    def perform(self, instruction: Instruction) -> None:
        if not isinstance(instruction, Receive):
            return super().perform(instruction)
        what, k, chunk = instruction.what, instruction.micro_batch, instruction.chunk
        self.buffers = getattr(self, "buffers", {})
        shared = self.buffers.setdefault((what, chunk), self.room_for(self.in_flight.batches[k]))
        self.in_flight.mail[what, k, chunk] = self.links.receive(instruction, shared)
        return None


def train_one(comm: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Some steps; on rank 0 losses, first gradients and final parameters by name, and each rank's counts."""
    units = model(case["model"], case["layers"])
    replicas = tuple(case.get("replicas", ()))
    parts = cut(units, (len(replicas) or comm.size) * case.get("chunks", 1))
    wanted = settings(case["precision"], case["optimizer"], case["m"], case["clip"], case.get("recompute", "none"))
    made = pipeline_of(units, wanted, comm, parts, case["schedule"], case["steps"], replicas)
    if case.get("one buffer"):
        made = OneBuffer(made.engine, made.stage, case["schedule"], case["steps"])
    engine, watched = made.engine, engines.watch_gradients(made.engine)
    losses = np.array([made.train_batch(*tokens(step)) for step in range(case["steps"])])
    validation = made.evaluate(*tokens(99))
    own = [flat for unit in engine.units for flat in unit.flats]
    parameters = {p.name: view for flat in own for p, view in flat.views(flat.master)}
    gradients = {name: watched["gradients"][name] for name in parameters}
    held = {p.name: view for flat in engine.flats for p, view in flat.views(flat.master)}
    copies = comm.all_gather_object(held)
    for name, array in held.items():  # copies of a unit stay the same, to the last bit
        assert all(np.array_equal(array, other[name]) for other in copies if name in other), name
    return {
        "losses": sum(comm.all_gather_object(losses)),
        "validation": sum(comm.all_gather_object(validation)),
        "gradients": engine.collect_on_rank_0(gradients),
        "parameters": engine.collect_on_rank_0(parameters),
        "spans": [(s.letter, s.start, s.end, s.micro_batch, s.chunk) for s in made.watch.timeline.spans],
        "counted": made.other_counts(),
    }


def train_all(comm: Any, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: train_one(comm, case) for name, case in cases.items()}


def table(comm: Any) -> list[dict[str, Any]]:
    return zero_bubble.table(comm)


def diverge(comm: Any, lines: list[str]) -> list[int]:
    """Each line's chapter, `pipeline OPTIONS` or `parallel3d OPTIONS`, that is to end early; its exit status."""
    statuses = []
    for line in lines:
        name, *arguments = shlex.split(line)
        chapter = find(name)
        statuses.append(chapter.work(comm, chapter.job(arguments, comm.size)))
        comm.ledger.check_requests()
    return statuses
