"""The grade of lesson 02: `pytest lessons/02_transformer_by_hand`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew, in a process without the package's own
operations, tape and optimizers. Inputs are drawn afresh. The truth is made here by finite differences of the forward
alone: a slope is what the loss does when one number is moved a little, up and down. A part earns its points or not;
none needs a later one, and one mistake costs one part:

- Of several gradients that a function returns, each is asked for in a part of its own, or with those of its kind.
- A gradient of the loss counts as right up to a factor; one part asks for the factor.
- What holds for other shapes, for a value used twice and the like is compared with what the function itself gives for
  the plain case; parts on AdamW's update start from the moments that it returned.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import (
    ROUGH,
    differences,
    gaps,
    multiple,
    parts_by_function,
    same,
    shape,
    together,
)
from minidist.classroom.grading.meaning import working
from minidist.classroom.grading.parts import by_case, part
from minidist.classroom.grading.submission import Case, Outcome, Submission, lose

Array = np.ndarray
ASKED = (
    *("walk_back", "linear_backward", "cross_entropy_backward", "layer_norm_backward", "values_backward"),
    *("softmax_backward", "adamw"),
)
# What a submission cannot import.
HIDDEN = ("answers", "given", "minidist.nn.ops", "minidist.nn.attend", "minidist.nn.tensor", "minidist.nn.optim")
PRECISE = 1e-9  # of what was computed from the same numbers in another order
WITHOUT_EPS = 1e-4  # what layer norm's ε changes
ALONG = 1e-5  # of a slope along a direction, relative to the root of the sum of its squared terms
QUICK = 2.0  # seconds of processor time for large arrays: a right answer takes a hundredth of one, a loop minutes
LATE = 1_000_000  # a step at which Adam's bias corrections are 1

RETURNS = {
    "linear_backward": ("dx", "dw", "db"),
    "layer_norm_backward": ("dx", "dgain", "dbias"),
    "values_backward": ("dprob", "dv"),
    "adamw": ("p", "m", "v"),
    "product_backward": ("dx", "dw"),
    "cross_entropy_backward": ("dlogits",),
    "softmax_backward": ("dscores",),
    "loss_slope": ("the slope",),
}
TAKES = {
    "linear_backward": ("dy", "x", "w"),
    "cross_entropy_backward": ("dloss", "prob", "targets"),
    "layer_norm_backward": ("dy", "x", "gain"),
    "values_backward": ("dy", "prob", "v"),
    "softmax_backward": ("dprob", "prob"),
    "adamw": ("p", "g", "m", "v"),
}


# ---- the truth -------------------------------------------------------------------------------------------------------


def softmax(scores: Array) -> Array:
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normal(x: Array, eps: float = 1e-5) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


# ---- what came back --------------------------------------------------------------------------------------------------


def call(function: str, *inputs: Any) -> Case:
    """One call of a function, with the shapes of its arguments in words."""
    return case(function, shapes(function, *inputs), *inputs)


def case(function: str, words: str, *inputs: Any) -> Case:
    """One call of a function."""
    return Case(1, f"{function}{words and ' for '}{words}", [list(inputs)], {"function": function})


def arrays_in(function: str, inputs: Sequence[Any]) -> dict[str, Array]:
    return {name: x for name, x in zip(TAKES[function], inputs, strict=False) if isinstance(x, np.ndarray)}


def shapes(function: str, *inputs: Any) -> str:
    """ "dy (2, 3), x (2, 4)"."""
    return ", ".join(f"{name} {shape(x)}" for name, x in arrays_in(function, inputs).items())


def gradient(each: Case, outcome: Outcome, number: int, like: Array) -> Array:
    """One of the arrays that a function has returned. Loses the part if there is none of this shape."""
    names = RETURNS[each.arguments["function"]]
    value = outcome.value["returned"]
    if len(names) == 1:
        value = [value]
    elif not isinstance(value, list):
        kind = "None" if value == "NoneType" else "one array" if isinstance(value, np.ndarray) else value
        lose(f"On {each.label}: it returned {kind}. Return {len(names)} arrays: {', '.join(names)}.")
    elif len(value) != len(names):
        lose(f"On {each.label}: it returned {len(value)} things, not {len(names)}: {', '.join(names)}.")
    found = value[number]
    if not isinstance(found, np.ndarray):
        kind = "None" if found == "NoneType" else f"several things ({len(found)})" if isinstance(found, list) else found
        lose(f"On {each.label}: {names[number]} is {kind}, not an array of numbers.")
    if found.shape != like.shape:
        turned = " Is it transposed?" if found.shape == like.shape[::-1] else ""
        lose(f"On {each.label}: {names[number]} has the shape {shape(found)}; {shape(like)} is wanted.{turned}")
    return found.astype(float)


def check_something(each: Case, arrays: Sequence[Any]) -> None:
    """Of results that are compared with one another, that they are not all zero."""
    if not any(array.any() for array in arrays if isinstance(array, np.ndarray)):
        lose(f"On {each.label}: there is nothing but zeros in what it returned.")


def compare(
    each: Case,
    name: str,
    found: Array,
    expected: Array,
    instead: Mapping[str, Array],
    truth: str = "moving the number up and down",
) -> None:
    """Lose the part where a gradient is wrong, saying where first, and what it is `instead`, if that is known."""
    if same(found, expected):
        return
    largest = float(np.abs(expected).max(initial=0.0)) or 1.0
    index = tuple(map(int, np.argwhere(~(np.abs(found - expected) <= ROUGH * largest))[0]))
    known = [words for words, array in instead.items() if same(found, array)]
    factor = multiple(found, expected)
    if not known and factor is not None:
        known = [f"All of it is {factor:.4g} times what it should be"]
    at = ", ".join(map(str, index))
    lose(
        f"On {each.label}: {name} is wrong first at [{at}]: {found[index]:.6g}, where {truth} gives"
        f" {expected[index]:.6g}." + (f" {known[0]}." if known else "")
    )


def run_large(submission: Submission, each: Case) -> Outcome:
    """Of arrays that nothing gets through which moves one number after the other."""
    patience = submission.patience
    submission.patience = min(QUICK, patience)
    [[outcome]] = submission.run("call", [each], [each.arguments["function"]])
    submission.patience = patience
    return outcome


def check_large(submission: Submission, each: Case, number: int, forward: Callable[[], Array], moved: Array) -> None:
    """The slope of the forward along a drawn direction. forward: of the arrays in the case; `moved` is one of them, its
    gradient is `number` of those returned."""
    function, outcome = each.arguments["function"], run_large(submission, each)
    found, direction = gradient(each, outcome, number, moved), submission.random.standard_normal(moved.shape)
    dy = each.inputs[0][0]
    before, slopes = moved.copy(), list[float]()
    for sign in (1, -1):
        moved[...] = before + sign * 1e-5 * direction
        slopes.append(float(np.sum(dy * forward())))
    moved[...] = before
    expected, terms = (slopes[0] - slopes[1]) / 2e-5, found * direction
    if not abs(terms.sum() - expected) <= ALONG * (np.linalg.norm(terms) + abs(expected)):
        name = RETURNS[function][number]
        lose(
            f"On {each.label}: along a drawn direction {name} has the slope {terms.sum():.6g}, where moving all numbers"
            f" up and down gives {expected:.6g}. Of small arrays it is right."
        )


# ---- the tape --------------------------------------------------------------------------------------------------------

FORWARD: dict[str, Callable[..., Array]] = {
    "product": lambda x, w: x @ w,
    "sine": np.sin,
    "mix": lambda x, y: 2 * x + 3 * y,
    "add": lambda x, y: x + y,
    "scale": lambda x, by: x * by,
}
Program = Sequence[tuple[str, Sequence[int], int]]


def tape(submission: Submission, words: str, leaves: int, program: Program, function: str = "walk_back") -> Case:
    """A tape of 3x3 matrices: values 0, 1, ... that no step makes, and the steps."""
    inputs = [*submission.random.standard_normal((leaves + 1, 3, 3))]
    arguments = {"function": function, "program": [list(step) for step in program]}
    return Case(1, f"{function} for {words}", [inputs], arguments)


def true_gradients(each: Case) -> list[Array]:
    """Of the values that no step makes, by finite differences."""
    *leaves, start = [x.copy() for x in each.inputs[0]]

    def last() -> Array:
        values = dict(enumerate(leaves))
        for name, inputs, output in each.arguments["program"]:
            values[output] = FORWARD[name](*(values[i] for i in inputs))
        return values[output]

    return [differences(last, leaf, start) for leaf in leaves]


def found_gradients(each: Case, outcome: Outcome) -> list[Any]:
    value = outcome.value["returned"]
    if not isinstance(value, list):
        what = "None" if value == "NoneType" else value
        lose(f"On {each.label}: it returned {what}, not a dictionary {{number: gradient}}.")
    return value


def check_used(each: Case, found: Sequence[Any]) -> None:
    """Every one is a gradient."""
    if not all(isinstance(gradient, np.ndarray) for gradient in found):
        lose(f"On {each.label}: there is no gradient for a value that was used.")
    check_something(each, found)


def check_gradients(each: Case, found: Sequence[Any], expected: Sequence[Array | None], instead: str = "") -> None:
    """instead: what is said of a gradient that is not `expected`, besides where."""
    for number, (of_leaf, gradient) in enumerate(zip(found, expected, strict=True)):
        if gradient is None:
            continue
        if not isinstance(of_leaf, np.ndarray) or of_leaf.shape != gradient.shape:
            what = f"an array {shape(of_leaf)}" if isinstance(of_leaf, np.ndarray) else "no gradient"
            lose(f"On {each.label}: there is {what} for value {number}; {shape(gradient)} is wanted.{instead}")
        if not same(of_leaf, gradient):
            index = tuple(map(int, np.argwhere(~(np.abs(of_leaf - gradient) <= ROUGH * np.abs(gradient).max()))[0]))
            lose(
                f"On {each.label}: the gradient of value {number} is wrong first at [{index[0]}, {index[1]}]:"
                f" {of_leaf[index]:.6g}, where {gradient[index]:.6g} is wanted.{instead}"
            )


CHAIN: Program = [("product", [0, 1], 3), ("sine", [3], 4), ("product", [4, 2], 5)]
SHORT: Program = [("sine", [0], 1)]


@pytest.mark.points(1, "walk_back: from the last step to the first")
def test_walk_back(submission: Submission) -> None:
    cases = [tape(submission, "one step", 1, SHORT), tape(submission, "three steps in a row", 3, CHAIN)]
    for each, [outcome] in by_case(submission, "walk", cases, ["walk_back"]):
        words = " Each step's backward is handed its own output's gradient, the last step's first."
        check_gradients(each, found_gradients(each, outcome), true_gradients(each), words)


# The same sums, of a value used twice and of two values that are equal: (words, program, the equal ones' places)
TWICE = [
    ("a parameter that two steps use", [("product", [0, 1], 3), ("sine", [3], 4), ("product", [4, 2], 5)], (1, 2)),
    ("a step that takes one value twice", [("mix", [1, 2], 3), ("product", [3, 0], 4)], (1, 2)),
    ("a value that goes two ways", [("sine", [1], 3), ("product", [3, 0], 4), ("mix", [4, 2], 5)], (1, 2)),
]


@pytest.mark.points(1, "walk_back: what is used twice gets the sum")
def test_walk_back_twice(submission: Submission) -> None:
    apart, once = [], []
    for words, program, (a, b) in TWICE:
        one = tape(submission, f"{words}, as two values", 3, program)
        one.inputs[0][b] = one.inputs[0][a]
        used = [(name, [a if i == b else i for i in inputs], output) for name, inputs, output in program]
        apart.append(one)
        once.append(Case(1, f"walk_back for {words}", one.inputs, {**one.arguments, "program": used}))
    runs = submission.run("walk", [*apart, *once], ["walk_back"])
    for number, (_, _, (a, b)) in enumerate(TWICE):
        each, [alone], [outcome] = once[number], runs[number], runs[len(TWICE) + number]
        parts, found = found_gradients(apart[number], alone), found_gradients(each, outcome)
        check_used(apart[number], [parts[i] for i in (0, a, b)])
        instead = f" Value {a} is used twice: its gradient is the sum of both."
        if isinstance(found[a], np.ndarray) and any(same(found[a], parts[i]) for i in (a, b)):
            instead += " Here it is that of one use alone."
        expected = [parts[0], parts[0], None]
        expected[a] = parts[a] + parts[b]
        check_gradients(each, found, expected, instead)


@pytest.mark.points(1, "walk_back: None is passed by, and a step that leads nowhere")
def test_walk_back_none(submission: Submission) -> None:
    plain = tape(submission, "two steps in a row", 2, [("sine", [0], 2), ("product", [2, 1], 3)])
    inputs = [*plain.inputs[0][:2], np.ones((3, 3)), plain.inputs[0][2]]
    nowhere: Program = [("sine", [0], 3), ("sine", [1], 4), ("product", [3, 1], 5)]
    without: Program = [("sine", [0], 3), ("scale", [3, 2], 4), ("product", [4, 1], 5)]
    cases = [plain]
    for words, program in (
        ("a step on which the loss does not depend", nowhere),
        ("a step whose backward returns None for an input", without),
    ):
        arguments = {"function": "walk_back", "program": [list(step) for step in program]}
        cases.append(Case(1, f"walk_back for {words}", [inputs], arguments))
    first, *others = submission.run("walk", cases, ["walk_back"])
    wanted = found_gradients(plain, first[0])
    check_used(plain, wanted)
    for each, [outcome] in zip(cases[1:], others, strict=True):
        check_gradients(each, found_gradients(each, outcome), [*wanted, None], " It is to be as without that.")


@pytest.mark.points(1, "walk_back: no gradient is written into that others hold")
def test_walk_back_shared(submission: Submission) -> None:
    program: Program = [("product", [0, 1], 2), ("sine", [2], 3), ("add", [2, 3], 4), ("add", [4, 4], 5)]
    more: Program = [("sine", [0], 2), ("add", [2, 1], 3), ("product", [2, 3], 4), ("add", [3, 4], 5)]
    cases = [tape(submission, words, 2, steps) for words, steps in (("residuals", program), ("two additions", more))]
    for each, [outcome] in by_case(submission, "walk", cases, ["walk_back"]):
        found = found_gradients(each, outcome)
        if changed := outcome.value["changed"]:
            lose(
                f"On {each.label}: {changed[0]} was changed later. An addition's backward returns one array for both"
                " inputs: add with a + b, which makes a new array, and not with +=."
            )
        check_used(each, found)


# ---- linear ----------------------------------------------------------------------------------------------------------


def linear_case(submission: Submission, *rows: int, inward: int = 4, outward: int = 2) -> Case:
    random = submission.random.standard_normal
    dy, x, w = random((*rows, outward)), random((*rows, inward)), random((outward, inward))
    return call("linear_backward", dy, x, w)


def check_linear(submission: Submission, number: int) -> None:
    cases = [linear_case(submission, 3), linear_case(submission, 5)]
    for each, [outcome] in by_case(submission, "call", cases, ["linear_backward"]):
        dy, x, w = (array.copy() for array in each.inputs[0])
        b = np.zeros(2)
        moved = (x, w, b)[number]
        expected = differences(lambda x=x, w=w, b=b: x @ w.T + b, moved, dy)  # type: ignore[misc]
        instead = {
            "It is the mean over the rows; the sum is wanted": expected / len(x),
            "It is that of the last row alone": np.outer(dy[-1], x[-1]) if number == 1 else dy[-1],
        }
        found = gradient(each, outcome, number, expected)
        compare(each, RETURNS["linear_backward"][number], found, expected, {} if number == 0 else instead)
    large = linear_case(submission, 200, inward=2_000, outward=200)
    _, x, w = large.inputs[0]
    b = np.zeros(200)
    check_large(submission, large, number, lambda: x @ w.T + b, (x, w, b)[number])


test_linear_dx = part(1, "linear_backward: dx", check_linear, 0)
test_linear_dw = part(1, "linear_backward: dw, summed over the rows", check_linear, 1)
test_linear_db = part(1, "linear_backward: db", check_linear, 2)


@pytest.mark.points(1, "linear_backward: any number of axes")
def test_linear_axes(submission: Submission) -> None:
    """As for the same rows in one matrix."""
    plain = [linear_case(submission, 6), linear_case(submission, 1)]
    cases = []
    for each, rows in zip(plain, [(2, 3), ()], strict=True):
        dy, x, w = each.inputs[0]
        dy, x = dy.reshape(*rows, 2), x.reshape(*rows, 4)
        cases.append(call("linear_backward", dy, x, w))
    runs = submission.run("call", [*plain, *cases], ["linear_backward"])
    for number, each in enumerate(cases):
        [known], [outcome] = runs[number], runs[2 + number]
        for index, name in enumerate(RETURNS["linear_backward"]):
            of_rows = known.value["returned"]
            if not isinstance(of_rows, list) or len(of_rows) != 3 or not isinstance(of_rows[index], np.ndarray):
                gradient(plain[number], known, index, np.empty(0))
            check_something(plain[number], [of_rows[index]])
            like = of_rows[index] if index else of_rows[0].reshape(each.inputs[0][1].shape)
            if not same(found := gradient(each, outcome, index, like), like, PRECISE):
                at = tuple(map(int, np.argwhere(~np.isclose(found, like))[0]))
                lose(
                    f"On {each.label}: {name} is wrong first at {list(at)}: {found[at]:.6g}, where {like[at]:.6g} is"
                    f" what the function itself gives for the same rows in one matrix."
                )
    run_large(submission, linear_case(submission, 10, 20, inward=2_000, outward=200))


# ---- the loss --------------------------------------------------------------------------------------------------------


def loss_case(submission: Submission, *rows: int, dloss: float = 1.0, tokens: int = 5) -> Case:
    prob = softmax(submission.random.standard_normal((*rows, tokens)))
    targets = submission.random.integers(0, tokens, rows)
    return call("cross_entropy_backward", dloss, prob, targets)


def true_slope(each: Case) -> Array:
    dloss, prob, targets = each.inputs[0]
    logits = np.log(prob)
    return differences(lambda: loss_of(logits, targets), logits, np.asarray(dloss))


@pytest.mark.points(1, "cross_entropy_backward: the slope, up to a factor")
def test_cross_entropy(submission: Submission) -> None:
    cases, exact = [loss_case(submission, 2, 3), loss_case(submission, 4)], True
    for each, [outcome] in by_case(submission, "call", cases, ["cross_entropy_backward"]):
        expected = true_slope(each)
        found = gradient(each, outcome, 0, expected)
        exact = exact and same(found, expected)
        if multiple(found, expected) is None:
            _, prob, targets = each.inputs[0]
            hot = np.eye(5)[targets]
            n = targets.size
            instead = {
                f"{words}{divided}": array / by
                for words, array in (
                    ("It is prob: what of the target", prob),
                    ("It is prob - 1: the 1 belongs to the target alone", prob - 1),
                    ("It is the slope by prob, -1/prob; the slope by the logits is wanted", -hot / prob),
                    ("Only the target has a slope; the other logits have one, too", (prob - 1) * hot),
                )
                for divided, by in (("", 1), ("", n))
            }
            compare(each, "dlogits", found, expected, instead, "moving a logit up and down")
    if exact:  # another part asks for the factor
        large = loss_case(submission, 5, 6, tokens=6_000)
        _, prob, targets = large.inputs[0]
        logits = np.log(prob)
        check_large(submission, large, 0, lambda: loss_of(logits, targets), logits)


def loss_of(logits: Array, targets: Array) -> Array:
    return np.asarray(-np.log(np.take_along_axis(softmax(logits), targets[..., None], -1)).mean())


@pytest.mark.points(1, "cross_entropy_backward: of the mean, times dloss")
def test_cross_entropy_factor(submission: Submission) -> None:
    first = loss_case(submission, 2, 3)
    _, prob, targets = first.inputs[0]
    half = case("cross_entropy_backward", "the same with dloss = 0.5", 0.5, prob, targets)
    doubled = case(
        "cross_entropy_backward", "every sequence twice", 1.0, np.concatenate([prob, prob]), np.tile(targets, (2, 1))
    )
    cases = [first, half, doubled]
    found = [
        gradient(each, outcome, 0, each.inputs[0][1])
        for each, [outcome] in by_case(submission, "call", cases, ["cross_entropy_backward"])
    ]
    check_something(first, found[:1])
    factor = multiple(found[0], true_slope(first))
    if factor is not None and not np.isclose(factor, 1, rtol=1e-5):
        n = targets.size
        words = "the loss is the mean over all positions" if np.isclose(factor, n) else "what is it divided by?"
        lose(f"On {first.label}: dlogits is {factor:.4g} times the slope; there are {n} positions, and {words}.")
    if not same(found[1], found[0] / 2):
        lose(f"On {half.label}: dlogits should be half of what it is for dloss = 1.")
    if not same(found[2], np.concatenate([found[0], found[0]]) / 2):
        lose(
            f"On {doubled.label}: each slope should be half as large, because the loss is the mean over all positions."
        )
    run_large(submission, loss_case(submission, 5, 6, tokens=6_000))


# ---- layer norm ------------------------------------------------------------------------------------------------------


def norm_case(submission: Submission, *rows: int, width: int = 5) -> Case:
    random = submission.random.standard_normal
    dy, x, gain = random((*rows, width)), 0.3 + 1.7 * random((*rows, width)), random(width) + 2
    return call("layer_norm_backward", dy, x, gain)


@pytest.mark.points(1, "layer_norm_backward: dgain and dbias")
def test_layer_norm_gain(submission: Submission) -> None:
    cases = [norm_case(submission, 2, 3), norm_case(submission, 4)]
    for each, [outcome] in by_case(submission, "call", cases, ["layer_norm_backward"]):
        dy, x, gain = each.inputs[0]
        gain, bias = gain.copy(), np.zeros(5)
        for number, moved in ((1, gain), (2, bias)):
            expected = differences(lambda x=x, gain=gain, bias=bias: normal(x) * gain + bias, moved, dy)  # type: ignore
            rows = tuple(range(x.ndim - 1))
            instead = {"It is made with x, not with the normalized x": (dy * x).sum(rows)}
            found = gradient(each, outcome, number, expected)
            if same(found, expected, WITHOUT_EPS):  # the part on dx asks for ε
                continue
            compare(each, RETURNS["layer_norm_backward"][number], found, expected, instead)
    large = norm_case(submission, 3, 4, width=4_000)
    _, x, gain = large.inputs[0]
    bias = np.zeros(4_000)
    for number, moved in ((1, gain), (2, bias)):
        check_large(submission, large, number, lambda: normal(x) * gain + bias, moved)


@pytest.mark.points(2, "layer_norm_backward: dx, through mean and variance")
def test_layer_norm_dx(submission: Submission) -> None:
    each = norm_case(submission, 2, 3)
    [[outcome]] = submission.run("call", [each], ["layer_norm_backward"])
    dy, x, gain = each.inputs[0]
    x = x.copy()
    expected = differences(lambda: normal(x) * gain, x, dy)
    n, rstd = normal(x), 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    dn = dy * gain
    mean, along = dn.mean(-1, keepdims=True), n * (dn * n).mean(-1, keepdims=True)
    plain = dy - dy.mean(-1, keepdims=True) - n * (dy * n).mean(-1, keepdims=True)
    instead = {
        "The mean and the variance were taken for constants: they move with x, too": rstd * dn,
        "The variance was taken for a constant: it moves with x, too": rstd * (dn - mean),
        "The mean was taken for a constant: it moves with x, too": rstd * (dn - along),
        "The gain is missing": rstd * plain,
        "It is not divided by the standard deviation": dn - mean - along,
    }
    compare(each, "dx", gradient(each, outcome, 0, expected), expected, instead)
    large = norm_case(submission, 3, 4, width=4_000)
    _, x, gain = large.inputs[0]
    check_large(submission, large, 0, lambda: normal(x) * gain, x)


# ---- attention -------------------------------------------------------------------------------------------------------


def scores_of(submission: Submission) -> Array:
    """(B, H, T, T), with a causal mask."""
    scores = submission.random.standard_normal((2, 2, 4, 4))
    scores[..., np.triu(np.ones((4, 4), bool), 1)] = -np.inf
    return scores


@pytest.mark.points(1, "values_backward: dprob and dv")
def test_values(submission: Submission) -> None:
    random = submission.random.standard_normal
    dy, prob, v = random((2, 2, 4, 3)), softmax(scores_of(submission)), random((2, 2, 4, 3))
    each = call("values_backward", dy, prob, v)
    [[outcome]] = submission.run("call", [each], ["values_backward"])
    moved = prob.copy(), v.copy()
    for number, name in enumerate(RETURNS["values_backward"]):
        expected = differences(lambda: moved[0] @ moved[1], moved[number], dy)
        instead = {"prob was not transposed: a value gets a gradient from every query that looked at it": prob @ dy}
        compare(each, name, gradient(each, outcome, number, expected), expected, instead)
    dy, prob, v = random((1, 1, 1_000, 64)), softmax(random((1, 1, 1_000, 1_000))), random((1, 1, 1_000, 64))
    large = call("values_backward", dy, prob, v)
    for number, of in enumerate((prob, v)):
        check_large(submission, large, number, lambda: prob @ v, of)


@pytest.mark.points(1, "softmax_backward: dscores")
def test_softmax(submission: Submission) -> None:
    scores = scores_of(submission)
    prob, dprob = softmax(scores), submission.random.standard_normal(scores.shape)
    each = call("softmax_backward", dprob, prob)
    [[outcome]] = submission.run("call", [each], ["softmax_backward"])
    with np.errstate(invalid="ignore"):
        expected = differences(lambda: softmax(scores), scores, dprob)
    instead = {
        "Every score was taken to move its own probability alone: the others move, too": prob * (1 - prob) * dprob,
        "The sum is missing that every score shares": prob * dprob,
        "The sum is of dprob alone; each is to be weighted with its prob": prob
        * (dprob - dprob.sum(-1, keepdims=True)),
        "The sum is over the queries; it should be over the keys": prob
        * (dprob - (dprob * prob).sum(-2, keepdims=True)),
    }
    compare(each, "dscores", gradient(each, outcome, 0, expected), expected, instead, "moving a score up and down")
    scores = submission.random.standard_normal((2, 4, 3_000))
    dprob, prob = submission.random.standard_normal(scores.shape), softmax(scores)
    large = call("softmax_backward", dprob, prob)
    check_large(submission, large, 0, lambda: softmax(scores), scores)


# ---- AdamW -----------------------------------------------------------------------------------------------------------


def update(submission: Submission, words: str, step: int, eps: float = 1e-8, decay: float = 0.0) -> Case:
    random = submission.random
    p, g, m = random.standard_normal((3, 6))
    return case("adamw", words, p, g, m, random.uniform(1, 2, 6), step, 0.01, 0.8, 0.9, eps, decay)


def altered(each: Case, words: str, **changes: Any) -> Case:
    """The same call with another step, or another decay."""
    inputs = list(each.inputs[0])
    for name, value in changes.items():
        inputs[{"step": 4, "decay": 9}[name]] = value
    return case("adamw", words, *inputs)


def step_of(each: Case, outcome: Outcome) -> Array:
    """By how much p has moved."""
    p = each.inputs[0][0]
    return gradient(each, outcome, 0, p) - p


@pytest.mark.points(1, "adamw: both moments")
def test_adamw_moments(submission: Submission) -> None:
    cases = [update(submission, "step 1", 1), update(submission, "step 7", 7)]
    for each, [outcome] in by_case(submission, "call", cases, ["adamw"]):
        _, g, m, v, _, _, beta1, beta2, *_ = each.inputs[0]
        for number, old, new, beta in ((1, m, g, beta1), (2, v, g * g, beta2)):
            expected, step = beta * old + (1 - beta) * new, each.inputs[0][4]
            instead = {
                "The two weights are exchanged": (1 - beta) * old + beta * new,
                "The gradient was not squared": beta * old + (1 - beta) * g,
                "It is the corrected one: return the moment itself": expected / (1 - beta**step),
                "The gradient was not weighted with 1 - β": beta * old + new,
            }
            name = RETURNS["adamw"][number]
            compare(each, name, gradient(each, outcome, number, expected), expected, instead, "the formula")


@pytest.mark.points(1, "adamw: the update from the moments")
def test_adamw_update(submission: Submission) -> None:
    each = update(submission, "a late step, ε = 0.5", LATE, eps=0.5)
    [[outcome]] = submission.run("call", [each], ["adamw"])
    p, lr, eps = each.inputs[0][0], each.inputs[0][5], each.inputs[0][8]
    m, v = (gradient(each, outcome, number, p) for number in (1, 2))
    found, root = step_of(each, outcome), np.sqrt(np.abs(v))
    expected = -lr * m / (root + eps)
    instead = {
        "It goes uphill: subtract": -expected,
        "ε is under the root; it belongs outside": -lr * m / np.sqrt(v + eps),
        "The root is missing": -lr * m / (v + eps),
        "The old moments were used": -lr * each.inputs[0][2] / (np.sqrt(each.inputs[0][3]) + eps),
        "The gradient was used in place of the first moment": -lr * each.inputs[0][1] / (root + eps),
    }
    if not same(found, expected):
        known = [words for words, step in instead.items() if same(found, step)]
        lose(
            f"On {each.label}: p moves by {found[0]:.6g} at [0], where -lr m̂/(√v̂ + ε) of the moments that were returned"
            f" is {expected[0]:.6g}." + (f" {known[0]}." if known else "")
        )


@pytest.mark.points(1, "adamw: the bias corrections")
def test_adamw_bias(submission: Submission) -> None:
    late = update(submission, "a late step, ε = 0", LATE, eps=0.0)
    cases = [late, *(altered(late, f"the same at step {step}", step=step) for step in (1, 2, 9))]
    [first], *runs = submission.run("call", cases, ["adamw"])
    moved = step_of(late, first)
    if not np.all(np.isfinite(moved)) or not np.all(moved):
        lose(f"On {late.label}: p moves by {moved[0]:.6g} at [0]; there is nothing to compare an early step with.")
    for each, [outcome] in zip(cases[1:], runs, strict=True):
        step, beta1, beta2 = each.inputs[0][4], *each.inputs[0][6:8]
        wanted = np.sqrt(1 - beta2**step) / (1 - beta1**step)
        ratio = step_of(each, outcome) / moved
        if not same(ratio, np.full_like(ratio, wanted)):
            lose(
                f"On {each.label}: p moves {ratio[0]:.6g} times as far as at a late step; √(1 - β2ᵗ)/(1 - β1ᵗ) ="
                f" {wanted:.6g} times is wanted, with t = {step}."
            )


@pytest.mark.points(1, "adamw: the decay, apart from the gradient")
def test_adamw_decay(submission: Submission) -> None:
    plain = update(submission, "no decay", 3)
    decayed = altered(plain, "λ = 0.2", decay=0.2)
    [first], [second] = submission.run("call", [plain, decayed], ["adamw"])
    p, lr = plain.inputs[0][0], plain.inputs[0][5]
    found, expected = step_of(decayed, second) - step_of(plain, first), -lr * 0.2 * p
    if not same(found, expected):
        known = {"lr is missing: p shrinks by lr λ p": expected / lr, "there is none": 0 * p}
        words = [said for said, step in known.items() if same(found, step)]
        lose(
            f"On {decayed.label}: the decay moves p by {found[0]:.6g} at [0], where -lr λ p = {expected[0]:.6g} is"
            " wanted" + (f": {words[0]}." if words else ". It is no part of the gradient, and not divided by √v̂.")
        )


# ---- all of them -----------------------------------------------------------------------------------------------------


def plain_case(submission: Submission, function: str) -> Case:
    random = submission.random.standard_normal
    prob = softmax(scores_of(submission))
    match function:
        case "linear_backward":
            return linear_case(submission, 3)
        case "cross_entropy_backward":
            return loss_case(submission, 2, 3)
        case "layer_norm_backward":
            return norm_case(submission, 2, 3)
        case "values_backward":
            return case(function, "", random((2, 2, 4, 3)), prob, random((2, 2, 4, 3)))
        case "softmax_backward":
            return case(function, "", random(prob.shape), prob)
    return update(submission, "step 2, λ = 0.1", 2, decay=0.1)


@pytest.mark.points(1, "nothing that is handed over is changed")
def test_handed(submission: Submission) -> None:
    check_handed(submission, ASKED[1:])


def check_handed(submission: Submission, functions: Sequence[str]) -> None:
    several = {function: [plain_case(submission, function)] for function in functions}
    for function, [[outcome]] in working(submission, "call", several, returned_something):
        [each] = several[function]
        arrays = arrays_in(function, each.inputs[0]).items()
        for (name, before), now in zip(arrays, outcome.value["handed"], strict=True):
            if not np.array_equal(now, before):
                lose(f"On {each.label}: {name} was changed. Others need it as it is: make a new array.")


def returned_something(each: Case, outcomes: Sequence[Outcome]) -> None:
    """What does nothing changes nothing: of that nothing is said here."""
    value, handed = outcomes[0].value["returned"], each.inputs[0]
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, np.ndarray) or not first.any() or any(np.array_equal(first, of) for of in handed):
        lose(f"On {each.label}: it does nothing.")


# ---- the notebook's gaps, which earn no points: check("run_back") runs these -----------------------------------------


def check_slope(submission: Submission) -> None:
    x = submission.random.uniform(-1, 1, (2, 3))
    each = Case(1, "slope of Σ sin(x)", [x])
    [[outcome]] = submission.run("slopes", [each], ["slope"])
    for index, found in zip([(0, 0), (1, 2)], outcome.value["returned"], strict=True):
        expected = np.cos(x[index])
        if found == "?":
            lose(f"On {each.label}: it returned no number.")
        if not np.isclose(found, expected, rtol=1e-6):
            ratio = found / expected
            words = (
                f" That is {ratio:.3g} times as much: what is the distance between the two?"
                if 0.4 < ratio < 2.5
                else ""
            )
            one_sided = " Is it one-sided? Go up and down." if np.isclose(ratio, 1, rtol=1e-3) else words
            lose(f"On {each.label} at {index}: {found:.8g}, where cos(x) = {expected:.8g} is wanted.{one_sided}")
    if not np.allclose(outcome.value["x"], x, rtol=1e-12, atol=0):
        lose(f"On {each.label}: x is not what it was before. Put the number back.")


def check_product_backward(submission: Submission) -> None:
    random = submission.random.standard_normal
    for rows in (3, 5):
        dy, x, w = random((rows, 2)), random((rows, 4)), random((2, 4))
        each = case("product_backward", f"dy {shape(dy)}, x {shape(x)}, w {shape(w)}", dy, x, w)
        [[outcome]] = submission.run("call", [each], ["product_backward"])
        for number, moved in ((0, x), (1, w)):
            expected = differences(lambda x=x, w=w: x @ w.T, moved, dy)  # type: ignore[misc]
            name = RETURNS["product_backward"][number]
            compare(each, name, gradient(each, outcome, number, expected), expected, {})


def check_run_back(submission: Submission) -> None:
    chain, twice = CHAIN, [("product", [0, 1], 2), ("sine", [2], 3), ("product", [3, 1], 4)]
    cases = [
        tape(submission, words, leaves, program, "run_back")
        for words, leaves, program in (
            ("one step", 1, SHORT),
            ("three steps in a row", 3, chain),
            ("a parameter that two steps use", 2, twice),
            ("an addition", 2, [("sine", [0], 2), ("add", [2, 1], 3), ("product", [2, 3], 4), ("add", [3, 4], 5)]),
        )
    ]
    for each, [outcome] in by_case(submission, "walk", cases, ["run_back"]):
        if changed := outcome.value["changed"]:
            lose(
                f"On {each.label}: {changed[0]} was changed later. Add with a + b, which makes a new array,"
                " not with +=."
            )
        words = " Its gradient is the sum of both uses." if each is cases[2] else ""
        check_gradients(each, found_gradients(each, outcome), true_gradients(each), words)


def check_loss_slope(submission: Submission) -> None:
    for target in (0, 3):
        prob = softmax(submission.random.standard_normal(5))
        each = case("loss_slope", f"5 tokens, target {target}", prob, target)
        [[outcome]] = submission.run("call", [each], ["loss_slope"])
        logits = np.log(prob)
        expected = differences(lambda z=logits, t=target: -np.log(softmax(z)[t]), logits, np.asarray(1.0))  # type: ignore
        compare(each, "the slope", gradient(each, outcome, 0, expected), expected, {}, "moving a logit up and down")
        if not np.array_equal(outcome.value["handed"][0], prob):
            lose(f"On {each.label}: prob was changed. Others need it: work on a copy.")


GAPS = gaps(globals(), "slope", "product_backward", "run_back", "loss_slope")


def handed(function: str) -> Callable[[Submission], None]:
    """The part on what is handed over, of one function."""
    return lambda submission: check_handed(submission, [function])


PARTS = {
    function: together(every, handed(function)) if function in TAKES else every
    for function, every in parts_by_function(globals()).items()
}
