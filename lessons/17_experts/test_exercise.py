"""The grade of lesson 17: `pytest lessons/17_experts`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew; all functions are the student's own in every
part. Choices, rows, gates and gradients are drawn for each grade, on one to four ranks that know only their own. Truth
is computed here, from the inputs of all ranks; gradients come from finite differences. At the end all functions work
together in a mixture, which is compared with one that takes token by token. A part earns its points or not; none needs
a later one, and one mistake costs one part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from minidist.classroom.grading.checks import (
    an_array,
    check_array,
    differences,
    fail_together,
    gaps,
    is_right,
    multiple,
    parts_by_function,
    same,
    shape,
    things,
)
from minidist.classroom.grading.meaning import check_meaning, check_worked, working
from minidist.classroom.grading.parts import by_case, describe, large, on, ranks
from minidist.classroom.grading.submission import Case, Lost, Outcome, Submission, lose
from minidist.ring import chunk

Array = np.ndarray
ASKED = (
    *("arrange", "copy_rows", "copy_rows_backward", "add_rows", "add_rows_backward"),
    *("count_shares", "balance_loss", "balance_backward", "dispatch", "combine", "sum_gradients"),
)
HIDDEN = ("answers", "given", "minidist.expert_parallel", "minidist.nn.mixture")  # what a submission cannot import


# ---- comparing -------------------------------------------------------------------------------------------------------


def call(submission: Submission, function: str, cases: Sequence[Case]) -> list[tuple[Case, list[Outcome]]]:
    """Each case with what came of it."""
    for each in cases:
        each.arguments["function"] = function
    return [*by_case(submission, "call", cases, [function])]


def integers(each: Case, found: Any, name: str, size: int) -> Array:
    found = an_array(each, found, name, (size,))
    if found.dtype.kind not in "iu":
        lose(f"On {each.label}: {name} has the dtype {found.dtype}; integers are wanted.")
    return found


# ---- rows ------------------------------------------------------------------------------------------------------------


def arrange_case(submission: Submission, m: int, experts: int, room: float) -> Case:
    """Choices that are drawn; room: the capacity, times the largest number of choices of an expert."""
    expert = submission.random.integers(0, experts, m)
    capacity = max(1, int(room * np.bincount(expert, minlength=1).max()))
    return Case(1, f"arrange of {m} choices, {experts} experts, capacity {capacity}", [[expert, experts, capacity]])


def slots_of(submission: Submission, sizes: Sequence[tuple[int, int, float]]) -> list[tuple[Case, Array, Array]]:
    """Each case with its slot and place; place is looked at elsewhere."""
    cases, found = [arrange_case(submission, *of) for of in sizes], []
    for each, [outcome] in call(submission, "arrange", cases):
        slot, place = things(f"On {each.label}: it", outcome.value["returned"], ("slot", "place"))
        expert, experts, capacity = each.inputs[0]
        slot = integers(each, slot, "slot", experts * capacity)
        if not np.array_equal(outcome.value["handed"][0], expert):
            lose(f"On {each.label}: expert was changed.")
        found.append((each, slot, place))
    return found


def check_slot(each: Case, slot: Array) -> None:
    """A row of its expert for each choice, where there is room for all; in any order within an expert."""
    expert, _, capacity = each.inputs[0]
    if np.any((slot < -1) | (slot >= len(expert))):
        lose(f"On {each.label}: slot has numbers outside of -1 to {len(expert) - 1}.")
    for row, choice in enumerate(slot):
        if choice >= 0 and expert[choice] != row // capacity:
            lose(
                f"On {each.label}: in row {row}, which belongs to expert {row // capacity}, is choice {choice},"
                f" whose expert is {expert[choice]}."
            )
        if choice >= 0 and row % capacity and slot[row - 1] < 0:
            lose(f"On {each.label}: row {row} is filled, and row {row - 1} of the same expert is empty: no gaps.")
    for choice in range(len(expert)):
        if (times := int((slot == choice).sum())) != 1:
            lose(f"On {each.label}: choice {choice} has {times} rows; one is wanted, and there is room for all.")


@pytest.mark.points(1, "arrange: a row of its expert for each choice")
def test_arrange(submission: Submission) -> None:
    for each, slot, _ in slots_of(submission, [(12, 3, 1), (17, 5, 1.4), (9, 1, 1), (7, 4, 3)]):
        check_slot(each, slot)


def with_plain(submission: Submission, sizes: Sequence[tuple[int, int, float]]) -> tuple[bool, list[Any]]:
    """Whether slot is right where there is room for all: if not, another part says so; and the cases of these sizes."""
    (plain, slot, _), *found = slots_of(submission, [(12, 3, 1), *sizes])
    return is_right(check_slot, plain, slot), found


@pytest.mark.points(2, "arrange: a full expert drops those that come last")
def test_arrange_full(submission: Submission) -> None:
    right, found = with_plain(submission, [(20, 3, 0.5), (23, 4, 0.7), (30, 5, 0.3), (8, 1, 0.4)])
    for each, slot, _ in found:
        expert, experts, capacity = each.inputs[0]
        kept = set(slot[slot >= 0].tolist())
        most = int(np.minimum(np.bincount(expert), capacity).sum())
        if not right and len(kept) != most:
            lose(f"On {each.label}: {len(kept)} choices have a row; {most} are wanted.")
        for e in range(experts) if right else ():
            queue = np.flatnonzero(expert == e).tolist()
            stayed = [choice for choice in queue if choice in kept]
            if stayed != queue[:capacity]:
                lose(
                    f"On {each.label}: expert {e} is the choice of {queue}, in this order, and has {capacity} rows. It"
                    f" kept {stayed}; {queue[:capacity]} are wanted."
                )


@pytest.mark.points(1, "arrange: place is the inverse of slot")
def test_arrange_place(submission: Submission) -> None:
    """Whatever is in slot."""
    right, found = with_plain(submission, [(12, 3, 1), (20, 3, 0.5), (15, 4, 0.6)])
    for each, slot, place in found:
        place = integers(each, place, "place", len(each.inputs[0][0]))
        filled = place[place >= 0]
        if not right and np.unique(filled).size == filled.size == np.count_nonzero(slot >= 0):
            continue
        for choice, row in enumerate(place):
            rows = np.flatnonzero(slot == choice).tolist()
            if rows and row not in rows:
                lose(f"On {each.label}: choice {choice} is in row {rows[0]} of slot, and its place is {row}.")
            if not rows and row != -1:
                lose(f"On {each.label}: choice {choice} is in no row of slot, and its place is {row}; -1 is wanted.")


class Rows(NamedTuple):
    """Choices in rows that are drawn, some dropped, some rows empty: number of choice, token and row of each that has
    one; and what a program is told of them."""

    held: list[tuple[int, int, int]]
    slot: Array
    place: Array

    def shared(self, n: int, gates: Array | None = None) -> Array:
        """What each row is to each token: (n, R), of ones or of gates."""
        of = np.zeros((n, len(self.slot)))
        for j, t, row in self.held:
            of[t, row] = 1.0 if gates is None else gates[j, t]
        return of


def draw_rows(submission: Submission, k: int, n: int, rows: int, dropped: int) -> Rows:
    kept = submission.random.permutation(k * n)[dropped:]
    slot, place = np.full(rows, -1), np.full(k * n, -1)
    place[kept] = submission.random.permutation(rows)[: len(kept)]
    slot[place[kept]] = kept
    return Rows([(int(choice) // n, int(choice) % n, int(place[choice])) for choice in kept], slot, place)


ROWS = [(1, 5, 8, 0), (2, 4, 9, 2), (3, 3, 12, 1), (2, 6, 10, 5)]  # k, n, rows, dropped


def width_of(submission: Submission, rows: int) -> int:
    """Of rows: three numbers, but of the last ones of ROWS as many as are drawn."""
    return 3 if rows != ROWS[-1][2] else large(submission, most=4_000)


def label(function: str, k: int, n: int, rows: int, dropped: int) -> str:
    return f"{function}, {n} tokens, k = {k}, {rows} rows, {dropped} choices dropped"


@pytest.mark.points(1, "copy_rows: a token for each row, zeros if it is empty")
def test_copy_rows(submission: Submission) -> None:
    drawn = [draw_rows(submission, *of) for of in ROWS]
    cases = []
    for of, (k, n, rows, dropped) in zip(drawn, ROWS, strict=True):
        x = submission.random.standard_normal((n, width_of(submission, rows)))
        cases.append(Case(1, label("copy_rows", k, n, rows, dropped), [[x, of.slot]]))
    for (each, [outcome]), of, (k, n, *_) in zip(call(submission, "copy_rows", cases), drawn, ROWS, strict=True):
        x, slot = each.inputs[0]
        expected, filled = of.shared(n).T @ x, (slot >= 0)[:, None]
        mistakes = {
            "An empty row has a token in it: -1 is the last one's index, too.": np.where(filled, expected, x[-1]),
            "Choice j·n + t is one of token t, not of token (j·n + t) // k.": np.where(filled, x[slot // k], 0),
            "Choice j·n + t is one of token t: its number is larger than n.": np.where(
                filled, x[np.minimum(slot, n - 1)], 0
            ),
            "Row r is not of token r: slot says of which choice.": np.where(filled, x[np.arange(len(slot)) % n], 0),
        }
        check_array(each, outcome.value["returned"], "the array of rows", expected, mistakes)


@pytest.mark.points(1, "copy_rows_backward: the sum over a token's rows")
def test_copy_rows_backward(submission: Submission) -> None:
    drawn = [draw_rows(submission, *of) for of in ROWS]
    cases = []
    for of, (k, n, rows, dropped) in zip(drawn, ROWS, strict=True):
        drows = submission.random.standard_normal((rows, width_of(submission, rows)))
        cases.append(Case(1, label("copy_rows_backward", k, n, rows, dropped), [[drows, of.slot, n]]))
    for (each, [outcome]), of in zip(call(submission, "copy_rows_backward", cases), drawn, strict=True):
        drows, slot, n = each.inputs[0]
        of_rows = of.shared(n).T
        expected = of_rows.T @ drows
        last, empty = np.zeros_like(expected), expected.copy()
        for _, t, row in sorted(of.held, key=lambda each: each[2]):
            last[t] = drows[row]
        empty[-1] += drows[slot < 0].sum(axis=0)
        mistakes = {
            "Of each token only one row's gradient is there. An assignment to an array of indices does not add:"
            " see np.add.at.": last,
            "The gradients of empty rows went to the last token.": empty,
            "It is the mean over a token's rows; the sum is wanted.": expected / np.maximum(of_rows.sum(0), 1)[:, None],
        }
        check_array(each, outcome.value["returned"], "dx", expected, mistakes)


@dataclass
class Sum(Case):
    """Rows that are added up, each for one token, with a gate."""

    rows: Rows = field(kw_only=True)

    def weights(self, gates: Array | None = None) -> Array:
        """(n, R); of other gates than its own, if they are given."""
        own = self.inputs[0][-2]
        return self.rows.shared(own.shape[1], own if gates is None else gates)

    def slips(self) -> dict[str, Array]:
        """Weights of what may be done instead, by what is to be said of it."""
        gates = self.inputs[0][-2]
        k, n = gates.shape
        said = {
            "It has no gates.": self.weights(np.ones_like(gates)),
            "It has the gates of other choices: gates[j, t] belongs to choice j of token t.": self.weights(gates[::-1]),
            "It has the gates of other tokens: gates (k, n) is not (n, k).": self.weights(gates.reshape(n, k).T),
            "It has each gate twice.": self.weights(gates**2),
        }
        for which, words in ((0, "first"), (k - 1, "last")):
            alone = np.zeros_like(gates)
            alone[which] = gates[which]
            said[f"It is of each token's {words} choice alone."] = self.weights(alone)
        latest = np.zeros_like(self.weights())
        for j, t, row in sorted(self.rows.held):
            latest[t] = 0
            latest[t, row] = gates[j, t]
        return said | {"It is of each token's last choice that has a row: choices add up.": latest}


def sum_cases(submission: Submission, function: str) -> list[Sum]:
    cases = []
    for k, n, rows, dropped in ROWS:
        drawn = draw_rows(submission, k, n, rows, dropped)
        width = width_of(submission, rows)
        filled, dy = submission.random.standard_normal((rows, width)), submission.random.standard_normal((n, width))
        gates = submission.random.uniform(0.1, 0.9, (k, n))
        inputs = [filled, gates, drawn.place] if function == "add_rows" else [dy, filled, gates, drawn.place]
        cases.append(Sum(1, label(function, k, n, rows, dropped), [inputs], rows=drawn))
    return cases


@pytest.mark.points(1, "add_rows: the sum with gates; what is dropped adds nothing")
def test_add_rows(submission: Submission) -> None:
    cases = sum_cases(submission, "add_rows")
    for each, (_, [outcome]) in zip(cases, call(submission, "add_rows", cases), strict=True):
        rows, gates, place = each.inputs[0]
        expected, weights = each.weights() @ rows, each.weights()
        for j, t in np.argwhere(place.reshape(gates.shape) < 0):
            weights[t, -1] += gates[j, t]
        mistakes = {"A dropped choice has added the last row: -1 is its index, too.": weights @ rows}
        mistakes |= {said: of @ rows for said, of in each.slips().items()}
        check_array(each, outcome.value["returned"], "y", expected, mistakes)


def backwards(submission: Submission) -> list[tuple[Sum, list[Any]]]:
    cases, found = sum_cases(submission, "add_rows_backward"), []
    for each, (_, [outcome]) in zip(cases, call(submission, "add_rows_backward", cases), strict=True):
        found.append((each, things(f"On {each.label}: it", outcome.value["returned"], ("drows", "dgates"))))
    return found


@pytest.mark.points(1, "add_rows_backward: the rows' gradient")
def test_add_rows_backward(submission: Submission) -> None:
    for each, (drows, _) in backwards(submission):
        dy, *_ = each.inputs[0]
        weights = each.weights()
        expected = weights.T @ dy
        check_array(each, drows, "drows", expected, {said: of.T @ dy for said, of in each.slips().items()})


@pytest.mark.points(1, "add_rows_backward: the gates' gradient")
def test_add_rows_backward_gates(submission: Submission) -> None:
    for each, (_, dgates) in backwards(submission):
        dy, rows, gates, place = each.inputs[0]
        expected = differences(lambda of=each, rows=rows, dy=dy: float((dy * (of.weights() @ rows)).sum()), gates)
        dropped = np.where(place.reshape(gates.shape) < 0, dy @ rows[-1], expected)
        mistakes = {
            "It is zero: so no router would ever learn from the loss.": np.zeros_like(gates),
            "Gates of dropped choices have a gradient; -1 is the last row's index, too.": dropped,
            "It has the gate in it: the gradient of a product by one factor is the other one.": gates * expected,
            "It is the sum over a token's choices: each gate has a row of its own.": expected.sum(0) + 0 * gates,
        }
        check_array(each, dgates, "dgates", expected, mistakes)


# ---- balance ---------------------------------------------------------------------------------------------------------


@pytest.mark.points(1, "count_shares: of all ranks' choices")
def test_count_shares(submission: Submission) -> None:
    cases = []
    for n, experts in ((1, 3), (2, 4), (3, 5), (4, 7)):  # the last expert is nobody's choice
        sizes = submission.random.integers(3, 20, n)
        inputs = [[submission.random.integers(0, experts - 1, size), experts] for size in sizes]
        cases.append(Case(n, f"count_shares, {ranks(n)} with {', '.join(map(str, sizes))} choices", inputs))
    for each, outcomes in call(submission, "count_shares", cases):
        experts = each.inputs[0][1]
        counts = np.array([[(mine == e).sum() for e in range(experts)] for mine, _ in each.inputs])
        for rank, outcome in enumerate(outcomes):
            own = counts / counts.sum(axis=1, keepdims=True)
            mistakes = {
                "It is of this rank's choices alone.": own[rank],
                "It is the mean of the ranks' shares; ranks may have different numbers of choices.": own.mean(axis=0),
                "These are numbers of choices, not shares.": counts.sum(axis=0),
            }
            expected = counts.sum(axis=0) / counts.sum()
            check_array(each, outcome.value["returned"], f"f on rank {rank}", expected, mistakes)


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def draw_router(submission: Submission, n: int, experts: int) -> tuple[Array, Array, float]:
    """(logits, share, alpha)"""
    random = submission.random
    return 2 * random.standard_normal((n, experts)), random.dirichlet(np.ones(experts)), float(random.uniform(0.1, 2))


@pytest.mark.points(1, "balance_loss: α if uniform, αE if collapsed")
def test_balance_loss(submission: Submission) -> None:
    asked: list[tuple[str, list[Any], float]] = []
    for n, experts in ((6, 4), (5, 3), (7, 8)):
        logits, share, alpha = draw_router(submission, n, experts)
        even, one = np.full((n, experts), 1 / experts), np.eye(experts)[:1].repeat(n, axis=0)
        drawn = sum(alpha * experts * share[e] * row[e] / n for row in softmax(logits) for e in range(experts))
        asked += [
            (f"{n} tokens, {experts} experts, a uniform router", [even, even[0], alpha], alpha),
            (f"{n} tokens, {experts} experts, all to the first one", [one, one[0], alpha], alpha * experts),
            (f"{n} tokens, {experts} experts, drawn", [softmax(logits), share, alpha], drawn),
        ]
    cases = [Case(1, f"balance_loss, {name}", [inputs]) for name, inputs, _ in asked]
    for (each, [outcome]), (_, inputs, wanted) in zip(call(submission, "balance_loss", cases), asked, strict=True):
        found = outcome.value["returned"]
        if not isinstance(found, float):
            lose(f"On {each.label}: it returned {describe(found)}, not a float.")
        if not abs(found - wanted) <= 1e-9 * abs(wanted):
            lose(
                f"On {each.label}, α = {inputs[2]:.4g}: it is {found:.6g}; {wanted:.6g} is wanted. It is"
                f" {found / wanted:.4g} times that."
            )


@pytest.mark.points(1, "balance_backward: by the logits")
def test_balance_backward(submission: Submission) -> None:
    drawn = [draw_router(submission, *sizes) for sizes in ((6, 4), (5, 3), (1, 2))]
    cases = [
        Case(1, f"balance_backward, logits {shape(logits)}", [[softmax(logits), share, alpha]])
        for logits, share, alpha in drawn
    ]
    for (each, [outcome]), (logits, share, alpha) in zip(
        call(submission, "balance_backward", cases), drawn, strict=True
    ):
        n, experts = logits.shape
        expected = differences(
            lambda z=logits, f=share, a=alpha: a * len(f) * sum(float(row @ f) for row in softmax(z)) / len(z), logits
        )
        mistakes = {
            "It is the gradient by the probabilities; the softmax is missing.": np.tile(
                alpha * experts * share / n, (n, 1)
            ),
            "Divide by the number of tokens: P is a mean.": expected * n,
        }
        check_array(each, outcome.value["returned"], "the gradient", expected, mistakes)


# ---- ranks -----------------------------------------------------------------------------------------------------------

WAYS = [(1, 3), (2, 4), (3, 4), (4, 4), (4, 6), (2, 5)]  # ranks, experts


@dataclass
class Way(Case):
    """Rows on their way. counts (N, E): each rank's rows for each expert."""

    counts: Array = field(kw_only=True)

    @property
    def width(self) -> int:
        return int(self.inputs[0][0].shape[1])

    def arriving(self, rank: int) -> list[tuple[int, int]]:
        """Of each row that arrives on a rank, in order: where it comes from, and its number there."""
        starts, experts = np.cumsum(self.counts, axis=1) - self.counts, self.counts.shape[1]
        here = range(experts)[chunk(experts, self.n, rank)]
        return [
            (source, int(starts[source, e]) + i)
            for e in here
            for source in range(self.n)
            for i in range(self.counts[source, e])
        ]

    def coming(self, rank: int) -> Array:
        return self.counts[:, chunk(self.counts.shape[1], self.n, rank)].copy()


def way(
    submission: Submission, function: str, n: int, experts: int, least: int = 0, dtype: str = "float64", width: int = 3
) -> Way:
    """Drawn rows; of dispatch's case those of each rank, of combine's those of its experts."""
    counts = submission.random.integers(least, 4, (n, experts))
    while least and len({row.tobytes() for row in counts}) < n:  # no two messages alike
        counts = submission.random.integers(least, 4, (n, experts))
    words = f"{function}, {ranks(n)}, {experts} experts{', float32' * (dtype == 'float32')}"
    made = Way(n, words, [], {"function": function}, counts=counts)
    inputs: list[list[Array]] = []
    for rank in range(n):
        size = counts[rank].sum() if function == "dispatch" else len(made.arriving(rank))
        rows = submission.random.standard_normal((int(size), width)).astype(dtype)
        inputs.append([rows, counts[rank]] if function == "dispatch" else [rows, made.coming(rank), counts[rank]])
    made.inputs = inputs
    return made


def check_dtype(each: Case, found: Array, name: str) -> None:
    """That rows stay what they are."""
    if (wanted := each.inputs[0][0].dtype) != found.dtype:
        lose(f"On {each.label}: {name} is {found.dtype}; rows stay what they are, {wanted}.")


def in_another_order(found: Any, expected: Array) -> dict[str, Array]:
    """What is to be said of rows that are the right ones, in wrong places."""
    alike = isinstance(found, np.ndarray) and found.shape == expected.shape
    if not alike or not same(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)]):
        return {}
    return {"These are the right rows, in another order.": found}


def check_dispatch(each: Way, outcomes: Sequence[Outcome]) -> None:
    for rank, outcome in enumerate(outcomes):
        arrived, coming = things(on(each, rank), outcome.value["returned"], ("arrived", "coming"))
        order, wanted = each.arriving(rank), each.coming(rank)
        expected = np.array([each.inputs[source][0][number] for source, number in order]).reshape(-1, each.width)
        by_rank = np.array([each.inputs[source][0][number] for source, number in sorted(order)]).reshape(-1, each.width)
        mistakes = {"They are sorted by rank: as they arrive. Sort them by expert.": by_rank}
        mistakes |= in_another_order(arrived, expected)
        check_array(each, arrived, f"arrived on rank {rank}", expected, mistakes)
        check_dtype(each, arrived, f"arrived on rank {rank}")
        coming = an_array(each, coming, f"coming on rank {rank}", wanted.shape)
        if not np.array_equal(coming, wanted):
            lose(f"On {each.label}: coming on rank {rank} is {coming.tolist()}; {wanted.tolist()} is wanted.")


def check_combine(each: Way, outcomes: Sequence[Outcome]) -> None:
    results = {
        of: row for rank in range(each.n) for of, row in zip(each.arriving(rank), each.inputs[rank][0], strict=True)
    }
    for rank, outcome in enumerate(outcomes):
        size = int(each.counts[rank].sum())
        expected = np.array([results[rank, number] for number in range(size)]).reshape(-1, each.width)
        mistakes = in_another_order(outcome.value["returned"], expected)
        check_array(each, outcome.value["returned"], f"rank {rank}'s rows", expected, mistakes)
        check_dtype(each, outcome.value["returned"], f"rank {rank}'s rows")


@pytest.mark.points(2, "dispatch: all ranks' rows, sorted by expert")
def test_dispatch(submission: Submission) -> None:
    cases = [way(submission, "dispatch", *of) for of in WAYS] + [way(submission, "dispatch", 2, 4, dtype="float32")]
    cases.append(way(submission, "dispatch", 2, 4, width=large(submission, most=10_000)))
    for each, (_, outcomes) in zip(cases, call(submission, "dispatch", cases), strict=True):
        check_dispatch(each, outcomes)


@pytest.mark.points(1, "combine: the way back")
def test_combine(submission: Submission) -> None:
    cases = [way(submission, "combine", *of) for of in WAYS] + [way(submission, "combine", 2, 4, dtype="float32")]
    cases.append(way(submission, "combine", 2, 4, width=large(submission, most=10_000)))
    for each, (_, outcomes) in zip(cases, call(submission, "combine", cases), strict=True):
        check_combine(each, outcomes)


def check_way(each: Case, outcomes: Sequence[Outcome]) -> None:
    assert isinstance(each, Way)
    (check_dispatch if each.arguments["function"] == "dispatch" else check_combine)(each, outcomes)


@pytest.mark.points(1, "dispatch, combine: only rows that must travel")
def test_wire(submission: Submission) -> None:
    """Of functions whose results are right: so at least these rows have traveled."""
    cases = {function: [way(submission, function, *of) for of in WAYS] for function in ("dispatch", "combine")}
    for function, runs in working(submission, "call", cases, check_way):
        for each, outcomes in zip(cases[function], runs, strict=True):
            check_bytes(each, outcomes)


def check_bytes(each: Way, outcomes: Sequence[Outcome]) -> None:
    """8 bytes for each number of a row that another rank needs, and, with dispatch, for each count that it needs."""
    is_dispatch, experts = each.arguments["function"] == "dispatch", each.counts.shape[1]
    for rank, outcome in enumerate(outcomes):
        for peer in set(range(each.n)) - {rank}:
            sent = sum(nbytes for (_, dest, _), (nbytes, _) in outcome.sent.items() if dest == peer)
            to_peer = each.counts[rank, chunk(experts, each.n, peer)]
            rows = int((to_peer if is_dispatch else each.counts[peer, chunk(experts, each.n, rank)]).sum())
            most = 8 * (3 * rows + is_dispatch * len(to_peer))
            if sent > most:
                lose(
                    f"{on(each, rank)} sends {sent} bytes to rank {peer}, which needs {rows} rows of 24"
                    f" bytes{f' and {len(to_peer)} counts of 8' * is_dispatch}: {most}."
                )


def sums_case(submission: Submission, n: int, group: int) -> Case:
    inputs = [
        [[submission.random.standard_normal(size) for size in sizes] for sizes in ((5, 2), (4, 7))] for _ in range(n)
    ]
    arguments = {"function": "sum_gradients", "group": group}
    return Case(n, f"{ranks(n)}, experts divided among {group}", inputs, arguments)


SUMS = [(4, 2), (4, 4), (4, 1), (3, 3), (2, 1), (1, 1)]  # ranks; how many of them divide the experts


def sums(submission: Submission) -> list[tuple[str, int, list[Any], list[tuple[str, Array, Array, Array, Array]]]]:
    """Of each rank: where, the number of ranks, the arrays that were handed; and of each gradient its name, what is in
    the list now, this rank's own, the sum over the right ranks, and the one over the others."""
    cases, found = [sums_case(submission, *of) for of in SUMS], []
    for each, outcomes in by_case(submission, "call", cases, ["sum_gradients"]):
        group = each.arguments["group"]
        for rank, outcome in enumerate(outcomes):
            gradients = []
            for number, value in enumerate(outcome.value["returned"]):
                is_expert, which = divmod(number, 2)
                everywhere = [each.inputs[other][is_expert][which] for other in range(each.n)]
                of_copies, of_all = sum(everywhere[rank % group :: group]), sum(everywhere)
                name = f"the gradient of {'an expert' if is_expert else 'a dense parameter'} on rank {rank}"
                wanted, other = (of_copies, of_all) if is_expert else (of_all, of_copies)
                found_here = an_array(each, value, name, wanted.shape)
                gradients.append((name, found_here, everywhere[rank], wanted, other))
            found.append((f"On {each.label}", each.n, outcome.value["handed"], gradients))
    return found


@pytest.mark.points(1, "sum_gradients: over the right ranks, in place")
def test_sum_gradients(submission: Submission) -> None:
    """Up to a factor."""
    for where, _, handed, gradients in sums(submission):
        for (name, found, own, wanted, other), array in zip(gradients, handed, strict=True):
            if not np.array_equal(array, found):
                lose(f"{where}: {name} is another array; put the result into the one that was there.")
            if multiple(found, wanted) is None:
                what = " It is this rank's own." * (multiple(found, own) is not None)
                if multiple(found, other) is not None and not what:
                    experts = "those of different experts", "those of the ranks with the same experts alone"
                    what = f" It is the sum of {experts['dense' in name]}."
                lose(f"{where}: {name} is not the sum over the ranks that have this parameter.{what}")


@pytest.mark.points(1, "sum_gradients: of the mean over all ranks' tokens")
def test_sum_gradients_factor(submission: Submission) -> None:
    for where, n, _, gradients in sums(submission):
        for name, found, own, wanted, _ in gradients:
            if np.array_equal(found, own) and n > 1:
                lose(f"{where}: {name} has not changed.")
            factor = multiple(found, wanted / n)
            if factor is not None and abs(factor - 1) > 1e-9:
                lose(
                    f"{where}: {name} is {factor:.4g} times what it should be. The batch's loss is the mean of {n}"
                    " ranks' losses, whichever ranks have sent their rows."
                )


# ---- all functions together ------------------------------------------------------------------------------------------


@dataclass
class Layer(Case):
    """A mixture on ranks, and the same token by token. Inputs of a rank: x, dy, the router, its experts' matrices."""

    matrices: Array = field(kw_only=True)  # (E, h, h), of all experts
    router: Array = field(kw_only=True)

    def losses(self, share: Array | None = None) -> list[float]:
        """Each rank's loss: Σ dy·y and the balance loss, one choice after the other."""
        k, capacity, alpha = (self.arguments[name] for name in ("k", "capacity", "alpha"))
        found = []
        share = self.shares() if share is None else share
        for x, dy, _, _ in self.inputs:
            prob, used, loss = softmax(x @ self.router), [0] * len(self.matrices), 0.0
            for j in range(k):
                for t, token in enumerate(x):
                    e = int(np.argsort(-prob[t])[j])
                    if used[e] < capacity:
                        used[e] += 1
                        loss += prob[t, e] * float(dy[t] @ (token @ self.matrices[e]))
            found.append(loss + alpha * len(share) * sum(float(row @ share) for row in prob) / len(prob))
        return found

    def shares(self) -> Array:
        chosen = [np.argsort(-softmax(x @ self.router), axis=1)[:, : self.arguments["k"]] for x, *_ in self.inputs]
        return np.array([np.mean(np.concatenate(chosen) == e) for e in range(len(self.matrices))])


def layer_case(submission: Submission, n: int, group: int, experts: int, k: int, capacity: int) -> Layer:
    random, h, tokens = submission.random.standard_normal, 3, 4
    matrices, router, inputs = random((experts, h, h)), random((h, experts)), []
    for rank in range(n):
        here = chunk(experts, group, rank % group)
        inputs.append([random((tokens, h)), random((tokens, h)), router, matrices[here]])
    arguments = {"group": group, "k": k, "capacity": capacity, "alpha": 0.5}
    name = f"a mixture on {ranks(n)}, {experts} experts divided among {group}, k = {k}, capacity {capacity}"
    return Layer(n, name, inputs, arguments, matrices=matrices, router=router)


def check_layer(each: Layer, outcomes: Sequence[Outcome]) -> None:
    share, experts = each.shares(), len(each.matrices)
    losses = each.losses()
    drouter = differences(lambda: float(np.mean(each.losses(share))), each.router)
    dmatrices = differences(lambda: float(np.mean(each.losses(share))), each.matrices)
    for rank, outcome in enumerate(outcomes):
        value = outcome.value
        if not abs(value["loss"] - losses[rank]) <= 1e-6 * (1 + abs(losses[rank])):
            lose(f"{on(each, rank)}'s loss is {value['loss']:.6g}; {losses[rank]:.6g} is wanted.")
        dx = differences(lambda: sum(each.losses(share)), each.inputs[rank][0])  # what this rank's tokens do anywhere
        check_array(each, value["dx"], f"dx on rank {rank}", dx)
        check_array(each, value["drouter"], f"the router's gradient on rank {rank}", drouter)
        here = range(experts)[chunk(experts, each.arguments["group"], rank % each.arguments["group"])]
        for e, found in zip(here, value["dmatrices"], strict=True):
            check_array(each, found, f"the gradient of expert {e} on rank {rank}", dmatrices[e])


@pytest.mark.points(1, "all together: a mixture, as token by token")
def test_layer(submission: Submission) -> None:
    """If a function is wrong on its own, this part loses nothing: another part asks for that function. If most of those
    parts are lost, there is no mixture yet."""
    sizes = [(1, 1, 3, 2, 2), (4, 2, 4, 2, 2), (3, 3, 4, 1, 2), (2, 2, 2, 2, 8)]
    cases = [layer_case(submission, *of) for of in sizes]
    try:
        for each, outcomes in zip(cases, submission.attempt("layer", cases, ASKED), strict=True):
            check_layer(each, outcomes)
    except (Lost, pytest.fail.Exception) as lost:
        words = "Each function is right on its own; together they fail. Does one change its arguments?"
        fail_together(submission, lost, ALONE, len(ALONE) // 2, words)


@pytest.mark.points(1, "every message means something")
def test_meaning(submission: Submission) -> None:
    cases: dict[str, Case] = {name: way(submission, name, 2, 4, least=1) for name in ("dispatch", "combine")}
    cases["sum_gradients"] = sums_case(submission, 4, 2)
    check_meaning(submission, "call", cases, check_worked)


ALONE = (
    *(test_arrange, test_arrange_full, test_arrange_place, test_copy_rows, test_copy_rows_backward, test_add_rows),
    *(
        test_add_rows_backward,
        test_add_rows_backward_gates,
        test_count_shares,
        test_balance_loss,
        test_balance_backward,
    ),
    *(test_dispatch, test_combine, test_sum_gradients, test_sum_gradients_factor),
)


# ---- the notebook's gaps, which earn no points: check("queue_numbers") runs these ------------------------------------


def check_queue_numbers(submission: Submission) -> None:
    for m, experts in ((8, 3), (15, 4)):
        expert = submission.random.integers(0, experts, m)
        each = Case(1, f"queue_numbers of the choices {expert.tolist()}", [[expert, experts]])
        [(_, [outcome])] = call(submission, "queue_numbers", [each])
        expected = np.array([np.count_nonzero(expert[:choice] == e) for choice, e in enumerate(expert)])
        mistakes = {"Count from 0: before the first choice of an expert there is none.": expected + 1}
        check_array(each, outcome.value["returned"], "the queue's numbers", expected, mistakes)


def check_copy_back(submission: Submission) -> None:
    drows, token = submission.random.standard_normal((6, 3)), np.array([2, 0, 2, 4, 0, 2])
    each = Case(1, f"copy_back of rows of the tokens {token.tolist()}", [[drows, token, 5]])
    [(_, [outcome])] = call(submission, "copy_back", [each])
    last = np.zeros((5, 3))
    for row, t in enumerate(token):
        last[t] = drows[row]
    mistakes = {"Only one row of each token is there: dx[token] += drows does not add twice.": last}
    check_array(each, outcome.value["returned"], "dx", (token == np.arange(5)[:, None]) @ drows, mistakes)


def check_balance_slope(submission: Submission) -> None:
    logits, share, alpha = draw_router(submission, 5, 4)
    each = Case(1, "balance_slope, 5 tokens, 4 experts", [[softmax(logits), share, alpha]])
    [(_, [outcome])] = call(submission, "balance_slope", [each])
    expected = differences(lambda: alpha * 4 * sum(float(row @ share) for row in softmax(logits)) / 5, logits)
    plain = np.tile(alpha * 4 * share / 5, (5, 1))
    mistakes = {"It is the gradient by the probabilities; now through the softmax.": plain}
    check_array(each, outcome.value["returned"], "the gradient", expected, mistakes)


def check_rows(submission: Submission, function: str) -> None:
    for p, experts in ((1, 2), (2, 4), (4, 4)):
        here, capacity = experts // p, 2
        rows = submission.random.standard_normal((p, experts, capacity, 3))  # of each rank, for each expert
        arrived = [np.concatenate(list(rows[:, e]), axis=0) for e in range(experts)]  # of each expert, rank by rank
        inputs = [np.stack(arrived[rank * here : (rank + 1) * here]) for rank in range(p)]
        expected = [rows[rank] for rank in range(p)]
        if function == "to_experts":
            inputs, expected = expected, inputs
        each = Case(p, f"{function}, {ranks(p)}, {experts} experts", [[x] for x in inputs])
        [(_, outcomes)] = call(submission, function, [each])
        for rank, outcome in enumerate(outcomes):
            check_array(each, outcome.value["returned"], f"rank {rank}'s rows", expected[rank])


def check_average(submission: Submission) -> None:
    for n, group in ((4, 2), (4, 4), (2, 1)):
        drawn = submission.random.standard_normal((n, 2, 3))
        each = Case(n, f"average, {ranks(n)}, experts divided among {group}", list(map(list, drawn)), {"group": group})
        [outcomes] = submission.run("averaged", [each], ["average"])
        for rank, outcome in enumerate(outcomes):
            over_copies = drawn[rank % group :: group].sum(axis=0)
            check_array(each, outcome.value[0], f"a dense gradient on rank {rank}", drawn[:, 0].sum(axis=0) / n)
            mistakes = {
                "It is the sum of different experts' gradients.": drawn[:, 1].sum(axis=0) / n,
                "It is divided by the number of copies; the loss is the mean over all ranks' tokens.": over_copies[1]
                * group
                / n,
            }
            check_array(each, outcome.value[1], f"an expert's gradient on rank {rank}", over_copies[1] / n, mistakes)


GAPS = gaps(globals(), "queue_numbers", "copy_back", "balance_slope", "average") | {
    "to_experts": partial(check_rows, function="to_experts"),
    "to_tokens": partial(check_rows, function="to_tokens"),
}

PARTS = parts_by_function(globals())
