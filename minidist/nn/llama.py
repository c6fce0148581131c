"""Llama (Touvron et al. 2023) as a list of units: RMSNorm, rotary positions, SwiGLU, grouped queries, no bias."""

import math
from dataclasses import dataclass

from minidist.nn import ops
from minidist.nn.layers import MLP, Attention, Batch, Block, Dropout, Embedding, Head, Linear, RMSNorm, Unit
from minidist.nn.tensor import Tensor


@dataclass(frozen=True)
class LlamaConfig:
    """LLaMA 7B by default: 6,738,415,616 parameters."""

    vocabulary: int = 32000
    context: int = 2048
    layers: int = 32
    heads: int = 32
    kv_heads: int = 32  # fewer than heads: grouped-query attention
    width: int = 4096
    hidden: int = 11008  # of the MLP
    dropout: float = 0.0
    tied: bool = False
    theta: float = 10_000.0  # the slowest rotation takes about 2π·theta positions for a turn
    eps: float = 1e-5  # what norms add

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by {self.heads} heads")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads are not divisible by {self.kv_heads} key/value heads")
        if self.width // self.heads % 2:
            raise ValueError(f"rotary embedding turns pairs: width/heads = {self.width // self.heads} must be even")


def hidden_width(width: int) -> int:
    """The MLP's width: 8/3 of the model's, for as many parameters as GPT's 4 (Shazeer 2020), up to a multiple of 8."""
    return -(-width * 8 // 3 // 8) * 8


@dataclass(eq=False)
class LlamaEmbedding(Unit):
    """Token embedding; positions come in by rotation, in attention."""

    name: str
    token: Embedding
    dropout: Dropout

    def __post_init__(self) -> None:
        self.own([self.token])

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        return self.dropout(self.token(x), batch)  # (B, T) -> (B, T, C)


@dataclass(eq=False)
class LlamaBlock(Block):
    """Rotary attention and SwiGLU MLP, each after an RMSNorm and added to the residual stream."""

    theta: float
    depth: int  # D: of a head

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        qkv = self.qkv(self.norm1(x))  # (B, T, C) -> (B, T, C + 2·Hkv·D)
        turned = self.attention.heads + self.attention.kv_heads  # Q and K, not V
        qkv = ops.rotary(qkv, turned, self.depth, batch.at, self.theta)
        a = self.attention(qkv, batch)  # (B, T, C)
        x = ops.add(x, self.dropout1(self.projection(a), batch))
        m = self.mlp(x, self.norm2, batch)  # (B, T, C) -> (B, T, 2F) -> (B, T, F) -> (B, T, C)
        return ops.add(x, self.dropout2(m, batch))


def llama(config: LlamaConfig) -> list[Unit]:
    """The units of a Llama. Nothing is allocated: parameters are declared and get their values when they are bound."""
    width, heads, kv_heads, p = config.width, config.heads, config.kv_heads, config.dropout
    depth = width // heads
    out = 0.02 / math.sqrt(2 * config.layers)  # 2L projections add to the residual stream: its variance stays
    token = Embedding("wte", config.vocabulary, width)
    embedding = LlamaEmbedding("embedding", token, Dropout("embedding.dropout", p))

    def mlp(name: str) -> MLP:
        up = Linear(f"{name}.up", width, 2 * config.hidden, bias=False)  # gate and up projection as one
        return MLP(up, ops.swiglu, Linear(f"{name}.down", config.hidden, width, bias=False, std=out))

    blocks = [
        LlamaBlock(
            name,
            norm1=RMSNorm(f"{name}.norm1", width, config.eps),
            qkv=Linear(f"{name}.qkv", width, (heads + 2 * kv_heads) * depth, bias=False),
            attention=Attention(f"{name}.attention", heads, kv_heads, p),
            projection=Linear(f"{name}.projection", width, width, bias=False, std=out),
            norm2=RMSNorm(f"{name}.norm2", width, config.eps),
            mlp=mlp(name),
            dropout1=Dropout(f"{name}.dropout1", p),
            dropout2=Dropout(f"{name}.dropout2", p),
            theta=config.theta,
            depth=depth,
        )
        for name in (f"block{i}" for i in range(config.layers))
    ]
    norm = RMSNorm("head.norm", width, config.eps)
    if config.tied:
        return [embedding, *blocks, Head(norm, embedding.token, owner=embedding)]
    return [embedding, *blocks, Head(norm, Linear("head", width, config.vocabulary, bias=False))]
