"""The parameter server: servers hold the weights, workers push gradients and pull weights, each at its own pace.

    mpirun -n 4 python -m minidist.parameter_server --consistency bsp
    mpirun -n 4 python -m minidist.parameter_server --consistency ssp --staleness 4
    mpirun -n 4 python -m minidist.parameter_server --staleness-sweep --batch 15

Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013 (ssp).

Each of the S weights has a key. Servers hold ranges of keys, with the optimizer's state. In every iteration a worker
pulls S values, computes a gradient on its rows of the batch, and pushes S values: 2S, whatever else happens. How old
may the weights be that it pulls? A worker that has c iterations behind it must see

    bsp    sequential      all updates of everyone's first c iterations: as if trained on one process
    ssp    bounded delay   all updates of everyone's first c - staleness, perhaps later ones, and all of its own
    async  eventual        all of its own

A server holds a pull back until the range is that fresh. In bsp it sums the gradients of all workers and makes one
update; in ssp and async each push is an update at once, with the learning rate times the worker's share of the batch.

Who is fast is decided by simulated time (simulated_time.py), not by this machine's cores, and a server takes messages
in the order of that time (messages.Inbox): the same command gives the same losses. All that a worker sends at one
moment carries one time, to whichever server. So all servers see the same order and hold the same pulls back, and no
server ever waits for a worker that waits for another server.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from minidist import train
from minidist.cli.progress import Progress
from minidist.data import Corpus
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.mpi.run import run
from minidist.nn.layers import Unit
from minidist.nn.memory import keep_freed_memory
from minidist.nn.optim import clipping_factor, squared_norm
from minidist.nn.tensor import Array
from minidist.ps import report
from minidist.ps.gradients import Gradients
from minidist.ps.messages import Header, Inbox, KeyLists, Kind, Mailbox, Message
from minidist.ps.node import Node
from minidist.ps.plan import Plan, add_options, consistent, prepare
from minidist.ps.replication import Replica
from minidist.ps.simulated_time import LATENCY, Link


class StaleRead(RuntimeError):
    """A pull brought weights that lack an update which they must not lack."""


# ---- the server ------------------------------------------------------------------------------------------------------


class Server(Replica):
    """A shard on the rank that serves it. Its copies are the same, but hear of nothing except updates until they take
    over: see replication.py, which has the weights, the update, and how copies are made."""

    def __init__(self, shard: int, plan: Plan, settings: Settings, start: list[Array], mailbox: Mailbox) -> None:
        super().__init__(shard, plan, settings, start, mailbox)
        self.inbox, self.key_lists = Inbox(len(plan.workers)), KeyLists(plan.options.keys == "cached")
        self.held: list[tuple[Message, float]] = []  # pulls held back, and since when
        self.sums: dict[int, Array] = {}  # bsp: of each range, the sum of the gradients that have come
        self.heard: set[tuple[int, int]] = set()  # and which have: (worker, range)
        self.norms: dict[int, Header] = {}  # bsp: each shard's latest Σ g²
        self.into, self.out = Link(), Link()

    def handle(self, message: Message) -> None:
        """Take in a message, and do all that can be done now."""
        header = message.header
        if header.kind in (Kind.PUSH, Kind.PULL):
            self.inbox.add(message)
        elif header.kind == Kind.NORM:
            self.norms[header.worker] = header
        elif header.kind == Kind.COPY:
            self.copy(message)
        elif self.copying and header.names_same(self.copying.header):  # COPIED
            self.copied()
        self.advance()

    def advance(self) -> None:
        """Go on until something is missing: a worker's message, another server's norm, word from the copies."""
        while self.serves and not self.copying:
            if len(self.heard) == len(self.ranges) * len(self.plan.workers):
                if not self.update():
                    return
                continue
            message = self.inbox.next({message.header.worker for message, _ in self.held})
            if message is None:
                return
            self.now = max(self.now, self.into.receive(message.header.time, message.nbytes))
            if message.header.kind == Kind.PUSH:
                self.push(message)
            else:
                self.held.append((message, self.now))
            self.answer()
            self.event()

    # ---- push -------------------------------------------------------------------------------------------------------

    def push(self, message: Message) -> None:
        """A worker's gradient of a range: add it to the sum (bsp), or update with it at once."""
        header, each = message.header, self.plan.ranges[message.header.range]
        gradient = self.key_lists.dense(message, each.lo, each.hi, self.mailbox.dtype)
        if self.has(header) or (header.worker, header.range) in self.heard:
            return  # sent again because a server stopped, but it had come through before
        if self.plan.aggregate:
            self.sums[header.range] = self.sums[header.range] + gradient if header.range in self.sums else gradient
            self.heard.add((header.worker, header.range))
        else:
            self.commit(header._replace(kind=Kind.COPY, keys=0, values=gradient.size), gradient)

    def update(self) -> bool:
        """bsp: update all ranges with their sums, clipped by the norm over all servers. False: norms are missing."""
        clock, local_steps = int(self.clock(-1)[0]), self.plan.options.local_steps
        if self.shard not in self.norms or self.norms[self.shard].clock < clock:
            mine = sum(squared_norm(total) for _, total in sorted(self.sums.items()))
            self.norms[self.shard] = Header(Kind.NORM, worker=self.shard, clock=clock, time=self.now, number=mine)
            self.tell_norm(range(len(self.plan.servers)))
        norms = [norm for _, norm in sorted(self.norms.items()) if norm.clock == clock]
        if len(norms) < len(self.plan.servers):
            return False
        self.now = max(self.now, *(norm.time + LATENCY * (norm.worker != self.shard) for norm in norms))
        total = math.sqrt(sum(norm.number for norm in norms))
        if not math.isfinite(total):
            raise FloatingPointError("the gradient is not finite: lower --lr")
        values = np.concatenate([self.sums[i] for i in self.ranges])
        self.sums, self.heard = {}, set()
        factor, first = clipping_factor(total, self.settings.clip * local_steps), clock * local_steps
        self.commit(Header(Kind.COPY, self.shard, clock=clock, values=values.size, first=first, number=factor), values)
        return True

    def tell_norm(self, shards: Iterable[int]) -> None:
        """Send this shard's latest norm to the servers of some shards."""
        for shard in shards:
            if shard != self.shard and self.shard in self.norms:
                message = Message(self.norms[self.shard]._replace(shard=shard))
                self.mailbox.send(self.plan.chain(shard, self.mailbox.closed)[0], message)

    # ---- pull -------------------------------------------------------------------------------------------------------

    def answer(self) -> None:
        """Send weights to all who have waited long enough, together with the range's vector clock."""
        if self.copying:
            return
        held, self.held = self.held, []
        for message, since in held:
            header, dest = message.header, self.plan.workers[message.header.worker]
            clocks, weights = self.clock(header.range), np.zeros(0)
            if header.range < 0:  # after its last push a worker asks only whether that is safe
                fresh = True
            else:
                weights, keys = self.state[header.range][0], self.key_lists.listed(message)
                weights = weights if keys is None else weights[keys - self.plan.ranges[header.range].lo]
                fresh = bool(clocks.min() >= header.clock - self.plan.staleness)
            if not fresh or clocks[header.worker] < header.clock:
                self.held.append((message, since))
                continue
            left = self.out.send(self.now, (weights.nbytes + clocks.nbytes) * (dest != self.mailbox.rank))
            header = header._replace(kind=Kind.VALUES, keys=clocks.size, values=weights.size, time=left)
            self.mailbox.send(dest, Message(header._replace(number=self.now - since), clocks, weights))

    def peer_stopped(self, moved: list[int]) -> None:
        """A server has stopped: the shards `moved` are now served by the next in their chains, by this one perhaps."""
        self.mend()
        if self.serves:
            self.tell_norm(moved)
        self.advance()


# ---- the worker ------------------------------------------------------------------------------------------------------


class Worker(Gradients):
    """It pulls weights, has its engine compute a gradient (gradients.py), and pushes that."""

    def __init__(self, units: list[Unit], settings: Settings, plan: Plan, mailbox: Mailbox) -> None:
        super().__init__(units, settings, plan, number=plan.workers.index(mailbox.rank))
        self.mailbox, self.clock = mailbox, 0
        self.last = {plan.of(shard)[-1] for shard in range(self.shards)}  # the last range of each shard
        self.pulling: set[tuple[int, int]] = set()  # (shard, range) of pulls that are not answered
        self.answers: dict[tuple[int, int], Message] = {}
        self.sent: dict[int, list[Message]] = {shard: [] for shard in range(self.shards)}  # for a server that stops
        self.key_lists = KeyLists(plan.options.keys == "cached")
        self.into, self.out = Link(), Link()

    def train(self, corpus: Corpus, serve: Callable[[Callable[[], bool]], None], progress: Progress) -> None:
        """All iterations of this worker. serve: handle messages until something is so."""
        ranges = range(len(self.plan.ranges))
        if self.steps < self.plan.options.steps:  # or a server would wait for what this worker does with the answers
            for i in ranges:
                self.pull(i)
        while self.steps < self.plan.options.steps:
            self.wait(serve)
            begin = time.perf_counter()
            self.compute(corpus)
            for i in ranges:
                self.push(i)
            self.clock += 1
            if self.steps < self.plan.options.steps:
                for i in ranges:
                    self.pull(i)
            else:
                for shard in range(self.shards):  # no more weights, only word that the last pushes are safe
                    self.ask(Header(Kind.PULL, shard))
            self.log.milliseconds.append(1000 * (time.perf_counter() - begin))
            progress.update(self.steps, self.log.losses[-1] / self.share, self.log.milliseconds[-1], 1.0)
        self.wait(serve)
        for rank in range(self.mailbox.comm.size):
            self.mailbox.send(rank, Message(Header(Kind.DONE)))

    # ---- push and pull: asynchronous --------------------------------------------------------------------------------

    def push(self, i: int) -> None:
        """Send the gradient of a range."""
        each, keys = self.plan.ranges[i], None
        gradient = self.accrued[each.keys] * self.scale
        if self.plan.options.filter:  # the significantly-modified filter (section 3.6); what is not sent stays accrued
            significant = np.flatnonzero(np.abs(gradient) > self.plan.options.filter)
            gradient, keys = gradient[significant], each.lo + significant
            self.accrued[keys] = 0
            self.log.significant += keys.size
        else:
            self.accrued[each.keys] = 0
            if self.plan.options.keys != "none":
                keys = np.arange(each.lo, each.hi)
        header = Header(Kind.PUSH, each.shard, range=i, more=1, values=gradient.size, first=self.first)
        self.ask(header._replace(number=self.share), keys, gradient)

    def pull(self, i: int) -> None:
        """Ask for the weights of a range."""
        each = self.plan.ranges[i]
        keys = None if self.plan.options.keys == "none" else np.arange(each.lo, each.hi)
        self.ask(Header(Kind.PULL, each.shard, range=i, more=i not in self.last), keys)

    def ask(self, header: Header, keys: Array | None = None, values: Array | None = None, again: bool = False) -> None:
        """Send a message to whoever serves its shard now."""
        dest = self.plan.chain(header.shard, self.mailbox.closed)[0]
        listed = keys
        if keys is not None:
            count, keys = self.key_lists.shortened(keys, dest)
            header = header._replace(keys=count)
        if not again:
            nbytes = sum(array.nbytes for array in (keys, values) if array is not None)
            left = self.out.send(self.now, nbytes * (dest != self.mailbox.rank))
            header = header._replace(worker=self.number, clock=self.clock, stamp=self.now, time=left)
            self.sent[header.shard].append(Message(header, listed, values))
            if header.kind == Kind.PULL:
                self.pulling.add((header.shard, header.range))
        self.mailbox.send(dest, Message(header, keys, values), again)

    def receive(self, message: Message) -> None:
        """Weights have come: are they fresh enough?"""
        header, clocks = message.header, message.keys
        key = (header.shard, header.range)
        self.answers[key] = message
        self.pulling.remove(key)
        if not any(shard == header.shard for shard, _ in self.pulling):
            self.sent[header.shard].clear()  # all has been answered
        if header.range < 0 or clocks is None or message.values is None:
            return
        self.log.reads.append((self.clock, int(clocks.min()), int(clocks.max()), int(clocks[self.number])))
        if clocks.min() < self.clock - self.plan.staleness or clocks[self.number] < self.clock:
            raise StaleRead(f"worker {self.number} reads at clock {self.clock} weights of clocks {clocks.tolist()}")
        self.weights[self.plan.ranges[header.range].keys] = message.values

    def wait(self, serve: Callable[[Callable[[], bool]], None]) -> None:
        """Until all pulls are answered; then account for the simulated time: held back by servers, or on the wire."""
        serve(lambda: not self.pulling)
        asked, answers = self.now, [message for _, message in sorted(self.answers.items())]
        for message in answers:
            self.now = max(self.now, self.into.receive(message.header.time, message.nbytes))
        held = max((message.header.number for message in answers), default=0.0)
        self.log.held += held
        self.log.wire += self.now - asked - held
        self.answers.clear()

    def peer_stopped(self, moved: list[int]) -> None:
        """Shards have moved to the next in their chains: ask again for what has not been answered."""
        for shard in moved:
            unanswered = [
                message
                for message in self.sent[shard]
                if message.header.kind == Kind.PUSH or (shard, message.header.range) in self.pulling
            ]
            for i, message in enumerate(unanswered, start=1):
                self.ask(message.header._replace(more=i < len(unanswered)), message.keys, message.values, again=True)
            if not unanswered and self.steps == self.plan.options.steps:
                self.ask(Header(Kind.PULL, shard))  # it had heard that this worker has finished; its successor has not


# ---- the run ---------------------------------------------------------------------------------------------------------


def train_once(comm: Comm, job: train.Job, plan: Plan, start: list[Array]) -> report.Outcome | None:
    """A training from its start to its end; on rank 0, all that there is to know of it."""
    comm = comm.split(0, comm.rank)  # messages of another training cannot come here
    comm.ledger.reset()
    mailbox = Mailbox(comm, job.settings.precision.stored)
    held = [shard for shard in range(len(plan.servers)) if comm.rank in plan.chain(shard, set())]
    servers = {shard: Server(shard, plan, job.settings, start, mailbox) for shard in held}
    worker = Worker(job.units, job.settings, plan, mailbox) if comm.rank in plan.workers else None
    node = Node(plan, mailbox, servers, worker)
    shown = comm.rank == 0 and plan.options.json != "-"
    progress = Progress(plan.options.steps, shown, label=f"{plan.name}, rank 0 alone: step")
    if worker:
        worker.train(job.corpus, node.serve, progress)
    node.serve(lambda: node.done == len(plan.workers))  # others may still need this rank's server
    mailbox.closed = {rank for rank, stopped in enumerate(comm.all_gather_object(node.stopped)) if stopped}
    progress.close()
    comm.flush()
    found = [] if node.stopped else [report.Held.of(server) for server in servers.values()]
    everyone = comm.gather_object(report.RankResult(worker.log if worker else None, comm.ledger.sent, found))
    return report.Outcome(plan, everyone) if everyone else None


def main(comm: Comm, prepared: tuple[train.Job, Plan]) -> int:
    keep_freed_memory()
    job, plan = prepared
    whole = report.Whole(job, len(plan.servers))
    start = whole.read()
    plan = replace(plan, first_step=whole.steps, first_update=whole.updates)
    outcomes = []
    for consistency, staleness in report.settings(plan.options):
        outcome = train_once(comm, job, consistent(plan, consistency, staleness), start)
        if outcome:
            outcomes.append(outcome)
    return comm.broadcast_object(report.report(job, whole, outcomes) if comm.rank == 0 else None)


if __name__ == "__main__":
    made = train.parser(__doc__ or "", "parameter_server")
    add_options(made)
    run(prepare=lambda comm: prepare(made, sys.argv[1:], comm.size), main=main)
