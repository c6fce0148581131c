"""What lesson 05's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minidist.engine import Engine, Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.optim import SGD
from minidist.nn.precision import PRECISIONS

Array = np.ndarray


def layer(flat: Array, h: Array) -> Array:
    width = h.shape[1]
    w, b = flat[: width * width].reshape(width, width), flat[width * width :]
    return np.tanh(h @ w + b)


def layer_backward(flat: Array, h: Array, out: Array, dout: Array) -> tuple[Array, Array]:
    """(the gradient of the unit's Flat, from these rows only; dh)"""
    width = h.shape[1]
    dz = dout * (1 - out**2)
    gradient = np.concatenate([(h.T @ dz).reshape(-1), dz.sum(axis=0)])
    return gradient, dz @ flat[: width * width].reshape(width, width).T


def start() -> tuple[list[Array], Array, Array]:
    """Four Flats of width 16 and a batch of ten rows, the same on every rank."""
    random = np.random.default_rng(0)
    flats = list(random.standard_normal((4, 16 * 16 + 16)) / 16**0.5)
    x, y = random.standard_normal((2, 10, 16))
    return flats, x, np.tanh(y)


def norm_of(gradients: Sequence[Array]) -> float:
    """The norm of all gradients together, as one long vector."""
    return float(np.sqrt(sum((gradient**2).sum() for gradient in gradients)))


MODEL = {"vocabulary": 64, "context": 16, "layers": 3, "heads": 2, "width": 24}
TOKENS = np.random.default_rng(0).integers(0, 64, (16, 17))  # 16 sequences of 16 tokens, and their targets


def make_units(tied: bool = False) -> list[Unit]:
    """The small GPT, with a head of its own or one that shares the embedding's matrix."""
    return gpt(GPTConfig(**MODEL, tied=tied))


def make_settings(**more: Any) -> Settings:
    """Numbers of 8 bytes and plain SGD, so that gradients can be compared with one process's."""
    return Settings(PRECISIONS["fp64"], SGD(), lambda step: 0.1, clip=0, **more)


def count_step(make: Callable[..., Any], comm: Comm, sequences: int, reduce: str = "ring", **more: Any) -> int:
    """The bytes of gradients that this rank sends in one step of an engine."""
    engine = make(make_units(), make_settings(**more), comm, reduce=reduce)
    comm.ledger.reset()
    engine.train_batch(TOKENS[:sequences, :-1], TOKENS[:sequences, 1:])
    return int(comm.ledger.by_phase()["all-reduce gradients"]["bytes"])


class NotingComm:
    """A communicator that records, at the end of each phase, how many bytes were sent in it."""

    def __init__(self, comm: Comm, events: list[tuple[str, str, int]]) -> None:
        self.comm, self.events = comm, events

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        before = self.comm.ledger.total()
        with self.comm.phase(name):
            yield
        self.events.append(("sends", "", self.comm.ledger.total() - before))


def note_step(
    make: type[Any], comm: Comm, tied: bool = False, **more: Any
) -> tuple[list[tuple[str, str, int]], float, list[Array]]:
    """Run a step on this rank: its backwards and messages, in order; this rank's loss; the summed gradients."""
    events: list[tuple[str, str, int]] = []

    class Noted(make):  # type: ignore[misc]
        def collect(self, flat: Flat) -> None:
            super().collect(flat)
            if not events or events[-1] != ("backward", flat.name, 0):
                events.append(("backward", flat.name, 0))

        def apply_gradients(self) -> None:
            self.sum_over_axes()
            self.finished = [flat.grad[: flat.size].copy() for flat in self.flats]

    engine = Noted(make_units(tied), make_settings(**more), NotingComm(comm, events))
    loss = engine.train_batch(TOKENS[:10, :-1], TOKENS[:10, 1:])
    return events, loss, engine.finished


def compute_alone() -> tuple[float, list[Array]]:
    """The loss and the gradients of the same step in one process."""

    class Alone(Engine):
        def apply_gradients(self) -> None:
            self.finished = [flat.grad[: flat.size].copy() for flat in self.flats]

    engine = Alone(make_units(), make_settings())
    return engine.train_batch(TOKENS[:10, :-1], TOKENS[:10, 1:]), engine.finished


def clip_gradients(gradients: Sequence[Array], clip: float) -> list[Array]:
    """The gradients, scaled so that their norm is at most clip; clip 0 is no limit."""
    from answers import clip_factor

    factor = clip_factor(gradients, clip)[1]
    return [factor * gradient for gradient in gradients]


def train(
    gradients_of: Callable[..., list[Array]],
    flats: list[Array],
    x: Array,
    y: Array,
    optimizer: str,
    rate: float,
    steps: int = 20,
) -> tuple[list[float], list[Array]]:
    """Train on one batch: its loss after each step, and the first gradient that was applied. optimizer: SGD or Adam."""
    moments = [[np.zeros_like(flat), np.zeros_like(flat)] for flat in flats]
    losses, first = [], list[Array]()
    for t in range(1, steps + 1):
        gradients = gradients_of(flats, x, y)
        first = first or gradients
        for flat, gradient, (m, v) in zip(flats, gradients, moments, strict=True):
            if optimizer == "SGD":
                flat -= rate * gradient
            else:  # Adam, as in lesson 02
                m += 0.1 * (gradient - m)
                v += 0.001 * (gradient**2 - v)
                flat -= 0.003 * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        out = x
        for flat in flats:
            out = layer(flat, out)
        losses.append(float(((out - y) ** 2).sum() / 2 / len(x)))
    return losses, first


def replace_methods(names: Sequence[str]) -> type[Engine]:
    """The model answer with these methods of exercise.py in place of its own."""
    from answers import DataParallel

    if not names:
        return DataParallel
    import exercise

    return type("Yours", (DataParallel,), {name: vars(exercise.DataParallel)[name] for name in names})


def weigh_rows(share: Callable[..., range], my_part: Callable[..., Any], rows: int, n: int) -> list[list[float]]:
    """The weight of each row in the gradient, rank by rank: its derivative if every row has the error 1."""
    shares = [len(share(rows, n, rank)) for rank in range(n)]
    return [my_part(np.ones((own, 1)), np.zeros((own, 1)), rows)[1][:, 0].tolist() for own in shares]


def repeat_step(step: Callable[..., tuple[float, float]], comm: Comm, rate: float, steps: int) -> list[list[float]]:
    """[losses, norms] of train_step, called several times on the same batch."""
    flats, x, y = start()
    found = [step(comm, flats, x, y, rate, 0) for _ in range(steps)]
    return [list(values) for values in zip(*found, strict=True)]


def train_both(programs: dict[str, Callable[..., list[Array]]], rate: float) -> dict[tuple[str, str], Any]:
    """{(optimizer, name): (losses, first gradient)} of programs that compute gradients, with Adam and with SGD."""
    return {
        (optimizer, name): train(gradients_of, *start(), optimizer, rate)
        for optimizer in ("Adam", "SGD")
        for name, gradients_of in programs.items()
    }
