"""What tests/test_checkpoint.py runs on ranks beside command lines."""

import errno
import os
import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest import mock

from minidist.checkpoints import checkpoint, files
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit, count_parameters
from minidist.nn.precision import PRECISIONS
from minidist.system.files import replacing
from minidist.zero1 import ZeRO1
from minidist.zero3 import ZeRO3

ABOUT: dict[str, Any] = {"layout": {"chapter": "test", "ranks": 1}, "identity": {}, "text": {}}


def model(layers: int, width: int) -> list[Unit]:
    return gpt(GPTConfig(vocabulary=30, context=16, layers=layers, heads=2, width=width))


def peak_of(work: Callable[[], None]) -> int:
    """The most bytes that Python and NumPy held at once on behalf of some work."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def held(comm: Comm, folder: str) -> dict[str, int]:
    """The most that saving and loading hold beside the engine; bytes of the largest unit with its moments, of all."""
    settings = Settings(precision=PRECISIONS["fp64"])
    engine = ZeRO3(model(8, 96), settings, comm)
    checkpoint.save(folder, engine, comm, ABOUT)  # what is imported and compiled at first use is no array
    checkpoint.load(folder, engine)
    counted = {"save": peak_of(lambda: checkpoint.save(folder, engine, comm, ABOUT))}
    counted["load"] = peak_of(lambda: checkpoint.load(folder, engine))
    others = ZeRO1(model(8, 96), settings, comm.split(comm.rank // 2))  # two of two ranks
    checkpoint.load(folder, others)
    counted["load another"] = peak_of(lambda: checkpoint.load(folder, others))
    unit = max(sum(flat.size for flat in unit.flats) for unit in engine.units)
    return {**counted, "unit": 3 * 8 * unit, "model": 3 * 8 * count_parameters(engine.units)}


def one_cannot_write(comm: Comm, folder: str) -> int:
    """A checkpoint; another, and a file, when the disk of the last rank is full; one on several disks; the step of what
    loads then."""
    engine = ZeRO3(model(1, 8), Settings(), comm)
    checkpoint.save(folder, engine, comm, ABOUT)
    engine.steps = 1
    write = files.write_tensors

    def full(*arguments: Any) -> Any:
        if comm.rank == comm.size - 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    with mock.patch.object(files, "write_tensors", full):
        checkpoint.save(folder, engine, comm, ABOUT, keep=1)
        checkpoint.export(f"{folder}.safetensors", engine, comm, ABOUT)

    def elsewhere(path: str) -> Any:
        """As on a host with a disk of its own."""
        path = path if comm.rank == 0 else path.replace(folder, f"{folder}-elsewhere", 1)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return replacing(path)

    engine.steps = 2
    with mock.patch.object(checkpoint, "replacing", elsewhere):
        checkpoint.save(folder, engine, comm, ABOUT, keep=1)
    checkpoint.load(folder, engine)
    return engine.steps
