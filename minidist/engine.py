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
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from minidist.memory.link import Link
from minidist.memory.pool import Pool
from minidist.memory.recompute import Segment, divide
from minidist.nn.flat import Flat
from minidist.nn.layers import Batch, Block, Unit, flats_of
from minidist.nn.optim import AdamW, Optimizer, clipping_factor, squared_norm
from minidist.nn.precision import PRECISIONS, LossScale, Precision
from minidist.nn.tensor import Array, Kept, Store, Tape, Tensor

JOINT = {"transient": ("gathered", "bucket"), "kept": ("activations", "ends")}  # kinds of which one peak is wanted


@dataclass
class Settings:
    """What a step needs to know besides model and data."""

    precision: Precision = PRECISIONS["mixed"]
    optimizer: Optimizer = field(default_factory=AdamW)
    learning_rate: Callable[[int], float] = lambda update: 1e-3  # of the update's number, from 0
    clip: float = 1.0  # the largest norm of all gradients together; 0: no clipping
    accumulate: int = 1  # micro-batches to an update
    bucket_size: int | None = None  # elements of gradients that are summed over ranks at once; None: those of a unit
    recompute: str = "none"  # what the backward computes again instead of keeping it: `minidist/memory/recompute.py`
    seed: int = 0
    capacity: int | None = None  # bytes that a rank's device can hold, workspace apart; more is an OutOfMemory
    host_capacity: int | None = None  # and its part of the host's memory
    disk_capacity: int | None = None  # and of a disk's room, where one is used


def segments(units: Sequence[Unit], recompute: str) -> list[Segment]:
    """Which units keep their activations and which run again. That is about blocks: the embedding keeps little, and the
    head's backward follows at once."""
    blocks = [unit for unit in units if isinstance(unit, Block)]
    first = units.index(blocks[0]) if blocks else len(units)
    before, after = units[:first], units[first + len(blocks) :]
    return [*divide(before, "none"), *divide(blocks, recompute), *divide(after, "none")]


@dataclass(eq=False)
class Passage:
    """A micro-batch's way through a segment: what its forward leaves for its backward."""

    segment: Segment
    batch: Batch
    tape: Tape | None = None  # of a unit that keeps its activations
    x: Kept | None = None  # the input of a segment that is to run again
    within: "list[Passage]" = field(default_factory=list)  # ... once it does
    start: Array | None = None  # the input of a unit that runs just before its own backward

    @property
    def tapes(self) -> list[tuple[Unit, Tape]]:
        """All that there are now, in order, with their units."""
        inner = [pair for passage in self.within for pair in passage.tapes]
        return [(self.segment.units[0], self.tape)] if self.tape else inner


@dataclass
class Loss:
    """A forward's outcome: this rank's part of the mean loss, and what the backward needs."""

    value: float  # summed over the ranks and micro-batches of a step, the global batch's mean loss
    weight: float  # this rank's share of a step's sequences
    passages: list[Passage]


class Engine:
    """Serial training: the truth to which every other engine is compared."""

    holds_a_stage = False  # whether other ranks have other units
    updates_on = "device"  # in which memory the optimizer works: or "host"

    def __init__(self, units: list[Unit], settings: Settings) -> None:
        self.units, self.settings, self.precision = units, settings, settings.precision
        self.segments = segments(units, settings.recompute)
        self.loss_scale = LossScale(self.precision.loss_scale)
        self.training = True  # between a forward and its backward, not in evaluate: whether a backward will come
        self.direction = "forward"  # "backward", or, forward once more for a backward, "again"
        self.micro_batch = 0  # within the step
        self.steps = self.updates = 0  # an overflow makes a step without an update
        self.make_memories()
        self.checkpoints: Store | None = None  # for inputs of what runs again, if a tape's store is not for them
        self.states = self.host if self.updates_on == "host" else self.device  # what only the update needs is there
        self.layer_activations = 0  # bytes that the layers keep between forward and backward
        self.flats = flats_of(units)
        for flat, readers in reads(units).items():
            flat.readers, flat.to_come = readers, readers * self.accumulated
            flat.device = self.device
            self.make_arrays(flat)

    # ---- what a rank holds, and which piece of it its optimizer updates ---------------------------------------------

    def make_memories(self) -> None:
        """This rank's memories, the fastest first, and the links between them."""
        self.device = Pool("device", self.settings.capacity, JOINT)  # what this rank holds
        self.host = Pool("host", self.settings.host_capacity, JOINT, beside=self.device)  # and what it has moved there
        self.link = Link(self.device, self.host)
        self.pools, self.links = [self.device, self.host], [self.link]

    def make_arrays(self, flat: Flat) -> None:
        """All that is held of a Flat for good."""
        start = self.device.hold("workspace", flat.initial(self.settings.seed))  # float64 (padded,)
        self.allocate(flat, start)
        flat.master, _ = self.owned(flat)
        if self.precision.mixed or self.states is not self.device:
            kind = "optimizer" if self.precision.mixed else "parameters"
            flat.master = self.states.hold(kind, start[self.piece(flat)].astype(self.precision.updated))
        like = flat.master.size, flat.master.dtype
        flat.moments = [self.states.zeros("optimizer", *like) for _ in range(self.settings.optimizer.moments)]

    def allocate(self, flat: Flat, start: Array) -> None:
        """Make the arrays for a Flat's parameters and gradients. Here: all of both."""
        flat.param = self.device.hold("parameters", start.astype(self.precision.stored))  # (padded,)
        flat.grad = self.device.zeros("gradients", flat.padded, self.precision.stored)  # (padded,)

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
        for part in zip(*(np.split(tokens, self.settings.accumulate) for tokens in (x, y)), strict=True):
            micro_batch = self.forward(*part)
            self.backward(micro_batch)
            self.step()
            loss += micro_batch.value
        return loss

    def forward(self, x: Array, y: Array) -> Loss:
        """The loss of a global micro-batch: tokens x and targets y, integers (B, T)."""
        self.training = True
        batch = self.share_of(x, y, key=(self.settings.seed, self.steps, self.micro_batch))
        loss, passages = self.run(self.segments, batch.tokens, batch)
        self.layer_activations = self.device.held["activations"]
        weight = len(batch.tokens) / len(x) / self.settings.accumulate
        return Loss(self.loss_share(float(loss) * weight), weight, passages)

    def evaluate(self, x: Array, y: Array) -> float:
        """This rank's part of the mean loss over sequences x and their targets y, without dropout; keeps nothing."""
        self.training = False
        batch = self.share_of(x, y)
        loss, _ = self.run(self.segments, batch.tokens, batch, keep=False)
        return self.loss_share(float(loss) * len(batch.tokens) / len(x))

    def layers_keep(self, x: Array, y: Array, dropout: float) -> int:
        """Bytes that the layers would keep of a micro-batch with this dropout: a forward whose tapes are dropped."""
        self.training = False
        batch = replace(self.share_of(x, y, key=(self.settings.seed, self.steps, 0)), dropout=dropout)
        _kept = self.run(self.segments, batch.tokens, batch)
        return self.device.held["activations"]

    def share_of(self, x: Array, y: Array, key: tuple[int, ...] | None = None) -> Batch:
        """This rank's rows of a global micro-batch. key: what the dropout masks depend on; None: no dropout."""
        rows = self.rows(len(x))
        x, y = (self.passing(tokens[rows.start : rows.stop]) for tokens in (x, y))
        return Batch(x, y, rows.start, key, selective=self.settings.recompute == "selective")

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
        return self.run_through(segments, x, batch, keep, reads(all_units(segments)))

    def run_through(
        self, segments: Sequence[Segment], x: Array, batch: Batch, keep: bool, left: Counter[Flat]
    ) -> tuple[Array, list[Passage]]:
        """As `run`. left: how often this pass is still to read each Flat."""
        passages = []
        for segment in segments:
            passage = Passage(segment, batch)
            if keep:
                passages.append(passage)
                store = self.store_of(segment.units[0])
                if segment.within:
                    passage.x = (self.checkpoints or store).keep(x)
                else:
                    passage.tape = Tape(store)
            for unit in segment.units:
                x = self.run_unit(unit, x, batch, passage.tape, left)
        return x, passages

    def run_unit(self, unit: Unit, x: Array, batch: Batch, tape: Tape | None, left: Counter[Flat]) -> Array:
        """One unit's forward, on a tape if there is one."""
        self.device.doing = f"in {unit.name}, {self.direction}"
        for flat in unit.reads:
            flat.bind(self.widened(self.parameters_of(flat)))
        if tape is None and self.device.arena:  # in a memory with addresses what passes lies somewhere as well
            tape = Tape(self.store_of(unit), keeps=False)
        y = self.passing(unit(tape.tensor(x) if tape else Tensor(x), batch).data)
        self.leave(unit, left)
        self.device.mark("unit", f"{unit.name} {self.direction}")
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
        left = reads(all_units(passage.segment for passage in passages))
        dx: Array | None = dy
        waiting = list(passages)
        while waiting:
            passage = waiting.pop()
            if passage.x:  # what it is made of comes next
                waiting += self.run_again(passage)
                continue
            self.direction = "backward"
            [unit], tape = passage.segment.units, passage.tape
            assert tape is not None
            assert dx is not None
            self.device.doing = f"in {unit.name}, backward"
            for flat in unit.reads:
                flat.bind(self.widened(self.parameters_of(flat)), slopes=self.slopes_of(flat))
            if passage.start is not None:
                unit(tape.tensor(passage.start), passage.batch)
                passage.start = None
            dx = tape.backward(dx, postpone_weights=not weights)
            self.collect_all(unit)
            self.leave(unit, left)
            if weights:
                self.count(unit)
            self.device.mark("unit", f"{unit.name} backward")
        return dx

    def run_again(self, passage: Passage) -> list[Passage]:
        """Of a segment that has kept its input alone, the forward once more, and what it leaves. The last unit's own is
        left to its backward, which follows at once: so its parameters come, and go, once for both."""
        assert passage.x is not None
        x, passage.x = self.passing(passage.x.fetch()), None
        *segments, last = passage.segment.within
        self.direction = "again"
        x, passage.within = self.run_through(segments, x, passage.batch, True, reads(passage.segment.units))
        tape = Tape(self.store_of(last.units[0]))
        passage.within.append(Passage(last, passage.batch, tape, start=x))
        return passage.within

    @np.errstate(over="ignore", invalid="ignore")
    def run_weights(self, passages: Sequence[Passage]) -> None:
        """The gradients of matrices that `run_back` has left for later. They need no parameters."""
        for unit, tape in reversed([pair for passage in passages for pair in passage.tapes]):
            self.device.doing = f"in {unit.name}, weights"
            for flat in unit.reads:
                flat.bind(None, slopes=self.slopes_of(flat))
            tape.weight_backward()
            self.collect_all(unit)
            for flat in unit.reads:
                flat.release()
            self.count(unit)
            self.device.mark("unit", f"{unit.name} weights")

    def collect_all(self, unit: Unit) -> None:
        """Collect what the unit's backward has written. A tied head comes before the embedding in a backward, and has
        written a part of its matrix's gradient."""
        for flat in unit.reads:
            self.collect(flat)

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
        self.device.doing = "in the update"
        self.sum_over_axes()
        norm = math.sqrt(self.squared_norm()) / self.loss_scale.scale
        overflow = not math.isfinite(norm)  # the same on every rank: all have the same norm
        if overflow and not self.scaled:
            raise OverflowError(f"the gradient of step {self.steps} is not finite: lower --lr")
        if not overflow:
            scale = clipping_factor(norm, self.settings.clip) / self.loss_scale.scale
            self.update_all(scale)
        if self.scaled:
            self.loss_scale.update(overflow)
        for flat in self.flats:
            flat.grad.fill(0)
        self.steps += 1
        self.micro_batch = 0
        self.device.mark("step", "update")

    @property
    def scaled(self) -> bool:
        """Whether losses are scaled, so that an overflow costs a step and not the training."""
        return self.precision.loss_scale > 1

    def sum_over_axes(self) -> None:
        """Sum gradients over ranks that have a part of them and do not share out the batch. Here: no others."""

    def squared_norm(self) -> float:
        """Σ g² over all gradients of the model: not finite if one of them overflowed."""
        return sum(squared_norm(self.owned(flat)[1]) for flat in self.flats if flat.counted)

    def update_all(self, scale: float) -> None:
        """The update of all that this rank owns, and whatever makes it known; gradients are to be multiplied by
        `scale`."""
        for flat in self.flats:
            self.update(flat, self.owned(flat)[1], scale)
            self.refresh(flat)
        self.after_update()
        self.updates += 1

    def update(self, flat: Flat, grad: Array, scale: float) -> None:
        """Let the optimizer update this rank's piece of a Flat, by the gradient of that piece."""
        lr = self.settings.learning_rate(self.updates)
        decayed = min(max(flat.decayed - self.piece(flat).start, 0), flat.master.size)
        self.settings.optimizer.update(
            flat.master, grad, flat.moments, scale=scale, lr=lr, step=self.updates + 1, decayed=decayed
        )

    def refresh(self, flat: Flat) -> None:
        """The parameters of this rank's piece as they are stored, from what the optimizer has updated."""
        if self.precision.mixed:
            param, _ = self.owned(flat)
            param[...] = flat.master  # rounded

    def after_update(self) -> None:
        """Parameters have changed. Here everyone that needs them has them."""

    def settle(self) -> None:
        """Let what runs beside the steps come to its end: before a look from outside. Here nothing does."""

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def widened(self, stored: Array) -> Array:
        """Stored values as arithmetic wants them: a float32 copy in mixed precision, otherwise they themselves."""
        return self.passing(stored.astype(self.precision.computed, copy=False))

    def slopes_of(self, flat: Flat) -> Array:
        """Zeros for a gradient as arithmetic makes it (padded,)."""
        return self.device.zeros("workspace", flat.padded, self.precision.computed)

    def passing(self, array: Array) -> Array:
        """Something that arithmetic needs on its way; what is held for another reason keeps its name."""
        return self.device.hold("workspace", array, rename=False)

    def store_of(self, unit: Unit) -> Store:
        """Where a unit's tape keeps activations. The papers count those of layers, and of the model's ends apart."""
        store = self.precision.store(self.device, "activations" if isinstance(unit, Block) else "ends")
        store.checkpoints = self.checkpoints
        return store

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

    def memory(self) -> dict[str, int]:
        """The most bytes that this rank has held at any moment, by kind (`minidist/memory/pool.py`), and together of
        what is here in passing, gathered or in a bucket ("transient"), and of what waits for a backward ("kept")."""
        return self.device.peak


def all_units(segments: Iterable[Segment]) -> Iterable[Unit]:
    """Of some segments, in order."""
    return chain.from_iterable(segment.units for segment in segments)


def reads(units: Iterable[Unit]) -> Counter[Flat]:
    """How often the units read each Flat, all together."""
    return Counter(flat for unit in units for flat in unit.reads)
