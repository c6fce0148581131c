"""A shard of the parameter server on one rank: weights, optimizer state and vector clocks; and how copies are made.

Chain replication (Li et al., OSDI 2014, section 4.4): the server makes an update and sends it to the next rank of the
chain, which makes the same update and passes it on; the last one tells the server, and only then does the server answer
any worker. So what a worker has been told is on all copies. When the server stops, the next of the chain takes over:
workers send again what was not answered, and what had come through is recognised by its vector clock.

A server that stops (--stop) ignores all messages from then on, and its host closes its connections, by which the others
learn of it: that is what the death of a process on a machine that lives looks like. A rank that really dies takes the
whole job with it, for MPI offers nothing else.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from minidist.engine import Settings
from minidist.nn.tensor import Array
from minidist.ps.messages import Header, Kind, Mailbox, Message
from minidist.ps.plan import Plan
from minidist.ps.simulated_time import BANDWIDTH, LATENCY
from minidist.ps.vector_clock import RangeClocks


class Stopped(Exception):
    """The server on this rank stops here."""


class Replica:
    """A shard on one of the ranks that hold it."""

    def __init__(self, shard: int, plan: Plan, settings: Settings, start: list[Array], mailbox: Mailbox) -> None:
        self.shard, self.plan, self.settings, self.mailbox = shard, plan, settings, mailbox
        self.ranges = {i: plan.ranges[i] for i in plan.of(shard)}
        # [weights, *moments] of each range; `start` holds them for all keys
        self.state = {i: [whole[each.keys].copy() for whole in start] for i, each in self.ranges.items()}
        lo, hi = min(each.lo for each in self.ranges.values()), max(each.hi for each in self.ranges.values())
        self.clocks = RangeClocks(lo, hi, len(plan.workers))
        self.copying: Message | None = None  # on the server: the update that is on its way down the chain
        self.passed: Message | None = None  # on a copy: the last update that was passed on
        self.now = 0.0  # simulated time
        self.events = 0

    # ---- weights ----------------------------------------------------------------------------------------------------

    def named(self, number: int) -> list[int]:
        """The range of that number; for -1 all of the shard's."""
        return list(self.ranges) if number < 0 else [number]

    def clock(self, number: int) -> Array:
        """For each worker, how many of its iterations are in every weight of the range: (workers,) integers."""
        lowest: Array = np.min([self.clocks.read(self.ranges[i].lo, self.ranges[i].hi) for i in self.named(number)], 0)
        return lowest

    def has(self, header: Header) -> bool:
        """Whether an update is in the weights."""
        return bool(self.clock(header.range)[header.worker] > header.clock)

    def apply(self, header: Header, gradient: Array) -> None:
        """The optimizer's update. It works element by element, so ranges are updated as the whole would be."""
        everyone = range(len(self.plan.workers))
        lr, scale = self.settings.learning_rate(self.plan.first_update + header.first), header.number
        workers: Sequence[int] = everyone
        if not self.plan.aggregate:  # for a share of the batch, a share of the step
            lr, scale, workers = lr * header.number, 1.0, [header.worker]
        names = self.named(header.range)
        borders = np.cumsum([0] + [self.state[i][0].size for i in names])
        for i, (start, stop) in zip(names, pairwise(borders), strict=True):
            each, (weights, *moments) = self.ranges[i], self.state[i]
            before = self.plan.first_update * len(everyone) + int(self.clocks.read(each.lo, each.hi).sum())
            step = before // len(workers) + 1
            self.settings.optimizer.update(
                weights, gradient[start:stop], moments, scale=scale, lr=lr, step=step, decayed=each.decayed
            )
            for worker in workers:
                self.clocks.set(each.lo, each.hi, worker, header.clock + 1)

    # ---- copies -----------------------------------------------------------------------------------------------------

    @property
    def chain(self) -> list[int]:
        """The ranks that hold this shard, the one that serves it first."""
        return self.plan.chain(self.shard, self.mailbox.closed)

    @property
    def serves(self) -> bool:
        return self.chain[0] == self.mailbox.rank

    def commit(self, header: Header, gradient: Array) -> None:
        """Update, and have every copy do the same. In bsp one gradient is copied where N were pushed (replication after
        aggregation)."""
        self.apply(header, gradient)
        if copies := self.plan.options.replicas:
            self.now += copies * (LATENCY + gradient.nbytes / BANDWIDTH) + LATENCY  # hop by hop, and the word back
        self.copying = Message(header._replace(time=self.now), values=gradient)
        self.pass_on(self.copying)
        self.event()

    def copy(self, message: Message) -> None:
        """On a copy: make the update that the server has made."""
        self.now = message.header.time
        if message.values is not None and not self.has(message.header):
            self.apply(message.header, message.values)
        self.passed = message
        self.pass_on(message)

    def pass_on(self, message: Message) -> None:
        """Down the chain: the update to the next copy; from the last one, word to the server."""
        header, values, chain = message.header, message.values, self.chain
        place = chain.index(self.mailbox.rank)
        if place + 1 < len(chain) and values is not None:
            self.mailbox.send(chain[place + 1], Message(header, values=values))
        elif place > 0:
            self.mailbox.send(chain[0], Message(header._replace(kind=Kind.COPIED, values=0)))
        else:
            self.copied()

    def mend(self) -> None:
        """A rank of the chain may be gone, and with it an update that was on its way, or the word that it has arrived:
        pass it on again, to who is next now. What was made already is not made twice, and no word is missed twice."""
        message = self.copying if self.serves else self.passed
        if message:
            self.pass_on(message)

    def copied(self) -> None:
        """The update is on every copy."""
        self.copying = None
        self.answer()
        self.event()

    def answer(self) -> None:
        """Workers may be told."""
        raise NotImplementedError

    def event(self) -> None:
        """Done: a message handled, an update made, an update copied. --stop names one of these by its number."""
        self.events += 1
        rank = self.plan.servers[self.shard]
        if rank == self.mailbox.rank and self.plan.options.stop == (rank, self.events):
            raise Stopped
