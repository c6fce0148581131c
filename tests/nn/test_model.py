"""Whole models: gradients of the loss against finite differences, dropout, published sizes, and text they write."""

import numpy as np
import pytest

from minidist.engine import Engine, Settings
from minidist.nn import ops
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Batch, count_parameters
from minidist.nn.llama import LlamaConfig, llama
from minidist.nn.optim import AdamW
from minidist.nn.precision import PRECISIONS
from minidist.nn.sample import generate
from minidist.nn.tensor import Tensor
from nn.test_ops import true_attention, true_gelu, true_layer_norm, true_rms_norm, true_swiglu

FP64 = Settings(precision=PRECISIONS["fp64"])
MODELS = {
    "gpt": lambda p: gpt(GPTConfig(11, 7, layers=2, heads=3, width=15, dropout=p)),
    "gpt untied": lambda p: gpt(GPTConfig(11, 7, layers=2, heads=3, width=15, dropout=p, tied=False)),
    "gpt without bias": lambda p: gpt(GPTConfig(11, 7, layers=2, heads=3, width=15, dropout=p, bias=False)),
    "llama": lambda p: llama(LlamaConfig(11, 7, layers=2, heads=4, kv_heads=2, width=16, hidden=13, dropout=p)),
    "llama tied": lambda p: llama(
        LlamaConfig(11, 7, 2, heads=4, kv_heads=4, width=16, hidden=13, dropout=p, tied=True)
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


def build(name, dropout=0.0, rows=3):
    """An engine in float64 whose weights are large enough for every gradient to be felt, and a batch."""
    engine = Engine(MODELS[name](dropout), FP64)
    rng = np.random.default_rng(0)
    for flat in engine.flats:
        flat.param += 0.3 * rng.standard_normal(flat.padded)
    x, y = rng.integers(0, 11, (2, rows, 6))  # one token short of the context
    return engine, x, y


# ---- the same models, written down in the plainest NumPy -------------------------------------------------------------


def plain_gpt(w, x):
    def norm(name, x):
        return true_layer_norm(x, w[f"{name}.weight"], w.get(f"{name}.bias", 0))

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    h = w["wte.weight"][x] + w["wpe.weight"][: x.shape[1]]
    for block in ("block0", "block1"):
        h = h + linear(
            f"{block}.projection", true_attention(linear(f"{block}.qkv", norm(f"{block}.norm1", h)), heads=3)
        )
        h = h + linear(f"{block}.down", true_gelu(linear(f"{block}.up", norm(f"{block}.norm2", h))))
    return norm("head.norm", h) @ w.get("head.weight", w["wte.weight"]).T


def plain_llama(w, x):
    """Heads of 4 numbers are two points of the plane; at position t they are turned by t and by t/100."""
    angles = np.exp(1j * np.arange(x.shape[1])[:, None] * [1, 10_000**-0.5])  # (T, 2)
    h = w["wte.weight"][x]
    for block in ("block0", "block1"):
        qkv = true_rms_norm(h, w[f"{block}.norm1.weight"]) @ w[f"{block}.qkv.weight"].T
        n = (qkv.shape[-1] - 16) // 2  # Q, K and V are 16, n and n wide
        for head in range(0, 16 + n, 4):
            turned = (qkv[..., head : head + 2] + 1j * qkv[..., head + 2 : head + 4]) * angles
            qkv[..., head : head + 4] = np.concatenate([turned.real, turned.imag], axis=-1)
        h = h + true_attention(qkv, 4, kv_heads=n // 4) @ w[f"{block}.projection.weight"].T
        up = true_rms_norm(h, w[f"{block}.norm2.weight"]) @ w[f"{block}.up.weight"].T
        h = h + true_swiglu(up) @ w[f"{block}.down.weight"].T
    return true_rms_norm(h, w["head.norm.weight"]) @ w.get("head.weight", w["wte.weight"]).T


@every_model
def test_computes_what_it_says(name):
    engine, x, y = build(name)
    w = {parameter.name: view for flat in engine.flats for parameter, view in flat.views(flat.param)}
    logits = (plain_gpt if name.startswith("gpt") else plain_llama)(w, x)
    prob = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    loss = -np.log(np.take_along_axis(prob, y[..., None], axis=-1)).mean()
    assert engine.forward(x, y).value == pytest.approx(loss, rel=1e-12)


@every_model
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_gradient_of_each_parameter_is_the_slope_of_the_loss(name, dropout):
    """In a random direction of each parameter's space: d/dh loss(p + h d) = gradient · d."""
    engine, x, y = build(name, dropout)
    engine.backward(engine.forward(x, y))
    rng, h = np.random.default_rng(1), 1e-6
    for flat in engine.flats:
        gradients = dict(flat.views(flat.grad))
        for parameter, values in flat.views(flat.param):
            start, direction = values.copy(), rng.standard_normal(values.shape)
            losses = []
            for sign in (1, -1):
                values[...] = start + sign * h * direction
                losses.append(engine.forward(x, y).value)
            values[...] = start
            slope = (losses[0] - losses[1]) / (2 * h)
            gradient = np.sum(gradients[parameter] * direction)
            assert gradient == pytest.approx(slope, rel=1e-6, abs=1e-8), parameter.name
            assert gradient != 0, parameter.name


@every_model
def test_evaluation_is_the_forward_without_dropout(name):
    engine, x, y = build(name, dropout=0.2)
    plain, _, _ = build(name)
    assert engine.evaluate(x, y) == pytest.approx(plain.forward(x, y).value, rel=1e-15)
    assert engine.evaluate(x, y) != pytest.approx(engine.forward(x, y).value, rel=1e-3)


@every_model
def test_a_sequence_gets_the_same_loss_in_whatever_company(name):
    """Rows of the global batch that are on another rank, or in another part, do not matter: dropout included."""
    engine, x, y = build(name, dropout=0.2, rows=5)
    whole = engine.forward(x, y).value * 5
    engine.rows = lambda n: range(0, 2)
    first = engine.forward(x, y).value * 5
    engine.rows = lambda n: range(2, 5)
    rest = engine.forward(x, y).value * 5
    assert first + rest == pytest.approx(whole, rel=1e-13)


def test_dropout_masks():
    def mask(first=0, rows=5, key=(0, 0, 0), name="block0.dropout1", shape=(40, 30), p=0.2):
        return Batch(np.zeros((rows, 40), int), first=first, key=key).mask(name, p, shape)

    five = mask()
    np.testing.assert_array_equal(five[2:4], mask(first=2, rows=2))
    assert abs(five.mean() - 0.8) < 0.02
    others = {
        "another sequence": five[[1, 2, 3, 4, 0]],
        "another layer": mask(name="block1.dropout1"),
        "another place in the layer": mask(name="block0.dropout2"),
        "another seed": mask(key=(1, 0, 0)),
        "another step": mask(key=(0, 1, 0)),
        "another micro-batch": mask(key=(0, 0, 1)),
        "the rows above": mask(first=1),
    }
    for what, other in others.items():
        assert abs(np.mean(five == other) - (0.8**2 + 0.2**2)) < 0.03, what  # as often equal as chance has it
    assert mask(p=0.0).all()


@every_model
def test_every_dropout_of_a_model_draws_a_mask_of_its_own(name, monkeypatch):
    drawn, draw = [], Batch.mask
    monkeypatch.setattr(Batch, "mask", lambda batch, name, *rest: drawn.append(name) or draw(batch, name, *rest))
    engine, x, y = build(name, dropout=0.2)
    engine.forward(x, y)
    assert len(set(drawn)) == len(drawn) == 1 + 2 * 3  # of the embedding; of attention and two more in each block


def test_dropout_keeps_the_mean():
    mask = Batch(np.zeros((4, 1), int), key=(0,)).mask("x", 0.4, (100, 100))
    assert ops.dropout(Tensor(np.ones(mask.shape)), mask, 0.4).data.mean() == pytest.approx(1, rel=0.02)


# ---- published sizes -------------------------------------------------------------------------------------------------

GPT_SIZES = {
    "GPT-2 small": (GPTConfig(), 124_439_808),
    "GPT-2 medium": (GPTConfig(layers=24, heads=16, width=1024), 354_823_168),
    "GPT-2 large": (GPTConfig(layers=36, heads=20, width=1280), 774_030_080),
    "GPT-2 XL": (GPTConfig(layers=48, heads=25, width=1600), 1_557_611_200),
    "GPT-3 175B": (GPTConfig(context=2048, layers=96, heads=96, width=12288), 174_604_259_328),
    "Megatron 1.2B": (GPTConfig(51200, layers=40, heads=16, width=1536), 1_213_479_936),
    "Megatron 2.5B": (GPTConfig(51200, layers=54, heads=20, width=1920), 2_490_408_960),
    "Megatron 4.2B": (GPTConfig(51200, layers=64, heads=24, width=2304), 4_199_109_120),
    "Megatron 8.3B": (GPTConfig(51200, layers=72, heads=32, width=3072), 8_317_040_640),
}
LLAMA_SIZES = {
    "LLaMA 7B": (LlamaConfig(), 6_738_415_616),
    "CodeLlama 7B": (LlamaConfig(vocabulary=32016), 6_738_546_688),
    "LLaMA 13B": (LlamaConfig(layers=40, heads=40, kv_heads=40, width=5120, hidden=13824), 13_015_864_320),
    "LLaMA 30B": (LlamaConfig(layers=60, heads=52, kv_heads=52, width=6656, hidden=17920), 32_528_943_616),
    "LLaMA 65B": (LlamaConfig(layers=80, heads=64, kv_heads=64, width=8192, hidden=22016), 65_285_660_672),
    "Llama 2 70B": (LlamaConfig(layers=80, heads=64, kv_heads=8, width=8192, hidden=28672), 68_976_648_192),
    "CodeLlama 34B": (LlamaConfig(layers=48, heads=64, kv_heads=8, width=8192, hidden=22016), 33_743_970_304),
    "Llama 3 8B": (LlamaConfig(128256, layers=32, heads=32, kv_heads=8, width=4096, hidden=14336), 8_030_261_248),
    "Llama 3 70B": (LlamaConfig(128256, layers=80, heads=64, kv_heads=8, width=8192, hidden=28672), 70_553_706_496),
    "Llama 3 405B": (
        LlamaConfig(128256, layers=126, heads=128, kv_heads=8, width=16384, hidden=53248),
        405_853_388_800,
    ),
}


@pytest.mark.parametrize(("config", "published"), GPT_SIZES.values(), ids=GPT_SIZES)
def test_gpt_has_the_published_number_of_parameters(config, published):
    assert count_parameters(gpt(config)) == published  # declared, not allocated: 405B would not fit


@pytest.mark.parametrize(("config", "published"), LLAMA_SIZES.values(), ids=LLAMA_SIZES)
def test_llama_has_the_published_number_of_parameters(config, published):
    assert count_parameters(llama(config)) == published


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="width 10 is not divisible by 3 heads"):
        GPTConfig(heads=3, width=10)
    with pytest.raises(ValueError, match="width 10 is not divisible by 3 heads"):
        LlamaConfig(heads=3, kv_heads=3, width=10)
    with pytest.raises(ValueError, match="4 heads are not divisible by 3 key/value heads"):
        LlamaConfig(heads=4, kv_heads=3, width=16)
    with pytest.raises(ValueError, match="width/heads = 3 must be even"):
        LlamaConfig(heads=4, kv_heads=4, width=12)


# ---- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [gpt, llama])
def test_a_model_that_has_learnt_a_text_writes_it(make):
    text, context = "\nsphinx of black quartz, judge my vow.", 12  # characters come again: one is not enough to go on
    vocabulary = sorted(set(text))
    tokens = np.array([vocabulary.index(character) for character in 2 * text])
    sizes = {"vocabulary": len(vocabulary), "context": context, "layers": 1, "heads": 2, "width": 32}
    config = GPTConfig(**sizes) if make is gpt else LlamaConfig(**sizes, kv_heads=1, hidden=48)
    settings = Settings(precision=PRECISIONS["fp32"], optimizer=AdamW(), learning_rate=lambda update: 1e-2)
    engine = Engine(make(config), settings)
    rows = np.arange(len(text))[:, None] + np.arange(context + 1)  # from every position
    for _ in range(60):
        engine.backward(engine.forward(tokens[rows][:, :-1], tokens[rows][:, 1:]))
        engine.step()
    units = make(config)
    weights = {p.name: view for flat in engine.flats for p, view in flat.views(flat.param)}
    written = generate(units, weights, len(text) - 1, context, seed=0)
    assert "".join(vocabulary[token] for token in written) == text[1:]


def test_generation_depends_on_the_seed_and_gives_as_many_tokens_as_asked():
    units = MODELS["gpt"](0.5)  # dropout is off
    weights = {p.name: p.initial(0) for unit in units for p in unit.parameters}
    drawn = [generate(units, weights, 30, context=7, seed=seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()
    assert drawn[0].shape == (30,)
    assert set(drawn[0]) <= set(range(11))
    assert len(set(drawn[0])) > 3
    assert generate(units, weights, 0, context=7, seed=0).shape == (0,)
