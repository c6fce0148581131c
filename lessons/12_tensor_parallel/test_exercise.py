"""The grade of lesson 12: `pytest lessons/12_tensor_parallel`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew. Every rank knows its own part of the matrices
alone; the truth is that of one process which has all of them, and slopes come from finite differences of its forward. A
part earns its points or not; none needs a later one, and one mistake costs one part. What a bias adds is compared with
the same function's result without one, [Q | K | V] with its sections one by one, and what is sent is held against a
function whose results are right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import (
    ROUGH,
    an_array,
    check_array,
    check_handed,
    differences,
    gaps,
    is_right,
    parts_by_function,
    same,
    shape,
    things,
)
from minidist.classroom.grading.meaning import working
from minidist.classroom.grading.parts import ask, by_case, large, on, part, ranks
from minidist.classroom.grading.submission import Case, Outcome, Submission, lose

Array = np.ndarray
MATRIX = ("column_part", "column_forward", "column_backward", "row_forward", "row_backward")
ASKED = (*MATRIX, "dropout_mask", "loss_forward", "loss_backward", "scatter_sum", "gather_whole")
# What a submission cannot import.
HIDDEN = ("answers", "given", "minidist.tensor_parallel", "minidist.tp.loss", "minidist.tp.group")


# ---- comparing -------------------------------------------------------------------------------------------------------


def blocks(x: Array, t: int, axis: int) -> list[Array]:
    return [part.copy() for part in np.split(x, t, axis)]


# ---- columns ---------------------------------------------------------------------------------------------------------


def cut_case(submission: Submission, sections: list[int], t: int) -> Case:
    w = submission.random.standard_normal((3, sum(sections)))
    return Case(1, f"column_part of w {shape(w)}, sections {sections}, t = {t}", [w], {"sections": sections, "t": t})


@pytest.mark.points(1, "column_part: a rank's columns of one matrix")
def test_column_part(submission: Submission) -> None:
    cases = [cut_case(submission, [size], t) for size, t in ((8, 4), (6, 2), (5, 1), (12, 3))]
    cases.append(cut_case(submission, [large(submission, 2, most=10_000)], 2))
    for each, [outcome] in by_case(submission, "cut", cases, ["column_part"]):
        w, t = each.inputs[0], each.arguments["t"]
        for rank, expected in enumerate(blocks(w, t, 1)):
            every = {
                "These are columns rank, rank + t, ...: take those that are next to one another.": w[:, rank::t],
                "These are another rank's.": blocks(w, t, 1)[(rank + 1) % t],
            }
            check_array(each, outcome.value["returned"][rank], f"rank {rank}'s part", expected, every)
        if not all(outcome.value["own"]):
            lose(f"On {each.label}: the part is a view of w. As long as it is there, all of w is: make a copy.")


@pytest.mark.points(1, "column_part: of Q, K and V a part of each")
def test_column_part_sections(submission: Submission) -> None:
    cases = [cut_case(submission, sections, t) for sections, t in (([4, 4, 4], 2), ([8, 4, 4], 4), ([6, 6], 3))]
    for each, [outcome] in by_case(submission, "cut", cases, ["column_part"]):
        t, w = each.arguments["t"], each.inputs[0]
        for rank, alone in enumerate(outcome.value["alone"]):
            if any(isinstance(part, str) or part.ndim != 2 for part in alone):
                lose(f"On {each.label}: of one section alone rank {rank}'s part is no array of two axes.")
            expected = np.concatenate(alone, axis=1)
            whole = "It is a part of all columns together: rank 0 has of Q alone then, and no head has all three."
            mistakes = {whole: blocks(w, t, 1)[rank]}
            check_array(each, outcome.value["returned"][rank], f"rank {rank}'s part", expected, mistakes)


@dataclass
class Layer(Case):
    """y = x w + bias cut over t ranks: each rank's inputs, and what one process has that knows all of them."""

    x: Array = field(kw_only=True)
    w: Array = field(kw_only=True)
    bias: Array = field(kw_only=True)
    dy: Array = field(kw_only=True)

    @property
    def y(self) -> Array:
        return self.x @ self.w + self.bias


B, T = 2, 3


def column(submission: Submission, t: int, function: str, length: int = T) -> Layer:
    random = submission.random.standard_normal
    x, w, bias, dy = random((B, length, 4)), random((4, 2 * t)), random(2 * t), random((B, length, 2 * t))
    cuts = zip(blocks(w, t, 1), blocks(bias, t, 0), blocks(dy, t, 2), strict=True)
    inputs = [[x, of_w, of_bias] if "forward" in function else [x, of_w, of_dy] for of_w, of_bias, of_dy in cuts]
    return Layer(t, f"{function}, {ranks(t)}", inputs, {"function": function}, x=x, w=w, bias=bias, dy=dy)


def row(submission: Submission, t: int, function: str, length: int = T, bias: bool = True) -> Layer:
    random = submission.random.standard_normal
    x, w, b, dy = random((B, length, 2 * t)), random((2 * t, 4)), random(4) * bias, random((B, length, 4))
    cuts = zip(blocks(x, t, 2), blocks(w, t, 0), strict=True)
    inputs = [[of_x, of_w, b if "forward" in function else dy] for of_x, of_w in cuts]
    without = "" if bias else ", a bias of zeros"
    return Layer(t, f"{function}, {ranks(t)}{without}", inputs, {"function": function}, x=x, w=w, bias=b, dy=dy)


def slope_by(each: Layer, which: str) -> Array:
    """What one process finds for dx, dw or dbias: by trial, if that does not take too long."""
    if each.x.shape[1] > T:
        sums = {
            "x": ("bto,io->bti", each.dy, each.w),
            "w": ("bti,bto->io", each.x, each.dy),
            "bias": ("bto->o", each.dy),
        }
        return np.asarray(np.einsum(*sums[which]))
    return differences(lambda: float((each.dy * (each.x @ each.w + each.bias)).sum()), getattr(each, which))


def check_layer(
    submission: Submission, make: Callable[..., Layer], function: str, check: Callable[..., None], **how: Any
) -> None:
    """A function on one rank, on two and on four, and on many positions."""
    cases = [make(submission, t, function, **how) for t in (1, 2, 4)]
    cases.append(make(submission, 2, function, length=large(submission, least=500, most=5_000), **how))
    for each, outcomes in by_case(submission, "call", cases, [function]):
        check(each, outcomes)


def check_column_forward(each: Layer, outcomes: Sequence[Outcome]) -> None:
    for rank, (outcome, expected) in enumerate(zip(outcomes, blocks(each.y, each.n, 2), strict=True)):
        bias = blocks(each.bias, each.n, 0)[rank]
        mistakes = {"Where is the bias?": expected - bias}
        check_array(each, outcome.value["returned"], f"rank {rank}'s y", expected, mistakes)
        check_handed(each.label, outcome.value["handed"], each.inputs[rank], ("x", "w", "bias"))


test_column_forward = part(
    1, "column_forward: this rank's columns of y", check_layer, column, "column_forward", check_column_forward
)


def gradient(each: Case, outcome: Outcome, which: int, rank: int) -> Any:
    """One of dx, dw and dbias. Loses the part if there are not three."""
    return things(on(each, rank), outcome.value["returned"], ("dx", "dw", "dbias"))[which]


def check_column_dx(each: Layer, outcomes: Sequence[Outcome]) -> None:
    expected = slope_by(each, "x")
    for rank, outcome in enumerate(outcomes):
        own = blocks(each.dy, each.n, 2)[rank] @ blocks(each.w, each.n, 1)[rank].T
        mistakes = {
            "It is what this rank's columns alone have made of x.": own,
            "It is divided by the number of ranks.": expected / each.n,
        }
        check_array(each, gradient(each, outcome, 0, rank), f"rank {rank}'s dx", expected, mistakes)


test_column_backward = part(
    2,
    "column_backward: dx is of what all ranks have made of x",
    check_layer,
    column,
    "column_backward",
    check_column_dx,
)


def check_column_own(each: Layer, outcomes: Sequence[Outcome]) -> None:
    of_w, of_bias = blocks(slope_by(each, "w"), each.n, 1), blocks(slope_by(each, "bias"), each.n, 0)
    for rank, outcome in enumerate(outcomes):
        summed = "It is summed over the ranks: each has other columns, and its own gradient for them."
        for which, name, parts in ((1, "dw", of_w), (2, "dbias", of_bias)):
            found = gradient(each, outcome, which, rank)
            check_array(each, found, f"rank {rank}'s {name}", parts[rank], {summed: sum(parts)})
        check_handed(each.label, outcome.value["handed"], each.inputs[rank], ("x", "w", "dy"))


test_column_backward_own = part(
    1, "column_backward: dw and dbias of its own columns", check_layer, column, "column_backward", check_column_own
)


# ---- rows ------------------------------------------------------------------------------------------------------------


def check_row_forward(each: Layer, outcomes: Sequence[Outcome]) -> None:
    for rank, outcome in enumerate(outcomes):
        own = blocks(each.x, each.n, 2)[rank] @ blocks(each.w, each.n, 0)[rank]
        mistakes = {
            "It is this rank's part of the sum.": own,
            "It is divided by the number of ranks.": each.y / each.n,
        }
        check_array(each, outcome.value["returned"], f"rank {rank}'s y", each.y, mistakes)
        check_handed(each.label, outcome.value["handed"], each.inputs[rank], ("x", "w", "bias"))


test_row_forward = part(
    1, "row_forward: the sum, on every rank", check_layer, row, "row_forward", check_row_forward, bias=False
)


@pytest.mark.points(1, "row_forward: the bias once")
def test_row_forward_bias(submission: Submission) -> None:
    cases = [row(submission, t, "row_forward") for t in (2, 4, 1)]
    plain = []
    for each in cases:
        inputs = [[x, w, np.zeros_like(bias)] for x, w, bias in each.inputs]
        plain.append(Case(each.n, each.label, inputs, each.arguments))
    runs = submission.run("call", [*cases, *plain], ["row_forward"])
    for each, with_bias, without in zip(cases, runs[: len(cases)], runs[len(cases) :], strict=True):
        for rank, (one, other) in enumerate(zip(with_bias, without, strict=True)):
            y, zero = (an_array(each, run.value["returned"], f"rank {rank}'s y", each.y.shape) for run in (one, other))
            added = y - zero
            if not same(added, np.broadcast_to(each.bias, added.shape)):
                times = float((added * each.bias).sum() / (np.broadcast_to(each.bias, added.shape) ** 2).sum())
                how = f"it is {times:.3g} times in it" if abs(times - 1) > 0.01 else "it is not added to every row"
                lose(f"On {each.label}: the bias belongs into rank {rank}'s y once; {how}.")


def check_row_own(each: Layer, outcomes: Sequence[Outcome]) -> None:
    of_x, of_w = blocks(slope_by(each, "x"), each.n, 2), blocks(slope_by(each, "w"), each.n, 0)
    for rank, outcome in enumerate(outcomes):
        summed = "It is summed over the ranks; dy is whole on each of them already."
        for which, name, parts in ((0, "dx", of_x), (1, "dw", of_w)):
            found = gradient(each, outcome, which, rank)
            check_array(each, found, f"rank {rank}'s {name}", parts[rank], {summed: sum(parts)})
        check_handed(each.label, outcome.value["handed"], each.inputs[rank], ("x", "w", "dy"))


test_row_backward = part(
    1, "row_backward: dx and dw of its own rows, and no sum", check_layer, row, "row_backward", check_row_own
)


def check_row_bias(each: Layer, outcomes: Sequence[Outcome]) -> None:
    expected = slope_by(each, "bias")
    for rank, outcome in enumerate(outcomes):
        mistakes = {
            f"It is {each.n} times what it should be: dy is whole on every rank.": each.n * expected,
            "It is divided by the number of ranks.": expected / each.n,
        }
        check_array(each, gradient(each, outcome, 2, rank), f"rank {rank}'s dbias", expected, mistakes)


test_row_backward_bias = part(
    1, "row_backward: dbias, on every rank the same", check_layer, row, "row_backward", check_row_bias
)


# ---- what is sent ----------------------------------------------------------------------------------------------------


@pytest.mark.points(1, "f and g: one all-reduce each, and nothing else")
def test_wire(submission: Submission) -> None:
    cases = {
        function: [make(submission, t, function) for t in (2, 3, 4)]
        for function, make in (
            ("row_forward", row), ("column_backward", column), ("column_forward", column), ("row_backward", row)
        )
    }  # fmt: skip
    for function, runs in working(submission, "call", cases, check_matrix):
        for each, outcomes in zip(cases[function], runs, strict=True):
            summed = {"row_forward": each.y.nbytes, "column_backward": each.x.nbytes}
            check_sent(each, outcomes, summed.get(function, 0))


def check_matrix(each: Case, outcomes: Sequence[Outcome]) -> None:
    """All that is asked of a function's results."""
    assert isinstance(each, Layer)
    for check in {
        "column_forward": [check_column_forward],
        "column_backward": [check_column_dx, check_column_own],
        "row_forward": [check_row_forward],
        "row_backward": [check_row_own, check_row_bias],
    }[each.arguments["function"]]:
        check(each, outcomes)


def check_sent(each: Case, outcomes: Sequence[Outcome], nbytes: int, times: int = 2) -> None:
    """No more than around a ring: twice (t-1)/t of these bytes."""
    for rank, outcome in enumerate(outcomes):
        most = times * nbytes * (each.n - 1) // each.n
        if outcome.nbytes > most:
            how = "nothing need be sent" if not most else f"around a ring it is {most}"
            lose(f"{on(each, rank)} sends {outcome.nbytes} bytes; {how}.")


# ---- masks -----------------------------------------------------------------------------------------------------------


def a_key(submission: Submission) -> tuple[int, ...]:
    return tuple(int(number) for number in submission.random.integers(1, 1000, 3))


def drawn(submission: Submission, label: str, asked: list[Any]) -> tuple[Case, list[Array]]:
    each, masks = Case(1, label, [asked]), ask(submission, "masks", "dropout_mask", asked, label)
    return each, [an_array(each, found, "the mask", of) for (_, of, *_), found in zip(asked, masks, strict=True)]


@pytest.mark.points(1, "dropout_mask: of the key alone")
def test_dropout_mask(submission: Submission) -> None:
    key, p = a_key(submission), 0.3
    asked = [[of, (40, 50), p, (0, 1)] for of in (key, (key[0], key[1] + 1, key[2]), key)]
    each, (first, other, again) = drawn(submission, f"dropout_mask, p = {p}", asked)
    if first.dtype != bool:
        lose(f"On {each.label}: the mask has the dtype {first.dtype}; bool is wanted.")
    if abs((1 - first.mean()) - p) > 6 * np.sqrt(p * (1 - p) / first.size):
        lose(f"On {each.label}: {100 * (1 - first.mean()):.1f}% of it is false.")
    if not np.array_equal(first, again):
        lose(f"On {each.label}: asked a second time with the same key, it is another mask. So have other ranks.")
    if np.array_equal(first, other):
        lose(f"On {each.label}: with another key it is the same mask.")


@pytest.mark.points(1, "dropout_mask: the pieces of a longer one")
def test_dropout_mask_parts(submission: Submission) -> None:
    for rows, n in ((2, 4), (3, 2)):
        key = a_key(submission)
        asked = [[key, (rows, 6, 6), 0.5, (i, n)] for i in range(n)]
        asked += [[key, (n * rows, 6, 6), 0.5, (0, 1)]] * 2
        each, (*pieces, whole, again) = drawn(submission, f"dropout_mask of ({rows}, 6, 6), {n} pieces", asked)
        if np.array_equal(pieces[0], pieces[1]):
            lose(f"On {each.label}: pieces 0 and 1 are equal. They are of different heads, on different ranks.")
        if np.array_equal(whole, again) and not np.array_equal(np.concatenate(pieces), whole):
            lose(
                f"On {each.label}: behind one another they are not the mask of ({n * rows}, 6, 6) for the same key."
                " Draw all of that, and take a piece."
            )


# ---- the loss --------------------------------------------------------------------------------------------------------


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def loss_of(logits: Array, targets: Array) -> float:
    return float(-np.log(softmax(logits)[np.arange(len(targets)), targets]).mean())


@dataclass
class Vocabulary(Case):
    """Logits cut over t ranks, and all of them."""

    logits: Array = field(kw_only=True)
    targets: Array = field(kw_only=True)


def vocabulary(submission: Submission, t: int, shift: float = 0.0, n: int = 12, each: int = 3) -> Vocabulary:
    logits = 2 * submission.random.standard_normal((n, each * t)) + shift
    targets = np.resize(np.arange(each * t), n)  # every rank owns some
    label = f"loss_forward, {ranks(t)}, V = {each * t}, logits of about {shift:g}"
    inputs = [[part, targets] for part in blocks(logits, t, 1)]
    return Vocabulary(t, label, inputs, logits=logits, targets=targets)


@pytest.mark.points(2, "loss_forward: the loss, and a part of the softmax")
def test_loss_forward(submission: Submission) -> None:
    cases = [
        *(vocabulary(submission, t) for t in (1, 2, 4)),
        vocabulary(submission, 2, n=large(submission, most=10_000)),
    ]
    for each, outcomes in by_case(submission, "loss", cases, ["loss_forward"]):
        check_loss(each, outcomes)


def pair(each: Case, outcome: Outcome, rank: int) -> list[Any]:
    return things(on(each, rank), outcome.value["returned"], ("the loss", "prob"))


def check_loss(each: Vocabulary, outcomes: Sequence[Outcome]) -> None:
    expected, prob = loss_of(each.logits, each.targets), softmax(each.logits)
    for rank, outcome in enumerate(outcomes):
        found, mine = pair(each, outcome, rank)
        own = blocks(each.logits, each.n, 1)[rank]
        mistakes = {"It is a softmax over this rank's columns alone.": softmax(own)}
        check_array(each, mine, f"rank {rank}'s prob", blocks(prob, each.n, 1)[rank], mistakes)
        if not isinstance(found, float) or not abs(found - expected) <= ROUGH * abs(expected):
            times = " It is the sum over the positions." if found == pytest.approx(expected * len(each.targets)) else ""
            lose(f"{on(each, rank)}'s loss is {found}; {expected:.6g} is wanted.{times}")
        check_handed(each.label, outcome.value["handed"], each.inputs[rank], ("logits", "targets"))


@pytest.mark.points(1, "loss_forward: logits as large as they like")
def test_loss_large(submission: Submission) -> None:
    plain, cases = vocabulary(submission, 2), []
    for shift in (2000.0, -2000.0):
        moved = [[logits + shift, targets] for logits, targets in plain.inputs]
        cases.append(Case(2, f"loss_forward, 2 ranks, {shift:g} added to all logits", moved))
    before, *runs = submission.run("loss", [plain, *cases], ["loss_forward"])
    for each, after in zip(cases, runs, strict=True):
        for rank, (one, other) in enumerate(zip(before, after, strict=True)):
            was, now = pair(plain, one, rank)[0], pair(each, other, rank)[0]
            numbers = isinstance(now, float) and isinstance(was, float)
            if not numbers or not abs(now - was) <= 1e-6 * max(1, abs(was)):
                lose(
                    f"{on(each, rank)}'s loss is {now}, and without it {was}. A number that is added to all"
                    " logits changes nothing: subtract the largest, of all ranks, before np.exp."
                )


@pytest.mark.points(1, "loss_forward: three rows are sent, no logits")
def test_loss_wire(submission: Submission) -> None:
    cases = [vocabulary(submission, t, each=8) for t in (2, 3, 4)]
    for each, outcomes in by_case(submission, "loss", cases, ["loss_forward"]):
        if not any(outcome.nbytes for outcome in outcomes):
            lose(f"On {each.label}: nothing is sent. Each rank has a part of the logits: how can it know the loss?")
        if is_right(check_loss, each, outcomes):
            check_sent(each, outcomes, 3 * each.targets.size * 8)


@pytest.mark.points(1, "loss_backward: the slope by its own logits")
def test_loss_backward(submission: Submission) -> None:
    cases = []
    for t, n in ((1, 12), (2, 12), (4, 12), (2, large(submission, most=10_000))):
        each = vocabulary(submission, t, n=n)
        parts = [[part, each.targets] for part in blocks(softmax(each.logits), t, 1)]
        label = f"loss_backward, {ranks(t)}, V = {3 * t}"
        cases.append(Vocabulary(t, label, parts, logits=each.logits, targets=each.targets))
    for made, outcomes in by_case(submission, "slope", cases, ["loss_backward"]):
        whole, n = softmax(made.logits) / len(made.targets), len(made.targets)
        if n > 12:
            whole[np.arange(n), made.targets] -= 1 / n
        else:  # by trial
            whole = differences(lambda of=made: loss_of(of.logits, of.targets), made.logits)
        for rank, outcome in enumerate(outcomes):
            expected = blocks(whole, made.n, 1)[rank]
            mistakes = {"Divide by the number of positions: the loss is a mean.": expected * len(made.targets)}
            check_array(made, outcome.value["returned"], f"rank {rank}'s slope", expected, mistakes)
            check_handed(made.label, outcome.value["handed"], made.inputs[rank], ("prob", "targets"))
            if outcome.nbytes:
                lose(f"On {made.label}: rank {rank} sends {outcome.nbytes} bytes; nothing need be sent.")


# ---- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.points(1, "scatter_sum: its positions of the sum, half an all-reduce")
def test_scatter_sum(submission: Submission) -> None:
    cases = []
    for t, length in ((1, 2), (2, 4), (4, 8), (2, large(submission, 2, 100, 2_000))):
        inputs = [submission.random.standard_normal((3, length, 5)) for _ in range(t)]
        cases.append(Case(t, f"scatter_sum, {ranks(t)}", inputs, {"function": "scatter_sum"}))
    for each, outcomes in by_case(submission, "call", cases, ["scatter_sum"]):
        total = sum(each.inputs)
        for rank, (outcome, expected) in enumerate(zip(outcomes, blocks(total, each.n, 1), strict=True)):
            flat = np.split(total.reshape(-1), each.n)[rank].reshape(expected.shape)
            mistakes = {
                "It is cut through the sequences: their positions are the second axis.": flat,
                "It is not summed.": blocks(each.inputs[rank], each.n, 1)[rank],
            }
            check_array(each, outcome.value["returned"], f"rank {rank}'s part", expected, mistakes)
            check_handed(each.label, outcome.value["handed"], [each.inputs[rank]], ("y",))
        check_sent(each, outcomes, total.nbytes, times=1)


@pytest.mark.points(1, "gather_whole: all positions in their places")
def test_gather_whole(submission: Submission) -> None:
    cases, wholes = [], []
    for t, length in ((1, 2), (2, 4), (4, 8), (2, large(submission, 2, 200, 2_000))):
        wholes.append(submission.random.standard_normal((3, length, 5)))
        cases.append(Case(t, f"gather_whole, {ranks(t)}", blocks(wholes[-1], t, 1), {"function": "gather_whole"}))
    runs = submission.run("call", cases, ["gather_whole"])
    for each, expected, outcomes in zip(cases, wholes, runs, strict=True):
        for rank, outcome in enumerate(outcomes):
            flat = np.concatenate([part.reshape(-1) for part in each.inputs]).reshape(expected.shape)
            mistakes = {"The ranks' parts lie behind one another in memory; positions are the second axis.": flat}
            check_array(each, outcome.value["returned"], f"x on rank {rank}", expected, mistakes)
            check_handed(each.label, outcome.value["handed"], [each.inputs[rank]], ("x",))
        check_sent(each, outcomes, expected.nbytes, times=1)


# ---- the notebook's gaps, which earn no points: check("mlp_forward") runs these --------------------------------------


def gelu(z: Array) -> Array:
    return z / (1 + np.exp(-1.702 * z))


def check_cut_both(submission: Submission) -> None:
    a, b = submission.random.standard_normal((3, 8)), submission.random.standard_normal((8, 3))
    each = Case(1, "cut_both of A (3, 8) and B (8, 3), t = 4", [[a, b]], {"t": 4})
    [[outcome]] = submission.run("both_parts", [each], ["cut_both"])
    for rank, found in enumerate(outcome.value):
        of_a, of_b = things(f"On {each.label}: it", found, ("the columns of A", "the rows of B"))
        check_array(each, of_a, f"rank {rank}'s part of A", blocks(a, 4, 1)[rank])
        check_array(each, of_b, f"rank {rank}'s part of B", blocks(b, 4, 0)[rank])


def check_cut_qkv(submission: Submission) -> None:
    w = submission.random.standard_normal((3, 24))
    each = Case(1, "cut_qkv of [Q | K | V] (3, 24), t = 4", [w], {"t": 4})
    [[outcome]] = submission.run("qkv_parts", [each], ["cut_qkv"])
    sections = [blocks(section, 4, 1) for section in np.split(w, 3, axis=1)]
    for rank, found in enumerate(outcome.value):
        if isinstance(found, np.ndarray) and found.shape == (3, 6) and np.array_equal(found, blocks(w, 4, 1)[rank]):
            lose(
                f"{on(each, rank)} has block {rank} of four equal blocks of all columns. Of Q, of K"
                " and of V it needs a fourth each."
            )
        check_array(each, found, f"rank {rank}'s part", np.concatenate([part[rank] for part in sections], axis=1))


def mlp_case(submission: Submission, t: int, function: str) -> tuple[Case, list[Array]]:
    random = submission.random.standard_normal
    x, a, b, dy = random((3, 4)), random((4, 2 * t)), random((2 * t, 4)), random((3, 4))
    inputs = []
    for of_a, of_b in zip(blocks(a, t, 1), blocks(b, t, 0), strict=True):
        inputs.append([x, of_a, of_b] if function == "mlp_forward" else [x, x @ of_a, of_a, of_b, dy])
    return Case(t, f"{function}, {ranks(t)}", inputs), [x, a, b, dy]


def mlp_slope(x: Array, a: Array, b: Array, dy: Array, by: Array) -> Array:
    """The slope of Σ dy·mlp(x) by one of x, a and b."""
    return differences(lambda: float((dy * (gelu(x @ a) @ b)).sum()), by)


def check_mlp_forward(submission: Submission) -> None:
    for t in (1, 4):
        each, (x, a, b, _) = mlp_case(submission, t, "mlp_forward")
        [outcomes] = submission.run("mlp", [each], ["mlp_forward"])
        expected = gelu(x @ a) @ b
        for rank, outcome in enumerate(outcomes):
            _, of_a, of_b = each.inputs[rank]
            y, z = things(on(each, rank), outcome.value["returned"], ("y", "z"))
            mistakes = {"It is this rank's part of the sum.": gelu(x @ of_a) @ of_b}
            mistakes["It is divided by the number of ranks."] = expected / t
            mistakes["Where is gelu?"] = x @ a @ b
            check_array(each, y, f"rank {rank}'s y", expected, mistakes)
            check_array(each, z, f"rank {rank}'s z", x @ of_a)


def check_mlp_backward(submission: Submission) -> None:
    for t in (1, 4):
        each, (x, a, b, dy) = mlp_case(submission, t, "mlp_backward")
        [outcomes] = submission.run("mlp_back", [each], ["mlp_backward"])
        dx, da, db = (mlp_slope(x, a, b, dy, by) for by in (x, a, b))
        da, db = blocks(da, t, 1), blocks(db, t, 0)
        for rank, outcome in enumerate(outcomes):
            found = things(on(each, rank), outcome.value["returned"], ("dx", "da", "db"))
            summed = "It is summed over the ranks; each has other columns."
            check_array(each, found[1], f"rank {rank}'s da", da[rank], {summed: sum(da)})
            check_array(each, found[2], f"rank {rank}'s db", db[rank], {summed: sum(db)})
            alone = mlp_slope(x, each.inputs[rank][2], each.inputs[rank][3], dy, x)
            mistakes = {"It is what this rank's columns alone have made of x.": alone}
            check_array(each, found[0], f"rank {rank}'s dx", dx, mistakes)


def check_cut_loss(submission: Submission) -> None:
    for t, shift in ((1, 0.0), (4, 0.0), (2, 1000.0)):
        each = vocabulary(submission, t, shift)
        each.label = each.label.replace("loss_forward", "cut_loss")
        [outcomes] = submission.run("cut_vocabulary", [each], ["cut_loss"])
        expected = loss_of(each.logits, each.targets)
        for rank, outcome in enumerate(outcomes):
            found = outcome.value["returned"]
            if not isinstance(found, float) or not abs(found - expected) <= ROUGH * abs(expected):
                lose(f"{on(each, rank)}'s loss is {found}; {expected:.6g} is wanted.")
        check_sent(each, outcomes, 3 * each.targets.size * 8)


GAPS = gaps(globals(), "cut_both", "cut_qkv", "mlp_forward", "mlp_backward", "cut_loss")
PARTS = parts_by_function(globals())
