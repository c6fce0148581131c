"""Types of distribution: what ranks hold of a tensor and of its gradient, checked in one forward.

    mpirun -n 4 python -m minidist.spmd_types
    mpirun -n 4 python -m minidist.tensor_parallel --types

Yang et al., "spmd_types", 2026, github.com/meta-pytorch/spmd_types (docs/local_spmd_types.md). Shoeybi et al.,
"Megatron-LM", 2019, arXiv 1909.08053, section 3, and its mappings.py.

A gradient may be summed once too often, or not at all, while the forward is right to the last bit: Megatron's f is the
identity, and only its backward sends. Along each axis of the grid a tensor has one of four types:

    R  replicated   the same values on all ranks; each has a part of the gradient      its gradient is P
    I  invariant    the same values on all ranks; each has the whole gradient          its gradient is I
    V  varying      each rank has its own values, and their gradient                   its gradient is V
    P  partial      the ranks' values are summands: their sum is still due             its gradient is R

An operation joins the types of its operands. R and V make V: ranks compute different things from the same values, so
these values' gradient is a sum. I must not meet V: no backward would sum its gradient. Only linear operations take P.
A collective changes the type, by what it sends in the forward and what in the backward. So its type is not written
down: it is derived from what both have called (RULES), and counted from what ranks then hold (`count`).

A parameter is V where it is cut. Elsewhere it is R along an axis over which its engine sums gradients: data
parallelism, all stages of ZeRO, norms under sequence parallelism. It is I where nothing is summed. With ZeRO-3 it is R
from a gather, and its gradient, P, is reduce-scattered. `--types` of each chapter's command runs one forward of its own
model with types, without a backward (`minidist/ty/`).

Types do not see a wrong factor or order, an off-by-one, a wrong group of the right kind, or what optimizers do.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from minidist import contents, ring
from minidist.mpi.comm import Comm
from minidist.nn.tensor import Array, watched

R, I, V, P = "R", "I", "V", "P"  # noqa: E741
SAME = "="  # the same values on all ranks, and no gradient: tokens. It joins with anything
GRADIENT = {R: P, I: I, V: V, P: R, SAME: SAME}

# ---- operations ------------------------------------------------------------------------------------------------------

PRODUCTS = ("linear", "grouped_linear", "add_up", "ColumnParallelLinear.__call__")  # linear in each operand
SUMS = ("add", "add_bias", "add_positions")
LINEAR = ("dropout", "rotary", "copy_tokens", "dispatch", "combine")  # in their one operand


class Mismatch(Exception):
    """Types that do not go together; its text says what would be wrong."""


def join(types: Sequence[str], operation: str = "") -> str:
    """The type of an operation's result along one axis, from those of its operands."""
    found = {each for each in types if each != SAME}
    if I in found and P in found:
        raise Mismatch("I with P: a sum is due in one operand alone, and would add the other N times; g is missing")
    if I in found and R in found:
        raise Mismatch("I with R: each rank has R's whole gradient, and it would be summed over the ranks")
    if I in found and V in found:
        raise Mismatch("I with V: its gradient would stay partial; f, or a sum of it, is missing")
    if P not in found:
        return V if V in found else found.pop() if found else SAME
    if operation in SUMS and len(found) > 1:
        raise Mismatch(f"P with {min(found - {P})}: a sum is due in one operand alone, and would add the other N times")
    if operation in PRODUCTS and (V in found or list(types).count(P) > 1):
        raise Mismatch("P with P or V: a product of sums is not the sum of the products; g is missing")
    if operation not in (*PRODUCTS, *SUMS, *LINEAR):
        raise Mismatch("P in what is not linear: a sum is due; g is missing")
    return P


# ---- collectives -----------------------------------------------------------------------------------------------------

# What forward and backward call -> what the operand may be, and what the result is. A sum takes V for P.
RULES = {
    ("", "all-reduce"): (I, R),  # f
    ("all-reduce", ""): (P + V, I),  # g
    ("all-reduce", "all-reduce"): (P + V, R),
    ("all-gather", "reduce-scatter"): (V, R),
    ("all-gather", ""): (V, I),  # the backward takes this rank's part
    ("reduce-scatter", "all-gather"): (P + V, V),
    ("", "all-gather"): (I, V),  # the forward takes this rank's part
    ("all-to-all", "all-to-all"): (V, V),
}
WHY = {
    (I, R): "its gradient would be summed twice",
    (I, V): "its gradient would be summed over ranks that have different values",
    (P, R): "all ranks have the same values, which the sum would count N times",
    (P, I): "the sum has been made, and would be made again",
}


def through(forward: str, backward: str, operand: str) -> str:
    """The type of what a collective makes of an operand, along one of its axes."""
    if (forward, backward) not in RULES:
        calls = f"{forward or 'nothing'} in the forward and {backward or 'nothing'} in the backward"
        raise Mismatch(f"{operand}: no type has {calls}")
    takes, makes = RULES[forward, backward]
    if operand not in takes + SAME:
        why = "a sum is due; g is missing" if operand == P else WHY.get((takes[0], operand), "every rank has all of it")
        raise Mismatch(f"{operand} where {takes[0]} is due: {why}")
    return makes


class Calls(list[str]):
    """Notes which collectives are called."""

    def collective(self, name: str, comm: object) -> None:
        self.append(name)

    def reads(self, parameter: object) -> None: ...

    def operation(self, *operation: object) -> None: ...


# ---- Megatron's functions --------------------------------------------------------------------------------------------

Side = Callable[[Comm, Array], Array]  # the forward or the backward of a function, for x (a, b)


def same(comm: Comm, x: Array) -> Array:
    return x


def reduce(comm: Comm, x: Array) -> Array:
    """The sum over the ranks."""
    return ring.all_reduce(comm, x.reshape(-1)).reshape(x.shape)


def part(comm: Comm, x: Array, axis: int) -> Array:
    """This rank's part of x along an axis."""
    return np.array_split(x, comm.size, axis)[comm.rank]


def gather(comm: Comm, x: Array, axis: int) -> Array:
    """The parts of all ranks."""
    first = np.moveaxis(x, axis, 0)
    whole = ring.all_gather(comm, np.ascontiguousarray(first).reshape(-1), x.size * comm.size)
    return np.moveaxis(whole.reshape(-1, *first.shape[1:]), 0, axis)


def scatter(comm: Comm, x: Array, axis: int) -> Array:
    """This rank's part of the sum over the ranks."""
    first = np.moveaxis(x, axis, 0)
    mine = ring.reduce_scatter(comm, np.ascontiguousarray(first).reshape(-1))
    return np.moveaxis(mine.reshape(-1, *first.shape[1:]), 0, axis)


def exchange(comm: Comm, x: Array) -> Array:
    """Row block i to rank i."""
    return ring.all_to_all(comm, x.reshape(comm.size, -1, x.shape[1])).reshape(x.shape)


SEQUENCE, LAST = 0, 1  # the axes of x: positions, and the last one
# Forward and backward, as megatron/core/tensor_parallel/mappings.py has them.
MEGATRON: dict[str, tuple[Side, Side]] = {
    "copy_to_tensor_model_parallel_region": (same, reduce),
    "reduce_from_tensor_model_parallel_region": (reduce, same),
    "scatter_to_tensor_model_parallel_region": (partial(part, axis=LAST), partial(gather, axis=LAST)),
    "gather_from_tensor_model_parallel_region": (partial(gather, axis=LAST), partial(part, axis=LAST)),
    "scatter_to_sequence_parallel_region": (partial(part, axis=SEQUENCE), partial(gather, axis=SEQUENCE)),
    "gather_from_sequence_parallel_region": (partial(gather, axis=SEQUENCE), partial(scatter, axis=SEQUENCE)),
    "… with tensor_parallel_output_grad=False": (partial(gather, axis=SEQUENCE), partial(part, axis=SEQUENCE)),
    "reduce_scatter_to_sequence_parallel_region": (partial(scatter, axis=SEQUENCE), partial(gather, axis=SEQUENCE)),
    "all_gather_last_dim_from_tensor_parallel_region": (partial(gather, axis=LAST), partial(scatter, axis=LAST)),
    "reduce_scatter_last_dim_to_tensor_parallel_region": (partial(scatter, axis=LAST), partial(gather, axis=LAST)),
    "all_to_all": (exchange, exchange),
}


def draw(comm: Comm, kind: str, shape: tuple[int, ...], seed: int) -> Array:
    """An array of a type: whole numbers, so that sums are exact."""
    return np.random.default_rng([seed, 0 if kind in (R, I) else 1 + comm.rank]).integers(-9, 10, shape).astype(float)


def inner(comm: Comm, kind: str, x: Array, dx: Array) -> float:
    """<x, dx> of the whole tensor: over all ranks; of I, which has the whole gradient on each rank, once."""
    each = comm.all_gather_object(float(np.vdot(x, dx)))
    return each[0] if kind == I else sum(each)


def equal(comm: Comm, x: Array) -> bool:
    """Whether all ranks have the same values."""
    return len({each.tobytes() for each in comm.all_gather_object(np.ascontiguousarray(x))}) == 1


def count(comm: Comm, forward: Side, backward: Side) -> list[tuple[str, str]]:
    """The types of operand and result, from what ranks hold: results are equal or not, gradients have their types, and
    <x, backward(dy)> = <forward(x), dy> over all ranks, so that each gradient is the serial one."""
    found = []
    for operand in (P, V, I, R):
        x = draw(comm, operand, (2 * comm.size, 2 * comm.size), 1)
        y = forward(comm, x)
        for result in (R, I) if equal(comm, y) else (V,):
            dy = draw(comm, GRADIENT[result], y.shape, 2)
            dx = backward(comm, dy)
            typed = equal(comm, dx) or GRADIENT[operand] in (P, V)
            if inner(comm, operand, x, dx) == inner(comm, result, y, dy) and typed:
                found.append((operand, result))
    return found


def derive(comm: Comm, forward: Side, backward: Side) -> tuple[str, str, str, str]:
    """What forward and backward call, and the types of operand and result that the rule gives them."""
    y, called = np.zeros((2 * comm.size, 2 * comm.size)), []
    for side in (forward, backward):
        with watched(calls := Calls()):
            y = side(comm, y)
        called.append("+".join(sorted(set(calls))))
    ahead, back = called
    takes, makes = RULES[ahead, back]
    return ahead, back, takes[0], makes


if __name__ == "__main__":
    contents.run("spmd_types")  # prints what is derived and counted, and a block's types: programs/spmd_types.py
