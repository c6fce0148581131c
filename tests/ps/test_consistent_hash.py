"""Consistent hashing: what a joining server takes, and how fair that is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist.ps.consistent_hash import count_moved, segments


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 2_000))
def test_a_joining_server_takes_keys_and_moves_no_other(k: int, virtual: int, size: int) -> None:
    before, after = segments(range(k), virtual, size), segments(range(k + 1), virtual, size)
    for held in (before, after):
        assert [lo for lo, _, _ in held] == [0, *(hi for _, hi, _ in held[:-1])]
        assert held[-1][1] == size
    owners = [[server for lo, hi, server in held for _ in range(lo, hi)] for held in (before, after)]
    changed = [(old, new) for old, new in zip(*owners, strict=True) if old != new]
    assert all(new == k for _, new in changed)
    assert len(changed) == owners[1].count(k)
    assert count_moved(before, after) == {pair: changed.count(pair) for pair in set(changed)}


def test_the_joining_servers_share_is_fair() -> None:
    """1/(k+1) of the keys; and the more virtual servers, the more even the shares."""
    size = 10**6
    for k in (2, 4, 9):
        keys = sum(count_moved(segments(range(k), 100, size), segments(range(k + 1), 100, size)).values())
        assert keys == pytest.approx(size / (k + 1), rel=0.2)
    spread = []
    for virtual in (1, 16, 256):
        shares = np.zeros(8)
        for lo, hi, server in segments(range(8), virtual, size):
            shares[server] += hi - lo
        spread.append(shares.max() / shares.mean())
    assert spread == sorted(spread, reverse=True)
    assert spread[-1] < 1.2
