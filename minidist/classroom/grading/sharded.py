"""What the graded parts of lessons 05 and 07 to 09 share: a notebook's layers, buckets and shards, what may be sent.

The layers are h -> tanh(h W + b). Of each, W (width, width) and b (width) lie one after the other in a flat buffer,
which may end in padding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from minidist.classroom.grading.diagnose import distinct, in_a_sum
from minidist.classroom.grading.meaning import check_worked
from minidist.classroom.grading.parts import by_rank, named, on
from minidist.classroom.grading.submission import Case, Outcome, Submission, lose
from minidist.classroom.grading.training import (
    SLACK,
    SMALL,
    Training,
    check_buckets,
    training,
    unit_sizes,
    whole_numbers,
)
from minidist.papers import zero

Array = np.ndarray
RANKS = (4, 3, 2, 1)
SCATTER, GATHER = "reduce-scatter gradients", "all-gather parameters"
NONE: Mapping[str, Array] = MappingProxyType({})


# ---- the notebook's layers -------------------------------------------------------------------------------------------


def forward(flats: Sequence[Array], x: Array) -> list[Array]:
    """x, and what each layer makes of it."""
    h, width = [x.astype(float)], x.shape[1]
    for flat in flats:
        w, b = flat[: width * width].reshape(width, width), flat[width * width : width * width + width]
        h.append(np.tanh(h[-1] @ w + b))
    return h


def slopes(flats: Sequence[Array], x: Array, y: Array, batch: int) -> tuple[float, list[Array]]:
    """What rows contribute to the loss, and to the gradient of each layer; in the padding it is zero."""
    h, width = forward(flats, x), x.shape[1]
    dh, gradients = (h[-1] - y) / batch, list[Array]()
    for i in reversed(range(len(flats))):
        dz = dh * (1 - h[i + 1] ** 2)
        gradient = np.append(h[i].T @ dz, dz.sum(axis=0))
        gradients.insert(0, np.append(gradient, np.zeros(flats[i].size - gradient.size)))
        dh = dz @ flats[i][: width * width].reshape(width, width).T
    return float(((h[-1] - y) ** 2).sum() / 2 / batch), gradients


def descend(
    flats: Sequence[Array], steps: int, rate: float, slopes_of: Callable[[Sequence[Array]], tuple[float, list[Array]]]
) -> tuple[list[float], list[Array]]:
    """What one process has: the loss before each step, and the flat buffers after the last."""
    losses = []
    for _ in range(steps):
        loss, gradients = slopes_of(flats)
        losses.append(loss)
        flats = [flat - rate * gradient for flat, gradient in zip(flats, gradients, strict=True)]
    return losses, list(flats)


def check_loss(run: Case, parts: Sequence[Any], loss: float, function: str = "train_step") -> None:
    """The ranks' parts of the loss are numbers, and add up to it."""
    for rank, part in enumerate(parts):
        if not isinstance(part, float | int | np.floating):
            lose(f"{on(run, rank)}'s {function} returned {part}; its part of the loss is a number.")
    check_sum(run, parts, loss)


def check_sum(run: Case, parts: Sequence[float], loss: float, rtol: float = 1e-9, more: str = "") -> None:
    if not np.isclose(sum(parts), loss, rtol=rtol):
        lose(f"On {run.label}: the ranks' parts of the loss add up to {sum(parts):.6g}, where it is {loss:.6g}.{more}")


def check_array(
    who: str, what: str, found: Any, expected: Array, mistakes: Mapping[str, Array] = NONE, as_it_was: bool = False
) -> None:
    """That an array is as expected, to the last bits and in its dtype; else which of the mistakes it is. as_it_was: it
    had this dtype."""
    if isinstance(found, str):
        lose(f"{who}: {what} is {'None' if found == 'NoneType' else found}, not an array of numbers.")
    if found.shape != expected.shape:
        lose(f"{who}: {what} has shape {found.shape} where {expected.shape} is wanted.")
    if found.dtype != expected.dtype:
        lose(f"{who}: {what} is {found.dtype} where {expected.dtype} is wanted{', as it was' * as_it_was}.")
    if np.allclose(found, expected, rtol=1e-12, atol=1e-12):
        return
    at = tuple(map(int, np.argwhere(~np.isclose(found, expected, rtol=1e-12, atol=1e-12))[0]))
    wanted = f" where {expected[at]:.6g} is wanted" if as_it_was else f", not {expected[at]:.6g}"
    words = named(found, mistakes, lambda one, other: np.allclose(one, other, rtol=1e-12, atol=1e-12), before="")
    words = words or f"at index {at[0] if len(at) == 1 else at} there is {found[at]:.6g}{wanted}"
    lose(f"{who}: {what} does not hold what it should: {words}.")


# ---- what is sent ----------------------------------------------------------------------------------------------------


def check_phases(
    case: Case, rank: int, outcome: Outcome, needed: Mapping[str, int], too_many: str = "needed and enough"
) -> None:
    """As many messages as are needed in each of these phases, and none elsewhere."""
    messages = dict.fromkeys(needed, 0)
    for (phase, _, line), (_, count) in outcome.sent.items():
        if phase not in messages:
            where = "outside of every comm.phase" if phase == "main" else f"in phase {phase!r}"
            lose(
                f"{on(case, rank)} sends {where}{line and f' at {line}'}; what is sent here belongs into"
                f" phase {' or '.join(map(repr, needed))}."
            )
        messages[phase] += count
    for phase, count in messages.items():
        if count != needed[phase]:
            more = "needed" if count < needed[phase] else too_many
            lose(f"{on(case, rank)} sends {count} messages in phase {phase!r}; {needed[phase]} are {more}.")


def check_to_the_right(here: str, case: Case, rank: int, outcome: Outcome, each: int, as_stored: bool = False) -> None:
    """Every message is a shard of `each` bytes, for the right neighbor. here: "On ...: rank 1 sends"."""
    for (phase, peer, line), (nbytes, messages) in outcome.sent.items():
        if peer != (rank + 1) % case.n:
            lose(f"{here} to rank {peer}{line and f' at {line}'}; the ring sends to the right alone.")
        if nbytes != messages * each:
            what = f"a shard as stored has {each:,}. Is it wider?" if as_stored else f"a shard has {each}."
            lose(f"{here} {nbytes:,} bytes in {messages} messages{'' if as_stored else f' in phase {phase!r}'}; {what}")


# ---- an engine's gradients -------------------------------------------------------------------------------------------


def small(
    submission: Submission, n: int, what: str = "", precision: str = "fp64", model: Any = SMALL, **more: Any
) -> Training:
    """A run of a small transformer."""
    return training(submission.random, n, what, model, precision=precision, **more)


def with_numbers(run: Training, submission: Submission, padded: bool) -> Training:
    """Each rank has numbers for every Flat, such as can be recognized in their sum (fp64). padded: also in its padding,
    which else is zero."""
    columns = []
    for unit, flat in enumerate(run.truth.flats):
        size = run.truth.padded(unit)
        if run.arguments["settings"]["precision"] == "fp64":
            numbers = distinct(run.n, size, submission.random)
        else:
            numbers = [submission.random.integers(1, 50, size).astype(float) for _ in range(run.n)]
        for of_rank in numbers:
            of_rank[size if padded else flat.size :] = 0
        columns.append(numbers)
    run.inputs = [tuple(numbers[rank] for numbers in columns) for rank in range(run.n)]
    return run


def check_collect(submission: Submission, asked: Sequence[str]) -> None:
    """The bucket after one unit's backward, and after another's."""
    cases = [
        whole_numbers(submission.random, n, f", {p} precision", p) for n, p in ((2, "fp64"), (2, "mixed"), (1, "fp64"))
    ]
    for run, outcomes in zip(cases, submission.run("collect", cases, asked), strict=True):
        check_buckets(run, outcomes)


def reduced(submission: Submission, asked: Sequence[str]) -> Iterator[tuple[Training, int, Outcome]]:
    """Each rank's flat.grad after one micro-batch, after another, and after both."""
    cases = [whole_numbers(submission.random, n, ", reduce") for n in RANKS]
    return by_rank(submission, "reduce", cases, asked, check_worked)


def wire_cases(submission: Submission) -> list[Training]:
    asked = ((4, "fp64"), (4, "mixed"), (3, "fp64"))
    return [whole_numbers(submission.random, n, f", {precision}", precision) for n, precision in asked]


def sums(run: Training, rank: int, which: int = 0) -> tuple[list[Array], Array]:
    """Every rank's bucket, and a rank's shard of their sum."""
    buckets = [of_rank[which] for of_rank in run.inputs]
    return buckets, run.truth.shard(np.sum(buckets, axis=0), rank)


def lose_sum(run: Training, rank: int, found: Array, zero: str = "") -> None:
    """Say where a rank's shard of the sum is wrong, and what it holds there. zero: what is said if it is zero."""
    buckets, expected = sums(run, rank)
    index = int(np.flatnonzero(~(found == expected))[0])
    what = in_a_sum(found[index], buckets, rank * expected.size + index)
    if np.array_equal(found, run.truth.shard(buckets[rank], rank)):
        what = "it is this rank's own part, not summed over the ranks"
    if zero and not np.any(found):
        what = zero
    lose(f"{on(run, rank)}'s flat.grad is wrong first at index {index}: {what}.")


def check_factor(run: Case, rank: int, factor: float | None) -> None:
    """The sum is not divided. Whether it is a sum at all is asked for elsewhere: then there is no factor."""
    if factor not in (None, 1.0):
        times = f"divided by {1 / factor:g}" if factor < 1 else f"times {factor:g}"
        lose(
            f"{on(run, rank)}'s flat.grad is the sum {times}. The sum is wanted: every rank's loss is weighted by its"
            " share of the batch already."
        )


def check_for_good(
    submission: Submission, cases: Sequence[Training], asked: Sequence[str], stage: int, words: str
) -> None:
    """Before the first step, a rank holds a stage's model states and no more. words: with {states}, what these are."""
    for run, rank, outcome in by_rank(submission, "hold_for_good", cases, asked):
        states = round(zero.model_states(sum(unit_sizes(run).values()), run.n, stage).total)
        if outcome.value > states + SLACK:
            held = f"{on(run, rank)} holds {outcome.value:,} bytes of arrays before the first step"
            lose(f"{held}; {words.format(states=f'{states:,}')}")
