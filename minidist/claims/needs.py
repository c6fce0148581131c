"""What a run will need of its devices, in words, and whether it will fit."""

import textwrap
from collections.abc import Sequence

from minidist.cli.tables import number
from minidist.formulas.needs import Needs

CALLED = {"passing": "transient units", "activations": "activations of layers", "ends": "other activations"}


def in_words(needs: Sequence[Needs], capacity: int) -> str:
    """What the rank with the largest need needs, and whether that fits; 80 columns wide."""
    most = max(needs, key=lambda rank: rank.total)
    where = "Each rank" if all(rank == most for rank in needs) else f"Rank {needs.index(most)}, which needs most,"
    kinds = [f"{CALLED.get(kind, kind)} {format_unbroken(nbytes)}" for kind, nbytes in most.kinds.items() if nbytes]
    left = capacity - most.total
    verdict = (
        f"{format_unbroken(left)} are left" if left >= 0 else f"{format_unbroken(-left)} too many: it will not fit"
    )
    more = f" Not included, because there is no formula: {', '.join(most.without)}." if most.without else ""
    text = (
        f"{where} will need, by formula: {', '.join(kinds)}. Together at most {format_unbroken(most.total)} bytes"
        f" at a time, of {format_unbroken(capacity)}: {verdict}.{more}"
    )
    return textwrap.fill(text, 80, break_on_hyphens=False).replace("_", " ")


def format_unbroken(nbytes: float) -> str:
    """A number that lines do not break in two."""
    return number(nbytes).replace(" ", "_")
