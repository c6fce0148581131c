"""Pipeline parallelism: every rank holds a stage of the model, and micro-batches flow through.

    mpirun -n 4 python -m minidist.pipeline --schedule 1f1b --micro-batches 8
    mpirun -n 4 python -m minidist.pipeline --schedule zb-h1 --trace trace.json
    mpirun -n 8 python -m minidist.pipeline --zero-bubble-table
    python -m minidist.pipeline --draw all -p 4 -m 8

Huang et al., "GPipe", NeurIPS 2019, arXiv 1811.06965.
Narayanan et al., "PipeDream", SOSP 2019; "Memory-efficient pipeline-parallel DNN training", 2021, arXiv 2006.09503
(2BW); "Efficient large-scale language model training on GPU clusters", SC 2021, arXiv 2104.04473 (PTD).
Qi et al., "Zero bubble pipeline parallelism", 2023, arXiv 2401.10241.

A stage waits for its input from the stage before, and for its output's gradient from the stage after. In which order it
does what it can do is the schedule: it decides how long stages idle (the bubble), how many micro-batches they hold at a
time, and whether weights change while micro-batches are under way. `minidist.pp.schedules` has nine, as streams of
instructions; `minidist.pp.interpreter` goes through any of them on a logical clock; here are the tensors, which know
none.

The clock gives F, B and W of a stage one unit of time each and messages none, as the papers' formulas do; updates, and
what ranks exchange for them, take no time either.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from minidist import train
from minidist.engine import Settings, held, kept_by_blocks
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Batch, Head, Unit
from minidist.nn.tensor import Array, Tape, Tensor
from minidist.pp import options as pipeline_options
from minidist.pp.claims import Most, claims, print_letters, show_clocks
from minidist.pp.interpreter import UNIT_COSTS, OverRanks, Worker
from minidist.pp.schedules import (
    ACTIVATION,
    GRADIENT,
    SCHEDULES,
    Backward,
    Forward,
    Instructions,
    Receive,
    Send,
    Step,
    Weight,
    places,
)
from minidist.pp.weight_versions import WeightVersions


@dataclass
class Passage:
    """What a micro-batch leaves in a chunk on its way through, from its forward to the end of its backward."""

    version: int  # of the weights
    x: Array  # the chunk's input
    tapes: list[Tape] = field(default_factory=list)  # with re-materialisation, only from B to W


class Pipeline(WeightVersions):
    """One stage: its chunks of the model, and the micro-batches in them."""

    holds_a_stage = True

    def __init__(
        self,
        units: list[Unit],
        settings: Settings,  # accumulate: m, the micro-batches to an update
        pipe: Comm,
        parts: Sequence[range],  # which units each of the v·p chunks has: chunk c of stage s those of parts[c·p + s]
        schedule: str = "1f1b",
        steps: int = 1,  # of the whole training: a schedule without flush is one stream over all of them
        replicas: tuple[int, ...] = (),  # ranks of each stage; one of each if not given
        **beside: Any,  # what the engine behind this one takes, if there is one
    ) -> None:
        stages = len(replicas) or pipe.size
        self.pipe, self.schedule, self.total = pipe, SCHEDULES[schedule], steps
        self.at = places(stages, settings.accumulate, len(parts) // stages, steps, replicas)[pipe.rank]
        self.chunks = [[units[i] for i in part] for part in parts[self.at.stage :: stages]]
        self.own = [unit for chunk in self.chunks for unit in chunk]
        super().__init__([unit for unit in units if any(unit in own.reads for own in self.own)], settings, **beside)
        head = units[-1]
        assert isinstance(head, Head)
        self.width, tied = head.weight.shape[1], len(head.reads) > 1
        if tied and not self.schedule.flushes:
            raise ValueError(f"{schedule} updates each stage on its own: it cannot tie the head to the embedding")

        # Ranks that hold the same unit sum its gradients: replicas of a stage, or the first and the last stage of a
        # model whose head is tied to the embedding.
        ends = (0, stages - 1)
        self.sharers = pipe.split(self.at.stage if replicas else int(self.at.stage in ends))
        self.shared = [flat for unit, flat in self.flats.items() if replicas or (tied and unit is units[0])]

        self.rematerialise = settings.recompute == "full"  # of a chunk its input is kept, and all else made again
        self.wire = OverRanks(self.at, pipe)
        self.worker = Worker(self.at, self.wire, UNIT_COSTS, stage=self)
        self.stream: Instructions | None = None
        self.complete = False  # whether the update's gradients are
        self.batches: dict[int, Batch] = {}  # the micro-batches under way
        self.passages: dict[tuple[int, int], Passage] = {}  # (micro-batch, chunk)
        self.mail: dict[tuple[str, int, int], Array] = {}  # (what, micro-batch, chunk): to be sent, or received
        self.most = Most(in_flight=0, with_activations=0, versions=1, stash_bytes=0, delay=0)
        self.versions_used: dict[int, int] = {}  # by micro-batch

    # ---- a step -----------------------------------------------------------------------------------------------------

    @np.errstate(over="ignore", invalid="ignore")  # what does not fit float16 is found in step()
    def train_batch(self, x: Array, y: Array) -> float:
        """One step; this rank's part of its loss. Without a flush, some of its backwards come in the steps after it."""
        m = self.settings.accumulate
        if self.schedule.flushes or self.stream is None:
            self.begin()
        assert self.stream is not None
        step, selective = self.first_step + self.admitted // m, self.settings.recompute == "selective"
        for i, rows in enumerate(np.split(np.arange(len(x)), m)):
            share = self.rows(len(rows))
            mine = rows[share.start : share.stop]
            key = (self.settings.seed, step, i)  # the dropout of a serial run with m micro-batches
            self.batches[self.admitted + i] = Batch(x[mine], y[mine], share.start, key, selective)
            self.share = len(mine) / len(rows) / m
        self.admitted += m
        self.loss = 0.0
        for instruction in self.stream:
            if not isinstance(instruction, Step) and instruction.micro_batch >= self.admitted:
                self.stream = chain([instruction], self.stream)  # of a step that has yet to begin
                return self.loss_share(self.loss)
            self.worker.perform(instruction)
        self.wire.wait()
        return self.loss_share(self.loss)

    def begin(self) -> None:
        """A stream of instructions from its beginning, and from time 0."""
        self.first_step, self.admitted, self.made = self.steps, 0, 0
        at = self.at if self.schedule.flushes else replace(self.at, updates=self.total - self.steps)
        self.stream = self.schedule.instructions(at)
        costs = UNIT_COSTS | ({"R": 1.0} if self.rematerialise else {})
        workers = at.workers(at.stage)  # a stage gets replicas because it takes so many times as long
        costs = {letter: workers * cost for letter, cost in costs.items()}
        self.worker = Worker(at, self.wire, costs, stage=self)

    def compute(self, instruction: Forward | Backward | Weight | Step) -> None:
        match instruction:
            case Forward(k, chunk, version):
                self.forward_chunk(k, chunk, version)
            case Backward(k, chunk):
                self.backward_chunk(k, chunk)
            case Weight(k, chunk):
                self.weight_chunk(k, chunk)
            case Step(oldest):
                self.update_weights(oldest)

    # ---- F, B and W -------------------------------------------------------------------------------------------------

    def forward_chunk(self, k: int, chunk: int, version: int) -> None:
        first, last = self.at.is_first(chunk), self.at.is_last(chunk)
        x = self.batches[k].tokens if first else self.mail.pop((ACTIVATION, k, chunk))
        passage = self.passages[k, chunk] = Passage(version, x)
        y = self.run_chunk(passage, self.batches[k], chunk, keep=not self.rematerialise)
        if last:
            self.loss += float(y) * self.share
        else:
            self.mail[ACTIVATION, k, chunk] = self.stored(y)

    def run_chunk(self, passage: Passage, batch: Batch, chunk: int, keep: bool) -> Array:
        """A chunk's output (B, T, C), or the loss, for a passage's input; `keep` what the backward needs."""
        units, self.version = self.chunks[chunk], passage.version
        if keep:
            passage.tapes = [Tape(np.float16 if self.precision.mixed else None) for _ in units]
        h = passage.x if self.at.is_first(chunk) else self.widened(passage.x)
        for i, unit in enumerate(units):
            self.before_forward(unit)
            h = unit(passage.tapes[i].tensor(h) if keep else Tensor(h), batch).data
            self.after_forward(unit)
        self.observe_passages()
        return h

    def backward_chunk(self, k: int, chunk: int) -> None:
        """The gradient of the chunk's input; those of matrices wait for W."""
        passage = self.passages[k, chunk]
        if not passage.tapes:
            # Dropout masks are the same again: they depend on the micro-batch alone.
            self.run_chunk(passage, self.batches[k], chunk, keep=True)
        self.version = self.versions_used[k] = passage.version
        if self.at.is_last(chunk):
            dh: Array | None = np.asarray(self.share * self.loss_scale.scale, self.precision.computed)
        else:
            dh = self.widened(self.mail.pop((GRADIENT, k, chunk)))
        for unit, tape in zip(reversed(self.chunks[chunk]), reversed(passage.tapes), strict=True):
            self.before_backward(unit)
            assert dh is not None
            dh = tape.backward(dh, postpone_weights=True)
            self.after_backward(unit)
        if not self.at.is_first(chunk):
            assert dh is not None
            self.mail[GRADIENT, k, chunk] = self.stored(dh)

    def weight_chunk(self, k: int, chunk: int) -> None:
        """The gradients of the chunk's matrices, from the inputs that the micro-batch's own tapes have kept."""
        passage = self.passages[k, chunk]
        self.version = passage.version
        for unit, tape in zip(reversed(self.chunks[chunk]), reversed(passage.tapes), strict=True):
            self.before_backward(unit)
            tape.weight_backward()
            self.after_backward(unit)
        del self.passages[k, chunk]
        self.most.note(delay=self.made - passage.version)
        if chunk == 0:
            del self.batches[k]

    # ---- messages ---------------------------------------------------------------------------------------------------

    def stored(self, h: Array) -> Array:
        """A result as it is sent: in mixed precision float16, like everything that is stored."""
        return np.ascontiguousarray(h, self.precision.stored)

    def crossing(self, tokens: Array) -> tuple[int, ...]:
        """The shape of what goes from stage to stage for some sequences, there and back."""
        return *tokens.shape, self.width  # (B, T, C)

    def outgoing(self, message: Send) -> Array:
        return self.mail.pop((message.what, message.micro_batch, message.chunk))

    def incoming(self, message: Receive) -> Array:
        buffer = np.empty(self.crossing(self.batches[message.micro_batch].tokens), self.precision.stored)
        self.mail[message.what, message.micro_batch, message.chunk] = buffer
        return buffer

    # ---- an update --------------------------------------------------------------------------------------------------

    def update_weights(self, oldest: int) -> None:
        """Sum the gradients that others have a part of, and make the next version of the weights."""
        self.keep_version(oldest)
        older = [array for weights in self.stash.values() for array in weights.values()]
        self.most.note(versions=1 + len(self.stash), stash_bytes=held(older))
        self.complete = True
        for flat in self.flats.values():
            self.reduce(flat)
        self.step()
        self.complete = False
        self.made += 1  # the next version of the weights

    @property
    def last_micro_batch(self) -> bool:
        """Any micro-batch may be the last of an update: gradients are complete when the schedule says Step."""
        return self.complete

    def reduce(self, flat: Flat) -> None:
        """Everyone who has a unit makes the same update of it."""
        from minidist import ring  # not above: drawing does without MPI

        super().reduce(flat)
        if flat in self.shared:
            _, grad = self.owned(flat)
            with self.pipe.phase("shared gradients"):
                grad[...] = ring.all_reduce(self.sharers, grad)

    def squares(self, flat: Flat, grad: Array, piece: slice) -> float:
        """Each unit once: a tied embedding on the stage whose own it is."""
        return super().squares(flat, grad, piece) if any(flat is self.flats[unit] for unit in self.own) else 0.0

    def squared_norm(self) -> float:
        """Over all stages. Without a flush they update on their own, each with a norm of its own."""
        from minidist import ring

        mine = super().squared_norm()
        if not self.schedule.flushes:
            return mine
        with self.pipe.phase("pipeline norm"):
            return float(sum(ring.all_gather(self.pipe, np.array([mine]), self.pipe.size)))

    # ---- for the loop and the report --------------------------------------------------------------------------------

    @np.errstate(over="ignore", invalid="ignore")
    def evaluate(self, x: Array, y: Array) -> float:
        """This rank's part of the mean loss over sequences x and their targets y: 0 without the head."""
        if self.at.replica > 0:
            return 0.0
        rows = self.rows(len(x))
        here = slice(rows.start, rows.stop)
        batch, h = Batch(x[here], y[here]), x[here]
        for chunk in range(len(self.chunks)):
            if not self.at.is_first(chunk):
                h = np.empty(self.crossing(batch.tokens), self.precision.stored)
                self.wire.receive(Receive(ACTIVATION, 0, chunk), h)
            h = self.run_chunk(Passage(self.made, h), batch, chunk, keep=False)
            if not self.at.is_last(chunk):
                self.wire.send(Send(ACTIVATION, 0, chunk), self.stored(h), time=0.0)
        self.wire.wait()
        return self.loss_share(float(h) * len(rows) / len(x)) if self.at.is_last(len(self.chunks) - 1) else 0.0

    def gathered(self, named: dict[str, Array]) -> dict[str, Array]:
        everyone = self.pipe.gather_object(named) or []
        return {name: array for stage in everyone for name, array in stage.items()}

    def observe_passages(self) -> None:
        """Note how much is held at this moment."""
        passages = self.passages.values()
        kept = (kept_by_blocks(self.chunks[c], p.tapes) for (_, c), p in self.passages.items() if p.tapes)
        self.layer_activations = max(self.layer_activations, sum(kept))
        inputs = sum(passage.x.nbytes for passage in passages if not passage.tapes)
        self.observe([tape for passage in passages for tape in passage.tapes], inputs)
        self.most.note(in_flight=len(passages), with_activations=sum(bool(p.tapes) for p in passages))

    def counted(self) -> dict[str, Any]:
        """Of the last stream of instructions, and since the beginning the most of what comes and goes."""
        times = {name: getattr(self.worker.timeline, name) for name in ("start", "end", "busy")} if self.stream else {}
        return {**times, **self.most, "versions_used": sorted(self.versions_used.items())}


def main(comm: Comm, job: train.Job) -> int:
    """Train and report, and show what the clocks say."""
    options = job.options
    parts = pipeline_options.cut(options, job.units, job.settings.precision.bytes)
    engine = Pipeline(job.units, job.settings, comm, parts, options.schedule, options.steps, options.replicas)
    status = train.run_job(job, engine, comm, claims, print_letters)
    show_clocks(comm, engine.worker.timeline, options)
    return status


if __name__ == "__main__":
    pipeline_options.start(__doc__, main)
