"""Which positions of its sequences a rank works on."""

from dataclasses import dataclass, replace

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Span:
    """Of `length` positions, those of one rank; `ranks` of them divide the sequence. It holds no array, so a backward
    may hold on to it.

    contiguous   rank r has the r-th of N chunks
    zigzag       of 2N chunks, the r-th and the r-th from the end (Llama 3, section 3.3.2): as many keys before its
                 queries as any other rank
    striped      position i is on rank i mod N (Striped Attention, section 3)
    """

    length: int
    ranks: int = 1
    rank: int = 0
    how: str = "contiguous"
    part: tuple[int, int] = (0, 1)  # (i, n): the i-th of n equal pieces of the rank's positions

    def of(self, rank: int) -> Array:
        """All positions of a rank, rising."""
        n, everything = self.ranks, np.arange(self.length)
        if self.how == "striped":
            return everything[rank::n]
        if self.how == "contiguous":
            return np.array_split(everything, n)[rank]
        chunks = np.array_split(everything, 2 * n)
        return np.concatenate([chunks[rank], chunks[2 * n - 1 - rank]])

    @property
    def here(self) -> Array:
        """Those of this rank's part."""
        piece, pieces = self.part
        return np.array_split(self.of(self.rank), pieces)[piece]

    @property
    def sizes(self) -> list[int]:
        """The number of each rank's positions."""
        return [len(self.of(rank)) for rank in range(self.ranks)]

    @property
    def whole(self) -> "Span":
        """The sequence, uncut."""
        return Span(self.length)

    def cut(self, part: tuple[int, int]) -> "Span":
        """The i-th of n equal pieces of this rank's positions."""
        return replace(self, part=part)
