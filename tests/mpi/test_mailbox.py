"""Mailboxes: what is posted arrives, from whoever posted it, in order, once, and is counted."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.mailbox import ARRAYS
from jobs.transports import TRANSPORTS
from minidist.launch.launcher import launch

Run = Callable[[str, int], Any]


@functools.cache
def start(transport: str, job: str, n: int) -> Any:
    return TRANSPORTS[transport](f"jobs.mailbox:{job}", n)


@pytest.fixture(params=TRANSPORTS)
def run(request: pytest.FixtureRequest) -> Run:
    return functools.partial(start, request.param)


def over_mpi(job: str, n: int, *arguments: Any) -> Any:
    done = launch(f"jobs.mailbox:{job}", n, *arguments)
    assert done.status == "ok", done.report
    return done.ranks


@pytest.mark.parametrize("n", [1, 4, pytest.param(2, marks=pytest.mark.slow)])
def test_messages_of_each_rank_arrive_in_order(run: Run, n: int) -> None:
    for rank in run("everyone_to_everyone", n):
        assert rank.value["from"] == {source: [("number", i) for i in range(3)] for source in range(n)}
        assert rank.value["left"]


@pytest.mark.parametrize("n", [1, 4, pytest.param(2, marks=pytest.mark.slow)])
def test_a_message_is_control_and_none_to_oneself(run: Run, n: int) -> None:
    for rank in run("everyone_to_everyone", n):
        assert rank.value["payload"] == 0
        nbytes, messages = rank.value["control"]
        assert messages == 3 * (n - 1)
        assert (nbytes > 0) == (n > 1)


@pytest.mark.parametrize("n", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_arrays_cross_and_are_counted_as_payload_where_they_are_sent(run: Run, n: int) -> None:
    nbytes = sum(array.nbytes for array in ARRAYS)
    for me, rank in enumerate(run("payloads", n)):
        assert rank.value == {"right": True, "messages": (n - 1) * (len(ARRAYS) + 1)}
        assert rank.sent == {("letters", peer): (nbytes, len(ARRAYS)) for peer in range(n) if peer != me}


def test_mailboxes_do_not_mix_and_know_when_a_message_has_been_taken(run: Run) -> None:
    sender, receiver = run("two_boxes", 2)
    assert sender.value == {"quiet before it is taken": False, "quiet after": True}
    assert receiver.value == {"messages": ["first", "second"], "values": [1e5, 2e5]}


def test_one_who_does_not_listen_keeps_nobody_else_from_talking(tmp_path: Path) -> None:
    """A process of MPICH has room for 64 messages under way: what a rank does not take must not fill it."""
    talker, _, deaf = over_mpi("one_does_not_listen", 3, str(tmp_path / "signal"))
    assert talker.value == {"answers": ["yes"], "silent": [2], "pending": []}
    assert deaf.value == {"in order": True, "payloads": list(range(0, 1000, 10))}


def test_a_mailbox_can_be_closed_without_a_rank_that_does_not_answer() -> None:
    assert over_mpi("one_is_left_behind", 2)[1].value == {"sum": 4999950000}
