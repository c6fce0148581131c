"""The grid as a program: its options."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from minidist import UsageError, parallel3d
from minidist.cli.fields import choice, first_given, output, part, whole
from minidist.cli.shared import Line
from minidist.command import Job
from minidist.ep.count import count as count_experts
from minidist.layout import Layout
from minidist.mpi.comm import Comm
from minidist.pipeline import Pipeline
from minidist.pp import fit as pipelines
from minidist.pp.fit import CONTIGUOUS
from minidist.pp.schedules import SCHEDULES
from minidist.programs import axes
from minidist.programs.axes import ContextOptions, DividedOptions
from minidist.programs.chapter import Chapter
from minidist.programs.clocks import show_clocks
from minidist.programs.grid import Grid, choose
from minidist.programs.serial import Serial
from minidist.tp.count import count_with_dropout
from minidist.train import Driver

WITH_FLUSH = tuple(name for name, schedule in SCHEDULES.items() if schedule.flushes)


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    dp: int | None = whole("N", "data-parallel ranks; default: what the others leave")
    pp: int | None = whole("N", "stages; default: 2 if 2 or more ranks are left", formerly="--pipeline")
    tp: int | None = whole("N", "ranks that share each layer; default: 2 if possible", formerly="--tensor")
    cp: int = whole("N", "context ranks: they shard sequences", 1)
    how: ContextOptions = part(ContextOptions)
    mixture: DividedOptions = part(DividedOptions)
    zero: int = axes.stage_option(1)
    ranks_per_host: int | None = whole("G", "data ranks on a host: --zero 3 or --host-limit", also="--shard")
    host_limit: int | None = whole("H", "hosts to which a token may go; default: any")
    schedule: str | None = choice(WITH_FLUSH, None, "with a flush: pipeline --draw all; default: 1f1b")
    micro_batches: int | None = whole("M", "in a step; default: about 8, or unpipelined 1", short="-m")
    chunks: int | None = whole("V", "chunks of a stage that has several; default: 2", short="-v")
    contiguous: int | None = whole("N", CONTIGUOUS)
    first_layers: int | None = whole("N", "layers of the first stage; default: as many as others", least=0)
    last_layers: int | None = whole("N", "layers of the last stage; default: likewise", least=0)
    trace: str | None = output("write the timelines for https://ui.perfetto.dev")
    sequence_parallel: bool = axes.sequence_flag()


def check_text(path: str | None) -> None:
    """Raise UsageError for a number of ranks, which --data was once."""
    if path and path.isdecimal() and not Path(path).exists():
        raise UsageError(f"--data is the text: {path} data-parallel ranks are --dp {path} now")


def check_hosts(own: GridOptions) -> None:
    """Raise UsageError unless hosts have a use: ZeRO-3 divides parameters on each, or tokens go to a few of them."""
    if own.host_limit and not own.mixture.experts:
        raise UsageError(f"--host-limit {own.host_limit} is of tokens on their way to experts: use --experts 8")
    if own.host_limit and own.zero == 3:
        raise UsageError("--zero 3 divides experts within a host, so --host-limit has no choice: use --zero 2")
    if own.ranks_per_host and own.zero < 3 and not own.host_limit:
        raise UsageError(
            "--ranks-per-host says among how many ranks ZeRO-3 divides parameters: use it with --zero 3, or with"
            " --experts and --host-limit"
        )


def fit(line: Line[GridOptions], grid: Grid) -> Layout:
    """The complete layout of a grid. Raises UsageError if it is impossible, alone or with the other options."""
    (dp, pp, tp, cp), own, model, accumulate = grid, line.own, line.model, line.training.accumulate
    axes.check_tensor(model, own.sequence_parallel, tp)
    axes.check_context(model, own.how.scheme, cp, tp)
    axes.check_division(own.mixture)
    if own.sequence_parallel and cp > 1 and model.context % (2 * cp * tp):
        raise UsageError(f"--sequence-parallel with --cp {cp}: use a --context that {2 * cp * tp} divides")
    check_hosts(own)
    shard = dp if own.host_limit else own.ranks_per_host or dp
    if dp % shard:
        works = axes.nearest_divisor(dp, shard)
        raise UsageError(f"--dp {dp} is not divisible by --ranks-per-host {shard}: use --ranks-per-host {works}")
    ep = axes.choose_ep(own.mixture.experts, own.mixture.ep, shard * cp) if own.mixture.experts else 1
    ep_hosts = axes.choose_hosts(own.mixture, own.ranks_per_host, own.host_limit, ep, cp) if own.host_limit else 1
    if pp == 1 and first_given(own, "schedule", "chunks", "contiguous", "trace"):
        raise UsageError("--schedule, --chunks, --contiguous and --trace are of a pipeline")
    if own.micro_batches and accumulate not in (1, own.micro_batches):
        raise UsageError("--accumulate and --micro-batches say the same: use one of them")
    micro_batches = own.micro_batches or (accumulate if accumulate > 1 or pp == 1 else None)
    ends = own.first_layers, own.last_layers
    if pp == 1 and ends != (None, None):
        raise UsageError("--first-layers and --last-layers are of a pipeline: use them with --pp 2")
    asked = pipelines.Staging(own.schedule or "1f1b", micro_batches, own.chunks, own.contiguous, (), *ends)
    staged = pipelines.fit(asked, model.layers, line.training.batch, pp, sharing=dp)
    return replace(staged, dp=dp, tp=tp, cp=cp, hosts=dp // shard, ep=ep, ep_hosts=ep_hosts)


class Parallel3DChapter(Chapter[GridOptions]):
    name, doc, options = "parallel3d", parallel3d.__doc__, GridOptions
    ranks = (8,)
    cases = {
        **{f"ZeRO-{stage}": f"--zero {stage}" for stage in range(4)},
        "DualPipe": "--dp 2 --pp 4 --tp 1 --schedule dualpipe --micro-batches 8",
        "experts": "--dp 2 --pp 1 --cp 2 --tp 2 --experts 8 --capacity 1.25",
        "context": "--dp 2 --pp 2 --cp 2 --tp 1 --scheme ulysses --zero 2",
        "hosts": "--dp 4 --pp 2 --tp 1 --experts 8 --ranks-per-host 2 --host-limit 1",
        "uneven": "--dp 2 --pp 4 --tp 1 --layers 6 --first-layers 0 --last-layers 1",
        "Chimera": "--dp 1 --pp 4 --tp 2 --schedule chimera --micro-batches 4",
    }

    def layout(self, line: Line[GridOptions], ranks: int) -> Layout:
        check_text(line.files.data)
        own = line.own
        return choose({"dp": own.dp, "pp": own.pp, "tp": own.tp, "cp": own.cp}, ranks, partial(fit, line))

    def complete(self, line: Line[GridOptions], layout: Layout) -> Line[GridOptions]:
        return replace(line, training=replace(line.training, accumulate=layout.micro_batches))

    def checked(self, job: Job[GridOptions]) -> Job[GridOptions]:
        sizes = job.training.batch, job.model.context, job.settings.precision.bytes
        return replace(job, layout=pipelines.cut(job.layout, job.units, *sizes))

    def make(self, job: Job[GridOptions], comm: Comm) -> Driver:
        own, at = job.own, job.layout
        how = own.zero, own.sequence_parallel, own.how.scheme, own.how.positions
        return parallel3d.grid(job.units, job.settings, comm, at, *how, host_limit=own.host_limit)

    def serial(self, job: Job[GridOptions]) -> Serial:
        few = pipelines.few_micro_batches(job.layout)
        return Serial(micro_batches=few, positions=job.own.how.positions, host_limit=job.own.host_limit)

    def count(self, job: Job[GridOptions], engine: Any) -> dict[str, Any]:
        if job.own.mixture.experts:
            return count_experts(job, engine)
        return {} if job.layout.pp > 1 else count_with_dropout(job, engine)

    def title(self, job: Job[GridOptions]) -> str:
        return ", ".join(filter(None, (self.name, job.own.schedule)))

    def work(self, comm: Comm, prepared: Job[GridOptions]) -> int:
        """Train; for a pipeline, show what the clocks say below the report."""
        driver = self.driver(comm, prepared)
        status = self.train(comm, prepared, driver)
        if isinstance(driver, Pipeline):
            show_clocks(comm, driver.watch.timeline, prepared, prepared.own.trace)
        return status


CHAPTER = Parallel3DChapter()
