"""The grade of lesson 04: `pytest lessons/04_ring_all_reduce`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew. Where it asks for all_reduce, the chapter's
code takes the place of the other two; where it asks for one of those, all three are the student's. Inputs are drawn
for each grade, and each rank knows only its own. The sums are computed here and compared with what came back. Each
message passes through here and is counted. A part earns its points or not; none needs a later one, and one mistake
costs one part:

- A result counts as right up to a factor; one part asks for the factor.
- Parts on other sizes, on other numbers of ranks and on `out` ask for results as right as those of the plain case, and
  so do the parts on steps and on memory. Sizes are drawn, up to 40,000: what holds for 12 elements holds for them.
- No part is earned without messages. The result needs all bytes that the task cannot do without, the others half, and
  a wrong result is made of what arrives.
- The result needs ranks that share the work. If all goes through one rank, there is no ring to give points for.
- The parts on the result ask for the dtype. The others do not: they use float64, or skip what has another dtype.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from minidist.classroom.grading.checks import factor_of
from minidist.classroom.grading.diagnose import (
    chunk_of,
    distinct,
    first_difference,
    in_a_gathering,
    in_a_partial_sum,
    in_a_sum,
)
from minidist.classroom.grading.meaning import check_heard, check_meaning, check_timing, working
from minidist.classroom.grading.parts import by_case, by_rank, large, on, part, ranks
from minidist.classroom.grading.submission import STRICT, Case, Lost, Outcome, Submission, lose
from minidist.papers import collectives

Array = np.ndarray
ASKED = ("reduce_scatter", "all_gather", "all_reduce")
HIDDEN = ("minidist.ring",)  # what ranks cannot import

COSTS = {
    "all_reduce": collectives.ring_all_reduce,
    "reduce_scatter": collectives.ring_reduce_scatter,
    "all_gather": collectives.ring_all_gather,
}
HELD = 3  # chunks that all_reduce may hold besides x and its result
IN_TRANSIT = 2  # chunks that the wire holds: one on its way out, one on its way in
SLACK = 1 << 14  # bytes of Python objects
BUSIEST = 1.5  # times the average of all ranks: what a rank may send, or receive, at most
OTHERS = [(4, 13), (4, 7), (4, 3), (4, 1), (4, 0), (3, 12), (3, 7), (2, 5), (1, 5), (1, 0)]  # (N, size); N = 1 last


def case(submission: Submission, function: str, n: int, size: int, dtype: str = "float64", out: str = "") -> Case:
    """One call of a function: float64 inputs can be recognized in their sum; others are small whole numbers."""
    if dtype == "float64":
        inputs = distinct(n, size, submission.random)
    else:
        inputs = [submission.random.integers(1, 1000, size).astype(dtype) for _ in range(n)]
    given = [x[chunk(size, n, rank)] for rank, x in enumerate(inputs)] if function == "all_gather" else inputs
    label = f"{ranks(n)}, {function} of {size:,} {dtype}"
    return Case(n, label, given, {"function": function, "size": size, "out": out})


def chunk(size: int, n: int, i: int) -> slice:
    sizes = collectives.chunk_sizes(size, n)
    return slice(sum(sizes[:i]), sum(sizes[: i + 1]))


def wanted(case: Case, rank: int) -> Array:
    """What the function is to return on a rank."""
    function, size = case.arguments["function"], case.arguments["size"]
    if function == "all_gather":
        return np.concatenate(case.inputs)
    total = np.sum(case.inputs, axis=0, dtype=case.inputs[0].dtype)
    return total[chunk(size, case.n, rank)] if function == "reduce_scatter" else total


def check_shapes(case: Case, outcomes: Sequence[Outcome], least: float = 0.5) -> None:
    """Every rank has returned an array of the right shape and dtype, and there were messages: of the bytes without
    which the task cannot be done at least such a part."""
    function, size = case.arguments["function"], case.arguments["size"]
    for rank, outcome in enumerate(outcomes):
        found, expected = outcome.value["returned"], wanted(case, rank)
        if isinstance(found, str):
            lose(f"{on(case, rank)} returned {found if found != 'NoneType' else 'None'}, not an array of numbers.")
        if found.shape != expected.shape or found.dtype != expected.dtype:
            lose(
                f"{on(case, rank)} returned {found.dtype} {found.shape} where {expected.dtype} {expected.shape} is"
                " wanted."
            )
    needed = sum(COSTS[function](size, case.n).sent) * case.inputs[0].itemsize
    total = sum(outcome.nbytes for outcome in outcomes)
    if total < least * needed and (least == 1 or case.n > 2):
        lose(
            f"On {case.label}: {total:,} bytes were sent in all, and no {function} can do with less than {needed:,}."
            " Has something been sent in another way than over comm?"
        )


def check_tried(submission: Submission, case: Case, outcomes: Sequence[Outcome]) -> None:
    """`check_shapes`; and a result that is wrong is made of the messages."""
    check_shapes(case, outcomes)
    if not is_right(case, outcomes):
        check_heard(submission, "call", case.arguments["function"], case)


def check_values(case: Case, outcomes: Sequence[Outcome]) -> None:
    """Every rank has returned what it should, up to a factor."""
    check_shapes(case, outcomes, 0)
    for rank, outcome in enumerate(outcomes):
        if factor_of(outcome.value["returned"], wanted(case, rank)) is None:
            lose(f"{on(case, rank)} {what_is_wrong(case, rank, outcome.value['returned'])}.")
    check_shapes(case, outcomes, 1)


def what_is_wrong(case: Case, rank: int, found: Array) -> str:
    """ "is wrong first at index 3, in chunk 1: rank 2's part is missing"."""
    function, size, expected = case.arguments["function"], case.arguments["size"], wanted(case, rank)
    index = first_difference(found, expected)
    assert index is not None
    start = chunk(size, case.n, rank).start if function == "reduce_scatter" else 0
    at = f"at index {index}" + (f" (element {start + index} of x)" if start else "")
    place = f"is wrong first {at}, in chunk {chunk_of(start + index, case.n, size)}"
    if expected.dtype != np.float64:
        return f"{place}: it does not hold what it should"
    if function == "all_gather":
        return f"{place}: {in_a_gathering(found[index], expected, case.n, index)}"
    return f"{place}: {in_a_sum(found[index], case.inputs, start + index)}"


def check_balance(case: Case, outcomes: Sequence[Outcome]) -> None:
    """No rank sends or receives much more than the others."""
    sent = [outcome.nbytes for outcome in outcomes]
    received = [0] * case.n
    for outcome in outcomes:
        for (_, peer, _), (nbytes, _) in outcome.sent.items():
            received[peer] += nbytes
    for verb, nbytes in (("sends", sent), ("receives", received)):
        rank, total = int(np.argmax(nbytes)), sum(nbytes)
        if nbytes[rank] > BUSIEST * total / case.n:
            lose(
                f"{on(case, rank)} {verb} {nbytes[rank]:,} of all {total:,} bytes. Around a ring no rank is busier"
                f" than another: each {verb} {total // case.n:,}."
            )


def is_right(case: Case, outcomes: Sequence[Outcome]) -> bool:
    """Up to a factor."""
    return all(
        isinstance(o.value["returned"], np.ndarray)
        and o.value["returned"].shape == wanted(case, rank).shape
        and factor_of(o.value["returned"], wanted(case, rank)) is not None
        for rank, o in enumerate(outcomes)
    )


# ---- what parts ask for ----------------------------------------------------------------------------------------------


def check_as_right(plain: Case, before: Sequence[Outcome], other: Case, outcomes: Sequence[Outcome]) -> None:
    """What is right for few elements is right for many."""
    if is_right(plain, before):
        for rank, outcome in enumerate(outcomes):
            found = outcome.value["returned"]
            if isinstance(found, np.ndarray) and factor_of(found, wanted(other, rank)) is None:
                size = plain.arguments["size"]
                lose(f"{on(other, rank)} {what_is_wrong(other, rank, found)}. Of {size} elements it is right.")


def check_result(submission: Submission, function: str, shapes: Sequence[tuple[int, int]]) -> None:
    """The right result, for (N, size) and in two dtypes, to which all ranks contribute."""
    cases = [case(submission, function, *shapes[0], dtype="float32")]
    cases += [case(submission, function, n, size) for n, size in [*shapes, (4, large(submission, 12, least=35_000))]]
    runs = submission.run("call", cases, [function])
    for each, outcomes in [*zip(cases[1:], runs[1:], strict=True), (cases[0], runs[0])]:
        check_values(each, outcomes)
    check_balance(cases[1], runs[1])


def check_others(submission: Submission, function: str) -> None:
    """Other sizes and numbers of ranks: results as right as those of 12 elements on 4 ranks."""
    shapes = [(4, 12), *OTHERS, (4, large(submission)), (4, large(submission, least=35_000))]
    cases = [case(submission, function, n, size) for n, size in shapes]
    plain, *runs = submission.run("call", cases, [function])
    check_tried(submission, cases[0], plain)
    check = check_values if is_right(cases[0], plain) else check_shapes
    for each, outcomes in zip(cases[1:], runs, strict=True):
        check(each, outcomes)


def check_out(submission: Submission, function: str, shared: str) -> None:
    """x stays as it was; `out` gets the same result as is returned without it, and is returned."""
    cases = [case(submission, function, 4, 12)]
    for out in ("apart", "shared"):
        arguments = {**cases[0].arguments, "out": out}
        label = f"{cases[0].label}, {'out apart from x' if out == 'apart' else shared}"
        cases.append(Case(4, label, cases[0].inputs, arguments))
    plain, *runs = submission.run("call", cases, [function])
    check_tried(submission, cases[0], plain)
    right = is_right(cases[0], plain)
    for each, outcomes in zip(cases, [plain, *runs], strict=True):
        for rank, outcome in enumerate(outcomes):
            value, here = outcome.value, on(each, rank)
            if each.arguments["out"] != "shared":
                index = first_difference(value["x"], each.inputs[rank])
                if index is not None:
                    lose(f"{here}'s x was changed, first at index {index}. Add up in another array.")
            if not each.arguments["out"]:
                continue
            wanted_in_out = (plain[rank] if right else outcome).value["returned"]
            if first_difference(value["out"], wanted_in_out) is not None:
                lose(f"{here}: out does not hold what is returned without it. Where does the result go?")
            if not value["is out"]:
                lose(f"{here} put the result into out, and returned another array. Return out itself.")


def check_steps(submission: Submission, function: str) -> None:
    """The skeleton's steps: as many messages as it says, of a chunk each, to the right neighbor alone."""
    size, small = large(submission, 4), case(submission, function, 4, 12)
    wide, narrow = ([case(submission, function, n, size, dtype) for n in (4, 2)] for dtype in ("float64", "float32"))
    try:
        plain, *runs = submission.attempt("call", [small, *wide, *narrow], [function])
    except Lost:  # the part on the result says what is wrong with float32
        plain, *runs = submission.run("call", [small, *wide], [function])
    if not is_right(wide[0], runs[0]):
        check_as_right(small, plain, wide[0], runs[0])
        check_heard(submission, "call", function, wide[0])
    for each, outcomes in zip([*wide, *narrow], runs, strict=False):
        if each.inputs[0].itemsize == 8 or all(outcome.value["dtype"] == "float32" for outcome in outcomes):
            check_ring(each, outcomes)


def check_ring(case: Case, outcomes: Sequence[Outcome]) -> None:
    cost, width = COSTS[case.arguments["function"]](case.arguments["size"], case.n), case.inputs[0].itemsize
    for rank, outcome in enumerate(outcomes):
        right, allowed = (rank + 1) % case.n, cost.sent[rank] * width
        for _, peer, line in outcome.sent:
            if peer != right:
                lose(
                    f"{on(case, rank)} sends to rank {peer} at {line}; around the ring it sends to its right neighbor"
                    f" alone, rank {right}."
                )
        if outcome.nbytes != allowed:
            lose(wrong_bytes(case, rank, outcome, allowed))
        if outcome.messages != cost.steps:
            lose(f"{on(case, rank)} sent {outcome.messages} messages; there are {cost.steps} steps.")


def wrong_bytes(case: Case, rank: int, outcome: Outcome, allowed: int) -> str:
    """Which transfers are not what they should be."""
    lines = [f"{on(case, rank)} sent {outcome.nbytes:,} bytes where the ring sends {allowed:,}."]
    chunk_bytes, narrow = case.arguments["size"] // case.n * case.inputs[0].itemsize, case.inputs[0].itemsize == 4
    for (_, peer, line), (nbytes, messages) in outcome.sent.items():
        remark = ""
        if narrow and nbytes == 2 * messages * chunk_bytes:
            remark = "\n    That is twice a chunk each: is float32 sent as float64?"
        elif nbytes > messages * chunk_bytes:
            remark = f"\n    That is more than a chunk of {chunk_bytes:,} each."
        count = f"{messages} message{'s' * (messages > 1)}"
        lines.append(f"  to rank {peer}: {nbytes:,} bytes in {count} at {line}{remark}")
    return "\n".join(lines)


# ---- reduce_scatter --------------------------------------------------------------------------------------------------


test_reduce_scatter = part(
    2, "reduce_scatter: rank r gets chunk r of the sum", check_result, "reduce_scatter", [(4, 12), (2, 12)]
)
test_reduce_scatter_any = part(1, "reduce_scatter: any size, on any number of ranks", check_others, "reduce_scatter")
test_reduce_scatter_out = part(
    1, "reduce_scatter: x stays; out, which may be a view of x", check_out, "reduce_scatter", "out is a view of x"
)
test_reduce_scatter_steps = part(
    2, "reduce_scatter: N-1 messages of a chunk, to the right", check_steps, "reduce_scatter"
)


# ---- all_gather ------------------------------------------------------------------------------------------------------


test_all_gather = part(2, "all_gather: everyone gets all chunks", check_result, "all_gather", [(4, 12), (2, 12)])
test_all_gather_any = part(1, "all_gather: any size, on any number of ranks", check_others, "all_gather")
test_all_gather_out = part(
    1, "all_gather: x stays; out, and x may be a view of it", check_out, "all_gather", "x is a view of out"
)
test_all_gather_steps = part(2, "all_gather: N-1 messages of a chunk, to the right", check_steps, "all_gather")


# ---- all_reduce, with the chapter's reduce_scatter and all_gather ----------------------------------------------------


test_all_reduce = part(
    1, "all_reduce: everyone gets the sum, for any size and N", check_result, "all_reduce", [(4, 12), *OTHERS]
)
test_all_reduce_out = part(1, "all_reduce: x stays; out, which may be x", check_out, "all_reduce", "out is x")
test_all_reduce_steps = part(2, "all_reduce: 2(N-1)/N·S from each rank, to the right", check_steps, "all_reduce")


@pytest.mark.points(1, "all_reduce: memory for the result and three chunks")
def test_memory(submission: Submission) -> None:
    n, size = 8, large(submission, 8, 30_000)
    small, each = (case(submission, "all_reduce", n, of) for of in (16, size))
    measured = [Case(n, one.label, one.inputs) for one in (small, each)]
    plain, outcomes = submission.run("call_measured", measured, ["all_reduce"])
    check_as_right(small, plain, each, outcomes)
    check_tried(submission, each, outcomes)
    limit = 8 * (size + (HELD + IN_TRANSIT) * size // n) + SLACK
    for rank, outcome in enumerate(outcomes):
        if outcome.value["peak"] > limit:
            lose(
                f"{on(each, rank)} held {outcome.value['peak']:,} bytes at a time in addition to x; the result and"
                f" {HELD} chunks are {8 * (size + HELD * size // n):,}. Which array is as large as x, and is not the"
                " result?"
            )
    check_confined(submission, is_right(small, plain))


def check_confined(submission: Submission, right: bool) -> None:
    """The same seen from outside: it succeeds on ranks that can take no more memory than it and the wire need, and if
    it is right elsewhere, it is right there."""
    n, size = 8, 700_000
    inputs = [submission.random.integers(1, 1000, size).astype(np.float64) for _ in range(n)]
    each = Case(n, f"{n} ranks, all_reduce of {size:,} float64 with memory for the result and three chunks", inputs)
    memory = 8 * (size + (HELD + IN_TRANSIT + 1) * size // n) + (3 << 20)
    [outcomes] = submission.run("call_confined", [each], ["all_reduce"], memory=memory)
    expected = np.sum(inputs, axis=0)[:: size // 8]
    for rank, outcome in enumerate(outcomes):
        if right and (isinstance(outcome.value, str) or factor_of(outcome.value, expected) is None):
            lose(f"{on(each, rank)} returned something else than the sum. Of few elements it is right.")


# ---- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.points(1, "sums, not means")
def test_factor(submission: Submission) -> None:
    cases_of = {f: [case(submission, f, n, 12) for n in (4, 2)] for f in ("reduce_scatter", "all_reduce")}
    for function, runs in working(submission, "call", cases_of, partial(check_tried, submission)):
        for each, outcomes in zip(cases_of[function], runs, strict=True):
            check_shapes(each, outcomes)
            for rank, outcome in enumerate(outcomes):
                found, expected = outcome.value["returned"], wanted(each, rank)
                if factor_of(found, expected) not in (None, 1.0):
                    lose(f"{on(each, rank)} {what_is_wrong(each, rank, found)}.")


@pytest.mark.points(1, "nothing depends on luck: waiting sends, requests, order")
def test_timing(submission: Submission) -> None:
    sizes = (12, 40_000) if submission.wire.name == "mpi" else (large(submission, 4, 12, 400),)  # MPI puts few aside
    cases = {function: [case(submission, function, 4, size) for size in sizes] for function in ASKED}
    check_timing(submission, "call", cases, partial(check_tried, submission))


@pytest.mark.points(1, "every message means something")
def test_meaning(submission: Submission) -> None:
    size = large(submission, 3, 9, 300)
    check_meaning(
        submission, "call", {function: case(submission, function, 3, size) for function in ASKED}, check_shapes
    )


# ---- the notebook's gaps, which earn no points: check("reduce_scatter_step") runs these ------------------------------


def check_passed_on(submission: Submission, function: str, target: str) -> None:
    """Every rank has its left neighbor's x, also where every send waits until its receiver is there."""
    drawn = {n: distinct(n, 3, submission.random) for n in (4, 3, 2)}
    drawn[3] = [x.astype(np.int64) for x in drawn[3]]  # which go into an array of integers alone
    cases = [Case(n, f"{n} ranks, {function} of 3 numbers", inputs) for n, inputs in drawn.items()]
    for each, rank, outcome in by_rank(submission, target, cases, [function], rules=STRICT):
        found, left = outcome.value["returned"], (rank - 1) % each.n
        if isinstance(found, str):
            lose(f"{on(each, rank)} returned {found if found != 'NoneType' else 'None'}, not an array of numbers.")
        if np.all(found == -1):
            lose(f"{on(each, rank)} has received nothing into out. Fill the array that it is given, in place.")
        if not np.array_equal(found, each.inputs[left]):
            held = [other for other, x in enumerate(each.inputs) if np.array_equal(found, x)]
            what = f"rank {held[0]}'s" if held else "nobody's"
            lose(f"{on(each, rank)} ends with {what} numbers; rank {left}'s are wanted, its left neighbor's.")


def check_all_steps(submission: Submission, function: str) -> None:
    """After N-1 steps, what the function is to return; and in each step a chunk for the right neighbor."""
    name = f"{function}_step"
    # Where all chunks are equal, what is wrong is seen best.
    for shapes in ([(4, 4, "float64"), (4, 12, "float64")], [(4, 13, "float64"), (3, 7, "int64")]):
        cases = []
        for n, size, dtype in shapes:
            inputs = [x.astype(dtype) for x in case(submission, function, n, size).inputs]
            label = f"{n} ranks, {n - 1} {name}s on {size} numbers"
            cases.append(Case(n, label, inputs, {"function": function, "size": size}))
        for each, outcomes in by_case(submission, "call_steps", cases, [name]):
            for rank, outcome in enumerate(outcomes):
                right = (rank + 1) % each.n
                for _, peer, line in outcome.sent:
                    if peer != right:
                        lose(f"{on(each, rank)} sends to rank {peer} at {line}; its right neighbor is rank {right}.")
            if not is_right(each, outcomes):
                find_wrong_step(each, outcomes, function)
            check_values(each, outcomes)
            for rank, outcome in enumerate(outcomes):
                if outcome.messages != each.n - 1:
                    lose(f"{on(each, rank)} sent {outcome.messages} messages in {each.n - 1} steps: one each will do.")


def find_wrong_step(case: Case, outcomes: Sequence[Outcome], function: str) -> None:
    """Say which is the first step after which a rank's array is not what it should be, and what is in it."""
    n, size = case.n, case.arguments["size"]
    everything = np.concatenate(case.inputs)  # of an all-gather
    for step in range(1, n):
        for rank, outcome in enumerate(outcomes):
            before, after = outcome.value["states"][step - 1 : step + 1]
            comes = (rank - step - (function == "reduce_scatter")) % n  # this chunk comes in
            place = chunk(size, n, comes)
            added = [(comes + 1 + k) % n for k in range(step + 1)]  # by these ranks: from comes + 1 on to this one
            of_ranks = [x[place] for x in case.inputs] if function == "reduce_scatter" else []
            expected = np.sum([of_ranks[k] for k in added], axis=0) if of_ranks else everything[place]
            verb = "added to" if of_ranks else "put into"
            here = f"{on(case, rank)}, step {step}: chunk {comes} comes in from the left, to be {verb} chunk {comes}"
            changed = sorted({chunk_of(int(index), n, size) for index in np.flatnonzero(after != before)})
            if not changed:
                lose(f"{here} of work, in place. Nothing in work has changed.")
            if changed != [comes]:
                what = " and ".join(map(str, changed))
                lose(f"{here}. What has changed in work is chunk {what}.")
            index = first_difference(after[place], expected)
            if index is None:
                continue
            if of_ranks:
                what = in_a_partial_sum(after[place][index], case.inputs, place.start + index, added)
                lose(f"{here}. At index {place.start + index} of work, {what}.")
            if np.array_equal(after[place], before[place] + expected):
                lose(f"{here}. It was added to what was there: it is to take its place.")
            lose(f"{here}. {in_a_gathering(after[place][index], everything, n, place.start + index).capitalize()}.")


GAPS = {
    "pass_right": partial(check_passed_on, function="pass_right", target="call_pass"),
    "reduce_scatter_step": partial(check_all_steps, function="reduce_scatter"),
    "all_gather_step": partial(check_all_steps, function="all_gather"),
    "exchange": partial(check_passed_on, function="exchange", target="call_exchange"),
}
