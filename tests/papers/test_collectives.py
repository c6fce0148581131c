"""The papers' formulas: against the figures that the papers print, numbers worked out by hand, and lower bounds."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist import papers

properties = settings(deadline=None, derandomize=True, max_examples=300)

# ---- ZeRO ------------------------------------------------------------------------------------------------------------

CELLS = [
    (psi, n, stage, printed)
    for psi, rows in papers.ZERO_TABLE_1.items()
    for n, row in rows.items()
    for stage, printed in enumerate(row, start=1)
]


def test_zero_table_1():
    assert len(CELLS) == 54
    for psi, n, stage, printed in CELLS:
        assert papers.zero_table_cell(psi, n, stage) == printed, (psi, n, stage)
        assert float(printed) == pytest.approx(papers.zero_memory(psi, n, stage).total / 1e9, rel=0.03)  # 0.117 as 0.12


def test_zero_figure_1():
    for stage, printed in enumerate(papers.ZERO_FIGURE_1):
        total = papers.zero_memory(7.5e9, 64, stage).total / 1e9
        digits = len(printed.partition(".")[2])
        assert f"{total:.{digits}f}" == printed


def test_zero_memory_is_split_as_the_paper_says():
    """A hundred parameters on four ranks: 2, 2 and 12 bytes each."""
    assert [papers.zero_memory(100, 4, stage) for stage in range(4)] == [
        papers.ModelStates(200, 200, 1200),
        papers.ModelStates(200, 200, 300),
        papers.ModelStates(200, 50, 300),
        papers.ModelStates(50, 50, 300),
    ]
    in_fp32 = papers.zero_memory(100, 4, 1, p=4, g=4, k=8)
    assert in_fp32 == papers.ModelStates(400, 400, 200)
    assert in_fp32.total == 1000


def test_zero_limits():
    """Section 5: 4 times, 8 times and N times less."""
    full = papers.zero_memory(1, 1, 0).total
    ratios = [full / papers.zero_memory(1, 10**9, stage).total for stage in (1, 2, 3)]
    assert ratios == pytest.approx([4, 8, 10**9])


@pytest.mark.parametrize(
    ("stage", "accumulate", "kept", "sent"),
    [  # 1200 parameters on 4 ranks: once through a ring is 900
        (0, 1, 0, [1800]),
        (0, 5, 0, [1800]),
        (1, 1, 0, [900, 900]),
        (1, 5, 0, [900, 900]),
        (2, 1, 0, [900, 900]),
        (2, 5, 0, [4500, 900]),
        (3, 1, 0, [900, 900, 900]),
        (3, 5, 0, [4500, 4500, 4500]),
        (3, 1, 400, [900, 600, 900]),
        (3, 5, 400, [4500, 3000, 4500]),
    ],
)
def test_zero_volume(stage, accumulate, kept, sent):
    volume = papers.zero_volume(1200, 4, stage, accumulate, kept)
    assert sorted(volume.values()) == sorted(sent)
    if len(set(sent)) > 1:
        assert volume.get("all-gather parameters", volume.get("all-gather backward")) == min(sent)
    assert sum(papers.zero_volume(1200, 1, stage, accumulate, kept).values()) == 0


def test_short():
    assert [papers.short(psi) for psi in (7.5e9, 128e9, 1e12)] == ["7.5B", "128B", "1T"]


# ---- collectives -----------------------------------------------------------------------------------------------------

ALL_REDUCES = {
    "ring": papers.ring_all_reduce,
    "server": papers.server_all_reduce,
    "tree": papers.tree_all_reduce,
    "doubling": papers.doubling_all_reduce,
    "halving-doubling": papers.halving_doubling_all_reduce,
}


@pytest.mark.parametrize(
    ("cost", "s", "n", "steps", "sent"),
    [  # worked out on paper, message by message
        (papers.ring_reduce_scatter, 7, 3, 2, [4, 5, 5]),  # chunks of 3, 2, 2; all but one's own
        (papers.ring_all_gather, 7, 3, 2, [5, 5, 4]),  # all but the right neighbour's
        (papers.ring_all_reduce, 7, 3, 4, [9, 10, 9]),
        (papers.ring_all_reduce, 12, 4, 6, [18, 18, 18, 18]),
        (papers.ring_all_reduce, 2, 3, 4, [2, 3, 3]),  # chunks of 1, 1, 0
        (papers.server_all_reduce, 7, 4, 6, [21, 7, 7, 7]),
        (papers.tree_all_reduce, 7, 4, 4, [14, 7, 14, 7]),  # 0 has children 1 and 2, 2 has child 3
        (papers.tree_all_reduce, 7, 5, 6, [21, 7, 14, 7, 7]),
        (papers.doubling_all_reduce, 7, 4, 2, [14, 14, 14, 14]),
        (papers.doubling_all_reduce, 7, 3, 3, [7, 14, 7]),  # 0 folds into 1, 1 and 2 exchange, 1 gives 0 the sum
        (papers.doubling_all_reduce, 7, 6, 4, [7, 21, 7, 21, 14, 14]),
        (papers.halving_doubling_all_reduce, 8, 4, 4, [12, 12, 12, 12]),
        (
            papers.halving_doubling_all_reduce,
            7,
            2,
            2,
            [7, 7],
        ),  # chunks of 4, 3: gives 3 away and then 4, and vice versa
        (papers.halving_doubling_all_reduce, 8, 3, 4, [8, 16, 8]),
        (papers.broadcast, 8, 4, 6, [12, 6, 6, 6]),
        (papers.broadcast, 7, 3, 4, [9, 5, 4]),
        (papers.all_to_all, 12, 4, 3, [9, 9, 9, 9]),
    ],
)
def test_costs_worked_out_by_hand(cost, s, n, steps, sent):
    assert cost(s, n) == papers.Cost(steps, sent)


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
        assert papers.doubling_all_reduce(s, n).sent == [s * n.bit_length() - s] * n
        assert papers.halving_doubling_all_reduce(s, n).steps == 2 * math.log2(n)
    ring = papers.ring_all_reduce(s, n).sent
    assert max(ring) <= 2 * (n - 1) * -(-s // n)  # N-1 chunks twice, the longest ones
    if s % n == 0:
        assert ring == [2 * (n - 1) * s // n] * n
        if power_of_two:
            assert papers.halving_doubling_all_reduce(s, n).sent == ring


@properties
@given(st.integers(0, 10**6), st.integers(1, 70))
def test_costs_of_the_other_collectives(s, n):
    for formula in (papers.ring_reduce_scatter, papers.ring_all_gather):
        cost = formula(s, n)
        assert cost.steps == n - 1
        assert sum(cost.sent) == (n - 1) * s
        assert max(cost.sent) * n >= (n - 1) * s
    scattered, gathered = papers.ring_reduce_scatter(s, n).sent, papers.ring_all_gather(s, n).sent
    assert papers.ring_all_reduce(s, n).sent == [a + b for a, b in zip(scattered, gathered, strict=True)]
    root, *others = papers.broadcast(s, n).sent
    if n > 1:
        assert root >= s  # it has to send everything at least once
        assert root <= 2 * s
    assert sum(others) <= (n - 1) * s
    chunks = papers.chunk_sizes(s, n)
    assert sum(chunks) == s
    assert len(chunks) == n
    assert chunks == sorted(chunks, reverse=True)
    assert max(chunks) - min(chunks) <= 1
