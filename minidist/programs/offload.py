"""ZeRO-Offload as a program: its options."""

import os
from dataclasses import dataclass, replace
from typing import Any

from minidist import UsageError, checkpoints, offload
from minidist.cli.fields import choice, option, part, whole
from minidist.cli.shared import FileOptions
from minidist.command import Job
from minidist.mpi.environment import local_ranks
from minidist.programs.chapter import Chapter
from minidist.programs.serial import PLAIN, Delayed, Serial
from minidist.programs.zero3 import LimitOptions, check_limits
from minidist.zr.limits import limited


@dataclass(frozen=True, kw_only=True)
class OffloadOptions:
    zero: int = option(2, int, None, "the stage", choices=(1, 2, 3))
    parameters: str = choice(("device", "host"), "device", "of --zero 3: where their shard is", None)
    limits: LimitOptions = part(LimitOptions)
    delayed_update: int | None = whole("N", "after N steps, update during the next step's passes", least=0)


def check_places(own: OffloadOptions) -> None:
    """Raise UsageError if parameters on the host should also stay on the device."""
    if own.parameters == "host" and (own.zero < 3 or own.limits.persist):
        other = "--persist" if own.limits.persist else f"--zero {own.zero}"
        raise UsageError(f"--parameters host keeps no parameters on the device: leave out {other}, or say --zero 3")


def check_delay(after: int | None, files: FileOptions, steps: int) -> None:
    """Raise UsageError for fewer than two steps after N: the first late update is made in the second."""
    begun = checkpoints.opened(files.load).state["steps"] if files.load else 0
    if after is not None and steps < max(after, begun) + 2:
        raise UsageError(f"--delayed-update {after} needs at least --steps {max(after, begun) + 2}")
    if after is not None and files.save_every == 1:
        raise UsageError("--delayed-update: a checkpoint waits for the update, so --save-every must be 2 or more")


class OffloadChapter(Chapter[OffloadOptions]):
    name, doc, options = "offload", offload.__doc__, OffloadOptions
    cases = {f"ZeRO-{stage}": f"--accumulate 2 --zero {stage}" for stage in (1, 2, 3)} | {
        "all": "--zero 3 --parameters host"
    }

    def checked(self, job: Job[OffloadOptions]) -> Job[OffloadOptions]:
        check_limits(job.own.limits, job.training.recompute, job.own.zero)
        check_places(job.own)
        check_delay(job.own.delayed_update, job.files, job.training.steps)
        return job

    def make(self, job: Job[OffloadOptions], comm: Any) -> offload.Offload:
        own, threads = job.own, max(1, (os.cpu_count() or 1) // local_ranks())
        engine = offload.OffloadAll if own.parameters == "host" else offload.ENGINES[own.zero]
        make = limited(engine, own.limits.asked)
        return make(job.units, job.settings, comm, delay_after=own.delayed_update, threads=threads)

    def serial(self, job: Job[OffloadOptions]) -> Serial:
        """If updates run during the next step, its gradients are those of the weights before."""
        if job.own.delayed_update is None:
            return PLAIN

        def make(small: Job[OffloadOptions]) -> Delayed:
            m = small.settings.accumulate
            return Delayed(small.units, small.settings, lambda k, flat: max(k // m - 1, 0))

        return Serial(make, steps=3, plain=False, own=replace(job.own, delayed_update=0))


CHAPTER = OffloadChapter()
