"""How the copies of a shard are kept, so that a server may stop.

Chain replication (Li et al., OSDI 2014, section 4.4): the server makes an update and sends it to the next rank of the
chain, which makes the same update and passes it on. The last rank confirms it to the server, and only then does the
server answer any worker. So all copies have what any worker was told. If the server stops, the next rank of the
chain takes over: workers repeat unanswered messages, and the vector clocks show which of them had already arrived.

A server that stops (--stop) ignores all messages from then on, and its host closes its connections, which tells the
other ranks. This is how the death of a process looks if its machine lives on. A rank that really dies ends the whole
job, because MPI offers nothing else.
"""

from minidist.ps.messages import Copied, Mailbox, Update
from minidist.ps.plan import RankPlan
from minidist.ps.simulated_time import BANDWIDTH, LATENCY


class ServerStopped(Exception):
    """The server on this rank stops here."""


class ReplicaChain:
    """The ranks that hold a shard, as one of them sees it: the first serves it, the others keep copies."""

    def __init__(self, shard: int, plan: RankPlan, mailbox: Mailbox) -> None:
        self.shard, self.plan, self.mailbox = shard, plan, mailbox
        self.under_way: Update | None = None  # on the server: an update that some copies may not have made
        self.passed: Update | None = None  # on a copy: the last update that was passed on
        self.events = 0

    @property
    def ranks(self) -> list[int]:
        """The ranks of the chain that have not stopped."""
        return self.plan.chain(self.shard, self.mailbox.closed)

    @property
    def serves(self) -> bool:
        return self.ranks[0] == self.mailbox.rank

    def seconds(self, update: Update) -> float:
        """Simulated time until all copies have made an update: hop by hop, and the confirmation."""
        copies = self.plan.options.replicas
        return copies * (LATENCY + update.values.nbytes / BANDWIDTH) + LATENCY if copies else 0.0

    def begin(self, update: Update) -> bool:
        """On the server: send the copies an update that it has made. Returns whether all have it: if there are none."""
        self.under_way = update
        self._pass_on(update)
        self.event()
        return self.under_way is None

    def follow(self, update: Update) -> None:
        """On a copy: pass on an update that it has made to the copies after it."""
        self.passed = update
        self._pass_on(update)

    def _pass_on(self, update: Update) -> None:
        """Send the update to the next copy; the last copy confirms it to the server."""
        ranks = self.ranks
        place = ranks.index(self.mailbox.rank)
        if place + 1 < len(ranks):
            self.mailbox.send(ranks[place + 1], update)
        elif place > 0:
            names = Copied(shard=self.shard, range=update.range, worker=update.worker, clock=update.clock)
            self.mailbox.send(ranks[0], names)
        else:
            self.under_way = None

    def confirm(self, word: Copied) -> bool:
        """On the server: returns whether a confirmation is of the update under way. Then every copy has made it."""
        update = self.under_way
        if update is None or (update.range, update.worker, update.clock) != (word.range, word.worker, word.clock):
            return False  # of an earlier one: a copy that gets an update twice confirms it twice
        self.under_way = None
        return True

    def mend(self) -> bool:
        """Pass the last update on again, to the rank that is next now: a rank of the chain may be gone, and with it the
        update or its confirmation. No rank makes an update twice. Returns whether the server need not wait any longer,
        because no copy is left."""
        update = self.under_way if self.serves else self.passed
        if update:
            self._pass_on(update)
        return self.serves and update is not None and self.under_way is None

    def event(self) -> None:
        """Count an event: a message handled, an update made or copied. --stop names one of these by its number."""
        self.events += 1
        rank = self.plan.servers[self.shard]
        if rank == self.mailbox.rank and self.plan.options.stop == (rank, self.events):
            raise ServerStopped
