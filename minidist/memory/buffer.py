"""A buffer of constant size: gradients go through it to be summed, however large the model is (ZeRO, section 6.2)."""

from collections.abc import Callable

from minidist.memory.pool import Array


class ConstantBuffer:
    """Takes gradients piece by piece, and whenever it is full has all that is in it summed over N ranks at once.

    Small gradients are sent together, and large ones in parts. It is a matrix of N rows, of which row r holds elements
    of shards r alone: so each element is summed in the same order as it would be by itself, to the same bit.

    room: (N·columns,), and never larger.
    reduce: sums an array (S,) over the ranks in place, and returns the sum (S,), or this rank's shard of it (S/N,).
    """

    def __init__(self, room: Array, ranks: int, reduce: Callable[[Array], Array]) -> None:
        self.room, self.reduce = room, reduce
        self.rows = room.reshape(ranks, -1)  # (N, columns)
        self.filled = 0  # columns
        self.waiting: list[tuple[Array, slice]] = []  # where sums are to be added, and of which columns

    def put(self, gradient: Array, total: Array) -> None:
        """Take all of a gradient (padded,), which is zero from then on. Its sum over the ranks is added to `total`
        (padded,), or to this rank's shard of it (padded/N,), as soon as the buffer is full, or emptied."""
        rows = gradient.reshape(len(self.rows), -1)  # (N, padded/N): row r is shard r
        total = total.reshape(-1, rows.shape[1])  # all rows, or this rank's
        first = 0
        while first < rows.shape[1]:
            n = min(self.rows.shape[1] - self.filled, rows.shape[1] - first)
            here, there = slice(self.filled, self.filled + n), slice(first, first + n)
            self.rows[:, here] = rows[:, there]  # rounded to how gradients are stored
            rows[:, there] = 0
            self.waiting.append((total[:, there], here))
            self.filled, first = self.filled + n, first + n
            if self.filled == self.rows.shape[1]:
                self.empty()

    def empty(self) -> None:
        """Sum what is there."""
        n = self.filled
        for r in range(1, len(self.rows)):  # rows that are not full are pushed together: chunks of what is sent
            self.room[r * n : (r + 1) * n] = self.rows[r, :n]
        if n:
            sums = self.reduce(self.room[: len(self.rows) * n]).reshape(-1, n)
            for total, columns in self.waiting:
                total += sums[:, columns]
        self.filled, self.waiting = 0, []
