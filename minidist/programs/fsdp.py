"""FSDP as a program: its strategies, their options, and what the paper says of its runs (`minidist/claims/fsdp.py`)."""

from collections.abc import Sequence
from typing import Any

from minidist import UsageError, command, fsdp
from minidist.claims.fsdp import claims, print_closing
from minidist.cli.options import Parser, at_least
from minidist.data_parallel import Axes, DataParallel
from minidist.layout import Layout, Mesh
from minidist.mpi.comm import Comm
from minidist.programs.chapter import Chapter
from minidist.zero3 import across_hosts

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


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. Raises UsageError for whatever cannot work."""
    job = command.prepare(made, arguments, ranks, **how)
    job.layout = layout_of(job.options, ranks)
    return job


def layout_of(options: command.Options, ranks: int) -> Layout:
    """Hosts, by strategy. Raises UsageError for what does not go together."""
    o, strategy = options, f"--strategy {options.strategy}"
    if o.strategy == "no_shard" and (o.backward_prefetch or o.forward_prefetch or o.prefetch):
        raise UsageError(f"{strategy} gathers nothing: leave --prefetch, --forward-prefetch and --backward-prefetch")
    if o.strategy == "no_shard" and o.no_sync:
        raise UsageError(f"{strategy} has whole gradients, and reduces them once a step anyway: leave out --no-sync")
    if o.strategy == "shard_grad_op" and o.backward_prefetch:
        raise UsageError(f"{strategy} gathers nothing in its backward: leave out --backward-prefetch")
    if o.no_sync and o.accumulate == 1:
        raise UsageError("--no-sync is of several micro-batches: use it with --accumulate 2 or more")
    if o.ranks_per_host and o.strategy != "hybrid_shard":
        raise UsageError(f"--ranks-per-host is of --strategy hybrid_shard: {strategy} leaves no choice")
    o.backward_prefetch, o.prefetch = o.backward_prefetch or "pre", o.prefetch or 1
    if o.strategy != "hybrid_shard":
        return Layout(dp=ranks, hosts=ranks if o.strategy == "no_shard" else 1)
    shard = o.ranks_per_host or (ranks if ranks % 2 else ranks // 2)
    if ranks % shard:
        works = max(n for n in range(1, ranks + 1) if ranks % n == 0 and n < shard)
        raise UsageError(f"{ranks} ranks are no hosts of {shard} each: use --ranks-per-host {works}")
    return Layout(dp=ranks, hosts=ranks // shard)


def make(job: command.Job, comm: Comm) -> DataParallel:
    units, settings, options = job.units, job.settings, job.options
    if options.strategy == "no_shard":
        return DataParallel(units, settings, comm)
    axes = Axes(rows=comm)  # all ranks share out the batch
    if job.layout.hosts > 1:
        mesh = Mesh(comm, job.layout)
        comm = mesh.along("shard")
        across_hosts(units, comm, mesh.along("host"))
    return fsdp.FSDP(
        units,
        settings,
        comm,
        axes,
        reshard_after_forward=options.strategy != "shard_grad_op",
        forward_prefetch=options.forward_prefetch,
        backward_prefetch=options.backward_prefetch,
        prefetch=options.prefetch,
        no_sync=options.no_sync,
    )


CHAPTER = Chapter(
    name="fsdp",
    doc=fsdp.__doc__,
    make=make,
    add_options=add_options,
    prepare=prepare,
    claims=claims,
    closing=print_closing,
    cases={name: f"--forward-prefetch --strategy {name}" for name in ("full_shard", "hybrid_shard")},
)
