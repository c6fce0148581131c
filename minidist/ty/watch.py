"""Gives types to the tensors of a forward, while it runs on its ranks."""

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minidist.nn.tensor import Array, Parameter, Tensor
from minidist.spmd_types import PRODUCTS, RULES, SAME, I, Mismatch, P, R, V, join, through

Types = dict[str, str]  # by axis
NO_GRADIENT = ("balance", "counts")  # phases in which a router's decisions travel
INSIDE = ("nn/tensor.py", "nn/ops.py", "nn/layers.py", "ty/watch.py")  # an alarm names a line above these


class Alarm(NamedTuple):
    """A mismatch, and where it is."""

    axis: str
    what: str
    where: str

    def __str__(self) -> str:
        return f"axis {self.axis}: {self.what}: {self.where}"


class Seen(NamedTuple):
    """An operation of the forward."""

    place: str
    operation: str
    parameters: tuple[str, ...]
    types: Types


@dataclass
class Watch:
    """A forward on this rank. An alarm does not end it: the result gets the type that it has in a right program."""

    axes: dict[str, frozenset[int]]  # the ranks along each axis, numbered as in the world; this one is among them
    parameters: dict[int, Types] = field(default_factory=dict)  # by their ids
    entering: Types = field(default_factory=dict)  # of what comes from outside: tokens, or what a stage receives
    place: Callable[[], str] = str  # where the forward is
    alarms: list[Alarm] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    prints: dict[str, tuple[Types, int]] = field(default_factory=dict)  # of values, by what has them
    read: dict[int, Parameter] = field(default_factory=dict)  # since the last operation
    called: dict[str, set[str]] = field(default_factory=dict)  # collectives since then, by axis
    known: dict[Any, dict[str, set[str]]] = field(default_factory=dict)  # collectives of a backward
    result: tuple[Any, Types] = (None, {})  # the last operation's array and types

    # ---- what a forward tells ---------------------------------------------------------------------------------------

    def reads(self, parameter: Parameter) -> None:
        self.read[id(parameter)] = parameter

    def collective(self, name: str, comm: Any) -> None:
        if comm.ledger.phase not in NO_GRADIENT:
            for axis in self.along(comm):
                self.called.setdefault(axis, set()).add(name)

    def operation(
        self, output: Tensor, inputs: tuple[Tensor, ...], backward: Callable[..., Any], kept: tuple[Array, ...]
    ) -> None:
        name = backward.__qualname__.split(".<locals>")[0]
        read, self.read = list(self.read.values()), {}
        begins = any(each.types is None for each in inputs)  # a unit: what was called has brought its parameters
        ahead = {} if begins or name.endswith("attention") else self.called
        back = self.backward_calls(output, backward, kept)
        self.called, types = {}, dict[str, str]()
        for axis in self.axes:
            of = [self.types_of(each)[axis] for each in inputs]
            calls = ["+".join(sorted(each.get(axis, ()))) for each in (ahead, back)]
            if any(calls):
                there, here = calls
                makes = RULES.get((there, here), ("", ""))[1]
                of = [self.attempt(axis, name, partial(through, there, here, each), makes or each) for each in of]
            types[axis] = self.joined(axis, name, of, read)
        output.types = types
        self.result = output.data, types
        self.seen.append(Seen(self.place(), name, tuple(each.name for each in read), types))
        for parameter in read:
            if parameter.name not in self.prints:
                self.note(parameter.name, self.parameters[id(parameter)], parameter.data)
                self.read.clear()
        self.note(f"`{name}` at {line()}, in {self.place()}, operation {len(self.seen)}", types, output.data)

    # ---- types ------------------------------------------------------------------------------------------------------

    def along(self, comm: Any) -> list[str]:
        """The axes of a communicator."""
        return [axis for axis, ranks in self.axes.items() if ranks <= set(comm.world_ranks)]

    def types_of(self, x: Tensor) -> Types:
        """A unit's first tensor has the array of the last result, or one from outside."""
        if x.types is None:
            array, types = self.result
            x.types = types if x.data is array else self.entering
        return x.types

    def joined(self, axis: str, name: str, of: list[str], read: list[Parameter]) -> str:
        """Operands and matrices first, then biases. A product that sums over what ranks have cut is partial."""
        biases = [each for each in read if name in PRODUCTS and each.name.endswith(".bias")]
        factors = [each for each in read if each not in biases]
        operands = [*of, *(self.parameters[id(each)][axis] for each in factors)]
        result = self.attempt(axis, name, partial(join, operands, name), most_likely(operands))
        summed = 0 if "Embedding" in name else 1 if name in PRODUCTS else None  # the axis of a matrix (out, in), (V, C)
        if any(vars(each).get("axis", -1) == summed and axis in self.along(vars(each)["comm"]) for each in factors):
            result = P
        if biases:
            operands = [result, *(self.parameters[id(each)][axis] for each in biases)]
            result = self.attempt(axis, name, partial(join, operands, "add_bias"), most_likely(operands))
        return result

    def attempt(self, axis: str, name: str, rule: Callable[[], str], meant: str) -> str:
        """The type that a rule gives; if it gives none, an alarm, and the type that is most likely meant."""
        try:
            return rule()
        except Mismatch as mismatch:
            self.alarm(axis, str(mismatch), f"`{name}`")
            return meant

    def alarm(self, axis: str, what: str, name: str) -> None:
        if len(self.alarms) < MOST:
            self.alarms.append(Alarm(axis, what, f"{name} at {line()}, in {self.place()}"))

    def backward_calls(
        self, output: Tensor, backward: Callable[..., Any], kept: tuple[Array, ...]
    ) -> dict[str, set[str]]:
        """Which collectives a backward calls, by axis. It runs on zeros, once for all operations of its kind, if it has
        a communicator at hand."""
        if backward.__qualname__.partition(".")[0].endswith("attention"):
            return {}  # as dear as a forward of it, and V all the way
        at_hand = [cell.cell_contents for cell in backward.__closure__ or ()]
        comms = [id(comm) for each in at_hand for comm in comms_of(each) if self.along(comm)]
        if not comms:
            return {}
        key = backward.__code__, tuple(comms)
        if key not in self.known:
            self.called = {}
            backward(np.zeros_like(output.data), *kept)
            self.known[key] = self.called
            self.read.clear()
        return self.known[key]

    # ---- values that must be equal ----------------------------------------------------------------------------------

    def note(self, what: str, types: Types, values: Array) -> None:
        """R and I say that all ranks along an axis have the same values: keep what tells whether they do."""
        if equal := {axis: types[axis] for axis in self.axes if types[axis] in (R, I)}:
            self.prints[what] = equal, told(values)

    def compare(self, comm: Any) -> None:
        """Alarm if they do not. All ranks must call this."""
        everyone = dict(zip(comm.world_ranks, comm.all_gather_object(self.prints), strict=True))
        for what, (equal, own) in self.prints.items():
            for axis, kind in equal.items():
                others = (everyone[rank].get(what, (equal, own)) for rank in self.axes[axis])
                if any(axis in theirs and value != own for theirs, value in others):
                    self.alarms.append(Alarm(axis, f"{kind}, but ranks have different values", what))
                    return


def most_likely(operands: list[str]) -> str:
    """The result's type in a right program, if types of operands do not go together."""
    return next((each for each in (V, I, R, P) if each in operands), SAME)


def told(values: Array) -> int:
    """Tells values apart by a sample: the first ones, and every 61st after them."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return zlib.crc32(flat[4096::61].tobytes(), zlib.crc32(flat[:4096].tobytes()))


MOST = 100  # alarms: after a few, one knows


def comms_of(held: Any, depth: int = 2) -> list[Any]:
    """The communicators that an object of a closure is, or has."""
    if hasattr(held, "world_ranks"):
        return [held]
    if depth == 0 or isinstance(held, Array | Parameter | Tensor) or not hasattr(held, "__dict__") or callable(held):
        return []
    return [comm for each in vars(held).values() for comm in comms_of(each, depth - 1)]


def line() -> str:
    """`file.py:line` of the layer whose operation runs."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_name != "record":
        frame = frame.f_back
    frame = (frame.f_back and frame.f_back.f_back) or frame  # what has called the operation
    while frame.f_back and frame.f_code.co_filename.endswith(INSIDE) and not above(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"


def above(frame: Any) -> bool:
    """Whether the function is a unit's, called by the loop over units."""
    return bool(frame.f_back and frame.f_back.f_code.co_filename.endswith("/passes.py"))
