"""Vector clocks of ranges, against a clock for every key."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minidist.ps.vector_clock import RangeClocks


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 2), st.integers(1, 9)), max_size=25))
def test_range_clocks_are_those_of_every_key(sets: list[tuple[int, int, int, int]]) -> None:
    clocks, every_key, borders = RangeClocks(0, 40, 3), np.zeros((40, 3), int), set()
    for lo, hi, worker, clock in sets:
        lo, hi = sorted((lo, hi))
        if lo == hi:
            continue
        before = len(clocks.vectors)
        clocks.set(lo, hi, worker, clock)
        every_key[lo:hi, worker] = clock
        borders |= {lo, hi}
        assert len(clocks.vectors) - before <= 2
        assert len(clocks.vectors) == len(borders | {0, 40}) - 1
        np.testing.assert_array_equal(clocks.read(lo, hi), every_key[lo:hi].min(0))
    for lo, hi in itertools.combinations(range(0, 41, 5), 2):
        np.testing.assert_array_equal(clocks.read(lo, hi), every_key[lo:hi].min(0))


def test_a_set_in_the_middle_makes_three_pieces() -> None:
    clocks = RangeClocks(0, 10, 1)
    assert clocks.borders == [0, 10]
    clocks.set(5, 10, 0, 1)
    assert clocks.borders == [0, 5, 10]
    clocks.set(1, 3, 0, 1)
    assert clocks.borders == [0, 1, 3, 5, 10]
