"""Layers: an operation together with its parameters, and the units of which a model is a list."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from minidist.nn import ops
from minidist.nn.attend import ProbabilityDropout, Span, keys_first
from minidist.nn.flat import Flat
from minidist.nn.tensor import Array, Parameter, Tensor, generator, recomputed


class Tokens(Protocol):
    """Sequences (B, T) of token numbers: an array, or what is read only when rows of it are needed."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def size(self) -> int: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...  # a slice, or their numbers

    def __array__(self) -> Array: ...


def micro_batches(x: Tokens, y: Tokens, n: int) -> list[tuple[Tokens, Tokens]]:
    """Cut inputs and targets into n consecutive micro-batches of equally many rows."""
    b, rest = divmod(len(x), n)
    if rest:
        raise ValueError(f"{len(x)} sequences cannot be divided into {n} equal micro-batches")
    return [(x[i : i + b], y[i : i + b]) for i in range(0, n * b, b)]


@dataclass(frozen=True)
class Batch:
    """What every unit may look at: the tokens of some sequences, and their place in the global batch.

    tokens, targets   integers (B, T); without targets, the model returns logits, not a loss
    span              which positions of the sequences these are; None: all
    first             the number of the first of the B sequences within the global batch
    key               makes dropout masks of different steps differ; None switches dropout off (evaluation)
    selective         recompute the core of attention in the backward, instead of keeping its activations
    tiled             attention in tiles: the core keeps no probabilities, so there is nothing selective to recompute
    dropout           a probability that replaces the layers' own
    whole             the tokens of all ranks that share the batch; 0: these are all
    losses            what units add to the loss, other than the last unit's output: filled by their forward
    """

    tokens: Array
    targets: Array | None = None
    first: int = 0
    key: tuple[int, ...] | None = None
    selective: bool = False
    tiled: bool = False
    dropout: float | None = None
    span: Span | None = None
    whole: int = 0
    losses: list[float] = field(default_factory=list)

    @property
    def at(self) -> Span:
        """The positions of these tokens in their sequences."""
        return self.span or Span(self.tokens.shape[1])

    def add_loss(self, loss: Tensor) -> None:
        """Add a scalar to the loss, in addition to the unit's output."""
        self.losses.append(float(loss.data))
        if loss.tape is not None and loss.tape.keeps:
            loss.tape.add_loss(loss)

    def drop_probability(self, p: float) -> float:
        """The probability with which a layer, whose own is p, zeroes an element now."""
        if self.key is None:
            return 0.0
        return p if self.dropout is None else self.dropout

    def mask(self, name: str, p: float, shape: tuple[int, ...], part: tuple[int, int] = (0, 1)) -> Array:
        """Boolean (B, *shape), each element false with probability p. With part (i, n) the shape's first axis is the
        i-th of n equal pieces, cut out of a mask that is drawn as a whole.

        A sequence's mask depends on the key, the layer's name and the sequence's place in the global batch. So it is
        the same on every rank, and the same again when activations are recomputed.
        """
        assert self.key is not None
        masks = np.empty((len(self.tokens), *shape), bool)
        (piece, pieces), rows = part, shape[0]
        for i, mask in enumerate(masks):
            rng = generator(*self.key, self.first + i, *name.encode())
            whole = rng.random((pieces * rows, *shape[1:]), dtype=np.float32)
            np.greater_equal(whole[piece * rows : (piece + 1) * rows], p, out=mask)
        return masks


class Layer(Protocol):
    """Anything that has parameters."""

    @property
    def parameters(self) -> list[Parameter]: ...


class Sublayer(Layer, Protocol):
    """The second half of a block: (B, T, C) -> (B, T, C). It norms x itself: the normed x is freed as soon as it is
    used."""

    def __call__(self, x: Tensor, norm: Callable[[Tensor], Tensor], batch: Batch) -> Tensor: ...


class Linear:
    """y = x Wᵀ + b with W (out, in)."""

    def __init__(self, name: str, inputs: int, outputs: int, bias: bool, std: float = 0.02) -> None:
        self.weight = Parameter(f"{name}.weight", (outputs, inputs), std=std)
        self.bias = Parameter(f"{name}.bias", (outputs,)) if bias else None
        self.parameters = [self.weight] + ([self.bias] if self.bias else [])

    def __call__(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class MLP:
    """Two matrices with an activation in between: x (B, T, C) -> up (B, T, F) -> down (B, T, C)."""

    up: Linear
    activation: Callable[[Tensor], Tensor]
    down: Linear

    @property
    def parameters(self) -> list[Parameter]:
        return [*self.up.parameters, *self.down.parameters]

    def __call__(self, x: Tensor, norm: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        return self.down(self.activation(self.up(norm(x))))


class LayerNorm:
    """Normalize the last axis to mean 0 and variance 1, then gain and, if asked for, bias."""

    def __init__(self, name: str, width: int, bias: bool, eps: float = 1e-5) -> None:
        self.eps = eps
        self.weight = Parameter(f"{name}.weight", (width,), fill=1.0)
        self.bias = Parameter(f"{name}.bias", (width,)) if bias else None
        self.parameters = [self.weight] + ([self.bias] if self.bias else [])

    def __call__(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm:
    """Divide the last axis by its root mean square, then gain."""

    def __init__(self, name: str, width: int, eps: float = 1e-5) -> None:
        self.eps = eps
        self.weight = Parameter(f"{name}.weight", (width,), fill=1.0)
        self.parameters = [self.weight]

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)


class Embedding:
    """Row `token` of W (V, C) for every token."""

    def __init__(self, name: str, vocabulary: int, width: int) -> None:
        self.weight = Parameter(f"{name}.weight", (vocabulary, width), std=0.02)
        self.parameters = [self.weight]

    def __call__(self, tokens: Tensor) -> Tensor:
        return ops.embedding(tokens, self.weight)


@dataclass(frozen=True)
class Positions:
    """Add row `position` of W (context, C): learned positions.

    part: (i, n) where x holds the i-th of n equal pieces of the rank's positions.
    """

    weight: Parameter
    part: tuple[int, int] = (0, 1)

    @property
    def parameters(self) -> list[Parameter]:
        return [self.weight]

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        return ops.add_positions(x, self.weight, batch.at.cut(self.part))


@dataclass(frozen=True)
class Dropout:
    """Zero each element with probability p and scale the rest by 1/(1-p); nothing at p = 0 or in evaluation.

    part: (i, n) where x holds the i-th of n equal pieces of each sequence.
    """

    name: str
    p: float
    part: tuple[int, int] = (0, 1)

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        p = batch.drop_probability(self.p)
        if p == 0:
            return x
        if batch.span is None:
            return ops.dropout(x, batch.mask(self.name, p, x.shape[1:], self.part), p)
        at = batch.at.cut(self.part)  # of the mask for all positions, which is drawn as a whole
        return ops.dropout(x, batch.mask(self.name, p, (at.length, x.shape[-1]))[:, at.here], p)


@dataclass(frozen=True)
class Attention:
    """Causal attention over [Q | K | V], with dropout of its probabilities; see ops.attention for the shapes.

    part: (i, n) where these are the i-th of n equal pieces of all heads.
    """

    name: str
    heads: int
    kv_heads: int
    p: float
    part: tuple[int, int] = (0, 1)

    def __call__(self, qkv: Tensor, batch: Batch) -> Tensor:
        """The core is cheap to compute, and its activations are most of what a layer keeps: 5as/h of 34 + 5as/h. So
        selective recomputation recomputes the core (Korthikanti et al. 2022, section 5)."""
        if batch.tiled:
            return ops.tiled_attention(qkv, self.heads, self.kv_heads, partial(self.drop, batch))

        def core(qkv: Tensor) -> Tensor:
            length, p = qkv.shape[1], batch.drop_probability(self.p)
            mask = batch.mask(self.name, p, (self.heads, length, length), self.part) if p > 0 else None
            return ops.attention(qkv, self.heads, self.kv_heads, mask, p)

        return recomputed(core, qkv) if batch.selective else core(qkv)

    def drop(
        self, batch: Batch, queries: Array | slice = slice(None), kv_heads: range | None = None
    ) -> ProbabilityDropout | None:
        """Dropout of the probabilities of some queries, and perhaps some heads, that are not kept. A mask is drawn as a
        whole, as² numbers, so that it is the same on any number of ranks, and in the backward."""
        p, s = batch.drop_probability(self.p), batch.at.length
        if p == 0:
            return None
        mask = batch.mask(self.name, p, (self.heads, s, s), self.part)[:, :, queries]
        return ProbabilityDropout(keys_first(mask, self.kv_heads)[:, :, kv_heads or slice(None)], p)


class Unit:
    """A piece of the model that is gathered, held, recomputed and moved as one: the embedding, a block, the head.

    flats: the parameters that it owns, one Flat for each group of ranks that share some of them.
    reads: the Flats that its forward and backward use: its own, and for a tied head the one with the embedding's
    matrix.
    """

    name: str
    flats: list[Flat]
    reads: list[Flat]

    def own(self, layers: Sequence[Layer]) -> None:
        """Declare the layers' parameters."""
        groups: dict[str, list[Parameter]] = {}
        for parameter in (parameter for layer in layers for parameter in layer.parameters):
            groups.setdefault(parameter.group, []).append(parameter)
        self.flats = [Flat(" ".join(filter(None, (self.name, group))), of) for group, of in groups.items()]
        self.reads = self.flats

    @property
    def parameters(self) -> list[Parameter]:
        return [parameter for flat in self.flats for parameter in flat.parameters]

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        """The next unit's x; the first unit is given the tokens, the last one returns loss or logits."""
        raise NotImplementedError


@dataclass(eq=False)
class Block(Unit):
    """One of the transformer's L layers: attention and MLP, each after a norm and added to the residual stream.

    Full recomputation recomputes only these: the embedding keeps little, and the head's backward follows at once. (A
    pipeline recomputes a whole chunk, including embedding or head.)
    """

    name: str
    norm1: LayerNorm | RMSNorm
    qkv: Linear
    attention: Attention
    projection: Linear
    norm2: LayerNorm | RMSNorm
    mlp: Sublayer  # an MLP, or a mixture of them
    dropout1: Dropout
    dropout2: Dropout

    def __post_init__(self) -> None:
        self.own([self.norm1, self.qkv, self.projection, self.norm2, self.mlp])


class Head(Unit):
    """The last norm, then one logit for each entry of the vocabulary, and the loss when there are targets.

    matrix: the layer whose weight (V, C) makes the logits. When it is the embedding's (tied), `owner` is its unit.
    """

    def __init__(self, norm: LayerNorm | RMSNorm, matrix: Linear | Embedding, owner: Unit | None = None) -> None:
        self.name, self.norm, self.weight = "head", norm, matrix.weight
        self.own([norm] if owner else [norm, matrix])
        if owner:
            self.reads = [*self.flats, *(flat for flat in owner.flats if matrix.weight in flat.parameters)]

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        logits = ops.linear(self.norm(x), self.weight)  # (B, T, C) -> (B, T, V)
        return logits if batch.targets is None else ops.cross_entropy(logits, batch.targets)


def set_small_apart(units: Sequence[Unit], size: int) -> list[Flat]:
    """Give the parameters of each unit that have at most `size` elements a Flat of their own; returns these Flats."""
    parts: dict[Flat, list[Flat]] = {}
    found = []
    for unit in units:
        for flat in unit.flats:
            small = [parameter for parameter in flat.parameters if parameter.size <= size]
            large = [parameter for parameter in flat.parameters if parameter.size > size]
            parts[flat] = [Flat(flat.name, large)] * bool(large)
            if small:
                found.append(Flat(f"{flat.name} small" if large else flat.name, small))
                parts[flat].append(found[-1])
    for unit in units:
        own, reads = unit.flats, unit.reads
        unit.flats = [part for flat in own for part in parts[flat]]
        borrowed = [part for flat in reads if flat not in own for part in parts[flat]]
        unit.reads = [*unit.flats, *(part for part in borrowed if vars(unit)["weight"] in part.parameters)]  # of a head
    return found


def flats_of(units: Sequence[Unit]) -> list[Flat]:
    """All Flats that the units read, each once: their own and those of other units."""
    return list(dict.fromkeys(flat for unit in units for flat in unit.reads))


def count_parameters(units: Sequence[Unit]) -> int:
    """Ψ: the number of parameters, from their declared shapes alone."""
    return sum(flat.size for unit in units for flat in unit.flats)
