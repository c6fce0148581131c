"""What lesson 19's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist.exchange.one_process import run_ranks
from minidist.programs import spmd_types as program
from minidist.spmd_types import MEGATRON, derive, draw, reduce

Array = np.ndarray
Line = tuple[str, str | tuple[str, str], Sequence[str]]
ASKED = ("join", "collective", "types_of", "first_alarm")
F, G = ("", "all-reduce"), ("all-reduce", "")
block_types = program.block_types  # the operations of a block of tensor parallelism, and types
FUNCTIONS = [name for name in MEGATRON if not name.startswith("…")]


def half_a_layer(n: int, with_f: bool) -> tuple[list[Array], list[Array]]:
    """y = gelu-free MLP of x, whose matrices are cut over n ranks, and x's gradient: each on all ranks."""

    def on_rank(comm: Any) -> tuple[Array, Array]:
        x, dy = draw(comm, "I", (3, 4), 1), draw(comm, "I", (3, 4), 2)
        columns, rows = draw(comm, "V", (4, 5), 3), draw(comm, "V", (5, 4), 4)
        y = reduce(comm, x @ columns @ rows)  # g: in the backward, the identity
        dx = dy @ rows.T @ columns.T
        return y, reduce(comm, dx) if with_f else dx

    both = run_ranks(on_rank, n)
    return [y for y, _ in both], [dx for _, dx in both]


def run_function(
    name: str, n: int, kind: str, gradient: str
) -> tuple[list[Array], list[Array], list[Array], list[Array]]:
    """Megatron's function on n ranks: operands x of a type, results y, gradients dy of a type, gradients dx."""
    forward, backward = MEGATRON[name]

    def on_rank(comm: Any) -> tuple[Array, Array, Array, Array]:
        x = draw(comm, kind, (2 * n, 2 * n), 1)
        y = forward(comm, x)
        dy = draw(comm, gradient, y.shape, 2)
        return x, y, dy, backward(comm, dy)

    x, y, dy, dx = (list(each) for each in zip(*run_ranks(on_rank, n), strict=True))
    return x, y, dy, dx


def calls(name: str) -> tuple[str, str]:
    """What the forward and the backward of Megatron's function call."""
    return run_ranks(lambda comm: derive(comm, *MEGATRON[name])[:2], 2)[0]


# ---- a block as a program, and six mistakes in it --------------------------------------------------------------------

GIVEN = {"x": "I", "norm": "I", "columns": "V", "rows": "V", "bias": "I", "router": "I"}
BLOCK: list[Line] = [
    ("normed", "linear", ["x", "norm"]),
    ("copied", F, ["normed"]),
    ("hidden", "linear", ["copied", "columns"]),
    ("bent", "gelu", ["hidden"]),
    ("product", "linear", ["bent", "rows"]),
    ("sum", G, ["product"]),
    ("biased", "add", ["sum", "bias"]),
    ("stream", "add", ["x", "biased"]),
]


def without(name: str) -> list[Line]:
    """The block without the collective that makes a result."""
    return [(name, ("", ""), operands) if result == name else line for line in BLOCK for result, _, operands in [line]]


MISTAKES: dict[str, tuple[list[Line], dict[str, str]]] = {
    "f is forgotten": (without("copied"), GIVEN),
    "g is forgotten": (without("sum"), GIVEN),
    "g is called twice": ([*BLOCK[:6], ("twice", G, ["sum"]), ("biased", "add", ["twice", "bias"]), BLOCK[7]], GIVEN),
    "the norm's gradient is summed again": (BLOCK, {**GIVEN, "norm": "R"}),
    "the sum is divided by the number of ranks": (BLOCK, GIVEN),  # a factor has no type
    "two ranks take each other's columns": (BLOCK, GIVEN),  # nor has an order
}
