"""The parameters of a model, GPT or Llama by its name in lower case, and what is read of them where.

A formula for each, of V, s, h, L, a and the like, stands in the module of the paper that has it: GPT's in `megatron`,
Llama's in `llama`. A model is a list of units, embedding, layer 1 … layer L, head, which is what systems gather, place
and send as one; ψ is the number of parameters of one unit.
"""

from dataclasses import dataclass, replace
from functools import cache, cached_property

from minidist.papers import llama, megatron
from minidist.papers.collectives import chunk_sizes
from minidist.papers.decoder import DENSE, MIXTURE, Decoder, Mixture, cut_and_whole


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
        gpt, layers = self.name == "gpt", (MIXTURE if self.experts else DENSE,) * self.layers
        f = 4 * self.h if gpt else self.mlp_width
        return Decoder(
            v=self.v, s=self.s, h=self.h, a=self.a, kv=self.kv, d=self.h // self.a, f=f, kinds=layers, gated=not gpt,
            tied=self.tied, learned=gpt, qkv_bias=gpt, out_bias=gpt, mlp_bias=gpt, norm_bias=gpt,
            mixture=Mixture(self.experts, self.top, f, expert_bias=gpt) if self.experts else None,
        )  # fmt: skip

    def with_mixture(self, experts: int, top: int) -> "Model":
        """The same with this number of experts in its mixtures, or in every layer if it has none."""
        other = self.other and self.other.with_experts(experts, top)
        return replace(self, experts=experts, top=top, other=other)

    @property
    def mlp_width(self) -> int:
        return self.f or llama.mlp_width(self.h)

    def cut_and_whole(self, t: int = 1) -> list[list[tuple[int, int]]]:
        """For each of t ranks that share every layer, its parameters of each unit: those that are cut, and those that
        every rank has."""
        if self.other:
            return self.other.cut_and_whole(t)
        if self.name == "gpt":
            ranks = [megatron.count_cut_and_whole(self.v, self.s, self.h, self.layers, t, self.tied)] * t
        else:
            sizes = self.v, self.h, self.layers, self.a, self.kv, self.mlp_width
            ranks = llama.count_cut_and_whole(*sizes, t, self.tied)
        return self.with_experts(ranks, t, self.experts) if self.experts else ranks

    @cache  # noqa: B019
    def without_experts(self, t: int = 1) -> list[list[tuple[int, int]]]:
        """The same without the parameters of experts: of a mixture, only the router is left, on every rank. (Cached,
        because a few models are asked many times.)"""
        if self.other:
            return self.other.cut_and_whole(t, experts=0)
        dense = replace(self, experts=0).cut_and_whole(t)
        return self.with_experts(dense, t, 0) if self.experts else dense

    def with_experts(self, ranks: list[list[tuple[int, int]]], t: int, number: int) -> list[list[tuple[int, int]]]:
        """These parameters with routers, and with this number of MLPs in place of each layer's one."""
        found = []
        for (first, *layers, last), mlp in zip(ranks, self.mlp(t), strict=True):
            more = [(number - 1) * size for size in mlp]
            routed = [(cut + more[0], whole + more[1] + self.experts * self.h) for cut, whole in layers]
            found.append([first, *routed, last])
        return found

    def mlp(self, t: int = 1) -> list[tuple[int, int]]:
        """For each of t ranks, a layer's MLP or one expert, cut and whole: together 8h² + 5h, or for a Llama 3hf."""
        if self.other:
            of = self.other
            return [
                cut_and_whole(of.expert(t, rank) if of.mixture else of.mlp(of.f, of.mlp_bias, t, rank))
                for rank in range(t)
            ]
        if self.name == "gpt":
            return [((8 * self.h**2 + 4 * self.h) // t, self.h)] * t
        return [(3 * self.h * part, 0) for part in chunk_sizes(self.mlp_width, t)]

    def active(self) -> int:
        """Parameters that a token goes through."""
        if self.other:
            return self.other.active
        [mlp] = self.mlp()
        return self.parameters() - self.layers * max(0, self.experts - self.top) * sum(mlp)

    def units(self, shards: int = 1) -> list[int]:
        """ψ of each unit, padded to a multiple of `shards`, among which it is divided evenly."""
        if self.apart:
            return [padded(small, shards) + padded(large, shards) for small, large in self.small_and_large()]
        (whole,) = self.cut_and_whole()
        return [padded(sum(both), shards) for both in whole]

    def small_and_large(self) -> list[tuple[int, int]]:
        """Elements of each unit in parameters of at most `apart` elements, and in larger ones."""
        if self.other:
            sizes = self.other.parameter_sizes
        elif self.name == "gpt":
            sizes = megatron.parameter_sizes(self.v, self.s, self.h, self.layers, self.tied)
        else:
            sizes = llama.parameter_sizes(self.v, self.h, self.layers, self.a, self.kv, self.mlp_width)
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

    def read_by_head(self, shards: int = 1) -> int:
        """The parameters that the head's unit reads: its own and, if it is tied, the embedding's."""
        first, *_, last = self.units(shards)
        return last + first * self.tied


def padded(size: int, shards: int) -> int:
    """The size, up to a multiple of the number of shards (FSDP, section 3.2.1)."""
    return -(-size // shards) * shards
