"""The operations of a transformer, each with its gradient beside it.

Every function below computes a result and hands `record` a `backward` (and, for matrices, a `weight_backward`) together
with the arrays that they need. Those arrays are what Korthikanti et al. (2022, section 4) count: a layer keeps
sbh(34 + 5as/h) bytes. B is the number of sequences, T their length (the paper's s), C the width (its h), V the
vocabulary.

Element-wise work runs block by block over arrays seen flat, so that its intermediate results stay in the processor's
cache: on arrays larger than the cache, most of the time of NumPy's plain expressions is spent waiting for memory.
"""

import math
from collections.abc import Iterator

import numpy as np

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


def add_positions(x: Tensor, weight: Parameter, first: int = 0) -> Tensor:
    """y = x + W[first : first + T] for x (B, T, C) and learned positions W (context, C)."""
    here = slice(first, first + x.shape[1])

    def backward(dy: Array) -> Array:
        def write(out: Array) -> None:
            out.fill(0)
            np.sum(dy, axis=0, out=out[here])

        weight.accumulate(write)
        return dy

    return record(x.data + weight.data[here], (x,), backward)


def add_bias(x: Tensor, bias: Parameter) -> Tensor:
    """y = x + b for x (..., C) and b (C), where the bias must wait for what `linear` cannot do in between."""

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
        _gelu_gate(a, out)
        out *= a

    def backward(dy: Array, x: Array) -> Array:
        dx = np.empty_like(x)
        for a, d, out in blocks(x, dy, dx):
            # dy/dx = s (1 + 2x (1 - s) du/dx), with s = (1 + tanh u)/2 and du/dx = √(2/π) (1 + 3·0.044715 x²)
            s = _gelu_gate(a, np.empty_like(a))
            np.multiply(a, a, out=out)
            out *= 6 * GELU_CUBE * GELU_SCALE
            out += 2 * GELU_SCALE
            out *= a
            out *= 1 - s
            out += 1
            out *= s
            out *= d
        return dx

    return record(y, (x,), backward, keep=(x.data,))


def _gelu_gate(x: Array, out: Array) -> Array:
    """(1 + tanh u)/2, into out: what gelu multiplies x with."""
    np.multiply(x, x, out=out)  # x*x*x: x**3 is thirty times slower
    out *= GELU_CUBE * GELU_SCALE
    out += GELU_SCALE
    out *= x
    np.tanh(out, out=out)
    out *= 0.5
    out += 0.5
    return out


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


# ---- normalisation ---------------------------------------------------------------------------------------------------


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
        normal = x - mean
        normal *= rstd  # x̂ again, from x
        gain.accumulate(lambda out: _column_dot(dy, normal, out))
        if bias is not None:
            bias.accumulate(lambda out: _column_sum(dy, out))
        # dx = rstd (d - mean(d) - x̂ mean(d x̂)) with d = dy g
        dx = dy * gain.data
        along = _row_dot(dx, normal) / dx.shape[-1]
        dx -= _row_mean(dx)
        normal *= along
        dx -= normal
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


# Sums over an axis as products with a row of ones, where that is faster: a matrix product adds up at full speed.


def _row_mean(x: Array) -> Array:
    """(..., C) -> (..., 1)"""
    return (x @ np.full(x.shape[-1], 1 / x.shape[-1], x.dtype))[..., None]


def _row_dot(x: Array, y: Array) -> Array:
    """Σ_c x y: (..., C), (..., C) -> (..., 1)"""
    return np.einsum("...c,...c->...", x, y)[..., None]


def _column_sum(x: Array, out: Array) -> None:
    """Over all axes but the last, into out (C,)"""
    rows = x.reshape(-1, x.shape[-1])
    np.matmul(np.ones(len(rows), x.dtype), rows, out=out)


def _column_dot(x: Array, y: Array, out: Array) -> None:
    """Σ x y over all axes but the last, into out (C,)"""
    np.einsum("nc,nc->c", x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), out=out)


# ---- attention -------------------------------------------------------------------------------------------------------


def rotary(x: Tensor, heads: int, depth: int, theta: float = 10_000.0) -> Tensor:
    """Turn the first `heads` heads of x (B, T, ...) by their position (RoFormer, Su et al. 2021); the rest passes.

    Element i of the first half of a head of D = `depth` and element i of the second half are one point of the plane,
    turned by the angle t·θ^(-2i/D). Turning is linear, so the gradient is turned back. Keeps nothing.
    """
    half = depth // 2

    def turn(x: Array, back: bool) -> Array:
        angle = np.outer(np.arange(x.shape[1]), theta ** (-np.arange(0, depth, 2) / depth))  # (T, D/2)
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
    dropout the mask and what it left.

    Queries are taken in blocks of positions, a few heads at a time, so that their scores stay in the cache, and a block
    looks only at the keys up to its last position. Scores have the keys first: the softmax then runs down columns, and
    NumPy does that many times faster than along short rows.
    """
    kv = kv_heads or heads
    group = heads // kv
    batch, length, columns = qkv.shape
    depth = columns // (heads + 2 * kv)
    scale = 1 / math.sqrt(depth)
    width = min(length, 64)  # positions in a block of queries
    step = max(1, 2 * BLOCK // (length * width * group))  # heads taken together
    tiles = [
        (slice(i, i + step), min(first + width, length), slice(first * group, min(first + width, length) * group))
        for i in range(0, batch * kv, step)
        for first in range(0, length, width)
    ]  # (some of the n = B·Hkv heads, the number of keys that are seen, the queries)

    def to_heads(x: Array) -> Array:
        """(B, T, Hkv·g·D) -> (n, T·g, D): each head's rows in order of position."""
        x = x.reshape(batch, length, kv, -1, depth).transpose(0, 2, 1, 3, 4)
        return np.ascontiguousarray(x).reshape(batch * kv, -1, depth)

    def from_heads(x: Array, out: Array) -> None:
        """The inverse, into out (B, T, Hkv·g·D)."""
        x = x.reshape(batch, kv, length, -1, depth).transpose(0, 2, 1, 3, 4)
        out.reshape(x.shape)[...] = x

    cuts = heads * depth, (heads + kv) * depth
    q, k, v = (to_heads(part) for part in np.split(qkv.data, cuts, axis=-1))
    q = q * scale
    prob = np.zeros((batch * kv, length, length * group), q.dtype)  # (n, T, T·G): of a key, for a query
    if mask is None:
        dropped = prob
    else:  # (B, Hkv·G, T queries, T keys) -> (n, T keys, T·G queries)
        mask = mask.reshape(batch * kv, group, length, length).transpose(0, 3, 2, 1).reshape(prob.shape)
        dropped = np.zeros_like(prob)
    y = np.empty_like(q)
    for some, seen, block in tiles:
        scores = product(k[some, :seen], q[some, block].transpose(0, 2, 1))  # (n, seen, D) x (n, D, block)
        _causal_softmax(scores, group)
        prob[some, :seen, block] = scores
        if mask is not None:
            scores *= mask[some, :seen, block]
            scores *= 1 / (1 - p)
            dropped[some, :seen, block] = scores
        product(scores.transpose(0, 2, 1), v[some, :seen], y[some, block])  # (n, block, seen) x (n, seen, D)
    out = np.empty((batch, length, heads * depth), q.dtype)
    from_heads(y, out)

    def backward(dy: Array, q: Array, k: Array, v: Array, prob: Array, *dropout: Array) -> Array:
        dropped, mask = dropout or (prob, None)
        dy = to_heads(dy)  # (n, T·G, D)
        dq, dk, dv = np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
        for some, seen, block in tiles:
            dv[some, :seen] += product(dropped[some, :seen, block], dy[some, block])  # (n, seen, block) x (n, block, D)
            ds = product(v[some, :seen], dy[some, block].transpose(0, 2, 1))  # (n, seen, D) x (n, D, block)
            if mask is not None:
                ds *= mask[some, :seen, block]
                ds *= 1 / (1 - p)
            # of softmax: ds = p (dp - Σ dp p); p is zero for later keys, so ds is too
            ds -= np.einsum("nkq,nkq->nq", ds, prob[some, :seen, block])[:, None, :]
            ds *= prob[some, :seen, block]
            dk[some, :seen] += product(ds, q[some, block])  # q is scaled already
            product(ds.transpose(0, 2, 1), k[some, :seen], dq[some, block])
        dq *= scale
        dqkv = np.empty((batch, length, columns), dy.dtype)
        for gradient, piece in zip((dq, dk, dv), np.split(dqkv, cuts, axis=-1), strict=True):
            from_heads(gradient, piece)
        return dqkv

    keep = (q, k, v, prob) if mask is None else (q, k, v, prob, dropped)
    return record(out, (qkv,), backward, keep=keep, keep_exact=() if mask is None else (mask,))


def _causal_softmax(scores: Array, group: int) -> None:
    """Softmax over the keys of (n, keys, t·group), in place. The queries are those of the last t positions, `group` for
    each; a query sees the keys up to its own position."""
    keys, queries = scores.shape[1:]
    diagonal = scores[:, keys - queries // group :, :]  # the only keys that are later than some of these queries
    position = np.arange(queries) // group
    diagonal += np.where(np.arange(queries // group)[:, None] > position, -np.inf, 0).astype(scores.dtype)
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores *= 1 / scores.sum(axis=1, keepdims=True)


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
