"""Layers: an operation together with its parameters, and the units of which a model is a list."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from minidist.nn import ops
from minidist.nn.tensor import Array, Parameter, Tensor, recomputed


@dataclass(frozen=True)
class Batch:
    """What every unit may look at: the tokens of some sequences, and which sequences of the global batch they are.

    tokens, targets: integers (B, T); targets None means that logits are wanted instead of a loss.
    first: the number of the first of the B sequences within the global batch.
    key: makes dropout masks of different steps differ; None switches dropout off (evaluation).
    selective: recompute the core of attention in the backward, instead of keeping what it makes.
    """

    tokens: Array
    targets: Array | None = None
    first: int = 0
    key: tuple[int, ...] | None = None
    selective: bool = False

    def mask(self, name: str, p: float, shape: tuple[int, ...], part: tuple[int, int] = (0, 1)) -> Array:
        """Boolean (B, *shape), each element false with probability p. With part (i, n) the shape's first axis is the
        i-th of n equal pieces, cut out of a mask that is drawn as a whole.

        A sequence's mask depends on the key, the layer's name and the sequence's place in the global batch, so that it
        is the same on whichever rank the sequence is, and the same again when activations are recomputed.
        """
        assert self.key is not None
        masks = np.empty((len(self.tokens), *shape), bool)
        (piece, pieces), rows = part, shape[0]
        for i, mask in enumerate(masks):
            rng = np.random.default_rng([*self.key, self.first + i, *name.encode()])
            whole = rng.random((pieces * rows, *shape[1:]), dtype=np.float32)
            np.greater_equal(whole[piece * rows : (piece + 1) * rows], p, out=mask)
        return masks


class Layer(Protocol):
    """Anything that has parameters."""

    parameters: list[Parameter]


class Linear:
    """y = x Wᵀ + b with W (out, in)."""

    def __init__(self, name: str, inputs: int, outputs: int, bias: bool, std: float = 0.02) -> None:
        self.weight = Parameter(f"{name}.weight", (outputs, inputs), std=std)
        self.bias = Parameter(f"{name}.bias", (outputs,)) if bias else None
        self.parameters = [self.weight] + ([self.bias] if self.bias else [])

    def __call__(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


class LayerNorm:
    """Normalise the last axis to mean 0 and variance 1, then gain and, if asked for, bias."""

    def __init__(self, name: str, width: int, bias: bool) -> None:
        self.weight = Parameter(f"{name}.weight", (width,), fill=1.0)
        self.bias = Parameter(f"{name}.bias", (width,)) if bias else None
        self.parameters = [self.weight] + ([self.bias] if self.bias else [])

    def __call__(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias)


class RMSNorm:
    """Divide the last axis by its root mean square, then gain."""

    def __init__(self, name: str, width: int) -> None:
        self.weight = Parameter(f"{name}.weight", (width,), fill=1.0)
        self.parameters = [self.weight]

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight)


class Embedding:
    """Row `token` of W (V, C) for every token."""

    def __init__(self, name: str, vocabulary: int, width: int) -> None:
        self.weight = Parameter(f"{name}.weight", (vocabulary, width), std=0.02)
        self.parameters = [self.weight]

    def __call__(self, tokens: Tensor) -> Tensor:
        return ops.embedding(tokens, self.weight)


class Positions:
    """Add row `position` of W (context, C): learned positions.

    part: (i, n) where x holds the i-th of n equal pieces of each sequence; else (0, 1).
    """

    part = (0, 1)

    def __init__(self, name: str, context: int, width: int) -> None:
        self.weight = Parameter(f"{name}.weight", (context, width), std=0.02)
        self.parameters = [self.weight]

    def __call__(self, x: Tensor) -> Tensor:
        return ops.add_positions(x, self.weight, first=self.part[0] * x.shape[1])


class Dropout:
    """Zero each element with probability p and scale the rest by 1/(1-p); nothing at p = 0 or in evaluation.

    part: (i, n) where x holds the i-th of n equal pieces of each sequence; else (0, 1).
    """

    part = (0, 1)

    def __init__(self, name: str, p: float) -> None:
        self.name, self.p = name, p

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        if self.p == 0 or batch.key is None:
            return x
        return ops.dropout(x, batch.mask(self.name, self.p, x.shape[1:], self.part), self.p)


class Attention:
    """Causal attention over [Q | K | V], with dropout of its probabilities; see ops.attention for the shapes.

    part: (i, n) where these are the i-th of n equal pieces of all heads; else (0, 1).
    """

    part = (0, 1)

    def __init__(self, name: str, heads: int, kv_heads: int, p: float) -> None:
        self.name, self.heads, self.kv_heads, self.p = name, heads, kv_heads, p

    def __call__(self, qkv: Tensor, batch: Batch) -> Tensor:
        """The core is cheap to compute, and what it makes is most of what a layer keeps: 5as/h of 34 + 5as/h. So it is
        what selective recomputation recomputes (Korthikanti et al. 2022, section 5)."""

        def core(qkv: Tensor) -> Tensor:
            length, mask = qkv.shape[1], None
            if self.p > 0 and batch.key is not None:
                mask = batch.mask(self.name, self.p, (self.heads, length, length), self.part)
            return ops.attention(qkv, self.heads, self.kv_heads, mask, self.p)

        return recomputed(core, qkv) if batch.selective else core(qkv)


class Unit:
    """A piece of the model that is gathered, held, recomputed and moved as one: the embedding, a block, the head.

    parameters: those that this unit owns. reads: the units whose parameters its forward and backward use: itself, and
    for a head tied to the embedding, the embedding.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.parameters: list[Parameter] = []
        self.reads: list[Unit] = [self]

    def own(self, layers: Sequence[Layer]) -> None:
        """Take over the layers' parameters, matrices first, so that weight decay applies to one leading piece."""
        owned = [parameter for layer in layers for parameter in layer.parameters]
        self.parameters = sorted(owned, key=lambda parameter: not parameter.decays)

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        """The next unit's x; the first unit is given the tokens, the last one returns loss or logits."""
        raise NotImplementedError


class Block(Unit):
    """One of the transformer's L layers: attention and MLP, each behind a norm and added to the residual stream.

    It is what full recomputation recomputes; the embedding keeps little, and the head's backward follows at once.
    """

    norm1: LayerNorm | RMSNorm
    qkv: Linear
    attention: Attention
    projection: Linear
    norm2: LayerNorm | RMSNorm
    up: Linear
    down: Linear
    dropout1: Dropout
    dropout2: Dropout


class Head(Unit):
    """The last norm, then one logit for each entry of the vocabulary, and the loss when there are targets.

    matrix: the layer whose weight (V, C) makes the logits. When it is the embedding's (tied), `owner` is its unit.
    """

    def __init__(self, norm: LayerNorm | RMSNorm, matrix: Linear | Embedding, owner: Unit | None = None) -> None:
        super().__init__("head")
        self.norm, self.weight = norm, matrix.weight
        self.own([norm] if owner else [norm, matrix])
        self.reads = [self, owner] if owner else [self]

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        logits = ops.linear(self.norm(x), self.weight)  # (B, T, C) -> (B, T, V)
        return logits if batch.targets is None else ops.cross_entropy(logits, batch.targets)


def count_parameters(units: list[Unit]) -> int:
    """Ψ: the number of parameters, from their declared shapes alone."""
    return sum(parameter.size for unit in units for parameter in unit.parameters)
