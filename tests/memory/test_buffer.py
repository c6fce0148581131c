"""A buffer of constant size, against sums of whole gradients."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minidist.memory.buffer import ConstantBuffer


@given(st.integers(1, 4), st.integers(1, 9), st.lists(st.integers(1, 12), max_size=6), st.booleans())
def test_what_goes_through_comes_out_where_it_belongs(n: int, columns: int, widths: list[int], divided: bool) -> None:
    """Everything is doubled on its way; a rank that has its shard alone gets row 0 of it. No message but the last one
    is smaller than the buffer, and none larger."""
    sent = []

    def double(part: np.ndarray) -> np.ndarray:
        sent.append(part.size)
        part *= 2
        return part[: part.size // n] if divided else part

    buffer = ConstantBuffer(np.empty(n * columns), n, double)
    gradients = [np.random.default_rng(i).standard_normal(n * width) for i, width in enumerate(widths)]
    totals = [np.ones(width if divided else n * width) for width in widths]
    for gradient, total in zip(gradients, totals, strict=True):
        own = gradient.copy()
        buffer.put(own, total)
        assert not own.any()
    buffer.empty()
    buffer.empty()  # nothing is left
    for gradient, total in zip(gradients, totals, strict=True):
        np.testing.assert_array_equal(total, 1 + 2 * gradient[: total.size])
    everything = n * sum(widths)
    assert sent == [n * columns] * (everything // (n * columns)) + [everything % (n * columns)] * bool(
        everything % (n * columns)
    )
