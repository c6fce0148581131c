"""The way through the units: forward and backward as loops over the model's units, each on a tape of its own.

The engine (`minidist/engine.py`) decides what happens to a unit's Flats on the way; the loops here call it at the right
moments. A segment keeps its activations, or only its input, and is then recomputed (`minidist/memory/recompute.py`).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from minidist.memory.pool import Pool
from minidist.memory.recompute import Segment, Turn, divide, way_back
from minidist.nn.flat import Flat
from minidist.nn.layers import Batch, Block, Unit
from minidist.nn.precision import Precision
from minidist.nn.tensor import Array, Kept, Store, Tape, Tensor


def segments(units: Sequence[Unit], recompute: str) -> list[Segment]:
    """Which units keep their activations and which are recomputed. Only blocks ever are: the embedding keeps little,
    and the head's backward follows its forward at once."""
    blocks = [unit for unit in units if isinstance(unit, Block)]
    first = units.index(blocks[0]) if blocks else len(units)
    before, after = units[:first], units[first + len(blocks) :]
    return [*divide(before, "none"), *divide(blocks, recompute), *divide(after, "none")]


@dataclass(eq=False)
class Taped:
    """A micro-batch's pass through a unit that keeps its activations."""

    unit: Unit
    batch: Batch
    tape: Tape
    start: Array | None = None  # the unit's input, if its forward runs only now, just before its backward

    @property
    def tapes(self) -> list[tuple[Unit, Tape]]:
        """The tapes that exist now, in order, each with its unit."""
        return [(self.unit, self.tape)]


@dataclass(eq=False)
class Rerun:
    """A micro-batch's pass through a segment that keeps only its input, and is recomputed before its backward."""

    segment: Segment
    batch: Batch
    x: Kept  # the input, until then
    within: "list[Passage]" = field(default_factory=list)  # its passages, from then on

    @property
    def tapes(self) -> list[tuple[Unit, Tape]]:
        return [pair for passage in self.within for pair in passage.tapes]


Passage = Taped | Rerun  # what a forward leaves for its backward


class Passes:
    """Forward and backward. An engine inherits this and says what else happens."""

    device: Pool
    precision: Precision
    passed: Counter[int]  # by a batch's first sequence: tokens that ran forward, once for each unit
    checkpoints: Store | None = None  # holds the inputs of recomputed segments; None: a tape's store does
    direction = "forward"  # or "backward", or "again": a forward that is recomputed for a backward

    # ---- what the loops ask an engine -------------------------------------------------------------------------------

    def expect(self, turns: Sequence[Turn]) -> None:
        """A pass begins; these units will run in it. By default nothing has to be prepared."""

    def parameters_of(self, flat: Flat) -> Array:
        """All parameters of a Flat (padded,); a unit that reads it is about to run."""
        raise NotImplementedError

    def forget(self, flat: Flat) -> None:
        """Drop its parameters: no later unit of this pass reads it."""

    def collect(self, flat: Flat) -> None:
        """A unit's backward has written its part of the gradient."""
        raise NotImplementedError

    def reduce(self, flat: Flat) -> None:
        """Reduce its gradient: the last backward that adds to it has run, so it is complete on this rank."""

    def backwards(self, flat: Flat) -> int:
        """How many backwards add to a Flat's gradient until it is complete."""
        raise NotImplementedError

    # ---- forward ----------------------------------------------------------------------------------------------------

    @np.errstate(over="ignore", invalid="ignore")  # step() finds values that overflow the stored dtype
    def run(
        self, segments: Sequence[Segment], x: Array, batch: Batch, keep: bool = True
    ) -> tuple[Array, list[Passage]]:
        """Forward through some segments, from x: tokens (B, T) or activations (B, T, C). Returns the next segment's x,
        or the loss; and, with `keep`, what the backward needs. What units add to the loss is in `batch.losses`."""
        self.direction = "forward"
        batch.losses.clear()
        self.expect([Turn(unit, "forward", 1) for unit in all_units(segments)])
        return self.run_through(segments, x, batch, keep, count_reads(all_units(segments)))

    def run_through(
        self, segments: Sequence[Segment], x: Array, batch: Batch, keep: bool, left: Counter[Flat]
    ) -> tuple[Array, list[Passage]]:
        """Like `run`. left: how often this pass will still read each Flat."""
        passages: list[Passage] = []
        for segment in segments:
            tape, store = None, self.store_of(segment.units[0])
            if keep and segment.within:
                passages.append(Rerun(segment, batch, (self.checkpoints or store).keep(x)))
            elif keep:
                tape = Tape(store)
                passages.append(Taped(segment.units[0], batch, tape))
            for unit in segment.units:
                x = self.run_unit(unit, x, batch, tape, left)
        return x, passages

    def run_unit(self, unit: Unit, x: Array, batch: Batch, tape: Tape | None, left: Counter[Flat]) -> Array:
        """Run one unit's forward, on a tape if there is one."""
        if self.direction == "forward":
            self.passed[batch.first] += batch.tokens.size
        self.device.doing = f"in {unit.name}, {self.direction}"
        for flat in unit.reads:
            flat.bind(self.widened(self.parameters_of(flat)))
        if tape is None and self.device.arena:  # with an arena, temporary arrays need an address, too
            tape = Tape(self.store_of(unit), keeps=False)
        y = self.as_workspace(unit(tape.tensor(x) if tape else Tensor(x), batch).data)
        self.leave(unit, left)
        self.device.mark("unit", f"{unit.name} {self.direction}")
        return y

    def leave(self, unit: Unit, left: Counter[Flat]) -> None:
        """The unit has run. left: how often this pass will still read each Flat."""
        for flat in unit.reads:
            flat.release()
            left[flat] -= 1
            if left[flat] == 0:
                self.forget(flat)

    # ---- backward ---------------------------------------------------------------------------------------------------

    @np.errstate(over="ignore", invalid="ignore")
    def run_back(
        self, passages: Sequence[Passage], dy: Array, weights: bool = True, dloss: Array | None = None
    ) -> Array | None:
        """Backward through some passages: from the gradient of their output to the gradient of their input. Without
        `weights`, the gradients of matrices wait for `run_weights`. dloss: the gradient of the loss, to which units may
        add something; if it is their output, that is dy."""
        segments = [Segment([at.unit]) if isinstance(at, Taped) else at.segment for at in passages]
        self.expect([turn for segment in reversed(segments) for turn in way_back(segment)])
        left = count_reads(all_units(segments))
        dx: Array | None = dy
        waiting = list(passages)
        while waiting:
            passage = waiting.pop()
            if isinstance(passage, Rerun):  # the passages within it come next
                waiting += self.run_again(passage)
                continue
            self.direction = "backward"
            unit, tape = passage.unit, passage.tape
            assert dx is not None  # only tokens, the first unit's input, have no gradient
            self.device.doing = f"in {unit.name}, backward"
            for flat in unit.reads:
                flat.bind(self.widened(self.parameters_of(flat)), raw_grad=self.gradient_buffer(flat))
            if passage.start is not None:
                unit(tape.tensor(passage.start), passage.batch)
                passage.start = None
            dx = tape.backward(dx, not weights, dy if dloss is None else dloss)
            self.collect_all(unit)
            self.leave(unit, left)
            if weights:
                self.count(unit)
            self.device.mark("unit", f"{unit.name} backward")
        return dx

    def run_again(self, passage: Rerun) -> list[Passage]:
        """Run the forward of a segment again, from the input that it kept; returns what it leaves for the backward. The
        last unit's forward runs right before its backward, so that its parameters are gathered once for both."""
        x = self.as_workspace(passage.x.fetch())
        del passage.x
        *segments, last = passage.segment.within
        self.direction = "again"
        x, passage.within = self.run_through(segments, x, passage.batch, True, count_reads(passage.segment.units))
        tape = Tape(self.store_of(last.units[0]))
        passage.within.append(Taped(last.units[0], passage.batch, tape, start=x))
        return passage.within

    @np.errstate(over="ignore", invalid="ignore")
    def run_weights(self, passages: Sequence[Passage]) -> None:
        """Compute the gradients of matrices that `run_back` left for later. They need no parameters."""
        for unit, tape in reversed([pair for passage in passages for pair in passage.tapes]):
            self.device.doing = f"in {unit.name}, weights"
            for flat in unit.reads:
                flat.bind(None, raw_grad=self.gradient_buffer(flat))
            tape.weight_backward()
            self.collect_all(unit)
            for flat in unit.reads:
                flat.release()
            self.count(unit)
            self.device.mark("unit", f"{unit.name} weights")

    def collect_all(self, unit: Unit) -> None:
        """Collect the gradients that the unit's backward has written. A tied head runs backward before the embedding,
        and has written its part of the shared matrix's gradient."""
        for flat in unit.reads:
            self.collect(flat)

    def count(self, unit: Unit) -> None:
        """Count one backward for each Flat that the unit reads. After the last one, the gradient is complete here."""
        for flat in unit.reads:
            flat.backwards_done += 1
            if flat.backwards_done == self.backwards(flat):
                flat.backwards_done = 0
                self.reduce(flat)

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def widened(self, stored: Array) -> Array:
        """Stored values in the dtype of arithmetic: a float32 copy in mixed precision, otherwise the array itself."""
        return self.as_workspace(stored.astype(self.precision.computed, copy=False))

    def gradient_buffer(self, flat: Flat) -> Array:
        """Zeros into which a backward writes a gradient (padded,), in the dtype of arithmetic."""
        return self.device.zeros("workspace", flat.padded, self.precision.computed)

    def as_workspace(self, array: Array) -> Array:
        """Register a temporary array as workspace, unless it is already registered under another kind."""
        return self.device.hold("workspace", array, rename=False)

    def store_of(self, unit: Unit) -> Store:
        """Where a unit's tape keeps activations. The papers count layers apart from the model's embedding and head."""
        store = self.precision.store(self.device, "activations" if isinstance(unit, Block) else "ends")
        store.checkpoints = self.checkpoints
        return store


def all_units(segments: Iterable[Segment]) -> Iterable[Unit]:
    """The units of some segments, in order."""
    return chain.from_iterable(segment.units for segment in segments)


def count_reads(units: Iterable[Unit]) -> Counter[Flat]:
    """How often the units read each Flat, in total."""
    return Counter(flat for unit in units for flat in unit.reads)
