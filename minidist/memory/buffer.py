"""A buffer of constant size: gradients go through it to be summed, however large the model is (ZeRO, section 6.2)."""

from collections.abc import Callable

from minidist.memory.pool import Array


class ConstantBuffer:
    """Takes gradients piece by piece. Whenever it is full, all that it holds is summed over N ranks at once.

    Small gradients are sent together, and large ones in parts. The buffer is a matrix of N rows. Row r holds only
    elements of shards r, so each element is summed in the same order as without the buffer, to the same bit.

    room: (N·columns,), and never larger.
    reduce: sums an array (S,) over the ranks in place, and returns the sum (S,), or this rank's shard of it (S/N,).
    """

    def __init__(self, room: Array, ranks: int, reduce: Callable[[Array], Array]) -> None:
        self.room, self.reduce = room, reduce
        self.rows = room.reshape(ranks, -1)  # (N, columns)
        self.filled = 0  # columns
        self.waiting: list[tuple[Array, slice]] = []  # where to add sums, and from which columns

    def put(self, gradient: Array, total: Array) -> None:
        """Take all of a gradient (padded,), and set it to zero. As soon as the buffer is full, or flushed, the sum over
        the ranks is added to `total`: (padded,), or this rank's shard of it (padded/N,)."""
        rows = gradient.reshape(len(self.rows), -1)  # (N, padded/N): row r is shard r
        total = total.reshape(-1, rows.shape[1])  # all rows, or this rank's
        first = 0
        while first < rows.shape[1]:
            n = min(self.rows.shape[1] - self.filled, rows.shape[1] - first)
            here, there = slice(self.filled, self.filled + n), slice(first, first + n)
            self.rows[:, here] = rows[:, there]  # rounded to the dtype in which gradients are sent
            rows[:, there] = 0
            self.waiting.append((total[:, there], here))
            self.filled, first = self.filled + n, first + n
            if self.filled == self.rows.shape[1]:
                self.empty()

    def empty(self) -> None:
        """Sum the buffer's content over the ranks, and empty it."""
        n = self.filled
        for r in range(1, len(self.rows)):  # pack rows that are not full: they are the chunks to be sent
            self.room[r * n : (r + 1) * n] = self.rows[r, :n]
        if n:
            sums = self.reduce(self.room[: len(self.rows) * n]).reshape(-1, n)
            for total, columns in self.waiting:
                total += sums[:, columns]
        self.filled, self.waiting = 0, []
