"""A worker's messages of one moment, and what is sent again when a server stops."""

import numpy as np

from jobs.puppets import FakeComm, Network, plan_of
from minidist.ps.messages import Answer, Flush, Mailbox, Pull, Push, WorkerRequest
from minidist.ps.outcome import WorkerLog
from minidist.ps.requests import Requests
from minidist.ps.simulated_time import BANDWIDTH, Cable


def test_a_moment_and_a_server_that_stops() -> None:
    """Worker 0 of one; shards 0 and 1, of two ranges each, on ranks 1 and 2, and each on the other as well."""
    network, plan = Network(seed=0), plan_of(1, 2, 2, 0, aggregate=True, replicas=1)
    mailbox, *servers = (Mailbox(FakeComm(network, rank, 3), np.float64) for rank in range(3))  # type: ignore[arg-type]
    cable, log = Cable(), WorkerLog()
    requests = Requests(0, plan, mailbox, cable, log)

    def arrived(server: Mailbox) -> list[WorkerRequest]:
        return [message for message in iter(server.next, None) if isinstance(message, WorkerRequest)]

    def names(messages: list[WorkerRequest]) -> list[tuple[str, int, bool]]:
        return [(type(message).__name__, getattr(message, "range"), message.more) for message in messages]  # noqa: B009

    cable.now = 3.0
    pushes = [Push(shard=i // 2, range=i, clock=0, share=1.0, values=np.ones(1)) for i in range(4)]
    requests.send([*pushes, *(Pull(shard=i // 2, range=i, clock=1) for i in range(4))])
    first, second = map(arrived, servers)
    assert names(first) == [("Push", 0, True), ("Push", 1, True), ("Pull", 0, True), ("Pull", 1, False)]
    assert names(second) == [("Push", 2, True), ("Push", 3, True), ("Pull", 2, True), ("Pull", 3, False)]
    assert {message.stamp for message in (*first, *second)} == {3.0}
    np.testing.assert_allclose([message.left for message in first], 3 + 8 / BANDWIDTH * np.array([1, 2, 4, 4]))

    answers = [Answer(shard=i // 2, range=i, held=0.5, left=4.0, clocks=np.ones(1, int)) for i in range(4)]
    requests.note_answer(answers[0])  # and the server stops before the other
    mailbox.closed.add(1)
    requests.peer_stopped([0])
    again = arrived(servers[1])
    assert names(again) == [("Push", 0, True), ("Push", 1, True), ("Pull", 1, False)]
    assert [(message.stamp, message.left) for message in again] == [(3.0, first[i].left) for i in (0, 1, 3)]
    for answer in answers[1:]:
        requests.note_answer(answer)
    requests.wait(lambda until: None)
    assert log.held == 0.5
    assert cable.now == 3 + log.held + log.wire > 4.0
    requests.peer_stopped([0])
    assert arrived(servers[1]) == []  # all was answered


def test_a_successor_hears_of_a_workers_end() -> None:
    network, plan = Network(seed=0), plan_of(1, 2, 2, 0, aggregate=True, replicas=1)
    mailbox, _, successor = (Mailbox(FakeComm(network, rank, 3), np.float64) for rank in range(3))  # type: ignore[arg-type]
    requests = Requests(0, plan, mailbox, Cable(), WorkerLog())
    requests.send([Flush(shard=0, clock=2)])
    requests.note_answer(Answer(shard=0, range=Flush.range, held=0.0, clocks=np.full(1, 2)))
    mailbox.closed.add(1)
    requests.peer_stopped([0])
    assert isinstance(successor.next(), Flush)
    assert successor.next() is None
