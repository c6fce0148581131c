"""What DeepSpeed's stage 3 lets one choose: persistent parameters, what is gathered ahead, how much is live, and where
parameters wait. No choice changes a number; each changes what is held and sent as a count by hand says."""

from typing import Any

import numpy as np
import pytest

from jobs import engines
from jobs.engines import CONTEXT, VOCABULARY, settings
from minidist import offload
from minidist.data_parallel import DataParallel
from minidist.exchange.one_process import run_ranks
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit, set_small_apart
from minidist.papers import deepspeed, gpt2
from minidist.papers.models import Model
from minidist.zero3 import ZeRO3
from minidist.zr.limits import Limits, limited

CHOICES: dict[str, dict[str, Any]] = {
    "persist": {"persist": 40},
    "all persist": {"persist": 10**6},
    "ahead": {"ahead": 1},
    "far ahead": {"ahead": 10**6, "persist": 40},
    "live": {"ahead": 10**6, "live": 6000},
}


def model(tied: bool = True) -> list[Unit]:
    return gpt(GPTConfig(VOCABULARY, CONTEXT, layers=3, heads=3, width=15, tied=tied))


def trained(engine: DataParallel) -> dict[str, np.ndarray]:
    """Parameters after some steps on 6 sequences each."""
    for _ in range(3):
        engine.train_batch(*engines.batch(engine.steps, 6, CONTEXT, VOCABULARY))
    engine.settle()
    return {name: array for flat in engine.flats for name, array in engine.whole_parameters(flat, flat.master).items()}


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [ZeRO3, offload.Offload3, offload.OffloadAll])
def test_no_choice_changes_a_number(kind: Any, tied: bool, n: int) -> None:
    def be_rank(comm: Comm) -> None:
        truth = trained(DataParallel(model(tied), settings("fp64", "adamw", 2, clip=0.5), comm))
        for choice in CHOICES.values():
            if kind is offload.OffloadAll and "persist" in choice:
                continue
            engine = limited(kind, Limits(**choice))
            for name, array in trained(engine(model(tied), settings("fp64", "adamw", 2, clip=0.5), comm)).items():
                np.testing.assert_allclose(array, truth[name], rtol=1e-11, atol=1e-14, err_msg=f"{choice} {name}")

    run_ranks(be_rank, n)


E, L, H = (VOCABULARY + CONTEXT) * 15, 13 * 15 + 12 * 15**2, (VOCABULARY + 2) * 15  # elements of the model's units
ONE_AHEAD = "E1 12 23 3H H H3 32 21 1E E"


@pytest.mark.parametrize(
    ("limits", "here"),
    [
        (Limits(ahead=1), ONE_AHEAD),
        (Limits(ahead=L), ONE_AHEAD),  # L are under way: not fewer
        (Limits(ahead=L + 1), "E12 123H 23H 3H H H32 321E 21E 1E E"),
        (Limits(ahead=10**6), "E123H 123H 23H 3H H H321E 321E 21E 1E E"),
        (Limits(ahead=10**6, live=2 * L), ONE_AHEAD),  # two layers are not more than 2L
        (Limits(ahead=10**6, live=2 * L - 1), "E1 1 2 3H H H3 3 2 1E E"),  # no later unit comes in a layer's place
        (Limits(ahead=10**6, live=E), "E 1 2 3 H H 3 2 1 E"),
        (Limits(60, ahead=10**6, live=2 * 12 * 15**2), ONE_AHEAD),  # what persists is not gathered, and not counted
    ],
)
def test_which_units_are_here_by_hand(limits: Limits, here: str) -> None:
    """In the turn of each: embedding, three layers, head; forward and backward. A bound is met, not only kept."""
    seen: list[str] = []

    def be_rank(comm: Comm) -> None:
        class Seen(limited(ZeRO3, limits)):  # type: ignore[misc]
            def gather_ahead(self) -> None:
                super().gather_ahead()
                seen.append("".join(letter for letter, flat in named.items() if flat.gathered is not None))

        units = model(tied=False)
        engine = Seen(units, settings("fp64", "adamw", 1, clip=0.0), comm)
        divided = [flat for unit in units for flat in unit.flats if flat not in engine.staying]
        named = dict(zip("E123H", divided, strict=True))
        engine.train_batch(*engines.batch(0, 6, CONTEXT, VOCABULARY))

    run_ranks(be_rank, 1)
    assert [sorted(turn) for turn in seen] == [sorted(turn) for turn in here.split()]


def test_small_parameters_get_a_flat_of_their_own() -> None:
    """Of width 15: biases and norms have 15 to 60 elements, positions 15·context, matrices 225 and more."""
    units = model()
    before = [{parameter.name for parameter in unit.parameters} for unit in units]
    found = set_small_apart(units, 60)
    assert [{parameter.name for parameter in unit.parameters} for unit in units] == before
    assert all((parameter.size <= 60) == (flat in found) for unit in units for flat in unit.flats
               for parameter in flat.parameters)  # fmt: skip
    embedding, *_, head = units
    assert head.reads == [*head.flats, embedding.flats[0]]  # the matrix that it shares, and not the positions
    set_small_apart(units := model(), 10**6)
    assert [len(unit.flats) for unit in units] == [1] * 5


@pytest.mark.parametrize(
    ("ahead", "live", "most"),
    [  # gathered: the unit and what comes next; in a backward the unit's gradient, too. Units of 5, 7, 7, 1.
        (0, np.inf, 14),
        (1, np.inf, 7 + 7 + 7),  # one unit ahead: fewer than 1 were under way
        (7, np.inf, 7 + 7 + 7),
        (8, np.inf, 1 + 7 + 7 + 5 + 7 - 1),  # two ahead of the upper layer: the lower one, the embedding
        (100, 13, 5 + 7 + 7),  # 7 + 7 are more, 5 + 7 are not
        (100, 14, 21),
        (100, 8, 14),
    ],
)
def test_the_formula_by_hand(ahead: int, live: float, most: int) -> None:
    units = [(0, 5), (0, 7), (0, 7), (0, 1)]
    assert deepspeed.in_passing(units, False, 0, 5, ahead, live) == most


def test_the_formula_of_a_tied_head_and_of_a_buffer_by_hand() -> None:
    """The embedding (5) is here in the whole of a pass, and so is its gradient in a backward; 2 of each layer persist
    and are never gathered, but summed."""
    units = [(0, 5), (2, 7), (2, 7), (1, 0)]
    assert deepspeed.in_passing(units, True, 3, 5, 0, np.inf) == (5 + 7) + (5 + 2 + 7)
    assert deepspeed.in_passing(units, True, 3, 5, 0, np.inf, buffer=4) == (5 + 7) + 5 + 4
    assert deepspeed.in_passing(units, True, 9, 5, 0, np.inf) == 7 + (2 + 7)  # the embedding's matrix persists, too


@pytest.mark.parametrize("tied", [True, False])
def test_sizes_of_parameters(tied: bool) -> None:
    declared = [[parameter.size for parameter in unit.parameters] for unit in model(tied)]
    by_formula = gpt2.gpt(15, 3, 3, CONTEXT, VOCABULARY, tied).parameter_sizes
    assert [sorted(unit) for unit in declared] == [sorted(unit) for unit in by_formula]


def test_padding_of_what_is_apart() -> None:
    """h = 15, N = 2: a layer has 13·15 = 195 elements in vectors and 2700 in matrices, and the head 30 in vectors."""
    apart = Model("gpt", 11, 8, 15, 2, 3, 3, True, apart=60)
    assert apart.units(2) == [(11 + 8) * 15 + 1, 196 + 2700, 196 + 2700, 30]
    assert apart.persistent(2) == 196 * 2 + 30
    assert apart.divided(2) == [286, 2700, 2700, 0]
