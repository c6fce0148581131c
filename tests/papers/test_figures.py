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

MODULES = [
    importlib.import_module(f"minidist.papers.{module.name}") for module in pkgutil.iter_modules(papers.__path__)
]
FIGURES: list[Figure] = [figure for module in MODULES for figure in getattr(module, "FIGURES", [])]


def test_what_is_printed_comes_out() -> None:
    computed = [figure for figure in FIGURES if figure.value is not None and not figure.differs]
    assert Counter(figure.source for figure in computed) == {
        "ZeRO Table 1": 54,
        "ZeRO Fig. 1": 4,
        "ZeRO §3.1": 2,
        "ZeRO §3.2": 3,
        "Megatron-LM": 2,
        "Megatron-LM Table 1": 4,
        "GPT-2's weights": 1,
        "Llama's weights": 5,
        "DeepSpeed's estimates": 15,
        "DeepSpeed-MoE": 2,
        "ZeRO Table 2": 20,
        "Korthikanti §5": 2,
        "FSDP §3.2.1": 1,
        "FSDP Fig. 3": 1,
        "FSDP Fig. 4": 1,
        "FSDP §5.4": 2,
        "Korthikanti §6": 1,
        "Korthikanti Table 3": 4,
        "Korthikanti Table 4": 4,
        "Korthikanti Table 5": 11,
        "PTD Table 1": 30,
        "PTD Table 2": 13,
        "PTD §5.1": 2,
        "GPipe Table 1": 8,
        "MapReduce §5.4": 1,
        "MapReduce §5.5": 1,
        "PaLM §4": 1,
        "PaLM §4.1": 2,
        "PaLM §5": 1,
        "PaLM Table 1": 1,
        "GPT-NeoX-20B": 1,
        "OPT-175B": 1,
        "BLOOM": 1,
        "DeepSeek-V3": 3,
        "MegaScale Table 2": 50,
        "Llama 3 Table 4": 5,
        "Llama 3 Table 5": 5,
        "Llama 3 §3.3.4": 1,
        "Ring Attention Table 2": 8,
        "ring-flash-attention": 12,
        "Switch Transformer §2.2": 1,
        "DeepSeek-V3 §3.2.2": 3,
        "Mixtral 8x7B": 2,
        "Mixtral 8x22B": 2,
        "OLMoE-1B-7B": 2,
        "ZeRO-Offload Table 1": 7,
        "ZeRO-Offload §2": 2,
        "ZeRO-Offload §6.2.2": 1,
        "ZeRO-Offload §3.3": 1,
        "ZeRO-Infinity §4.2": 4,
        "ZeRO-Infinity §8": 1,
    }
    for figure in computed:
        assert figure.agrees(), (figure.source, figure.cell, figure.shown())


def test_where_a_paper_disagrees_with_itself_the_printed_does_not_come_out() -> None:
    differing = [figure for figure in FIGURES if figure.differs]
    assert Counter(figure.source for figure in differing) == {
        "ZeRO §6.1": 2,
        "Korthikanti §5": 2,
        "FSDP §3.2.2": 1,
        "GPipe Table 1": 2,
        "DeepSpeed's estimates": 1,
        "Llama 3 Table 4": 1,
        "Llama 3 Table 5": 2,
        "MegaScale Table 2": 14,
        "Ring Attention Table 2": 2,
        "ZeRO-Offload Table 1": 1,
        "ZeRO-Offload §2": 1,
        "ZeRO-Infinity §8": 1,
    }
    for figure in differing:
        assert not figure.agrees(), (figure.source, figure.cell)


def test_what_starts_from_rounded_numbers_agrees_within_what_they_stand_for() -> None:
    """46 % printed: from 45.5 to 46.5. A rate of 142 teraFLOP/s: 141.5 to 142.5, 45.35 to 45.67 % of 312."""
    value, bounds = from_rounded(lambda rate: 100 * rate / 312, "142")
    assert (round(value, 2), *(round(end, 2) for end in bounds)) == (45.51, 45.35, 45.67)
    printed = [
        text for text in ("44", "45", "46", "47")
        if Figure("a", "b", text, "%", "c", value, decimals(0), bounds=bounds).agrees()
    ]  # fmt: skip
    assert printed == ["45", "46"]
    assert from_rounded(lambda x: -x, "2,100.50")[1] == (-2100.505, -2100.495)


def test_what_only_ranks_give_has_no_value_of_its_own() -> None:
    """Zero Bubble's: tests/test_pipeline.py has them from ranks, tests/pp/test_schedules.py on the clock alone. Of what
    others measured on their clusters nothing is to come out."""
    measured = [figure for figure in FIGURES if figure.value is None]
    assert Counter(figure.source for figure in measured) == {
        "ZB Table 5": 36,
        "ZB README": 13,
        "DSV3 Table 2": 21,
        "Chimera Table 2": 21,
        "ZeRO §1": 6,
        "ZeRO §7": 4,
        "ZeRO §8": 2,
        "Megatron-LM Fig. 4": 1,
        "Megatron-LM's code": 1,
        "PTD §3.2": 1,
        "Korthikanti, abstract": 1,
        "Korthikanti §4.2.2": 3,
        "Korthikanti Table 2": 6,
        "Ring Attention Table 3": 13,
        "DiLoCo, abstract": 1,
        "PS Fig. 11": 1,
        "Micikevicius §3.1": 1,
        "ZeRO Table 2": 10,
        "ZeRO Fig. 8": 4,
        "Korthikanti §6": 1,
        "Korthikanti Table 4": 15,
        "Korthikanti Table 5": 9,
        "Chen, abstract": 3,
        "PS Fig. 13": 2,
        "MapReduce §5.3": 4,
        "MapReduce §5.4": 1,
        "MapReduce §5.5": 3,
        "ZeRO-Offload Table 4": 9,
        "PTD Table 1": 10,
        "PTD Table 2": 12,
        "MegaScale Table 2": 16,
        "Llama 3 Table 4": 3,
        "PaLM §4": 1,
        "PaLM §4.1": 1,
        "GPT-NeoX-20B": 1,
        "OPT-175B": 1,
        "BLOOM": 1,
        "DeepSpeed-Ulysses": 3,
        "Ring Attention §3": 1,
    }
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
