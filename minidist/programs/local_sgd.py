"""Local SGD as a program: its options."""

from dataclasses import dataclass, replace
from typing import Any

from minidist import UsageError, local_sgd
from minidist.cli.fields import first_given, option, output, whole
from minidist.cli.options import within
from minidist.command import Job
from minidist.memory import plot
from minidist.programs.chapter import Chapter
from minidist.programs.serial import PHASE, Averaged, Serial

# What a training has, and a comparison has not.
ALONE = "memory_plot", "save", "load", "export", "sample", "witness", "log"


@dataclass(frozen=True, kw_only=True)
class LocalSGDOptions:
    every: int = whole("H", "steps from one averaging to the next", 10)
    outer_lr: float = option(1.0, within(0, 10), "X", "DiLoCo's outer learning rate; its paper: 0.7")
    outer_momentum: float = option(0.0, within(0, 1), "X", "and Nesterov momentum; its paper: 0.9")
    sweep: str | bool | None = output("compare H = 1, 2, 5, 10, 50; draw it", nargs="?", const=False)


def check_sweep(job: Job[LocalSGDOptions]) -> None:
    """Raise UsageError for what a comparison does not do."""
    if asked := first_given(job.files, *ALONE):
        raise UsageError(f"--sweep trains five times: leave out {asked}")
    if not job.training.steps or not job.training.validate:
        raise UsageError("--sweep compares losses after training: ask for --steps and --validate of 1 or more")
    if isinstance(job.own.sweep, str):
        plot.check("--sweep", job.own.sweep)


class LocalSGDChapter(Chapter[LocalSGDOptions]):
    name, doc, options = "local_sgd", local_sgd.__doc__, LocalSGDOptions
    defaults = {"precision": "fp32"}
    cases = {"": "--every 2", "DiLoCo": "--every 2 --outer-lr 0.7 --outer-momentum 0.9"}

    def checked(self, job: Job[LocalSGDOptions]) -> Job[LocalSGDOptions]:
        if job.training.precision == "mixed":
            raise UsageError("--precision mixed: ranks on their own have no common loss scale: use bf16, fp32 or fp64")
        if job.own.sweep is not None:
            check_sweep(job)
        every, saved = job.own.every, {"--steps": job.training.steps, "--save-every": job.files.save_every or 0}
        if job.files.save and (wrong := next((name for name, steps in saved.items() if steps % every), "")):
            raise UsageError(
                f"--save with {wrong} {saved[wrong]}: between two averagings each rank has its own parameters:"
                f" save after a multiple of --every {every} steps"
            )
        return job

    def work(self, comm: Any, prepared: Job[LocalSGDOptions]) -> int:
        """Train, or compare intervals."""
        if prepared.own.sweep is None:
            return self.train(comm, prepared)
        from minidist.programs.intervals import compare

        return compare(prepared, self.make, comm)

    def make(self, job: Job[LocalSGDOptions], comm: Any) -> local_sgd.LocalSGD:
        own = job.own
        return local_sgd.LocalSGD(job.units, job.settings, comm, own.every, own.outer_lr, own.outer_momentum)

    def serial(self, job: Job[LocalSGDOptions]) -> Serial:
        """A training on each rank's rows, and the mean of them all."""
        n, own = job.layout.dp, replace(job.own, every=min(job.own.every, 2))  # and then once more, after a single step
        rule = own.every, own.outer_lr, own.outer_momentum
        return Serial(lambda small: Averaged(small, n, *rule), steps=3, plain=False, own=own)

    def count(self, job: Job[LocalSGDOptions], engine: Any) -> dict[str, int]:
        """Bytes that this rank sent in all steps together: in most steps it sends nothing."""
        ever = engine.comm.ledger.ever().items()
        steps = {key: n for key, n in ever if key[1] != PHASE}
        return {"sent": sum(n for (kind, *_, unit), n in steps.items() if (kind, unit) == ("payload", "bytes"))}


CHAPTER = LocalSGDChapter()
