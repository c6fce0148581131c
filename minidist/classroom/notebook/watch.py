"""Functions that record and print a run in a lesson's notebook, so that its cells show only the algorithm.

from minidist.classroom.notebook.watch import print_losses, watch

engine = watch(ZeRO3, ("parameters_of", "forget"), look)(units, settings, comm)
engine.history                                   # look(engine, flat) after each of these calls
print_losses({"serial": serial, "ZeRO-3": found})
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from minidist.engine import Settings
from minidist.mpi.comm import Comm


def watch(engine: type, methods: Sequence[str], look: Callable[[Any, Any], Any]) -> type:
    """The engine's class, made to append look(engine, flat) to `history` after each call of one of these methods."""

    def watch_method(name: str) -> Callable[..., Any]:
        def call(self: Any, flat: Any, *more: Any) -> Any:
            value = getattr(engine, name)(self, flat, *more)
            self.history.append(look(self, flat))
            return value

        return call

    watched = {name: watch_method(name) for name in methods}
    return type(f"Watched{engine.__name__}", (engine,), {"history": [], **watched})


def build_rank(engine: Callable[..., Any], units: Sequence[Any], rank: int, n: int) -> Any:
    """The engine of one of n ranks, without the others, in mixed precision with Adam. It makes all its arrays before it
    sends anything, so it needs its rank, but no way to send."""
    return engine(units, Settings(), SimpleNamespace(rank=rank, size=n))


def print_losses(rows: Mapping[str, Sequence[float]], every: int = 5, digits: int = 4) -> None:
    """A line for each program: its name, and its losses at steps 0, `every`, 2 `every` ...."""
    width = max(map(len, ["loss at step", *rows]))
    steps = range(0, max(map(len, rows.values())), every)
    print(f"{'loss at step':{width}}  " + " ".join(f"{step:>{digits + 2}}" for step in steps))
    for name, losses in rows.items():
        print(f"{name:{width}}  " + " ".join(f"{loss:.{digits}f}" for loss in losses[::every]))


def mix(chapters: type, yours: Sequence[str]) -> type:
    """The chapter's class, with the methods `yours` taken from the same class in exercise.py."""
    if not yours:
        return type("Yours", (chapters,), {})
    exercise = vars(getattr(importlib.import_module("exercise"), chapters.__name__))
    return type("Yours", (chapters,), {name: exercise[name] for name in yours})


class Watched:
    """A communicator that keeps a copy of every array that is sent over it, in `sent`."""

    def __init__(self, comm: Comm) -> None:
        self.comm, self.sent = comm, list[np.ndarray]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def send(self, array: np.ndarray, dest: int) -> None:
        self.sent.append(array.copy())
        self.comm.send(array, dest)

    def isend(self, array: np.ndarray, dest: int) -> Any:
        self.sent.append(array.copy())
        return self.comm.isend(array, dest)

    def sendrecv(self, array: np.ndarray, dest: int, out: np.ndarray, source: int) -> None:
        self.sent.append(array.copy())
        self.comm.sendrecv(array, dest, out, source)
