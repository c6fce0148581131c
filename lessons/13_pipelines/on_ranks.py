"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from collections.abc import Sequence
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
from stages import Stage

from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import answers, number
from minidist.mpi.comm import Comm

Array = np.ndarray
# The lesson's own functions take the place of what a function may call. `perform` performs a student's schedules.
given = functions("answers", ("clock", "gpipe", "one_f_one_b", "zb_h1", "perform", "shorter", "interleaved"))
STANDS_ON = {
    "clock": (),
    "perform": (),
    "gpipe": ("perform",),
    "one_f_one_b": ("perform", "gpipe"),
    "zb_h1": ("perform", "gpipe", "one_f_one_b"),
    "shorter": ("perform", "gpipe", "one_f_one_b", "zb_h1", "clock"),
    "interleaved": ("perform", "one_f_one_b"),
}
LONGEST = 1000  # things in an order; a generator may have no end


def as_order(value: Any) -> Any:
    """An order as a list of lists, however it was made; of anything else the name of its type."""
    if isinstance(value, str | dict | np.ndarray) or not hasattr(value, "__iter__"):
        return type(value).__name__
    return [as_thing(thing) for thing in islice(value, LONGEST)]


def as_thing(thing: Any) -> Any:
    if not isinstance(thing, tuple | list):
        return type(thing).__name__
    return [int(part) if isinstance(part, int | np.integer) else part if isinstance(part, str) else type(part).__name__
            for part in thing]  # fmt: skip


def tuples(orders: Sequence[Any]) -> list[Any]:
    return [[tuple(thing) for thing in order] for order in orders]


# ---- orders and clocks -----------------------------------------------------------------------------------------------


orders = answers(told=as_order)


def order_of(comm: Comm, exercise: ModuleType, mine: list[list[Any]], function: str) -> list[Any]:
    """As `orders`, of functions that take an order, or a number: the notebook's gaps."""
    found = []
    for arguments in mine:
        value = getattr(exercise, function)(*[tuples([one])[0] if isinstance(one, list) else one for one in arguments])
        as_number = number(value)
        found.append(as_order(value) if isinstance(as_number, str) else as_number)
    return found


share = answers("idle_share")


def times(comm: Comm, exercise: ModuleType, mine: list[Any], costs: dict[str, float], latency: float) -> list[Any]:
    """Of each pipeline's orders the spans; or, of an exception, its type."""
    found: list[Any] = []
    for of_stages in mine:
        try:
            spans = exercise.clock(tuples(of_stages), dict(costs), latency)
        except NotImplementedError:
            raise
        except Exception as error:
            found.append(type(error).__name__)
            continue
        found.append([as_spans(each) for each in spans] if isinstance(spans, list | tuple) else type(spans).__name__)
    return found


def as_spans(spans: Any) -> Any:
    """What a stage did when, as lists of (letter, k, start, end); of anything else the name of its type."""
    if not isinstance(spans, list | tuple):
        return type(spans).__name__
    try:
        return [[str(letter), int(k), float(start), float(end)] for letter, k, start, end in spans]
    except (TypeError, ValueError):
        return "something else than (letter, k, start, end)"


# ---- on ranks --------------------------------------------------------------------------------------------------------


def messages(comm: Comm) -> int:
    """How many this rank has sent."""
    return sum(count for _, count in comm.ledger.sent.values())


class Watched(Stage):
    """It sees in which arrays inputs come, and what has been sent when weights begin."""

    def __init__(self, comm: Comm, tokens: Array, model: dict[str, Any]) -> None:
        super().__init__(comm.rank, comm.size, tokens, model)
        self.comm, self.sent_before = comm, messages(comm)
        self.handed: dict[int, list[Array]] = {}  # by micro-batch: what its W has yet to read
        self.overwritten: list[list[Any]] = []  # (k, k', what): this of k' came in an array of k
        self.wrong: list[str] = []
        self.late: list[int] = []  # k of which no gradient had been sent when weight(k) began
        self.made = 0  # what others are to have

    def forward(self, k: int, x: Array | None) -> Array | None:
        self.look("forward", k, x, self.first)
        y = super().forward(k, x)
        self.made += y is not None
        return y

    def backward(self, k: int, dy: Array | None) -> Array | None:
        self.look("backward", k, dy, self.last)
        dx = super().backward(k, dy)
        self.made += dx is not None
        return dx

    def weight(self, k: int) -> None:
        if messages(self.comm) - self.sent_before < self.made:
            self.late.append(k)
        self.handed.pop(k, None)
        super().weight(k)

    def look(self, method: str, k: int, array: Any, none: bool) -> None:
        """What it was handed."""
        kind = "input" if method == "forward" else "gradient"
        what = f"{method}({k}, ...) of stage {self.comm.rank}"
        if none and array is not None:
            self.wrong.append(f"{what} was handed an array; None is wanted")
        if not none and (not isinstance(array, np.ndarray) or array.shape != self.shape):
            was = f"an array of the shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise TypeError(f"{what} was handed {was}; an array of the shape {self.shape} is wanted")
        if not none:
            shared = [of for of, arrays in self.handed.items() if any(np.shares_memory(array, one) for one in arrays)]
            self.overwritten += [[of, k, kind] for of in shared]
            self.handed.setdefault(k, []).append(array)


def performing(
    comm: Comm, exercise: ModuleType, tokens: Array, orders: list[Any], model: dict[str, Any]
) -> dict[str, Any]:
    """A step, and what the stage has seen."""
    stage = Watched(comm, tokens, model)
    exercise.perform(comm, stage, tuples(orders)[comm.rank])
    seen = {name: getattr(stage, name) for name in ("overwritten", "wrong", "late", "loss")}
    return {"gradients": [gradient.copy() for gradient in stage.gradients], "done": stage.done, **seen}


def with_orders(
    comm: Comm, exercise: ModuleType, tokens: Array, function: str, more: list[int], model: dict[str, Any]
) -> dict[str, Any]:
    """A step in the order of a student's schedule, performed by the lesson's own `perform`."""
    value = getattr(exercise, function)(comm.rank, comm.size, len(tokens), *more)
    return performing(comm, exercise, tokens, [list(islice(value, LONGEST))] * comm.size, model)
