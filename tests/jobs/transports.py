"""One job over every transport that there is."""

import atexit
import functools
import importlib
from collections.abc import Callable
from typing import Any

from minidist.classroom.nursery import Nursery
from minidist.classroom.router import route
from minidist.mpi.comm import Comm
from minidist.mpi.exchange import Rules
from minidist.mpi.job import RankResult
from minidist.mpi.launch import launch
from minidist.mpi.threads import run_threads


def over_mpi(target: str, n: int) -> list[RankResult]:
    done = launch(target, n)
    assert done.status == "ok", done.report
    return done.ranks


def in_a_crowd(comm: Comm, target: str) -> Any:
    """Over the port of ranks that share a core, however many cores there are."""
    from mpi4py import MPI

    from minidist.mpi.over_mpi import CrowdedPort

    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)(Comm(CrowdedPort(MPI.COMM_WORLD), comm.ledger))


def over_crowded_mpi(target: str, n: int) -> list[RankResult]:
    done = launch("jobs.transports:in_a_crowd", n, target)
    assert done.status == "ok", done.report
    return done.ranks


def on_threads(target: str, n: int, rules: Rules) -> list[RankResult]:
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)

    def be_rank(comm: Comm) -> RankResult:
        value = function(comm)
        sent: Any = {key: tuple(counts) for key, counts in comm.ledger.sent.items()}
        bytes_, messages = comm.ledger.control
        return RankResult(finished=True, value=value, sent=sent, control=(bytes_, messages))

    return run_threads(be_rank, n, rules)


@functools.cache
def nursery() -> Nursery:
    """One for all tests of a process."""
    made = Nursery()
    atexit.register(made.close)
    return made


def over_router(target: str, n: int, rules: Rules) -> list[RankResult]:
    """With the counts of the router, not those of the ranks."""
    done = route(nursery(), target, [()] * n, rules, patience=60)
    assert done.status == "ok", done.report
    return done.ranks


TRANSPORTS: dict[str, Callable[[str, int], list[RankResult]]] = {
    "MPI": over_mpi,
    "MPI, crowded": over_crowded_mpi,
    "threads": lambda target, n: on_threads(target, n, Rules("synchronous", "contrary")),
    "threads, eager": lambda target, n: on_threads(target, n, Rules("eager", "drawn")),
    "processes": lambda target, n: over_router(target, n, Rules("synchronous", "contrary")),
    "processes, eager": lambda target, n: over_router(target, n, Rules("eager", "drawn")),
}
