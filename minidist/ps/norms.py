"""bsp clips by the norm of the whole gradient, as one process would. Each server has only its shard of the gradient, so
before an update the servers tell each other their sums of squares."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from minidist import Stopped
from minidist.nn.optim import sum_of_squares
from minidist.nn.tensor import Array
from minidist.ps.messages import Mailbox, Norm
from minidist.ps.plan import RankPlan
from minidist.ps.simulated_time import LATENCY, Cable


class Norms:
    """The sums of squares that the server of a shard has heard from the others."""

    def __init__(self, shard: int, plan: RankPlan, mailbox: Mailbox) -> None:
        self.shard, self.plan, self.mailbox = shard, plan, mailbox
        self.latest: dict[int, Norm] = {}  # by shard

    def add(self, norm: Norm) -> None:
        """Take in another server's part."""
        self.latest[norm.teller] = norm

    def whole(self, clock: int, sums: Mapping[int, Array], cable: Cable) -> float | None:
        """The norm of the gradient over all servers; None while a part is missing. sums: the ranges of this server.

        clock: iterations done before the update. Waits in simulated time (cable) until the last part is here.
        """
        if self.shard not in self.latest or self.latest[self.shard].clock < clock:
            mine = sum(sum_of_squares(total) for _, total in sorted(sums.items()))
            self.add(Norm(shard=self.shard, teller=self.shard, clock=clock, squares=mine, time=cable.now))
            self.tell(range(len(self.plan.servers)))
        parts = [norm for _, norm in sorted(self.latest.items()) if norm.clock == clock]
        if len(parts) < len(self.plan.servers):
            return None
        cable.now = max(cable.now, *(norm.time + LATENCY * (norm.teller != self.shard) for norm in parts))
        norm = math.sqrt(sum(part.squares for part in parts))
        if not math.isfinite(norm):
            raise Stopped("the gradient is not finite: lower --lr")
        return norm

    def tell(self, shards: Iterable[int]) -> None:
        """Send this shard's latest part to the servers of some shards."""
        for shard in shards:
            if shard != self.shard and self.shard in self.latest:
                server = self.plan.chain(shard, self.mailbox.closed)[0]
                self.mailbox.send(server, replace(self.latest[self.shard], shard=shard))
