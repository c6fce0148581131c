"""Bytes of activations a layer: against table 2 as it is written there, and what follows from it."""

import pytest

from minidist.papers import korthikanti

S, T = 2048, 8

TABLE_2 = {  # (sequence parallel, what is recomputed): bytes, in sbh
    (False, "none"): lambda a, h, t: 10 + 24 / t + 5 * a * S / (h * t),
    (True, "none"): lambda a, h, t: 34 / t + 5 * a * S / (h * t),
    (False, "selective"): lambda a, h, t: 10 + 24 / t,
    (True, "selective"): lambda a, h, t: 34 / t,
    (False, "full"): lambda a, h, t: 2,
}


@pytest.mark.parametrize("mode", TABLE_2, ids=str)
@pytest.mark.parametrize("name", korthikanti.TABLE_3)
def test_table_2(name, mode):
    a, h, _, b = korthikanti.TABLE_3[name]
    for t in (1, 2, T):
        expected = S * b * h * TABLE_2[mode](a, h, t)
        assert korthikanti.layer_activations(S, b, h, a, t, *mode) == pytest.approx(expected, rel=1e-15)


def test_equation_1() -> None:
    """sbh(34 + 5as/h), of which 5as/h is 80 for GPT-3."""
    assert korthikanti.layer_activations(S, 1, 12_288, 96) == S * 12_288 * (34 + 80)


def test_what_is_left_beside_tensor_parallelism_alone() -> None:
    """In per cent, by hand from table 2: sequence parallelism, selective recomputation, both."""
    ratios = {
        "22B": (66.8, 49.4, 16.1),
        "175B": (62.0, 56.5, 18.5),
        "530B": (58.3, 61.9, 20.2),
        "1T": (58.3, 61.9, 20.2),
    }
    for model, (a, h, _, b) in korthikanti.TABLE_3.items():
        alone = korthikanti.layer_activations(S, b, h, a, T)
        modes = ((True, "none"), (False, "selective"), (True, "selective"))
        found = [100 * korthikanti.layer_activations(S, b, h, a, T, *mode) / alone for mode in modes]
        assert tuple(round(percent, 1) for percent in found) == ratios[model]


@pytest.mark.parametrize("dropout", [True, False])
def test_llama_with_gpts_sizes_differs_by_its_mlp(dropout):
    """As many key/value heads as heads: k and v as wide; an MLP of width f keeps 6f where GPT's keeps 16h."""
    s, b, h, a, f = 64, 2, 32, 4, 48
    gpt = korthikanti.layer_activations(s, b, h, a, dropout=dropout)
    [llama] = korthikanti.layer_activations_llama(s, b, h, a, a, f, dropout=dropout)
    assert llama - 6 * s * b * f == gpt - 16 * s * b * h
