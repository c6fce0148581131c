"""The operations of a transformer, forward: lesson 02 goes back through them.

An operation takes arrays and returns (its result, what its backward must be handed besides dy). A backward,
backward(dy, *kept), returns one gradient for each input. Some are here; the others are the exercise. B: sequences, T:
tokens in each, C: width, H: heads, D = C/H, V: vocabulary.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

Array = np.ndarray


def embedding(w: Array, tokens: Array) -> tuple[Array, tuple]:
    """Row `token` of w (V, C) for each of the tokens (B, T): (B, T, C)."""
    return w[tokens], (tokens, w)


def embedding_backward(dy: Array, tokens: Array, w: Array) -> tuple[Array]:
    dw = np.zeros_like(w)
    np.add.at(dw, tokens, dy)  # a token may come several times: its row gets the sum
    return (dw,)


def positions(x: Array, w: Array) -> tuple[Array, tuple]:
    """Add row t of w (context, C) at position t of x (B, T, C)."""
    return x + w[: x.shape[1]], (w,)


def positions_backward(dy: Array, w: Array) -> tuple[Array, Array]:
    dw = np.zeros_like(w)
    dw[: dy.shape[1]] = dy.sum(0)
    return dy, dw


def linear(x: Array, w: Array, b: Array) -> tuple[Array, tuple]:
    """x wᵀ + b: x (..., in), w (out, in), b (out,)."""
    return x @ w.T + b, (x, w)


def to_logits(x: Array, w: Array) -> tuple[Array, tuple]:
    """Like linear, without a bias: for each position a number for each of the V tokens."""
    return x @ w.T, (x, w)


def tanh(x: Array) -> tuple[Array, tuple]:
    y = np.tanh(x)
    return y, (y,)


def tanh_backward(dy: Array, y: Array) -> tuple[Array]:
    return (dy * (1 - y**2),)


def error(y: Array, wanted: Array) -> tuple[Array, tuple]:
    """Half the sum of the squared differences."""
    return ((y - wanted) ** 2).sum() / 2, (y - wanted,)


def error_backward(dloss: Array, difference: Array) -> tuple[Array]:
    return (dloss * difference,)


def add(x: Array, y: Array) -> tuple[Array, tuple]:
    return x + y, ()


def add_backward(dy: Array) -> tuple[Array, Array]:
    return dy, dy


SCALE = math.sqrt(2 / math.pi)


def gelu(x: Array) -> tuple[Array, tuple]:
    """x (1 + tanh u)/2 with u = √(2/π) (x + 0.044715 x³): GPT-2's GeLU between the two matrices of an MLP."""
    return x * (0.5 + 0.5 * np.tanh(SCALE * (x + 0.044715 * x * x * x))), (x,)


def gelu_backward(dy: Array, x: Array) -> tuple[Array]:
    s = 0.5 + 0.5 * np.tanh(SCALE * (x + 0.044715 * x * x * x))
    return (dy * (s + 2 * x * s * (1 - s) * SCALE * (1 + 3 * 0.044715 * x * x)),)


def layer_norm(x: Array, gain: Array, bias: Array, eps: float = 1e-5) -> tuple[Array, tuple]:
    """Each row of x (..., C) with mean 0 and variance 1, times gain (C,), plus bias (C,)."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * gain + bias, (x, gain)


def softmax(scores: Array) -> Array:
    """Over the last axis: positive numbers with the sum 1."""
    e = np.exp(scores - scores.max(-1, keepdims=True))  # the largest is 1: nothing overflows
    return e / e.sum(-1, keepdims=True)


def to_heads(qkv: Array, heads: int) -> Array:
    """(B, T, 3C) -> queries, keys and values, (3, B, H, T, D); a view."""
    b, t, c3 = qkv.shape
    return qkv.reshape(b, t, 3, heads, c3 // 3 // heads).transpose(2, 0, 3, 1, 4)


def attention(qkv: Array, heads: int, hidden: Array) -> tuple[Array, tuple]:
    """softmax(q kᵀ/√D) v for each head: qkv (B, T, 3C), hidden (T, T) true where a query must not see a key."""
    q, k, v = to_heads(qkv, heads)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])  # (B, H, T queries, T keys)
    scores[..., hidden] = -np.inf
    prob = softmax(scores)
    y = (prob @ v).transpose(0, 2, 1, 3).reshape(*qkv.shape[:2], -1)  # (B, T, C)
    return y, (qkv, prob)


def attention_backward(
    values_backward: Callable[..., Any], softmax_backward: Callable[..., Any], dy: Array, qkv: Array, prob: Array
) -> tuple[Array]:
    """The exercise fills two gaps of it."""
    heads, depth = prob.shape[1], qkv.shape[-1] // 3 // prob.shape[1]
    q, k, v = to_heads(qkv, heads)
    dy = dy.reshape(*dy.shape[:2], heads, depth).transpose(0, 2, 1, 3)  # (B, H, T, D)
    dprob, dv = values_backward(dy, prob, v)
    dscores = softmax_backward(dprob, prob) / math.sqrt(depth)
    dqkv = np.empty_like(qkv)
    to_heads(dqkv, heads)[:] = dscores @ k, dscores.swapaxes(-1, -2) @ q, dv
    return (dqkv,)


def cross_entropy(logits: Array, targets: Array) -> tuple[Array, tuple]:
    """The mean of -log softmax(logits)[target]: logits (B, T, V), targets (B, T)."""
    prob = softmax(logits)
    of_target = np.take_along_axis(prob, targets[..., None], -1)
    return -np.log(of_target).mean(), (prob, targets)


def backwards(asked: Mapping[str, Callable[..., Any]]) -> dict[Callable[..., Any], Callable[..., Any]]:
    """{operation: its backward}: those above, and those that the exercise asks for, by name."""
    return {
        embedding: embedding_backward,
        positions: positions_backward,
        add: add_backward,
        gelu: gelu_backward,
        linear: asked["linear_backward"],
        to_logits: lambda *handed: asked["linear_backward"](*handed)[:2],
        layer_norm: asked["layer_norm_backward"],
        attention: partial(attention_backward, asked["values_backward"], asked["softmax_backward"]),
        cross_entropy: lambda *handed: (asked["cross_entropy_backward"](*handed),),
    }


# ---- a GPT ----------------------------------------------------------------------------------------------------------


def gpt_loss(
    tape: Any,
    p: Mapping[str, Any],
    tokens: Array,
    targets: Array,
    block: Callable[..., Any],
    layers: int,
    heads: int,
    hidden: Array,
) -> Any:
    """The units in order: the embedding, the blocks, the head; and the loss. p: {name of a parameter: its value}."""
    x = tape.run(positions, tape.run(embedding, p["wte.weight"], tokens=tokens), p["wpe.weight"])
    for i in range(layers):
        x = block(tape, p, f"block{i}", x, heads, hidden)
    x = tape.run(layer_norm, x, p["head.norm.weight"], p["head.norm.bias"])
    logits = tape.run(to_logits, x, p["wte.weight"])  # tied
    return tape.run(cross_entropy, logits, targets=targets)


def causal(length: int, ahead: int = 1) -> Array:
    """The mask (T, T): true where a key is hidden from a query, because it is `ahead` or more places later."""
    return np.triu(np.ones((length, length), bool), ahead)
