"""The grade of lesson 16: `pytest lessons/16_long_sequences`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew. Arrays, cuts and sizes are drawn for each
grade. Every rank knows only the queries, keys and values of its own positions; the truth is attention in one process
that has all of them, and slopes come from finite differences of it. Of a cut no part asks for one that it knows: it
asks for what holds of every cut that balances. A part earns its points or not; none needs a later one, and one mistake
costs one part. Parts on uneven cuts ask for results as right as those of even ones. What is sent is compared with the
papers' formulas.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import (
    an_array,
    check_array,
    check_handed,
    differences,
    fail_together,
    gaps,
    is_right,
    parts_by_function,
    same,
    things,
)
from minidist.classroom.grading.meaning import check_heard, check_meaning, check_timing
from minidist.classroom.grading.parts import ask, by_case, large, on, part, ranks
from minidist.classroom.grading.submission import Case, Lost, Outcome, Submission, lose
from minidist.papers import context

Array = np.ndarray
RING = ("ring_forward", "ring_backward")
ASKED = ("merge", "positions", *RING, "sent", "choose")
# What a submission cannot import.
HIDDEN = ("answers", "given", "minidist.context_parallel", "minidist.nn.attend", "minidist.papers.context")
SCHEMES = ("ring", "all-gather", "ulysses")
TWO = ("y", "lse")
NAMES = {"ring_forward": TWO, "ring_attention": TWO, "ring_backward": ("dq", "dk", "dv")}
HANDED = ("q", "k", "v", "y", "lse", "dy")
HEADS, DEPTH = 2, 3
FEW = 100  # positions: slopes by trial take the square of that
MISTAKES = 3  # parts on single functions that one mistake may cost


# ---- the truth: one process that has all positions -------------------------------------------------------------------


def scores(q: Array, k: Array) -> Array:
    """Of every query for every key, without a mask."""
    return np.asarray(np.einsum("...id,...jd->...ij", q, k) / np.sqrt(q.shape[-1]))


def weigh(s: Array, v: Array) -> list[Array]:
    """y and lse, of scores of which some are -inf."""
    top = s.max(axis=-1)
    powers = np.exp(s - top[..., None])
    total = powers.sum(axis=-1)
    return [np.einsum("...ij,...jd->...id", powers, v) / total[..., None], top + np.log(total)]


def causal(q: Array, k: Array, v: Array) -> list[Array]:
    """y and lse of a sequence of which a query sees what is not later."""
    later = np.triu(np.ones((q.shape[-2], q.shape[-2]), bool), 1)
    return weigh(np.where(later, -np.inf, scores(q, k)), v)


# ---- merge -----------------------------------------------------------------------------------------------------------


@dataclass
class Two:
    """Scores of the same queries for some keys and for others, and what two results of them are to become."""

    label: str
    parts: list[Array]  # y, lse, other, other_lse
    whole: list[Array]  # y, lse


def draw_two(submission: Submission, shape: tuple[int, ...], keys: tuple[int, int], shift: float = 0.0) -> Two:
    """shape: (..., queries); shift: what is added to all scores."""
    random = submission.random.standard_normal
    values = [random((*shape[:-1], count, DEPTH)) for count in keys]
    drawn = [2 * random((*shape, count)) + shift for count in keys]
    parts = [array for s, v in zip(drawn, values, strict=True) for array in weigh(s, v)]
    whole = weigh(np.concatenate(drawn, axis=-1), np.concatenate(values, axis=-2))
    large = f", scores of about {shift:g}" if shift else ""
    return Two(f"merge of parts over {keys[0]} and {keys[1]} keys, lse {shape}{large}", parts, whole)


def ask_merge(submission: Submission, twos: Sequence[Two], function: str = "merge") -> list[list[Any]]:
    """y and lse of each, and then what became of the arguments."""
    cases = [Case(1, two.label, [two.parts], {"function": function}) for two in twos]
    return [
        [*things(f"On {each.label}: it", outcome.value["returned"], TWO), outcome.value["handed"]]
        for each, [outcome] in by_case(submission, "merged", cases, [function])
    ]


def check_merge(submission: Submission, function: str) -> None:
    shapes: list[tuple[tuple[int, ...], tuple[int, int]]] = [((3,), (2, 5)), ((4,), (1, 1)), ((4,), (6, 1))]
    shapes += (
        []
        if function == "merge_two"
        else [((2, 3), (4, 2)), ((2, 2, 3), (1, 3)), ((large(submission, most=10_000),), (2, 3))]
    )
    twos = [draw_two(submission, *of) for of in shapes]
    for two, (y, lse, handed) in zip(twos, ask_merge(submission, twos, function), strict=True):
        one, weight, other, other_weight = two.parts
        equal = "Both parts count equally. Each is a mean, and its weight is its sum of exponentials."
        by_log = "The weights are the logarithms; the sums are exp(lse)."
        total, top = (weight + other_weight)[..., None], np.maximum(weight, other_weight)
        mistakes = {
            equal: (one + other) / 2,
            by_log: (weight[..., None] * one + other_weight[..., None] * other) / total,
            "The two are added up. Each is a mean already.": one + other,
            "Each has the other one's weight.": one + other - two.whole[0],
            "It is not divided by the sum of the weights.": two.whole[0]
            * (1 + np.exp(-abs(weight - other_weight)))[..., None],
        }
        check_array(two, y, "y", two.whole[0], mistakes)
        logs = {
            "It is the sum of the logarithms, not the logarithm of the sum.": weight + other_weight,
            "It is the larger of the two.": top,
            "It is that of the first part alone.": weight,
            "It is that of the other part alone.": other_weight,
            "What was subtracted before np.exp must be added again.": two.whole[1] - top,
        }
        check_array(two, lse, "lse", two.whole[1], logs)
        check_handed(two.label, handed, two.parts, ("y", "lse", "other", "other_lse"))


test_merge = part(1, "merge: over the keys of both", check_merge, "merge")


def right_of(plain: Two, y: Any, lse: Any) -> list[str]:
    """What of a plain merge is right: other parts judge no more than that. Loses the part if nothing was merged."""
    each = Case(1, plain.label, [])
    found = [an_array(each, of, name, whole.shape) for of, name, whole in zip((y, lse), TWO, plain.whole, strict=True)]
    if same(found[0], plain.parts[0]) or same(found[0], plain.parts[2]):
        lose(f"On {plain.label}: y is that of one part alone.")
    return [name for name, of, whole in zip(TWO, found, plain.whole, strict=True) if same(of, whole)]


@pytest.mark.points(1, "merge: a query that has seen no key in one of them")
def test_merge_unseen(submission: Submission) -> None:
    """There, the other's result."""
    plain, twos = draw_two(submission, (4,), (3, 2)), []
    for at in (0, 2):
        two = draw_two(submission, (4,), (3, 2))
        blind = np.array([True, False, True, False])
        two.parts[at][blind], two.parts[at + 1][blind] = 0, -np.inf
        two.label += f", half of the queries see none of the {'first' if at == 0 else 'other'} keys"
        twos.append(two)
    (y, lse, _), *runs = ask_merge(submission, [plain, *twos])
    right = right_of(plain, y, lse)
    for two, found, at in zip(twos, runs, (0, 2), strict=True):
        for name, of, seen in zip(TWO, found, two.parts[2 - at : 4 - at], strict=False):
            of = an_array(Case(1, two.label, []), of, name, seen.shape)[[0, 2]]
            if np.isnan(of).any() or (name in right and not same(of, seen[[0, 2]])):
                was = "not a number" if np.isnan(of).any() else "something else"
                lose(f"On {two.label}: {name} of these queries is {was}; what they see in the other part is wanted.")


@pytest.mark.points(1, "merge: scores as large as they like")
def test_merge_large(submission: Submission) -> None:
    """A number that is added to all scores moves lse, and nothing else."""
    plain = draw_two(submission, (3,), (4, 2))
    shifts, twos = (2000.0, -2000.0), []
    for shift in shifts:
        y, lse, other, other_lse = plain.parts
        twos.append(
            Two(f"{plain.label}, {shift:g} added to all scores", [y, lse + shift, other, other_lse + shift], [])
        )
    (y, lse, _), *runs = ask_merge(submission, [plain, *twos])
    right = right_of(plain, y, lse)
    for shift, two, found in zip(shifts, twos, runs, strict=True):
        for name, now, before in zip(TWO, found, (y, lse + shift), strict=False):
            now = an_array(Case(1, two.label, []), now, name, before.shape)
            if not np.isfinite(now).all() or (name in ("y", *right) and not same(now, before)):
                lose(
                    f"On {two.label}: {name} is {now.flat[0]:.6g}, ..., and {before.flat[0]:.6g} is wanted. Subtract"
                    " something before np.exp: the larger of the two, or lse of both."
                )


# ---- positions -------------------------------------------------------------------------------------------------------


def ask_cuts(submission: Submission, sizes: Sequence[tuple[int, int]], function: str = "positions") -> Any:
    """Of each (length, n) the positions of all ranks, as arrays of one axis."""
    cuts = ask(submission, "cuts", function, [list(of) for of in sizes], function=function)
    for (length, n), cut in zip(sizes, cuts, strict=True):
        for rank, own in enumerate(cut):
            if not isinstance(own, np.ndarray) or own.ndim != 1 or (own.size and own.dtype.kind not in "iu"):
                was = f"{own.dtype} {own.shape}" if isinstance(own, np.ndarray) else own
                lose(f"On {function}({length}, {n}, {rank}): it is {was}; an array (c,) of integers is wanted.")
    return cuts


def check_share(function: str, length: int, n: int, cut: Sequence[Array], more: int = 1) -> None:
    """Every position is on one rank, in rising order, and no rank has over `more` more than another."""
    where = f"On {function}({length}, {n}, rank), ranks 0 to {n - 1}"
    for rank, own in enumerate(cut):
        if np.any(np.diff(own) <= 0):
            lose(f"{where}: rank {rank} has {own.tolist()}; rising positions are wanted.")
    every = np.concatenate(cut)
    times = np.bincount(every[(every >= 0) & (every < length)], minlength=length)
    if every.size != times.sum():
        lose(f"{where}: there are positions other than 0 to {length - 1}.")
    if np.any(times != 1):
        position = int(np.argmax(times != 1))
        lose(f"{where}: position {position} is on {times[position]} ranks; each belongs to one.")
    check_sizes(function, length, n, cut, more)


def check_sizes(function: str, length: int, n: int, cut: Sequence[Array], more: int = 1) -> None:
    sizes = [len(own) for own in cut]
    if max(sizes) - min(sizes) > more:
        lose(
            f"On {function}({length}, {n}, rank), ranks 0 to {n - 1}: they have {', '.join(map(str, sizes))} positions;"
            " at most one more than another is wanted."
        )


def in_order(cut: Sequence[Array]) -> list[Array]:
    """The same cut of as many positions in the same order, each on one rank: which ones they are is another part's."""
    order = np.argsort(np.concatenate(cut), kind="stable")
    numbers = np.empty_like(order)
    numbers[order] = np.arange(len(order))
    return [np.sort(own) for own in np.split(numbers, np.cumsum([len(own) for own in cut])[:-1])]


def count_pairs(cut: Sequence[Array], step: int) -> list[int]:
    """Of each rank, in a step of the ring."""
    return [int((cut[rank - step] <= own[:, None]).sum()) for rank, own in enumerate(cut)]


def check_balance(function: str, length: int, n: int, cut: Sequence[Array]) -> None:
    for step in range(n):
        pairs = count_pairs(cut, step)
        if len(set(pairs)) > 1:
            lose(
                f"On {function}({length}, {n}, rank): in step {step} of the ring, ranks 0 to {n - 1} compute"
                f" {', '.join(map(str, pairs))} pairs; all the same is wanted. Which positions see many keys, and which"
                " see few?"
            )


def draw_lengths(submission: Submission) -> list[tuple[int, int]]:
    """(length, n) with 2n dividing the length."""
    return [(2 * n * int(submission.random.integers(2, 9)), n) for n in (1, 2, 3, 4, 5)]


@pytest.mark.points(1, "positions: each on one rank, rising")
def test_positions(submission: Submission) -> None:
    sizes = draw_lengths(submission)
    for (length, n), cut in zip(sizes, ask_cuts(submission, sizes), strict=True):
        check_share("positions", length, n, cut)


@pytest.mark.points(1, "positions: as many pairs on every rank, in every step")
def test_positions_balance(submission: Submission) -> None:
    sizes = draw_lengths(submission)
    for (length, n), cut in zip(sizes, ask_cuts(submission, sizes), strict=True):
        if sum(map(len, cut)) != length:
            lose(f"On positions({length}, {n}, rank): all ranks together have {sum(map(len, cut))} positions.")
        check_balance("positions", length, n, in_order(cut))


@pytest.mark.points(1, "positions: any length, any number of ranks")
def test_positions_any(submission: Submission) -> None:
    sizes = [(7, 2), (5, 3), (9, 4), (3, 2), (4, 3), (3, 5), (1, 1)]
    sizes += [(int(submission.random.integers(10, 60)), n) for n in (1, 2, 3, 4, 5, 8)]
    plain, *cuts = ask_cuts(submission, [(24, 3), *sizes])
    right = is_right(check_share, "positions", 24, 3, plain)
    balanced = is_right(check_balance, "positions", 24, 3, in_order(plain))
    for (length, n), cut in zip(sizes, cuts, strict=True):
        if right:
            check_share("positions", length, n, cut, 1 + (not balanced))
            continue
        check_sizes("positions", length, n, cut, 2)
        if len(np.unique(np.concatenate(cut))) <= length / 2 < length - 1:
            lose(f"On positions({length}, {n}, rank): most positions are on no rank.")


# ---- around the ring -------------------------------------------------------------------------------------------------


@dataclass
class Cut(Case):
    """A sequence cut over the ranks: each rank's arrays; and all of them, with what one process makes of them."""

    at: list[Array] = field(kw_only=True)
    q: Array = field(kw_only=True)
    k: Array = field(kw_only=True)
    v: Array = field(kw_only=True)
    dy: Array = field(kw_only=True)
    truth: list[Array] = field(kw_only=True)  # y, lse; or dq, dk, dv

    def part(self, whole: Array, rank: int, name: str) -> Array:
        """A rank's rows; of lse, its numbers."""
        return whole[..., self.at[rank]] if name == "lse" else whole[..., self.at[rank], :]


def cut_of(sizes: Sequence[int], order: Array) -> list[Array]:
    """Positions in this order, dealt out to ranks that get these numbers of them; each rank's rising."""
    return [np.sort(own) for own in np.split(order, np.cumsum(sizes)[:-1])]


def mixed(submission: Submission, n: int, c: int) -> list[Array]:
    """Positions for n ranks, c each, drawn until every rank has a query that sees a key of each other rank."""
    while True:
        at = cut_of([c] * n, submission.random.permutation(n * c))
        if all(own[-1] > other[0] for own in at for other in at if own is not other):
            return at


def sequence(submission: Submission, function: str, at: list[Array], what: str, heads: int = HEADS) -> Cut:
    """Drawn arrays for a cut of the positions, and what the function is to make of them."""
    random, length, n = submission.random.standard_normal, sum(map(len, at)), len(at)
    lead = (heads,) if heads else ()
    q, k, v, dy = (random((*lead, length, DEPTH)) for _ in range(4))
    y, lse = causal(q, k, v)
    truth, whole = [y, lse], {"q": q, "k": k, "v": v}
    if function == "ring_backward":
        truth = [] if length > FEW else [differences(lambda: causal(q, k, v)[0], of, dy) for of in (q, k, v)]
        whole |= {"y": y, "lse": lse, "dy": dy}
    label = f"{ranks(n)}, {function} of {length} positions, {what}"
    arguments = {"function": function, "at": [own.tolist() for own in at]}
    made = Cut(n, label, [], arguments, at=at, q=q, k=k, v=v, dy=dy, truth=truth)
    made.truth = truth or contribution(made, range(n), range(n))
    made.inputs = [[np.ascontiguousarray(made.part(of, rank, name)) for name, of in whole.items()] for rank in range(n)]
    return made


def even(submission: Submission, function: str) -> list[Cut]:
    """Parts of the same size: on one rank, mixed, and one after the other."""
    cuts = [(np.split(np.arange(4), 1), "one rank has all")]
    cuts += [(mixed(submission, n, c), "mixed") for n, c in ((4, 3), (2, 4))]
    cuts.append((np.split(np.arange(9), 3), "one part after the other"))
    return [sequence(submission, function, at, what) for at, what in cuts]


def even_and_many(submission: Submission, function: str) -> list[Cut]:
    """And many positions: what is right for a few is right for them."""
    many = mixed(submission, 2, large(submission, least=170, most=250))
    return [*even(submission, function), sequence(submission, function, many, "mixed")]


def uneven(submission: Submission, function: str) -> list[Cut]:
    """Parts of any sizes, drawn: any positions on any rank."""
    made = []
    for n, heads in ((1, 2), (2, 0), (3, 2), (4, 1), (4, 2)):
        sizes = 1 + submission.random.integers(0, 4, n)
        at = cut_of(sizes, submission.random.permutation(int(sizes.sum())))
        made.append(sequence(submission, function, at, f"{', '.join(map(str, sizes))} a rank", heads))
    return made


def check_tried(each: Case, outcomes: Sequence[Outcome], least: float = 0.5) -> None:
    """Everything has been returned that is asked for, with the right shapes; and at least such a part of what must be
    sent was sent."""
    assert isinstance(each, Cut)
    names, wanted = NAMES[each.arguments["function"]], allowed(each)
    for rank, outcome in enumerate(outcomes):
        returned = things(f"{on(each, rank)}: it", outcome.value["returned"], names)
        for name, found, whole in zip(names, returned, each.truth, strict=True):
            an_array(each, found, f"rank {rank}'s {name}", each.part(whole, rank, name).shape)
    total, needed = sum(outcome.nbytes for outcome in outcomes), sum(wanted)
    if total < least * needed:
        lose(
            f"On {each.label}: {total:,} bytes were sent in all; the blocks that must travel have {needed:,}. Each rank"
            " has only its own keys and values: how can it know the result?"
        )


def allowed(each: Cut) -> list[float]:
    """The bytes that each rank sends: all blocks but its right neighbor's, and back, gradients of all but its own."""
    sizes, width = [len(own) for own in each.at], each.k[..., 0, :].size
    sent = context.passed_on(sizes, width)
    if each.arguments["function"] == "ring_backward":
        sent = [a + b for a, b in zip(sent, context.sent_home(sizes, width), strict=True)]
    return [8 * number for number in sent]


def check_result(each: Cut, outcomes: Sequence[Outcome], only: Sequence[str] = ()) -> None:
    """What one process finds; what is handed in stays. only: these of what is returned."""
    names = NAMES[each.arguments["function"]]
    for rank in sorted(range(each.n), key=lambda rank: abs(rank - each.n // 2)):  # in the middle mistakes differ most
        outcome = outcomes[rank]
        returned = things(f"{on(each, rank)}: it", outcome.value["returned"], names)
        for name, found, whole in zip(names, returned, each.truth, strict=True):
            if not only or name in only:
                expected = each.part(whole, rank, name)
                wrong = (
                    isinstance(found, np.ndarray)
                    and not same(found, expected)
                    and len(each.q) * len(each.at[rank]) <= FEW
                )
                instead = mistakes_of(each, rank, name) if wrong else {}
                check_array(each, found, f"rank {rank}'s {name}", expected, instead)
        check_handed(f"{each.label}: rank {rank}", outcome.value["handed"], each.inputs[rank], HANDED)
    check_tried(each, outcomes, least=0.5 if only == ["dq"] else 1)  # dq needs no gradients of other ranks


def mistakes_of(each: Cut, rank: int, name: str) -> dict[str, Array]:
    """What a rank may have found instead, by what is to be said of it."""
    mine = each.at[rank]
    if name in TWO:
        which, everything = TWO.index(name), np.arange(each.q.shape[-2])
        place = np.empty_like(everything)  # of a position in its block
        for own in each.at:
            place[own] = np.arange(len(own))
        s, owner = scores(each.q, each.k)[..., mine, :], np.repeat(0, len(everything))
        for other, own in enumerate(each.at):
            owner[own] = other
        later = everything > mine[:, None]
        masks = {
            "It is of this rank's own keys alone.": later | (owner != rank),
            "Queries see later keys, too: where is the mask?": np.zeros_like(later),
            "Queries see later keys of other ranks: the mask is for all blocks.": later & (owner == rank),
            "The mask goes by the place in a block. Where in the sequence is that: at[rank], at[owner]?": place
            > place[mine][:, None],
            "The mask is one for contiguous parts: a query sees all of a lower rank's keys, and none of a higher"
            " one's. Compare positions.": (owner > rank) | (later & (owner == rank)),
        }
        found = {said: weigh(np.where(hidden, -np.inf, s), each.v)[which] for said, hidden in masks.items()
                 if not hidden.all(axis=-1).any()}  # fmt: skip
        return found | {said: of[which] for said, of in slips_around(each, rank).items()}
    alone, others = contribution(each, [rank], [rank]), [other for other in range(each.n) if other != rank]
    if name == "dq":
        last = contribution(each, [rank], [(rank + 1) % each.n])[0]
        said = {
            "It is of this rank's own keys alone.": alone[0],
            "It is of the block that came last alone.": last,
            "This rank's own keys count twice.": each.truth[0] + alone[0],
            **{words: of[0] for words, of in of_one_block(each).items()},
        }
        return {words: each.part(of, rank, name) for words, of in said.items()}
    which = ("dk", "dv").index(name) + 1
    said = {"It is what this rank's own queries contribute. What have the others added on the way?": alone[which]}
    if others:
        of_others = contribution(each, others, [rank])
        nearest = contribution(each, [rank, (rank - 1) % each.n], [rank])[which]
        said |= {
            "What this rank's own queries contribute is missing.": of_others[which],
            "What other ranks have added on the way is missing, except the last one's.": nearest,
            "This rank's own queries count twice.": each.truth[which] + alone[which],
            "dk and dv have come home in each other's place.": alone[which] + of_others[3 - which],
        }
    return {words: each.part(of, rank, name) for words, of in said.items()}


def slips_around(each: Cut, rank: int) -> dict[str, list[Array]]:
    """y and lse of a rank that takes something for granted about the blocks that come, by what is to be said of it."""
    n, mine = each.n, each.at[rank]
    came = [(rank - step) % n for step in range(n)]
    ways: dict[str, list[tuple[int, int]]] = {  # whose block it merges, and for whose it takes it
        "This rank's own block counts twice.": [(of, of) for of in [rank, *came]],
        "The block that came last is missing.": [(of, of) for of in came[:-1]],
        "This rank's own block counts twice, and the one that came last is missing.": [
            (of, of) for of in [rank, *came[:-1]]
        ],
        "Blocks come from the left: in step s the one of rank r - s, not r + s.": [
            (of, (2 * rank - of) % n) for of in came
        ],
        "In step s the block of rank r - s is here, not the one of the step before.": [
            (rank, rank), *((of, (of + 1) % n) for of in came[1:])
        ],
        "In step s the block of rank r - s is here, not yet the next one.": [
            (rank, rank), *((of, (of - 1) % n) for of in came[1:])
        ],
    }  # fmt: skip
    found = {}
    for said, blocks in ways.items():
        if blocks and all(len(each.at[of]) == len(each.at[taken]) for of, taken in blocks):
            s = merged_scores(each, rank, blocks)
            if np.isfinite(s).any(axis=-1).all():
                found[said] = weigh(s, each.v[..., np.concatenate([each.at[of] for of, _ in blocks]), :])
    s, everyone = merged_scores(each, rank, [(of, of) for of in came]), np.concatenate([each.at[of] for of in came])
    values = np.concatenate([each.v[..., mine, :], each.k[..., everyone[len(mine) :], :]], axis=-2)
    found["The keys of other ranks were taken for their values."] = weigh(s, values)
    if len(mine) * n == len(everyone):
        own = weigh(s, each.v[..., np.concatenate([mine] * n), :])
        found["Keys are those of all ranks, values this rank's own."] = own
        found["lse has stayed as it was: merge returns both for the next block."] = with_an_old_lse(each, rank)
    return found


def with_an_old_lse(each: Cut, rank: int) -> list[Array]:
    """y and lse of a rank that gives all that it has merged so far the weight of its own block."""
    s, v = merged_scores(each, rank, [(rank, rank)]), each.v[..., each.at[rank], :]
    found, (_, old) = list(weigh(s, v)), weigh(s, v)
    for step in range(1, each.n):
        of = (rank - step) % each.n
        s, v = merged_scores(each, rank, [(of, of)]), each.v[..., each.at[of], :]
        for i in range(old.shape[-1]):  # what is there counts as one more key
            row = np.concatenate([old[..., i, None], s[..., i, :]], axis=-1)[..., None, :]
            y, lse = weigh(row, np.concatenate([found[0][..., i : i + 1, :], v], axis=-2))
            found[0][..., i, :], found[1][..., i] = y[..., 0, :], lse[..., 0]
    return found


def merged_scores(each: Cut, rank: int, blocks: Sequence[tuple[int, int]]) -> Array:
    """Of a rank's queries for the keys of some blocks, each with the mask of the rank whose block it is taken for."""
    mine = each.at[rank]
    s = [
        np.where(each.at[taken] > mine[:, None], -np.inf, scores(each.q[..., mine, :], each.k[..., each.at[of], :]))
        for of, taken in blocks
    ]
    return np.concatenate(s, axis=-1)


def of_one_block(each: Cut) -> dict[str, list[Array]]:
    """dq, dk and dv if ranks know of their queries what these see in their own block, by what is to be said of it."""
    s = scores(each.q, each.k)
    owner = np.empty(s.shape[-1], int)
    for rank, own in enumerate(each.at):
        owner[own] = rank
    later = np.triu(np.ones(s.shape[-2:], bool), 1)
    y, lse = weigh(np.where(later | (owner[:, None] != owner), -np.inf, s), each.v)
    everyone, right = [*range(each.n)], causal(each.q, each.k, each.v)
    known = {
        "dot is the sum of dy * y: of y over all keys, not those of one block.": (y, right[1]),
        "lse is that of all keys, not of one block.": (right[0], lse),
        "y and lse are those of one block; they are handed over, of all keys.": (y, lse),
    }
    return {said: contribution(each, everyone, everyone, *of) for said, of in known.items()}


def contribution(
    each: Cut, of_queries: Sequence[int], of_keys: Sequence[int], y: Array | None = None, lse: Array | None = None
) -> list[Array]:
    """What some ranks' queries and keys contribute to dq, dk and dv. y, lse: what is taken for those over all keys."""
    length = each.q.shape[-2]
    s = np.where(np.triu(np.ones((length, length), bool), 1), -np.inf, scores(each.q, each.k))
    y, lse = (mine if mine is not None else of for mine, of in zip((y, lse), weigh(s, each.v), strict=True))
    p = np.exp(s - lse[..., None])
    ds = p * (np.einsum("...id,...jd->...ij", each.dy, each.v) - (each.dy * y).sum(axis=-1)[..., None])
    rows = np.isin(np.arange(length), np.concatenate([each.at[rank] for rank in of_queries]))
    columns = np.isin(np.arange(length), np.concatenate([each.at[rank] for rank in of_keys]))
    p, ds = p * rows[:, None] * columns, ds * rows[:, None] * columns / np.sqrt(DEPTH)
    return [
        np.einsum("...ij,...jd->...id", ds, each.k),
        np.einsum("...ij,...id->...jd", ds, each.q),
        np.einsum("...ij,...id->...jd", p, each.dy),
    ]


def check_uneven(submission: Submission, function: str) -> None:
    """What is right on an even cut is right on an uneven one."""
    _, *plain = even(submission, function)
    cases = uneven(submission, function)
    before = submission.run("call", plain, [function])
    for each, outcomes in zip(plain, before, strict=True):
        check_tried(each, outcomes)
    right = [
        name
        for name in NAMES[function]
        if all(is_right(check_result, each, outcomes, [name]) for each, outcomes in zip(plain, before, strict=True))
    ]
    try:
        runs = submission.attempt("call", cases, [function])
    except Lost as lost:
        if len(right) == len(NAMES[function]):
            lose(str(lost))
        right = []
    if not right:  # another part asks for that
        return check_heard(submission, "call", function, plain[0])
    for each, outcomes in zip(cases, runs, strict=True):
        check_tried(each, outcomes)
        check_result(each, outcomes, right)


def check_wire(submission: Submission, function: str) -> None:
    """N-1 blocks to the right neighbor, and nothing else; backward, also N-1 blocks of gradients. In messages that pass
    through here, the keys and values of all ranks but the right neighbor are found."""
    cases = even(submission, function)[1:]
    runs = submission.run("call", cases, [function])
    right = [is_right(check_result, each, outcomes) for each, outcomes in zip(cases, runs, strict=True)]
    for number, (each, outcomes) in enumerate(zip(cases, runs, strict=True)):
        check_around(each, outcomes, right[number])
        if submission.wire.spoils and right[number]:
            for rank in range(each.n):
                check_content(submission, number, each, rank)
    if not any(right):
        check_heard(submission, "call", function, cases[0])


def check_content(submission: Submission, number: int, each: Cut, rank: int) -> None:
    """That a rank has sent the numbers of these blocks. number: of the case, in the names of communicators."""
    sent = [
        seen.content
        for (comm, sender, _), seen in submission.messages.items()
        if comm.startswith(f"world/{number}.") and sender == rank
    ]
    found = np.concatenate([np.frombuffer(content, np.float64) for content in sent])
    for other in range(each.n):
        if other != (rank + 1) % each.n:
            for name, whole in (("keys", each.k), ("values", each.v)):
                if not np.isin(each.part(whole, other, name), found).all():
                    lose(f"{on(each, rank)} does not pass on the {name} of rank {other}.")


def check_around(each: Cut, outcomes: Sequence[Outcome], is_right: bool = True) -> None:
    """To the right neighbor, and if the result is right, just as many bytes."""
    for rank, (outcome, nbytes) in enumerate(zip(outcomes, allowed(each), strict=True)):
        here, right = on(each, rank), (rank + 1) % each.n
        for _, peer, line in outcome.sent:
            if peer != right:
                lose(f"{here} sends to rank {peer} at {line}; its right neighbor is rank {right}.")
        if is_right and outcome.nbytes != nbytes:
            what = f"{each.n - 1} blocks of keys and values"
            if each.arguments["function"] == "ring_backward":
                what += f" and {each.n - 1} of gradients"
            lines = [f"  {sent:,} bytes in {messages} message{'s' * (messages > 1)} at {line}"
                     for (_, _, line), (sent, messages) in outcome.sent.items()]  # fmt: skip
            lose("\n".join([f"{here} sends {outcome.nbytes:,} bytes; {what} are {nbytes:,.0f}.", *lines]))


@pytest.mark.points(2, "ring_forward: as in one process")
def test_ring_forward(submission: Submission) -> None:
    cases = even_and_many(submission, "ring_forward")
    for each, outcomes in by_case(submission, "call", cases, ["ring_forward"]):
        check_result(each, outcomes)


test_ring_forward_any = part(1, "ring_forward: parts of any sizes", check_uneven, "ring_forward")
test_ring_forward_wire = part(1, "ring_forward: N-1 blocks, to the right", check_wire, "ring_forward")


def check_gradients(submission: Submission, names: Sequence[str]) -> None:
    cases = even_and_many(submission, "ring_backward") if names == ["dq"] else even(submission, "ring_backward")
    for each, outcomes in by_case(submission, "call", cases, ["ring_backward"]):
        if names == ["dq"] or not is_of_one_block(each, outcomes):  # which the part on dq tells
            check_result(each, outcomes, names)


def is_of_one_block(each: Cut, outcomes: Sequence[Outcome]) -> bool:
    """Whether all three gradients have one cause, and none is right."""
    names = NAMES["ring_backward"]
    return each.n > 1 and any(
        all(
            isinstance(outcome.value["returned"], list)
            and all(
                isinstance(found, np.ndarray) and same(found, each.part(of, rank, name))
                for name, found, of in zip(names, outcome.value["returned"], gradients, strict=True)
            )
            for rank, outcome in enumerate(outcomes)
        )
        for gradients in of_one_block(each).values()
    )


test_ring_backward_queries = part(1, "ring_backward: dq, over the keys of all ranks", check_gradients, ["dq"])
test_ring_backward = part(2, "ring_backward: dk and dv come home", check_gradients, ["dk", "dv"])
test_ring_backward_any = part(1, "ring_backward: parts of any sizes", check_uneven, "ring_backward")
test_ring_backward_wire = part(1, "ring_backward: N-1 blocks, and N-1 of gradients", check_wire, "ring_backward")


def answered(submission: Submission, function: str, calls: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Each call with what the function returned."""
    return zip(calls, ask(submission, "answers", function, calls, function=function), strict=True)


# ---- the choice ------------------------------------------------------------------------------------------------------


def draw_attention(submission: Submission) -> list[int]:
    """length, heads, kv_heads, depth, n: n divides the length, and kv_heads the heads."""
    draw = submission.random.integers
    n, kv, group = (int(submission.random.choice(of)) for of in ((2, 3, 4, 8), (2, 4, 6, 8, 16), (1, 2, 4, 8, 16)))
    return [n * int(draw(10, 99)), kv * group, kv, int(draw(8, 99)), n]


@pytest.mark.points(1, "sent: ring, all-gather, Ulysses")
def test_sent(submission: Submission) -> None:
    sizes = [draw_attention(submission) for _ in range(4)] + [[48, 8, 2, 16, 1]]
    calls = [[scheme, *of] for of in sizes for scheme in SCHEMES]
    for (scheme, *of), found in answered(submission, "sent", calls):
        length, heads, kv, depth, n = of
        where = f"On sent({scheme!r}, {', '.join(map(str, of))})"
        if not isinstance(found, list) or len(found) != 2 or any(not isinstance(number, float) for number in found):
            lose(f"{where}: two numbers are wanted, forward and backward; it returned {found}.")
        parts, group = [length / n] * n, heads // kv
        around, home = context.passed_on(parts, kv * depth)[0], context.sent_home(parts, kv * depth)[0]
        expected, hint = (
            [around, around + home],
            "Blocks of keys and values go to N-1 ranks; backward, so do gradients.",
        )
        if scheme == "ulysses":
            shares = [kv / n] * n
            inward = context.positions_for_heads(parts, shares, (group + 2) * depth)[0]
            outward = context.heads_for_positions(parts, shares, group * depth)[0]
            expected, hint = [inward + outward] * 2, "What belongs to a rank's own share of the heads stays at home."
        for way, number, right in zip(("forward", "backward"), found, expected, strict=True):
            if not np.isclose(number, right, rtol=1e-9):
                times = f", {number / right:.3g} times as much" if right else ""
                lose(f"{where}: {way} it is {number:,.0f}{times}; {right:,.0f} is wanted. {hint}")


@pytest.mark.points(1, "choose: what sends least and is possible")
def test_choose(submission: Submission) -> None:
    calls = []
    for length, heads, kv, depth, n in [draw_attention(submission) for _ in range(30)] + [[96, 16, 4, 8, 2]]:
        whole = 2 * kv * depth * length
        calls += [[length, heads, kv, depth, n, room] for room in (whole, whole - 1)]
    calls += [[131_072, 16, 1, 128, 16, room] for room in (4e7, 1e7)]  # one of Llama 3's eight tensor-parallel ranks
    calls = [call for call in calls if abs(ratio_of(call) - 1) > 1e-6]
    for call, found in answered(submission, "choose", calls):
        length, heads, kv, depth, n, room = call
        where = f"On choose({', '.join(f'{number:g}' for number in call)})"
        fits, divides, less = 2 * kv * depth * length <= room, kv % n == 0, ratio_of(call) < 1
        if found not in SCHEMES:
            lose(f"{where}: it returned {found}; 'ring', 'all-gather' or 'ulysses' is wanted.")
        if found == "ulysses" and not divides:
            lose(f"{where}: 'ulysses' is not possible: {kv} key/value heads cannot be shared evenly by {n} ranks.")
        if found == "all-gather" and not fits:
            lose(f"{where}: 'all-gather' is not possible: all keys and values are {2 * kv * depth * length:,} numbers.")
        if divides and less != (found == "ulysses"):
            lose(f"{where}: {found!r}; Ulysses sends {ratio_of(call):.3g} times what the other two send.")
        if found == "ring" and fits:
            lose(f"{where}: 'ring'; there is room to gather all keys and values, and then any mask is easy.")


def ratio_of(call: Sequence[float]) -> float:
    """What Ulysses sends, over what a ring sends in three such passes: one forward, two backward."""
    _, heads, kv, _, n, _ = call
    return 2 / 3 * context.ulysses_over_ring(int(n), kv / heads)


# ---- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.points(1, "all functions together, every one yours")
def test_own_work(submission: Submission) -> None:
    cases = []
    for n, c in ((1, 3), (2, 2), (4, 1), (3, 2)):
        made = sequence(submission, "ring_backward", np.split(np.arange(2 * n * c), n), "cut by positions")
        sizes = [96, 16, 4, 8, 4, 1e6]  # Ulysses sends 5/6 of the ring's
        inputs = [[made.q, made.k, made.v, made.dy]] * n
        cases.append(Cut(n, f"{ranks(n)}, {2 * n * c} positions, forward and backward", inputs, {"sizes": sizes},
                         at=[], q=made.q, k=made.k, v=made.v, dy=made.dy, truth=made.truth))  # fmt: skip
    try:
        runs = submission.attempt("all_own", cases, ASKED)
        for each, outcomes in zip(cases, runs, strict=True):
            check_together(each, outcomes)
    except (Lost, pytest.fail.Exception) as lost:
        fail_together(submission, lost, ALONE, MISTAKES)


def check_together(each: Cut, outcomes: Sequence[Outcome]) -> None:
    whole = [causal(each.q, each.k, each.v)[0], *each.truth]
    for rank, outcome in enumerate(outcomes):
        at, arrays = outcome.value["at"], outcome.value["arrays"]
        own = at[rank]
        if isinstance(own, str) or isinstance(arrays, str):
            lose(f"{on(each, rank)} has positions {own}, and results {type(arrays).__name__}.")
        for name, found, of in zip(("y", "dq", "dk", "dv"), arrays, whole, strict=True):
            check_array(each, found, f"rank {rank}'s {name}", of[..., own, :])
        if outcome.value["scheme"] != "ulysses":
            lose(f"On {each.label}: the scheme is {outcome.value['scheme']}; 'ulysses' is wanted.")


@pytest.mark.points(1, "nothing depends on luck: waiting sends, requests, order")
def test_timing(submission: Submission) -> None:
    large = 80 if submission.wire.name == "mpi" else 1  # MPI puts small messages aside
    cases = {}
    for function in RING:
        heads = HEADS * (large if function == "ring_forward" else 1)
        cases[function] = [sequence(submission, function, mixed(submission, 4, 2), "mixed", heads)]
    check_timing(submission, "call", cases, check_tried)


@pytest.mark.points(1, "every message means something")
def test_meaning(submission: Submission) -> None:
    cases = {function: sequence(submission, function, mixed(submission, 3, 2), "mixed") for function in RING}
    check_meaning(submission, "call", cases, check_tried, check_result)


# ---- the notebook's gaps, which earn no points: check("merge_two") runs these ----------------------------------------


def check_moved_in_tiles(submission: Submission) -> None:
    """It says what loads and stores of the tile loop amount to, counted here one by one."""
    calls = [[1024, 64, 65_536], [100, 8, 320], [64, 16, 10_000], [48, 4, 100]]
    for (n, d, fast), found in answered(submission, "moved_in_tiles", calls):
        columns = -(-fast // (4 * d))
        moved = 0
        for j in range(0, n, columns):
            moved += 2 * d * len(range(j, min(j + columns, n)))  # K, V
            moved += sum(d + 2 * (d + 1) for _ in range(n))  # of each query q; y and lse, in and out
        if found != moved:
            lose(f"On moved_in_tiles({n}, {d}, {fast}): it returned {found}; {moved:,} is wanted.")


def check_owner_of(submission: Submission) -> None:
    calls = [[rank, step, n] for n in (1, 3, 4) for rank in range(n) for step in range(n)]
    for (rank, step, n), found in answered(submission, "owner_of", calls):
        block = rank  # whose block left `step` ranks ago arrives here
        for _ in range(step):
            block = block - 1 if block else n - 1
        if found != block:
            lose(f"On owner_of({rank}, {step}, {n}): it returned {found}; the block of rank {block} is there.")


def check_ring_attention(submission: Submission) -> None:
    for at, what in ((np.split(np.arange(4), 1), "one rank"), (np.split(np.arange(12), 4), "contiguous"),
                     (mixed(submission, 3, 4), "mixed")):  # fmt: skip
        each = sequence(submission, "ring_attention", at, what, heads=0)
        [outcomes] = submission.run("call", [each], ["ring_attention"])
        check_result(each, outcomes)
        check_around(each, outcomes)


def check_zigzag(submission: Submission) -> None:
    sizes = draw_lengths(submission)
    for (length, n), cut in zip(sizes, ask_cuts(submission, sizes, "zigzag"), strict=True):
        check_share("zigzag", length, n, cut)
        check_balance("zigzag", length, n, cut)


def check_numbers_sent(submission: Submission) -> None:
    calls = [[128, 64, g, n] for g, n in ((1.0, 2), (1.0, 4), (0.25, 4), (0.0625, 16), (0.5, 1))]
    for (s, h, g, n), found in answered(submission, "numbers_sent", calls):
        where = f"On numbers_sent({s}, {h}, {g:g}, {n})"
        if not isinstance(found, dict) or set(found) != set(SCHEMES):
            lose(f"{where}: a dictionary with a number for each of {', '.join(SCHEMES)} is wanted.")
        around = context.passed_on([s / n] * int(n), g * h)[0]
        for scheme, number in found.items():
            right = around * (context.ulysses_over_ring(int(n), g) if scheme == "ulysses" else 1)
            if not isinstance(number, float) or not np.isclose(number, right):
                lose(f"{where}: {scheme} is {number}; {right:,.0f} is wanted.")


GAPS = gaps(globals(), "moved_in_tiles", "owner_of", "ring_attention", "zigzag", "numbers_sent") | {
    "merge_two": partial(check_merge, function="merge_two"),
}
ALONE = (test_merge, test_merge_unseen, test_merge_large, test_positions, test_positions_balance, test_ring_forward,
         test_ring_backward_queries, test_ring_backward, test_sent, test_choose)  # fmt: skip
PARTS = parts_by_function(globals())
