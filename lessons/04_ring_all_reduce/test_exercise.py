"""The grade of lesson 04: `pytest lessons/04_ring_all_reduce`, or `make grade` for a table.

Each part loads exercise.py anew and runs its functions on ranks, with inputs that are drawn afresh and that only their
own rank knows; one that fails or hangs takes nothing from the others. The sums are made here, and compared here with
what came back. What was sent is counted below the exercise's `comm`, at both ends. A part earns its points or not; none
needs a later one.
"""

from collections.abc import Sequence

import numpy as np
import pytest

from minidist.classroom.diagnose import chunk_of, distinct, first_difference, in_a_gathering, in_a_sum
from minidist.classroom.submission import Case, Outcome, Submission, lose, secret
from minidist.papers import collectives

Array = np.ndarray
CHUNK_LIMIT = 3  # of what all_reduce may hold besides x and its result
SLACK = 4096  # bytes of Python objects


def case(function: str, n: int, size: int, dtype: str = "float64") -> Case:
    """One call of a function: float64 inputs can be recognized in their sum; others are small whole numbers."""
    if dtype == "float64":
        inputs = distinct(n, size, secret())
    else:
        inputs = [secret().integers(1, 1000, size).astype(dtype) for _ in range(n)]
    given = [x[chunk(size, n, rank)] for rank, x in enumerate(inputs)] if function == "all_gather" else inputs
    label = f"{n} rank{'s' * (n > 1)}, {function} of {size:,} {dtype}"
    return Case(n, label, given, {"function": function, "size": size})


def chunk(size: int, n: int, i: int) -> slice:
    sizes = collectives.chunk_sizes(size, n)
    return slice(sum(sizes[:i]), sum(sizes[: i + 1]))


def wanted(case: Case, rank: int) -> Array:
    """What the function is to return on a rank."""
    function, size = case.arguments.get("function", "all_reduce"), case.arguments.get("size", 0)
    if function == "all_gather":
        return np.concatenate(case.inputs)
    total = np.sum(case.inputs, axis=0, dtype=case.inputs[0].dtype)
    return total[chunk(size, case.n, rank)] if function == "reduce_scatter" else total


def check_results(case: Case, outcomes: Sequence[Outcome]) -> None:
    """Every rank has returned what it should."""
    for rank, outcome in enumerate(outcomes):
        check_result(case, rank, outcome.value["returned"])


def check_result(case: Case, rank: int, found: Array | str) -> None:
    expected = wanted(case, rank)
    who = f"On {case.label}: rank {rank}"
    if isinstance(found, str):
        lose(f"{who} returned {found if found != 'NoneType' else 'None'}, not an array of numbers.")
    if found.shape != expected.shape or found.dtype != expected.dtype:
        lose(f"{who} returned {found.dtype} {found.shape} where {expected.dtype} {expected.shape} is wanted.")
    index = first_difference(found, expected)
    if index is None:
        return
    function, size = case.arguments.get("function", "all_reduce"), expected.size
    start = 0
    if function == "reduce_scatter":
        start, size = chunk(case.arguments["size"], case.n, rank).start, case.arguments["size"]
    at = f"at index {index}" + (f" (element {start + index} of x)" if start else "")
    place = f"{who} is wrong first {at}, in chunk {chunk_of(start + index, case.n, size)}"
    if expected.dtype != np.float64:
        lose(f"{place}: it does not hold the sum.")
    if function == "all_gather":
        lose(f"{place}: {in_a_gathering(found[index], expected, case.n, index)}.")
    lose(f"{place}: {in_a_sum(found[index], case.inputs, start + index)}.")


def check_function(submission: Submission, cases: Sequence[Case]) -> list[list[Outcome]]:
    """Run the cases in one job and check their results."""
    runs = submission.run("call", cases)
    for each, outcomes in zip(cases, runs, strict=True):
        check_results(each, outcomes)
    return runs


# ---- right results ---------------------------------------------------------------------------------------------------


@pytest.mark.points(3, "reduce_scatter: rank r gets chunk r of the sum")
def test_reduce_scatter(submission: Submission) -> None:
    check_function(submission, [case("reduce_scatter", n, 12) for n in (1, 2, 4)])


@pytest.mark.points(3, "all_gather: everyone gets all chunks")
def test_all_gather(submission: Submission) -> None:
    check_function(submission, [case("all_gather", n, 12) for n in (1, 2, 4)])


@pytest.mark.points(2, "all_reduce: everyone gets the sum")
def test_all_reduce(submission: Submission) -> None:
    check_function(submission, [case("all_reduce", n, 12) for n in (1, 2, 4)])


@pytest.mark.points(1, "on three ranks, not a power of two")
def test_three_ranks(submission: Submission) -> None:
    check_function(submission, [case("all_reduce", 3, 12)])


@pytest.mark.points(2, "sizes that N does not divide, and none at all")
def test_uneven_sizes(submission: Submission) -> None:
    functions = ("reduce_scatter", "all_gather", "all_reduce")
    check_function(submission, [case(f, 4, size) for size in (13, 7, 3, 1, 0) for f in functions])


@pytest.mark.points(1, "the input stays as it was")
def test_input_unchanged(submission: Submission) -> None:
    cases = [case(f, 4, 12) for f in ("reduce_scatter", "all_gather", "all_reduce")]
    for each, outcomes in zip(cases, check_function(submission, cases), strict=True):
        for rank, outcome in enumerate(outcomes):
            index = first_difference(outcome.value["x"], each.inputs[rank])
            if index is not None:
                lose(f"On {each.label}: rank {rank}'s x was changed, first at index {index}. Add up in another array.")


@pytest.mark.points(1, "all_reduce in place: out may be x")
def test_in_place(submission: Submission) -> None:
    sums = Case(4, "4 ranks, all_reduce with out=x", distinct(4, 12, secret()))
    [outcomes] = submission.run("call_in_place", [sums])
    check_results(sums, outcomes)
    for rank, outcome in enumerate(outcomes):
        if first_difference(outcome.value["x"], wanted(sums, rank)) is not None:
            lose(f"On {sums.label}: rank {rank} returned the sum, but out does not hold it.")


# ---- at the paper's cost ---------------------------------------------------------------------------------------------

COSTS = {
    "all_reduce": collectives.ring_all_reduce,
    "reduce_scatter": collectives.ring_reduce_scatter,
    "all_gather": collectives.ring_all_gather,
}
MEASURED = [(function, n) for function in COSTS for n in (4, 3)]


@pytest.mark.points(3, "the paper's bytes: 2(N-1)/N·S from each rank")
def test_bytes(submission: Submission) -> None:
    cases = [case(function, n, 1200, "float32") for function, n in MEASURED]
    runs = submission.run("call", cases)
    for (function, n), each, outcomes in zip(MEASURED, cases, runs, strict=True):
        allowed = [elements * 4 for elements in COSTS[function](1200, n).sent]
        for rank, outcome in enumerate(outcomes):
            if outcome.nbytes > allowed[rank]:
                lose(too_much(submission, each, rank, outcome, allowed[rank]))
        check_results(each, outcomes)
        total = sum(outcome.nbytes for outcome in outcomes)
        if total < sum(allowed):
            lose(
                f"On {each.label}: {total:,} bytes were sent in all, and no {function} can do with less than"
                f" {sum(allowed):,}. Has something been sent in another way than over comm?"
            )


def too_much(submission: Submission, case: Case, rank: int, outcome: Outcome, allowed: int) -> str:
    """Which transfers should not be there."""
    lines = [f"On {case.label}: rank {rank} sent {outcome.nbytes:,} bytes where the ring sends {allowed:,}."]
    right = (rank + 1) % case.n
    chunk_bytes = case.arguments["size"] // case.n * 4
    for (phase, peer, line), (nbytes, messages) in outcome.sent.items():
        remark = ""
        if peer != right:
            remark = "\n    The ring sends to the right only."
        elif nbytes == 2 * messages * chunk_bytes:
            remark = "\n    That is twice a chunk each: is float32 sent as float64?"
        elif nbytes > messages * chunk_bytes:
            remark = f"\n    That is more than a chunk of {chunk_bytes:,} each."
        phase = "" if phase == "main" else f" in phase {phase!r}"
        count = f"{messages} message{'s' * (messages > 1)}"
        lines.append(f"  to rank {peer}: {nbytes:,} bytes in {count} at {submission.at(line)}{phase}{remark}")
    return "\n".join(lines)


@pytest.mark.points(1, "the paper's messages: N-1 a pass, all to the right")
def test_messages(submission: Submission) -> None:
    cases = [case(function, n, 12) for function, n in MEASURED]
    for (function, n), each, outcomes in zip(MEASURED, cases, submission.run("call", cases), strict=True):
        steps = COSTS[function](12, n).steps
        for rank, outcome in enumerate(outcomes):
            right = (rank + 1) % n
            for _, peer, line in outcome.sent:
                if peer != right:
                    lose(
                        f"On {each.label}: rank {rank} sends to rank {peer} at {submission.at(line)}; around the ring"
                        f" it sends to its right neighbour alone, rank {right}."
                    )
            if outcome.messages != steps:
                lose(f"On {each.label}: rank {rank} sent {outcome.messages} messages; there are {steps} steps.")
        check_results(each, outcomes)


@pytest.mark.points(2, "no deadlock when messages are large")
def test_large(submission: Submission) -> None:
    check_function(submission, [case("all_reduce", 4, 400_000, "float32")])


@pytest.mark.points(1, "memory: the result and three chunks")
def test_memory(submission: Submission) -> None:
    size, n = 7600, 4
    sums = case("all_reduce", n, size, "float32")
    measured = Case(n, sums.label, sums.inputs)
    [outcomes] = submission.run("call_measured", [measured])
    check_results(sums, outcomes)
    limit = 4 * (size + CHUNK_LIMIT * size // n)
    for rank, outcome in enumerate(outcomes):
        if outcome.value["peak"] > limit + SLACK:
            lose(
                f"On {sums.label}: rank {rank} held {outcome.value['peak']:,} bytes at a time besides x; the"
                f" result and {CHUNK_LIMIT} chunks are {limit:,}. Which array is as large as x, and is not the result?"
            )
