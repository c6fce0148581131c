"""What the benchmark measures in one process: a step, nanoGPT's run, AdamW."""

import importlib.util
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minidist.bench.measure import Comparison, alternate, compare, missing_row
from minidist.engine import Engine, Settings
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.ops import BLOCK, blocks
from minidist.nn.optim import AdamW, CosineSchedule, InThreads
from minidist.nn.precision import PRECISIONS
from minidist.text.data import Corpus

# nanoGPT's setting for a laptop, and a wider one. {model}, batch, pairs of steps to measure
Setting = tuple[dict[str, Any], int, int]
SMALL: Setting = ({"vocabulary": 65, "context": 64, "layers": 4, "heads": 4, "width": 128, "bias": False}, 12, 60)
WIDE: Setting = ({"vocabulary": 65, "context": 256, "layers": 6, "heads": 6, "width": 384, "bias": False}, 4, 12)
HAS_TORCH, MISSING = importlib.util.find_spec("torch") is not None, "no PyTorch here"


def run_step(engine: Engine, tokens: np.ndarray) -> None:
    """Forward, backward and update on one global batch (B, T+1)."""
    engine.backward(engine.forward(tokens[:, :-1], tokens[:, 1:]))
    engine.step()


def training_step() -> Iterator[Comparison]:
    """One process, one core: a step of the same model in PyTorch eager, and compiled.

    All use the same malloc, which keeps freed memory (`machine.py` says how): it makes PyTorch faster, too.
    """
    for title, (config, batch, pairs), target in (("step, width 128", SMALL, 1.0), ("step, width 384", WIDE, 1.0)):
        if not HAS_TORCH:
            yield missing_row(title, "PyTorch eager", target, MISSING)
            yield missing_row(title, "PyTorch compiled", None, MISSING)
            continue
        from minidist.bench import pytorch

        pytorch.one_thread()
        sizes = GPTConfig(**config)
        tokens = np.random.default_rng(0).integers(0, sizes.vocabulary, (batch, sizes.context + 1))
        x, y = tokens[:, :-1], tokens[:, 1:]
        ours = partial(run_step, Engine(gpt(sizes), Settings(PRECISIONS["fp32"], AdamW(weight_decay=0.1))), tokens)
        eager = partial(pytorch.TorchStep(pytorch.GPT(sizes)), x, y)
        yield compare(title, "PyTorch eager", *alternate(ours, eager, pairs), target, "ms")
        if compiled := pytorch.compiled_step(sizes, x, y):
            yield compare(title, "PyTorch compiled", *alternate(ours, partial(compiled, x, y), pairs), None, "ms")
        else:
            yield missing_row(title, "PyTorch compiled", None, "no compiler here")


PUBLISHED = 1.88  # the loss of nanoGPT's run on a CPU, by its README


def whole_run(corpus: Corpus) -> Iterator[Comparison]:
    """nanoGPT's run for a laptop, 2,000 steps of SMALL on tiny Shakespeare, and PyTorch's from the same start."""
    config, batch, _ = SMALL
    title = "nanoGPT's CPU run, 2000 steps"
    if not HAS_TORCH:
        yield missing_row(title, "PyTorch eager", 1.0, MISSING)
        return
    from minidist.bench import pytorch

    pytorch.one_thread()
    sizes = GPTConfig(**config | {"vocabulary": len(corpus.vocabulary)})
    rate, beta2 = CosineSchedule(peak=1e-3, floor=1e-4, warmup=100, total=2000), 0.99
    ours = Engine(gpt(sizes), Settings(PRECISIONS["fp32"], AdamW(beta2=beta2, weight_decay=0.1), rate))
    named = {name: a for flat in ours.flats for name, a in ours.whole_parameters(flat, flat.param).items()}
    theirs = pytorch.TorchStep(pytorch.GPT(sizes).start_from(named), beta2)
    times: tuple[list[float], list[float]] = ([], [])
    for step in range(rate.total):
        x, y = map(np.asarray, corpus.batch(batch, sizes.context, key=(0, step)))
        steps: tuple[Callable[..., object], ...] = (ours.train_batch, partial(theirs, lr=rate(step)))
        for function, taken in zip(steps, times, strict=True):
            begin = time.perf_counter()
            function(x, y)
            taken.append(time.perf_counter() - begin)
    row = compare(title, "PyTorch eager", *times, 1.0, "s")
    row.ours, row.theirs = sum(times[0]), sum(times[1])
    yield row
    x, y = map(np.asarray, corpus.validation_batch(1600, sizes.context))  # spread evenly: almost all of it
    loss, their_loss = ours.evaluate(x, y), theirs.loss(x, y).item()
    for beside, other, target in (("PyTorch eager", their_loss, None), ("published", PUBLISHED, 1.0)):
        yield Comparison("nanoGPT's CPU run: loss", beside, loss / other, None, target, loss, other)


def adam() -> Iterator[Comparison]:
    """AdamW alone, on ten million parameters, as ZeRO-Offload's host runs it: in one thread and in two."""
    titles = {1: "AdamW, 10 M", 2: "AdamW, 10 M, 2 threads"}
    if not HAS_TORCH:
        yield from (missing_row(title, "PyTorch fused", {1: 1.5}.get(n), MISSING) for n, title in titles.items())
        return
    import torch

    n = 10_000_000
    param, grad = np.ones(n, np.float32), np.full(n, 1e-3, np.float32)
    state = [np.zeros(n, np.float32) for _ in range(2)]
    tensor = torch.ones(n, requires_grad=True)
    tensor.grad = torch.full((n,), 1e-3)

    def thirteen_passes() -> None:
        """As many passes as AdamW needs if no compiler fuses them, in blocks that stay in the cache."""
        for p, g, m in blocks(param, grad, state[0]):
            for _ in range(13):
                np.multiply(p, g, out=m)

    for threads, title in titles.items():
        torch.set_num_threads(threads)
        ours = InThreads(AdamW(weight_decay=0.1), [np.empty(BLOCK, np.float32) for _ in range(threads)])
        update = partial(ours.update, param, grad, state, scale=1.0, lr=1e-3, step=10, decayed=n)
        for beside, fused, target in (("PyTorch fused", True, {1: 1.5}.get(threads)), ("PyTorch", False, None)):
            theirs = torch.optim.AdamW([tensor], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=fused)
            yield compare(title, beside, *alternate(update, theirs.step, pairs=20), target, "ms")
        if threads == 1:
            yield compare(title, "13 products in NumPy", *alternate(update, thirteen_passes, pairs=20), 1.3, "ms")
