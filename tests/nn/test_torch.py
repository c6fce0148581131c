"""Models and optimizers against PyTorch: the same weights give the same loss, gradients and updates.

PyTorch is no dependency, not even of the tests: this runs where it happens to be installed.
"""

import math
from typing import Any

import numpy as np
import pytest

from minidist.engine import Engine, Settings
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.llama import LlamaConfig, llama
from minidist.nn.optim import SGD, AdamW, clipping_factor, sum_of_squares
from minidist.nn.precision import PRECISIONS

torch = pytest.importorskip("torch", reason="an optional cross-check: it needs PyTorch, minidist does not")
F = torch.nn.functional

VOCABULARY, CONTEXT = 13, 9
RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, VOCABULARY, (2, 3, 7))


# ---- the two models, a second time -----------------------------------------------------------------------------------


def torch_gpt(w, config):
    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w.get(f"{name}.bias"))

    def linear(name, x):
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def heads(x):
        return x.unflatten(-1, (config.heads, -1)).transpose(1, 2)

    x = w["wte.weight"][X] + w["wpe.weight"][: X.shape[1]]
    for i in range(config.layers):
        block = f"block{i}"
        q, k, v = linear(f"{block}.qkv", norm(f"{block}.norm1", x)).chunk(3, dim=-1)
        a = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
        x = x + linear(f"{block}.projection", a.transpose(1, 2).flatten(2))
        up = F.gelu(linear(f"{block}.up", norm(f"{block}.norm2", x)), approximate="tanh")
        x = x + linear(f"{block}.down", up)
    return loss(norm("head.norm", x), w)


def torch_llama(w, config):
    depth = config.width // config.heads
    frequency = config.theta ** (-torch.arange(0, depth, 2, dtype=torch.double) / depth)
    angle = torch.outer(torch.arange(X.shape[1], dtype=torch.double), frequency)
    cos, sin = (torch.cat([f(angle), f(angle)], dim=-1) for f in (torch.cos, torch.sin))

    def heads(x):
        return x.unflatten(-1, (-1, depth)).transpose(1, 2)

    def turn(x):
        """As in Llama's published code for Hugging Face: x cos + rotate_half(x) sin."""
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    def norm(name, x):
        return F.rms_norm(x, x.shape[-1:], w[f"{name}.weight"], eps=1e-5)

    x = w["wte.weight"][X]
    for i in range(config.layers):
        block = f"block{i}"
        qkv = F.linear(norm(f"{block}.norm1", x), w[f"{block}.qkv.weight"])
        q, k, v = map(heads, qkv.split([config.width, *[config.kv_heads * depth] * 2], dim=-1))
        k, v = (t.repeat_interleave(config.heads // config.kv_heads, dim=1) for t in (turn(k), v))
        a = F.scaled_dot_product_attention(turn(q), k, v, is_causal=True)
        x = x + F.linear(a.transpose(1, 2).flatten(2), w[f"{block}.projection.weight"])
        gate, up = F.linear(norm(f"{block}.norm2", x), w[f"{block}.up.weight"]).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, w[f"{block}.down.weight"])
    return loss(norm("head.norm", x), w)


def loss(x, w):
    logits = F.linear(x, w.get("head.weight", w["wte.weight"]))
    return F.cross_entropy(logits.flatten(0, 1), torch.tensor(Y).flatten())


GPT: dict[str, Any] = {"vocabulary": VOCABULARY, "context": CONTEXT, "layers": 2, "heads": 3, "width": 15}
LLAMA: dict[str, Any] = {**GPT, "heads": 4, "width": 24, "hidden": 13}
MODELS = {
    "gpt": (gpt, torch_gpt, GPTConfig(**GPT)),
    "gpt untied": (gpt, torch_gpt, GPTConfig(**GPT, tied=False)),
    "gpt without bias": (gpt, torch_gpt, GPTConfig(**GPT, bias=False)),
    "llama": (llama, torch_llama, LlamaConfig(**LLAMA, kv_heads=4)),
    "llama grouped": (llama, torch_llama, LlamaConfig(**LLAMA, kv_heads=2)),
    "llama tied": (llama, torch_llama, LlamaConfig(**LLAMA, kv_heads=1, tied=True)),
}
every_model = pytest.mark.parametrize("name", MODELS)


def build(name, **settings):
    """An engine in float64 with weights of some size, and the same weights as PyTorch's leaves, by name."""
    make, _, config = MODELS[name]
    engine = Engine(make(config), Settings(precision=PRECISIONS["fp64"], **settings))
    rng = np.random.default_rng(1)
    for flat in engine.flats:
        flat.param += 0.2 * rng.standard_normal(flat.padded)
    return engine, {n: torch.tensor(values, requires_grad=True) for n, values in arrays(engine, "param").items()}


def arrays(engine, which):
    return {p.name: view for flat in engine.flats for p, view in flat.views(getattr(flat, which))}


@every_model
def test_loss_and_every_gradient(name):
    engine, w = build(name)
    _, torch_model, config = MODELS[name]
    theirs, ours = torch_model(w, config), engine.forward(X, Y)
    assert ours.value == pytest.approx(theirs.item(), rel=1e-12)
    theirs.backward()
    engine.backward(ours)
    gradients = arrays(engine, "grad")
    assert gradients.keys() == w.keys()
    for parameter, gradient in gradients.items():
        np.testing.assert_allclose(gradient, w[parameter].grad, rtol=1e-10, atol=1e-12, err_msg=parameter)


@every_model
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_training(name, optimizer):
    """Five steps of training: losses and weights stay together."""
    ours = AdamW(0.9, 0.95, 1e-8, weight_decay=0.1) if optimizer == "adamw" else SGD(momentum=0.9)
    engine, w = build(name, optimizer=ours, learning_rate=lambda update: 1e-2, clip=0)
    _, torch_model, config = MODELS[name]
    if optimizer == "adamw":
        decayed = {"params": [p for p in w.values() if p.ndim > 1], "weight_decay": 0.1}
        others = {"params": [p for p in w.values() if p.ndim == 1], "weight_decay": 0.0}
        theirs = torch.optim.AdamW([decayed, others], lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    else:
        theirs = torch.optim.SGD(w.values(), lr=1e-2, momentum=0.9)
    for _ in range(5):
        their_loss, our_loss = torch_model(w, config), engine.forward(X, Y)
        assert our_loss.value == pytest.approx(their_loss.item(), rel=1e-9)
        theirs.zero_grad()
        their_loss.backward()
        theirs.step()
        engine.backward(our_loss)
        engine.step()
    for parameter, values in arrays(engine, "param").items():
        np.testing.assert_allclose(values, w[parameter].detach(), rtol=1e-8, atol=1e-8, err_msg=parameter)


@pytest.mark.parametrize("limit", [1.0, 1e4, 1e6])
def test_clipping(limit):
    gradients = [1000 * RNG.standard_normal(shape) for shape in ((7, 5), (11,))]
    norm = math.sqrt(sum(sum_of_squares(gradient) for gradient in gradients))
    leaves = [torch.zeros(gradient.shape, dtype=torch.double, requires_grad=True) for gradient in gradients]
    for leaf, gradient in zip(leaves, gradients, strict=True):
        leaf.grad = torch.tensor(gradient)
    assert torch.nn.utils.clip_grad_norm_(leaves, limit).item() == pytest.approx(norm, rel=1e-12)
    for leaf, gradient in zip(leaves, gradients, strict=True):  # PyTorch divides by norm + 1e-6
        np.testing.assert_allclose(gradient * clipping_factor(norm, limit), leaf.grad, rtol=1e-9)
