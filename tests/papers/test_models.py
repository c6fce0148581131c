"""Parameters of the papers' models: against counts worked out by hand, whole and in parts."""

import math

import pytest

from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.llama import LlamaConfig
from minidist.nn.llama import llama as llama_units
from minidist.papers import gpt2, korthikanti, llama, llama3, megatron, ptd
from minidist.papers.mixed_precision import BYTES, MOMENTS
from minidist.papers.models import Model
from tables import table


def test_gpt() -> None:
    assert megatron.VOCABULARY == 51_200
    assert megatron.parameters(51_200, 1024, 3072, 72) == 8_317_040_640  # 8.3 billion
    assert megatron.parameters(50_257, 1024, 768, 12) == 124_439_808  # GPT-2
    assert ptd.parameters(96, 12_288) == 174_615_822_336  # GPT-3, without the last norm
    assert ptd.parameters(96, 12_288) == megatron.parameters(51_200, 2048, 12_288, 96) - 2 * 12_288


@pytest.mark.parametrize(("name", "count"), table(__file__, "published_models_to_the_unit"))
def test_published_models_to_the_unit(name: str, count: int) -> None:
    """As they are published, or, where nobody prints it, from the shapes of the released weights."""
    assert (gpt2.MODELS | llama.MODELS | llama3.MODELS)[name].parameters == count


def test_every_published_model_is_counted() -> None:
    assert len(gpt2.MODELS | llama.MODELS | llama3.MODELS) == 17


@pytest.mark.parametrize("t", [1, 2, 8])
def test_parts_add_up(t: int) -> None:
    """What is cut is there once, the rest t times: positions, norms, the biases that are added after the sum."""
    h, layers = 3072, 72
    rest = 1024 * h + layers * 6 * h + 2 * h
    assert t * (megatron.parameters(51_200, 1024, h, layers, t) - rest) + rest == 8_317_040_640


@pytest.mark.parametrize("t", [2, 3, 5])
def test_parts_of_llama_add_up(t: int) -> None:
    """With a vocabulary that divides and an MLP that does not; the norms, two of a layer and a last one, are whole."""
    v, h, layers, f = 32_010, 60, 4, 161
    norms = (2 * layers + 1) * h
    whole = 2 * v * h + layers * (4 * h * h + 3 * h * f) + norms
    of = llama.llama(h, layers, 30, 30, f, 64, v)
    assert of.parameters == whole
    padding = 2 * h * (megatron.padded_vocabulary(v, t) - v)
    ranks = of.cut_and_whole(t)
    assert {sum(kept for _, kept in rank) for rank in ranks} == {norms}
    assert sum(cut for rank in ranks for cut, _ in rank) == whole - norms + padding


@pytest.mark.parametrize("recompute", ["none", "selective", "full", "every:2"])
def test_activations_are_korthikantis(recompute: str) -> None:
    """His sums for a GPT's layer and a Llama's, without dropout; a recomputed layer keeps its input."""
    s, b, h, layers, a, kv, f = 32, 3, 48, 6, 4, 2, 100
    what = recompute if recompute in ("none", "selective") else "full"
    times = {"every:2": layers // 2}.get(recompute, layers)
    layer = korthikanti.layer_activations(s, b, h, a, recompute=what, p=2, dropout=False)
    assert gpt2.gpt(h, layers, a, s).activations(b, recompute, 2) == times * layer
    [layer] = korthikanti.layer_activations_llama(s, b, h, a, kv, f, recompute=what, p=2, dropout=False)
    assert llama.llama(h, layers, a, kv, f, 99).activations(b, recompute, 2, s) == times * layer


def test_the_largest_layer_is_the_embedding_or_one_matrix_of_an_mlp() -> None:
    """With its bias, as DeepSpeed's estimate counts modules."""
    assert gpt2.MODELS["gpt2"].largest_layer == 50_257 * 768
    assert gpt2.gpt(48, 2, 4, v=50).largest_layer == 4 * 48 * 48 + 4 * 48
    assert llama.llama(48, 2, 4, 2, 100, 64, 50).largest_layer == 48 * 100


def test_grids_leave_no_rest() -> None:
    assert all(model.gpus % (model.t * model.p) == 0 for model in ptd.TABLE_1)


V, S, H, LAYERS = 23, 6, 12, 3
DECLARED: list[tuple[Model, list[Unit]]] = [
    (Model("gpt", V, S, H, LAYERS, 3, 3, tied=True), gpt(GPTConfig(V, S, LAYERS, heads=3, width=H))),
    (Model("gpt", V, S, H, LAYERS, 3, 3, tied=False), gpt(GPTConfig(V, S, LAYERS, heads=3, width=H, tied=False))),
    (
        Model("llama", V, S, H, LAYERS, 2, 1, tied=False),
        llama_units(LlamaConfig(V, S, LAYERS, heads=2, kv_heads=1, width=H, hidden=32)),  # 8/3 of 12
    ),
]


@pytest.mark.parametrize(("model", "units"), DECLARED, ids=["gpt", "gpt untied", "llama"])
def test_formulas_are_of_the_models_that_are_trained(model: Model, units: list[Unit]) -> None:
    """Unit by unit, padded and not: against the shapes that the model declares."""
    sizes = [sum(math.prod(parameter.shape) for parameter in unit.parameters) for unit in units]
    assert model.units() == sizes
    assert model.parameters() == sum(sizes)
    for shards in (2, 5):
        assert model.units(shards) == [next(n for n in range(size, size + shards) if n % shards == 0) for size in sizes]
    first, *_, last = model.units(4)
    assert model.read_by_head(4) == (last + first if model.tied else last)


def test_llamas_mlp() -> None:
    """The widths of 7B, 13B, 33B and 65B, multiples of 256."""
    assert [llama.mlp_width(h, 256) for h in (4096, 5120, 6656, 8192)] == [11_008, 13_824, 17_920, 22_016]
    assert [llama.mlp_width(h) for h in (12, 64, 100)] == [32, 176, 272]


def test_bytes_of_a_parameter() -> None:
    """16 with Adam, whatever the precision; in mixed precision 2 + 2 + 12 (ZeRO, section 3.1)."""
    adam = {name: (of.stored, of.stored, of.optimizer(MOMENTS["adamw"])) for name, of in BYTES.items()}
    assert adam == {"mixed": (2, 2, 12), "bf16": (2, 2, 12), "fp32": (4, 4, 8), "fp64": (8, 8, 16)}
    assert BYTES["mixed"].optimizer(MOMENTS["sgd"]) == 8
