"""The grade of lesson 18: `pytest lessons/18_find_it`, or `make grade` for a table.

Two bugs or three of each kind are drawn by the grade's seed, from a larger set (`minidist/bugs/systems.py`). Each part
belongs to a check: it must alarm on the broken systems, and it must not alarm on healthy ones, so that a false alarm
costs the bugs that were found. An alarm without a run is none. Systems run in this process's own copies of the package.
A check meets each system in a process of its own, where there are only its facts, and what the runs that were asked for
have counted. What they cost is counted here.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from minidist import Stopped
from minidist.bugs.handle import DEAREST, MOST, Handle, why_not
from minidist.bugs.systems import System, Systems, draw
from minidist.classroom.grading.checks import gaps, is_right
from minidist.classroom.grading.parts import alone, part
from minidist.classroom.grading.submission import Case, Submission, lose
from minidist.classroom.grading.wires import MachineFault

KINDS = ("gradients", "norms", "sizes", "memory", "precision", "checkpoint")
ASKED = tuple(f"check_{kind}" for kind in KINDS)
HIDDEN = ("answers", "given", "minidist.nn.ops", "minidist.nn.tensor")  # without which nothing of minidist trains
BUDGET = 60  # ranks x steps of all checks on one system
ROUNDS = 40  # runs that a check may ask for, one after the other

found_before: "WeakKeyDictionary[Submission, dict[str, list[dict[str, Any]]]]" = WeakKeyDictionary()


@cache
def systems() -> Systems:
    """One for all parts, and all submissions of a class: what was counted once is known."""
    return Systems()


def systems_of(submission: Submission, kind: str) -> tuple[System, ...]:
    """The broken ones, their healthy twins, and one with hybrid sharding."""
    return draw(submission.seed)[kind]


def find(submission: Submission, kind: str) -> list[dict[str, Any]]:
    """What the check says of each system."""
    of_submission = found_before.setdefault(submission, {})
    if kind not in of_submission:
        of_submission[kind] = ask(submission, f"check_{kind}", systems_of(submission, kind))
    return of_submission[kind]


def ask(submission: Submission, function: str, of: Sequence[System]) -> list[dict[str, Any]]:
    """Let the check run until it asks for no more, on each system in a process of its own."""
    known: dict[int, list[Any]] = {i: [] for i in range(len(of))}
    said: dict[int, dict[str, Any]] = {}
    for _ in range(ROUNDS):
        asked: list[tuple[int, dict[str, Any]]] = []
        for i in [i for i in known if i not in said]:
            label, mine = f"a system with the axes {of[i].facts['axes']}", [of[i].facts, known[i]]
            [[outcome]] = submission.run("find", [Case(1, label, [mine], {"function": function})], [function])
            if isinstance(outcome.value, dict) and "asks" in outcome.value:
                asked.append((i, outcome.value["asks"]))
                known[i].append([outcome.value["asks"], None])
                check_asked(of[i], [request for request, _ in known[i]])
            else:
                price = cost([request for request, _ in known[i]])
                said[i] = {**outcome.value, "cost": price}
        if not asked:
            return [said[i] for i in known]
        for (i, request), counted in zip(asked, performed([(of[i], request) for i, request in asked]), strict=True):
            known[i][-1] = [request, counted]
    lose(f"{function} asks for ever new runs: after {ROUNDS} it has said nothing. A check must do the same every time.")


def cost(requests: Sequence[Mapping[str, Any]]) -> int:
    """Ranks x steps of different runs."""
    return sum(
        next(iter(one["layout"].values())) * one["steps"] for one in {repr(one): one for one in requests}.values()
    )


def check_asked(system: System, requests: Sequence[Any]) -> None:
    """That the runs are such as a handle asks for."""
    try:
        numbers = [*requests[-1]["layout"].values(), *(requests[-1][name] for name in MOST)]
        is_one = {type(number) for number in numbers} == {int} and not why_not(Handle(system.facts, dict), requests[-1])
        is_one = is_one and [*requests[-1]["layout"]] == [*system.facts["axes"]] and cost(requests) <= DEAREST
    except (KeyError, TypeError, AttributeError):
        is_one = False
    if not is_one:
        lose("The check asks for a run past its handle.")


def performed(wanted: Sequence[tuple[System, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    try:
        return systems().perform(wanted)
    except (Stopped, OSError) as error:
        raise MachineFault(str(error)) from None


def check_finds(submission: Submission, kind: str) -> None:
    """That it alarms on the broken systems alone."""
    verdicts = [*enumerate(zip(systems_of(submission, kind), find(submission, kind), strict=True))]
    where, call = f"(set {submission.seed}, drawn by the seed)", f"given.drawn({kind!r}, {submission.seed}"
    for number, (system, verdict) in verdicts:
        if verdict["alarm"] and not verdict["cost"]:
            lose(
                f"check_{kind}: an alarm without a run {where}, which says nothing about {words(system)}. It said"
                f" {verdict['said'] or 'nothing'!r}."
            )
        if verdict["alarm"] and not system.broken:
            lose(
                f"check_{kind}: a false alarm {where}, on {words(system)}. It said {verdict['said'] or 'nothing'!r}."
                f" In the notebook, run = {call}, {number}) is this healthy system."
            )
    for number, (system, verdict) in verdicts:
        if system.broken and not verdict["alarm"]:
            lose(
                f"check_{kind}: it did not find the bug {where} of {words(system)}; it cost {verdict['cost']}."
                f" In the notebook, run = {call}, {number}) is this broken system."
            )


def words(system: System) -> str:
    """What a check can know of a system."""
    facts = system.facts
    axes = ", ".join(f"{axis}: {' or '.join(map(str, sizes))}" for axis, sizes in facts["axes"].items())
    stage = f"stage {facts['zero']} of ZeRO among at most {facts['shards']} ranks, " if facts["zero"] else ""
    return f"a system with {axes}, {stage}{facts['precision']}, a batch of {facts['batch']}"


test_gradients = part(3, "check_gradients: wrong gradients on several ranks", check_finds, "gradients")
test_norms = part(3, "check_norms: a wrong norm of right gradients", check_finds, "norms")
test_sizes = part(3, "check_sizes: wrong at sizes that few tests have", check_finds, "sizes")
test_memory = part(3, "check_memory: ZeRO that does not divide", check_finds, "memory")
test_precision = part(3, "check_precision: wrong in two bytes alone", check_finds, "precision")
test_checkpoint = part(3, "check_checkpoint: wrong after a resume", check_finds, "checkpoint")


@pytest.mark.points(2, f"all checks together cost no more than {BUDGET}")
def test_budget(submission: Submission) -> None:
    """Of each check the dearest system counts. A check that finds nothing is cheap, so most must find their bugs."""
    costs = {kind: max(verdict["cost"] for verdict in find(submission, kind)) for kind in KINDS}
    right = sum(is_right(check_finds, submission, kind) for kind in KINDS)
    if right < len(KINDS) / 2:
        lose(f"The checks find {right} of {len(KINDS)} bugs; that it costs little is worth something from three on.")
    if sum(costs.values()) > BUDGET:
        said = ", ".join(f"check_{kind} {cost}" for kind, cost in costs.items())
        lose(f"The checks cost {sum(costs.values())} ranks x steps on one system, and {BUDGET} would do: {said}.")


# ---- the notebook's gaps, which earn no points: check("distance") runs these -----------------------------------------


def answers_of(submission: Submission, function: str, inputs: Mapping[str, Sequence[Any]]) -> list[Any]:
    """What the gap's function returned for each list of arguments. inputs: these lists, by what a case is about."""
    cases = [Case(1, f"{function}, {what}", [list(each)], {"function": function}) for what, each in inputs.items()]
    return alone(submission, "gap", function, cases)


def check_answers(submission: Submission, function: str, asked: Mapping[str, tuple[Sequence[Any], Any]]) -> None:
    """asked: by what a case is about, the arguments and the value that is wanted."""
    found = answers_of(submission, function, {what: arguments for what, (arguments, _) in asked.items()})
    for (what, (_, wanted)), value in zip(asked.items(), found, strict=True):
        if isinstance(wanted, float):
            is_right = isinstance(value, int | float) and math.isclose(value, wanted, rel_tol=1e-6, abs_tol=1e-12)
        else:
            is_right = type(value) is type(wanted) and value == wanted
        if not is_right:
            lose(f"{function}, {what}: it returned {value}; {wanted} is wanted.")


def check_distance(submission: Submission) -> None:
    y = submission.random.standard_normal(6)
    asked = {
        "of equal arrays": ([y, y], 0.0),
        "of x = 3y": ([3 * y, y], 2.0),
        "of x = 0": ([0 * y, y], 1.0),
        "of y = 0, and x = (3, 4)": ([np.array([3.0, 4.0]), np.zeros(2)], 5.0),
        "of (0, 1) and (1, 0)": ([np.array([0.0, 1.0]), np.array([1.0, 0.0])], math.sqrt(2)),
    }
    check_answers(submission, "distance", asked)


def check_first_difference(submission: Submission) -> None:
    right = [4.0, 3.0, 2.0, 1.0]
    asked = {
        "of equal losses": ([right, right, 1e-9], 0),
        "where the third differs": ([[4.0, 3.0, 2.1, 1.1], right, 1e-3], 3),
        "where the third is smaller": ([[4.0, 3.0, 1.9, 1.0], right, 1e-3], 3),
        "within the tolerance": ([[4.0, 3.0, 2.1, 1.1], right, 0.2], 0),
        "where the second is nan": ([[4.0, math.nan, 2.0, 1.0], right, 1e-3], 2),
        "of a difference of 0.01 at 4": ([[4.01, 3.0, 2.0, 1.0], right, 5e-3], 0),
    }
    check_answers(submission, "first_difference", asked)


def check_factor(submission: Submission) -> None:
    y = submission.random.standard_normal(6)
    one_off = 2 * y
    one_off[3] += 1e-3
    asked = {
        "of equal arrays": ([y, y], 1.0),
        "of x = 2y": ([2 * y, y], 2.0),
        "of x = -y/3": ([-y / 3, y], -1 / 3),
        "where an entry of y is 0": ([np.array([4.0, 0.0]), np.array([1.0, 0.0])], 4.0),
        "where one entry of 2y is off": ([one_off, y], 0.0),
    }
    check_answers(submission, "factor", asked)


def check_unequal_copies(submission: Submission) -> None:
    a, b = submission.random.standard_normal((2, 4))
    near = a + 1e-15
    asked = {
        "of equal copies": ([[{"a": a, "b": b}, {"a": a.copy(), "b": b}]], list[str]()),
        "where a differs on rank 2": ([[{"a": a, "b": b}, {"a": a, "b": b}, {"a": b, "b": b}]], ["a"]),
        "where a differs in its last bit": ([[{"a": a}, {"a": near}]], ["a"]),
        "where rank 1 does not hold a": ([[{"a": a, "b": b}, {"b": a}]], ["b"]),
    }
    check_answers(submission, "unequal_copies", asked)


GAPS = gaps(globals(), "distance", "first_difference", "factor", "unequal_copies")
PARTS = {f"check_{kind}": globals()[f"test_{kind}"] for kind in KINDS}
