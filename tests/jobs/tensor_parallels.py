"""What tests/test_tensor_parallel.py runs on ranks: small models cut for 1 to 4 of them."""

from typing import Any

from jobs import engines
from minidist import tensor_parallel as chapter
from minidist.data_parallel import DataParallel
from minidist.engine import Engine, Settings
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.llama import LlamaConfig, llama

VOCABULARY, CONTEXT = 23, 12  # 23 is divisible by no number of ranks above 1; 12 by all of them
BATCH = 6


def model(name: str) -> list[Unit]:
    """A model whose heads, and shared key/value heads, divide by 1, 2, 3 and 4; Llama's hidden width does not."""
    sizes: dict[str, Any] = {"vocabulary": VOCABULARY, "context": CONTEXT, "layers": 2, "dropout": 0.1}
    sizes["tied"] = "untied" not in name
    if name.startswith("gpt"):
        return gpt(GPTConfig(heads=12, width=36, bias="without bias" not in name, **sizes))
    return llama(LlamaConfig(heads=24, kv_heads=12, width=48, hidden=37, **sizes))


def settings(precision: str, optimizer: str, accumulate: int, recompute: str) -> Settings:
    return engines.settings(precision, optimizer, accumulate, clip=0.5, recompute=recompute)


def tensor_parallel(
    name: str, settings: Settings, comm: Any, sequence: bool = False, gather: bool = False
) -> DataParallel:
    return chapter.tensor_parallel(model(name), settings, comm, sequence, gather)


def train(engine: Engine) -> dict[str, Any]:
    return engines.trained(engine, BATCH, CONTEXT)


def train_all(comm: Any, cases: list[list[Any]]) -> dict[str, Any]:
    """Each case is [model, sequence parallel, gather logits, precision, optimizer, accumulate, recompute]."""
    results = {}
    for case in cases:
        name, sequence, gather, *rest = case
        results[repr(case)] = engines.on_first(
            comm, train(tensor_parallel(name, settings(*rest), comm, sequence, gather))
        )
    return results


def count_all(comm: Any, cases: list[list[Any]]) -> list[dict[str, Any]]:
    """What this rank sends in one step of one micro-batch, and holds. Cases as above."""
    counted = []
    for name, sequence, gather, *rest in cases:
        engine = tensor_parallel(name, settings(*rest), comm, sequence, gather)
        comm.ledger.reset()
        engine.train_batch(*engines.batch(0, BATCH, CONTEXT, VOCABULARY))
        counted.append(
            {"sent": comm.ledger.by_phase(), "memory": engine.peak_bytes(), "counted": engine.other_counts()}
        )
    return counted
