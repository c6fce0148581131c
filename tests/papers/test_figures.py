"""Every figure that minidist says a paper prints: that it comes out so, and that a slip of the pen would be seen."""

import gc
import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest

from minidist import papers
from minidist.papers.figure import Evidence, Figure, decimals, format_whole, from_rounded, plain
from tables import table

MODULES = [
    importlib.import_module(f"minidist.papers.{module.name}") for module in pkgutil.iter_modules(papers.__path__)
]
FIGURES: list[Figure] = [figure for module in MODULES for figure in getattr(module, "FIGURES", [])]


def counts(figures: list[Figure], kind: str) -> dict[str, int]:
    """By source: how many there are, of those that the table lists."""
    found = Counter(figure.source for figure in figures)
    return {source: found[source] for source in table(__file__, kind)}


def test_what_is_printed_comes_out() -> None:
    computed = [figure for figure in FIGURES if figure.value is not None and not figure.differs]
    assert counts(computed, "come_out") == table(__file__, "come_out")
    for figure in computed:
        assert figure.agrees(), (figure.source, figure.cell, figure.shown())


def test_where_a_paper_disagrees_with_itself_the_printed_does_not_come_out() -> None:
    differing = [figure for figure in FIGURES if figure.differs]
    assert counts(differing, "disagree") == table(__file__, "disagree")
    for figure in differing:
        assert not figure.agrees(), (figure.source, figure.cell)


def test_what_starts_from_rounded_numbers_agrees_within_what_they_stand_for() -> None:
    """46 % printed: from 45.5 to 46.5. A rate of 142 teraFLOP/s: 141.5 to 142.5, 45.35 to 45.67 % of 312."""
    value, bounds = from_rounded(lambda rate: 100 * rate / 312, "142")
    assert (round(value, 2), *(round(end, 2) for end in bounds)) == (45.51, 45.35, 45.67)
    printed = [n for n in ("44", "45", "46", "47") if Figure("a", "b", n, "%", "c", value, bounds).agrees()]
    assert printed == ["45", "46"]
    assert from_rounded(lambda x: -x, "2,100.50")[1] == (-2100.505, -2100.495)


def test_what_only_ranks_give_has_no_value_of_its_own() -> None:
    """Zero Bubble's: tests/test_pipeline.py has them from ranks, tests/pp/test_schedules.py on the clock alone. Of what
    others measured on their clusters nothing is to come out."""
    measured = [figure for figure in FIGURES if figure.value is None]
    assert counts(measured, "of_ranks_alone") == table(__file__, "of_ranks_alone")
    for figure in measured:
        with pytest.raises(ValueError, match=f"{re.escape(figure.cell)}: no formula gives it"):
            figure.agrees()
        assert figure.agrees(float(figure.printed))


def test_every_figure_is_declared_once() -> None:
    assert max(Counter((figure.source, figure.cell) for figure in FIGURES).values()) == 1
    gc.unfreeze()  # what was there before the tests
    made = {id(thing) for thing in gc.get_objects() if isinstance(thing, Figure)}
    gc.freeze()
    assert made == {id(figure) for figure in FIGURES}, "a figure of a paper is missing in its module's FIGURES"
    assert {figure.evidence for figure in FIGURES} <= set(get_args(Evidence))


def slips(printed: str) -> Iterator[str]:
    """A digit mistyped, lost or doubled, two of them exchanged, a point lost, a zero too many."""
    for i, digit in enumerate(printed):
        if digit.isdigit():
            yield from (printed[:i] + other + printed[i + 1 :] for other in "0123456789" if other != digit)
            yield printed[:i] + digit + printed[i:]
        yield printed[:i] + printed[i + 1 :]
        if printed[i : i + 2] != printed[i : i + 2][::-1]:
            yield printed[:i] + printed[i : i + 2][::-1] + printed[i + 2 :]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{figure.source}, {figure.cell}")
def test_a_slip_of_the_pen_is_seen(figure: Figure) -> None:
    """Of a number that starts from rounded ones, each slip that is off by more than two hundredths and by more than one
    in the last digit."""
    if figure.differs:
        figure = replace(figure, printed=figure.shown())
    value = plain(figure.printed) if figure.value is None else figure.value
    for slip in slips(figure.printed):
        unit = 10.0 ** -len(figure.printed.partition(".")[2])
        near = figure.bounds and abs(plain(slip) - plain(figure.printed)) <= max(0.02 * value, 1.01 * unit)
        if not near:
            assert not replace(figure, printed=slip).agrees(None if figure.bounds else value), slip


def test_rounding_is_half_up() -> None:
    """Python rounds to even: 41.2, 0.12, 2."""
    assert [decimals(1)(41.25), decimals(2)(0.125), decimals(0)(2.5)] == ["41.3", "0.13", "3"]
    assert [decimals(1)(1008.0387), decimals(4)(0.124)] == ["1008.0", "0.1240"]
    assert format_whole(51_200) == "51,200"
