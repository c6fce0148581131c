"""ZeRO-R as a program: its options, and in place of training the search for the largest model
(`minidist/zr/configurations.py`)."""

from dataclasses import dataclass, replace
from typing import Any

from minidist import UsageError, train, zero_r
from minidist.cli.fields import choice, first_given, flag, output, whole
from minidist.cli.options import memory_size
from minidist.cli.shared import FileOptions, Line, TrainingOptions
from minidist.command import Job
from minidist.data_parallel import DataParallel
from minidist.layout import Layout
from minidist.memory import plot
from minidist.memory.pool import OutOfMemory
from minidist.mpi.comm import Comm
from minidist.programs.axes import buckets, check_tensor, nearest_divisor, sequence_flag, stage_option
from minidist.programs.data_parallel import OnDataAxis
from minidist.zr import arenas

USUAL_MEMORY = "4MB"  # a device on which some layers fit
PLACES = ("device", "partitioned", "host")
ALONE = ("memory_plot", "save", "load", "export", "sample", "witness")  # what a training has, and a search has not


@dataclass(frozen=True, kw_only=True)
class ZeROROptions:
    tp: int | None = whole("N", "ranks that share each layer; default: 2 if possible")
    zero: int = stage_option(2)
    sequence_parallel: bool = sequence_flag()
    activations: str = choice(PLACES, "partitioned", f"checkpoints: {', '.join(PLACES)}", "WHERE")
    scattered: bool = flag("each checkpoint for itself, not all in one room")
    bucket_size: int = buckets(10_000, "elements of the buffer for gradients")
    arena_plot: str | None = output("give arrays addresses, and draw where they are in a step")
    configurations: str | bool | None = output("how many layers train in C1 to C5; draw it", nargs="?", const=False)

    @property
    def searches(self) -> bool:
        """Whether the largest models are searched for, in place of training."""
        return self.configurations is not None


def check_equal_shares(own: ZeROROptions, training: TrainingOptions, d: int) -> None:
    """Raise UsageError if ranks would not hold the same, where what one holds is shown for all. d: ranks that share a
    batch."""
    of = "--configurations" if own.searches else "--arena-plot" if own.arena_plot else ""
    if of and training.micro_batch % d:
        needed = d * training.accumulate * (training.batch // (d * training.accumulate) + 1)
        raise UsageError(
            f"{of}: all ranks must hold the same, so {d} shares of the batch be equal: use --batch {needed}"
        )


def check_arena(path: str | None, precision: str) -> None:
    if path and precision in ("mixed", "bf16"):
        raise UsageError(
            "--arena-plot: a device computes in the stored precision, without float32 copies: use --precision fp32"
        )
    if path:
        plot.check("--arena-plot", path)


def check_search(own: ZeROROptions, files: FileOptions) -> None:
    """Raise UsageError for options that a search does not have."""
    given = [
        first_given(own, "arena_plot"),
        first_given(files, *ALONE),
        first_given(own, "scattered", "sequence_parallel"),
    ]
    if asked := next(filter(None, given), ""):
        raise UsageError(f"--configurations trains many models, a step of each: leave out {asked}")
    if own.configurations:
        plot.check("--configurations", str(own.configurations))


class ZeRORChapter(OnDataAxis[ZeROROptions]):
    name, doc, options = "zero_r", zero_r.__doc__, ZeROROptions
    defaults = {"recompute": "full"}
    cases = {name: f"--activations {name}" for name in ("partitioned", "host")}

    def layout(self, line: Line[ZeROROptions], ranks: int) -> Layout:
        own, recompute = line.own, line.training.recompute
        t = own.tp or (1 if ranks % 2 else 2)
        if ranks % t:
            raise UsageError(f"--tp {t} does not divide {ranks} ranks: use --tp {nearest_divisor(ranks, t)}")
        check_tensor(line.model, own.sequence_parallel, t)
        if recompute != "full":
            raise UsageError(f"--recompute {recompute}: zero_r is about what full recomputation keeps: leave it out")
        if own.activations == "partitioned" and own.sequence_parallel:
            raise UsageError("--sequence-parallel has cut checkpoints already: use --activations device, or host")
        check_equal_shares(own, line.training, ranks // t)
        check_arena(own.arena_plot, line.training.precision)
        if own.searches:
            check_search(own, line.files)
        return Layout(dp=ranks // t, tp=t)

    def complete(self, line: Line[ZeROROptions], layout: Layout) -> Line[ZeROROptions]:
        """A search needs a limit."""
        if not line.own.searches or line.files.device_memory is not None:
            return line
        return replace(line, files=replace(line.files, device_memory=memory_size(USUAL_MEMORY)))

    def make(self, job: Job[ZeROROptions], comm: Comm) -> DataParallel:
        how = job.own.zero, job.own.activations, job.own.scattered, job.own.sequence_parallel
        return zero_r.zero_r(job.units, job.settings, comm, job.layout, *how)

    def fits(self, comm: Comm, job: Job[ZeROROptions]) -> bool:
        """Whether this model can take a step within --device-memory, on every rank."""
        try:
            train.train_step(self.make(replace(job, units=job.declared()), comm), job, step=0)
            fits = True
        except OutOfMemory:  # on every rank at the same array: all hold arrays of the same sizes
            fits = False
        return all(comm.all_gather_object(fits))

    def work(self, comm: Any, prepared: Job[ZeROROptions]) -> int:
        """Search for the largest model, or train; with --arena-plot, draw the memory's addresses."""
        own = prepared.own
        if own.searches:
            from minidist.zr import configurations

            return configurations.search(comm, prepared, self.fits)
        engine = self.driver(comm, prepared).engine
        with arenas.drawn(engine.device, comm, own.arena_plot, prepared.files.device_memory):
            return self.train(comm, prepared, engine)


CHAPTER = ZeRORChapter()
