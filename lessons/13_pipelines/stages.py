"""A stage of a small GPT, for `perform`: its forward, its backward and its weights, with the package's units.

A stage has some of the units of lesson 02: embedding, blocks, head. Its tapes hold a micro-batch's activations, from
`forward` to `weight`. With a clock it records its tasks and their times: time is logical; F, B and W take 1 each.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from minidist.engine import Engine, Passage, Settings
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Batch
from minidist.nn.optim import SGD
from minidist.nn.precision import PRECISIONS

Array = np.ndarray
SMALL = {"vocabulary": 16, "context": 6, "layers": 2, "heads": 2, "width": 8, "tied": False}


class Clocked:
    """A communicator whose messages also carry the sender's time, as in `minidist/pp/watch.py`."""

    def __init__(self, comm: Comm) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.now = 0.0
        self.spans: list[tuple[str, int, float, float]] = []

    def work(self, letter: str, k: int) -> None:
        """The rank works for one unit of time."""
        self.spans.append((letter, k, self.now, self.now + 1))
        self.now += 1

    def isend(self, array: Array, dest: int) -> Any:
        self.comm.send_object(self.now, dest)
        return self.comm.isend(array, dest)

    def recv(self, out: Array, source: int) -> None:
        self.now = max(self.now, self.comm.recv_object(source))
        self.comm.recv(out, source)


def settings(m: int) -> Settings:
    return Settings(PRECISIONS["fp64"], SGD(), accumulate=m)


def parts(n: int, p: int) -> list[range]:
    """The units, of n, that each of p stages has."""
    return [range(n * s // p, n * (s + 1) // p) for s in range(p)]


class Stage:
    """Stage s of p."""

    def __init__(
        self, s: int, p: int, tokens: Array, model: dict[str, int] = SMALL, clock: Clocked | None = None
    ) -> None:
        """tokens: integers (m, sequences, context + 1), all micro-batches."""
        units = gpt(GPTConfig(**model))
        self.first, self.last, self.m = s == 0, s == p - 1, len(tokens)
        self.engine = Engine([units[i] for i in parts(len(units), p)[s]], settings(self.m))
        self.shape = (tokens.shape[1], model["context"], model["width"])
        self.batches = [Batch(of[:, :-1], of[:, 1:]) for of in tokens]
        self.kept: dict[int, list[Passage]] = {}  # activations of micro-batches between F and W
        self.loss = 0.0  # on the last stage: the mean over all micro-batches
        self.clock = clock
        self.done: list[tuple[str, int]] = []  # in order
        self.held = 0  # the most micro-batches that were held at a time

    def forward(self, k: int, x: Array | None) -> Array | None:
        """Returns the input of rank + 1. x: from rank - 1."""
        y, self.kept[k] = self.engine.run(
            self.engine.segments, self.batches[k].tokens if self.first else x, self.batches[k]
        )
        self.note("F", k)
        self.held = max(self.held, len(self.kept))
        if self.last:
            self.loss += float(y) / self.m
        return None if self.last else y

    def backward(self, k: int, dy: Array | None) -> Array | None:
        """The gradient of x, from that of y."""
        slope = np.asarray(1 / self.m) if self.last else dy  # of the mean over all micro-batches
        dx = self.engine.run_back(self.kept[k], slope, weights=False)
        self.note("B", k)
        return None if self.first else dx

    def weight(self, k: int) -> None:
        """Add the gradient of the stage's own matrices, and drop the activations of micro-batch k."""
        self.engine.run_weights(self.kept.pop(k))
        self.note("W", k)

    def note(self, letter: str, k: int) -> None:
        self.done.append((letter, k))
        if self.clock:
            self.clock.work(letter, k)

    @property
    def gradients(self) -> list[Array]:
        """Each unit's gradient, flattened."""
        return [flat.grad for flat in self.engine.flats]


def serial(tokens: Array, model: dict[str, int] = SMALL) -> tuple[float, list[Array]]:
    """The loss and the gradients without a pipeline."""
    engine = Engine(gpt(GPTConfig(**model)), settings(len(tokens)))
    loss = 0.0
    for of in tokens:
        loss += (found := engine.forward(of[:, :-1], of[:, 1:])).value
        engine.backward(found)
    return loss, [flat.grad for flat in engine.flats]


def a_batch(m: int, sequences: int = 2, seed: int = 0, model: dict[str, int] = SMALL) -> Array:
    """Random tokens (m, sequences, context + 1)."""
    return np.random.default_rng(seed).integers(0, model["vocabulary"], (m, sequences, model["context"] + 1))


def off(found: Sequence[Sequence[Array]], truth: Sequence[Array]) -> float:
    """The error of the gradients of all stages, one after another, in percent of the true gradient."""
    both = [np.concatenate([np.ravel(array) for array in of]) for of in ([*chain.from_iterable(found)], truth)]
    return float(100 * np.linalg.norm(both[0] - both[1]) / np.linalg.norm(both[1]))


def compare_ranks(did: list[dict[str, Any]], gradients: list[Any], held: list[Any]) -> tuple[dict[str, Any], Any]:
    """Of each schedule the spans of all ranks, and the error of the gradients in percent, which is printed."""
    _, truth = serial(a_batch(m=8))
    spans, errors = {}, {}
    for name in did[0]:
        spans[name] = [of_rank[name] for of_rank in did]
        errors[name] = off([of_rank[name] for of_rank in gradients], truth)
        most = [of_rank[name] for of_rank in held]
        print(f"{name:6} gradients {errors[name]:.6f}% off; held at most {most} (counted)")
    return spans, errors


def compare_steps(results: list[dict[Any, Any]]) -> tuple[dict[tuple[str, int, int], float], bool]:
    """Of each (schedule, p, m) the error of the gradients in percent, which is printed; and whether all losses are
    right. results: of each rank {(p, m, schedule): (loss, gradients)}."""
    wrong, same_loss = dict[tuple[str, int, int], float](), True
    print(f"{'':14}" + "".join(f"{f'm = {m}':>10}" for m in (1, 2, 8)), "  error of gradients, percent")
    for name, size in ((name, size) for name in ("GPipe", "1F1B") for size in (2, 3, 4)):
        for m in (1, 2, 8):
            loss, truth = serial(a_batch(m))
            of_ranks = [results[rank][size, m, name] for rank in range(size)]
            wrong[name, size, m] = off([gradients for _, gradients in of_ranks], truth)
            same_loss = same_loss and abs(of_ranks[-1][0] - loss) < 1e-12
        print(f"{name:6} p = {size}  " + "".join(f"{wrong[name, size, m]:>10.2f}" for m in (1, 2, 8)))
    print("the loss is right everywhere:", same_loss, "\n")
    return wrong, same_loss


# ---- stages of two matrices, whose weights move ----------------------------------------------------------------------

MICRO, WIDTH = 60, 8  # micro-batches of 16 rows
_random = np.random.default_rng(0)
X = _random.standard_normal((MICRO, 16, WIDTH))
WANTED = np.tanh(X @ _random.standard_normal((WIDTH, WIDTH)))


def start_weights(p: int) -> list[Array]:
    random = np.random.default_rng(1)
    return [0.5 * random.standard_normal((2, WIDTH, WIDTH)) for _ in range(p)]


def first_inputs(m: int) -> dict[tuple[int, int], Array]:
    """The inputs of stage 0: {(micro-batch, 0): x}."""
    return {(k, 0): X[k] for k in range(m)}


def forward(w: Array, x: Array) -> tuple[Array, tuple[Array, Array]]:
    """y = x + tanh(x w[0]) w[1], and the arrays that the backward needs."""
    a = np.tanh(x @ w[0])
    return x + a @ w[1], (x, a)


def backward(w: Array, dy: Array, kept: tuple[Array, Array]) -> tuple[Array, Array]:
    """dx and dw."""
    x, a = kept
    dz = (dy @ w[1].T) * (1 - a * a)
    return dy + dz @ w[0].T, np.stack([x.T @ dz, a.T @ dy])


def loss_of(y: Array, k: int) -> tuple[Array, float]:
    """(dy, loss) of micro-batch k, at the end of the last stage."""
    miss = y - WANTED[k]
    return miss / miss.size, float((miss**2).mean() / 2)


def miss_of(dw: Array, weights: list[Array], k: int, s: int) -> float:
    """The error of dw in percent. The true gradient of stage s is that of the whole model with these weights, without a
    pipeline."""
    x, kept, found = X[k], [], []
    for w in weights:
        x, of_stage = forward(w, x)
        kept.append(of_stage)
    dy, _ = loss_of(x, k)
    for w, of_stage in zip(reversed(weights), reversed(kept), strict=True):
        dy, truth = backward(w, dy, of_stage)
        found.insert(0, truth)
    return float(100 * np.linalg.norm(dw - found[s]) / np.linalg.norm(found[s]))


def print_errors(between: Sequence[int], newest: Any, stashed: Any) -> None:
    """The errors of each stage's gradients, and every tenth loss."""
    print("error of the gradient, percent:        newest weights   stashed")
    for s, updates in enumerate(between):
        print(f"stage {s}, {updates} updates in between{newest[0][s]:>25.1f}{stashed[0][s]:>10.1f}")
    for name, (_, losses) in (("newest", newest), ("stashed", stashed)):
        print(f"loss, {name:8}" + "".join(f"{loss:7.2f}" for loss in losses[::10]))
