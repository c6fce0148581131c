"""What collectives must return and may send, next to what they returned and sent."""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from minidist.claims.claim import Claim, claims_as_rows, on_each_rank
from minidist.claims.screen import print_collectives
from minidist.cli.paths import write_json
from minidist.mpi.comm import Comm
from minidist.papers.collectives import Cost

Array = np.ndarray


class Collective(NamedTuple):
    """A row of the comparison."""

    run: Callable[[Comm, Array], Array]  # from x (S,) to the result
    truth: Callable[[list[Array], int], Array]  # from all ranks' x and a rank to what that rank must get
    cost: Callable[[int, int], Cost]  # from S and N to the exact cost
    figure: str  # what the busiest rank sends, by the papers; p is the largest power of two up to N


def sum_of(inputs: list[Array], rank: int) -> Array:
    """What an all-reduce gives every rank."""
    return np.sum(inputs, axis=0)


def rows_of(n: int, x: Array) -> Array:
    """x as n rows, without the elements that are left over."""
    return x[: x.size // n * n].reshape(n, -1)


def compare(comm: Comm, options: argparse.Namespace, collectives: dict[str, Collective]) -> int:
    """Run every collective once on `--size` float32, and check its result against the truth and its traffic against
    the formula; the exit status."""
    draws = (np.random.default_rng(rank) for rank in range(comm.size))
    inputs = [draw.integers(0, 100, options.size).astype(np.float32) for draw in draws]
    claims = []
    for name, (collective, truth, formula, figure) in collectives.items():
        comm.ledger.reset()
        begun = comm.ledger.waits
        result = collective(comm, inputs[comm.rank])
        calls, nbytes = comm.ledger.waits - begun, comm.ledger.total()
        wrong = int((result != truth(inputs, comm.rank)).sum())  # whole numbers: sums are exact in any order
        counted = comm.all_gather_object((wrong, calls, nbytes))
        wrongs, steps, sent = zip(*counted, strict=True)
        cost = formula(options.size, comm.size)
        promised = [elements * result.itemsize for elements in cost.sent]
        folded = "+S" if "p" in figure and comm.size & (comm.size - 1) else ""
        claims += [
            on_each_rank(name, "wrong elements of the result", "", 0, wrongs, "elements"),
            Claim(name, "calls of the busiest rank", "", cost.steps, max(steps), "calls"),
            on_each_rank(name, "sent by each rank", figure + folded, promised, sent, "bytes"),
            Claim(name, "sent by the busiest rank", figure + folded, max(promised), max(sent), "bytes"),
            Claim(name, "sent by the idlest rank", "", min(promised), min(sent), "bytes"),
            Claim(name, "sent in all", "", sum(promised), sum(sent), "bytes"),
        ]
    if comm.rank == 0:
        if options.json != "-":
            print_collectives(claims, options.size, comm.size)
        if options.json:
            write_json(options.json, {"chapter": "ring", "ranks": comm.size, "claims": claims_as_rows(claims)})
    return 0 if all(claim.holds for claim in claims) else 1
