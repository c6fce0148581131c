"""GPT-2 (Radford et al. 2019) as a list of units: embedding, block 1 … block L, head."""

import math
from dataclasses import dataclass

from minidist.nn import ops
from minidist.nn.layers import (
    MLP,
    Attention,
    Batch,
    Block,
    Dropout,
    Embedding,
    Head,
    LayerNorm,
    Linear,
    Positions,
    Unit,
)
from minidist.nn.tensor import Parameter, Tensor


@dataclass(frozen=True)
class GPTConfig:
    """GPT-2 small by default: 124,439,808 parameters."""

    vocabulary: int = 50257
    context: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    bias: bool = True  # in the linear layers and the norms, as GPT-2 has it
    dropout: float = 0.0
    tied: bool = True  # the head uses the embedding's matrix
    eps: float = 1e-5  # what norms add

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by {self.heads} heads")


@dataclass(eq=False)
class GPTEmbedding(Unit):
    """Token and position embedding."""

    name: str
    token: Embedding
    position: Positions
    dropout: Dropout

    def __post_init__(self) -> None:
        self.own([self.token, self.position])

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        return self.dropout(self.position(self.token(x), batch), batch)  # (B, T) -> (B, T, C)


class GPTBlock(Block):
    """Attention and MLP, each after a layer norm (pre-LN) and added to the residual stream."""

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        a = self.attention(self.qkv(self.norm1(x)), batch)  # (B, T, C) -> (B, T, 3C) -> (B, T, C)
        x = ops.add(x, self.dropout1(self.projection(a), batch))
        m = self.mlp(x, self.norm2, batch)  # (B, T, C) -> (B, T, 4C) -> (B, T, C)
        return ops.add(x, self.dropout2(m, batch))


def gpt(config: GPTConfig) -> list[Unit]:
    """The units of a GPT. Nothing is allocated: parameters are declared and get their values when they are bound."""
    width, bias, heads, p = config.width, config.bias, config.heads, config.dropout
    out = 0.02 / math.sqrt(2 * config.layers)  # 2L projections add to the residual stream: its variance stays
    embedding = GPTEmbedding(
        "embedding",
        token=Embedding("wte", config.vocabulary, width),
        position=Positions(Parameter("wpe.weight", (config.context, width), std=0.02)),
        dropout=Dropout("embedding.dropout", p),
    )

    def mlp(name: str) -> MLP:
        up = Linear(f"{name}.up", width, 4 * width, bias)
        return MLP(up, ops.gelu, Linear(f"{name}.down", 4 * width, width, bias, std=out))

    blocks = [
        GPTBlock(
            name,
            norm1=LayerNorm(f"{name}.norm1", width, bias, config.eps),
            qkv=Linear(f"{name}.qkv", width, 3 * width, bias),
            attention=Attention(f"{name}.attention", heads, heads, p),
            projection=Linear(f"{name}.projection", width, width, bias, std=out),
            norm2=LayerNorm(f"{name}.norm2", width, bias, config.eps),
            mlp=mlp(name),
            dropout1=Dropout(f"{name}.dropout1", p),
            dropout2=Dropout(f"{name}.dropout2", p),
        )
        for name in (f"block{i}" for i in range(config.layers))
    ]
    norm = LayerNorm("head.norm", width, bias, config.eps)
    if config.tied:
        return [embedding, *blocks, Head(norm, embedding.token, owner=embedding)]
    return [embedding, *blocks, Head(norm, Linear("head", width, config.vocabulary, bias=False))]
