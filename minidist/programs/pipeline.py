"""Pipelines as a program: its options, and what it does in place of training: a schedule drawn, a published table."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from minidist import UsageError, command, pipeline
from minidist.cli.fields import choice, flag, option, output, parse, whole
from minidist.cli.loaded import line_of
from minidist.cli.options import Parser, within
from minidist.cli.paths import check_writable
from minidist.cli.shared import FileOptions, Line, TrainingOptions
from minidist.command import Job
from minidist.layout import Layout
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.optim import Optimizer
from minidist.papers import pipelines
from minidist.pipeline import Pipeline
from minidist.pp import balance, zero_bubble
from minidist.pp.best import choose
from minidist.pp.draw import Sizes, draw
from minidist.pp.fit import BANDWIDTH, CONTIGUOUS, Staging, cut, few_micro_batches, fit
from minidist.pp.schedules import SCHEDULES, drained
from minidist.programs.chapter import Chapter
from minidist.programs.clocks import show_clocks
from minidist.programs.serial import Delayed, Serial


def stage_workers(text: str) -> tuple[int, ...] | str:
    """An argument type: 2,1,1, or auto."""
    if text == "auto":
        return text
    counts = tuple(int(part) for part in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"every stage needs a rank, not {text}")
    return counts


def times_of(text: str) -> tuple[float, ...]:
    """An argument type: times of F, B and W; of a message; and of a forward and a backward that overlap."""
    try:
        times = tuple(float(part) for part in text.split(","))
    except ValueError:
        times = ()
    if not 3 <= len(times) <= 5 or not all(0 <= time < math.inf for time in times) or not all(times[:3]):
        raise argparse.ArgumentTypeError(
            f"times of F, B and W are three numbers above 0, such as 1,1.2,0.8, not {text}"
        )
    return times


# These schedules run on any number of ranks; the grid has cases for the others.
ON_ANY = [name for name, schedule in SCHEDULES.items() if schedule.stages_in == 1]
# Without a flush each stage updates on its own. So these defaults avoid all on which stages would have to agree: a norm
# of all gradients, a common loss scale, a matrix that two stages share.
ON_ITS_OWN = "--clip 0 --precision fp32 --untied"


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    schedule: str = choice(SCHEDULES, "1f1b", "one of those of --draw all")
    micro_batches: int | None = whole("M", "to an update; default: about 8, or PipeDream 1", short="-m")
    chunks: int | None = whole("V", "chunks of a stage that has several; default: 2", short="-v")
    contiguous: int | None = whole("N", CONTIGUOUS)
    first_layers: int | None = whole("N", "layers of the first stage; default: as many as others", least=0)
    last_layers: int | None = whole("N", "layers of the last stage; default: likewise", least=0)
    replicas: tuple[int, ...] | str = option((), stage_workers, "R,R,...", "pipedream: ranks of each stage; or auto")
    trace: str | None = output("write the timeline for https://ui.perfetto.dev")
    draw: str | None = choice(("all", *SCHEDULES), None, "draw a schedule, or all")
    best: bool = flag("draw the fastest")
    held: float | None = option(None, within(0, 1000), "X", "within X times 1F1B's activations; default: 1")
    costs: tuple[float, ...] | None = option(None, times_of, "TIMES", "F,B,W[,message[,F&B]], to draw; default: 1,1,1")
    pp: int | None = whole("P", "stages: to draw, 4; to train, as many as ranks", short="-p", formerly="--stages")
    zero_bubble_table: bool = flag("Zero Bubble's table 5 from 8, 16 or 32 ranks' clocks")

    @property
    def instead(self) -> list[str]:
        """What is asked for in place of training."""
        asked = {"--draw": self.draw, "--best": self.best, "--zero-bubble-table": self.zero_bubble_table}
        return [option for option, value in asked.items() if value]

    @property
    def flushes(self) -> bool:
        return SCHEDULES[self.schedule].flushes


def check_instead(own: PipelineOptions) -> None:
    """Raise UsageError for options of drawings that do not go together, or without one."""
    if len(own.instead) > 1:
        one, other, *_ = own.instead
        raise UsageError(f"{one} and {other}: use one of them")
    if own.held is not None and not own.best:
        raise UsageError("--held is of --best: use both, or leave it out")
    if own.costs and not (own.draw or own.best):
        raise UsageError("--costs is of --draw and --best: in training, F, B and W take 1 each")


def check_table(files: FileOptions, ranks: int) -> None:
    check_writable("--json", None if files.quiet else files.json)
    if ranks not in zero_bubble.RANKS:
        raise UsageError(f"the paper's table has no pipeline of {ranks}: use mpirun -n 8, -n 16 or -n 32")


def check_updates(schedule: str, training: TrainingOptions) -> None:
    """Raise UsageError for what stages that update on their own would have to agree on."""
    if training.clip:
        raise UsageError(f"{schedule} updates each stage on its own, without a norm of all: use --clip 0")
    if training.precision == "mixed":
        raise UsageError(f"{schedule} updates each stage on its own: use --precision fp32")


def print_drained(save_every: int | None) -> None:
    """Print why there are no claims."""
    print(f"\nTo be saved, the pipeline was drained after every {save_every} steps.")
    print("The papers' claims are about a stream that is not interrupted: none was checked.")


class PipelineChapter(Chapter[PipelineOptions]):
    name, doc, options = "pipeline", pipeline.__doc__, PipelineOptions
    cases = {name: f"--layers {{batch}} --micro-batches {{batch}} --schedule {name}" for name in ON_ANY}

    def parser(self) -> Parser:
        made = super().parser()
        without = ", ".join(name for name, schedule in SCHEDULES.items() if not schedule.flushes)
        made.epilog = f"Without a flush ({without}) weights are older: not serial losses; defaults are {ON_ITS_OWN}."
        return made

    def read(self, arguments: Sequence[str], made: Parser | None = None) -> Line[PipelineOptions]:
        parsed = parse(made or self.parser(), arguments)
        line = line_of(parsed, self.options)
        if line.own.flushes:
            return line
        training, given = line.training, parsed.given
        training = replace(
            training,
            clip=training.clip if "clip" in given else 0.0,
            precision=training.precision if "precision" in given else "fp32",
        )
        return replace(line, training=training, model=replace(line.model, untied=True))

    def layout(self, line: Line[PipelineOptions], ranks: int) -> Layout:
        own, training = line.own, line.training
        if not own.flushes:
            check_updates(own.schedule, training)
        if training.accumulate > 1:
            raise UsageError(
                f"a pipeline accumulates over its micro-batches: use --micro-batches {training.accumulate}"
            )
        replicas = own.replicas
        if isinstance(replicas, str):  # auto
            units = command.prepare(self.name, line, Layout(pp=ranks)).units
            known = balance.profile(units, training.batch, line.model.context, itemsize=4)
            replicas = tuple(count for _, count in balance.partition(known, ranks, BANDWIDTH)[1])
        ends = own.first_layers, own.last_layers
        asked = Staging(own.schedule, own.micro_batches, own.chunks, own.contiguous, replicas, *ends)
        found = fit(asked, line.model.layers, training.batch, ranks)
        if own.pp not in (None, found.pp):
            raise UsageError(f"--pp {own.pp} is not {found.pp} stages: use mpirun -n {own.pp}, or leave out --pp")
        return found

    def complete(self, line: Line[PipelineOptions], layout: Layout) -> Line[PipelineOptions]:
        return replace(line, training=replace(line.training, accumulate=layout.micro_batches))

    def checked(self, job: Job[PipelineOptions]) -> Job[PipelineOptions]:
        sizes = job.training.batch, job.model.context, job.settings.precision.bytes
        return replace(job, layout=cut(job.layout, job.units, *sizes))

    def job_of(self, line: Line[PipelineOptions], ranks: int, optimizer: Optimizer | None = None) -> Any:
        """A job; or the options alone, if they ask for something in place of training."""
        check_instead(line.own)
        if line.own.zero_bubble_table:
            check_table(line.files, ranks)
        return line if line.own.instead else super().job_of(line, ranks, optimizer)

    def make(self, job: Job[PipelineOptions], comm: Comm) -> Pipeline:
        at = job.layout
        stream = at.schedule, job.training.steps, at.replicas, job.files.save_every, at.contiguous
        return pipeline.pipeline_of(job.units, job.settings, comm, at.parts, *stream)

    def serial(self, job: Job[PipelineOptions]) -> Serial:
        """Without a flush, each stage's gradients are those of older weights: the papers say of which."""
        few = few_micro_batches(job.layout)
        if job.own.flushes:
            return Serial(micro_batches=few)

        def make(small: Job[PipelineOptions]) -> Delayed:
            at, workers = small.layout, small.layout.replicas or (1,) * small.layout.pp
            stages = [{flat.name for i in part for flat in small.units[i].flats} for part in at.parts]

            def version(k: int, flat: Flat) -> int:
                stage = next(stage for stage, names in enumerate(stages, 1) if flat.name in names)
                return pipelines.version_with_replicas(at.schedule, workers, stage, k, at.micro_batches)

            return Delayed(small.units, small.settings, version)

        return Serial(make, steps=2 + -(-job.layout.pp // (few or 1)), plain=False, micro_batches=few)

    def title(self, job: Job[PipelineOptions]) -> str:
        return f"{self.name}, {job.own.schedule}"

    def work(self, comm: Any, prepared: Job[PipelineOptions] | Line[PipelineOptions]) -> int:
        """Draw, fill the table, or train and then show the timeline."""
        own, files = prepared.own, prepared.files
        if not isinstance(prepared, Job):
            sizes = Sizes(own.pp or 4, own.micro_batches or 8, own.chunks, own.contiguous, own.costs or ())
            if own.draw:
                return draw(own.draw, sizes, files.json)
            return choose(sizes, own.held, files.json) if own.best else zero_bubble.main(comm, files.json)
        driver = self.driver(comm, prepared)
        assert isinstance(driver, Pipeline)
        status = self.train(comm, prepared, driver)
        if drained(own.schedule, files.save_every) and comm.rank == 0 and not files.quiet:
            print_drained(files.save_every)
        show_clocks(comm, driver.watch.timeline, prepared, own.trace)
        return status

    def needs_no_ranks(self, arguments: Sequence[str]) -> bool:
        return any(argument.startswith(("--draw", "--best")) for argument in arguments)


CHAPTER = PipelineChapter()
