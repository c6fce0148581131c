"""What tests/test_context_parallel.py runs on ranks: small models whose sequences are cut, and serial training."""

from typing import Any

from jobs import engines
from minidist.context_parallel import context_parallel
from minidist.engine import Engine, Settings
from minidist.fsdp import FSDP
from minidist.layout import Layout
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.llama import LlamaConfig, llama
from minidist.parallel3d import grid

VOCABULARY, BATCH = 23, 6
HEADS = {"gpt": 8, "llama": 4}  # key/value heads: no more ranks can share them


def model(name: str, context: int, dropout: float = 0.0) -> list[Unit]:
    """GPT has learned positions, Llama rotary ones, and groups of two query heads."""
    if name == "gpt":
        return gpt(GPTConfig(VOCABULARY, context, layers=2, heads=8, width=24, dropout=dropout))
    sizes: dict[str, Any] = {"dropout": dropout, "layers": 2, "heads": 8, "kv_heads": 4, "width": 32, "hidden": 37}
    return llama(LlamaConfig(VOCABULARY, context, **sizes))


def settings(precision: str, accumulate: int = 1, recompute: str = "none", dropout: float = 0.0) -> Settings:
    """dropout is the model's, and goes along with them."""
    return engines.settings(precision, "adamw", accumulate, clip=0.5, recompute=recompute)


def train(engine: Engine, context: int) -> dict[str, Any]:
    return engines.trained(engine, BATCH, context)


def on_ranks(comm: Comm, case: list[Any]) -> dict[str, Any]:
    """A case: model, context, scheme, positions, ZeRO's stage or "fsdp", cp, and settings."""
    name, context, scheme, positions, zero, cp, *how = case
    layout = Layout(dp=comm.size // cp, cp=cp)
    made = model(name, context, *how[3:]), settings(*how), comm, layout
    if zero == "fsdp":
        sharded = grid(*made, scheme=scheme, positions=positions, build=FSDP)
        assert isinstance(sharded, FSDP)
        return train(sharded, context)
    return train(context_parallel(*made, scheme, positions, zero), context)


def train_all(comm: Comm, cases: list[list[Any]]) -> dict[str, Any]:
    """Results by the case's repr, on rank 0."""
    return {repr(case): engines.on_first(comm, on_ranks(comm, case)) for case in cases}
