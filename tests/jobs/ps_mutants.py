"""Broken parameter servers: each breaks a promise, and trains none the less."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from jobs.parameter_server import prepared
from minidist import parameter_server, ring
from minidist.ps import claims
from minidist.ps.engines import Whole
from minidist.ps.key_lists import KeyLists
from minidist.ps.messages import Copied, Pull, Push, Update
from minidist.ps.replication import ReplicaChain
from minidist.ps.requests import Requests
from minidist.ps.vector_clock import RangeClocks


def every_push_twice() -> Any:
    """The second is a duplicate, as after the end of a server, and changes nothing."""
    send = Requests.send

    def twice(self: Any, messages: list[Any]) -> None:
        send(self, [*(replace(message) for message in messages if isinstance(message, Push)), *messages])

    return patch.object(Requests, "send", twice)


@contextmanager
def every_pull_twice() -> Iterator[None]:
    """A worker asks again for the weights that it has just got."""
    send, wait = Requests.send, Requests.wait
    asked: dict[int, list[Any]] = {}

    def remembered(self: Any, messages: list[Any]) -> None:
        asked[id(self)] = [message for message in messages if isinstance(message, Pull)]
        send(self, messages)

    def again(self: Any, serve: Any) -> None:
        wait(self, serve)
        if asked[id(self)]:
            send(self, [replace(message) for message in asked[id(self)]])
            wait(self, serve)

    with patch.object(Requests, "send", remembered), patch.object(Requests, "wait", again):
        yield


def a_clock_for_half_a_range() -> Any:
    set_clock = RangeClocks.set

    def halves(self: Any, lo: int, hi: int, worker: int, clock: int) -> None:
        set_clock(self, lo, (lo + hi) // 2, worker, clock)
        set_clock(self, (lo + hi) // 2, hi, worker, clock)

    return patch.object(RangeClocks, "set", halves)


def weights_as_old_as_may_be() -> Any:
    return patch.object(parameter_server.Server, "fresh", lambda self, request, clocks: True)


def keys_every_time() -> Any:
    return patch.object(KeyLists, "shortened", lambda self, message, receiver: message)


def keys_only_once() -> Any:
    """The server is left to guess that no list means the same list."""
    shortened, told = KeyLists.shortened, set()

    def once(self: Any, message: Any, receiver: int) -> Any:
        name = (id(self), type(message), getattr(message, "range", None))
        if name in told and isinstance(message, Push | Pull):
            return replace(message, keys=None)
        told.add(name)
        return shortened(self, message, receiver)

    return patch.object(KeyLists, "shortened", once)


def keys_cut_evenly_again() -> Any:
    """No consistent hashing: with every server that joins, all borders move."""

    def even(servers: Any, virtual: int, size: int) -> list[tuple[int, int, int]]:
        shares = [ring.chunk(size, len(servers), i) for i in range(len(servers))]
        return [(keys.start, keys.stop, i) for i, keys in enumerate(shares)]

    return patch.object(claims, "segments", even)


def every_copy_sent_twice() -> Any:
    pass_on = ReplicaChain._pass_on

    def twice(self: Any, update: Update) -> None:
        place = self.ranks.index(self.mailbox.rank)
        if place + 1 < len(self.ranks):
            self.mailbox.send(self.ranks[place + 1], update)
        pass_on(self, update)

    return patch.object(ReplicaChain, "_pass_on", twice)


def copies_that_only_nod() -> Any:
    """A copy says that it has made an update, and has not."""
    handle = parameter_server.Server.handle

    def nod(self: Any, message: Any) -> None:
        if isinstance(message, Update):
            names = Copied(shard=self.shard, range=message.range, worker=message.worker, clock=message.clock)
            self.mailbox.send(self.chain.ranks[0], names)
        else:
            handle(self, message)

    return patch.object(parameter_server.Server, "handle", nod)


def fallen(comm: Any, cases: list[tuple[str, list[str]]]) -> list[list[str]]:
    """For each broken program with a command line, the claims that do not hold."""
    found = []
    for mutant, arguments in cases:
        broken: Callable[[], Any] = globals()[mutant]
        with broken():
            job, plan = prepared(arguments, comm.size)
            plan = parameter_server.consistent(plan, job.options.consistency, job.options.staleness)
            outcome = parameter_server.train_once(comm, job, plan, Whole(job, len(plan.servers)).read())
            made = claims.claims(outcome) if outcome else []
        found.append([claim.claim for claim in made if not claim.holds])
    return found
