"""The collectives as a program: runs each once, and compares its result and what it sends with the papers."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidist import UsageError, collectives, ring
from minidist.claims.collectives import Collective, Inputs, compare, rows_of
from minidist.cli.fields import flag, option, output, parse, ranks_option, whole
from minidist.cli.options import at_least, timeout
from minidist.cli.paths import check_writable
from minidist.mpi.comm import Comm
from minidist.mpi.stops import TIMEOUT
from minidist.papers import collectives as formulas
from minidist.programs.axes import nearest_divisor
from minidist.programs.busbw import compare_bandwidths
from minidist.programs.chapter import Program


def whole_sum(inputs: Inputs, rank: int) -> np.ndarray:
    """What an all-reduce gives every rank."""
    return inputs.total


# Each with its formula, what the busiest rank sends, and whether that depends on which ranks share a host.
ALL_REDUCES: dict[str, tuple[Any, ...]] = {
    "ring": (ring.all_reduce, formulas.ring_all_reduce, "2(N-1)/N·S"),
    "server": (collectives.server_all_reduce, formulas.server_all_reduce, "(N-1)·S"),
    "tree": (collectives.tree_all_reduce, formulas.tree_all_reduce, "⌈lg N⌉·S"),
    "doubling": (collectives.doubling_all_reduce, formulas.doubling_all_reduce, "lg p·S"),
    "halving": (collectives.halving_doubling_all_reduce, formulas.halving_doubling_all_reduce, "2(p-1)/p·S"),
    "binary tree": (collectives.binary_tree_all_reduce, formulas.binary_tree_all_reduce, "3·S"),
    "double tree": (collectives.double_tree_all_reduce, formulas.double_tree_all_reduce, "2·S"),
    "hierarchical": (collectives.hierarchical_all_reduce, formulas.hierarchical_all_reduce, "2(N-1)/N·S", True),
    "hosts first": (collectives.hosts_first_ring, formulas.hosts_first_ring, "2(N-1)/N·S", True),
    "hosts last": (collectives.hosts_last_ring, formulas.hosts_last_ring, "2(N-1)/N·S", True),
}

COLLECTIVES = {
    **{f"all-reduce {name}": Collective(run, whole_sum, *of) for name, (run, *of) in ALL_REDUCES.items()},
    "reduce-scatter ring": Collective(
        ring.reduce_scatter,
        lambda inputs, rank: inputs.total[ring.chunk(inputs.size, inputs.n, rank)],
        formulas.ring_reduce_scatter,
        "(N-1)/N·S",
    ),
    "all-gather ring": Collective(
        lambda comm, x: ring.all_gather(comm, x[ring.chunk(x.size, comm.size, comm.rank)], x.size),
        lambda inputs, rank: np.concatenate([x[ring.chunk(x.size, inputs.n, i)] for i, x in enumerate(inputs.x)]),
        formulas.ring_all_gather,
        "(N-1)/N·S",
    ),
    "broadcast": Collective(
        lambda comm, x: ring.broadcast(comm, x.copy()),
        lambda inputs, rank: inputs.x[0],
        formulas.broadcast,
        "2(N-1)/N·S",
    ),
    "all-to-all": Collective(
        lambda comm, x: ring.all_to_all(comm, rows_of(comm.size, x)),
        lambda inputs, rank: rows_of(inputs.n, inputs.x)[:, rank],
        formulas.all_to_all,
        "(N-1)/N·S",
    ),
}


def names_of(text: str) -> list[str]:
    """An argument type: names of collectives, with commas between them."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in COLLECTIVES]:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(COLLECTIVES)}, not {unknown[0]!r}")
    return names


@dataclass(frozen=True, kw_only=True)
class RingOptions:
    size: int = option(20_003, at_least(0, at_most=10**8), help="S: float32 elements")
    only: tuple[str, ...] = option((), names_of, "NAME", "only this; may be repeated", action="extend")
    timeout: float = option(TIMEOUT, timeout, "S", "if a rank is silent; 0: never")
    ranks_per_host: int | None = whole("G", "ranks that share a host; default: half of all")
    busbw: bool = flag("time 4 KiB to 32 MiB, with nccl-tests' two bandwidths")
    ranks: int | None = ranks_option()
    json: str | None = output("write the report for machines; - is standard output")


class RingChapter(Program[RingOptions]):
    name, doc, options = "ring", ring.__doc__, RingOptions
    cases = {"": "--size 20003"}

    def prepared(self, arguments: Sequence[str], comm: Any) -> RingOptions:
        own = parse(self.parser(), arguments).of(RingOptions)
        if (g := own.ranks_per_host or 1) > 1 and (n := comm.size) % g:
            raise UsageError(f"{n} ranks are no hosts of {g} each: use --ranks-per-host {nearest_divisor(n, g)}")
        check_writable("--json", own.json if own.json != "-" else None)
        return own

    def work(self, comm: Comm, prepared: RingOptions) -> int:
        chosen = {name: COLLECTIVES[name] for name in prepared.only or COLLECTIVES}
        if prepared.ranks_per_host or not comm.evenly_spread:  # otherwise the ranks are where they are
            g = prepared.ranks_per_host or (comm.size if comm.size % 2 else comm.size // 2)
            comm.ledger.host_of = [rank // g for rank in range(comm.size)]
        if prepared.busbw:
            compare_bandwidths(comm, chosen)
            return 0
        return compare(comm, prepared.size, chosen, prepared.json)


CHAPTER = RingChapter()
