"""What lesson 06's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from minidist.engine import Engine, Settings
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import AdamW
from minidist.nn.precision import PRECISIONS
from minidist.train import Alone

Array = np.ndarray


SMALL = GPTConfig(vocabulary=64, context=32, layers=2, heads=4, width=64)


def draw_batch(step: int) -> tuple[Array, Array]:
    """4 sequences of 32 tokens, and the token after each: the previous one plus 3, but one in ten is larger by 1."""
    random = np.random.default_rng(step)
    tokens = random.integers(0, 64, (4, 1)) + 3 * np.arange(33)
    tokens += random.random((4, 33)) < 0.1
    return tokens[:, :-1] % 64, tokens[:, 1:] % 64


def engine(
    kind: Any = Engine, precision: Any = "mixed", optimizer: Any = None, rate: float = 1e-4, clip: float = 1.0
) -> Any:
    """The project's engine with the small model, which trains in this one process."""
    if isinstance(precision, str):
        precision = PRECISIONS[precision]
    return kind(gpt(SMALL), Settings(precision, optimizer or AdamW(), lambda update: rate, clip=clip))


class Rule:
    """A loss scale for the engine, which calls `update` after each step: a subclass has the rule in `after_a_step`."""

    def update(self, overflow: bool) -> None:
        self.after_a_step(overflow)

    def after_a_step(self, overflow: bool) -> None:
        raise NotImplementedError


def logits_gradient(positions: int, batch: int = 8192, vocabulary: int = 50257) -> Array:
    """The slopes of the loss with respect to the logits at some positions of a batch; logits near 0, as in a first
    step."""
    random = np.random.default_rng(0)
    logits = 0.1 * random.standard_normal((positions, vocabulary))
    slope = np.exp(logits)
    slope /= slope.sum(-1, keepdims=True)
    slope[np.arange(positions), random.integers(0, vocabulary, positions)] -= 1
    return (slope / batch).astype(np.float32).reshape(-1)


def train(trained: Any, steps: int = 40) -> tuple[list[float], list[float], list[int]]:
    """The losses, the scale of each step, and the steps that were skipped. The first step is 1."""
    losses, scales, skipped = [], [], []
    for step in range(1, steps + 1):
        scales.append(trained.loss_scale.scale)
        updates = trained.updates
        losses.append(trained.train_batch(*draw_batch(step - 1)))
        if trained.updates == updates:
            skipped.append(step)
    return losses, scales, skipped


def held_bytes(engine: Any) -> dict[str, int]:
    """The bytes of an engine's model states, by kind."""
    return {kind: engine.device.held[kind] for kind in ("parameters", "gradients", "optimizer")}


def bytes_of_a_parameter(made: Any) -> dict[str, float]:
    """The bytes per parameter of an engine's arrays, array by array."""
    arrays: dict[str, int] = {}
    for flat in made.flats:
        first, second = flat.moments
        of_flat = {"parameter": flat.param, "gradient": flat.grad}
        if flat.master is not flat.param:
            of_flat["master copy"] = flat.master
        for kind, array in {**of_flat, "first moment": first, "second moment": second}.items():
            arrays[kind] = arrays.get(kind, 0) + array.nbytes
    return {kind: round(nbytes / sum(flat.size for flat in made.flats), 3) for kind, nbytes in arrays.items()}


def unmoved(kind: Any, steps: int = 20) -> tuple[float, Array, list[float]]:
    """The percentage of weights that the last step does not move; the norms' gains at the end; the losses."""
    trained = engine(kind, "fp32")
    for flat in trained.flats:
        trained.refresh(flat)  # the initial weights, too, must be numbers that can be stored
    losses = []
    for step in range(steps):
        before = [flat.param.copy() for flat in trained.flats]
        losses.append(trained.train_batch(*draw_batch(step)))
    still = [np.mean(flat.param == old) for flat, old in zip(trained.flats, before, strict=True)]
    share = 100 * np.average(still, weights=[flat.size for flat in trained.flats])
    views = [view for flat in trained.flats for view in flat.views(flat.param)]
    gains = [view.reshape(-1) for p, view in views if "norm" in p.name and p.name.endswith("weight")]
    return float(share), np.concatenate(gains), losses


def moved(kind: Any, optimizer: Any, rate: float, steps: int = 20) -> tuple[float, list[float]]:
    """How far all weights together have moved after `steps` steps, and the losses."""
    trained = engine(kind, optimizer=optimizer, rate=rate)
    start = [flat.master.copy() for flat in trained.flats]
    losses, _, _ = train(trained, steps)
    ways = [flat.master - old for flat, old in zip(trained.flats, start, strict=True)]
    return math.sqrt(sum(float((way**2).sum()) for way in ways)), losses


def describe(rounding: Callable[[Any], Any], gradient: Array) -> tuple[int, bool, float]:
    """A format in three figures: the first n for which n + 1 is stored as n; whether 65,520 is infinite; the percentage
    of a gradient that is lost."""
    whole = next(n for n in range(1, 5000) if rounding(n + 1) == n)
    return whole, bool(np.isinf(rounding(65520))), float(100 * np.mean((rounding(gradient) == 0) & (gradient != 0)))


def engine_with(*functions: Callable[..., Any], scale: float = 2.0**28) -> Any:
    """The package's engine, whose steps end with exercise.py's `apply_gradients`. From now on exercise.py has these
    functions, by their names, so that right ones call the lesson's in place of wrong ones."""
    import exercise

    vars(exercise).update({function.__name__: function for function in functions})

    class WithYours(Engine):
        state = exercise.Scale(scale)

        def apply_gradients(self) -> None:
            pieces = [exercise.Piece(flat.param, flat.grad, flat.master) for flat in self.flats]
            adam, comm = make_adam(self), cast(Comm, Alone())
            with np.errstate(over="ignore", invalid="ignore"):
                self.state = exercise.apply_gradients(comm, pieces, self.state, self.settings.clip, adam)
            self.loss_scale.scale = self.state.scale
            self.steps += 1

    return WithYours


def make_adam(trained: Any) -> Callable[[int, Array], Array]:
    """A function that returns Adam's change of a piece for its gradient. It uses the engine's moments, and counts the
    engine's updates."""

    def adam(number: int, gradient: Array) -> Array:
        trained.updates += number == 0  # called for every piece of a step, or for none
        m, v = trained.flats[number].moments
        m[...] = 0.9 * m + 0.1 * gradient
        v[...] = 0.95 * v + 0.05 * gradient**2
        m_hat, v_hat = m / (1 - 0.9**trained.updates), v / (1 - 0.95**trained.updates)
        return np.asarray(-1e-3 * m_hat / (np.sqrt(v_hat) + 1e-8), np.float32)

    return adam
