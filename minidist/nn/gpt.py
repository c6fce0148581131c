"""GPT-2 (Radford et al. 2019) as a list of units: embedding, block 1 … block L, head."""

import math
from dataclasses import dataclass

from minidist.nn import ops
from minidist.nn.layers import Attention, Batch, Block, Dropout, Embedding, Head, LayerNorm, Linear, Positions, Unit
from minidist.nn.tensor import Tensor


@dataclass(frozen=True)
class GPTConfig:
    """GPT-2 small by default: 124 439 808 parameters."""

    vocabulary: int = 50257
    context: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    bias: bool = True  # in the linear layers and the norms, as GPT-2 has it
    dropout: float = 0.0
    tied: bool = True  # the head uses the embedding's matrix

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by {self.heads} heads")


class GPTEmbedding(Unit):
    """Token and position embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__("embedding")
        self.token = Embedding("wte", config.vocabulary, config.width)
        self.position = Positions("wpe", config.context, config.width)
        self.dropout = Dropout("embedding.dropout", config.dropout)
        self.own([self.token, self.position])

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        return self.dropout(self.position(self.token(x)), batch)  # (B, T) -> (B, T, C)


class GPTBlock(Block):
    """Attention and MLP, each behind a layer norm (pre-LN) and added to the residual stream."""

    def __init__(self, name: str, config: GPTConfig) -> None:
        super().__init__(name)
        width, bias, heads = config.width, config.bias, config.heads
        out = 0.02 / math.sqrt(2 * config.layers)  # 2L projections add to the residual stream: its variance stays
        self.norm1 = LayerNorm(f"{name}.norm1", width, bias)
        self.qkv = Linear(f"{name}.qkv", width, 3 * width, bias)
        self.attention = Attention(f"{name}.attention", heads, heads, config.dropout)
        self.projection = Linear(f"{name}.projection", width, width, bias, std=out)
        self.norm2 = LayerNorm(f"{name}.norm2", width, bias)
        self.up = Linear(f"{name}.up", width, 4 * width, bias)
        self.down = Linear(f"{name}.down", 4 * width, width, bias, std=out)
        self.dropout1 = Dropout(f"{name}.dropout1", config.dropout)
        self.dropout2 = Dropout(f"{name}.dropout2", config.dropout)
        self.own([self.norm1, self.qkv, self.projection, self.norm2, self.up, self.down])

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        a = self.attention(self.qkv(self.norm1(x)), batch)  # (B, T, C) -> (B, T, 3C) -> (B, T, C)
        x = ops.add(x, self.dropout1(self.projection(a), batch))
        m = self.down(ops.gelu(self.up(self.norm2(x))))  # (B, T, C) -> (B, T, 4C) -> (B, T, C)
        return ops.add(x, self.dropout2(m, batch))


def gpt(config: GPTConfig) -> list[Unit]:
    """The units of a GPT. Nothing is allocated: parameters are declared and get their values when they are bound."""
    embedding = GPTEmbedding(config)
    blocks = [GPTBlock(f"block{i}", config) for i in range(config.layers)]
    norm = LayerNorm("head.norm", config.width, config.bias)
    if config.tied:
        return [embedding, *blocks, Head(norm, embedding.token, owner=embedding)]
    return [embedding, *blocks, Head(norm, Linear("head", config.width, config.vocabulary, bias=False))]
