"""A parameter server without MPI, in one process: real servers, workers and mailboxes over a network that delivers
messages in a random order, except that between two ranks they keep theirs, as MPI promises.

A worker's gradient of its i-th iteration is -1 at a key of its own in every range, and the learning rate is 1. So a
weight counts the iterations of a worker that it has received, and what a read shows is known without vector clocks.
"""

import argparse
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from minidist.cli.progress import Progress
from minidist.engine import Settings
from minidist.nn.optim import SGD
from minidist.nn.precision import PRECISIONS
from minidist.parameter_server import Server, TrainingWorker
from minidist.ps.messages import Mailbox
from minidist.ps.node import Node
from minidist.ps.plan import Range, RankPlan

SETTINGS = Settings(PRECISIONS["fp64"], SGD(), learning_rate=lambda update: 1.0, clip=0.0)
TIMEOUT = 20.0  # seconds: a test that fails must not hang

# Worker, its clock, and how many iterations of each worker it saw: of each, and were ranges not of one mind, more.
Read = tuple[int, int, list[tuple[int, ...]]]


class Network:
    """Queues between ranks."""

    def __init__(self, seed: int) -> None:
        self.queues: dict[tuple[int, int], deque[np.ndarray]] = defaultdict(deque)
        self.random = random.Random(seed)


class FakeComm:
    """What a mailbox asks of a Comm."""

    def __init__(self, network: Network, rank: int, size: int) -> None:
        self.network, self.rank, self.size = network, rank, size

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield

    def post(self, array: np.ndarray, dest: int) -> None:
        self.network.queues[self.rank, dest].append(array.copy())

    def probe(self) -> int | None:
        sources = [s for (s, d), queue in sorted(self.network.queues.items()) if d == self.rank and queue]
        return self.network.random.choice(sources) if sources else None

    def recv(self, out: np.ndarray, source: int) -> None:
        array = self.network.queues[source, self.rank].popleft()
        assert (array.shape, array.dtype) == (out.shape, out.dtype)
        out[...] = array


class Counting:
    """A puppet's engine, whose steps take the time that it is told."""

    share = 1.0

    def __init__(self, plan: RankPlan, number: int, costs: list[float]) -> None:
        self.plan, self.number, self.costs, self.steps = plan, number, costs, 0
        self.weights = np.zeros(plan.size)
        self.seen: list[Read] = []

    def compute(self, corpus: Any) -> list[tuple[float, float]]:
        n = len(self.plan.workers)
        views = {tuple(int(x) for x in self.weights[each.lo : each.lo + n]) for each in self.plan.ranges}
        self.seen.append((self.number, self.steps, sorted(views)))
        self.steps += 1
        return [(0.0, self.costs[self.steps - 1])]

    def tokens_per_unit(self) -> dict[int, float]:
        return {}

    def gradient(self, each: Range) -> tuple[None, np.ndarray]:
        values = np.zeros(each.hi - each.lo)
        values[self.number] = -1.0
        return None, values


class Puppet(TrainingWorker):
    """A worker in a thread of its own, which runs when the scheduler lets it."""

    def __init__(self, plan: RankPlan, mailbox: Mailbox, engine: Counting) -> None:
        super().__init__(engine, plan, mailbox)  # type: ignore[arg-type]
        self.until: Callable[[], bool] = lambda: True
        self.mine, self.scheduler = threading.Semaphore(0), threading.Semaphore(0)
        self.ended = False
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self.live, daemon=True)

    def live(self) -> None:
        self.mine.acquire(timeout=TIMEOUT)
        try:
            self.train(None, self.wait_for, Progress(0, shown=False))  # type: ignore[arg-type]
        except BaseException as error:  # the scheduler's thread is the one that pytest sees
            self.failure = error
        self.ended = True
        self.scheduler.release()

    def wait_for(self, until: Callable[[], bool]) -> None:
        self.until = until
        while not until():
            self.scheduler.release()
            self.mine.acquire(timeout=TIMEOUT)

    def resume(self) -> None:
        """Let the worker go on until it waits again, or ends."""
        self.mine.release()
        assert self.scheduler.acquire(timeout=TIMEOUT)
        if self.failure:
            raise self.failure


def plan_of(
    n: int, k: int, steps: int, staleness: float, aggregate: bool, replicas: int = 0, stop: Any = None
) -> RankPlan:
    """n workers, then k servers, each of two ranges of n keys."""
    ranges = [Range(i * n, (i + 1) * n, shard=i // 2, decayed=0) for i in range(2 * k)]
    options = argparse.Namespace(
        steps=steps, local_steps=1, replicas=replicas, keys="none", filter=0.0, stop=stop, jitter=0, slow=[]
    )
    return RankPlan(list(range(n)), list(range(n, n + k)), [], ranges, staleness, aggregate, 0, 0, options, 0)


def play(
    costs: list[list[float]], k: int, staleness: float, aggregate: bool, seed: int, replicas: int = 0, stop: Any = None
) -> tuple[list[Any], list[np.ndarray], bool]:
    """All reads in order of worker and clock, the weights of each range at the end, and whether the server stopped."""
    n = len(costs)
    plan = plan_of(n, k, len(costs[0]), staleness, aggregate, replicas, stop)
    network = Network(seed)
    nodes, puppets, engines = [], [], [Counting(plan, number, costs[number]) for number in range(n)]
    for rank in range(n + k):
        mailbox = Mailbox(FakeComm(network, rank, n + k), np.float64)  # type: ignore[arg-type]
        start = [np.zeros(plan.size)]
        held = [shard for shard in range(k) if rank in plan.chain(shard, set())]
        servers = {shard: Server(shard, plan, SETTINGS, start, mailbox) for shard in held}
        worker = Puppet(plan, mailbox, engines[rank]) if rank < n else None
        puppets += [worker] if worker else []
        nodes.append((Node(plan, mailbox, servers, worker), servers))
    for puppet in puppets:
        puppet.thread.start()
        puppet.resume()
    while True:
        for puppet in puppets:
            if not puppet.ended and puppet.until():
                puppet.resume()
        ready = [
            node
            for node, _ in nodes
            if node.mailbox.local
            or any(queue for (_, dest), queue in network.queues.items() if dest == node.mailbox.rank)
        ]
        if not ready:
            break
        once = iter((False, True))
        network.random.choice(ready).serve(lambda once=once: next(once))  # type: ignore[misc]
    assert all(puppet.ended for puppet in puppets), "a deadlock: nothing is under way, and somebody waits"
    weights: dict[int, np.ndarray] = {}
    for node, servers in nodes:
        for server in servers.values():
            if not node.stopped and server.chain.serves:
                weights.update({i: state[0] for i, state in server.state.items()})
    for node, servers in nodes:
        for server in servers.values():
            for i, (copied, *_) in server.state.items():
                assert node.stopped or (copied == weights[i]).all(), "a copy is not what the server has"
    reads = [read for engine in engines for read in engine.seen]
    return reads, [weights[i] for i in range(2 * k)], any(node.stopped for node, _ in nodes)
