"""The order in which a server takes messages: that of simulated time, in whatever order they arrive."""

import argparse
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from minidist.ps.inbox import Inbox
from minidist.ps.messages import Flush, Pull, Push, WorkerRequest
from minidist.ps.plan import RankPlan


def inbox(workers: int) -> Inbox:
    return Inbox(RankPlan(list(range(workers)), [workers], [], [], 0, True, 0, 0, argparse.Namespace(keys="none"), 0))


def push(worker: int, stamp: float, more: bool = False) -> Push:
    return Push(shard=0, range=0, clock=0, share=1.0, worker=worker, stamp=stamp, more=more)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), max_size=6), min_size=1, max_size=4), st.integers(0, 2**32))
def test_earliest_first_whenever_they_arrive(stamps: list[list[int]], seed: int) -> None:
    """Where nobody waits for an answer: sorted by stamp, then by worker; each worker's in the order that it sent."""
    found, queues = inbox(len(stamps)), []
    for worker, times in enumerate(stamps):
        queues.append([push(worker, time) for time in sorted(times)])
        queues[-1].append(Flush(shard=0, clock=1, worker=worker, stamp=max(times, default=0)))  # type: ignore[arg-type]
    expected = sorted((message.stamp, message.worker) for queue in queues for message in queue)
    order, taken = random.Random(seed), []
    while any(queues):
        found.add(order.choice([queue for queue in queues if queue]).pop(0))
        taken += list(iter(lambda: found.next(()), None))
    assert [(message.stamp, message.worker) for message in taken] == expected


def test_who_is_held_back_sends_nothing_earlier() -> None:
    """A worker whose pull is held back is not waited for; unless it had not yet sent all of that moment's messages."""
    messages: list[WorkerRequest] = [
        Pull(shard=0, range=0, clock=1, worker=0, stamp=1.0, more=True),
        Pull(shard=0, range=1, clock=1, worker=0, stamp=1.0),
    ]
    late, found = push(1, 2.0), inbox(2)
    found.add(late)
    found.add(messages[0])
    assert found.next(()) is messages[0]
    assert found.next({0}) is None  # held back; its second pull is still on its way, and earlier than 2.0
    found.add(messages[1])
    assert found.next({0}) is messages[1]
    assert found.next(()) is None  # if it were answered, it might push at 1.5
    assert found.next({0}) is late
