"""Tensor parallelism as a program: its options."""

from dataclasses import dataclass
from typing import Any

from minidist import tensor_parallel
from minidist.cli.fields import flag
from minidist.cli.shared import Line
from minidist.command import Job
from minidist.engine import Engine
from minidist.layout import Layout
from minidist.programs.axes import check_tensor, sequence_flag
from minidist.programs.chapter import Chapter
from minidist.tp.count import count_with_dropout


@dataclass(frozen=True, kw_only=True)
class TensorOptions:
    sequence_parallel: bool = sequence_flag()
    gather_logits: bool = flag("for comparison: a loss on every rank's logits")


class TensorParallelChapter(Chapter[TensorOptions]):
    name, doc, options = "tensor_parallel", tensor_parallel.__doc__, TensorOptions
    count = staticmethod(count_with_dropout)
    cases = {"": "", "sequence": "--sequence-parallel"}

    def layout(self, line: Line[TensorOptions], ranks: int) -> Layout:
        """Ranks do not divide the batch: all work on all of it."""
        check_tensor(line.model, line.own.sequence_parallel, ranks)
        return Layout(tp=ranks)

    def make(self, job: Job[TensorOptions], comm: Any) -> Engine:
        how = job.own.sequence_parallel, job.own.gather_logits
        return tensor_parallel.tensor_parallel(job.units, job.settings, comm, *how)


CHAPTER = TensorParallelChapter()
