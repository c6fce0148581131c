"""The way through the units: forward and backward as loops over the model's units, each on a tape of its own.

What happens to a unit's Flats on the way is the engine's affair (`minidist/engine.py`): here are the moments at which
it is asked. A segment keeps its activations, or its input alone and runs again (`minidist/memory/recompute.py`).
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


class Passes:
    """Forward and backward. What else happens is said by whoever inherits it."""

    device: Pool
    precision: Precision
    passed: Counter[int]  # by a batch's first sequence, the tokens that have gone forward through units, each a time
    checkpoints: Store | None = None  # for inputs of what runs again, if a tape's store is not for them
    direction = "forward"  # "backward", or, forward once more for a backward, "again"

    # ---- what is asked on the way -----------------------------------------------------------------------------------

    def expect(self, turns: Sequence[Turn]) -> None:
        """A pass begins, in which these units will run. Nothing needs to be ready."""

    def parameters_of(self, flat: Flat) -> Array:
        """All of its parameters (padded,), for a unit that is about to run."""
        raise NotImplementedError

    def forget(self, flat: Flat) -> None:
        """No later unit of this pass reads it."""

    def collect(self, flat: Flat) -> None:
        """A unit's backward has written its part of the gradient."""
        raise NotImplementedError

    def reduce(self, flat: Flat) -> None:
        """The last of the backwards for which it waits has run: its gradient is complete on this rank."""

    def backwards(self, flat: Flat) -> int:
        """For how many backwards a Flat waits until its gradient is complete."""
        raise NotImplementedError

    # ---- forward ----------------------------------------------------------------------------------------------------

    @np.errstate(over="ignore", invalid="ignore")  # what does not fit what is stored is found in step()
    def run(
        self, segments: Sequence[Segment], x: Array, batch: Batch, keep: bool = True
    ) -> tuple[Array, list[Passage]]:
        """Forward through some segments, from x, tokens (B, T) or (B, T, C): the next ones' x, or the loss; and, to
        `keep`, what the backward needs."""
        self.direction = "forward"
        self.expect([Turn(unit, "forward", 1) for unit in all_units(segments)])
        return self.run_through(segments, x, batch, keep, count_reads(all_units(segments)))

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
        if self.direction == "forward":
            self.passed[batch.first] += batch.tokens.size
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

    @np.errstate(over="ignore", invalid="ignore")
    def run_back(self, passages: Sequence[Passage], dy: Array, weights: bool = True) -> Array | None:
        """Backward through some passages, from the gradient of their output: that of their input. Without `weights`
        the gradients of matrices wait for `run_weights`."""
        self.expect([turn for passage in reversed(passages) for turn in way_back(passage.segment)])
        left = count_reads(all_units(passage.segment for passage in passages))
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
        x, passage.within = self.run_through(segments, x, passage.batch, True, count_reads(passage.segment.units))
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
                flat.to_come = self.backwards(flat)

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


def all_units(segments: Iterable[Segment]) -> Iterable[Unit]:
    """Of some segments, in order."""
    return chain.from_iterable(segment.units for segment in segments)


def count_reads(units: Iterable[Unit]) -> Counter[Flat]:
    """How often the units read each Flat, all together."""
    return Counter(flat for unit in units for flat in unit.reads)
