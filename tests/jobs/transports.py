"""One job over every transport that there is."""

import atexit
import functools
import importlib
from collections.abc import Callable
from typing import Any

from minidist.classroom.nursery import Nursery
from minidist.classroom.router import route
from minidist.exchange.by_rules import run_by_rules
from minidist.exchange.rules import Rules
from minidist.launch.job import RankResult
from minidist.launch.launcher import launch
from minidist.mpi.comm import Comm


def on_port(comm: Comm, port: str, target: str) -> Any:
    """Over this port of MPI's, however many ranks share a core here."""
    from minidist.mpi import over_mpi

    module, _, name = target.partition(":")
    chosen = getattr(over_mpi, port)(over_mpi.MPI.COMM_WORLD)
    return getattr(importlib.import_module(module), name)(Comm(chosen, comm.ledger))


def over_mpi(port: str, target: str, n: int) -> list[RankResult]:
    done = launch("jobs.transports:on_port", n, port, target)
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

    return run_by_rules(be_rank, n, rules)


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
    "MPI": functools.partial(over_mpi, "MPIPort"),
    "MPI, crowded": functools.partial(over_mpi, "CrowdedPort"),
    "threads": lambda target, n: on_threads(target, n, Rules("synchronous", "contrary")),
    "threads, eager": lambda target, n: on_threads(target, n, Rules("eager", "drawn")),
    "processes": lambda target, n: over_router(target, n, Rules("synchronous", "contrary")),
    "processes, eager": lambda target, n: over_router(target, n, Rules("eager", "drawn")),
}
