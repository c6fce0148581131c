"""Local SGD as a program: its options, and what the papers say of its runs."""

from collections.abc import Sequence
from typing import Any

from minidist import UsageError, command, local_sgd
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.proof import PHASE
from minidist.claims.published import print_zero_closing
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims
from minidist.cli.options import Parser, at_least, within
from minidist.cli.tables import say
from minidist.papers import local_sgd as paper
from minidist.programs.chapter import Chapter
from minidist.programs.serial import Averaged, Serial


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--every", type=at_least(1), metavar="H", default=10, help="steps from one averaging to the next")
    add("--outer-lr", type=within(0, 10), metavar="X", default=1.0, help="DiLoCo's outer learning rate; its paper: 0.7")
    add("--outer-momentum", type=within(0, 1), metavar="X", default=0.0, help="and Nesterov momentum; its paper: 0.9")
    parser.set_defaults(precision="fp32")


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. Raises UsageError for options that cannot work."""
    job = command.prepare(made, arguments, ranks, **how)
    if job.options.precision == "mixed":
        raise UsageError("--precision mixed: ranks on their own have no common loss scale: use bf16, fp32 or fp64")
    for option in ("save", "load", "export"):
        if vars(job.options)[option]:
            raise UsageError(f"--{option}: between two averagings each rank has its own parameters: leave it out")
    return job


def count(job: command.Job, engine: Any) -> dict[str, int]:
    """Bytes that this rank sent in all steps together: in most steps it sends nothing."""
    ever = engine.comm.ledger.ever().items()
    steps = {key: n for key, n in ever if key[1] != PHASE}
    return {"sent": sum(n for (kind, *_, unit), n in steps.items() if (kind, unit) == ("payload", "bytes"))}


def claims(run: Run) -> list[Claim]:
    o, wide = run.averaging, 8 if run.precision == "fp64" else 4  # the optimizer's copy is averaged
    psi, sent = run.model.parameters(run.ranks), [counted["sent"] for counted in run.counted]
    volume = wide * paper.volume(psi, run.ranks, len(run.loss), o.every)
    outer = paper.outer(psi, o.lr, o.momentum, wide)
    formula = f"{2 * wide}Ψ" if outer else "0"
    return [
        *memory_claims(run, stage=0),
        on_each_rank("DiLoCo §2", "outer optimizer", formula, outer, run.memory_of("outer"), "bytes"),
        on_each_rank("Stich §1", "sent, in T steps", f"⌈T/H⌉·{wide}·2Ψ(N-1)/N", volume, sent, "bytes"),
    ]


def print_closing(run: Run) -> None:
    """Print what the formulas' letters mean."""
    say("T: steps; H: steps from one averaging to the next (--every).")
    print_zero_closing(run)


def serial(job: command.Job) -> Serial:
    """A training on each rank's rows, and the mean of them all."""
    o, n = job.options, job.layout.dp
    return Serial(
        lambda small: Averaged(small, n, small.options.every, o.outer_lr, o.outer_momentum),
        steps=3,
        plain=False,
        options={"every": min(o.every, 2)},  # and then once more, after a single step
    )


CHAPTER = Chapter(
    name="local_sgd",
    doc=local_sgd.__doc__,
    make=lambda job, comm: local_sgd.LocalSGD(
        job.units, job.settings, comm, job.options.every, job.options.outer_lr, job.options.outer_momentum
    ),
    add_options=add_options,
    prepare=prepare,
    claims=claims,
    closing=print_closing,
    serial=serial,
    perform=lambda chapter, comm, job: chapter.train(comm, job, count=count),
    cases={"": "--every 2", "DiLoCo": "--every 2 --outer-lr 0.7 --outer-momentum 0.9"},
)
