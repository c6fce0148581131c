"""Lesson 19's own functions, which the notebook uses where a gap is open: look here after you have tried."""

from collections.abc import Mapping, Sequence

import numpy as np

Array = np.ndarray
Line = tuple[str, str | tuple[str, str], Sequence[str]]

# ---- the gaps --------------------------------------------------------------------------------------------------------


def gradient_type(kind: str) -> str:
    return {"R": "P", "P": "R"}.get(kind, kind)


def equal_everywhere(copies: Sequence[Array]) -> bool:
    return all(np.array_equal(copy, copies[0]) for copy in copies)


def inner(kind: str, xs: Sequence[Array], dxs: Sequence[Array]) -> float:
    each = [float(np.vdot(x, dx)) for x, dx in zip(xs, dxs, strict=True)]
    return each[0] if kind == "I" else sum(each)


# ---- the exercise ----------------------------------------------------------------------------------------------------


class Mismatch(Exception):
    """Types that do not go together."""


def join(types: Sequence[str], operation: str) -> str:
    found = set(types)
    if "I" in found and len(found) > 1:
        raise Mismatch(f"I with {max(found - {'I'})}")
    if "P" not in found:
        return "V" if "V" in found else found.pop()
    if operation == "add":
        fits = found == {"P"}
    else:
        fits = operation == "linear" and list(types).count("P") == 1 and "V" not in found
    if not fits:
        raise Mismatch(f"P in {operation}")
    return "P"


RULES = {
    ("", ""): ("RIVP", ""),
    ("", "all-reduce"): ("I", "R"),
    ("all-reduce", ""): ("PV", "I"),
    ("all-reduce", "all-reduce"): ("PV", "R"),
    ("all-gather", "reduce-scatter"): ("V", "R"),
    ("all-gather", ""): ("V", "I"),
    ("reduce-scatter", "all-gather"): ("PV", "V"),
    ("", "all-gather"): ("I", "V"),
    ("all-to-all", "all-to-all"): ("V", "V"),
}


def collective(forward: str, backward: str, operand: str) -> str:
    takes, makes = RULES.get((forward, backward), ("", ""))
    if operand not in takes:
        raise Mismatch(f"{operand} in {forward} and {backward}")
    return makes or operand


def types_of(program: Sequence[Line], given: Mapping[str, str]) -> dict[str, str]:
    known = dict(given)
    for result, operation, operands in program:
        of = [known[name] for name in operands]
        known[result] = join(of, operation) if isinstance(operation, str) else collective(*operation, *of)
    return {result: known[result] for result, *_ in program}


def first_alarm(program: Sequence[Line], given: Mapping[str, str]) -> str:
    for number, (result, *_) in enumerate(program):
        try:
            types_of(program[: number + 1], given)
        except Mismatch:
            return result
    return ""
