"""One job over every transport that there is."""

import atexit
import functools
import importlib
from collections.abc import Callable
from typing import Any

from minidist.classroom.grading.nursery import Nursery
from minidist.classroom.grading.router import route
from minidist.exchange.by_rules import run_by_rules
from minidist.exchange.one_process import run_ranks
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


def here(target: str, n: int, run: Callable[[Callable[[Comm], RankResult], int], list[RankResult]]) -> list[RankResult]:
    """In this process."""
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)

    def be_rank(comm: Comm) -> RankResult:
        value = function(comm)
        sent: Any = {key: tuple(counts) for key, counts in comm.ledger.sent.items()}
        bytes_, messages = comm.ledger.control
        return RankResult(finished=True, value=value, sent=sent, control=(bytes_, messages))

    return run(be_rank, n)


def by_rules(target: str, n: int, rules: Rules) -> list[RankResult]:
    return here(target, n, functools.partial(run_by_rules, rules=rules))


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
    "one process": functools.partial(here, run=run_ranks),
    "rules": functools.partial(by_rules, rules=Rules("synchronous", "contrary")),
    "rules, eager": functools.partial(by_rules, rules=Rules("eager", "drawn")),
    "processes": lambda target, n: over_router(target, n, Rules("synchronous", "contrary")),
    "processes, eager": lambda target, n: over_router(target, n, Rules("eager", "drawn")),
}
