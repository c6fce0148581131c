"""The parameters of a model, GPT or Llama by its name in lower case, and what is read of them where.

A model is a list of units, embedding, layer 1 … layer L, head, which is what systems gather, place
and send as one; ψ is the number of parameters of one unit.
"""

from dataclasses import dataclass, replace
from functools import cache, cached_property

from minidist.papers.decoder import Decoder, cut_and_whole
from minidist.papers.gpt2 import gpt
from minidist.papers.llama import llama, mlp_width


@dataclass(frozen=True)
class Model:
    """v: vocabulary, s: positions, h: width, a: heads, kv: key/value heads; tied: the head reads the embedding.
    apart: a parameter of at most `apart` elements persists (DeepSpeed), and is padded apart from its unit's others."""

    name: str
    v: int
    s: int
    h: int
    layers: int
    a: int
    kv: int
    tied: bool
    experts: int = 0  # E, in place of each layer's MLP; 0: a plain MLP
    top: int = 1  # k: a token goes through this many
    apart: int = 0
    f: int = 0  # the width of a Llama's MLP; 0: the usual one
    other: Decoder | None = None  # a model that is neither: its parameters; the sizes above are as near as they come

    @classmethod
    def like(cls, of: Decoder) -> "Model":
        """The model of these sizes; if it is neither GPT nor Llama, it has the name of the nearer one."""
        experts, top = (of.mixture.experts, of.mixture.top) if of.mixture else (0, 1)
        name, f = ("gpt", 0) if of.norm_bias else ("llama", of.f)
        plain = cls(name, of.v, of.s, of.h, of.layers, of.a, of.kv, of.tied, experts, top, f=f)
        return plain if plain.decoder == of else replace(plain, other=of)

    @cached_property
    def decoder(self) -> Decoder:
        """The same as sizes of any family's decoder."""
        if self.other:
            return self.other
        sizes = self.h, self.layers, self.a
        if self.name == "gpt":
            of = gpt(*sizes, self.s, self.v, self.tied)
        else:
            of = llama(*sizes, self.kv, self.mlp_width, self.s, self.v, self.tied)
        return of.with_experts(self.experts, self.top) if self.experts else of

    def with_mixture(self, experts: int, top: int) -> "Model":
        """The same with this number of experts in its mixtures, or in every layer if it has none."""
        other = self.other and self.other.with_experts(experts, top)
        return replace(self, experts=experts, top=top, other=other)

    @property
    def shapes(self) -> list[list[tuple[int, ...]]]:
        """The shapes of each unit's parameters. One matrix makes q, k and v; in a Llama, one makes gate and up
        projection. Without experts."""
        h, gpt = self.h, self.name == "gpt"
        f, qkv = (4 * h, 3 * h) if gpt else (self.mlp_width, h + 2 * h // self.a * self.kv)
        matrices = [(qkv, h), (h, h), (f if gpt else 2 * f, h), (h, f)]
        vectors = [(h,)] * 4 + [(rows,) for rows, _ in matrices] if gpt else [(h,)] * 2
        table, positions = (self.v, h), [(self.s, h)] * gpt
        last = [*[table] * (not self.tied), *[(h,)] * (1 + gpt)]
        return [[table, *positions], *[[*matrices, *vectors]] * self.layers, last]

    @property
    def mlp_width(self) -> int:
        return self.f or mlp_width(self.h)

    @cache  # noqa: B019
    def without_experts(self, t: int = 1) -> list[list[tuple[int, int]]]:
        """For each of t ranks that share every layer, its parameters of each unit: those that are cut, and those that
        every rank has. Of a mixture, only the router counts, on every rank. (Cached, because a few models are asked
        many times.)"""
        return self.decoder.cut_and_whole(t, experts=0)

    def mlp(self, t: int = 1) -> list[tuple[int, int]]:
        """For each of t ranks, a layer's MLP or one expert, cut and whole: together 8h² + 5h, or for a Llama 3hf."""
        of = self.decoder
        return [
            cut_and_whole(of.expert(t, rank) if of.mixture else of.mlp(of.f, of.mlp_bias, t, rank)) for rank in range(t)
        ]

    def active(self) -> int:
        """Parameters that a token goes through."""
        return self.decoder.active

    def units(self, shards: int = 1) -> list[int]:
        """ψ of each unit, padded to a multiple of `shards`, among which it is divided evenly."""
        if self.apart:
            return [padded(small, shards) + padded(large, shards) for small, large in self.small_and_large()]
        return [padded(unit, shards) for unit in self.decoder.units]

    def small_and_large(self) -> list[tuple[int, int]]:
        """Elements of each unit in parameters of at most `apart` elements, and in larger ones."""
        sizes = self.decoder.parameter_sizes
        small = [sum(size for size in unit if size <= self.apart) for unit in sizes]
        return [(mine, sum(unit) - mine) for mine, unit in zip(small, sizes, strict=True)]

    def divided(self, shards: int = 1) -> list[int]:
        """ψ of each unit without its persistent parameters."""
        return [padded(large, shards) for _, large in self.small_and_large()] if self.apart else self.units(shards)

    def persistent(self, shards: int = 1) -> int:
        """Ψ_p: the persistent parameters."""
        return self.parameters(shards) - sum(self.divided(shards))

    def parameters(self, shards: int = 1) -> int:
        """Ψ, with each unit padded."""
        return sum(self.units(shards))


def padded(size: int, shards: int) -> int:
    """The size, up to a multiple of the number of shards (FSDP, section 3.2.1)."""
    return -(-size // shards) * shards
