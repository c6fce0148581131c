"""What tests/test_memory.py runs on ranks: engines under tracemalloc, and a ZeRO-3 whose arrays are watched.

The audit is a program of its own, `mpirun -n N python -m jobs.memories PRECISION`: a rank of the launcher has a thread
that answers when it is asked what the rank is doing, and tracemalloc would count what that thread makes.
"""

import gc
import json
import sys
import tracemalloc
import weakref
from typing import Any
from unittest import mock

import numpy as np

from jobs import engines
from jobs.engines import ENGINES
from minidist.engine import Engine, Settings
from minidist.memory.pool import OutOfMemory
from minidist.mpi.comm import Comm
from minidist.mpi.run import run
from minidist.nn.flat import Flat
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.precision import PRECISIONS
from minidist.nn.tensor import Released
from minidist.pipeline import pipeline_of
from minidist.programs.chapter import find
from minidist.zero3 import ZeRO3

VOCABULARY, CONTEXT, BATCH = 23, 4, 8
Array = np.ndarray


def model(layers: int, width: int, tied: bool = True) -> list[Unit]:
    return gpt(GPTConfig(VOCABULARY, CONTEXT, layers=layers, heads=2, width=width, tied=tied))


def tokens(step: int) -> tuple[Array, Array]:
    return engines.batch(step, BATCH, CONTEXT, VOCABULARY)


def step(engine: Engine, number: int) -> None:
    engine.backward(engine.forward(*tokens(number)))
    engine.step()


def arrays_held() -> int:
    """Bytes of the data of all NumPy arrays made since tracemalloc was started, by NumPy's own account."""
    numpys = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([numpys]).traces)


def audit(comm: Comm, precision: str) -> dict[str, dict[str, Any]]:
    """For every engine: what it says that it holds after two steps, what there is, and the most that there was.

    Without the garbage collector: arrays must go when the engine lets go of them, not some time later.
    """
    gc.disable()
    found = {}
    step(Engine(model(layers=1, width=8), Settings(PRECISIONS[precision])), 0)  # what is imported late is imported now
    makers = {"serial": lambda units, settings, comm: Engine(units, settings), **ENGINES}
    for name, make in makers.items():
        units = model(layers=4, width=48)
        tracemalloc.start()
        engine = make(units, Settings(PRECISIONS[precision]), comm)
        step(engine, 0)
        tracemalloc.reset_peak()
        step(engine, 1)
        _, peak = tracemalloc.get_traced_memory()
        said = {kind: sum(pool.peak[kind] for pool in engine.pools) for kind in engine.peak_bytes()}
        room = engine.host.held["workspace"]  # scratch of a host's update, which is there for good
        found[name] = {"said": {**said, "room": room}, "held": arrays_held(), "peak": peak}
        tracemalloc.stop()
    return found


class Watched(ZeRO3):
    """ZeRO-3 with a weak reference to every whole-unit array: one that somebody still holds is seen to be alive."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.watched: list[tuple[str, Any]] = []
        self.seen: list[tuple[str, list[str]]] = []  # (when, which are alive)
        super().__init__(*arguments, **options)

    def look(self, when: str) -> None:
        self.seen.append((when, sorted({what for what, reference in self.watched if reference() is not None})))

    def watch(self, flat: Flat) -> None:
        for what in ("gathered", "bucket", "values", "raw_grad"):
            array = getattr(flat, what)
            if array is not None:
                self.watched.append((f"{flat.name} {what}", weakref.ref(array)))

    def run_unit(self, unit: Unit, *arguments: Any) -> Array:
        y = super().run_unit(unit, *arguments)
        self.look(f"after forward of {unit.name}")
        return y

    def collect_all(self, unit: Unit, *arguments: Any) -> None:
        super().collect_all(unit, *arguments)
        for flat in self.flats:
            self.watch(flat)  # now that there are buckets

    def leave(self, unit: Unit, left: Any) -> None:
        for flat in unit.reads:
            self.watch(flat)
        super().leave(unit, left)

    def count(self, unit: Unit) -> None:
        super().count(unit)
        self.look(f"after backward of {unit.name}")


def watch(comm: Comm, cases: list[tuple[str, bool, bool]]) -> list[list[tuple[str, list[str]]]]:
    """Each case is (precision, tied, keep_last); for each, which whole-unit arrays are alive after each unit's forward
    and backward, of a step and of an evaluation."""
    gc.disable()
    found = []
    for precision, tied, keep_last in cases:
        engine = Watched(model(1, 8, tied), Settings(PRECISIONS[precision]), comm, keep_last=keep_last)
        step(engine, 0)
        engine.evaluate(*tokens(1))
        found.append(engine.seen)
    return found


def touch(comm: Comm) -> dict[str, str]:
    """What happens to whoever uses a parameter after the forward, by name; and after that, whether training goes on."""
    said = {}
    units = model(1, 8)
    engine = ZeRO3(units, Settings(PRECISIONS["fp32"]), comm)
    loss = engine.forward(*tokens(0))
    for unit in units:
        for parameter in unit.parameters:
            try:
                said[parameter.name] = f"it has {parameter.data.shape}"
            except Released as released:
                said[parameter.name] = str(released)
    engine.backward(loss)
    engine.step()
    said["updates"] = str(engine.updates)
    return said


def with_capacity(comm: Comm) -> dict[str, str]:
    """What becomes of engines on devices that have room for a third of the model states, and the activations."""
    psi = sum(parameter.size for unit in model(4, 48) for parameter in unit.parameters)
    settings = Settings(PRECISIONS["mixed"], capacity=16 * psi // 3 + 300_000)
    found = {}
    for name in ("data_parallel", "zero3"):
        try:
            engine = ENGINES[name](model(4, 48), settings, comm)
            step(engine, 0)
            found[name] = "trained"
        except OutOfMemory as error:
            found[name] = str(error)
    return found


class Secretive(Engine):
    """Keeps all gradients twice."""

    def collect(self, flat: Flat) -> None:
        super().collect(flat)
        self.private = [*getattr(self, "private", []), flat.grad.copy()]


def secretive(comm: Comm, folder: str) -> int:
    """The exit status of serial training by such an engine, under the witness."""
    line = f"--steps 1 --layers 1 --width 16 --context 8 --batch 4 --witness --json {folder}/report.json"
    with mock.patch.object(find("train"), "make", lambda job, comm: Secretive(job.units, job.settings)):
        return find("train").work(comm, find("train").job(line.split(), ranks=1))


def print_audit(comm: Comm, precision: str) -> None:
    """On rank 0, everyone's, as JSON."""
    everyone = comm.gather_object(audit(comm, precision))
    if comm.rank == 0:
        print(json.dumps(everyone))


def full_between_units(comm: Comm) -> None:
    """A pipeline whose last stage has room for nothing more when the second step's first message is to come."""
    pipeline = pipeline_of(model(layers=1, width=8, tied=False), Settings(accumulate=2), comm, [range(1), range(1, 3)])
    pipeline.train_batch(*tokens(0))
    if comm.rank == comm.size - 1:
        pipeline.engine.device.capacity = 0
    pipeline.train_batch(*tokens(1))


if __name__ == "__main__":
    run(prepare=lambda comm: sys.argv[1], main=print_audit)
