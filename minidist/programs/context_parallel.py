"""Context parallelism as a program: its options."""

import itertools
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from minidist import UsageError, context_parallel, train
from minidist.cli.fields import output, part, whole
from minidist.cli.paths import write_json, write_output
from minidist.cli.shared import Line
from minidist.command import Job
from minidist.context_parallel import ContextAttention
from minidist.cp.compare import SchemeMeasure, draw, in_context, print_rows
from minidist.cp.watch import AttentionClock, Unwatched
from minidist.data_parallel import DataParallel
from minidist.engine import Engine
from minidist.layout import Layout
from minidist.memory import plot
from minidist.mpi.comm import Comm
from minidist.nn.layers import Block
from minidist.papers.context import POSITIONS, SCHEMES
from minidist.programs.axes import ContextOptions, check_context, nearest_divisor, stage_option
from minidist.programs.chapter import Chapter


@dataclass(frozen=True, kw_only=True)
class SequenceOptions:
    cp: int | None = whole("N", "ranks that divide each sequence; default: all")
    how: ContextOptions = part(ContextOptions)
    zero: int = stage_option(0, "ZeRO's stage over all ranks, or 0")
    compare: str | bool | None = output(
        "all schemes, in place of training; FILE: draw the ring", nargs="?", const=False
    )


def watch_forward(job: Job, engine: Engine) -> AttentionClock:
    """Run one more forward while a clock watches this rank; returns it."""
    [group] = {
        unit.attention.group
        for unit in engine.units
        if isinstance(unit, Block) and isinstance(unit.attention, ContextAttention)
    }
    group.watch = watch = AttentionClock(group.comm)
    engine.evaluate(*job.batch(job.training.steps, job.training.micro_batch))
    group.watch = Unwatched()
    return watch


class ContextParallelChapter(Chapter[SequenceOptions]):
    name, doc, options = "context_parallel", context_parallel.__doc__, SequenceOptions
    cases = {
        "": "",
        "all-gather": "--scheme all-gather --positions contiguous",
        "ulysses": "--scheme ulysses",
        "dp x cp": "--cp {axis} --zero 3 --positions striped",
    }

    def layout(self, line: Line[SequenceOptions], ranks: int) -> Layout:
        n, picture = line.own.cp or ranks, line.own.compare
        if ranks % n:
            raise UsageError(f"--cp {n} does not divide {ranks} ranks: use --cp {nearest_divisor(ranks, n)}")
        check_context(line.model, line.own.how.scheme, n)
        if picture:
            plot.check("--compare", str(picture))
        return Layout(dp=ranks // n, cp=n)

    def make(self, job: Job[SequenceOptions], comm: Comm) -> DataParallel:
        how = job.own.how.scheme, job.own.how.positions, job.own.zero
        return context_parallel.context_parallel(job.units, job.settings, comm, job.layout, *how)

    def count(self, job: Job[SequenceOptions], engine: Engine) -> dict[str, Any]:
        """This rank's pairs of query and key by step, and the time at which it has computed them."""
        watch = watch_forward(job, engine)
        return {"pairs": watch.pairs[:-1], "time": watch.clock.now}

    def work(self, comm: Comm, prepared: Job[SequenceOptions]) -> int:
        return self.train(comm, prepared) if prepared.own.compare is None else self.compare(comm, prepared)

    def compare(self, comm: Comm, job: Job[SequenceOptions]) -> int:
        """Run a step with each possible scheme and layout of positions; print a table, and draw a picture if asked to.
        Returns 1 if a scheme has sent other bytes than its formula says."""
        rows, picture = [], job.own.compare
        for scheme, positions in itertools.product(SCHEMES, POSITIONS):
            with suppress(UsageError):
                rows.append(self.measure(comm, job, ContextOptions(scheme=scheme, positions=positions)))
        found = [row for row in rows if row]
        if comm.rank == 0:
            if not job.files.quiet:
                print_rows(found, job.model.layers)
            if job.files.json:
                write_json(job.files.json, {"chapter": self.name, "rows": [row.as_json() for row in found]})
            if picture:
                write_output(str(picture), draw(found, plot.format_of(str(picture))))
        return int(comm.broadcast_object(0 if all(row.holds for row in found) else 1))

    def measure(self, comm: Comm, job: Job[SequenceOptions], how: ContextOptions) -> SchemeMeasure | None:
        """Run one step; returns a row on rank 0. Raises UsageError if the scheme is not possible."""
        check_context(job.model, how.scheme, job.layout.cp)
        made = replace(job, own=replace(job.own, how=how), units=job.declared())
        engine = self.make(made, comm)
        comm.ledger.reset()
        train.train_step(engine, made, step=0)
        sent, held = comm.ledger.by_phase(), engine.peak_bytes()["messages"]
        mine = (in_context(sent, "forward"), in_context(sent, "backward"), engine.layer_activations, held)
        watch = watch_forward(made, engine)
        everyone = comm.gather_object((*mine, sum(watch.pairs), watch.clock.now, watch.spans))
        if everyone is None:
            return None
        forward, backward, kept, blocks, pairs, ended, spans = map(list, zip(*everyone, strict=True))
        from minidist.claims.context_parallel import attention_bytes
        from minidist.claims.described import described

        promised = attention_bytes(described(self.name, made, made.layout, made.vocabulary))
        return SchemeMeasure(how.scheme, how.positions, forward, backward, promised, pairs, ended, kept, blocks, spans)


CHAPTER = ContextParallelChapter()
