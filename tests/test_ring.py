"""The collectives against NumPy's sums, made here from the same inputs, and their messages against counts by hand."""

import itertools
import json
import shlex
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from cases import printed_by
from jobs import rings
from jobs.rings import Array, digest
from minidist import UsageError, ring
from minidist.claims.collectives import draw_inputs
from minidist.launch import launcher
from minidist.papers import collectives
from minidist.programs.ring import COLLECTIVES
from ranks import launch

ON_RANKS = pytest.mark.parametrize("n", [1, 2, 3, 7, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 5, 8))])
DTYPES = ("float64", "float32", "float16", "int32")
FEWER = ("float32", "float16")  # on 5 and more ranks: there it is the number of messages that takes the time
ALL_REDUCES = ("all_reduce", "server", "tree", "doubling", "halving_doubling")
# Results that are the whole sum; the first four are the ring's.
WHOLE = ("all_reduce into out", "all_reduce in place", "all_reduce into a neighbour", *ALL_REDUCES)
SCATTERS = ("reduce_scatter", "reduce_scatter into out", "reduce_scatter into own chunk")
GATHERS = ("all_gather", "all_gather in place")
RING = {
    **dict.fromkeys(WHOLE[:4], collectives.ring_all_reduce),
    **dict.fromkeys(SCATTERS, collectives.ring_reduce_scatter),
}
RING |= dict.fromkeys(GATHERS, collectives.ring_all_gather)
FORMULAS = RING | {
    "server": collectives.server_all_reduce,
    "tree": collectives.tree_all_reduce,
    "doubling": collectives.doubling_all_reduce,
    "halving_doubling": collectives.halving_doubling_all_reduce,
    "broadcast from 0": collectives.broadcast,
}


def sizes(n: int) -> list[int]:
    """The awkward ones, and some drawn at random (the same in every run)."""
    drawn = np.random.default_rng(n).integers(2, 5000, 2)
    return sorted({0, 1, 2, n - 1, n, n + 1, 10, 1000, 65537, *map(int, drawn)})


def whole_cases(n: int) -> list[list[Any]]:
    """Each operation on whole numbers; the largest size in one dtype only, to keep the job short."""
    operations, broadcasts = (*WHOLE, *SCATTERS, *GATHERS), [f"broadcast from {root}" for root in range(n)]
    dtypes = DTYPES if n < 5 else FEWER
    shapes = [
        (dtype, [size]) for dtype, size in itertools.product(dtypes, sizes(n)) if size < 65537 or dtype == "float32"
    ]
    rows = [(dtype, shape) for dtype in dtypes for shape in ([n, 0], [n, 1], [n, 5], [n, 3, 7], [n, 9000])]
    return [
        *([operation, "whole numbers", *shape] for operation, shape in itertools.product(operations, shapes)),
        *([root, "whole numbers", "float32", [size]] for root, size in itertools.product(broadcasts, sizes(n))),
        *(["all_to_all", "whole numbers", *shape] for shape in rows),
    ]


def fraction_cases(n: int) -> list[list[Any]]:
    dtypes = DTYPES[:3] if n < 5 else FEWER
    products = itertools.product((*WHOLE, *SCATTERS), dtypes, (1, n + 1, 20_011))
    return [[operation, "fractions", dtype, [size]] for operation, dtype, size in products]


@cache
def outcomes(n: int) -> list[dict[str, Any]]:
    """All cases in one job; a dictionary for each rank."""
    return launch("jobs.rings:run_all", n, whole_cases(n) + fraction_cases(n), timeout=240).values


@cache
def inputs(n: int, kind: str, dtype: str, shape: tuple[int, ...]) -> list[Array]:
    return [rings.INPUTS[kind](rank, shape, dtype) for rank in range(n)]


def chunks(x: Array, n: int) -> list[Array]:
    """NumPy's own idea of n consecutive pieces whose sizes differ by one at most, the longer ones first."""
    return np.array_split(x, n)


def truth(n: int, operation: str, xs: list[Array], rank: int) -> Array:
    """What a rank should get, from everyone's input."""
    if operation in WHOLE:
        return np.sum(xs, axis=0, dtype=xs[0].dtype)
    if operation in SCATTERS:
        return chunks(np.sum(xs, axis=0, dtype=xs[0].dtype), n)[rank]
    if operation in GATHERS:
        return np.concatenate([chunks(x, n)[source] for source, x in enumerate(xs)])
    if operation == "all_to_all":
        return np.stack([x[rank] for x in xs])
    return xs[int(operation.removeprefix("broadcast from "))]


@ON_RANKS
def test_every_rank_gets_what_numpy_says(n: int) -> None:
    for case in whole_cases(n):
        operation, kind, dtype, shape = case
        xs = inputs(n, kind, dtype, tuple(shape))
        for rank, found in enumerate(outcomes(n)):
            assert found[repr(case)]["digest"] == digest(truth(n, operation, xs, rank)), (case, rank)


@ON_RANKS
def test_the_input_is_left_alone(n: int) -> None:
    for case, found in itertools.product(whole_cases(n) + fraction_cases(n), outcomes(n)):
        assert found[repr(case)]["unchanged"], case


@pytest.mark.parametrize("n", [2, 3, 4])
def test_an_all_reduce_takes_one_chunk_in_place_and_no_memory_into_another_array(n: int) -> None:
    size, slack = 120_000, 20_000  # elements; bytes of Python's own objects
    for peaks in launcher.launch("jobs.rings:memory_of_all_reduce", n, size, timeout=60).values:
        assert 0 <= peaks["into out"] < slack
        assert 0 <= peaks["in place"] - 4 * size // n < slack


def test_what_the_benchmark_compares_with_is_a_ring() -> None:
    assert launcher.launch("jobs.rings:bare", 3, 3000, timeout=60).values == [True] * 3


@pytest.mark.parametrize("operation", [ring.reduce_scatter, ring.all_reduce, partial(ring.all_gather, size=4)])
@pytest.mark.parametrize("out", [np.zeros(4, np.float32), np.zeros(5), np.zeros((2, 2)), np.zeros(1)])
def test_a_result_of_another_shape_or_type_is_refused(operation: Callable[..., Array], out: Array) -> None:
    """NumPy would round, or put one number everywhere."""
    alone: Any = SimpleNamespace(rank=0, size=1)
    with pytest.raises(ValueError, match=r"float64 of shape \(4,\) is needed"):
        operation(alone, np.zeros(4), out=out)


@ON_RANKS
def test_all_ranks_get_the_same_bits(n: int) -> None:
    """Also where rounding makes the sum depend on the order: else the copies of a model would drift apart."""
    for case in fraction_cases(n):
        if case[0] in WHOLE:
            assert len({found[repr(case)]["digest"] for found in outcomes(n)}) == 1, case


@ON_RANKS
def test_sums_of_fractions_are_within_rounding(n: int) -> None:
    """Any order of summation is within (N-1)·ε·Σ|x| of the true sum (Higham, section 4.2); one ε more for the float64
    sum that stands in for it here."""
    for case in fraction_cases(n):
        operation, kind, dtype, shape = case
        if operation in WHOLE:
            xs = np.array(inputs(n, kind, dtype, tuple(shape)), np.float64)
            bound = n * np.finfo(dtype).eps * np.abs(xs).sum(axis=0)
            assert (np.abs(outcomes(n)[0][repr(case)]["result"] - xs.sum(axis=0)) <= bound).all(), case


@ON_RANKS
def test_the_order_of_summation_is_the_documented_one(n: int) -> None:
    """reduce_scatter: x[c+1] + x[c+2] + … + x[c], bit for bit; the ring's all_reduce puts these chunks together."""
    for case in fraction_cases(n):
        operation, kind, dtype, shape = case
        xs = inputs(n, kind, dtype, tuple(shape))
        parts = []
        for c in range(n):
            part = chunks(xs[(c + 1) % n], n)[c].copy()
            for distance in range(2, n + 1):
                part = part + chunks(xs[(c + distance) % n], n)[c]
            parts.append(part)
        for rank, found in enumerate(outcomes(n)):
            if operation in SCATTERS:
                assert found[repr(case)]["digest"] == digest(parts[rank]), (case, rank)
            elif operation.startswith("all_reduce"):
                assert found[repr(case)]["digest"] == digest(np.concatenate(parts)), (case, rank)


# ---- messages --------------------------------------------------------------------------------------------------------


@ON_RANKS
def test_every_rank_sends_as_many_bytes_as_the_formula_says(n: int) -> None:
    for case in whole_cases(n):
        operation, _, dtype, shape = case
        itemsize = np.dtype(dtype).itemsize
        if operation in FORMULAS:
            expected = FORMULAS[operation](shape[0], n).sent
        elif operation == "all_to_all":
            expected = collectives.all_to_all(int(np.prod(shape)), n).sent
        else:
            continue  # broadcasts from other roots: by hand, below
        for rank, found in enumerate(outcomes(n)):
            sent = sum(nbytes for nbytes, _ in found[repr(case)]["sent"].values())
            assert sent == expected[rank] * itemsize, (case, rank)


@ON_RANKS
def test_the_ring_sends_to_the_right_neighbour_only(n: int) -> None:
    """N-1 messages around the ring once, and all in the phase in which they are sent."""
    for case in whole_cases(n):
        if case[0] not in RING:
            continue
        for rank, found in enumerate(outcomes(n)):
            sent = found[repr(case)]["sent"]
            if n == 1:
                assert sent == {}
                continue
            assert sent.keys() == {("counted", (rank + 1) % n)}, case
            [(_, messages)] = sent.values()
            assert messages == (2 if "all_reduce" in case[0] else 1) * (n - 1), case


# What each rank sends to whom, {peer: (bytes, messages)}, of 10 float32, worked out on paper.
BY_HAND: dict[tuple[str, int], list[dict[int, tuple[int, int]]]] = {
    # Chunks of 3, 3, 2, 2. Each rank sends all chunks but its own: 7, 7, 8, 8 elements in 3 messages.
    ("reduce_scatter", 4): [{1: (28, 3)}, {2: (28, 3)}, {3: (32, 3)}, {0: (32, 3)}],
    # All chunks but the right neighbour's: 7, 8, 8, 7.
    ("all_gather", 4): [{1: (28, 3)}, {2: (32, 3)}, {3: (32, 3)}, {0: (28, 3)}],
    # Both: 14, 15, 16, 15 elements; together 60 = 2·(4-1)·10.
    ("all_reduce", 4): [{1: (56, 6)}, {2: (60, 6)}, {3: (64, 6)}, {0: (60, 6)}],
    # Chunks of 4, 3, 3: reduce-scatter 6, 7, 7; all-gather 7, 7, 6.
    ("all_reduce", 3): [{1: (52, 4)}, {2: (56, 4)}, {0: (52, 4)}],
    ("server", 3): [{1: (40, 1), 2: (40, 1)}, {0: (40, 1)}, {0: (40, 1)}],
    # Up: 1 to 0 and 3 to 2; 2 to 0; 4 to 0. Down: 0 to 4; 0 to 2; 0 to 1 and 2 to 3.
    ("tree", 5): [
        {1: (40, 1), 2: (40, 1), 4: (40, 1)},
        {0: (40, 1)},
        {0: (40, 1), 3: (40, 1)},
        {2: (40, 1)},
        {0: (40, 1)},
    ],
    # Rank 0 folds into 1 and gets the result back; 1 and 2 exchange.
    ("doubling", 3): [{1: (40, 1)}, {0: (40, 1), 2: (40, 1)}, {1: (40, 1)}],
    # First with the neighbour, then with the one after.
    ("doubling", 4): [
        {1: (40, 1), 2: (40, 1)},
        {0: (40, 1), 3: (40, 1)},
        {0: (40, 1), 3: (40, 1)},
        {1: (40, 1), 2: (40, 1)},
    ],
    # Chunks of 3, 3, 2, 2. Ranks 0 and 1 give away the last two (4 elements) and send back the first two (6), ranks 2
    # and 3 the other way round: 10. Then neighbours swap single chunks, there and back: 3 + 3, or 2 + 2.
    ("halving_doubling", 4): [
        {2: (40, 2), 1: (24, 2)},
        {3: (40, 2), 0: (24, 2)},
        {0: (40, 2), 3: (16, 2)},
        {1: (40, 2), 2: (16, 2)},
    ],
    # Chunks of 4, 3, 3. The root sends 4 to rank 0 and 3 to rank 2; then the ring, all but the right neighbour's chunk:
    # 7, 7, 6.
    ("broadcast from 1", 3): [{1: (28, 2)}, {0: (16, 1), 2: (40, 3)}, {0: (24, 2)}],
}


@pytest.mark.parametrize(("operation", "n"), BY_HAND)
def test_messages_worked_out_by_hand(operation: str, n: int) -> None:
    case = [operation, "whole numbers", "float32", [10]]
    for rank, found in enumerate(outcomes(n)):
        assert {peer: counts for (_, peer), counts in found[repr(case)]["sent"].items()} == BY_HAND[operation, n][rank]


def test_all_to_all_sends_each_row_once() -> None:
    """A row of 5 float32 to each of the others; none to oneself."""
    for rank, found in enumerate(outcomes(4)):
        sent = found[repr(["all_to_all", "whole numbers", "float32", [4, 5]])]["sent"]
        assert sent == {("counted", peer): (20, 1) for peer in range(4) if peer != rank}


# ---- the program, on as many ranks as one process holds --------------------------------------------------------------


def compare(*words: str, n: int) -> list[dict[str, Any]]:
    """Run the program on n ranks of this process; returns its claims."""

    claims: list[dict[str, Any]] = json.loads(printed_by(shlex.join(["ring", *words, "--json", "-"]), n))["claims"]
    return claims


def test_only_the_named_algorithms_run() -> None:
    """Each once, in the order of their names on the line."""
    words = ("--size", "100", "--only", "broadcast, all-to-all", "--only=all-reduce ring", "--only", "broadcast")
    assert [*dict.fromkeys(claim["source"] for claim in compare(*words, n=3))] == [
        *("broadcast", "all-to-all", "all-reduce ring")
    ]
    assert len({claim["source"] for claim in compare("--size", "100", n=3)}) == len(COLLECTIVES)
    for unknown in ("ring", "broadcast,", "broadcast,ring"):
        with pytest.raises(UsageError, match=r"--only: must be one of all-reduce ring, .*, all-to-all, not '(ring)?'"):
            compare("--only", unknown, n=2)


@pytest.mark.parametrize(
    "n", [64, pytest.param(256, marks=pytest.mark.slow), pytest.param(1024, marks=pytest.mark.slow)]
)
def test_many_ranks_make_inputs_once(n: int) -> None:
    """And every algorithm's result and bytes are those that are promised."""
    draw_inputs.cache_clear()
    with mock.patch("numpy.random.default_rng", wraps=np.random.default_rng) as drawn:
        compare("--size", str(4 * n), *(("--only", "all-reduce ring") if n > 64 else ()), n=n)
    assert drawn.call_count == n
