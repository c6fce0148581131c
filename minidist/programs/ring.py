"""The collectives as a program: runs each once, and compares its result and what it sends with the papers."""

import argparse
from collections.abc import Sequence

import numpy as np

from minidist import collectives, ring
from minidist.claims.collectives import Collective, Inputs, compare, rows_of
from minidist.cli.options import Parser, at_least, timeout
from minidist.cli.paths import check_writable
from minidist.mpi.comm import Comm
from minidist.mpi.stops import TIMEOUT
from minidist.papers import collectives as formulas
from minidist.programs.chapter import Program


def whole_sum(inputs: Inputs, rank: int) -> np.ndarray:
    """What an all-reduce gives every rank."""
    return inputs.total


COLLECTIVES = {
    "all-reduce ring": Collective(ring.all_reduce, whole_sum, formulas.ring_all_reduce, "2(N-1)/N·S"),
    "all-reduce server": Collective(collectives.server_all_reduce, whole_sum, formulas.server_all_reduce, "(N-1)·S"),
    "all-reduce tree": Collective(collectives.tree_all_reduce, whole_sum, formulas.tree_all_reduce, "⌈lg N⌉·S"),
    "all-reduce doubling": Collective(
        collectives.doubling_all_reduce, whole_sum, formulas.doubling_all_reduce, "lg p·S"
    ),
    "all-reduce halving": Collective(
        collectives.halving_doubling_all_reduce, whole_sum, formulas.halving_doubling_all_reduce, "2(p-1)/p·S"
    ),
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


def parser() -> Parser:
    made = Parser("ring", ring.__doc__ or "")
    made.add_argument("--size", type=at_least(0, at_most=10**8), default=20_003, help="S: float32 elements")
    made.add_argument("--only", type=names_of, action="extend", metavar="NAME", help="only this; may be repeated")
    made.add_argument("--timeout", type=timeout, default=TIMEOUT, metavar="S", help="if a rank is silent; 0: never")
    made.ranks()
    made.output("--json", help="write the report for machines; - is standard output")
    return made


def prepare(made: Parser, arguments: Sequence[str], comm: Comm) -> argparse.Namespace:
    options = made.parse_args(arguments)
    check_writable("--json", options.json if options.json != "-" else None)
    return options


CHAPTER = Program(
    name="ring",
    parser=parser,
    prepare=prepare,
    cases={"": "--size 20003"},
    work=lambda comm, options: compare(comm, options, COLLECTIVES),
)
