"""Messages: what is sent is what arrives."""

import numpy as np
import pytest

from jobs.puppets import FakeComm, Network
from minidist.ps.messages import (
    ALL,
    Answer,
    Closed,
    Copied,
    Flush,
    Mailbox,
    Norm,
    Pull,
    Push,
    Update,
    WireMessage,
    WorkerDone,
)
from ranks import launch

KEYS, VALUES = np.array([3, 1, 2**40]), np.array([0.5, -1.0, 1e-3], np.float32)
MESSAGES = [
    Push(shard=1, clock=7, worker=2, more=True, stamp=0.1, left=0.2, range=3, share=0.3, keys=KEYS, values=VALUES),
    Push(shard=1, clock=7, worker=2, stamp=0.1, left=0.2, range=3, share=0.3, cached=True, keys=KEYS[:1]),
    Push(shard=0, clock=0, range=0, share=1.0, values=VALUES),
    Pull(shard=1, clock=7, worker=2, more=True, stamp=0.1, left=0.2, range=3, keys=KEYS),
    Pull(shard=1, clock=7, range=3),
    Flush(shard=4, clock=2**52, worker=1, stamp=1e-9),
    Answer(shard=1, range=3, held=0.25, left=0.75, clocks=KEYS, values=VALUES),
    Answer(shard=1, range=ALL, held=0.25, clocks=KEYS),
    Norm(shard=1, teller=2, clock=9, squares=1 / 3, time=0.7),
    Update(shard=1, range=ALL, worker=ALL, clock=5, share=1.0, scale=1 / 3, time=0.1, values=VALUES),
    Copied(shard=1, range=2, worker=3, clock=4),
    Closed(rank=3),
    WorkerDone(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("dest", [0, 1], ids=["to itself", "over the wire"])
def test_what_is_sent_arrives(message: WireMessage, dest: int) -> None:
    network = Network(seed=0)
    here, there = (Mailbox(FakeComm(network, rank, 2), np.float32) for rank in range(2))  # type: ignore[arg-type]
    here.send(dest, message)
    if dest == 1:
        assert network.queues[0, 1][0].nbytes == 96  # the header
    got = (here, there)[dest].next()
    assert got is not None
    assert type(got) is type(message)
    for name, sent in vars(message).items():
        received = getattr(got, name)
        if isinstance(sent, np.ndarray):
            np.testing.assert_array_equal(received, sent)
            assert received.dtype == sent.dtype
            assert not np.shares_memory(received, sent)  # a server goes on with its weights
        elif name != "nbytes":
            assert (type(received), received) == (type(sent), sent), name
    followed = sum(array.nbytes for array in vars(message).values() if isinstance(array, np.ndarray))
    assert got.nbytes == followed * dest


def test_mail_never_blocks() -> None:
    """1.6 MB from everyone to everyone before anybody receives; what is changed after the post is not sent."""
    values = launch("jobs.parameter_server:mail", 3).values
    assert [got for got, _ in values] == [[(1, 1), (2, 2)], [(0, 0), (2, 102)], [(0, 100), (1, 101)]]
    assert [counted for _, counted in values] == [{"bytes": 3_200_000, "messages": 2}] * 3
