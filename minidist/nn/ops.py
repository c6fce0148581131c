"""The operations of a transformer, each next to its gradient.

Every function below computes a result and hands `record` a `backward` (and, for matrices, a `weight_backward`) together
with the arrays that they need. Those arrays are what Korthikanti et al. (2022, section 4) count: a layer keeps
sbh(34 + 5as/h) bytes. B is the number of sequences, T their length (the paper's s), C the width (its h), V the
vocabulary.

Element-wise work runs block by block over arrays seen flat, so that its intermediate results stay in the processor's
cache: on arrays larger than the cache, most of the time of NumPy's plain expressions is spent waiting for memory.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from minidist.nn.attend import (
    ProbabilityDropout,
    SavedProbabilities,
    SavedStatistics,
    Span,
    attend,
    attend_back,
    by_head,
    dot,
    keys_first,
    split_heads,
)
from minidist.nn.product import product
from minidist.nn.tensor import Array, Parameter, Tensor, record

BLOCK = 32_768  # elements: a handful of blocks of float32 fit the L2 cache of one core


def blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Matching pieces of contiguous arrays of one size, seen flat: views of at most BLOCK elements."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, BLOCK):
        yield tuple(array[start : start + BLOCK] for array in flat)


# ---- matrices --------------------------------------------------------------------------------------------------------


def linear(x: Tensor, weight: Parameter, bias: Parameter | None = None) -> Tensor:
    """y = x Wᵀ + b for x (..., in), W (out, in), b (out); keeps x."""
    rows = x.data.reshape(-1, x.shape[-1])  # (n, in): one product for all sequences
    y = product(rows, weight.data.T)  # (n, in) x (in, out)
    if bias is not None:
        y += bias.data

    def backward(dy: Array, x: Array) -> Array:
        dx = product(dy.reshape(-1, dy.shape[-1]), weight.data)  # (n, out) x (out, in)
        return dx.reshape(x.shape)

    def weight_backward(dy: Array, x: Array) -> None:
        dy, x = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
        weight.accumulate(lambda out: product(dy.T, x, out))  # (out, n) x (n, in)
        if bias is not None:
            bias.accumulate(lambda out: _column_sum(dy, out))

    y = y.reshape(*x.shape[:-1], -1)
    return record(y, (x,), backward, keep=(x.data,), weight_backward=weight_backward)


def embedding(tokens: Tensor, weight: Parameter) -> Tensor:
    """y = W[tokens] for tokens (B, T) and W (V, C): y (B, T, C); keeps the tokens."""

    def backward(dy: Array, tokens: Array) -> None:
        return None  # there is no gradient with respect to an index

    def weight_backward(dy: Array, tokens: Array) -> None:
        order = np.argsort(tokens, axis=None, kind="stable")  # equal tokens side by side, then one sum for each run
        rows, starts = np.unique(tokens.reshape(-1)[order], return_index=True)

        def write(out: Array) -> None:
            out.fill(0)
            out[rows] = np.add.reduceat(dy.reshape(-1, dy.shape[-1])[order], starts, axis=0)

        weight.accumulate(write)

    y = weight.data[tokens.data]
    return record(y, (tokens,), backward, keep=(tokens.data,), weight_backward=weight_backward)


def add_positions(x: Tensor, weight: Parameter, at: Span) -> Tensor:
    """y = x + W[at] for x (B, T, C), its T positions in the sequence, and learned positions W (context, C)."""

    def backward(dy: Array) -> Array:
        def write(out: Array) -> None:
            out.fill(0)
            out[at.here] = np.sum(dy, axis=0)

        weight.accumulate(write)
        return dy

    return record(x.data + weight.data[at.here], (x,), backward)


def add_bias(x: Tensor, bias: Parameter) -> Tensor:
    """y = x + b for x (..., C) and b (C), for a bias that can only be added after a step that `linear` does not do."""

    def backward(dy: Array) -> Array:
        bias.accumulate(lambda out: _column_sum(dy, out))
        return dy

    return record(x.data + bias.data, (x,), backward)


# ---- element by element ----------------------------------------------------------------------------------------------


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y, the residual connection; the gradient goes to both, and nothing is kept."""
    return record(x.data + y.data, (x, y), lambda dy: (dy, dy))


GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBE = 0.044715


def gelu(x: Tensor) -> Tensor:
    """x/2 (1 + tanh u) with u = √(2/π) (x + 0.044715 x³): GPT-2's approximation of GELU. Keeps x."""
    y = np.empty_like(x.data)
    for a, out in blocks(x.data, y):
        _gelu_factor(a, out)
        out *= a
        np.tanh(out, out=out)
        out += 1
        out *= a
        out *= 0.5

    def backward(dy: Array, x: Array) -> Array:
        dx = np.empty_like(x)
        slopes, rests = np.empty((2, min(x.size, BLOCK)), x.dtype)
        for a, d, t in blocks(x, dy, dx):
            # dy/dx = (1 + t) (1/2 + (1 - t) x/2 du/dx), with t = tanh u, u = x f and du/dx = 3 f - 2 √(2/π)
            slope, rest = slopes[: a.size], rests[: a.size]
            _gelu_factor(a, slope)
            np.multiply(a, slope, out=t)
            np.tanh(t, out=t)
            slope *= 1.5
            slope -= GELU_SCALE
            slope *= a
            slope *= np.subtract(1, t, out=rest)
            slope += 0.5
            t += 1
            t *= slope
            t *= d
        return dx

    return record(y, (x,), backward, keep=(x.data,))


def _gelu_factor(x: Array, out: Array) -> None:
    """f = √(2/π) (1 + 0.044715 x²), into out."""
    np.multiply(x, x, out=out)  # x**3 is thirty times slower than products
    out *= GELU_CUBE * GELU_SCALE
    out += GELU_SCALE


def swiglu(x: Tensor) -> Tensor:
    """silu(g) · u for x = [g | u] (..., 2F): y (..., F). silu(g) = g σ(g) (Shazeer 2020). Keeps x."""
    gate, up = np.split(x.data, 2, axis=-1)
    y = gate * _sigmoid(gate) * up

    def backward(dy: Array, x: Array) -> Array:
        gate, up = np.split(x, 2, axis=-1)
        s = _sigmoid(gate)
        dx = np.empty_like(x)
        dgate, dup = np.split(dx, 2, axis=-1)
        np.multiply(dy, gate * s, out=dup)
        np.multiply(dy, up * s * (1 + gate * (1 - s)), out=dgate)  # d silu/dg = σ (1 + g (1 - σ))
        return dx

    return record(y, (x,), backward, keep=(x.data,))


def _sigmoid(x: Array) -> Array:
    """σ(x) = (1 + tanh(x/2))/2, which cannot overflow."""
    s = np.tanh(0.5 * x)
    s += 1
    s *= 0.5
    return s


def dropout(x: Tensor, mask: Array, p: float) -> Tensor:
    """x · mask / (1 - p) for a boolean mask of x's shape; keeps the mask, one byte an element."""

    def apply(a: Array, mask: Array) -> Array:
        y = a * mask
        y *= 1 / (1 - p)
        return y

    return record(apply(x.data, mask), (x,), apply, keep_exact=(mask,))


# ---- normalization ---------------------------------------------------------------------------------------------------


def layer_norm(x: Tensor, gain: Parameter, bias: Parameter | None, eps: float = 1e-5) -> Tensor:
    """y = x̂ g + b with x̂ = (x - mean)/√(var + eps) over the last axis; keeps x and the two statistics of each row."""
    mean = _row_mean(x.data)  # (B, T, 1)
    normal = x.data - mean  # (B, T, C)
    rstd = 1 / np.sqrt(_row_dot(normal, normal) / x.shape[-1] + eps)
    normal *= rstd
    normal *= gain.data
    if bias is not None:
        normal += bias.data

    def backward(dy: Array, x: Array, mean: Array, rstd: Array) -> Array:
        centred = x - mean  # x̂ = (x - mean) rstd
        dx = dy * centred  # of these there are two sums, each a product: down the columns, and along the rows
        gain.accumulate(lambda out: _column_sum(dx, out, rstd))
        if bias is not None:
            bias.accumulate(lambda out: _column_sum(dy, out))
        # dx = rstd (d - mean(d) - x̂ mean(d x̂)) with d = dy g
        centred *= rstd * rstd * _row_mean(dx, gain.data)
        np.multiply(dy, gain.data, out=dx)
        dx -= _row_mean(dx)
        dx -= centred
        dx *= rstd
        return dx

    return record(normal, (x,), backward, keep=(x.data,), keep_exact=(mean, rstd))


def rms_norm(x: Tensor, gain: Parameter, eps: float = 1e-5) -> Tensor:
    """y = x g / √(mean(x²) + eps) over the last axis (Zhang & Sennrich 2019); keeps x and one statistic of each row."""
    rstd = 1 / np.sqrt(_row_dot(x.data, x.data) / x.shape[-1] + eps)  # (B, T, 1)

    def backward(dy: Array, x: Array, rstd: Array) -> Array:
        normal = x * rstd
        gain.accumulate(lambda out: _column_dot(dy, normal, out))
        # dx = rstd (d - x̂ mean(d x̂)) with d = dy g
        dx = dy * gain.data
        normal *= _row_dot(dx, normal) / dx.shape[-1]
        dx -= normal
        dx *= rstd
        return dx

    y = x.data * rstd
    y *= gain.data
    return record(y, (x,), backward, keep=(x.data,), keep_exact=(rstd,))


# Sums over an axis as products with a row of ones, if that is faster: a matrix product adds up at full speed.


def _row_mean(x: Array, factors: Array | float = 1.0) -> Array:
    """The mean of x · factors (C,): (..., C) -> (..., 1)"""
    return (x @ np.full(x.shape[-1], factors / x.shape[-1], x.dtype))[..., None]


def _row_dot(x: Array, y: Array) -> Array:
    """Σ_c x y: (..., C), (..., C) -> (..., 1)"""
    return np.einsum("...c,...c->...", x, y)[..., None]


def _column_sum(x: Array, out: Array, factors: Array | None = None) -> None:
    """Sum over all axes but the last, each row times its factor (..., 1) if there are any, into out (C,)"""
    rows = x.reshape(-1, x.shape[-1])
    np.matmul(np.ones(len(rows), x.dtype) if factors is None else factors.reshape(-1), rows, out=out)


def _column_dot(x: Array, y: Array, out: Array) -> None:
    """Σ x y over all axes but the last, into out (C,)"""
    np.einsum("nc,nc->c", x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), out=out)


# ---- attention -------------------------------------------------------------------------------------------------------


def rotary(x: Tensor, heads: int, depth: int, at: Span, theta: float = 10_000.0) -> Tensor:
    """Turn the first `heads` heads of x (B, T, ...) by their position (RoFormer, Su et al. 2021); the rest passes.

    Element i of the first half of a head of D = `depth` and element i of the second half are one point of the plane,
    turned by the angle t·θ^(-2i/D). Turning is linear, so the gradient is turned back. Keeps nothing.
    """
    half = depth // 2

    def turn(x: Array, back: bool) -> Array:
        angle = np.outer(at.here, theta ** (-np.arange(0, depth, 2) / depth))  # (T, D/2)
        c, s = (table.astype(x.dtype)[:, None, :] for table in (np.cos(angle), np.sin(angle)))
        s = -s if back else s
        y = x.copy()
        a, b = (
            v.reshape(*x.shape[:2], heads, 2, half) for v in (x[..., : heads * 2 * half], y[..., : heads * 2 * half])
        )
        b[..., 0, :] = a[..., 0, :] * c - a[..., 1, :] * s
        b[..., 1, :] = a[..., 0, :] * s + a[..., 1, :] * c
        return y

    return record(turn(x.data, back=False), (x,), lambda dy: turn(dy, back=True))


def attention(
    qkv: Tensor, heads: int, kv_heads: int | None = None, mask: Array | None = None, p: float = 0.0
) -> Tensor:
    """Causal attention: softmax(Q Kᵀ/√D) V for qkv = [Q | K | V] (B, T, (H + 2·Hkv)·D); y (B, T, H·D).

    With fewer key/value heads than query heads, each serves a group of G = H/Hkv query heads (Ainslie et al. 2023).
    mask: boolean (B, H, T, T), attention dropout with probability p. Keeps Q, K, V and the softmax's output, and with
    dropout the mask and what it left. How it is computed: `minidist/nn/attend.py`.
    """
    kv = kv_heads or heads
    batch, length, columns = qkv.shape
    depth = columns // (heads + 2 * kv)
    prob = np.empty(batch * heads * length**2, qkv.data.dtype)  # tile after tile, for each key and query
    dropped = prob
    if mask is not None:
        mask = keys_first(mask, kv)
        dropped = np.empty_like(prob)
    q, k, v = split_heads(qkv.data, heads, kv)
    y = np.empty((batch, length, heads * depth), q.dtype)
    at = np.arange(length)
    attend(q, k, v, at, at, by_head(y, kv, depth), SavedProbabilities(prob, dropped, mask, p))

    def backward(dy: Array, qkv: Array, prob: Array, *dropout: Array) -> Array:
        dropped, mask = dropout or (prob, None)
        dqkv, at = np.empty_like(qkv), np.arange(length)
        known = SavedProbabilities(prob, dropped, mask, p)
        attend_back(by_head(dy, kv, depth), *split_heads(qkv, heads, kv), at, at, known, *split_heads(dqkv, heads, kv))
        return dqkv

    keep = (qkv.data, prob) if mask is None else (qkv.data, prob, dropped)
    return record(y, (qkv,), backward, keep=keep, keep_exact=() if mask is None else (mask,))


def tiled_attention(
    qkv: Tensor, heads: int, kv_heads: int, drop: Callable[[], ProbabilityDropout | None] = lambda: None
) -> Tensor:
    """The same in tiles (Dao et al., "FlashAttention", 2022, section 3): keeps Q, K, V, the result, which the
    projection keeps anyway, and in place of T probabilities of each query their log-sum-exp, in full precision. The
    backward computes probabilities again, and draws their dropout's mask again."""
    q, k, v = split_heads(qkv.data, heads, kv_heads)
    depth, at = q.shape[-1], np.arange(qkv.shape[1])
    y = np.empty((*qkv.shape[:2], heads * depth), q.dtype)
    lse = attend(q, k, v, at, at, by_head(y, kv_heads, depth), drop=drop())  # (B, Hkv, G, T)

    def backward(dy: Array, qkv: Array, y: Array, lse: Array) -> Array:
        dqkv, at, dy = np.empty_like(qkv), np.arange(qkv.shape[1]), by_head(dy, kv_heads, depth)
        known = SavedStatistics(lse, dot(dy, by_head(y, kv_heads, depth)), drop())
        attend_back(dy, *split_heads(qkv, heads, kv_heads), at, at, known, *split_heads(dqkv, heads, kv_heads))
        return dqkv

    return record(y, (qkv,), backward, keep=(qkv.data, y), keep_exact=(lse,))


# ---- loss ------------------------------------------------------------------------------------------------------------


def cross_entropy(logits: Tensor, targets: Array) -> Tensor:
    """The mean of -log softmax(logits)[target] over all positions: logits (B, T, V), targets (B, T), a scalar.

    Keeps the probabilities in full precision, as Megatron keeps the logits in fp32.
    """
    flat = logits.data.reshape(-1, logits.shape[-1])  # (n, V)
    rows = np.arange(len(flat))
    prob = flat - flat.max(axis=-1, keepdims=True)
    loss = -prob[rows, targets.reshape(-1)].mean(dtype=prob.dtype)
    np.exp(prob, out=prob)
    total = prob.sum(axis=-1, keepdims=True)
    loss += np.log(total).mean(dtype=prob.dtype)
    prob /= total

    def backward(dloss: Array, prob: Array, targets: Array) -> Array:
        dlogits = prob * (dloss / len(prob))
        dlogits[np.arange(len(prob)), targets.reshape(-1)] -= dloss / len(prob)
        return dlogits.reshape(*targets.shape, -1)

    return record(np.asarray(loss), (logits,), backward, keep_exact=(prob, targets))
