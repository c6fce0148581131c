"""A parameter server: workers push gradients and pull weights at their own pace.

    mpirun -n 4 python -m minidist.parameter_server --consistency bsp
    mpirun -n 4 python -m minidist.parameter_server --consistency ssp --staleness 4
    mpirun -n 4 python -m minidist.parameter_server --staleness-sweep --batch 15

Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
https://www.usenix.org/conference/osdi14/technical-sessions/presentation/li_mu
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013 (ssp).
https://proceedings.neurips.cc/paper/2013/hash/b7bb35b9c6ca2aee2df08cf09d7016c2-Abstract.html

Each of the S weights has a key. Servers hold ranges of keys, with the optimizer's state. In every iteration a worker
pulls S values, computes a gradient on its rows of the batch, and pushes S values: 2S in any case. How old may the
weights be that it pulls? A worker that has done c iterations must see

    bsp    sequential      all updates of all workers' first c iterations: as if trained on one process
    ssp    bounded delay   all updates of all workers' first c - staleness, perhaps later ones, and all of its own
    async  eventual        all of its own

A server holds a pull back until the range is that fresh. In bsp it sums the gradients of all workers and makes one
update. In ssp and async it makes an update from each push at once, with the learning rate times the worker's share of
the batch. You can follow a push down the page, from Worker.push to Server.answer.

Simulated time (ps/simulated_time.py) decides which worker is fast, not this machine's cores, and a server takes
messages in the order of that time (ps/inbox.py): the same command gives the same losses.

This chapter is long because it has both ends of a protocol, the worker's and the server's.
"""

import math
import time
from dataclasses import replace

import numpy as np

from minidist import command, contents
from minidist.cli.progress import Progress
from minidist.data import Corpus
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.optim import clipping_factor
from minidist.nn.tensor import Array
from minidist.ps.engines import Gradients
from minidist.ps.inbox import Inbox
from minidist.ps.key_lists import dense, pick_weights
from minidist.ps.messages import (
    ALL,
    Answer,
    Copied,
    Flush,
    Mailbox,
    Norm,
    Pull,
    Push,
    ToShard,
    Update,
    WorkerDone,
    WorkerRequest,
)
from minidist.ps.node import Node
from minidist.ps.norms import Norms
from minidist.ps.outcome import HeldShard, RankOutcome, TrainedRun, WorkerLog
from minidist.ps.plan import RankPlan
from minidist.ps.replication import ReplicaChain
from minidist.ps.requests import Requests, Serve
from minidist.ps.simulated_time import Cable
from minidist.ps.vector_clock import RangeClocks


def consistent(plan: RankPlan, consistency: str, staleness: float) -> RankPlan:
    """The plan with one of the three consistency models: they differ in `Server.push` and in `Server.fresh`."""
    bound = {"bsp": 0.0, "ssp": staleness, "async": math.inf}[consistency]
    return replace(plan, aggregate=consistency == "bsp", staleness=bound)


# ---- the worker ------------------------------------------------------------------------------------------------------


class TrainingWorker:
    """Pulls weights, computes a gradient with them, and pushes it."""

    def __init__(self, engine: Gradients, plan: RankPlan, mailbox: Mailbox) -> None:
        self.engine, self.plan, self.mailbox = engine, plan, mailbox
        self.clock = 0  # iterations done
        self.cable, self.log = Cable(), WorkerLog()
        self.requests = Requests(engine.number, plan, mailbox, self.cable, self.log)

    def train(self, corpus: Corpus, serve: Serve, progress: Progress) -> None:
        """Run all iterations of this worker. serve: handles messages until a condition holds."""
        if self.plan.iterations:  # otherwise there is nothing to push or to ask for
            self.requests.send(self.questions())
        while self.clock < self.plan.iterations:
            self.requests.wait(serve)  # for weights
            begin = time.perf_counter()
            for loss, seconds in self.engine.compute(corpus):  # on this worker's rows (ps/engines.py)
                self.cable.now += seconds
                self.log.step(loss, seconds, self.cable.now)
            pushes = [self.push(i) for i in range(len(self.plan.ranges))]
            self.clock += 1
            self.requests.send([*pushes, *self.questions()])
            self.log.milliseconds.append(1000 * (time.perf_counter() - begin))
            progress.update(self.engine.steps, loss / self.engine.share, self.log.milliseconds[-1], 1.0)
        self.log.tokens = self.engine.tokens_per_unit()
        self.requests.wait(serve)
        for rank in range(self.mailbox.comm.size):
            self.mailbox.send(rank, WorkerDone())

    def questions(self) -> list[WorkerRequest]:
        """Requests after `clock` iterations: for all weights; after the last, only whether all pushes are safe."""
        if self.clock == self.plan.iterations:
            return [Flush(shard=shard, clock=self.clock) for shard in range(len(self.plan.servers))]
        ranges = enumerate(self.plan.ranges)
        return [
            Pull(shard=each.shard, range=i, clock=self.clock, keys=self.plan.keys_of_range(each)) for i, each in ranges
        ]

    def receive(self, answer: Answer) -> None:
        """Weights have arrived, with the number of each worker's iterations that they include."""
        self.requests.note_answer(answer)
        if answer.range != ALL:
            self.engine.weights[self.plan.ranges[answer.range].keys] = answer.values
            self.log.read(self.clock, answer.range, answer.clocks, self.engine.number)

    def push(self, i: int) -> Push:
        """The gradient of a range, addressed to the range's server, which handles it below."""
        each = self.plan.ranges[i]
        keys, values = self.engine.gradient(each)
        self.log.pushed[each.shard] += values.size
        return Push(shard=each.shard, range=i, clock=self.clock, share=self.engine.share, keys=keys, values=values)


# ---- the server ------------------------------------------------------------------------------------------------------


class Server:
    """A shard, on the rank that serves it: weights, the optimizer's state, and which updates they include.

    With --replicas other ranks hold copies, which repeat the server's updates and are otherwise silent. If the server
    stops, a copy takes over (ps/replication.py).
    """

    def __init__(self, shard: int, plan: RankPlan, settings: Settings, start: list[Array], mailbox: Mailbox) -> None:
        self.shard, self.plan, self.settings, self.mailbox = shard, plan, settings, mailbox
        self.ranges = {i: plan.ranges[i] for i in plan.of(shard)}
        # [weights, *moments] of each range, each (hi - lo,); `start` holds them for all keys
        self.state = {i: [whole[each.keys].copy() for whole in start] for i, each in self.ranges.items()}
        lo, hi = min(each.lo for each in self.ranges.values()), max(each.hi for each in self.ranges.values())
        self.clocks = RangeClocks(lo, hi, len(plan.workers))
        self.sums: dict[int, Array] = {}  # bsp: for each range, the sum of the gradients that have arrived
        self.heard: set[tuple[int, int]] = set()  # and which those are: (worker, range)
        self.held: list[tuple[Pull | Flush, float]] = []  # requests held back, and since when
        self.order: list[tuple[int, int, int]] = []  # updates made: range, worker, clock
        self.cable, self.inbox = Cable(), Inbox(plan)
        self.norms, self.chain = Norms(shard, plan, mailbox), ReplicaChain(shard, plan, mailbox)

    # ---- one message after another ----------------------------------------------------------------------------------

    def handle(self, message: ToShard) -> None:
        """Take in a message, and do everything that can be done now."""
        match message:
            case Push() | Pull() | Flush():
                self.inbox.add(message)
            case Norm():
                self.norms.add(message)
            case Update():  # this is a copy
                self.cable.now = message.time
                if not self.has(message):
                    self.update(message)
                self.chain.follow(message)
            case Copied() if self.chain.confirm(message):
                self.answer()
        self.advance()

    def advance(self) -> None:
        """Go on until something is missing: a worker's message, another server's norm, a copy's confirmation."""
        while self.chain.serves and not self.chain.under_way:
            if len(self.heard) == len(self.ranges) * len(self.plan.workers):  # bsp: the gradients of an iteration
                if not self.update_all():
                    return
                continue
            message = self.inbox.next({request.worker for request, _ in self.held})
            if message is None:
                return
            self.cable.receive(message.left, message.nbytes)
            if isinstance(message, Push):
                self.push(message)
            elif isinstance(message, Pull | Flush):
                self.held.append((message, self.cable.now))
            self.answer()

    # ---- push -------------------------------------------------------------------------------------------------------

    def push(self, push: Push) -> None:
        """Take a worker's gradient of a range: add it to the others' (bsp), or update with it at once (ssp, async)."""
        each = self.ranges[push.range]
        if (push.worker, push.range) in self.heard or self.has(push):
            return  # sent again because a server stopped, but it had already arrived
        gradient = dense(push, each.lo, each.hi, self.mailbox.dtype)
        if self.plan.aggregate:
            self.sums[push.range] = self.sums[push.range] + gradient if push.range in self.sums else gradient
            self.heard.add((push.worker, push.range))
        else:
            self.commit(Update(
                shard=self.shard, range=push.range, worker=push.worker, clock=push.clock,
                share=push.share, scale=1.0, values=gradient,
            ))  # fmt: skip

    def update_all(self) -> bool:
        """bsp: update all ranges with their sums, clipped by the norm over all servers. False: it is not known yet."""
        clock = int(self.clock_of(ALL)[0])
        norm = self.norms.whole(clock, self.sums, self.cable)
        if norm is None:
            return False
        scale = clipping_factor(norm, self.settings.clip * self.plan.options.local_steps)
        values = np.concatenate([self.sums[i] for i in self.ranges])
        self.sums, self.heard = {}, set()
        self.commit(Update(shard=self.shard, range=ALL, worker=ALL, clock=clock, share=1.0, scale=scale, values=values))
        return True

    def commit(self, update: Update) -> None:
        """Make an update, and have every copy make it; only then are workers answered."""
        self.update(update)
        self.cable.now += self.chain.seconds(update)
        update.time = self.cable.now
        if self.chain.begin(update):
            self.answer()

    def update(self, update: Update) -> None:
        """The optimizer's step. It works element by element, so ranges can be updated one at a time."""
        self.order.append((update.range, update.worker, update.clock))
        n = len(self.plan.workers)
        workers = range(n) if update.worker == ALL else [update.worker]
        lr = self.settings.learning_rate(self.plan.first_update + update.clock * self.plan.options.local_steps)
        begin = 0
        for i in list(self.ranges) if update.range == ALL else [update.range]:
            each, (weights, *moments) = self.ranges[i], self.state[i]
            gradient = update.values[begin : begin + weights.size]
            begin += weights.size
            pushes = self.plan.first_update * n + int(self.clock_of(i).sum())  # pushes that these weights include
            self.settings.optimizer.update(
                weights, gradient, moments, scale=update.scale, lr=lr * update.share,
                step=pushes // len(workers) + 1, decayed=each.decayed,
            )  # fmt: skip
            for worker in workers:
                self.clocks.set(each.lo, each.hi, worker, update.clock + 1)

    # ---- pull -------------------------------------------------------------------------------------------------------

    def fresh(self, request: Pull | Flush, clocks: Array) -> bool:
        """Whether a worker may see weights of these clocks. They must include all of its own updates, and all except
        the last `staleness` of the others': that is 0 in bsp and infinite in async (Ho et al., section 3)."""
        others = request.range == ALL or clocks.min() >= request.clock - self.plan.staleness
        return bool(others and clocks[request.worker] >= request.clock)

    def answer(self) -> None:
        """Send weights, with the range's vector clock, to all workers for which they are now fresh enough."""
        held, self.held = self.held, []
        for request, since in held:
            i, clocks = request.range, self.clock_of(request.range)
            if self.chain.under_way or not self.fresh(request, clocks):
                self.held.append((request, since))
                continue
            weights = None
            if isinstance(request, Pull):  # a server holds the optimizer's dtype, a worker the stored one
                weights = pick_weights(request, self.state[i][0], self.ranges[i].lo).astype(
                    self.mailbox.dtype, copy=False
                )
            answer = Answer(shard=self.shard, range=i, held=self.cable.now - since, clocks=clocks, values=weights)
            self.mailbox.send(self.plan.workers[request.worker], answer, self.cable)
        self.chain.event()  # --stop names one of these events

    def clock_of(self, i: int) -> Array:
        """For each worker, how many of its iterations all weights of a range, or of ALL, include: (workers,)."""
        ranges = self.ranges.values() if i == ALL else [self.ranges[i]]
        return np.min([self.clocks.read(each.lo, each.hi) for each in ranges], axis=0)

    def has(self, names: Push | Update) -> bool:
        """Whether the weights already include a gradient."""
        workers = slice(None) if names.worker == ALL else names.worker
        return bool(np.all(self.clock_of(names.range)[workers] > names.clock))

    def peer_stopped(self, moved: list[int]) -> None:
        """A server has stopped: the next ranks in their chains, perhaps this one, now serve the shards `moved`."""
        if self.chain.mend():
            self.answer()
        if self.chain.serves:
            self.norms.tell(moved)
        self.advance()


# ---- the run ---------------------------------------------------------------------------------------------------------


def train_once(comm: Comm, job: command.Job, plan: RankPlan, start: list[Array]) -> TrainedRun | None:
    """Train from start to end; returns, on rank 0, everything that the ranks recorded. start: see `Server`."""
    comm = comm.split(0, comm.rank)  # messages of another training cannot get in here
    comm.ledger.reset()
    mailbox = Mailbox(comm, job.settings.precision.stored)
    held = (shard for shard in range(len(plan.servers)) if comm.rank in plan.chain(shard, set()))
    servers = {shard: Server(shard, plan, job.settings, start, mailbox) for shard in held}
    worker = None
    if comm.rank in plan.workers:
        worker = TrainingWorker(Gradients(job.units, job.settings, plan, plan.workers.index(comm.rank)), plan, mailbox)
    node = Node(plan, mailbox, servers, worker)
    shown = comm.rank == 0 and plan.options.json != "-"
    progress = Progress(plan.options.steps, shown, label=f"{plan.name}, loss of rank 0: step")
    if worker:
        worker.train(job.corpus, node.serve, progress)
    node.serve(lambda: node.done == len(plan.workers))  # others may still need this rank's server
    mailbox.closed = {rank for rank, stopped in enumerate(comm.all_gather_object(node.stopped)) if stopped}
    progress.close()
    comm.flush()
    left = () if node.stopped else servers.values()
    shards = [HeldShard.of(each.chain, each.state, each.clocks, each.order) for each in left]
    log, ledger = worker.log if worker else None, comm.ledger
    everyone = comm.gather_object(RankOutcome(log, ledger.sent, ledger.received, shards))
    return TrainedRun(plan, everyone) if everyone else None


if __name__ == "__main__":
    contents.run("parameter_server")  # its options, and what the papers promise: programs/parameter_server.py
