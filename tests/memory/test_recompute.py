"""Divisions of layers into segments, alone and on Chen's chain: every layer once, what is kept, what runs again."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from minidist.memory.chain import best_interval, count
from minidist.memory.recompute import Segment, divide, interval
from minidist.papers import chen

NUMBERS = [1, 2, 3, 5, 7, 8, 12, 36, 99, 100, 128]


def flat(segments: Sequence[Segment]) -> list[int]:
    return [layer for segment in segments for layer in segment.units]


def sound(segments: Sequence[Segment]) -> bool:
    """What runs again is what was to run again, in order; and its last part is one layer, with activations."""
    return all(
        flat(segment.within) == list(segment.units)
        and len(segment.within[-1].units) == 1
        and not segment.within[-1].within
        and sound(segment.within)
        if segment.within
        else len(segment.units) == 1
        for segment in segments
    )


@pytest.mark.parametrize("n", [0, *NUMBERS])
def test_a_division_has_every_layer_once(n: int) -> None:
    for policy in ("none", "selective", "full", "sqrt", "log", *(f"every:{k}" for k in range(1, n + 2))):
        segments = divide(range(n), policy)
        assert flat(segments) == list(range(n))
        assert sound(segments)
    assert [segment.units for segment in divide(range(n), "every:1")] == [s.units for s in divide(range(n), "full")]


def test_sizes() -> None:
    assert [list(segment.units) for segment in divide("abcdefg", "every:3")] == [list("abc"), list("def"), ["g"]]
    halves = divide("abcdefg", "log")
    assert ["".join(segment.units) for segment in halves] == ["abcd", "ef", "g"]
    assert ["".join(segment.units) for segment in halves[0].within] == ["ab", "c", "d"]
    assert interval("sqrt", 12) == 3
    assert interval("sqrt", 0) == 1


@pytest.mark.parametrize("n", NUMBERS)
def test_a_chain_holds_what_chen_says(n: int) -> None:
    """K + n/K values for K that divide n, less than one segment's more for others; 2n forwards; log: log₂n values, and
    n/2 forwards more for each halving. The gradient is the same to the bit."""
    plain = count(n, "none")
    assert plain[:2] == (n + 1, n)
    x = np.linspace(-1, 1, 8)
    slope = np.ones(8)
    for _ in range(n):
        slope, x = slope * (1 + np.cos(x)), x + np.sin(x)
    np.testing.assert_allclose(plain.gradient, slope, rtol=1e-12)
    held = {}
    for k in range(1, n + 1):
        found = count(n, f"every:{k}")
        held[k] = found.values
        assert found.calls == 2 * n
        assert k + n / k == found.values if n % k == 0 else k + n // k <= found.values <= k + n // k + 1
        np.testing.assert_array_equal(found.gradient, plain.gradient)
    assert count(n, "sqrt").values == min(held.values()) == held[best_interval(held, held.__getitem__)]
    log = count(n, "log")
    assert log.values == math.floor(math.log2(n)) + 2
    assert log.calls <= n * (1 + math.log2(n))
    if n == 2 ** (halvings := n.bit_length() - 1):
        assert log.calls == n + n // 2 * halvings
    np.testing.assert_array_equal(log.gradient, plain.gradient)


def test_the_minimum_of_a_hundred_layers() -> None:
    assert count(100, "every:10").values == 20 == count(100, "sqrt").values
    assert all(count(100, f"every:{k}").values >= 20 for k in range(1, 101))


@pytest.mark.parametrize("n", NUMBERS)
def test_the_formulas_are_those_of_the_divisions(n: int) -> None:
    """`minidist/papers/chen.py` knows nothing of segments."""
    for policy in ("none", "selective", "full", "sqrt", "log", *(f"every:{k}" for k in range(1, n + 1))):
        segments = divide(range(n), policy)
        inputs = sum(bool(segment.within) for segment in segments)
        assert chen.after_forward(policy, n) == (inputs, len(segments) - inputs)
        again = gathered = 0
        waiting = list(segments)
        while waiting:
            segment = waiting.pop()
            if segment.within:
                again += len(segment.units)
                gathered += len(segment.units) - 1
                waiting += segment.within
        assert (chen.runs_again(policy, n), chen.count_regathered_layers(policy, n)) == (again, gathered)


def test_a_transformers_best_interval() -> None:
    """Of layers that keep 17 times their input: √(n/17), not √n."""
    assert chen.best_interval(100, 1, 1) == 10
    assert chen.best_interval(68, 1, 17) == 2
    held = {k: chen.peak_bytes(f"every:{k}", 68, 1, 17) for k in range(1, 69)}
    assert min(held, key=held.__getitem__) == 2
