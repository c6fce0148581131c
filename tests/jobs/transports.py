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
from minidist.launch.target_function import find_function
from minidist.mpi.comm import Comm, Ledger


def counted(function: Callable[[Comm], Any], comm: Comm) -> tuple[Any, Any, Any]:
    """What it returns, and what its rank has sent."""
    value = function(comm)
    sent = {key: tuple(counts) for key, counts in comm.ledger.sent.items()}
    return value, sent, tuple(comm.ledger.control)


def on_port(comm: Comm, port: str, targets: list[str]) -> list[Any]:
    """One after the other over this port of MPI's, however many ranks share a core here."""
    from minidist.mpi import over_mpi

    chosen = getattr(over_mpi, port)(over_mpi.MPI.COMM_WORLD)
    return [counted(find_function(target), Comm(chosen, Ledger())) for target in targets]


@functools.cache
def started(port: str, n: int, *targets: str) -> list[Any]:
    """MPI is started once for all of them."""
    return launch("jobs.transports:on_port", n, port, targets).values


def over_mpi(port: str, target: str, n: int) -> list[RankResult]:
    module, _, name = target.partition(":")
    beside = getattr(importlib.import_module(module), "TOGETHER", {}).get(n, ())
    targets = [f"{module}:{each}" for each in beside] if name in beside else [target]
    found = [rank[targets.index(target)] for rank in started(port, n, *targets)]
    return [RankResult(finished=True, value=value, sent=sent, control=control) for value, sent, control in found]


def here(target: str, n: int, run: Callable[[Callable[[Comm], Any], int], list[Any]]) -> list[RankResult]:
    """In this process."""
    found = run(functools.partial(counted, find_function(target)), n)
    return [RankResult(finished=True, value=value, sent=sent, control=control) for value, sent, control in found]


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
