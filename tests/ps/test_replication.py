"""The chain of those that hold a shard, one rank of it at a time."""

from typing import Any

import numpy as np
import pytest

from jobs.puppets import FakeComm, Network, plan_of
from minidist.ps.messages import ALL, Copied, Mailbox, Update, WireMessage
from minidist.ps.replication import ReplicaChain, ServerStopped

UPDATE = Update(shard=0, range=ALL, worker=ALL, clock=5, share=1.0, scale=1.0, values=np.ones(4))
WORD = Copied(shard=0, range=ALL, worker=ALL, clock=5)


def chains(stop: Any = None) -> list[ReplicaChain]:
    """Shard 0 on ranks 1, 2 and 3, as each of them sees it; rank 0 is a worker."""
    network, plan = Network(seed=0), plan_of(1, 3, 1, 0, aggregate=True, replicas=2, stop=stop)
    return [ReplicaChain(0, plan, Mailbox(FakeComm(network, rank, 4), np.float64)) for rank in (1, 2, 3)]  # type: ignore[arg-type]


def mail(chain: ReplicaChain) -> list[WireMessage]:
    return list(iter(chain.mailbox.next, None))


def close(rank: int, *others: ReplicaChain) -> list[bool]:
    """A rank has stopped, and the others hear of it."""
    for chain in others:
        chain.mailbox.closed.add(rank)
    return [chain.mend() for chain in others]


def test_an_update_goes_down_the_chain_and_word_comes_back() -> None:
    server, middle, last = chains()
    assert [chain.serves for chain in (server, middle, last)] == [True, False, False]
    assert not server.begin(UPDATE)
    [update] = mail(middle)
    assert isinstance(update, Update)
    middle.follow(update)
    assert (mail(server), [type(message) for message in mail(last)]) == ([], [Update])
    last.follow(update)
    assert mail(server) == [WORD]
    assert server.under_way is UPDATE
    assert server.confirm(WORD)
    assert server.under_way is None


@pytest.mark.parametrize("other", [{"clock": 4}, {"worker": 0}, {"range": 1}], ids=str)
def test_word_of_another_update_confirms_nothing(other: dict[str, int]) -> None:
    server, *_ = chains()
    server.begin(UPDATE)
    assert not server.confirm(Copied(**{"shard": 0, "range": ALL, "worker": ALL, "clock": 5, **other}))
    assert server.under_way is UPDATE
    assert server.confirm(WORD)
    assert not server.confirm(WORD)  # told twice


def test_who_is_next_hears_of_what_the_lost_rank_may_have_kept() -> None:
    server, middle, last = chains()
    server.begin(UPDATE)
    mail(middle)  # lost with it
    assert close(2, server, last) == [False, False]
    [update] = mail(last)
    assert isinstance(update, Update)
    last.follow(update)
    assert mail(server) == [WORD]
    assert close(3, server) == [True]  # nobody is left to wait for
    assert server.under_way is None


def test_the_new_last_one_gives_word() -> None:
    server, middle, last = chains()
    server.begin(UPDATE)
    middle.follow(UPDATE)
    mail(last)
    assert close(3, middle) == [False]
    assert mail(server) == [WORD]


def test_a_copy_takes_over() -> None:
    _, middle, last = chains()
    assert close(1, middle, last) == [False, False]
    assert (middle.serves, last.serves) == (True, False)
    assert not middle.begin(UPDATE)
    assert [type(message) for message in mail(last)] == [Update]


def test_the_server_stops_after_so_many_events_and_no_copy_does() -> None:
    server, middle, _ = chains(stop=(1, 3))
    server.event()
    server.event()
    with pytest.raises(ServerStopped):
        server.event()
    for _ in range(5):
        middle.event()
