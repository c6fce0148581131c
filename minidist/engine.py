"""The engine: one training step as a loop over the model's units, on one rank.

Every strategy is this engine with other things happening at four places (before and after a unit's forward, before and
after a unit's backward) and in `step`. The caller sees three verbs, the ones DeepSpeed made familiar:

    loss = engine.forward(x, y)
    engine.backward(loss)
    engine.step()

The caller passes the same global batch on every rank; the engine takes its share of the rows. Here that is all of them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minidist.nn.flat import Flat
from minidist.nn.layers import Batch, Block, Unit
from minidist.nn.optim import AdamW, Optimizer, clipping_factor, squared_norm
from minidist.nn.precision import PRECISIONS, LossScale, Precision
from minidist.nn.tensor import Array, Tape, Tensor, recomputed


@dataclass
class Settings:
    """What a step needs to know besides model and data."""

    precision: Precision = PRECISIONS["mixed"]
    optimizer: Optimizer = field(default_factory=AdamW)
    learning_rate: Callable[[int], float] = lambda update: 1e-3  # of the update's number, from 0
    clip: float = 1.0  # the largest norm of all gradients together; 0: no clipping
    accumulate: int = 1  # micro-batches to an update
    recompute: str = "none"  # what the backward computes again instead of keeping it: none, selective, full
    seed: int = 0


@dataclass
class Loss:
    """A forward's outcome: this rank's part of the mean loss, and what the backward needs."""

    value: float  # summed over the ranks and micro-batches of a step, the global batch's mean loss
    weight: float  # this rank's share of a step's sequences
    tapes: list[Tape]


class Engine:
    """Serial training: the truth to which every other engine is compared."""

    shards = 1  # every unit's flat buffer is padded to a multiple of this
    holds_a_stage = False  # whether other ranks have other units

    def __init__(self, units: list[Unit], settings: Settings) -> None:
        self.units, self.settings, self.precision = units, settings, settings.precision
        self.loss_scale = LossScale(65536.0 if self.precision.mixed else 1.0)
        self.training = True  # between a forward and its backward, not in evaluate: whether a backward will come
        self.micro_batch = 0  # within the step
        self.steps = self.updates = 0  # an overflow makes a step without an update
        self.peak = {"activations": 0, "transient": 0, "workspace": 0}  # bytes
        self.layer_activations = 0  # bytes that the blocks' tapes keep between forward and backward
        self.flats = {unit: Flat(unit, self.shards) for unit in units}
        for flat in self.flats.values():
            start = flat.initial(settings.seed)  # float64 (padded,); gone when the unit's arrays are made
            self.allocate(flat, start)
            param, _ = self.owned(flat)
            flat.master = start[self.piece(flat)].astype(self.precision.updated) if self.precision.mixed else param
            flat.moments = [np.zeros_like(flat.master) for _ in range(settings.optimizer.moments)]

    # ---- what a rank holds, and which piece of it its optimizer updates ---------------------------------------------

    def allocate(self, flat: Flat, start: Array) -> None:
        """Make the arrays for a unit's parameters and gradients. Here: all of both."""
        flat.param = start.astype(self.precision.stored)  # (padded,)
        flat.grad = np.zeros_like(flat.param)  # (padded,)

    def piece(self, flat: Flat) -> slice:
        """Which elements of the unit this rank updates. Here: all."""
        return slice(0, flat.padded)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        """The parameters and gradients of that piece."""
        return flat.param, flat.grad

    def rows(self, n: int) -> range:
        """Which of a global micro-batch's n sequences are this rank's. Here: all."""
        return range(n)

    # ---- a step -----------------------------------------------------------------------------------------------------

    def train_batch(self, x: Array, y: Array) -> float:
        """A whole step over a global batch; this rank's part of its loss."""
        loss = 0.0
        for rows in np.split(np.arange(len(x)), self.settings.accumulate):
            micro_batch = self.forward(x[rows], y[rows])
            self.backward(micro_batch)
            self.step()
            loss += micro_batch.value
        return loss

    # ---- forward ----------------------------------------------------------------------------------------------------

    def forward(self, x: Array, y: Array) -> Loss:
        """The loss of a global micro-batch: tokens x and targets y, integers (B, T)."""
        self.training = True
        rows = self.rows(len(x))
        here = slice(rows.start, rows.stop)
        key = (self.settings.seed, self.steps, self.micro_batch)
        selective = self.settings.recompute == "selective"
        batch = Batch(x[here], y[here], first=rows.start, key=key, selective=selective)
        tapes = [Tape(np.float16 if self.precision.mixed else None) for _ in self.units]
        h = batch.tokens  # (B, T), then (B, T, C) from unit to unit, then the loss
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit float16 is found in step()
            for unit, tape in zip(self.units, tapes, strict=True):
                self.before_forward(unit)
                h = self.run_unit(unit, tape.tensor(h), batch).data
                self.observe(tapes)
                self.after_forward(unit)
        self.layer_activations = kept_by_blocks(self.units, tapes)
        weight = len(rows) / len(x) / self.settings.accumulate
        return Loss(self.loss_share(float(h) * weight), weight, tapes)

    def run_unit(self, unit: Unit, x: Tensor, batch: Batch) -> Tensor:
        """A unit's forward. With full recomputation a block keeps its input alone, and runs again in the backward."""
        if self.settings.recompute == "full" and isinstance(unit, Block):
            return recomputed(lambda x: unit(x, batch), x)
        return unit(x, batch)

    def evaluate(self, x: Array, y: Array) -> float:
        """This rank's part of the mean loss over sequences x and their targets y, without dropout; keeps nothing."""
        self.training = False
        rows = self.rows(len(x))
        here = slice(rows.start, rows.stop)
        batch = Batch(x[here], y[here])
        h = batch.tokens
        with np.errstate(over="ignore", invalid="ignore"):
            for unit in self.units:
                self.before_forward(unit)
                h = unit(Tensor(h), batch).data
                self.after_forward(unit)
        return self.loss_share(float(h) * len(rows) / len(x))

    def loss_share(self, loss: float) -> float:
        """What this rank adds to the sum of all ranks' losses. Here: the loss of its sequences."""
        return loss

    def before_forward(self, unit: Unit) -> None:
        for flat in self.read_by(unit):
            flat.bind(self.widened(flat.param))

    def after_forward(self, unit: Unit) -> None:
        for flat in self.read_by(unit):
            flat.release()

    # ---- backward ---------------------------------------------------------------------------------------------------

    def backward(self, loss: Loss) -> None:
        """Add the gradients of a forward's loss, times the loss scale, to what the step has gathered so far."""
        dh: Array | None = np.asarray(loss.weight * self.loss_scale.scale, self.precision.computed)
        with np.errstate(over="ignore", invalid="ignore"):
            for unit in reversed(self.units):
                tape = loss.tapes.pop()
                self.before_backward(unit)
                assert dh is not None
                dh = tape.backward(dh)
                self.observe(loss.tapes, tape.recomputed)
                self.after_backward(unit)

    def before_backward(self, unit: Unit) -> None:
        for flat in self.read_by(unit):
            flat.bind(self.widened(flat.param), slopes=np.zeros(flat.padded, self.precision.computed))

    def after_backward(self, unit: Unit) -> None:
        """Add to the step's gradients. After the last micro-batch the unit's own is complete: a tied head, which leaves
        its part of the embedding's in the embedding, comes before it in a backward."""
        for flat in self.read_by(unit):
            flat.collect(flat.grad)
            flat.release()
        if self.last_micro_batch:
            self.reduce(self.flats[unit])

    def reduce(self, flat: Flat) -> None:
        """Sum a unit's gradient, complete on this rank, over the ranks that have a part of it. Here: no others."""

    @property
    def last_micro_batch(self) -> bool:
        """Whether the step's gradients are complete after this backward."""
        return self.micro_batch == self.settings.accumulate - 1

    # ---- step -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """After each backward. The last micro-batch's updates the parameters, unless a gradient overflowed."""
        if not self.last_micro_batch:
            self.micro_batch += 1
            return
        norm = math.sqrt(self.squared_norm()) / self.loss_scale.scale
        overflow = not math.isfinite(norm)  # the same on every rank: all have the same norm
        if overflow and not self.precision.mixed:
            raise OverflowError(f"the gradient of step {self.steps} is not finite: lower --lr")
        if not overflow:
            self.update(clipping_factor(norm, self.settings.clip) / self.loss_scale.scale)
            self.after_update()
            self.updates += 1
        if self.precision.mixed:
            self.loss_scale.update(overflow)
        for flat in self.flats.values():
            flat.grad.fill(0)
        self.steps += 1
        self.micro_batch = 0

    def squared_norm(self) -> float:
        """Σ g² over all gradients of the model: not finite if one of them overflowed."""
        return sum(self.squares(flat, self.owned(flat)[1], self.piece(flat)) for flat in self.flats.values())

    def squares(self, flat: Flat, grad: Array, piece: slice) -> float:
        """Σ g² over a piece of a unit's gradients, as far as this rank is to count it. Here: all of it."""
        return squared_norm(grad)

    def update(self, scale: float) -> None:
        """Let the optimizer update this rank's piece of every unit; gradients are to be multiplied by `scale`."""
        lr = self.settings.learning_rate(self.updates)
        for flat in self.flats.values():
            param, grad = self.owned(flat)
            decayed = min(max(flat.decayed - self.piece(flat).start, 0), param.size)
            self.settings.optimizer.update(
                flat.master, grad, flat.moments, scale=scale, lr=lr, step=self.updates + 1, decayed=decayed
            )
            if self.precision.mixed:
                param[...] = flat.master  # rounded to float16

    def after_update(self) -> None:
        """Parameters have changed. Here everyone that needs them has them."""

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def read_by(self, unit: Unit) -> list[Flat]:
        """The flat parameters that a unit uses: its own, and for a tied head the embedding's as well."""
        return [self.flats[other] for other in unit.reads]

    def widened(self, stored: Array) -> Array:
        """Stored values as arithmetic wants them: a float32 copy in mixed precision, otherwise they themselves."""
        return stored.astype(self.precision.computed, copy=False)

    def whole(self, flat: Flat, piece: Array) -> Array:
        """All of a unit (padded,), from the piece of it that each rank holds. Here: the piece is all."""
        return piece

    def gathered(self, named: dict[str, Array]) -> dict[str, Array]:
        """Arrays of all units by name, on rank 0, from the ranks that have them. Here: every rank has them all."""
        return named

    def counted(self) -> dict[str, Any]:
        """What else this rank has counted, for its chapter's claims."""
        return {}

    def whole_parameters(self, flat: Flat, piece: Array) -> dict[str, Array]:
        """All of a unit by the parameters' names, each as the model declares it, from the piece of it that each rank
        holds (of values, gradients or optimizer state). All ranks must call."""
        return {parameter.name: view for parameter, view in flat.views(self.whole(flat, piece))}

    def observe(self, tapes: Sequence[Tape] = (), recomputed: int = 0) -> None:
        """Note how much of what comes and goes is held at this moment, `recomputed` bytes of activations among it."""
        flats = self.flats.values()
        stored = [a for flat in flats for a in (flat.param, flat.gathered, flat.bucket)]
        now = {
            "activations": sum(tape.nbytes for tape in tapes) + recomputed,
            "transient": held(a for flat in flats for a in (flat.gathered, flat.bucket)),
            "workspace": held((a for flat in flats for a in (flat.values, flat.slopes)), besides=stored),
        }
        self.peak = {name: max(peak, now[name]) for name, peak in self.peak.items()}

    def memory(self) -> dict[str, int]:
        """Bytes that this rank holds for good, and the most that it held at any moment of what comes and goes.

        transient: parameters gathered for one unit, gradients not yet reduced. workspace: a unit's parameters and
        gradients as arithmetic sees them, where that is wider than they are stored. Not counted: the messages in
        transit, up to two chunks of (padded/N,) while a ring runs.
        """
        flats = self.flats.values()
        params = [flat.param for flat in flats]
        return {
            "parameters": held(params),
            "gradients": held(flat.grad for flat in flats),
            "optimizer": held((a for flat in flats for a in (flat.master, *flat.moments)), besides=params),
            **{f"{name}_peak": nbytes for name, nbytes in self.peak.items()},
        }


def kept_by_blocks(units: Sequence[Unit], tapes: Sequence[Tape]) -> int:
    """Bytes on the tapes of those units that are blocks: the papers count a layer's activations, and not the ends'."""
    return sum(tape.nbytes for unit, tape in zip(units, tapes, strict=True) if isinstance(unit, Block))


def held(arrays: Iterable[Array | None], besides: Iterable[Array | None] = ()) -> int:
    """Bytes of memory behind some arrays: views of one array count once, and for all of it; `besides` do not count."""
    owners = {id(owner): owner.nbytes for owner in map(_owner, arrays) if owner is not None}
    return sum(nbytes for key, nbytes in owners.items() if key not in {id(_owner(array)) for array in besides})


def _owner(array: Array | None) -> Array | None:
    """The array that owns the memory which `array` shows."""
    while array is not None and isinstance(array.base, np.ndarray):
        array = array.base
    return array
