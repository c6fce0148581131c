"""The engine: one training step as a loop over the model's units, on one rank.

Every strategy is this engine with other things happening at a few places, each of them about one Flat: where its
parameters come from and when they are forgotten, where its gradient is collected and how it is reduced, and its update.
The caller sees three verbs, the ones DeepSpeed made familiar:

    loss = engine.forward(x, y)
    engine.backward(loss)
    engine.step()

The caller passes the same global batch on every rank; the engine takes its share of the rows. Here that is all of them.
"""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from minidist.nn.flat import Flat
from minidist.nn.layers import Batch, Block, Unit, flats_of
from minidist.nn.optim import AdamW, Optimizer, clipping_factor, squared_norm
from minidist.nn.precision import PRECISIONS, LossScale, Precision
from minidist.nn.tensor import Array, Kept, Tape, Tensor


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


class Segment(NamedTuple):
    """Units that keep their activations for the backward; or, with `again`, their input alone, and run again in it."""

    units: list[Unit]
    again: bool = False


def segments(units: Sequence[Unit], recompute: str) -> list[Segment]:
    """Which units run again: with full recomputation each block (Chen et al. 2016, section 3). The embedding keeps
    little, and the head's backward follows at once."""
    return [Segment([unit], recompute == "full" and isinstance(unit, Block)) for unit in units]


@dataclass(eq=False)
class Passage:
    """A micro-batch's way through a segment: what its forward leaves for its backward."""

    segment: Segment
    batch: Batch
    tapes: list[Tape] = field(default_factory=list)  # of each unit; of one that is to run again, once it has
    x: Kept | None = None  # the input, until it has run again

    @property
    def nbytes(self) -> int:
        return sum(tape.nbytes for tape in self.tapes) + (self.x.nbytes if self.x else 0)

    @property
    def of_layers(self) -> int:
        """Bytes on the tapes of those units that are blocks: the papers count a layer's activations, not the ends'."""
        tapes = zip(self.segment.units, self.tapes, strict=False)
        return sum(tape.nbytes for unit, tape in tapes if isinstance(unit, Block))


@dataclass
class Loss:
    """A forward's outcome: this rank's part of the mean loss, and what the backward needs."""

    value: float  # summed over the ranks and micro-batches of a step, the global batch's mean loss
    weight: float  # this rank's share of a step's sequences
    passages: list[Passage]


class Engine:
    """Serial training: the truth to which every other engine is compared."""

    holds_a_stage = False  # whether other ranks have other units

    def __init__(self, units: list[Unit], settings: Settings) -> None:
        self.units, self.settings, self.precision = units, settings, settings.precision
        self.segments = segments(units, settings.recompute)
        self.loss_scale = LossScale(self.precision.loss_scale)
        self.training = True  # between a forward and its backward, not in evaluate: whether a backward will come
        self.direction = "forward"  # "backward", or, forward once more for a backward, "again"
        self.micro_batch = 0  # within the step
        self.steps = self.updates = 0  # an overflow makes a step without an update
        self.passages: weakref.WeakSet[Passage] = weakref.WeakSet()  # of which a backward is still to come
        self.observed: Callable[[], None] = lambda: None  # called at every moment at which `observe` is
        self.peak = {"activations": 0, "transient": 0, "workspace": 0}  # bytes
        self.layer_activations = 0  # bytes that the blocks keep between forward and backward
        self.flats = flats_of(units)
        for flat, readers in reads(units).items():
            flat.readers, flat.to_come = readers, readers * self.accumulated
            start = flat.initial(settings.seed)  # float64 (padded,); gone when the Flat's arrays are made
            self.allocate(flat, start)
            param, _ = self.owned(flat)
            flat.master = start[self.piece(flat)].astype(self.precision.updated) if self.precision.mixed else param
            flat.moments = [np.zeros_like(flat.master) for _ in range(settings.optimizer.moments)]

    # ---- what a rank holds, and which piece of it its optimizer updates ---------------------------------------------

    def allocate(self, flat: Flat, start: Array) -> None:
        """Make the arrays for a Flat's parameters and gradients. Here: all of both."""
        flat.param = start.astype(self.precision.stored)  # (padded,)
        flat.grad = np.zeros_like(flat.param)  # (padded,)

    def piece(self, flat: Flat) -> slice:
        """Which of a Flat's elements this rank updates. Here: all."""
        return slice(0, flat.padded)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        """The parameters and gradients of that piece."""
        return flat.param, flat.grad

    def rows(self, n: int) -> range:
        """Which of a global micro-batch's n sequences are this rank's. Here: all."""
        return range(n)

    # ---- what happens to a Flat on the way through the units --------------------------------------------------------

    def parameters_of(self, flat: Flat) -> Array:
        """All of its parameters (padded,), for a unit that is about to run. Here they are here."""
        return flat.param

    def forget(self, flat: Flat) -> None:
        """No later unit of this pass reads it. Here it stays."""

    def collect(self, flat: Flat) -> None:
        """Add the gradient that a unit's backward has written to what is there."""
        flat.collect(flat.grad)

    @property
    def accumulated(self) -> int:
        """Micro-batches whose gradients add up on this rank before they are reduced. Here: all of a step's."""
        return self.settings.accumulate

    def reduce(self, flat: Flat) -> None:
        """Sum its gradient, complete on this rank, over the ranks that have a part of it. Here: no others."""

    # ---- forward ----------------------------------------------------------------------------------------------------

    def train_batch(self, x: Array, y: Array) -> float:
        """A whole step over a global batch; this rank's part of its loss."""
        loss = 0.0
        for rows in np.split(np.arange(len(x)), self.settings.accumulate):
            micro_batch = self.forward(x[rows], y[rows])
            self.backward(micro_batch)
            self.step()
            loss += micro_batch.value
        return loss

    def forward(self, x: Array, y: Array) -> Loss:
        """The loss of a global micro-batch: tokens x and targets y, integers (B, T)."""
        self.training = True
        batch = self.share_of(x, y, key=(self.settings.seed, self.steps, self.micro_batch))
        loss, passages = self.run(self.segments, batch.tokens, batch)
        self.layer_activations = kept_by_blocks(passages)
        weight = len(batch.tokens) / len(x) / self.settings.accumulate
        return Loss(self.loss_share(float(loss) * weight), weight, passages)

    def evaluate(self, x: Array, y: Array) -> float:
        """This rank's part of the mean loss over sequences x and their targets y, without dropout; keeps nothing."""
        self.training = False
        batch = self.share_of(x, y)
        loss, _ = self.run(self.segments, batch.tokens, batch, keep=False)
        return self.loss_share(float(loss) * len(batch.tokens) / len(x))

    def layers_keep(self, x: Array, y: Array, dropout: float) -> int:
        """Bytes that the blocks would keep of a micro-batch with this dropout: a forward whose tapes are dropped."""
        self.training = False
        batch = replace(self.share_of(x, y, key=(self.settings.seed, self.steps, 0)), dropout=dropout)
        _, passages = self.run(self.segments, batch.tokens, batch)
        return kept_by_blocks(passages)

    def share_of(self, x: Array, y: Array, key: tuple[int, ...] | None = None) -> Batch:
        """This rank's rows of a global micro-batch. key: what the dropout masks depend on; None: no dropout."""
        rows = self.rows(len(x))
        here = slice(rows.start, rows.stop)
        return Batch(x[here], y[here], rows.start, key, selective=self.settings.recompute == "selective")

    def loss_share(self, loss: float) -> float:
        """What this rank adds to the sum of all ranks' losses. Here: the loss of its sequences."""
        return loss

    @np.errstate(over="ignore", invalid="ignore")  # what does not fit what is stored is found in step()
    def run(
        self, segments: Sequence[Segment], x: Array, batch: Batch, keep: bool = True
    ) -> tuple[Array, list[Passage]]:
        """Forward through some segments, from x, tokens (B, T) or (B, T, C): the next ones' x, or the loss; and, to
        `keep`, what the backward needs."""
        self.direction = "forward"
        passages = []
        left = reads(unit for segment in segments for unit in segment.units)
        for segment in segments:
            passage = Passage(segment, batch)
            if keep and segment.again:
                passage.x = self.precision.store().keep(x)
            if keep:
                passages.append(passage)
                self.passages.add(passage)
            for unit in segment.units:
                tape = Tape(self.precision.store()) if keep and not segment.again else None
                if tape:
                    passage.tapes.append(tape)
                x = self.run_unit(unit, x, batch, tape, left)
        return x, passages

    def run_unit(self, unit: Unit, x: Array, batch: Batch, tape: Tape | None, left: Counter[Flat]) -> Array:
        """One unit's forward, on a tape if there is one."""
        for flat in unit.reads:
            flat.bind(self.widened(self.parameters_of(flat)))
        y = unit(tape.tensor(x) if tape else Tensor(x), batch).data
        self.observe()
        self.leave(unit, left)
        return y

    def leave(self, unit: Unit, left: Counter[Flat]) -> None:
        """The unit has run. left: how often this pass is still to read each Flat."""
        for flat in unit.reads:
            flat.release()
            left[flat] -= 1
            if left[flat] == 0:
                self.forget(flat)

    # ---- backward ---------------------------------------------------------------------------------------------------

    def backward(self, loss: Loss) -> None:
        """Add the gradients of a forward's loss, times the loss scale, to what the step has gathered so far."""
        self.run_back(loss.passages, np.asarray(loss.weight * self.loss_scale.scale, self.precision.computed))

    @np.errstate(over="ignore", invalid="ignore")
    def run_back(self, passages: Sequence[Passage], dy: Array, weights: bool = True) -> Array | None:
        """Backward through some passages, from the gradient of their output: that of their input. Without `weights`
        the gradients of matrices wait for `run_weights`."""
        left = reads(unit for passage in passages for unit in passage.segment.units)
        dx: Array | None = dy
        for passage in reversed(passages):
            x = self.run_again(passage) if passage.x else None
            self.direction = "backward"
            for unit, tape in zip(reversed(passage.segment.units), reversed(passage.tapes), strict=True):
                for flat in unit.reads:
                    flat.bind(self.widened(self.parameters_of(flat)), slopes=self.zeros(flat))
                if x is not None:  # the last unit that is to run again: its backward follows at once
                    unit(tape.tensor(x), passage.batch)
                    self.observe()
                    x = None
                assert dx is not None
                dx = tape.backward(dx, postpone_weights=not weights)
                self.collect_all(unit, tape.recomputed)
                self.leave(unit, left)
                if weights:
                    self.count(unit)
        return dx

    def run_again(self, passage: Passage) -> Array:
        """Of a segment that has kept its input alone, the forward once more, but for the last unit's: its input."""
        assert passage.x is not None
        self.direction = "again"
        x, passage.x = passage.x.fetch(), None
        units, left = passage.segment.units, reads(passage.segment.units)
        passage.tapes = [Tape(self.precision.store()) for _ in units]
        for unit, tape in zip(units[:-1], passage.tapes, strict=False):
            x = self.run_unit(unit, x, passage.batch, tape, left)
        return x

    @np.errstate(over="ignore", invalid="ignore")
    def run_weights(self, passages: Sequence[Passage]) -> None:
        """The gradients of matrices that `run_back` has left for later. They need no parameters."""
        for passage in reversed(passages):
            for unit, tape in zip(reversed(passage.segment.units), reversed(passage.tapes), strict=True):
                for flat in unit.reads:
                    flat.bind(None, slopes=self.zeros(flat))
                tape.weight_backward()
                self.collect_all(unit)
                for flat in unit.reads:
                    flat.release()
                self.count(unit)

    def collect_all(self, unit: Unit, recomputed: int = 0) -> None:
        """Collect what the unit's backward has written. A tied head comes before the embedding in a backward, and has
        written a part of its matrix's gradient."""
        for flat in unit.reads:
            self.collect(flat)
        self.observe(recomputed)

    def count(self, unit: Unit) -> None:
        """A backward less is to come for what the unit reads. Where it was the last, the gradient is complete here."""
        for flat in unit.reads:
            flat.to_come -= 1
            if flat.to_come == 0:
                self.reduce(flat)
                flat.to_come = flat.readers * self.accumulated

    # ---- step -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """After each backward. The last micro-batch's updates the parameters, unless a gradient overflowed."""
        if self.last_micro_batch:
            self.apply_gradients()
        else:
            self.micro_batch += 1

    @property
    def last_micro_batch(self) -> bool:
        """Whether the step's gradients are complete after this backward."""
        return self.micro_batch == self.settings.accumulate - 1

    @np.errstate(over="ignore", invalid="ignore")  # of parameters that have grown too large the next norm tells
    def apply_gradients(self) -> None:
        """The end of a step, whose gradients are complete on the ranks that share out the batch."""
        self.sum_over_axes()
        norm = math.sqrt(self.squared_norm()) / self.loss_scale.scale
        overflow = not math.isfinite(norm)  # the same on every rank: all have the same norm
        if overflow and not self.scaled:
            raise OverflowError(f"the gradient of step {self.steps} is not finite: lower --lr")
        if not overflow:
            scale = clipping_factor(norm, self.settings.clip) / self.loss_scale.scale
            for flat in self.flats:
                self.update(flat, scale)
            self.after_update()
            self.updates += 1
        if self.scaled:
            self.loss_scale.update(overflow)
        for flat in self.flats:
            flat.grad.fill(0)
        self.steps += 1
        self.micro_batch = 0

    @property
    def scaled(self) -> bool:
        """Whether losses are scaled, so that an overflow costs a step and not the training."""
        return self.precision.loss_scale > 1

    def sum_over_axes(self) -> None:
        """Sum gradients over ranks that have a part of them and do not share out the batch. Here: no others."""

    def squared_norm(self) -> float:
        """Σ g² over all gradients of the model: not finite if one of them overflowed."""
        return sum(squared_norm(self.owned(flat)[1]) for flat in self.flats if flat.counted)

    def update(self, flat: Flat, scale: float) -> None:
        """Let the optimizer update this rank's piece of a Flat; gradients are to be multiplied by `scale`."""
        lr = self.settings.learning_rate(self.updates)
        param, grad = self.owned(flat)
        decayed = min(max(flat.decayed - self.piece(flat).start, 0), param.size)
        self.settings.optimizer.update(
            flat.master, grad, flat.moments, scale=scale, lr=lr, step=self.updates + 1, decayed=decayed
        )
        if self.precision.mixed:
            param[...] = flat.master  # rounded to how it is stored

    def after_update(self) -> None:
        """Parameters have changed. Here everyone that needs them has them."""

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def widened(self, stored: Array) -> Array:
        """Stored values as arithmetic wants them: a float32 copy in mixed precision, otherwise they themselves."""
        return stored.astype(self.precision.computed, copy=False)

    def zeros(self, flat: Flat) -> Array:
        """For a gradient as arithmetic makes it (padded,)."""
        return np.zeros(flat.padded, self.precision.computed)

    def whole(self, flat: Flat, piece: Array) -> Array:
        """All of a Flat (padded,), from the piece of it that each rank holds. Here: the piece is all."""
        return piece

    def whole_parameters(self, flat: Flat, piece: Array) -> dict[str, Array]:
        """All of a Flat by the parameters' names, each as the model declares it, from the piece of it that each rank
        holds (of values, gradients or optimizer state). All ranks must call."""
        return {parameter.name: parameter.whole(view) for parameter, view in flat.views(self.whole(flat, piece))}

    def gathered(self, named: dict[str, Array]) -> dict[str, Array]:
        """On rank 0, arrays of all units by name, from the ranks that have them. Here: it has them all."""
        return named

    def counted(self) -> dict[str, Any]:
        """What else this rank has counted, for its chapter's claims."""
        return {"layer_activations": self.layer_activations}

    def observe(self, recomputed: int = 0) -> None:
        """Note how much of what comes and goes is held at this moment, `recomputed` bytes of activations among it."""
        stored = [a for flat in self.flats for a in (flat.param, flat.gathered, flat.bucket)]
        now = {
            "activations": sum(passage.nbytes for passage in self.passages) + recomputed,
            "transient": held(a for flat in self.flats for a in (flat.gathered, flat.bucket)),
            "workspace": held((a for flat in self.flats for a in (flat.values, flat.slopes)), besides=stored),
        }
        self.peak = {name: max(peak, now[name]) for name, peak in self.peak.items()}
        self.observed()

    def memory(self) -> dict[str, int]:
        """Bytes that this rank holds for good, and the most that it held at any moment of what comes and goes.

        transient: parameters gathered for one unit, gradients not yet reduced. workspace: a unit's parameters and
        gradients as arithmetic sees them, where that is wider than they are stored. Not counted: the messages in
        transit, up to two chunks of (padded/N,) while a ring runs.
        """
        params = [flat.param for flat in self.flats]
        return {
            "parameters": held(params),
            "gradients": held(flat.grad for flat in self.flats),
            "optimizer": held((a for flat in self.flats for a in (flat.master, *flat.moments)), besides=params),
            **{f"{name}_peak": nbytes for name, nbytes in self.peak.items()},
        }


def kept_by_blocks(passages: Iterable[Passage]) -> int:
    """Bytes that are kept by those segments that are a block."""
    return sum(passage.nbytes for passage in passages if isinstance(passage.segment.units[0], Block))


def reads(units: Iterable[Unit]) -> Counter[Flat]:
    """How often the units read each Flat, all together."""
    return Counter(flat for unit in units for flat in unit.reads)


def held(arrays: Iterable[Array | None], besides: Iterable[Array | None] = ()) -> int:
    """Bytes of memory behind some arrays: views of one array count once, and for all of it; `besides` do not count."""
    owners = {id(owner): owner.nbytes for owner in map(_owner, arrays) if owner is not None}
    return sum(nbytes for key, nbytes in owners.items() if key not in {id(_owner(array)) for array in besides})


def _owner(array: Array | None) -> Array | None:
    """The array that owns the memory which `array` shows."""
    while array is not None and isinstance(array.base, np.ndarray):
        array = array.base
    return array
