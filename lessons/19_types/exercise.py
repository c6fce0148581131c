"""Exercise 19: types of distribution. What do ranks hold of a tensor, and of its gradient?

Fill in the four functions; `pytest lessons/19_types` says how many points they earn. A type is a letter:

    "R"  replicated   the same values on all ranks, each with a part of the gradient      its gradient is "P"
    "I"  invariant    the same values on all ranks, each with the whole gradient          its gradient is "I"
    "V"  varying      each rank has its own values, and their gradient                    its gradient is "V"
    "P"  partial      the ranks' values are summands: their sum is still due              its gradient is "R"

An operation is "add" (a sum), "linear" (a product: linear in each operand), or another one, such as "gelu", "norm" or
"attention", which is not linear. A collective is a pair: what the forward calls, and what the backward calls. Each is
"all-reduce", "all-gather", "reduce-scatter", "all-to-all", or "" for nothing. The pair ("", "") is no collective: its
result is its operand.

A program is a list of lines (result, operation, operands), as in

    [("a", ("", "all-reduce"), ["x"]), ("h", "linear", ["a", "w"]), ("y", "gelu", ["h"])]

and `given` has the types of the tensors that no line makes: {"x": "I", "w": "V"}.
"""

from collections.abc import Mapping, Sequence

Line = tuple[str, str | tuple[str, str], Sequence[str]]


class Mismatch(Exception):
    """Types that do not go together."""


def join(types: Sequence[str], operation: str) -> str:
    """The type of an operation's result, from those of its operands. Raises Mismatch if they do not go together.

    R and V make V. I goes with I alone. A sum of P needs P in all operands. A product of P needs R in all others.
    The result of both is P. An operation that is not linear takes no P. Equal types other than P make the same type.
    """
    raise NotImplementedError


def collective(forward: str, backward: str, operand: str) -> str:
    """The type of a collective's result, from that of its operand. Raises Mismatch for a pair or an operand that is
    wrong.

    Eight pairs have a type: two result in I, three in R, three in V. Where the forward sums, the operand is P; V may
    stand for P. A collective that does nothing in the forward takes I. All others take V. Derive each result: is it
    the same on all ranks? If so, what does the backward get: parts of a gradient, which it sums, or the whole gradient?
    """
    raise NotImplementedError


def types_of(program: Sequence[Line], given: Mapping[str, str]) -> dict[str, str]:
    """The types of all results of a program that is right, by name."""
    raise NotImplementedError


def first_alarm(program: Sequence[Line], given: Mapping[str, str]) -> str:
    """The result of the first line whose types do not go together; "" if there is none."""
    raise NotImplementedError
