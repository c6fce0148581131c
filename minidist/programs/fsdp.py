"""FSDP as a program: its strategies, their options, and what the paper says of its runs (`minidist/claims/fsdp.py`)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from minidist import UsageError, command, fsdp
from minidist.claims import fsdp as papers
from minidist.claims import routed
from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim
from minidist.claims.context import attention_claims
from minidist.claims.run import Run
from minidist.cli.options import Parser, at_least
from minidist.cp.options import check_context
from minidist.data_parallel import DataParallel
from minidist.engine import Settings
from minidist.ep.count import count
from minidist.ep.options import add_division, check_division, choose_ep
from minidist.formulas.context import Blocks, blocks
from minidist.formulas.shares import shares_of
from minidist.layout import Layout
from minidist.mpi.comm import Comm
from minidist.nn.layers import Linear, Unit
from minidist.parallel3d import grid
from minidist.programs.chapter import Chapter
from minidist.programs.context_parallel import add_context_options

STRATEGIES = ("full_shard", "shard_grad_op", "hybrid_shard", "no_shard")


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--strategy", choices=STRATEGIES, metavar="NAME", default="full_shard", help=f"or {', '.join(STRATEGIES[1:])}")
    add(
        "--ranks-per-host", type=at_least(1), metavar="G", help="hybrid_shard: they divide states; default: half of all"
    )
    parser.alias("--shard", "--ranks-per-host")
    add("--backward-prefetch", choices=("pre", "post", "none"), metavar="W", help="pre, post or none; default: pre")
    add("--forward-prefetch", action="store_true", help="gather the next units before a forward, too")
    add("--prefetch", type=at_least(1), metavar="K", help="units gathered ahead; default: 1")
    add("--no-sync", action="store_true", help="reduce once for all micro-batches (--accumulate)")
    add("--cp", type=at_least(1), metavar="N", default=1, help="divide sequences; --scheme, --positions")
    add_context_options(parser, listed=False)
    add_division(parser)


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. Raises UsageError for options that cannot work."""
    layout = layout_of(made.parse_args(arguments), ranks)
    job = command.prepare(made, arguments, ranks, layout, **how)
    job.layout = layout_of(job.options, ranks)
    return job


def layout_of(options: command.Options, ranks: int) -> Layout:
    """The ranks' layout: hosts by strategy, context ranks, ranks that divide experts. Sets the options that were left
    open. Raises UsageError for options that do not go together."""
    o, strategy = options, f"--strategy {options.strategy}"
    if o.strategy == "no_shard" and (o.backward_prefetch or o.forward_prefetch or o.prefetch):
        raise UsageError(f"{strategy} gathers nothing: leave --prefetch, --forward-prefetch and --backward-prefetch")
    if o.strategy == "no_shard" and o.no_sync:
        raise UsageError(f"{strategy} has whole gradients, and reduces them once a step anyway: leave out --no-sync")
    if o.strategy == "no_shard" and (o.cp > 1 or o.experts):
        raise UsageError(
            f"{strategy} divides nothing: with --cp and --experts use python -m minidist.parallel3d --zero 0"
        )
    if o.strategy == "shard_grad_op" and o.backward_prefetch:
        raise UsageError(f"{strategy} gathers nothing in its backward: leave out --backward-prefetch")
    if o.no_sync and o.accumulate == 1:
        raise UsageError("--no-sync is of several micro-batches: use it with --accumulate 2 or more")
    if o.ranks_per_host and o.strategy != "hybrid_shard":
        raise UsageError(f"--ranks-per-host needs --strategy hybrid_shard, not {strategy}")
    o.backward_prefetch, o.prefetch = o.backward_prefetch or "pre", o.prefetch or 1
    if ranks % o.cp:
        works = max(n for n in range(1, min(o.cp, ranks) + 1) if ranks % n == 0)
        raise UsageError(f"--cp {o.cp} does not divide {ranks} ranks: use --cp {works}")
    check_context(o, o.cp)
    check_division(o)
    dp = ranks // o.cp
    if o.strategy == "no_shard":
        return Layout(dp=ranks, hosts=ranks)
    shard = dp
    if o.strategy == "hybrid_shard":
        shard = o.ranks_per_host or (dp if dp % 2 else dp // 2)
    if dp % shard:
        works = max(n for n in range(1, dp + 1) if dp % n == 0 and n < shard)
        raise UsageError(f"{dp} ranks are no hosts of {shard} each: use --ranks-per-host {works}")
    ep = choose_ep(o, shard * o.cp) if o.experts else 1
    return Layout(dp=dp, cp=o.cp, hosts=dp // shard, ep=ep)


def make(job: command.Job, comm: Comm) -> DataParallel:
    options = job.options
    if options.strategy == "no_shard":
        return DataParallel(job.units, job.settings, comm)
    build = partial(
        fsdp.FSDP,
        reshard_after_forward=options.strategy != "shard_grad_op",
        forward_prefetch=options.forward_prefetch,
        backward_prefetch=options.backward_prefetch,
        prefetch=options.prefetch,
        no_sync=options.no_sync,
    )
    how = {"scheme": options.scheme, "positions": options.positions}
    made = grid(job.units, job.settings, comm, job.layout, build=build, **how)
    assert isinstance(made, DataParallel)
    return made


def claims(run: Run) -> list[Claim]:
    """FSDP's claims, and those of context ranks and of experts, if there are any."""
    shares, mixture = shares_of(run), run.model.experts > 0
    held = routed.activations(run, shares) if mixture else [peak_of_layers(run)]
    if run.layout.cp == 1 and not mixture:
        return papers.claims(run, held)
    on_way, added, others = list[Blocks](), 0.0, list[Claim]()
    if run.layout.cp > 1:
        on_way = blocks(run, validates=run.validate > 0)
        others, added = attention_claims(run)
    if mixture:
        others += [*routed.all_to_alls(run, shares), *routed.exchanges(run, shares), *routed.routing(run)]
        added += routed.bytes_sent(run, shares)
    return [*papers.claims(run, held, on_way, added), *others]


def hold_linear(comm: Comm, inputs: int, outputs: int) -> float:
    """Elements of a linear layer that this rank holds, if all ranks divide it: the paper's figure 3."""
    unit = Unit()
    unit.name = "linear"
    unit.own([Linear(unit.name, inputs, outputs, bias=True)])
    engine = fsdp.FSDP([unit], Settings(), comm)
    return engine.device.peak["parameters"] / np.dtype(engine.precision.stored).itemsize


def perform(chapter: Chapter, comm: Any, job: command.Job) -> int:
    return chapter.train(comm, job, count=count if job.options.experts else None)


CHAPTER = Chapter(
    name="fsdp",
    doc=fsdp.__doc__,
    make=make,
    add_options=add_options,
    prepare=prepare,
    claims=claims,
    closing=papers.print_closing,
    perform=perform,
    cases={
        **{name: f"--forward-prefetch --strategy {name}" for name in ("full_shard", "hybrid_shard")},
        "context": "--cp {axis}",
        "experts": "--experts 8 --ep {axis}",
        "both": "--cp {axis} --experts 8 --scheme all-gather --forward-prefetch",
    },
)
