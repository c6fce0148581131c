"""What one forward of context parallelism computes, and when, on a logical clock."""

from minidist.mpi.clock import Clock
from minidist.mpi.comm import Comm


class Unwatched:
    """Counts nothing: what a rank has while it trains."""

    def see(self, pairs: int) -> None:
        """A tile of attention has been computed, with this number of pairs of query and key."""

    def sent(self) -> None:
        """A block is on its way to the right."""

    def computed(self) -> None:
        """A step has ended."""

    def arrived(self) -> None:
        """A block has come from the left."""


class AttentionClock(Unwatched):
    """Counts pairs of query and key, step by step of the ring. On the clock, a pair takes one unit of time; messages
    take none, but the sender's time comes along with them, on the control channel."""

    def __init__(self, comm: Comm) -> None:
        self.comm, self.clock = comm, Clock()
        self.pairs = [0]  # of each step, in all layers
        self.spans: list[tuple[int, float, float]] = []  # step, begin and end of what was computed

    def see(self, pairs: int) -> None:
        self.pairs[-1] += pairs

    def sent(self) -> None:
        self.comm.send_object(self.clock.now, (self.comm.rank + 1) % self.comm.size)

    def computed(self) -> None:
        begin = self.clock.now
        self.clock.work(self.pairs[-1])
        self.spans.append((len(self.pairs) - 1, begin, self.clock.now))
        self.pairs.append(0)

    def arrived(self) -> None:
        self.clock.receive(self.comm.recv_object((self.comm.rank - 1) % self.comm.size))
