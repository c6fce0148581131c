"""Bandwidths of the collectives as nccl-tests defines them, next to the limit of a link; and what its factors mean."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from minidist.claims.collectives import Collective
from minidist.cli.tables import number, print_table
from minidist.mpi.comm import Comm
from minidist.papers.nccl import FACTORS, algorithm_bandwidth, bus_bandwidth

SIZES = [1 << power for power in (12, 16, 18, 20, 22, 25)]  # bytes
REPEATS = 5


def compare_bandwidths(comm: Comm, collectives: Mapping[str, Collective]) -> None:
    """Time each collective at each size, MPI's own all-reduce, too, if ranks are MPI's; rank 0 prints."""
    n, counted = comm.size, dict[str, float]()
    for nbytes in SIZES:
        x = np.zeros(nbytes // 4, np.float32)
        room = np.empty_like(x)
        ways: dict[str, Callable[[], Any]] = {name: partial(of.run, comm, x) for name, of in collectives.items()}
        if mpi := getattr(comm._port, "mpi", None):
            ways["all-reduce MPI's own"] = partial(mpi.Allreduce, x, room)
        link = best_time(comm, partial(comm.sendrecv, x, (comm.rank + 1) % n, room, (comm.rank - 1) % n))
        rows = []
        for name, way in ways.items():
            comm.ledger.reset()
            way()
            counted[name] = max(comm.all_gather_object(comm.ledger.total())) / nbytes
            seconds, operation = best_time(comm, way), name.split()[0]
            algorithm = algorithm_bandwidth(nbytes, seconds)
            bus, least = bus_bandwidth(operation, n, algorithm), FACTORS[operation][1](n) * link
            rows.append(
                (name, *(f"{value:.3f}" for value in (1e3 * seconds, algorithm, bus)), f"{seconds / least:.2f}")
            )
        if comm.rank == 0:
            title = f"{number(nbytes)} bytes; a link moves {algorithm_bandwidth(nbytes, link):.3f} GB/s"
            print_table(title, "collective", ("ms", "algbw", "busbw", "of the limit"), rows)
    if comm.rank == 0:
        factors = [
            (name, text, f"{of(n):.3f}", *((f"{sent:.3f}", f"{of(n) / sent:.2f}") if sent else ("", "")))
            for name, sent in counted.items()
            for text, of in [FACTORS[name.split()[0]]]
        ]
        print_table("busbw = factor·algbw", "collective", ("factor", "of S", "busiest sends", "busbw/link"), factors)
        print("The limit: factor·S/B, if all links are busy. busbw/link: no more, for what the busiest sends.")


def best_time(comm: Comm, way: Callable[[], Any]) -> float:
    """Seconds of a call, the slowest rank's, in the best of some attempts."""
    taken = []
    for _ in range(REPEATS):
        comm.barrier()
        begun = time.perf_counter()
        way()
        taken.append(max(comm.all_gather_object(time.perf_counter() - begun)))
    return min(taken)
