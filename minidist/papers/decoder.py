"""A decoder of any family: the sizes that say what its layers hold, and its parameters on a rank.

GPT-2, Llama and what came after them differ in a few sizes: heads of a width of their own, biases, norms of queries
and keys, mixtures of experts, latent attention. Matrices have the shape that systems give them: Q, K and V are one,
and so are the gate and the way up.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from minidist.papers import chen
from minidist.papers.collectives import chunk_sizes
from minidist.papers.megatron import padded_vocabulary

DENSE, MIXTURE = "dense", "mixture"  # the kinds of layers


class Weight(NamedTuple):
    """A parameter of a layer on a rank; cut: by tensor-parallel ranks, or whole on each."""

    shape: tuple[int, ...]
    cut: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Weights = dict[str, Weight]


@dataclass(frozen=True)
class Mixture:
    """Experts in place of an MLP: each token goes through `top` of them, and through the shared ones."""

    experts: int
    top: int
    width: int  # of one expert
    shared: int = 0  # the width of all shared experts together
    router_bias: bool = False
    expert_bias: bool = False  # as an MLP's


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values come from one narrow
    vector for each token, and so may queries."""

    kv_rank: int
    rope: int  # the width that positions rotate: shared by all heads in keys
    nope: int  # the rest of a query's or key's width
    v: int  # the width of a value
    q_rank: int = 0  # 0: queries come from the layer's input

    @property
    def qk(self) -> int:
        """The width of a head's queries and keys."""
        return self.nope + self.rope


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """v: vocabulary, s: positions, h: width, a: heads, kv: key/value heads, d: a head's width, f: the dense MLP's."""

    v: int
    s: int
    h: int
    a: int
    kv: int
    d: int
    f: int
    kinds: tuple[str, ...]  # of the layers, from the first
    gated: bool = True  # the MLP has a gate (SwiGLU), or two matrices
    tied: bool = False  # the head reads the embedding's matrix
    learned: bool = False  # positions are a table; else they rotate queries and keys
    qkv_bias: bool = False
    out_bias: bool = False  # of the matrix after attention
    mlp_bias: bool = False  # also of shared experts
    norms: int = 2  # of a layer, each as wide as it
    norm_bias: bool = False  # LayerNorm; RMSNorm has none
    qk_norm: str = ""  # of queries and keys: "head": one for all heads; "width": over all heads
    sinks: bool = False  # a number for each head in the softmax's sum
    windows: tuple[int, ...] = ()  # for each layer, the keys that a query sees; 0: all; empty: all in all layers
    mixture: Mixture | None = None
    latent: Latent | None = None

    @property
    def layers(self) -> int:
        return len(self.kinds)

    @property
    def family(self) -> str:
        """The nearer one of the models that chapters train, as their --model calls it."""
        return "gpt" if self.learned else "llama"

    @property
    def inner(self) -> int:
        """The width of all heads: a·d, or with latent attention the mean of queries' and values'."""
        return self.a * (self.latent.qk + self.latent.v) // 2 if self.latent else self.a * self.d

    def keys(self, s: int) -> float:
        """The keys that a query of s positions meets, on average over layers, if none are masked but by windows."""
        return sum(min(size or s, s) for size in self.windows) / self.layers if self.windows else s

    # ---- one layer ---------------------------------------------------------------------------------------------------

    def attention(self, t: int = 1) -> Weights:
        """Attention's parameters on each of t ranks, without the norms as wide as the layer."""
        of, h, a = self.latent, self.h, self.a
        if not of:
            rows, out = (a + 2 * self.kv) * self.d // t, a * self.d // t
            found = {"qkv": Weight((rows, h), True)}
            if self.qkv_bias:
                found["qkv bias"] = Weight((rows,), True)
            if self.qk_norm:
                wide = self.qk_norm == "width"
                for name, heads in (("q norm", a), ("k norm", self.kv)):
                    found[name] = Weight((self.d * heads // t,) if wide else (self.d,), wide)
        else:
            out, found = a * of.v // t, {}
            if of.q_rank:
                found["q down"] = Weight((of.q_rank, h))
                found["q down norm"] = Weight((of.q_rank,))
            found["q up" if of.q_rank else "q"] = Weight((a * of.qk // t, of.q_rank or h), True)
            found["kv down"] = Weight((of.kv_rank + of.rope, h))
            found["kv down norm"] = Weight((of.kv_rank,))
            found["kv up"] = Weight((a * (of.nope + of.v) // t, of.kv_rank), True)
            if self.qkv_bias:
                found |= {f"{n} bias": Weight(found[n].shape[:1]) for n in ("q down", "kv down") if n in found}
        found["out"] = Weight((h, out), True)
        if self.out_bias:
            found["out bias"] = Weight((h,))
        if self.sinks:
            found["sinks"] = Weight((a // t,), True)
        return found

    def mlp(self, width: int, bias: bool, t: int = 1, rank: int = 0) -> Weights:
        """An MLP of this width, or an expert, on one of t ranks."""
        part = chunk_sizes(width, t)[rank]
        rows = part * (2 if self.gated else 1)
        found = {"fc1": Weight((rows, self.h), True), "fc2": Weight((self.h, part), True)}
        if bias:
            found |= {"fc1 bias": Weight((rows,), True), "fc2 bias": Weight((self.h,))}
        return found

    def expert(self, t: int = 1, rank: int = 0) -> Weights:
        """One expert of a mixture."""
        assert self.mixture
        return self.mlp(self.mixture.width, self.mixture.expert_bias, t, rank)

    def layer(self, kind: str, t: int = 1, rank: int = 0) -> Weights:
        """A layer's parameters on one of t ranks, without the experts that tokens choose among."""
        found = self.attention(t)
        for number in range(self.norms):
            found |= {f"norm {number + 1}": Weight((self.h,))}
            if self.norm_bias:
                found |= {f"norm {number + 1} bias": Weight((self.h,))}
        if kind == DENSE:
            return found | self.mlp(self.f, self.mlp_bias, t, rank)
        of = self.mixture
        assert of
        found["router"] = Weight((of.experts, self.h))
        if of.router_bias:
            found["router bias"] = Weight((of.experts,))
        if of.shared:
            found |= {f"shared {name}": weight for name, weight in self.mlp(of.shared, self.mlp_bias, t, rank).items()}
        return found

    def matrices(self, kind: str, t: int = 1, rank: int = 0) -> Weights:
        """The matrices of a layer on one of t ranks, with one expert's."""
        found = self.layer(kind, t, rank)
        if kind == MIXTURE:
            found |= {f"expert {name}": weight for name, weight in self.expert(t, rank).items()}
        return {name: weight for name, weight in found.items() if len(weight.shape) == 2}

    # ---- the whole model ---------------------------------------------------------------------------------------------

    def cut_and_whole(self, t: int = 1, experts: int | None = None) -> list[list[tuple[int, int]]]:
        """For each of t ranks, its parameters of embedding, layers and head: those that are cut, and those that every
        rank has. experts: the number in each mixture; default: all."""
        return [[*self._units(t, rank, experts)] for rank in range(t)]

    def _units(self, t: int, rank: int, experts: int | None) -> Iterator[tuple[int, int]]:
        table = padded_vocabulary(self.v, t) * self.h // t
        yield table, self.s * self.h if self.learned else 0
        sizes = {kind: cut_and_whole(self.layer(kind, t, rank)) for kind in {*self.kinds}}
        if MIXTURE in sizes and self.mixture:
            number = self.mixture.experts if experts is None else experts
            cut, whole = cut_and_whole(self.expert(t, rank))
            sizes[MIXTURE] = sizes[MIXTURE][0] + number * cut, sizes[MIXTURE][1] + number * whole
        for kind in self.kinds:
            yield sizes[kind]
        yield 0 if self.tied else table, self.h * (2 if self.norm_bias else 1)

    @cached_property
    def units(self) -> list[int]:
        """Parameters of embedding, layers and head."""
        [rank] = self.cut_and_whole()
        return [sum(both) for both in rank]

    @property
    def parameters(self) -> int:
        return sum(self.units)

    @property
    def active(self) -> int:
        """Parameters that one token goes through."""
        if not self.mixture:
            return self.parameters
        idle = self.mixture.experts - self.mixture.top
        return self.parameters - self.kinds.count(MIXTURE) * idle * sum(cut_and_whole(self.expert()))

    @property
    def parameter_sizes(self) -> list[list[int]]:
        """Elements of each parameter, by unit."""
        layers = {kind: [weight.size for weight in self.layer(kind).values()] for kind in {*self.kinds}}
        if MIXTURE in layers and self.mixture:
            layers[MIXTURE] += [weight.size for weight in self.expert().values()] * self.mixture.experts
        table = self.v * self.h
        ends = [self.h] * (2 if self.norm_bias else 1)
        first = [table, *[self.s * self.h] * self.learned]
        return [first, *(layers[kind] for kind in self.kinds), [*[table] * (not self.tied), *ends]]

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest single layer: the embedding's matrix, or one of the MLP's with its bias."""
        return max(self.v * self.h, self.f * (self.h + self.mlp_bias))

    def kept(self, kind: str) -> int:
        """Elements that a layer keeps of a token, except attention's scores and what norms note (Korthikanti et al.,
        section 4.1, for all these layers)."""
        of, mlp = self.latent, (3 if self.gated else 2)
        if of:
            latents = (of.q_rank + of.kv_rank) * 2 + of.rope
            attention = latents + self.a * 2 * (of.qk + of.v)
        else:
            attention = 2 * (self.a + self.kv) * self.d + (self.a + self.kv) * self.d * bool(self.qk_norm)
        kept = (2 + self.norms) * self.h + attention
        if kind == DENSE or not (experts := self.mixture):
            return kept + mlp * self.f
        return kept + experts.experts + experts.top * (self.h + mlp * experts.width) + mlp * experts.shared

    def activations(self, b: int, recompute: str, p: int, s: int | None = None) -> float:
        """Bytes that the layers keep of a micro-batch of b sequences of s, without dropout, p bytes an element."""
        s = s or self.s
        scores = 0 if recompute == "selective" else self.a * s
        layers = sum(self.kept(kind) + scores for kind in self.kinds) / self.layers
        kept = chen.after_forward(recompute, self.layers)
        return p * b * s * (kept.inputs * self.h + kept.layers * layers)

    def with_experts(self, experts: int, top: int) -> "Decoder":
        """The same with this number of experts in its mixtures, or in every layer if it has none."""
        if self.mixture:
            return replace(self, mixture=replace(self.mixture, experts=experts, top=top))
        return replace(
            self, kinds=(MIXTURE,) * self.layers, mixture=Mixture(experts, top, self.f, expert_bias=self.mlp_bias)
        )


def cut_and_whole(weights: Weights) -> tuple[int, int]:
    """Elements that are cut, and that every rank has."""
    cut = sum(weight.size for weight in weights.values() if weight.cut)
    return cut, sum(weight.size for weight in weights.values()) - cut
