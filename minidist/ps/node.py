"""The loop of a rank: it passes each message to its receiver, the worker or one of the servers on this rank."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from minidist.ps.messages import Answer, Closed, Mailbox, ToShard, WorkerDone
from minidist.ps.plan import RankPlan
from minidist.ps.replication import ServerStopped
from minidist.ps.requests import Requests

NAP = 0.0002  # seconds of sleep when no message is there: another rank may need the core


class ServerPart(Protocol):
    def handle(self, message: ToShard) -> None: ...

    def peer_stopped(self, moved: list[int]) -> None: ...


class WorkerPart(Protocol):
    @property
    def requests(self) -> Requests: ...

    def receive(self, answer: Answer) -> None: ...


class Node:
    """What is on one rank: a worker, or a server and copies of others, or both."""

    def __init__(
        self, plan: RankPlan, mailbox: Mailbox, servers: Mapping[int, ServerPart], worker: WorkerPart | None
    ) -> None:
        self.plan, self.mailbox, self.servers, self.worker = plan, mailbox, servers, worker
        self.done = 0  # workers that are done
        self.stopped = False  # whether the server on this rank has

    def serve(self, until: Callable[[], bool]) -> None:
        """Handle messages as they come."""
        while not until():
            match self.mailbox.next():
                case None:
                    time.sleep(NAP)
                case WorkerDone():
                    self.done += 1
                case Closed(rank=rank):
                    self.peer_stopped(rank)
                case Answer() as answer:
                    assert self.worker
                    self.worker.receive(answer)
                case ToShard() as message if message.shard in self.servers:  # a server that has stopped ignores it
                    try:
                        self.servers[message.shard].handle(message)
                    except ServerStopped:
                        self.stop()

    def stop(self) -> None:
        """Stop the server on this rank, with its copies of other shards. Its host closes the connections."""
        self.stopped, self.servers = True, {}
        for rank in range(self.mailbox.comm.size):
            self.mailbox.send(rank, Closed(rank=self.mailbox.rank))

    def peer_stopped(self, rank: int) -> None:
        """Note that the server on `rank` has stopped."""
        shards = range(len(self.plan.servers))
        moved = [shard for shard in shards if self.plan.chain(shard, self.mailbox.closed)[0] == rank]
        self.mailbox.closed.add(rank)
        for server in self.servers.values():
            server.peer_stopped(moved)
        if self.worker:
            self.worker.requests.peer_stopped(moved)
