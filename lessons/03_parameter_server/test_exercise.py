"""The grade of lesson 03: `pytest lessons/03_parameter_server`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew; the lesson's own code stands in for the
others. Where push and pull are asked for, the servers are the tests'; where serve is, the workers are. Gradients are
drawn afresh, and only their own rank knows them. A part earns its points or not; none needs a later one, and one
mistake costs one part: what is asked of bytes, of clocks or of order is asked whichever values have come.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import gaps, lessons_own, together
from minidist.classroom.grading.meaning import check_timing
from minidist.classroom.grading.parts import alone, ask, by_case, describe, large, on, part
from minidist.classroom.grading.submission import STRICT, Case, Lost, Outcome, Submission, lose

Array = np.ndarray
ASKED = ("ranges", "push", "pull", "fresh", "take", "serve")
HIDDEN = ("answers", "given", "minidist.parameter_server")  # what ranks cannot import

HEADER = 16  # bytes
SHAPES = [(1, 1), (2, 1), (2, 3)]  # W workers, k servers


def counted(number: int, what: str) -> str:
    """ "2 servers" """
    return f"{number} {what}{'s' * (number != 1)}"


def cast(workers: int, servers: int) -> str:
    return f"{counted(workers, 'worker')} and {counted(servers, 'server')}"


def keys_of(size: int, k: int, i: int) -> slice:
    """Range i of k, as the lesson's own `ranges` cuts them."""
    return own("ranges")(size, k)[i]  # type: ignore[no-any-return]


own = partial(lessons_own, __file__)  # the lesson's own functions


# ---- ranges ----------------------------------------------------------------------------------------------------------


def check_ranges(submission: Submission, function: str) -> None:
    """k consecutive ranges of all keys, as equal as can be."""
    sizes = [[12, 4], [13, 4], [7, 3], [3, 5], [1000, 1], [0, 2]]
    for (size, k), found in zip(sizes, ask(submission, "call_ranges", function, sizes, function=function), strict=True):
        call = f"{function}({size}, {k})"
        if isinstance(found, str):
            lose(f"{call} returned {describe(found)}, not a list of slices.")
        for i, each in enumerate(found):
            if isinstance(each, str):
                lose(f"{call}: range {i} is {describe(each)}, not a slice(start, stop).")
        text = ", ".join(f"{lo}:{hi}" for lo, hi in found)
        if len(found) != k:
            lose(f"{call} has {counted(len(found), 'range')}: {text}. Each of {counted(k, 'server')} has one.")
        if found[0][0] != 0 or found[-1][1] != size or any(b[0] != a[1] for a, b in itertools.pairwise(found)):
            lose(
                f"{call} is {text}: each range begins where the last one ends, the first at 0; the last ends at {size}."
            )
        lengths = [hi - lo for lo, hi in found]
        if max(lengths) - min(lengths) > 1:
            lose(f"{call} is {text}: their lengths are {lengths}, and no two should differ by more than 1.")


test_ranges = part(1, "ranges: consecutive, all keys, as equal as can be", check_ranges, "ranges")


# ---- push ------------------------------------------------------------------------------------------------------------


def push_case(submission: Submission, workers: int, servers: int, size: int, **more: Any) -> Case:
    """Every worker has a gradient; a server knows nothing of it but its size."""
    gradients = [submission.random.integers(1, 1000, size).astype(np.float32) + 0.5 for _ in range(workers)]
    inputs = gradients + [np.zeros(size, np.float32)] * servers
    arguments = {"workers": workers, "clock": int(submission.random.integers(3, 9)), **more}
    return Case(workers + servers, f"{cast(workers, servers)}, push of {size} float32", inputs, arguments)


def pushed(submission: Submission, *sizes: int, **more: Any) -> Iterator[tuple[Case, list[Outcome]]]:
    """One run after the other. Of 12 elements all ranges are equal, and what is sent can be received, right or not."""
    for size in sizes:
        cases = [push_case(submission, *each, size, **more) for each in SHAPES]
        yield from by_case(submission, "call_push", cases, ["push"])


@pytest.mark.points(2, "push: to each server the gradient of its range")
def test_push(submission: Submission) -> None:
    for case, outcomes in pushed(submission, 12, 13, large(submission)):
        workers = case.arguments["workers"]
        for server in range(workers, case.n):
            keys = keys_of(case.inputs[0].size, case.n - workers, server - workers)
            for worker, (_, values) in enumerate(outcomes[server].value):
                expected = case.inputs[worker][keys]
                if not np.array_equal(values, expected):
                    lose(
                        f"On {case.label}: server {server - workers}, on rank {server}, got {first(values)} from rank"
                        f" {worker}, whose gradient of the keys {keys.start} to {keys.stop - 1} is {first(expected)}."
                    )


def first(values: Array) -> str:
    """The first few."""
    return f"[{', '.join(f'{value:g}' for value in values[:4])}{', ...' * (values.size > 4)}]"


@pytest.mark.points(1, "push: a header of (PUSH, clock), values, and nothing else")
def test_push_bytes(submission: Submission) -> None:
    """Which values, and how many of them come to a server, is asked in the part above."""
    for case, outcomes in pushed(submission, 12, whatever=True):
        workers, clock = case.arguments["workers"], case.arguments["clock"]
        k, size = case.n - workers, case.inputs[0].size
        for server in range(workers, case.n):
            for worker, (said, _) in enumerate(outcomes[server].value):
                if said != [0, clock]:
                    lose(
                        f"On {case.label}: rank {worker} pushed at clock {clock}; the header that rank {server} got"
                        f" says (kind, clock) = ({said[0]}, {said[1]}), and (PUSH, clock) is (0, {clock})."
                    )
        for rank in range(workers):
            if outcomes[rank].nbytes < 4 * size + HEADER * k or outcomes[rank].messages != 2 * k:
                lose(
                    f"{on(case, rank)} sent {outcomes[rank].nbytes} bytes in {outcomes[rank].messages} messages; the"
                    f" gradient and {counted(k, 'header')} are {4 * size + HEADER * k} bytes in {2 * k}."
                )


# ---- pull ------------------------------------------------------------------------------------------------------------


def pull_case(submission: Submission, workers: int, servers: int, size: int = 12, patient: bool = False) -> Case:
    """Every server has weights and clocks of its own; of weights a worker knows the size alone."""
    inputs = []
    for rank in range(workers + servers):
        weights = submission.random.integers(1, 1000, size) + 0.5
        clocks = submission.random.integers(50, 99, workers)
        clocks[(rank - workers) % servers :: servers] -= 40  # another server is behind for every worker
        inputs.append([weights, clocks] if rank >= workers else [np.zeros(size), np.zeros(workers, np.int64)])
    arguments = {"workers": workers, "clock": 4, "patient": patient}
    return Case(workers + servers, f"{cast(workers, servers)}, pull of {size} float64", inputs, arguments)


def pulled(submission: Submission, *sizes: int) -> Iterator[tuple[Case, list[Outcome]]]:
    for size in sizes:
        cases = [pull_case(submission, *each, size) for each in SHAPES]
        yield from by_case(submission, "call_pull", cases, ["pull"])


@pytest.mark.points(2, "pull: the weights of every range, in their places")
def test_pull(submission: Submission) -> None:
    for case, outcomes in pulled(submission, 12, 13, large(submission)):
        workers = case.arguments["workers"]
        k, size = case.n - workers, case.inputs[0][0].size
        for rank in range(workers):
            for i in range(k):
                keys = keys_of(size, k, i)
                found, expected = outcomes[rank].value["weights"][keys], case.inputs[workers + i][0][keys]
                if not np.array_equal(found, expected):
                    untouched = " -1 is what was there before." if np.all(found == -1) else ""
                    lose(
                        f"On {case.label}: on rank {rank} the weights of the keys {keys.start} to {keys.stop - 1} are"
                        f" {first(found)}; server {i} sent {first(expected)}.{untouched}"
                    )


@pytest.mark.points(1, "pull: returns the clocks that hold for all weights")
def test_pull_clocks(submission: Submission) -> None:
    for case, outcomes in pulled(submission, 12):
        workers = case.arguments["workers"]
        of_servers = [clocks for _, clocks in case.inputs[workers:]]
        expected = np.min(of_servers, axis=0)
        for rank in range(workers):
            found = outcomes[rank].value["clocks"]
            if isinstance(found, str):
                lose(f"On {case.label}: pull returned {describe(found)}, not an array of {counted(workers, 'clock')}.")
            if found.shape != expected.shape or not np.array_equal(found, expected):
                said = ", ".join(str(clocks.tolist()) for clocks in of_servers)
                lose(
                    f"On {case.label}: the servers' clocks are {said}, and pull returned {found.tolist()}. How many"
                    f" updates of each worker are in the weights of every server? {expected.tolist()}."
                )


@pytest.mark.points(1, "pull: asks all servers before it waits for the first")
def test_pull_asks_first(submission: Submission) -> None:
    case = pull_case(submission, 2, 3, patient=True)
    try:
        submission.attempt("call_pull", [case], ["pull"])
    except Lost as lost:
        if "hung" not in str(lost):
            lose(str(lost))
        lose(
            "Here no server answers before all of them have been asked, and nobody gets on. Ask all, and only then"
            f" wait: else every server's delay adds to the others'.\n{lost}"
        )


# ---- fresh -----------------------------------------------------------------------------------------------------------

Question = tuple[list[int], int, int, float]  # clocks, worker, clock, staleness
PLAIN: list[Question] = [([5, 5, 5], 1, 5, 0), ([9, 9, 9], 0, 9, 2)]  # all that a worker can ask for is there
MORE: list[Question] = [([9, 9, 9], 1, 5, 2)]  # and even more: no comparison with >= or > says no
UNBOUNDED: list[Question] = [
    ([3, 1, 3], 0, 3, 1),  # worker 1 is two behind
    ([4, 4, 3], 1, 4, 0),
    ([9, 6, 9], 0, 9, 2),
    ([2, 2, 0], 1, 2, 1),
    ([30, 7, 25], 0, 30, 4),  # the others have pushed much, in sum
]
NOT_ITS_OWN: list[Question] = [([4, 5, 5], 0, 5, 2), ([5, 5, 2], 2, 3, 4), ([9, 0, 9], 1, 1, math.inf)]
AT_ONCE: list[Question] = [
    ([3, 2, 3], 0, 3, 1),
    ([9, 7, 8], 0, 9, 2),
    ([4, 0, 0], 0, 4, 4),
    ([0, 0, 0], 2, 0, 0),
    ([1, 0, 0], 0, 1, 3),
    ([100, 0, 3], 0, 100, math.inf),
    ([2, 9, 9], 0, 2, 0),  # others are ahead
]


def draw_questions(submission: Submission, least: int, own: int) -> list[Question]:
    """Some where the slowest of the others has `least` updates more than the first clock - staleness, and the worker
    itself `own` more than its clock."""
    found: list[Question] = []
    for workers in (2, 3, 4, 6):
        worker, slowest = (int(w) for w in submission.random.permutation(workers)[:2])
        staleness = int(submission.random.integers(2, 5))
        clock = int(submission.random.integers(staleness + 2, 20))
        clocks = [int(c) for c in submission.random.integers(clock, clock + 5, workers)]
        clocks[worker], clocks[slowest] = clock + own, clock - staleness + least
        found.append((clocks, worker, clock, staleness))
    return found


def check_gate(submission: Submission, function: str, questions: Sequence[Question], expected: bool, why: str) -> None:
    """The gate answers these questions as expected. A gate that is to say no must say yes to one of the plain
    questions: which of them it does is asked in the part on saying yes."""
    plain = PLAIN if expected else PLAIN + MORE
    asked = [*plain, *questions]
    given = [(np.array(clocks), *more) for clocks, *more in asked]
    answers = ask(submission, "call_gate", function, given, function=function)
    for question, found in zip(asked, answers, strict=True):
        if not isinstance(found, bool):
            lose(f"{function} returned {describe(found)}, not True or False.")
        wrong = found != expected
        if question in plain:
            wrong = not (found if expected else any(answers[: len(plain)]))
        if wrong:
            clocks, worker, clock, staleness = question
            reason = "all that a worker can ask for is in these weights" if question in plain else why
            lose(
                f"With clocks {clocks}, worker {worker} at clock {clock} and staleness {staleness:g}, {function} says"
                f" {found}: {reason}."
            )


BEHIND = "but of some worker not even the first clock - staleness updates are there"
OWN = "but not all of the worker's own updates are there"
ENOUGH = "but all that must be there is there. Is it >= in both comparisons?"


def check_behind(submission: Submission, function: str) -> None:
    check_gate(submission, function, [*UNBOUNDED, *draw_questions(submission, -1, 0)], False, BEHIND)


def check_own(submission: Submission, function: str) -> None:
    check_gate(submission, function, [*NOT_ITS_OWN, *draw_questions(submission, 1, -1)], False, OWN)


def check_soon(submission: Submission, function: str) -> None:
    questions = [*AT_ONCE, *draw_questions(submission, 0, 0), *draw_questions(submission, 1, 0)]
    check_gate(submission, function, questions, True, ENOUGH)


test_fresh = part(2, "fresh: of everyone the first clock - staleness updates", check_behind, "fresh")
test_fresh_own = part(1, "fresh: all of one's own updates", check_own, "fresh")
test_fresh_soon = part(1, "fresh: as soon as that is so", check_soon, "fresh")


# ---- take ------------------------------------------------------------------------------------------------------------


def take_cases(submission: Submission, together: bool, orders: Sequence[Sequence[int]], **more: Any) -> list[Case]:
    """Three workers' gradients come in some order, in numbers whose sum no order changes."""
    sizes = [4] * (len(orders) - 1) + [large(submission)]
    bsp = "shard.together" if together else "not shard.together"
    return [
        Case(
            1,
            f"{bsp}, pushes of the workers {', '.join(map(str, order))}",
            [submission.random.integers(1, 1000, (3, 2, size)).astype(np.float32)],
            {"order": list(order), "together": together, **more},
        )
        for order, size in zip(orders, sizes, strict=True)
    ]


def check_taken(
    submission: Submission, together: bool, orders: Sequence[Sequence[int]], function: str = "take"
) -> None:
    """Weights, clocks and the number of updates after every push."""
    cases = take_cases(submission, together, orders, function=function)
    for case, [outcome] in by_case(submission, "call_take", cases, [function]):
        gradients, clocks, pushes = case.inputs[0], np.zeros(3, np.int64), [0, 0, 0]
        for number, (worker, (weights, counted_as, updates)) in enumerate(
            zip(case.arguments["order"], outcome.value, strict=True), 1
        ):
            pushes[worker] += 1
            clocks = np.full(3, min(pushes)) if together else np.array(pushes)
            expected = -sum(gradients[w, :c].sum(axis=0) for w, c in enumerate(clocks))
            here = f"On {case.label}: after push {number}, of worker {worker},"
            if not np.array_equal(weights, expected + np.zeros_like(weights)):
                lose(
                    f"{here} the weights are {first(weights)}, and {first(expected + np.zeros_like(weights))} is right."
                )
            if isinstance(counted_as, str) or not np.array_equal(counted_as, clocks):
                said = describe(counted_as) if isinstance(counted_as, str) else counted_as
                lose(f"{here} the clocks are {said}, and {clocks} is right.")
            wanted = int(min(pushes)) if together else number
            if updates != wanted:
                lose(f"{here} shard.update has been called {updates} times; {wanted} is right.")


test_take = part(
    1, "take: without bsp, each push is an update at once", check_taken, False, [(0, 1, 2, 0), (2, 2, 1, 0, 1)]
)
test_take_together = part(
    2,
    "take: in bsp one update, when the last gradient is there",
    check_taken,
    True,
    [(0, 1, 2, 0, 1, 2), (2, 0, 1, 1, 2, 0)],
)


@pytest.mark.points(1, "take: in bsp the same bits in whatever order they come")
def test_take_order(submission: Submission) -> None:
    """Only what the last push brings is compared: when the update may come is asked in the part above."""
    gradients = (submission.random.standard_normal((3, 200)) * 10 ** np.arange(3)[:, None]).astype(np.float32)
    cases = [
        Case(1, f"shard.together, pushes of the workers {', '.join(map(str, order))}", [gradients], {"order": order})
        for order in map(list, itertools.permutations(range(3)))
    ]
    found = alone(submission, "call_take_last", "take", cases)
    before = found[0]
    if isinstance(before, str) or not np.any(before):
        lose(f"On {cases[0].label}: the weights are what they were before.")
    for case, weights in zip(cases[1:], found[1:], strict=True):
        if not np.array_equal(weights, before):
            index = int(np.flatnonzero(weights != before)[0])
            lose(
                f"On {case.label}: weight {index} is {float(weights[index])!r}; when they come in the order 0, 1, 2 it"
                f" is {float(before[index])!r}. Floating-point sums depend on the order: add in one that does not."
            )


# ---- serve -----------------------------------------------------------------------------------------------------------


def serve_case(
    submission: Submission,
    workers: int,
    servers: int,
    iterations: int,
    staleness: float,
    together: bool,
    at_last: bool = False,
    size: int = 5,
) -> Case:
    """Every worker has a gradient for each iteration, of whole numbers: no order changes their sum. at_last: no worker
    says STOP before all have pushed all."""
    shape = iterations, size
    gradients = [submission.random.integers(1, 1000, shape).astype(np.float64) for _ in range(workers)]
    inputs = gradients + [np.zeros(shape)] * servers
    how = "bsp" if together else "async" if math.isinf(staleness) else f"staleness {staleness:g}"
    label = f"{cast(workers, servers)}, {how}, {counted(iterations, 'iteration')}"
    arguments = {"workers": workers, "staleness": staleness, "together": together, "at_last": at_last}
    return Case(workers + servers, label, inputs, arguments)


def check_served(case: Case, outcomes: Sequence[Outcome]) -> None:
    """In the end all that was pushed is in the weights."""
    workers = case.arguments["workers"]
    total = sum(gradients.sum(axis=0) for gradients in case.inputs[:workers])
    for server in range(workers, case.n):
        expected = -total[keys_of(total.size, case.n - workers, server - workers)]
        found = outcomes[server].value
        if isinstance(found, str) or found.shape != expected.shape:
            lose(f"On {case.label}: rank {server} has no weights of its range any more.")
        if not np.array_equal(found, expected):
            lose(
                f"On {case.label}: the weights on rank {server} are {first(found)} in the end; with all that was pushed"
                f" they are {first(expected)}."
            )


@pytest.mark.points(2, "serve: takes what is pushed, answers what is pulled, ends")
def test_serve(submission: Submission) -> None:
    # Nothing need be held back: one iteration in bsp, or any staleness.
    cases = [serve_case(submission, 1, 1, 3, math.inf, False), serve_case(submission, 3, 1, 4, math.inf, False)]
    cases += [serve_case(submission, 3, 1, 1, 0, True), serve_case(submission, 2, 2, 3, math.inf, False)]
    cases.append(serve_case(submission, 2, 1, 2, math.inf, False, size=large(submission)))
    for case, outcomes in by_case(submission, "call_serve", cases, ["serve"]):
        check_served(case, outcomes)


@pytest.mark.points(1, "serve: holds a pull back until it is fresh, and no longer")
def test_serve_holds(submission: Submission) -> None:
    cases = []
    for ahead, staleness in ((1, 0), (2, 1), (5, 4)):
        label = f"3 workers and 1 server, staleness {staleness}, worker 1 beginning late"
        ones = [np.ones(2)] * 4
        cases.append(Case(4, label, ones, {"ahead": ahead, "staleness": float(staleness)}))
    for case, outcomes in by_case(submission, "call_gated", cases, ["serve"]):
        staleness = case.arguments["staleness"]
        for worker in range(3):
            for clock, clocks in enumerate(outcomes[worker].value):
                if min(clocks) < clock - staleness or clocks[worker] < clock:
                    lose(
                        f"On {case.label}: worker {worker} asked at clock {clock}, and was sent weights with the clocks"
                        f" {clocks}. That pull was not fresh: it is to be held back until others have pushed."
                    )


@pytest.mark.points(1, "serve: waits for nobody; nothing depends on luck")
def test_timing(submission: Submission) -> None:
    check_timing(
        submission, "call_serve", {"serve": [serve_case(submission, 3, 2, 3, math.inf, False, True)]}, lambda *_: None
    )
    label = "2 workers and 1 server, worker 0 receiving its weights after worker 1"
    submission.run("call_unhurried", [Case(3, label, [2, 2, 2])], ["serve"], rules=STRICT)


# check("push") in the notebook tries these: it goes on to train with what is right.
PARTS = {
    "push": together(test_push, test_push_bytes),
    "pull": together(test_pull, test_pull_clocks),
    "fresh": together(test_fresh, test_fresh_own, test_fresh_soon),
    "take": together(test_take, test_take_together, test_take_order),
    "serve": together(test_serve, test_serve_holds),
}


# ---- the notebook's gaps, which earn no points: check("cut") runs these ----------------------------------------------


def check_push_and_pull(submission: Submission) -> None:
    cases = []
    for n in (3, 2):
        inputs = [submission.random.integers(1, 99, 4).astype(np.float64) for _ in range(n)]
        cases.append(Case(n, f"{counted(n - 1, 'worker')} and a server", inputs))
    runs = submission.run("call_push_and_pull", cases, ["push_and_pull"])
    for case, outcomes in zip(cases, runs, strict=True):
        for rank in range(case.n - 1):
            found, expected = outcomes[rank].value, 100 * case.inputs[rank]
            if not np.array_equal(found, expected):
                lose(
                    f"On {case.label}: after push_and_pull the weights of rank {rank} are {first(found)}; the server"
                    f" sent {first(expected)}."
                )


def check_next_weight(submission: Submission) -> None:
    weights = [float(w) for w in submission.random.integers(1, 50, 6)]
    asked = [(weights[:n], 0.25, tau) for n, tau in ((6, 0), (6, 1), (6, 3), (6, 5), (3, 4), (1, 2), (2, 1))]
    found_in = ask(submission, "call_next_weight", "next_weight", asked)
    for (w, q, tau), found in zip(asked, found_in, strict=True):
        old = w[max(len(w) - 1 - tau, 0)]
        if not isinstance(found, float):
            lose(f"next_weight returned {describe(found)}, not a number.")
        if not math.isclose(found, w[-1] - q * old):
            lose(
                f"After {w}, with q = {q} and tau = {tau}, next_weight says {found:g}. The last weight is {w[-1]:g},"
                f" and the gradient was computed with {old:g}: {w[-1]:g} - {q} * {old:g} is {w[-1] - q * old:g}."
            )


def check_may_read(submission: Submission) -> None:
    for check in (check_behind, check_own, check_soon):
        check(submission, "may_read")


def check_fooled(submission: Submission) -> None:
    clocks = ask(submission, "call_fooled", "fooled", None)
    if isinstance(clocks, str) or len(clocks) != 4:
        lose("fooled should return a list of four whole numbers: the clocks.")
    if clocks[0] != 3 or min(clocks) < 0:
        lose(
            f"{clocks}: worker 0 asks at clock 3, with its three updates in the weights: clocks[0] is 3, and none is"
            " negative."
        )
    if sum(clocks) < 4 * (3 - 1):
        lose(
            f"{clocks}: these are {sum(clocks)} pushes, and the counting gate wants {4 * (3 - 1)}. It holds this pull"
            " back."
        )
    if min(clocks) >= 3 - 1:
        lose(f"{clocks}: of every worker at least 2 updates are there. This read is allowed, and no gate is fooled.")


KINDS = ("PUSH", "PULL", "STOP")


def check_hear(submission: Submission) -> None:
    cases = []
    for kinds in ([1, 0, 2], [0, 0], [2, 1]):
        inputs = [submission.random.integers(1, 99, 4).astype(np.float64) for _ in range(len(kinds) + 1)]
        clocks = [int(clock) for clock in submission.random.integers(3, 9, len(kinds))]
        label = "workers that send " + ", ".join(KINDS[kind] for kind in kinds)
        cases.append(Case(len(inputs), label, inputs, {"kinds": kinds, "clocks": clocks}))
    for case, outcomes in by_case(submission, "call_hear", cases, ["hear"]):
        found, weights = outcomes[-1].value
        if wrong := [each for each in found if isinstance(each, str)]:
            lose(f"On {case.label}: hear returned {describe(wrong[0])}, not (worker, kind, clock, gradient).")
        if np.any(weights):
            lose(f"On {case.label}: hear has written into weights. Receive the gradient into a new array.")
        for worker, kind, clock, gradient in found:
            here = f"On {case.label}: hear returned worker {worker}, kind {kind}, clock {clock}"
            wanted = case.arguments["kinds"][worker], case.arguments["clocks"][worker]
            if (kind, clock) != wanted:
                lose(f"{here}; the kind is {wanted[0]} and the clock {wanted[1]}.")
            if kind != 0 and gradient is not None:
                lose(f"{here} and the gradient {first(gradient)}. No gradient follows a {KINDS[kind]}: return None.")
            if kind == 0 and (gradient is None or isinstance(gradient, str)):
                lose(f"{here} and no gradient. One follows the header of a PUSH.")
            if kind == 0 and not np.array_equal(gradient, case.inputs[worker]):
                lose(f"{here} and the gradient {first(gradient)}; worker {worker} sent {first(case.inputs[worker])}.")


def check_answer_fresh(submission: Submission) -> None:
    cases = []
    for clocks, staleness, held in (
        ([2, 1, 3], 1.0, [[0, 2], [2, 3]]),
        ([4, 0, 1], math.inf, [[2, 1], [0, 4]]),
        ([2, 1, 2], 0.0, [[0, 2], [2, 2], [1, 1]]),
        ([2, 1, 2], 1.0, [[1, 2]]),
    ):
        weights = submission.random.integers(1, 99, 4).astype(np.float64)
        said = ", ".join(f"(worker {worker}, clock {clock})" for worker, clock in held)
        label = f"a shard with the clocks {clocks} and staleness {staleness:g}, with these pulls held: {said}"
        cases.append(Case(4, label, [weights] * 4, {"clocks": clocks, "staleness": staleness, "held": held}))
    for case, outcomes in by_case(submission, "call_answer_fresh", cases, ["answer_fresh"]):
        clocks, staleness, held = (case.arguments[name] for name in ("clocks", "staleness", "held"))
        ready = [pull for pull in held if min(clocks) >= pull[1] - staleness and clocks[pull[0]] >= pull[1]]
        for worker in range(3):
            wanted = sum(pull[0] == worker for pull in ready)
            if len(outcomes[worker].value) != wanted:
                times = counted(len(outcomes[worker].value), "answer")
                lose(f"On {case.label}: worker {worker} got {times}, and {wanted} is right.")
        left = outcomes[-1].value
        if left != [pull for pull in held if pull not in ready]:
            stays = [tuple(pull) for pull in held if pull not in ready]
            given = describe(left) if isinstance(left, str) else [tuple(pull) for pull in left]
            lose(f"On {case.label}: answer_fresh returned {given}; what has to wait is {stays}.")


GAPS = gaps(globals(), "push_and_pull", "may_read", "next_weight", "fooled", "hear", "answer_fresh") | {
    "cut": partial(check_ranges, function="cut"),
    "count_push": partial(check_taken, together=False, orders=[(0, 1, 2, 0), (2, 2, 1, 0, 1)], function="count_push"),
}
