"""Sequences of a text, and rows of a batch."""

import numpy as np

Array = np.ndarray


class Sequences:
    """Token numbers (B, T) of a text that are read only when they are asked for: a batch belongs to all ranks, and each
    rank reads its own rows."""

    def __init__(self, tokens: Array, starts: Array, length: int) -> None:
        self.tokens, self.starts = tokens, starts  # of the whole text; (B,): where each sequence begins
        self.shape, self.size = (len(starts), length), len(starts) * length

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: slice | Array) -> "Sequences":
        """Some rows, not read yet."""
        return Sequences(self.tokens, self.starts[rows], self.shape[1])

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> Array:
        """Read them: what NumPy does with `np.asarray`."""
        found = self.tokens[self.starts[:, None] + np.arange(self.shape[1])]
        return found if dtype is None else found.astype(dtype)


Tokens = Array | Sequences


def micro_batches(x: Tokens, y: Tokens, n: int) -> list[tuple[Tokens, Tokens]]:
    """Cut inputs and targets into n consecutive micro-batches of equally many rows."""
    b, rest = divmod(len(x), n)
    if rest:
        raise ValueError(f"{len(x)} sequences cannot be divided into {n} equal micro-batches")
    return [(x[i : i + b], y[i : i + b]) for i in range(0, n * b, b)]
