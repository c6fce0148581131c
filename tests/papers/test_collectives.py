"""What collectives cost: against numbers worked out by hand, and lower bounds."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist.papers import collectives

properties = settings(deadline=None, derandomize=True, max_examples=300)

ALL_REDUCES = {
    "ring": collectives.ring_all_reduce,
    "server": collectives.server_all_reduce,
    "tree": collectives.tree_all_reduce,
    "doubling": collectives.doubling_all_reduce,
    "halving-doubling": collectives.halving_doubling_all_reduce,
}


@pytest.mark.parametrize(
    ("cost", "s", "n", "steps", "sent"),
    [  # worked out on paper, message by message
        (collectives.ring_reduce_scatter, 7, 3, 2, [4, 5, 5]),  # chunks of 3, 2, 2; all but one's own
        (collectives.ring_all_gather, 7, 3, 2, [5, 5, 4]),  # all but the right neighbour's
        (collectives.ring_all_reduce, 7, 3, 4, [9, 10, 9]),
        (collectives.ring_all_reduce, 12, 4, 6, [18, 18, 18, 18]),
        (collectives.ring_all_reduce, 2, 3, 4, [2, 3, 3]),  # chunks of 1, 1, 0
        (collectives.server_all_reduce, 7, 4, 6, [21, 7, 7, 7]),
        (collectives.tree_all_reduce, 7, 4, 4, [14, 7, 14, 7]),  # 0 has children 1 and 2, 2 has child 3
        (collectives.tree_all_reduce, 7, 5, 6, [21, 7, 14, 7, 7]),
        (collectives.doubling_all_reduce, 7, 4, 2, [14, 14, 14, 14]),
        (collectives.doubling_all_reduce, 7, 3, 3, [7, 14, 7]),  # 0 folds into 1, 1 and 2 exchange, 1 gives 0 the sum
        (collectives.doubling_all_reduce, 7, 6, 4, [7, 21, 7, 21, 14, 14]),
        (collectives.halving_doubling_all_reduce, 8, 4, 4, [12, 12, 12, 12]),
        (
            collectives.halving_doubling_all_reduce,
            7,
            2,
            2,
            [7, 7],
        ),  # chunks of 4, 3: gives 3 away and then 4, and vice versa
        (collectives.halving_doubling_all_reduce, 8, 3, 4, [8, 16, 8]),
        (collectives.broadcast, 8, 4, 6, [12, 6, 6, 6]),
        (collectives.broadcast, 7, 3, 4, [9, 5, 4]),
        (collectives.all_to_all, 12, 4, 3, [9, 9, 9, 9]),
    ],
)
def test_costs_worked_out_by_hand(cost, s, n, steps, sent):
    assert cost(s, n) == collectives.Cost(steps, sent)


@properties
@given(st.integers(0, 10**6), st.integers(1, 70))
def test_all_reduce_costs(s, n):
    """The same total through a server, a tree or a ring; nobody beats the lower bounds (Chan et al. 2007: ⌈lg p⌉ steps,
    2(p-1)/p·n from some rank; Patarasuk & Yuan 2009)."""
    power_of_two = n & (n - 1) == 0
    for name, formula in ALL_REDUCES.items():
        cost = formula(s, n)
        assert len(cost.sent) == n
        assert max(cost.sent) * n >= 2 * (n - 1) * s, name
        assert sum(cost.sent) >= 2 * (n - 1) * s, name
        assert cost.steps >= math.ceil(math.log2(n)), name
        if name != "doubling" and (power_of_two or name != "halving-doubling"):
            assert sum(cost.sent) == 2 * (n - 1) * s, name
    if power_of_two:
        assert collectives.doubling_all_reduce(s, n).sent == [s * n.bit_length() - s] * n
        assert collectives.halving_doubling_all_reduce(s, n).steps == 2 * math.log2(n)
    ring = collectives.ring_all_reduce(s, n).sent
    assert max(ring) <= 2 * (n - 1) * -(-s // n)  # N-1 chunks twice, the longest ones
    if s % n == 0:
        assert ring == [2 * (n - 1) * s // n] * n
        if power_of_two:
            assert collectives.halving_doubling_all_reduce(s, n).sent == ring


@properties
@given(st.integers(0, 10**6), st.integers(1, 70))
def test_costs_of_the_other_collectives(s, n):
    for formula in (collectives.ring_reduce_scatter, collectives.ring_all_gather):
        cost = formula(s, n)
        assert cost.steps == n - 1
        assert sum(cost.sent) == (n - 1) * s
        assert max(cost.sent) * n >= (n - 1) * s
    scattered, gathered = collectives.ring_reduce_scatter(s, n).sent, collectives.ring_all_gather(s, n).sent
    assert collectives.ring_all_reduce(s, n).sent == [a + b for a, b in zip(scattered, gathered, strict=True)]
    root, *others = collectives.broadcast(s, n).sent
    if n > 1:
        assert root >= s  # it has to send everything at least once
        assert root <= 2 * s
    assert sum(others) <= (n - 1) * s
    chunks = collectives.chunk_sizes(s, n)
    assert sum(chunks) == s
    assert len(chunks) == n
    assert chunks == sorted(chunks, reverse=True)
    assert max(chunks) - min(chunks) <= 1
