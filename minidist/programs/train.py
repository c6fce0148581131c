"""Serial training as a program: one process holds and computes everything."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minidist import UsageError, train
from minidist.cli.fields import part
from minidist.cli.shared import Line, MixtureOptions
from minidist.command import Job
from minidist.engine import Engine
from minidist.layout import Layout
from minidist.mpi import environment
from minidist.programs.axes import check_mixture
from minidist.programs.chapter import Chapter


@dataclass(frozen=True, kw_only=True)
class SerialOptions:
    mixture: MixtureOptions = part(MixtureOptions)


class SerialChapter(Chapter[SerialOptions]):
    name, doc, options = "train", train.__doc__, SerialOptions
    cases = {}

    def layout(self, line: Line[SerialOptions], ranks: int) -> Layout:
        if environment.ranks() > 1 or (line.training.ranks or 1) > 1:
            raise UsageError("this is serial training: run it on one rank, or take minidist.data_parallel")
        check_mixture(line.own.mixture)
        return Layout(dp=ranks)

    def make(self, job: Job[SerialOptions], comm: Any) -> Engine:
        return Engine(job.units, job.settings)

    def serial(self, job: Job[SerialOptions]) -> None:
        return None

    def needs_no_ranks(self, arguments: Sequence[str]) -> bool:
        return True


CHAPTER = SerialChapter()
