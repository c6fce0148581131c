"""The grade of lesson 06: `pytest lessons/06_mixed_precision`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew, on ranks without the package's own precision;
the lesson's own functions stand in for those that it does not ask for. Inputs are drawn afresh. A part earns its points
or not; none needs a later one, and one mistake costs one part:

- The norm is compared with the truth at scale 1 and for numbers near 1; what it does with large and small numbers, and
  with the scale, is compared with what the function itself gives for those.
- Of `update` the parameters are compared with the master copy that it has made, whatever that is.
- Of `next_scale` each part has a course of its own that needs no other rule than the one that it is about.
- Of `apply_gradients` clipping is compared with the same step without clipping.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import an_array, gaps, parts_by_function
from minidist.classroom.grading.meaning import check_meaning, check_timing
from minidist.classroom.grading.parts import by_case, by_rank, describe, large, named, on, part, ranks, why
from minidist.classroom.grading.submission import STRICT, Case, Lost, Outcome, Submission, lose

Array = np.ndarray
ASKED = ("narrow", "widen", "update", "gradient_norm", "next_scale", "apply_gradients")
HIDDEN = ("answers", "given", "minidist.nn.precision")  # what a submission cannot import, nor what is built on it
TINY, LARGE = 2.0**-12, 256.0
FLOAT32 = 1e-5  # relative: what arithmetic in float32 leaves, in whatever order


def one(function: str, words: str, value: Any, **arguments: Any) -> Case:
    """One call, on a rank that is alone."""
    return Case(1, f"{function} {words}".strip(), [value], {"function": function, **arguments})


def number_of(each: Case, rank: int, found: Any) -> float:
    if not isinstance(found, np.ndarray):
        lose(f"{on(each, rank)} returned {describe(found)}, not a number.")
    return float(found[0])


# ---- between float32 and float16 -------------------------------------------------------------------------------------


def drawn(submission: Submission, size: int = 6) -> Array:
    """Numbers between 0.5 and 2, of both signs, float32."""
    random = submission.random
    return (random.uniform(0.5, 2, size) * random.choice([-1, 1], size)).astype(np.float32)


@pytest.mark.points(1, "narrow: times the scale, then float16")
def test_narrow(submission: Submission) -> None:
    plain, tiny = drawn(submission), drawn(submission) * np.float32(2.0**-27)
    cases = [
        one("narrow", "of numbers near 1, scale 8", plain, scale=8.0),
        one("narrow", "of numbers near 2⁻²⁷, scale 1024", tiny, scale=1024.0),
        one("narrow", "of numbers near 1, scale 131072", plain * np.float32(0.01), scale=131072.0),
        one("narrow", "of numbers that are too large for it, scale 2²⁰", plain, scale=2.0**20),
        one("narrow", "of many numbers", drawn(submission, large(submission)), scale=8.0),
    ]
    for each, [outcome] in by_case(submission, "convert", cases, ["narrow"]):
        value, scale = each.inputs[0], each.arguments["scale"]
        with np.errstate(over="ignore"):
            expected = (value.astype(np.float64) * scale).astype(np.float16)
        found = an_array(each, outcome.value["returned"], "it", expected)
        if outcome.value["changed"]:
            lose(f"On {each.label}: the gradient that it was handed was changed. Make a new array.")
        if np.array_equal(found, expected):
            continue
        at = int(np.flatnonzero(found != expected)[0])
        reasons = {
            " It was zero before it was multiplied: multiply first, then round.": not found.any(),
            " That is without the scale.": np.array_equal(found, value.astype(np.float16)),
            " An overflow must be seen, so that the step is skipped: it is infinite.": np.isinf(expected).any(),
            f" The scale {scale:g} itself is no float16 number: multiply in float32.": not np.isfinite(found).all(),
        }
        right = f"{value[at]:.4g} · {scale:g} = {expected[at]:g}"
        lose(f"On {each.label}: [{at}] is {found[at]:g}, where {right}.{why(reasons)}")


@pytest.mark.points(1, "widen: float32, then without the scale")
def test_widen(submission: Submission) -> None:
    plain = drawn(submission).astype(np.float16)
    cases = [
        one("widen", "of numbers near 1, scale 8", plain, scale=8.0),
        one("widen", "of numbers near 2⁻²⁰, scale 1024", plain * np.float16(2.0**-10), scale=1024.0),
        one("widen", "of numbers near 1, scale 131072", plain, scale=131072.0),
        one("widen", "of many numbers", drawn(submission, large(submission)).astype(np.float16), scale=8.0),
    ]
    for each, [outcome] in by_case(submission, "convert", cases, ["widen"]):
        value, scale = each.inputs[0], each.arguments["scale"]
        expected = (value.astype(np.float64) / scale).astype(np.float32)
        found = an_array(each, outcome.value["returned"], "it", expected)
        if outcome.value["changed"]:
            lose(f"On {each.label}: what it was handed was changed. Make a new array.")
        if np.allclose(found, expected, rtol=1e-6, atol=0):
            continue
        at = int(np.flatnonzero(~np.isclose(found, expected, rtol=1e-6, atol=0))[0])
        narrow = not found.any() or np.allclose(found, expected, rtol=0.2, atol=0)
        reasons = {
            " That is with the scale.": np.array_equal(found, value.astype(np.float32)),
            " It was divided as float16, and rounded once more: make it float32 first.": narrow,
        }
        right = f"{value[at]:.4g} / {scale:g} = {expected[at]:g}"
        lose(f"On {each.label}: [{at}] is {found[at]:g}, where {right}.{why(reasons)}")


# ---- update ----------------------------------------------------------------------------------------------------------


def update_cases(submission: Submission, function: str) -> list[Case]:
    """(the start, the change, how often): a change that float16 sees, and one that it does not."""
    start = np.abs(drawn(submission)).astype(np.float16).astype(np.float32)
    change = drawn(submission) / 8
    small = (2.0**-13 * start).astype(np.float32)
    many = np.abs(drawn(submission, large(submission))).astype(np.float16).astype(np.float32)
    return [
        one(function, "of one change", [start, change], times=1),
        one(function, "of 64 changes of 2⁻¹³ of the weight each", [start, small], times=64),
        one(function, f"of a change of {many.size} weights", [many, many / 8], times=1),
    ]


def check_master(submission: Submission, function: str, asked: Sequence[str]) -> None:
    cases = update_cases(submission, function)
    for each, [outcome] in by_case(submission, "updates", cases, asked):
        start, change = each.inputs[0]
        expected = start + each.arguments["times"] * change
        found = outcome.value["master"]
        if np.allclose(found, expected, rtol=FLOAT32, atol=0):
            continue
        at = int(np.flatnonzero(~np.isclose(found, expected, rtol=FLOAT32, atol=0))[0])
        unmoved, backward = np.array_equal(found, start), start - each.arguments["times"] * change
        said = why({
            " It has not moved at all: what is added to what?": unmoved and each is cases[1],
            " Nothing has changed in it. Work in place: master += change.": unmoved,
            " The change is to be added.": np.allclose(found, backward, rtol=FLOAT32),
            " It is near: was it rounded to float16 on the way?": np.allclose(found, expected, rtol=0.01),
        })  # fmt: skip
        lose(f"On {each.label}: the master copy is {found[at]:.8g} at [{at}]; {expected[at]:.8g} is wanted.{said}")


def check_param(submission: Submission, function: str, asked: Sequence[str]) -> None:
    """The parameters are the function's own master copy, rounded."""
    cases = update_cases(submission, function)
    for each, [outcome] in by_case(submission, "updates", cases, asked):
        param, master = outcome.value["param"], outcome.value["master"]
        start = each.inputs[0][0]
        if each is cases[0] and np.array_equal(param, start.astype(np.float16)):
            lose(
                f"On {each.label}: the parameters are as they were. Write into the array that is there:"
                " param[...] = ..."
            )
        if not np.array_equal(param, master.astype(np.float16)):
            at = int(np.flatnonzero(param != master.astype(np.float16))[0])
            lose(
                f"On {each.label}: the parameter at [{at}] is {param[at]:.6g}, where the master copy is"
                f" {master[at]:.8g}, rounded {np.float16(master[at]):.6g}. Which of the two is the change added to?"
            )


test_update_master = part(1, "update: the master copy, where small changes add up", check_master, "update", ["update"])
test_update_param = part(1, "update: the parameters are the master copy, rounded", check_param, "update", ["update"])


# ---- the norm --------------------------------------------------------------------------------------------------------


def norm_case(submission: Submission, n: int, words: str = "", size: int = 4) -> Case:
    """Two pieces on each rank, of different sizes."""
    inputs = [[drawn(submission, size).astype(np.float16) for size in (size + rank, 3)] for rank in range(n)]
    return Case(n, f"{ranks(n)}, gradient_norm{words}", inputs, {"scale": 1.0})


def true_norm(each: Case) -> float:
    return math.sqrt(sum(float(np.sum(grad.astype(np.float64) ** 2)) for mine in each.inputs for grad in mine))


def own_norm(each: Case, rank: int) -> float:
    return math.sqrt(sum(float(np.sum(grad.astype(np.float64) ** 2)) for grad in each.inputs[rank]))


def is_own(each: Case, outcomes: Sequence[Outcome]) -> bool:
    """Whether each rank returns the norm of its own pieces and sends nothing. The part on the norm is lost for that; no
    other part is, on what is sent."""
    found = [outcome.value["returned"] for outcome in outcomes]
    return not any(outcome.messages for outcome in outcomes) and all(
        isinstance(value, np.ndarray) and math.isclose(value[0], own_norm(each, rank), rel_tol=2e-3)
        for rank, value in enumerate(found)
    )


def check_sent(each: Case, outcomes: Sequence[Outcome]) -> None:
    """Numbers came back that are not 0, and the ranks have spoken to one another."""
    for rank, outcome in enumerate(outcomes):
        if not number_of(each, rank, outcome.value["returned"]):
            lose(f"{on(each, rank)} returned 0, and no number in any rank's grad is 0.")
    if not any(outcome.messages for outcome in outcomes):
        lose(f"On {each.label}: no message was sent. How does a rank know of the others' pieces?")


@pytest.mark.points(2, "gradient_norm: of all pieces of all ranks, on every rank")
def test_norm(submission: Submission) -> None:
    cases = [norm_case(submission, 4), norm_case(submission, 2)]
    cases.append(norm_case(submission, 2, " of many numbers", large(submission, most=30_000)))
    for each, outcomes in by_case(submission, "norm", cases, ["gradient_norm"]):
        expected = true_norm(each)
        for rank, outcome in enumerate(outcomes):
            found, near = number_of(each, rank, outcome.value["returned"]), partial(math.isclose, rel_tol=2e-3)
            wrong = {
                "That is the norm of its own pieces.": own_norm(each, rank),
                "That is the sum of squares: the root is missing.": expected**2,
                "That is a mean over the ranks: sum.": expected / each.n,
            }
            if not near(found, expected):
                mean = " That is a mean over the ranks: sum." * near(found * math.sqrt(each.n), expected)
                said = named(found, wrong, near, before=" ") or mean
                lose(f"{on(each, rank)} returned {found:.6g}; {expected:.6g} is wanted.{said}")


@pytest.mark.points(1, "gradient_norm: squares wider than float16")
def test_norm_wide(submission: Submission) -> None:
    """k times the numbers, k times the norm; or k² times, where the root is missing. Of squares in float32 and
    in float64 both are true."""
    plain = norm_case(submission, 1, " of numbers near 1")
    cases = [plain]
    for factor, words in ((LARGE * 4, "1024"), (TINY, "2⁻¹²")):
        inputs = [[grad * np.float16(factor) for grad in plain.inputs[0]]]
        cases.append(Case(1, f"1 rank, gradient_norm of numbers near {words}", inputs, plain.arguments))
    [[first], *others] = submission.run("norm", cases, ["gradient_norm"])
    known = number_of(plain, 0, first.value["returned"])
    if not known or not math.isfinite(known):
        lose(f"On {plain.label}: it is {known:g}.")
    for each, [outcome], factor in zip(cases[1:], others, (LARGE * 4, TINY), strict=True):
        ratio = number_of(each, 0, outcome.value["returned"]) / known
        if not any(math.isclose(ratio, factor**power, rel_tol=2e-3) for power in (1, 2)):
            lose(
                f"On {each.label}: it is {ratio * known:.6g}, where numbers near 1 gave {known:.6g}: {factor:g} times"
                " that is wanted. In which dtype are the squares?"
            )


@pytest.mark.points(1, "gradient_norm: without the scale")
def test_norm_scale(submission: Submission) -> None:
    plain = norm_case(submission, 1, ", scale 1")
    scaled = Case(1, "1 rank, gradient_norm, scale 512", plain.inputs, {"scale": 512.0})
    [first], [second] = submission.run("norm", [plain, scaled], ["gradient_norm"])
    one_, other = (
        number_of(each, 0, outcome.value["returned"]) for each, outcome in ((plain, first), (scaled, second))
    )
    if not one_ or not math.isclose(other * 512, one_, rel_tol=1e-6):
        wrong = {
            "It is the norm with the scale.": 1.0,
            "It is divided by the scale twice.": 512.0**2,
            "The sum of squares was divided by the scale: divide the norm.": math.sqrt(512.0),
        }
        said = named(one_ / other, wrong, partial(math.isclose, rel_tol=1e-6), before=" ") if other else ""
        lose(f"On {scaled.label}: it is {other:.6g}; at scale 1 it was {one_:.6g}, and a 512th is wanted.{said}")


@pytest.mark.points(1, "gradient_norm: one rank's overflow is everyone's")
def test_norm_overflow(submission: Submission) -> None:
    cases = [norm_case(submission, 4, ", all numbers finite")]
    for bad, where in ((np.inf, 2), (-np.inf, 0), (np.nan, 1)):
        each = norm_case(submission, 4, f", {bad:g} on rank {where}")
        each.inputs[where][0][1] = bad
        cases.append(each)
    runs = submission.run("norm", cases, ["gradient_norm"])
    alone = is_own(cases[0], runs[0])
    for each, outcomes in zip(cases, runs, strict=True):
        for rank, outcome in enumerate(outcomes):
            found, mine = number_of(each, rank, outcome.value["returned"]), np.concatenate(each.inputs[rank])
            if math.isfinite(found) != (np.isfinite(mine).all() if alone else each is cases[0]):
                wanted = "a finite number" if each is cases[0] else "inf or nan on every rank, or one skips alone,"
                lose(f"{on(each, rank)} returned {found:g}; {wanted} is wanted.")


@pytest.mark.points(1, "gradient_norm: nothing depends on who sends first, and every message means something")
def test_timing(submission: Submission) -> None:
    each = norm_case(submission, 3)
    try:
        if is_own(each, submission.attempt("norm", [each], ["gradient_norm"])[0]):
            return
    except Lost:
        pass  # the next run says why
    check_timing(submission, "norm", {"gradient_norm": [norm_case(submission, n) for n in (4, 3)]}, check_sent)
    check_meaning(submission, "norm", {"gradient_norm": norm_case(submission, 2)}, check_sent)


# ---- the scale -------------------------------------------------------------------------------------------------------


def course(words: str, start: tuple[float, int, int], overflows: Sequence[bool], **options: Any) -> Case:
    """Some steps of next_scale, from a state on."""
    arguments = {"start": list(start), "options": options}
    return Case(1, f"next_scale, {words}", [list(overflows)], arguments)


def states_of(each: Case, outcome: Outcome) -> list[Any]:
    """What came after each step: (scale, forgiven, clean), or "OverflowError"."""
    states = outcome.value["states"]
    for number, state in enumerate(states):
        if isinstance(state, str) and state == "OverflowError":
            continue
        if not isinstance(state, list) or len(state) != 3 or any(isinstance(part, str) for part in state):
            lose(f"On {each.label}: step {number + 1} returned {describe(state)}, not a Scale of three numbers.")
    return states


def check_course(submission: Submission, each: Case, wanted: Sequence[Any]) -> None:
    """The scale after each step, or "OverflowError"."""
    [[outcome]] = submission.run("scales", [each], ["next_scale"])
    states = states_of(each, outcome)
    for number, expected in enumerate(wanted):
        overflow = "an overflow" if each.inputs[0][number] else "no overflow"
        place = f"On {each.label}, after step {number + 1}, {overflow}"
        state = states[number]
        found = state if isinstance(state, str) else state[0]
        if found != expected:
            said = [x if isinstance(x, str) else f"{x:g}" for x in (found, expected)]
            lose(f"{place}: the scale is {said[0]}; {said[1]} is wanted.")
        if found == "OverflowError":
            return


@pytest.mark.points(1, "next_scale: an overflow is forgiven, or halves")
def test_scale_halves(submission: Submission) -> None:
    each = course("2 to be forgiven", (4096.0, 2, 3), [True] * 4)
    check_course(submission, each, [4096, 4096, 2048, 1024])
    each = course("at the minimum, 1 to be forgiven", (1.0, 1, 0), [True])
    check_course(submission, each, [1])


@pytest.mark.points(1, "next_scale: never below the minimum")
def test_scale_minimum(submission: Submission) -> None:
    each = course("minimum 3, nothing to be forgiven", (8.0, 0, 0), [True] * 4, minimum=3.0)
    check_course(submission, each, [4, 3, "OverflowError"])


@pytest.mark.points(1, "next_scale: doubles after a window without overflow")
def test_scale_doubles(submission: Submission) -> None:
    each = course("window 3", (16.0, 0, 0), [False] * 8, window=3)
    check_course(submission, each, [16, 16, 16, 32, 32, 32, 64, 64])
    # An overflow begins the window anew, whatever it has done to the scale.
    each = course("window 3, with an overflow in between", (16.0, 1, 2), [True, *[False] * 4], window=3)
    [[outcome]] = submission.run("scales", [each], ["next_scale"])
    states = states_of(each, outcome)
    for number, factor in enumerate((1, 1, 1, 1, 2)):
        found = 0.0 if isinstance(states[number], str) else states[number][0] / states[0][0]
        if found != factor:
            lose(
                f"On {each.label}, after step {number + 1}: the scale is {found:g} times what it was after the"
                f" overflow; {factor} times is wanted."
            )


@pytest.mark.points(1, "next_scale: what is forgiven begins afresh when it doubles")
def test_scale_afresh(submission: Submission) -> None:
    words = "window 2, hysteresis 4, nothing to be forgiven"
    each = course(words, (16.0, 0, 0), [False] * 4, window=2, hysteresis=4)
    [[outcome]] = submission.run("scales", [each], ["next_scale"])
    for number, state in enumerate(states_of(each, outcome)):
        scale, forgiven, _ = state
        if forgiven != (3 if scale > 16 else 0):
            when = "has doubled" if scale > 16 else "has not doubled yet"
            wanted = 3 if scale > 16 else 0
            lose(
                f"On {each.label}, after step {number + 1}: the scale {when}, and forgiven is {forgiven:g}; {wanted} is"
                " wanted."
            )
        if scale > 16:
            return
    lose(f"On {each.label}: the scale does not double in 4 steps without overflow.")


# ---- the step --------------------------------------------------------------------------------------------------------

STATE = (1024.0, 0, 1)  # an overflow halves it


def step_case(submission: Submission, words: str, clip: float = 0.0, bad: float | None = None, n: int = 2) -> Case:
    """Ranks with two pieces each; with an overflow on the last."""
    inputs = []
    for rank in range(n):
        mine = []
        for size in (5 + rank, 3):
            grad = (drawn(submission, size) * np.float32(256)).astype(np.float16)
            mine.append([drawn(submission, size), grad])
        inputs.append(mine)
    if bad is not None:
        inputs[-1][0][1][2] = bad
    return Case(n, f"{ranks(n)}, apply_gradients{words}", inputs, {"state": list(STATE), "clip": clip})


def run_steps(submission: Submission, cases: Sequence[Case]) -> list[list[Outcome]]:
    return submission.run("step", cases, ["apply_gradients"])


def moved(each: Case, outcomes: Sequence[Outcome]) -> list[list[Array]]:
    """By how much each rank's master copies have changed."""
    return [
        [after - start for after, (start, _) in zip(outcome.value["master"], mine, strict=True)]
        for outcome, mine in zip(outcomes, each.inputs, strict=True)
    ]


@pytest.mark.points(1, "apply_gradients: the update, without the scale")
def test_step(submission: Submission) -> None:
    each = step_case(submission, ", no overflow, no clipping")
    [outcomes] = run_steps(submission, [each])
    for rank, outcome in enumerate(outcomes):
        if outcome.value["called"] != [0, 1]:
            lose(
                f"{on(each, rank)} has called the optimizer for the pieces {outcome.value['called']}; once"
                " for each piece, 0 and 1, is wanted."
            )
        for number, (start, grad) in enumerate(each.inputs[rank]):
            expected = start - np.float32(0.5) * (grad.astype(np.float32) / np.float32(STATE[0]))
            found, param = outcome.value["master"][number], outcome.value["param"][number]
            place = f"On {each.label}: of piece {number} on rank {rank}"
            if not np.allclose(found, expected, rtol=0, atol=1e-5):
                ratio = float(np.median((found - start) / (expected - start)))
                said = f" It has moved {ratio:.4g} times as far as it should." if np.isfinite(ratio) else ""
                said += " Is the scale undone, once?" if abs(math.log2(abs(ratio) or 1)) > 5 else ""
                lose(f"{place} the master copy is {found[0]:.6g} at [0]; {expected[0]:.6g} is wanted.{said}")
            if not np.array_equal(param, found.astype(np.float16)):
                lose(f"{place} the parameters are not its master copy, rounded.")


@pytest.mark.points(1, "apply_gradients: clips by the true norm")
def test_step_clip(submission: Submission) -> None:
    plain = step_case(submission, ", no clipping")
    gradients = [grad.astype(np.float64) / STATE[0] for mine in plain.inputs for _, grad in mine]
    norm = math.sqrt(sum(float(np.sum(grad**2)) for grad in gradients))
    limits = (norm / 4, norm * 4)
    cases = [plain]
    for limit in limits:
        words = f", a norm of {norm:.4g}, clip = {limit:.4g}"
        cases.append(Case(2, f"2 ranks, apply_gradients{words}", plain.inputs, {"state": list(STATE), "clip": limit}))
    runs = run_steps(submission, cases)
    free = moved(plain, runs[0])
    if not all(np.any(change) and np.isfinite(change).all() for mine in free for change in mine):
        lose(f"On {plain.label}: nothing has moved, or not by finite numbers: there is nothing to compare with.")
    for each, outcomes, limit in zip(cases[1:], runs[1:], limits, strict=True):
        wanted = min(1.0, limit / norm)
        for rank, changes in enumerate(moved(each, outcomes)):
            for number, change in enumerate(changes):
                ratio = float(np.sum(change * free[rank][number]) / np.sum(free[rank][number] ** 2))
                near = partial(math.isclose, rel_tol=5e-3)
                if not near(ratio, wanted):
                    scaled = near(ratio, limit / norm / STATE[0])
                    said = why({
                        " The limit was compared with the norm of the scaled gradient.": scaled,
                        " Nothing was clipped.": ratio == 1,
                        " A gradient that is shorter stays as it is.": near(ratio, limit / norm),
                    })  # fmt: skip
                    lose(
                        f"On {each.label}: piece {number} on rank {rank} moves {ratio:.4g} times as far as without"
                        f" clipping; {wanted:.4g} is wanted.{said}"
                    )


@pytest.mark.points(2, "apply_gradients: all ranks skip, or none")
def test_step_skip(submission: Submission) -> None:
    fine = step_case(submission, ", no overflow")
    cases = [step_case(submission, f", {bad:g} on rank 1", clip, bad) for bad, clip in ((np.inf, 0.0), (np.nan, 1.0))]
    usual, *runs = run_steps(submission, [fine, *cases])
    if not any(np.any(change) for mine in moved(fine, usual) for change in mine):
        lose(f"On {fine.label}: nothing has moved. A step without overflow is not to be skipped.")
    for each, outcomes in zip(cases, runs, strict=True):
        for rank, outcome in enumerate(outcomes):
            alone = " The overflow is on the other rank; who tells it?" if rank == 0 else ""
            for number, (start, _) in enumerate(each.inputs[rank]):
                for name, array in (("master", start), ("param", start.astype(np.float16))):
                    found = outcome.value[name][number]
                    if not np.array_equal(found, array):
                        at = int(np.flatnonzero(found != array)[0])
                        lose(
                            f"{on(each, rank)} has changed {name} of piece {number}, at [{at}] to"
                            f" {found[at]:g}. The step is to be skipped.{alone}"
                        )
            if outcome.value["called"]:
                lose(
                    f"{on(each, rank)} has called the optimizer, which remembers what it is handed: its"
                    f" moments are spoiled.{alone}"
                )


@pytest.mark.points(1, "apply_gradients: the next state of the scale")
def test_step_scale(submission: Submission) -> None:
    fine = step_case(submission, ", no overflow", n=1)
    bad = step_case(submission, ", inf in a gradient", bad=np.inf, n=1)
    runs = run_steps(submission, [fine, bad])
    for each, outcomes, wanted in zip((fine, bad), runs, ([1024.0, 0, 2], [512.0, 0, 0]), strict=True):
        for rank, outcome in enumerate(outcomes):
            found = outcome.value["state"]
            if not isinstance(found, list) or found != wanted:
                said = found if isinstance(found, list) else describe(found)
                lose(f"{on(each, rank)} returned {said}; next_scale gives {wanted} here.")


@pytest.mark.points(1, "apply_gradients: gradients are zero afterwards")
def test_step_zero(submission: Submission) -> None:
    cases = [step_case(submission, ", no overflow"), step_case(submission, ", inf on rank 1", bad=np.inf)]
    for each, outcomes in zip(cases, run_steps(submission, cases), strict=True):
        for rank, outcome in enumerate(outcomes):
            if not outcome.messages and not outcome.value["called"]:
                lose(f"{on(each, rank)} neither asks for the norm nor calls the optimizer.")
            for number, grad in enumerate(outcome.value["grad"]):
                if not np.array_equal(grad, np.zeros_like(grad)):
                    said = " Also after a step that is skipped: else inf stays in it for good." * (each is cases[1])
                    lose(f"On {each.label}: grad of piece {number} on rank {rank} is not zero afterwards.{said}")


# ---- the notebook's gaps, which earn no points: check("vanished") runs these -----------------------------------------


def check_vanished(submission: Submission) -> None:
    exponents = submission.random.permutation(np.arange(-40, -8))
    gradient = (submission.random.uniform(1.1, 1.9, exponents.size) * 2.0**exponents).astype(np.float32)
    gradient[:4] = 0  # in float32 already
    cases = [one("vanished", f"at scale {scale:g}", gradient, scale=scale) for scale in (1.0, 128.0, 65536.0)]
    for each, [outcome] in by_case(submission, "convert", cases, ["vanished"]):
        scaled = gradient.astype(np.float64) * each.arguments["scale"]
        gone = (scaled.astype(np.float16) == 0) & (gradient != 0)
        found, expected = outcome.value["returned"], float(gone.mean())
        if not isinstance(found, float):
            lose(f"On {each.label}: it is {describe(found)}, not one number.")
        if not math.isclose(found, expected, abs_tol=1e-9):
            count, unscaled = gone.sum(), (gradient.astype(np.float16) == 0) & (gradient != 0)
            wrong = {
                "Those that were zero in float32 already do not count.": (scaled.astype(np.float16) == 0).mean(),
                "That is how many; their share is wanted, of all numbers.": count,
                "That is of the numbers that are not zero; of all numbers is wanted.": count
                / np.count_nonzero(gradient),
                "That is in percent; a share, between 0 and 1, is wanted.": 100 * expected,
                "That is the same at every scale: multiply first, then round.": unscaled.mean(),
            }
            said = named(found, wrong, math.isclose, before=" ")
            lose(f"On {each.label}: it is {found:g}; {expected:g} is wanted.{said}")


def check_with_master(submission: Submission) -> None:
    check_master(submission, "with_master", ["with_master"])
    check_param(submission, "with_master", ["with_master"])


def check_halve_or_double(submission: Submission) -> None:
    overflows = [False, True, True, *[False] * 22, True]
    each = Case(1, "halve_or_double, from 1024 on", [overflows])
    [[outcome]] = submission.run("simple_scales", [each], ["halve_or_double"])
    scale, clean = 1024.0, 0
    for number, overflow in enumerate(overflows):
        if overflow:
            scale, clean = scale / 2, 0
        else:
            scale, clean = scale * (2 if clean and clean % 10 == 0 else 1), clean + 1
        found = outcome.value["scales"][number]
        if found != scale:
            said = found if isinstance(found, str) else f"{found:g}"
            before = f"{clean - 1} clean steps before it" if not overflow else "an overflow"
            lose(f"On {each.label}: after step {number + 1}, with {before}, it is {said}; {scale:g} is wanted.")


def check_any_rank(submission: Submission) -> None:
    cases = []
    for n, flags in ((4, [False, False, True, False]), (3, [False] * 3), (2, [True, True]), (4, [True, *[False] * 3])):
        said = ", ".join(str(rank) for rank, flag in enumerate(flags) if flag) or "nobody"
        cases.append(Case(n, f"{n} ranks, `any_rank`, True on {said}", flags))
    for each, rank, outcome in by_rank(submission, "agree", cases, ["any_rank"], rules=STRICT):
        found = outcome.value["returned"]
        if not isinstance(found, bool):
            lose(f"{on(each, rank)} returned {describe(found)}, no bool.")
        if found != any(each.inputs):
            lose(f"{on(each, rank)} returned {found}; {any(each.inputs)} is wanted, on every rank.")


GAPS = gaps(globals(), "vanished", "with_master", "halve_or_double", "any_rank")
PARTS = parts_by_function(globals())
