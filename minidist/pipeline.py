"""Pipeline parallelism: ranks hold stages, and micro-batches flow through them.

    mpirun -n 4 python -m minidist.pipeline --schedule 1f1b --micro-batches 8
    mpirun -n 4 python -m minidist.pipeline --schedule zb-h1 --trace trace.json
    mpirun -n 8 python -m minidist.pipeline --zero-bubble-table
    python -m minidist.pipeline --draw all -p 4 -m 8
    python -m minidist.pipeline --best

Huang et al., "GPipe", NeurIPS 2019, arXiv 1811.06965.
Narayanan et al., "PipeDream", SOSP 2019; "Memory-efficient pipeline-parallel DNN training", 2021, arXiv 2006.09503
(2BW); "Efficient large-scale language model training on GPU clusters", SC 2021, arXiv 2104.04473 (PTD).
Qi et al., "Zero bubble pipeline parallelism", 2023, arXiv 2401.10241; "Pipeline parallelism with controllable memory",
2024, arXiv 2405.15362. Li and Hoefler, "Chimera", SC 2021, arXiv 2107.06925. DeepSeek-V3, 2024, arXiv 2412.19437.

A stage waits for its input from the stage before, and for its output's gradient from the stage after. The schedule is
the order in which a stage does its work. It decides how long stages idle (the bubble), how many micro-batches they hold
at a time, and whether weights change while micro-batches are under way. `minidist/pp/schedules.py` has 17 schedules, as
streams of instructions; some fold the pipeline, or let two of them cross (`minidist/pp/folded.py`). This file performs
any of them on an engine that has the units of one rank, while a logical clock watches (`minidist/pp/watch.py`).

On the clock, F, B and W of a stage each take one unit of time and messages take none, as in the papers' formulas;
updates, and the messages for them, take no time either.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from minidist import Stopped, contents
from minidist.data_parallel import Axes, DataParallel
from minidist.engine import Settings, segments
from minidist.memory.recompute import again, together
from minidist.mpi.comm import Comm
from minidist.nn.layers import Batch, Block, Tokens, Unit, micro_batches
from minidist.nn.tensor import Array
from minidist.pp.in_flight import InFlight
from minidist.pp.instructions import (
    ACTIVATION,
    GRADIENT,
    Backward,
    Both,
    Forward,
    Instruction,
    Instructions,
    Receive,
    Send,
    Step,
    Weight,
    name_of,
)
from minidist.pp.links import Links
from minidist.pp.schedules import SCHEDULES
from minidist.pp.stage import Stage, stage_of
from minidist.pp.versions import Used, Versions
from minidist.pp.watch import UNIT_COSTS, OverRanks, StageClock


class Pipeline:
    """A schedule, performed on an engine that has the units of one stage."""

    def __init__(
        self, engine: DataParallel, stage: Stage, schedule: str = "1f1b", steps: int = 1, drain: int | None = None
    ) -> None:
        """steps: of the whole training: a schedule without a flush is one stream over all of them.

        drain: after every `drain` steps, such a schedule ends its stream and begins another. In between no micro-batch
        is under way and there is one version of the weights, so that a checkpoint can be saved.
        """
        self.engine, self.stage, self.at, self.pipe = engine, stage, stage.at, stage.pipe
        self.schedule, self.steps, self.drain = SCHEDULES[schedule], steps, drain or steps
        # With full recomputation a chunk keeps only its input, and computes the rest again (GPipe, section 2.3).
        recompute, blocks = engine.settings.recompute, sum(isinstance(unit, Block) for unit in stage.units)
        self.segments = [[together(c)] if recompute == "full" else segments(c, recompute) for c in stage.chunks]
        self.costs = UNIT_COSTS | {"R": 1.0 if recompute == "full" else sum(map(again, self.segments)) / max(blocks, 1)}
        self.versions = None if self.schedule.flushes else Versions(engine.flats, engine.widened, engine.device)
        self.links, self.stamps = Links(self.at, self.pipe), OverRanks(self.at, self.pipe)
        self.watch = StageClock(self.at, self.stamps, UNIT_COSTS)
        self.stream: Instructions | None = None
        self.next: Instruction | None = None  # of the stream, if a step has ended before it
        self.in_flight = InFlight()
        self.used = Used()  # which weights each micro-batch used

    # ---- a step -----------------------------------------------------------------------------------------------------

    def train_batch(self, x: Tokens, y: Tokens) -> float:
        """Run one step; returns this rank's part of its loss. Without a flush, some backwards run in later steps."""
        m, seed = self.at.micro_batches, self.engine.settings.seed
        if self.stream is None or self.next is None:  # the last stream has come to its end
            self.begin()
        assert self.stream is not None
        step = self.first_step + self.admitted // m
        for i, part in enumerate(micro_batches(x, y, m)):
            batch = self.engine.share_of(*part, key=(seed, step, i))  # dropout as in a serial run
            self.in_flight.batches[self.admitted + i] = batch
            self.share = batch.tokens.size / part[0].size / m
        self.admitted += m
        self.loss = 0.0
        waiting, self.next = [self.next] if self.next else [], None
        for instruction in chain(waiting, self.stream):
            if not isinstance(instruction, Step) and instruction.micro_batch >= self.admitted:
                self.next = instruction  # of a step that has yet to begin
                break
            name = name_of(instruction)
            self.engine.device.doing = f"at {name}"  # until the engine says in which unit
            self.perform(instruction)
            self.watch.see(instruction)
            self.engine.device.mark("message" if isinstance(instruction, Send | Receive) else "instruction", name)
        else:
            self.links.wait()
        return self.engine.loss_share(self.loss)

    def begin(self) -> None:
        """Begin a stream of instructions, at time 0."""
        self.first_step, self.admitted = self.engine.steps, 0
        end = min(self.steps, (self.engine.steps // self.drain + 1) * self.drain)
        at = self.at if self.schedule.flushes else replace(self.at, updates=end - self.engine.steps)
        self.stream = self.schedule.instructions(at)
        self.used = Used()
        if self.versions:
            self.versions.restart()
        workers = at.workers(at.stage)  # a stage with r replicas takes r times as long: that is why it has them
        self.watch = StageClock(at, self.stamps, {letter: workers * cost for letter, cost in self.costs.items()})

    def perform(self, instruction: Instruction) -> None:
        """Perform one instruction: let the engine compute, or send or receive."""
        engine, splits, under_way = self.engine, self.schedule.splits, self.in_flight
        match instruction:
            case Receive(what, k, chunk):
                room = self.room_for(under_way.batches[k])
                under_way.mail[what, k, chunk] = self.links.receive(instruction, room)

            case Send(what, k, chunk):
                self.links.send(instruction, under_way.mail.pop((what, k, chunk)))

            case Forward(k, chunk, version):
                batch = under_way.batches[k]
                first = self.at.is_first(chunk)
                x = batch.tokens if first else engine.widened(under_way.mail.pop((ACTIVATION, k, chunk)))
                with self.weights(version, k, chunk):
                    y, passages = engine.run(self.segments[chunk], x, batch)
                under_way.leave(k, chunk, version, passages)
                self.loss += sum(batch.losses) * self.share
                if self.at.is_last(chunk):
                    self.loss += float(y) * self.share
                else:
                    under_way.mail[ACTIVATION, k, chunk] = self.stored(y)

            case Backward(k, chunk):  # the gradient of the input; also W's, unless the schedule splits it off
                version, passages = under_way.return_to(k, chunk)
                dloss = np.asarray(self.share * engine.loss_scale.scale, engine.precision.computed)
                last = self.at.is_last(chunk)
                dy = dloss if last else engine.widened(under_way.mail.pop((GRADIENT, k, chunk)))
                with self.weights(version, k, chunk):
                    dx = engine.run_back(passages, dy, not splits, dloss)
                if dx is not None and not self.at.is_first(chunk):
                    under_way.mail[GRADIENT, k, chunk] = self.stored(dx)

            case Weight(k, chunk):  # the gradients of matrices, from the inputs that the micro-batch's tapes kept
                passages = under_way.finish(k, chunk)
                if splits:
                    engine.run_weights(passages)
                self.used.behind[k] = self.versions.made if self.versions else 0

            case Both(ahead, back):  # overlapped on the clock; here one after the other
                for work in (ahead, back, Weight(back.micro_batch, back.chunk)):
                    self.perform(work)

            case Step(oldest):
                if self.versions:
                    self.versions.keep(oldest)
                try:
                    engine.apply_gradients()
                except OverflowError as error:
                    if self.versions:  # each stage has its own norm; others wait for messages from this one
                        raise Stopped(error) from None
                    self.links.wait()  # all have the same norm and stop here
                    raise
                if self.versions:
                    self.versions.updated()

    # ---- tensors ----------------------------------------------------------------------------------------------------

    @contextmanager
    def weights(self, version: int, k: int, chunk: int) -> Iterator[None]:
        """Inside, the engine's Flats have this version of the weights. With a flush there is only one."""
        stashed = self.versions.use(version) if self.versions else nullcontext()
        with stashed, self.used.note(k, chunk, self.stage.chunks[chunk]):
            yield

    def stored(self, h: Array) -> Array:
        """A result in the dtype of messages: in mixed precision two bytes per element, like everything stored."""
        return self.engine.device.hold("messages", np.ascontiguousarray(h, self.engine.precision.stored))

    def room_for(self, batch: Batch) -> Array:
        """A new buffer for one message: activations or a gradient that cross from stage to stage."""
        b, t = batch.tokens.shape
        shape = b, t // self.stage.pieces, self.stage.width
        return self.engine.device.empty("messages", shape, self.engine.precision.stored)

    def evaluate(self, x: Tokens, y: Tokens) -> float:
        """This rank's part of the mean loss of sequences x with targets y: 0 on a stage without the head."""
        if self.at.replica > 0:
            return 0.0
        batch = self.engine.share_of(x, y)
        h = batch.tokens
        rows = self.segments[:1] if self.at.shape == "cross" else self.segments  # a cross has two copies: use one
        for chunk, of_chunk in enumerate(rows):
            if not self.at.is_first(chunk):
                h = self.engine.widened(self.links.receive(Receive(ACTIVATION, 0, chunk), self.room_for(batch)))
            h, _ = self.engine.run(of_chunk, h, batch, keep=False)
            if not self.at.is_last(chunk):
                self.links.send(Send(ACTIVATION, 0, chunk), self.stored(h))
        self.links.wait()
        return self.engine.loss_share(float(h) * batch.tokens.size / x.size) if self.at.is_last(chunk) else 0.0

    # ---- for the report ---------------------------------------------------------------------------------------------

    def other_counts(self) -> dict[str, Any]:
        """Times of the last stream of instructions, and the most that was held at once since the beginning."""
        times = {name: getattr(self.watch.timeline, name) for name in ("start", "end", "busy")} if self.stream else {}
        most = self.engine.device.peak
        held = {
            "layer_activations": most["activations"],
            "versions": (most["parameters"] + most["stash"]) / most["parameters"],
            "stash_bytes": most["stash"],
        }
        marks = self.versions.marks if self.versions else []
        return {**times, **self.in_flight.most, **held, **self.used.counted(), "marks": marks}


def pipeline_of(
    units: list[Unit],
    settings: Settings,  # accumulate: m, the micro-batches per update
    pipe: Comm,
    parts: Sequence[range],
    schedule: str = "1f1b",
    steps: int = 1,
    replicas: tuple[int, ...] = (),  # ranks of each stage; by default one each
    drain: int | None = None,  # a schedule without a flush ends its stream after this many steps
    contiguous: int = 0,  # llama3: micro-batches that go through a chunk before the next chunk's turn
) -> Pipeline:
    """A pipeline over all ranks: each is alone on the data axis."""
    stages, flushes = len(replicas) or pipe.size, SCHEDULES[schedule].flushes
    if units[-1].reads != units[-1].flats and not flushes:
        raise ValueError(f"{schedule} updates each stage on its own: it cannot tie the head to the embedding")
    sizes = stages, settings.accumulate, len(parts) // stages, steps, replicas, contiguous
    at = SCHEDULES[schedule].places(*sizes)[pipe.rank]
    stage = stage_of(units, pipe, parts, at)
    axes = Axes(norm_over={"pipeline norm": pipe} if flushes else {}, others=pipe)  # without a flush each has its own
    share = replace(settings, accumulate=settings.accumulate // at.copies)  # copies of a stage take turns
    return Pipeline(DataParallel(stage.units, share, pipe.split(pipe.rank), axes), stage, schedule, steps, drain)


if __name__ == "__main__":
    contents.run("pipeline")  # its options, and what the papers promise: programs/pipeline.py
