"""The grade of lesson 19: `pytest lessons/19_types`, or `make grade` for a table.

Types and collectives are asked for one by one. Programs are drawn for each grade: blocks with columns, rows, norms and
a router, with and without sequence parallelism, under drawn names. Wrong ones have one mistake each. The part on wrong
programs asks for the line; there, and where types of a program are asked for, the chapter's rules take the place of the
student's join and collective. A false alarm costs a part of its own, which asks for an alarm on some wrong program:
what never alarms earns nothing.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist import spmd_types
from minidist.classroom.grading.checks import gaps
from minidist.classroom.grading.parts import part
from minidist.classroom.grading.submission import Case, Submission, lose

ASKED = ("join", "collective", "types_of", "first_alarm")
HIDDEN = ("answers", "given", "minidist.spmd_types", "minidist.ty.watch")

Program = list[tuple[str, Any, list[str]]]
KINDS = "RIVP"
CALLS = ("", "all-reduce", "all-gather", "reduce-scatter", "all-to-all")
F, G = ("", "all-reduce"), ("all-reduce", "")
NAMES = ("u", "p", "q", "s", "t", "k", "m", "n", "c", "d", "e", "o", "v", "z", "l", "j")
MISTAKES = ("f", "g", "g twice", "summed again", "gate", "own gradient")


def join_of(types: Sequence[str], operation: str) -> str:
    try:
        return spmd_types.join(types, operation)
    except spmd_types.Mismatch:
        return "Mismatch"


def collective_of(forward: str, backward: str, operand: str) -> str:
    if (forward, backward) == ("", ""):
        return operand
    try:
        return spmd_types.through(forward, backward, operand)
    except spmd_types.Mismatch:
        return "Mismatch"


def types_in(program: Program, given: dict[str, str]) -> dict[str, str]:
    """The types of all results; "Mismatch" where they do not go together, and then no more."""
    known, found = dict(given), {}
    for result, operation, operands in program:
        of = [known[name] for name in operands]
        found[result] = known[result] = (
            join_of(of, operation) if isinstance(operation, str) else collective_of(*operation, *of)
        )
        if found[result] == "Mismatch":
            break
    return found


# ---- programs --------------------------------------------------------------------------------------------------------


def draw(random: np.random.Generator, sequence: bool, mistake: str = "") -> tuple[Program, dict[str, str]]:
    """A block of tensor parallelism, or more of them: two halves, and in the second perhaps a router; with a mistake,
    if it can have this one. sequence: positions are cut, too."""
    before, after = (("all-gather", "reduce-scatter"), ("reduce-scatter", "all-gather")) if sequence else (F, G)
    stream, norm = ("V", "R") if sequence else ("I", "I")
    given, program = {"x": stream}, list[Any]()
    x, halves = "x", int(random.integers(2, 5))
    wrong = int(random.integers(halves))
    for half in range(halves):
        here = mistake if half == wrong else ""
        given |= {f"norm{half}": norm, f"columns{half}": "V", f"rows{half}": "V", f"bias{half}": norm}
        if here == "summed again":
            given[f"norm{half}"] = "R"
        if here == "own gradient":
            given[f"norm{half}"] = "V" if not sequence else "I"
        made = [("normed", "linear", [x, f"norm{half}"])]
        last = "normed"
        if here != "f":
            made.append(("whole", before, [last]))
            last = "whole"
        made.append(("columns", "linear", [last, f"columns{half}"]))
        made.append(("bent", str(random.choice(["gelu", "attention", "swiglu"])), ["columns"]))
        made.append(("product", "linear", ["bent", f"rows{half}"]))
        last = "product"
        for _ in range({"g": 0, "g twice": 2}.get(here, 1)):
            made.append((f"sum{len(made)}", after, [last]))
            last = made[-1][0]
        made.append(("biased", "add", [last, f"bias{half}"]))
        if not sequence and (here == "gate" or random.random() < 0.4):
            given[f"router{half}"] = "I"
            made.append(("gates", "linear", ["normed", f"router{half}"]))
            gate = "gates"
            if here != "gate":
                made.append(("gates of parts", F, ["gates"]))
                gate = "gates of parts"
            made.append(("chosen", "linear", [gate, f"columns{half}"]))
            made.append(("mixed", "norm", ["chosen"]))
            made.append(("all mixed", after, ["mixed"]))
            made.append(("both", "add", ["biased", "all mixed"]))
        out = made[-1][0]
        made.append(("stream", "add", [x, out]))
        own = {name for name, *_ in made}
        program += [
            (f"{name} {half}", operation, [f"{one} {half}" if one in own else one for one in of])
            for name, operation, of in made
        ]
        x = f"stream {half}"
    return renamed(program, given, random)


def renamed(program: Program, given: dict[str, str], random: np.random.Generator) -> tuple[Program, dict[str, str]]:
    """The same program under other names, which say nothing."""
    every = [*given, *(result for result, *_ in program)]
    numbers = random.permutation(len(every))
    new = {
        name: f"{NAMES[number % len(NAMES)]}{number // len(NAMES)}" for name, number in zip(every, numbers, strict=True)
    }
    lines = [(new[result], operation, [new[name] for name in of]) for result, operation, of in program]
    return lines, {new[name]: kind for name, kind in given.items()}


def wrong_programs(random: np.random.Generator) -> list[tuple[Program, dict[str, str]]]:
    """One for each mistake that a kind of block can have, and a few more."""
    kinds = [(mistake, sequence) for mistake in MISTAKES for sequence in (False, True)]
    drawn = [draw(random, sequence, mistake) for mistake, sequence in [*kinds, *kinds]]
    return [each for each in drawn if "Mismatch" in types_in(*each).values()]


def right_programs(random: np.random.Generator) -> list[tuple[Program, dict[str, str]]]:
    return [draw(random, bool(number % 2)) for number in range(8)]


# ---- parts -----------------------------------------------------------------------------------------------------------


def answers(submission: Submission, function: str, asked: Sequence[Sequence[Any]]) -> list[Any]:
    case = Case(1, f"{function}, {len(asked)} times", [[list(each) for each in asked]], {"function": function})
    [[outcome]] = submission.run("call", [case], [function])
    return list(outcome.value)


def compare(submission: Submission, function: str, asked: Sequence[tuple[Sequence[Any], Any]]) -> None:
    for (arguments, wanted), found in zip(asked, answers(submission, function, [one for one, _ in asked]), strict=True):
        if not same(found, wanted):
            said = "raised Mismatch" if found == "Mismatch" else f"returned {found!r}"
            asks = "Mismatch" if wanted == "Mismatch" else repr(wanted)
            lose(f"{function}({', '.join(map(repr, arguments))}) {said}; {asks} is wanted.")


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return isinstance(found, int | float) and math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)
    return type(found) is type(wanted) and bool(found == wanted)


def check_join(submission: Submission, kinds: str) -> None:
    """All pairs and threes: with a P among the operands, or without any."""
    operands = [*itertools.product(KINDS, repeat=2), *itertools.product(KINDS, repeat=3)]
    chosen = [each for each in operands if ("P" in each) == ("P" in kinds)]
    submission.random.shuffle(chosen)
    asked = [
        ([list(each), operation], join_of(each, operation))
        for each in chosen
        for operation in ("add", "linear", "gelu")
    ]
    compare(submission, "join", asked)


def check_collective(submission: Submission, right: bool) -> None:
    """Pairs that have a type, with each operand; or pairs that have none."""
    pairs = [
        pair for pair in itertools.product(CALLS, repeat=2) if (pair in spmd_types.RULES or pair == ("", "")) == right
    ]
    asked = [([*pair, kind], collective_of(*pair, kind)) for pair in pairs for kind in KINDS]
    compare(submission, "collective", asked)


def check_types(submission: Submission) -> None:
    drawn = right_programs(submission.random)
    found = answers(submission, "types_of", drawn)
    for (program, given), types in zip(drawn, found, strict=True):
        wanted = types_in(program, given)
        if not isinstance(types, dict):
            lose(f"types_of returned {types!r} for a program that is right; a dict of {len(wanted)} types is wanted.")
        for result, kind in wanted.items():
            if types.get(result) != kind:
                lose(f"types_of: {line_of(program, result, given, wanted)} is {kind}, not {types.get(result)}.")


def line_of(program: Program, result: str, given: dict[str, str], types: dict[str, str]) -> str:
    _, operation, operands = next(line for line in program if line[0] == result)
    known = given | types
    return f"{operation} of {', '.join(f'{name} ({known[name]})' for name in operands)}"


def check_alarms(submission: Submission) -> None:
    drawn = wrong_programs(submission.random)
    for (program, given), found in zip(drawn, answers(submission, "first_alarm", drawn), strict=True):
        types = types_in(program, given)
        wanted = next(name for name, kind in types.items() if kind == "Mismatch")
        if not same(found, wanted):
            said = "said nothing" if same(found, "") else f"returned {found!r}"
            lose(f"first_alarm {said}: the first line that is wrong is {line_of(program, wanted, given, types)}.")


def check_silence(submission: Submission) -> None:
    wrong, right = wrong_programs(submission.random), right_programs(submission.random)
    if not any(isinstance(said, str) and said for said in answers(submission, "first_alarm", wrong)):
        lose("first_alarm never alarms, so its silence on right programs says nothing.")
    for (program, given), said in zip(right, answers(submission, "first_alarm", right), strict=True):
        if not same(said, ""):
            known = isinstance(said, str) and said in {result for result, *_ in program}
            place = line_of(program, said, given, types_in(program, given)) if known else said
            lose(f"first_alarm: a false alarm on a program that is right, at {place}.")


test_join = part(3, "join: R, I and V", check_join, "RIV")
test_join_partial = part(3, "join: P", check_join, "P")
test_collective = part(4, "collective: pairs that have a type", check_collective, True)
test_collective_wrong = part(1, "collective: pairs that have none", check_collective, False)
test_types = part(3, "types_of: all types of a right program", check_types)
test_alarms = part(4, "first_alarm: the line of each mistake", check_alarms)
test_silence = part(2, "first_alarm: no alarm without a bug", check_silence)


# ---- the notebook's gaps, which earn no points -----------------------------------------------------------------------


def check_gradient_type(submission: Submission) -> None:
    compare(submission, "gradient_type", [([kind], spmd_types.GRADIENT[kind]) for kind in KINDS])


def check_equal_everywhere(submission: Submission) -> None:
    a, b = submission.random.standard_normal((2, 4))
    asked = [([[a, a.copy()]], True), ([[a, a, b]], False), ([[a, a + 1e-15]], False), ([[a]], True)]
    compare(submission, "equal_everywhere", asked)


def check_inner(submission: Submission) -> None:
    x, y = submission.random.integers(-9, 9, (2, 3, 4)).astype(float)
    total = float(np.vdot(x, y))
    asked = [(["V", list(x), list(y)], total), (["P", list(x), list(y)], total), (["R", list(x), list(y)], total)]
    compare(submission, "inner", [*asked, (["I", [x[0]] * 3, [y[0]] * 3], float(np.vdot(x[0], y[0])))])


GAPS = gaps(globals(), "gradient_type", "equal_everywhere", "inner")
PARTS = {"join": test_join, "collective": test_collective, "types_of": test_types, "first_alarm": test_alarms}
