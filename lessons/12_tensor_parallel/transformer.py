"""A transformer of one layer, made of the exercise's functions: t ranks train it together, or one rank alone.

It has no norms. Every array is drawn as a whole and then cut, so that any number of ranks starts from the same values.
"""

from typing import Any

import numpy as np
from given import gelu, gelu_slope

from minidist.mpi.comm import Comm

Array = np.ndarray
V, B, T, C, HEADS, P, RATE = 24, 4, 8, 16, 4, 0.1, 0.4  # P: probability of dropout


def start(comm: Comm, f: Any) -> dict[str, Array]:
    """This rank's parameters; f has the exercise's functions."""
    random, t, rank = np.random.default_rng(0), comm.size, comm.rank
    p = {"embedding": random.standard_normal((V, C)) / 2}
    for name, sections in (("qkv", [C, C, C]), ("up", [4 * C]), ("head", [V])):
        w = random.standard_normal((C, sum(sections))) / C**0.5
        p[name] = f.column_part(w, sections, t, rank)
        p[f"{name} bias"] = f.column_part(np.zeros((1, sum(sections))), sections, t, rank)[0]
    for name, rows in (("projection", C), ("down", 4 * C)):
        w = random.standard_normal((rows, C)) / rows**0.5
        p[name] = np.split(w, t)[rank].copy()
        p[f"{name} bias"] = np.zeros(C)
    return p


def step(comm: Comm, f: Any, p: dict[str, Array], tokens: Array, key: int) -> tuple[float, dict[str, Array]]:
    """The loss of predicting each next token, and the gradient of every parameter that this rank has."""
    x, targets = p["embedding"][tokens[:, :-1]], tokens[:, 1:].reshape(-1)
    rank, t = comm.rank, comm.size
    keep = {number: f.dropout_mask((0, key, number), (B, T, C), P) / (1 - P) for number in (1, 2)}
    of_heads = f.dropout_mask((0, key, 0), (HEADS // t, B, T, T), P, (rank, t)) / (1 - P)
    with comm.phase("layer forward"):
        qkv = f.column_forward(comm, x, p["qkv"], p["qkv bias"])
        mixed, kept = attend(qkv, of_heads)
        after = x + keep[1] * f.row_forward(comm, mixed, p["projection"], p["projection bias"])
        z = f.column_forward(comm, after, p["up"], p["up bias"])
        out = after + keep[2] * f.row_forward(comm, gelu(z), p["down"], p["down bias"])
    logits = f.column_forward(comm, out, p["head"], p["head bias"])
    with comm.phase("loss"):
        loss, prob = f.loss_forward(comm, logits.reshape(B * T, -1), targets)

    d: dict[str, Array] = {}
    dlogits = f.loss_backward(comm, prob, targets).reshape(logits.shape)
    with comm.phase("head backward"):
        dout, d["head"], d["head bias"] = f.column_backward(comm, out, p["head"], dlogits)
    with comm.phase("layer backward"):
        dh, d["down"], d["down bias"] = f.row_backward(comm, gelu(z), p["down"], keep[2] * dout)
        dx, d["up"], d["up bias"] = f.column_backward(comm, after, p["up"], dh * gelu_slope(z))
        dafter = dout + dx
        dmixed, *of_projection = f.row_backward(comm, mixed, p["projection"], keep[1] * dafter)
        d["projection"], d["projection bias"] = of_projection
        dx, d["qkv"], d["qkv bias"] = f.column_backward(comm, x, p["qkv"], attend_back(dmixed, kept))
    d["embedding"] = np.zeros_like(p["embedding"])
    np.add.at(d["embedding"], tokens[:, :-1], dafter + dx)
    return loss, d


def heads_first(x: Array) -> Array:
    """(B, T, columns) -> (heads, B, T, columns of one head)."""
    return x.reshape(B, T, -1, C // HEADS).transpose(2, 0, 1, 3)


def heads_last(x: Array) -> Array:
    return x.transpose(1, 2, 0, 3).reshape(B, T, -1)


def attend(qkv: Array, keep: Array) -> tuple[Array, tuple[Array, ...]]:
    """The output of this rank's heads for [Q | K | V], and the arrays that their backward needs."""
    q, k, v = (heads_first(part) for part in np.split(qkv, 3, axis=-1))
    scores = q @ k.swapaxes(-1, -2) / (C // HEADS) ** 0.5
    scores[..., np.triu(np.ones((T, T), bool), 1)] = -np.inf
    prob = np.exp(scores - scores.max(axis=-1, keepdims=True))
    prob /= prob.sum(axis=-1, keepdims=True)
    return heads_last((keep * prob) @ v), (q, k, v, prob, keep)


def attend_back(dy: Array, kept: tuple[Array, ...]) -> Array:
    q, k, v, prob, keep = kept
    dy = heads_first(dy)
    dprob = (dy @ v.swapaxes(-1, -2)) * keep
    dscores = prob * (dprob - (dprob * prob).sum(axis=-1, keepdims=True)) / (C // HEADS) ** 0.5
    parts = dscores @ k, dscores.swapaxes(-1, -2) @ q, (keep * prob).swapaxes(-1, -2) @ dy
    return np.concatenate([heads_last(part) for part in parts], axis=-1)


def train(comm: Comm, f: Any, steps: int) -> tuple[list[float], dict[str, int]]:
    """Losses, and the bytes that this rank sends in a step, by phase. Each step trains on the whole text."""
    p, losses = start(comm, f), []
    text = np.random.default_rng(1).integers(0, V, B * T + 1)
    tokens = text[T * np.arange(B)[:, None] + np.arange(T + 1)]
    for number in range(steps):
        comm.ledger.reset()
        loss, d = step(comm, f, p, tokens, number)
        losses.append(loss)
        for name, gradient in d.items():
            p[name] -= RATE * gradient
    return losses, {phase: counted["bytes"] for phase, counted in comm.ledger.by_phase().items()}
