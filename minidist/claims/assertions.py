"""Traffic and memory as assertions, for your own tests.

    with traffic(comm) as sent:
        engine.step()
    assert sent.bytes("all-gather") == 0            # ZeRO-3 gathers when it computes, not when it updates

    with holding(engine.device) as held:
        engine.train_batch(x, y)
    assert held.peak("gathered") <= 2 * largest     # one unit at a time, 2 bytes per element

`minidist.claims.fixtures` has both for pytest, with the ranks' communicator.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from minidist.memory.pool import Pool
from minidist.mpi.comm import Comm


class Traffic:
    """The payload that this rank sent inside the block, by phase and peer. It grows until the block ends."""

    def __init__(self, comm: Comm) -> None:
        self._ledger = comm.ledger
        self._begin = comm.ledger.ever()
        self._end: Counter[tuple[str, str, int, str]] | None = None

    def end(self) -> None:
        self._end = self._ledger.ever()

    def _sum(self, unit: str, phase: str, to: int | None) -> int:
        sent = (self._end or self._ledger.ever()) - self._begin
        return sum(
            count
            for (kind, named, peer, counted), count in sent.items()
            if kind == "payload" and counted == unit and named.startswith(phase) and to in (None, peer)
        )

    def bytes(self, phase: str = "", to: int | None = None) -> int:
        """Bytes in phases whose names start with `phase`, sent to the world's rank `to`. By default: all."""
        return self._sum("bytes", phase, to)

    def messages(self, phase: str = "", to: int | None = None) -> int:
        """The number of messages in these phases, to this rank."""
        return self._sum("messages", phase, to)


@contextmanager
def traffic(comm: Comm) -> Iterator[Traffic]:
    """Counts what this rank sends inside the block, over any communicator; a reset of the ledger does not matter."""
    counted = Traffic(comm)
    try:
        yield counted
    finally:
        counted.end()


class Holding:
    """The most that a pool held inside the block, by kind (`minidist/memory/pool.py`), what it held before included."""

    def __init__(self, pool: Pool) -> None:
        self.before = pool.held
        self._most = dict(self.before)

    def changed(self, pool: Pool) -> None:
        for kind, nbytes in pool.held.items():
            self._most[kind] = max(self._most[kind], nbytes)

    def note_boundary(self, pool: Pool, what: str, name: str) -> None:
        """Do nothing: a boundary makes no array."""

    def peak(self, kind: str = "all but workspace") -> int:
        """The most bytes of a kind. Raises KeyError for an unknown one."""
        return self._most[kind]


@contextmanager
def holding(pool: Pool) -> Iterator[Holding]:
    """Notes the most that a pool holds inside the block."""
    noted = Holding(pool)
    pool.watchers.append(noted)
    try:
        yield noted
    finally:
        pool.watchers.remove(noted)
