"""Tensor parallelism as a program: its options, and what the papers say of its runs (`minidist/claims/tensor.py`)."""

from collections.abc import Sequence
from typing import Any

from minidist import command, tensor_parallel
from minidist.claims.published import print_activations_closing
from minidist.claims.tensor import claims
from minidist.cli.options import Parser
from minidist.formulas.needs import needs
from minidist.layout import Layout
from minidist.programs.chapter import Chapter
from minidist.tp.count import count_with_dropout
from minidist.tp.options import check_tensor


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "--sequence-parallel", action="store_true", help="cut norms, dropout and residuals by positions"
    )
    parser.add_argument("--gather-logits", action="store_true", help="for comparison: a loss on every rank's logits")


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. Ranks do not divide the batch: all work on all of it."""
    check_tensor(made.parse_args(arguments), ranks)
    return command.prepare(made, arguments, ranks, Layout(tp=ranks), **how)


CHAPTER = Chapter(
    name="tensor_parallel",
    doc=tensor_parallel.__doc__,
    make=lambda job, comm: tensor_parallel.tensor_parallel(
        job.units, job.settings, comm, job.options.sequence_parallel, job.options.gather_logits
    ),
    add_options=add_options,
    prepare=prepare,
    claims=claims,
    closing=print_activations_closing,
    needs=needs,
    perform=lambda chapter, comm, job: chapter.train(comm, job, count=count_with_dropout),
    cases={"": "", "sequence": "--sequence-parallel"},
)
