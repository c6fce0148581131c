"""What collectives must return and may send, next to what they returned and sent."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from minidist.claims.claim import Claim, claims_as_rows, on_each_rank
from minidist.claims.screen import print_collectives
from minidist.cli.paths import write_json
from minidist.mpi.comm import Comm
from minidist.papers.collectives import Cost

Array = np.ndarray


class Inputs:
    """The x of each of N ranks (N, S), and their sum."""

    def __init__(self, x: Array) -> None:
        self.x, (self.n, self.size) = x, x.shape

    @functools.cached_property
    def total(self) -> Array:
        return self.x.sum(axis=0)


@functools.lru_cache(maxsize=1)  # ranks of one process share them
def draw_inputs(n: int, size: int) -> Inputs:
    """Whole numbers, so that sums are exact in any order."""
    x = np.empty((n, size), np.float32)
    for rank in range(n):
        x[rank] = np.random.default_rng(rank).integers(0, 100, size)
    x.flags.writeable = False
    return Inputs(x)


class Collective(NamedTuple):
    """A row of the comparison."""

    run: Callable[[Comm, Array], Array]  # from x (S,) to the result
    truth: Callable[[Inputs, int], Array]  # from all ranks' x and a rank to what that rank must get
    cost: Callable[..., Cost]  # from S and N to the exact cost
    figure: str  # what the busiest rank sends, by the papers; p is the largest power of two up to N
    by_host: bool = False  # whether it depends on which ranks share a host; then the cost needs G, too


def rows_of(n: int, x: Array) -> Array:
    """x (..., S) as n rows (..., n, S/n), without the elements that are left over."""
    return x[..., : x.shape[-1] // n * n].reshape(*x.shape[:-1], n, -1)


def compare(comm: Comm, size: int, collectives: dict[str, Collective], json: str | None) -> int:
    """Run collectives once on this many float32, and check each one's result against the truth and its traffic against
    the formula; the exit status. json: the report for machines."""
    inputs = draw_inputs(comm.size, size)
    claims, across, hosts = [], {}, comm.hosts
    places = np.argsort([rank for host in hosts for rank in host])  # of each rank, in the formulas, host after host
    for name, (collective, truth, formula, figure, by_host) in collectives.items():
        comm.ledger.reset()
        begun = comm.ledger.waits
        result = collective(comm, inputs.x[comm.rank])
        calls, nbytes = comm.ledger.waits - begun, comm.ledger.total()
        wrong = int((result != truth(inputs, comm.rank)).sum())
        counted = comm.all_gather_object((wrong, calls, nbytes, comm.sent_across()))
        wrongs, steps, sent, crossed = zip(*counted, strict=True)
        cost = formula(size, comm.size, len(hosts[0])) if by_host else formula(size, comm.size)
        order = places if by_host else range(comm.size)
        promised = [cost.sent[i] * result.itemsize for i in order]
        folded = "+S" if "p" in figure and comm.size & (comm.size - 1) else ""
        claims += [
            on_each_rank(name, "wrong elements of the result", "", 0, wrongs, "elements"),
            Claim(name, "calls of the busiest rank", "", cost.steps, max(steps), "calls"),
            on_each_rank(name, "sent by each rank", figure + folded, promised, sent, "bytes"),
            Claim(name, "sent by the busiest rank", figure + folded, max(promised), max(sent), "bytes"),
            Claim(name, "sent by the idlest rank", "", min(promised), min(sent), "bytes"),
            Claim(name, "total sent", "", sum(promised), sum(sent), "bytes"),
        ]
        if by_host:
            promised = [cost.across[i] * result.itemsize for i in order]
            claims.append(on_each_rank(name, "sent across hosts by each rank", "", promised, crossed, "bytes"))
        across[name] = max(sum(crossed[rank] for rank in host) for host in hosts)
    if comm.rank == 0:
        if json != "-":
            print_collectives(claims, size, comm.size, len(hosts[0]), across)
        if json:
            write_json(json, {"chapter": "ring", "ranks": comm.size, "claims": claims_as_rows(claims)})
    return 0 if all(claim.holds for claim in claims) else 1
