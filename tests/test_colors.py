"""Digits can be read on every color, and colors that mean different things can be told apart."""

import itertools

from minidist.memory.colors import DARK, LIGHT, QUANTITIES, RANKS
from minidist.memory.pool import KINDS


def channels(color: str) -> list[float]:
    return [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def luminance(color: str) -> float:
    """WCAG 2.1, "relative luminance"."""
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(color: str, other: str) -> float:
    darker, lighter = sorted([luminance(color), luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


def test_dark_digits_can_be_read_on_every_color() -> None:
    assert contrast("#000000", "#ffffff") == 21
    for color in {*QUANTITIES.values(), *RANKS, LIGHT}:
        assert contrast(color, DARK) >= 4.5, color


def test_every_kind_of_memory_has_a_color_of_its_own() -> None:
    assert QUANTITIES.keys() == set(KINDS)
    for one, other in itertools.combinations(QUANTITIES.values(), 2):
        assert max(abs(a - b) for a, b in zip(channels(one), channels(other), strict=True)) > 0.1, (one, other)
