"""GPT-2 (Radford et al. 2019) and GPT-3 (Brown et al. 2020): their sizes. One head, tied to the embedding.

v: vocabulary, s: positions, h: width, a: heads.
"""

from dataclasses import dataclass
from typing import ClassVar

from minidist.papers import chen, megatron
from minidist.papers.korthikanti import layer_activations


@dataclass(frozen=True)
class GPTShape:
    """A GPT as the papers' tables describe it."""

    h: int
    layers: int
    a: int
    s: int = 1024
    v: int = 50_257
    tied: bool = True  # the head reads the embedding's matrix

    family: ClassVar = "gpt"  # what --model calls it

    @property
    def units(self) -> list[int]:
        """Parameters of embedding, layers and head: (v + s)h, 12h² + 13h each, 2h."""
        return megatron.units(self.v, self.s, self.h, self.layers, tied=self.tied)

    @property
    def parameter_sizes(self) -> list[list[int]]:
        """Elements of each parameter, by unit."""
        return megatron.parameter_sizes(self.v, self.s, self.h, self.layers, self.tied)

    @property
    def parameters(self) -> int:
        return sum(self.units)

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest single layer: the embedding's matrix, or one of the MLP's with its bias."""
        return max(self.v * self.h, 4 * self.h * self.h + 4 * self.h)

    def activations(self, b: int, recompute: str, p: int, s: int | None = None) -> float:
        """Bytes that the layers keep of a micro-batch of b sequences of s, without dropout, p bytes an element."""
        layer, given = (
            layer_activations(s or self.s, b, self.h, self.a, recompute=what, p=p, dropout=False)
            for what in ("selective" if recompute == "selective" else "none", "full")
        )
        kept = chen.after_forward(recompute, self.layers)
        return kept.inputs * given + kept.layers * layer


MODELS = {
    "gpt2": GPTShape(768, 12, 12),
    "gpt2-medium": GPTShape(1024, 24, 16),
    "gpt2-large": GPTShape(1280, 36, 20),
    "gpt2-xl": GPTShape(1600, 48, 25),
    "gpt3-175b": GPTShape(12_288, 96, 96, s=2048),
}
