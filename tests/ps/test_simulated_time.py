"""Simulated time: luck, and links."""

import numpy as np
import pytest

from minidist.ps.simulated_time import DECK, LATENCY, CableDirection, step_seconds


def test_luck_is_a_deck_of_cards() -> None:
    """In every 32 steps each worker meets the same luck, in an order of its own."""
    steps = [[step_seconds(100, 10, 1.0, 1.0, (7, w, i)) for i in range(64)] for w in range(2)]
    for deal in (steps[0][:32], steps[0][32:], steps[1][:32]):
        np.testing.assert_allclose(sorted(deal), DECK * 6 * 100 * 10 / 20e9)
    assert steps[0][:32] != steps[1][:32] != steps[1][32:]
    assert step_seconds(100, 10, 0.0, 3.0, (7, 0, 0)) == pytest.approx(3 * 6 * 100 * 10 / 20e9)


def test_a_link_carries_one_message_after_another() -> None:
    out, into = CableDirection(), CableDirection()
    left = [out.send(1.0, 1_250_000), out.send(1.0, 1_250_000), out.send(5.0, 0)]
    np.testing.assert_allclose(left, [1.001, 1.002, 5.0])
    np.testing.assert_allclose(
        [into.receive(t, 1_250_000) for t in left], [1.001 + LATENCY, 1.002 + LATENCY, 5 + LATENCY]
    )
    np.testing.assert_allclose(into.receive(5.0, 1_250_000), 5.001 + LATENCY)
