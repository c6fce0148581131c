"""The grade of lesson 10: `pytest lessons/10_activations`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew. Layers are made here; they note in which order
they are called, and how many arrays are there at that moment. Inputs are drawn afresh, and true gradients come from
finite differences of the forward alone. A part earns its points or not; none needs a later one, and one mistake costs
one part. run_backward is asked for with the lesson's own run_segment in place of the student's. Where the last segment
is shorter, results need be no better than where it is not.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import an_array, differences, gaps, is_right, parts_by_function, same, shape
from minidist.classroom.grading.parts import ask, by_case, large, on, part
from minidist.classroom.grading.submission import Case, Outcome, Submission, lose

Array = np.ndarray
ASKED = ("run_forward", "run_segment", "run_backward", "mask", "best_interval", "cut", "whole")
HIDDEN = (  # what a submission cannot import
    "answers",
    "given",
    "minidist.memory.recompute",
    "minidist.memory.chain",
    "minidist.nn.layers",  # its Batch.mask would be `mask`
)
ROWS, WIDTH = 2, 3
MANY = 4096  # rows of an input whose bytes are counted
SLACK = 1 << 14  # bytes of Python objects


# ---- the truth -------------------------------------------------------------------------------------------------------


def chain(x: Array, matrices: Sequence[Array]) -> list[Array]:
    """x, and what each layer makes of it."""
    values = [x]
    for w in matrices:
        values.append(np.tanh(values[-1] @ w))
    return values


def drawn(submission: Submission, layers: int, *, dy: bool, rows: int = ROWS) -> list[Array]:
    """x, perhaps dy, and the layers' matrices."""
    random = submission.random.standard_normal
    return [*(random((rows, WIDTH)) for _ in range(1 + dy)), *(random((WIDTH, WIDTH)) * 0.7 for _ in range(layers))]


# ---- forward ---------------------------------------------------------------------------------------------------------


def forward_case(submission: Submission, layers: int, k: int, rows: int = ROWS, measured: bool = False) -> Case:
    label = f"run_forward of {layers} layers, k = {k}"
    return Case(1, label, [drawn(submission, layers, dy=False, rows=rows)], {"k": k, "measured": measured})


def inputs_of(each: Case, outcome: Outcome) -> list[Array]:
    if "inputs" not in outcome.value:
        lose(f"On {each.label}: return two values, y and the list of inputs.")
    return outcome.value["inputs"]


def check_number(each: Case, outcome: Outcome) -> None:
    inputs, layers = inputs_of(each, outcome), len(each.inputs[0]) - 1
    wanted = range(0, layers, each.arguments["k"])
    if len(inputs) != len(wanted):
        which = ", ".join(map(str, wanted))
        lose(f"On {each.label}: there are {len(inputs)} inputs; those of the layers {which} are wanted.")


def check_inputs(each: Case, outcome: Outcome) -> None:
    check_number(each, outcome)
    inputs, k = inputs_of(each, outcome), each.arguments["k"]
    x, *matrices = each.inputs[0]
    values = chain(x, matrices)
    wanted = values[: len(matrices)][::k]
    for number, (found, expected) in enumerate(zip(inputs, wanted, strict=True)):
        found = an_array(each, found, f"inputs[{number}]", expected.shape)
        if not same(found, expected):
            known = [i for i, value in enumerate(values) if same(found, value)]
            instead = (
                f" It is the output of layer {known[0] - 1}." if known and known[0] else " It is x." if known else ""
            )
            lose(f"On {each.label}: inputs[{number}] is not the input of layer {number * k}.{instead}")


@pytest.mark.points(1, "run_forward: y, and the input of each segment")
def test_run_forward(submission: Submission) -> None:
    cases = [forward_case(submission, layers, k) for layers, k in ((4, 2), (3, 1), (3, 3), (6, 2))]
    cases.append(forward_case(submission, 4, 2, rows=large(submission, most=10_000)))
    for each, [outcome] in by_case(submission, "forward", cases, ["run_forward"]):
        inputs_of(each, outcome)
        x, *matrices = each.inputs[0]
        expected = chain(x, matrices)[-1]
        if not same(an_array(each, outcome.value["returned"], "y", expected.shape), expected):
            lose(
                f"On {each.label}: y is not the output of the last layer. Each layer's input is the output of the one"
                " before it."
            )
        check_inputs(each, outcome)


@pytest.mark.points(1, "run_forward: the last segment may be shorter")
def test_run_forward_short(submission: Submission) -> None:
    plain, *cases = [forward_case(submission, layers, k) for layers, k in ((4, 2), (5, 2), (4, 3), (3, 7))]
    [first], *runs = submission.run("forward", [plain, *cases], ["run_forward"])
    check = check_inputs if is_right(check_inputs, plain, first) else check_number
    for each, [outcome] in zip(cases, runs, strict=True):
        check(each, outcome)


@pytest.mark.points(1, "run_forward: nothing else is held")
def test_run_forward_memory(submission: Submission) -> None:
    cases = [forward_case(submission, 12, k) for k in (4, 6)]
    for each, [outcome] in by_case(submission, "forward", cases, ["run_forward"]):
        calls = [call for call in outcome.value["calls"] if call[0] == "forward"]
        if len(calls) < 12:
            lose(f"On {each.label}: {len(calls)} layers have run.")
        for _, number, made, _, kept in calls:
            if kept > 2:  # this layer's, and perhaps that of the one before, until its name is used again
                lose(
                    f"On {each.label}: when layer {number} has run, what {kept} layers keep is still held. Of what"
                    " forward returns, keep only y."
                )
            if made > number // each.arguments["k"] + 3:
                lose(
                    f"On {each.label}: when layer {number} has run, {made} outputs of layers are held: more than"
                    " the inputs of segments, this layer's input and its output."
                )
    large = forward_case(submission, 12, 4, rows=MANY, measured=True)
    [[outcome]] = submission.run("forward", [large], ["run_forward"])
    for method, number, nbytes in outcome.value["nbytes"]:
        # x; inputs of segments, this layer's and what it makes; twice what a layer keeps, which is two arrays
        arrays = 1 + number // 4 + 3 + 2 * 2
        if method == "forward" and nbytes > arrays * large.inputs[0][0].nbytes + SLACK:
            lose(
                f"On {large.label}, an input of {large.inputs[0][0].nbytes:,} bytes: when layer {number} has run,"
                f" {nbytes:,} bytes are held. The inputs of segments, this layer's input, its output and what it"
                f" keeps are no more than {arrays} such arrays. Copies count."
            )


# ---- a segment -------------------------------------------------------------------------------------------------------


def segment_case(
    submission: Submission, layers: int, function: str = "run_segment", rows: int = ROWS, measured: bool = False
) -> Case:
    inputs = [drawn(submission, layers, dy=True, rows=rows)]
    arguments = {"function": function, "measured": measured}
    return Case(1, f"{function} of {layers} layer{'s' * (layers > 1)}", inputs, arguments)


def check_gradients(each: Case, outcome: Outcome) -> None:
    x, dy, *matrices = each.inputs[0]
    expected = differences(lambda: chain(x, matrices)[-1], x, dy)
    found = an_array(each, outcome.value["returned"], "the gradient of x", x.shape)
    if not same(found, expected):
        instead = " It is dy." if same(found, dy) else ""
        lose(
            f"On {each.label}: the gradient of x is wrong: [0, 0] is {found[0, 0]:.6g}, by a finite difference"
            f" it is {expected[0, 0]:.6g}.{instead}"
        )
    for number, w in enumerate(matrices):
        of_w = differences(lambda: chain(x, matrices)[-1], w, dy)
        if not same(outcome.value["dw"][number], of_w):
            factor = float((outcome.value["dw"][number] * of_w).sum() / (of_w**2).sum())
            times = f" It is {factor:.3g} times what it should be." if factor > 1.5 else ""
            lose(f"On {each.label}: the gradient of layer {number}'s own parameters is wrong.{times}")


def check_segment(submission: Submission, function: str) -> None:
    cases = [segment_case(submission, layers, function) for layers in (1, 2, 4)]
    for each, [outcome] in by_case(submission, "segment", cases, [function]):
        check_gradients(each, outcome)


test_run_segment = part(2, "run_segment: recomputes, then runs the backwards", check_segment, "run_segment")


@pytest.mark.points(1, "run_segment: each layer once")
def test_run_segment_calls(submission: Submission) -> None:
    cases = [segment_case(submission, layers) for layers in (2, 5)]
    for each, [outcome] in by_case(submission, "segment", cases, ["run_segment"]):
        layers = len(each.inputs[0]) - 2
        for method in ("forward", "backward"):
            ran = sum(call[0] == method for call in outcome.value["calls"])
            if ran != layers:
                lose(f"On {each.label}: {ran} {method}s were run; {layers} are wanted: each layer's once.")


@pytest.mark.points(1, "run_segment: drops what a backward has used")
def test_run_segment_memory(submission: Submission) -> None:
    each = segment_case(submission, 6)
    [[outcome]] = submission.run("segment", [each], ["run_segment"])
    calls = [call for call in outcome.value["calls"] if call[0] == "backward"]
    if not calls:
        lose(f"On {each.label}: no backward was run.")
    for done, (_, number, _, _, kept) in enumerate(calls[-6:]):
        if kept > 6 - done + 1:  # one more: a variable may still name the last one
            lose(
                f"On {each.label}: when layer {number}'s backward begins, what {kept} layers keep is held; {done} have"
                " been used. Take each out of the list: kept.pop()."
            )
    large = segment_case(submission, 12, rows=MANY, measured=True)
    [[outcome]] = submission.run("segment", [large], ["run_segment"])
    backwards = [(number, nbytes) for method, number, nbytes in outcome.value["nbytes"] if method == "backward"]
    for done, (number, nbytes) in enumerate(backwards[-12:]):
        # x and dy, what each layer makes, two gradients; what each layer that is left keeps, and one more: two arrays
        arrays = 2 + 12 + 2 + 2 * (12 - done + 1)
        if nbytes > arrays * large.inputs[0][0].nbytes + SLACK:
            lose(
                f"On {large.label}, an input of {large.inputs[0][0].nbytes:,} bytes: when layer {number}'s backward"
                f" begins, {nbytes:,} bytes are held. What {12 - done} layers keep, the outputs of all, and gradients"
                f" are no more than {arrays} such arrays: {done} have been used. Copies count."
            )


# ---- all segments ----------------------------------------------------------------------------------------------------


def backward_case(submission: Submission, layers: int, k: int) -> Case:
    inputs = [drawn(submission, layers, dy=True)]
    return Case(1, f"run_backward of {layers} layers, k = {k}", inputs, {"k": k})


@pytest.mark.points(1, "run_backward: one segment after the other")
def test_run_backward(submission: Submission) -> None:
    cases = [backward_case(submission, layers, k) for layers, k in ((4, 2), (3, 3), (3, 1))]
    for each, [outcome] in by_case(submission, "backward", cases, ["run_backward"]):
        check_gradients(each, outcome)


@pytest.mark.points(1, "run_backward: the last segment may be shorter")
def test_run_backward_short(submission: Submission) -> None:
    plain, *cases = [backward_case(submission, layers, k) for layers, k in ((4, 2), (5, 2), (4, 3), (2, 6))]
    [first], *runs = submission.run("backward", [plain, *cases], ["run_backward"])
    right = is_right(check_gradients, plain, first)
    for each, [outcome] in zip(cases, runs, strict=True):
        check_segments(each, outcome)
        if right:
            check_gradients(each, outcome)


def check_segments(each: Case, outcome: Outcome) -> None:
    """Which layers were recomputed together, in whatever order."""
    layers, k = len(each.inputs[0]) - 2, each.arguments["k"]
    found: list[list[int]] = []
    before = ""
    for method, number, *_ in outcome.value["calls"]:
        if method == "forward" and before == "forward":
            found[-1].append(number)
        elif method == "forward":
            found.append([number])
        before = method
    wanted = [list(range(first, min(first + k, layers))) for first in range(0, layers, k)]
    if sorted(found) != wanted:
        lose(f"On {each.label}: the segments that were recomputed are {sorted(found)}; {wanted} are wanted.")


@pytest.mark.points(1, "run_backward: no input is held that has been used")
def test_run_backward_memory(submission: Submission) -> None:
    each = backward_case(submission, 10, 2)
    [[outcome]] = submission.run("backward", [each], ["run_backward"])
    calls = [call for call in outcome.value["calls"] if call[0] == "backward"]
    if not calls:
        lose(f"On {each.label}: no backward was run.")
    for done, (_, number, _, inputs, _) in enumerate(calls):
        if inputs > 5 - done // 2 + 1:  # one more: a variable may still name the last one
            lose(
                f"On {each.label}: when layer {number}'s backward begins, {inputs} inputs are held; {done // 2} of 5"
                " segments are done. Take each input out of the list: inputs.pop()."
            )
    begun: set[int] = set()  # segments, in whatever order: another part asks for the right one
    for (method, number, *_), listed in zip(outcome.value["calls"], outcome.value["listed"], strict=True):
        begun.add(number // 2)
        if listed > 5 - len(begun):
            lose(
                f"On {each.label}: when layer {number}'s {method} has begun, {listed} inputs are in the list, also that"
                " of its own segment. Take it out before the segment runs: run_segment(..., inputs.pop(), dy)."
            )
    if left := outcome.value["left"]:
        lose(f"On {each.label}: {left} inputs are left in the list at the end.")


# ---- masks -----------------------------------------------------------------------------------------------------------


def draw_masks(submission: Submission, label: str, asked: list[Any], function: str = "mask") -> tuple[Case, Outcome]:
    """What stands for the masks of these arguments, one after the other: arrays of their shapes."""
    each = Case(1, label, [asked], {"function": function})
    [[outcome]] = submission.run("masks", [each], [function])
    for arguments, found in zip(asked, outcome.value["returned"], strict=True):
        an_array(each, found, "the mask", arguments[2])
    return each, outcome


def check_bool(each: Case, mask: Array) -> None:
    if mask.dtype != bool:
        lose(f"On {each.label}: the mask has the dtype {mask.dtype}; bool is wanted, one byte an element.")


def a_key(submission: Submission) -> tuple[int, int]:
    one, other = (int(number) for number in submission.random.integers(1, 1000, 2))
    return one, other


@pytest.mark.points(1, "mask: the same for the same key and name")
def test_mask_again(submission: Submission) -> None:
    one = [a_key(submission), "block0.dropout1", (5, 8), 0.5]
    other = [a_key(submission), "block1.dropout1", (5, 8), 0.5]
    each, outcome = draw_masks(submission, "two calls of mask, with another one in between", [one, other, one])
    first, _, again = outcome.value["returned"]
    check_varied(each, first)
    if not np.array_equal(first, again):
        lose(f"On {each.label}: the second call returned another mask, for the same key and name.")
    both = Case(2, "mask on 2 ranks", [[one], [one]], {"function": "mask"})
    [outcomes] = submission.run("masks", [both], ["mask"])
    masks = [an_array(both, outcome.value["returned"][0], "the mask", (5, 8)) for outcome in outcomes]
    own = any(outcome.value["moved"] for outcome in outcomes)  # drawn from NumPy's generator: a part of its own asks
    if not own and not np.array_equal(*masks):
        lose(
            f"On {both.label}: with the same key and name the ranks return different masks. Where do their random"
            " numbers begin? Python's hash of a text is another number in each process."
        )


def check_varied(each: Case, mask: Array) -> None:
    if mask.all() or not mask.any():
        lose(f"On {each.label}: all of the mask is {mask.flat[0]}, with p = 0.5.")


@pytest.mark.points(1, "mask: another one for another key or name")
def test_mask_differs(submission: Submission) -> None:
    seed, step = a_key(submission)
    step += 1000  # two numbers that are not equal
    first = [(seed, step), "ab", (6, 10), 0.5]
    others = {
        "another step": [(seed, step + 1), "ab", (6, 10), 0.5],
        "another seed": [(seed + 1, step), "ab", (6, 10), 0.5],
        "seed and step exchanged": [(step, seed), "ab", (6, 10), 0.5],
        "another name": [(seed, step), "ac", (6, 10), 0.5],
        "a name of the same letters": [(seed, step), "ba", (6, 10), 0.5],
    }
    each, outcome = draw_masks(submission, "mask for several keys and names", [first, *others.values()])
    plain, *found = outcome.value["returned"]
    check_varied(each, plain)
    for words, mask in zip(others, found, strict=True):
        if np.array_equal(plain, mask):
            lose(f"On {each.label}: with {words} it is the same mask.")


@pytest.mark.points(1, "mask: bool, false with probability p, each element for itself")
def test_mask_share(submission: Submission) -> None:
    asked = [[a_key(submission), "dropout", (100, 100), p] for p in (0.1, 0.5, 0.0)]
    each, outcome = draw_masks(submission, "mask of 100 by 100", asked)
    for (*_, p), mask in zip(asked, outcome.value["returned"], strict=True):
        check_bool(each, mask)
        share = 1 - mask.mean()
        if abs(share - p) > 6 * np.sqrt(p * (1 - p) / mask.size):
            turned = " Are true and false exchanged?" if abs(1 - share - p) < 0.05 else ""
            lose(f"On {each.label}: {100 * share:.1f}% of it is false, with p = {p}.{turned}")
        if p == 0.5 and (len(np.unique(mask, axis=0)) < 90 or len(np.unique(mask, axis=1).T) < 90):
            lose(f"On {each.label}: rows or columns are equal: draw each element for itself.")


@pytest.mark.points(1, "mask: leaves NumPy's own generator alone")
def test_mask_alone(submission: Submission) -> None:
    check_alone(*draw_masks(submission, "mask", [[a_key(submission), "dropout", (4, 5), 0.5]]))


def check_alone(each: Case, outcome: Outcome) -> None:
    if outcome.value["moved"]:
        lose(
            f"On {each.label}: NumPy's own generator has changed: the next program that draws from it gets other"
            " numbers. Make a generator for this mask: np.random.default_rng(...)."
        )


# ---- the interval ----------------------------------------------------------------------------------------------------


def held_by(n: int, given: float, layer: float) -> list[float]:
    """What is held, for k from 1 to n."""
    return [math.ceil(n / k) * given + k * layer for k in range(1, n + 1)]


def check_interval(submission: Submission, asked: list[list[float]]) -> None:
    for (n, given, layer), k in zip(asked, ask(submission, "intervals", "best_interval", asked), strict=True):
        where = f"On best_interval({n}, {given:g}, {layer:g})"
        if not isinstance(k, int) or not 1 <= k <= n:
            lose(f"{where}: it returned {k}; an int from 1 to {n} is wanted.")
        held = held_by(int(n), given, layer)
        if held[k - 1] > min(held) * (1 + 1e-12):
            best = 1 + int(np.argmin(held))
            lose(f"{where}: with k = {k}, {held[k - 1]:g} bytes are held; with k = {best} it is {min(held):g}.")


@pytest.mark.points(1, "best_interval: layers that keep no more than their input")
def test_best_interval(submission: Submission) -> None:
    drawn = (int(n) for n in submission.random.integers(20, 400, 6))
    check_interval(submission, [[n, 1.0, 1.0] for n in (1, 2, 3, 4, 9, 10, 23, 100, 240, *drawn)])


@pytest.mark.points(1, "best_interval: layers that keep more, or less")
def test_best_interval_bytes(submission: Submission) -> None:
    """Where it does not matter whether a last segment that is shorter counts: the other part asks for that."""
    random = submission.random
    asked = [[24, 2.0, 8.0], [96, 2.0, 114.0], [48, 2.0, 34.0], [2, 3.0, 1.0]]
    while len(asked) < 10:
        n, given, layer = int(random.integers(12, 150)), *(float(size) for size in random.integers(1, 40, 2))
        held, without = held_by(n, given, layer), [n // k * given + k * layer for k in range(1, n + 1)]
        same_k = {held[i] for i in range(n) if without[i] == min(without)} == {min(held)}
        if same_k and abs(np.argmin(held) + 1 - n**0.5) > 1:
            asked.append([n, given, layer])
    check_interval(submission, asked)


# ---- parts of an input -----------------------------------------------------------------------------------------------


def shapes(submission: Submission) -> list[tuple[int, tuple[int, ...]]]:
    """Numbers of ranks, and shapes of x."""
    return [
        (1, (2, 3, 4)),
        (2, (2, 3, 4)),
        (3, (2, 3, 4)),
        (4, (3, 5)),
        (4, (2,)),
        (3, (large(submission, least=3_000),)),
    ]


def parts_of(x: Array, t: int) -> list[Array]:
    return [part.copy() for part in np.array_split(x.reshape(-1), t)]


def cut_case(submission: Submission, t: int, of: tuple[int, ...]) -> Case:
    x = submission.random.standard_normal(of).astype(np.float32)
    return Case(t, f"cut of {shape(x)}, {t} rank{'s' * (t > 1)}", [x] * t)


@pytest.mark.points(1, "cut: this rank's part")
def test_cut(submission: Submission) -> None:
    cases = [cut_case(submission, t, of) for t, of in shapes(submission)]
    for each, outcomes in by_case(submission, "cutting", cases, ["cut"]):
        x = each.inputs[0]
        for rank, (outcome, expected) in enumerate(zip(outcomes, parts_of(x, each.n), strict=True)):
            found = an_array(each, outcome.value["returned"], f"rank {rank}'s part", expected.shape)
            if not np.array_equal(found, expected):
                lose(f"{on(each, rank)}'s part is not chunk {rank} of x's elements in their order.")
            if found.dtype != x.dtype:
                lose(f"On {each.label}: the part has the dtype {found.dtype}, x has {x.dtype}.")
            if not np.array_equal(outcome.value["x"], x):
                lose(f"On {each.label}: x was changed.")
            if outcome.nbytes:
                lose(f"{on(each, rank)} sends {outcome.nbytes} bytes; 0 are wanted.")


@pytest.mark.points(1, "cut: a part in memory of its own")
def test_cut_own(submission: Submission) -> None:
    each = cut_case(submission, 4, (4, 6))
    for rank, outcome in enumerate(submission.run("cutting", [each], ["cut"])[0]):
        part, holds = outcome.value["returned"], outcome.value["holds"]
        if not isinstance(part, np.ndarray):
            an_array(each, part, f"rank {rank}'s part", (6,))
        if holds > part.nbytes:
            lose(
                f"{on(each, rank)}'s part of {part.nbytes} bytes is a view of {holds} bytes. As long as the"
                " view is held, all of them are held: make a copy."
            )


def whole_case(submission: Submission, t: int, of: tuple[int, ...]) -> Case:
    x = submission.random.standard_normal(of).astype(np.float32)
    return Case(t, f"whole of {shape(x)}, {t} rank{'s' * (t > 1)}", parts_of(x, t), {"shape": of})


@pytest.mark.points(1, "whole: x on every rank")
def test_whole(submission: Submission) -> None:
    cases = [whole_case(submission, t, of) for t, of in shapes(submission)]
    for each, outcomes in by_case(submission, "joining", cases, ["whole"]):
        expected = np.concatenate(each.inputs).reshape(each.arguments["shape"])
        for rank, outcome in enumerate(outcomes):
            found = an_array(each, outcome.value["returned"], f"x on rank {rank}", expected.shape)
            if not np.array_equal(found, expected):
                lose(f"On {each.label}: on rank {rank} it is not x.")
            if not np.array_equal(outcome.value["handed"][0], each.inputs[rank]):
                lose(f"{on(each, rank)}'s part was changed.")


@pytest.mark.points(1, "whole: (t-1)/t of x from every rank")
def test_whole_sent(submission: Submission) -> None:
    cases = [whole_case(submission, t, (4, 6)) for t in (2, 3, 4)]
    for each, outcomes in by_case(submission, "joining", cases, ["whole"]):
        nbytes = sum(part.nbytes for part in each.inputs)
        wanted = nbytes * (each.n - 1) // each.n
        for rank, outcome in enumerate(outcomes):
            if outcome.nbytes != wanted:
                lose(
                    f"{on(each, rank)} sends {outcome.nbytes} bytes; around a ring it is {wanted}, that is"
                    f" {each.n - 1} of x's {each.n} parts."
                )


# ---- the notebook's gaps, which earn no points: check("again") runs these --------------------------------------------


def check_kept_bytes(submission: Submission) -> None:
    random = submission.random
    arrays = [random.standard_normal((2, 3)), random.random((4, 2)).astype(np.float16), random.random(5) < 0.5]
    arrays.append(arrays[0].copy())
    for words, places in (("three arrays", [0, 1, 2]), ("an array twice", [0, 1, 0]), ("two equal arrays", [0, 3])):
        label, wanted = f"kept_bytes of {words}", sum(arrays[place].nbytes for place in set(places))
        found = ask(submission, "bytes_kept", "kept_bytes", arrays, label, places=places)
        if found != wanted:
            lose(f"On {label}: it returned {found}; {wanted} is wanted.")


def check_same_mask(submission: Submission) -> None:
    step, layer = a_key(submission)
    one, steps, layers = ([a, b, (20, 30), 0.25] for a, b in ((step, layer), (step + 1, layer), (step, layer + 1)))
    label = "same_mask, p = 0.25"
    each, outcome = draw_masks(submission, label, [one, steps, layers, one], "same_mask")
    first, of_step, of_layer, again = outcome.value["returned"]
    check_bool(each, first)
    if not np.array_equal(first, again):
        lose(f"On {label}: the second call returned another mask, for the same step and layer.")
    if np.array_equal(first, of_step) or np.array_equal(first, of_layer):
        lose(f"On {label}: another step, or another layer, has the same mask.")
    if abs(first.mean() - 0.75) > 0.12:
        lose(f"On {label}: {100 * (1 - first.mean()):.0f}% of it is false.")
    check_alone(each, outcome)


def check_my_part(submission: Submission) -> None:
    x = submission.random.standard_normal(12)
    each = Case(1, "my_part of 12 elements, t = 4", [x], {"t": 4})
    [[outcome]] = submission.run("part_of", [each], ["my_part"])
    for rank, found in enumerate(outcome.value["returned"]):
        expected = x[3 * rank : 3 * rank + 3]
        if not np.array_equal(an_array(each, found, f"part {rank}", (3,)), expected):
            lose(f"On {each.label}: part {rank} is not x[{3 * rank}:{3 * rank + 3}].")
    if not all(outcome.value["own"]):
        lose(f"On {each.label}: the part is a view of x. As long as the view is held, all of x is held: make a copy.")


GAPS = gaps(globals(), "kept_bytes", "same_mask", "my_part") | {"again": partial(check_segment, function="again")}
PARTS = parts_by_function(globals())
