"""Chen's chain: n equal layers one after the other, whose values are real arrays that a pool counts.

Chen et al. 2016, arXiv 1604.06174. `python -m minidist recompute` prints the results. A layer keeps only its input, so
the chain shows a policy and nothing else: every value that is held is one of the chain's n + 1.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from minidist.memory.pool import Array, Pool
from minidist.memory.recompute import Segment, divide

WIDTH = 8


class ChainCounts(NamedTuple):
    """What one forward and backward through a chain took."""

    values: int  # the most that were held at once
    calls: int  # forwards of layers
    gradient: Array  # of the input (WIDTH,): the same under every policy


class LayerChain:
    """n layers y = x + sin x, and the values that are held."""

    def __init__(self) -> None:
        self.pool, self.calls = Pool("chain"), 0
        self.kept: list[tuple[Segment, Array]] = []  # with the input of each

    def forward(self, segments: Sequence[Segment], x: Array) -> None:
        """Run segments, and keep the input of each. The backward of a single layer needs nothing else."""
        for segment in segments:
            self.kept.append((segment, x))
            for _ in segment.units:
                x = self.pool.hold("activations", x + np.sin(x))
                self.calls += 1

    def backward(self, dy: Array) -> Array:
        """The gradient of the input, from the gradient `dy` of the output."""
        while self.kept:
            segment, x = self.kept.pop()
            if segment.within:
                self.forward(segment.within, x)
            else:
                dy = dy * (1 + np.cos(x))
        return dy


def count(n: int, policy: str) -> ChainCounts:
    """Go through a chain of n layers and back."""
    chain = LayerChain()
    x = chain.pool.hold("activations", np.linspace(-1, 1, WIDTH))
    chain.forward(divide(range(n), policy), x)
    gradient = chain.backward(np.ones(WIDTH))
    return ChainCounts(chain.pool.peak["activations"] // x.nbytes, chain.calls, gradient)


def best_interval(intervals: Iterable[int], held: Callable[[int], int]) -> int:
    """The K with the fewest values `held`, by trying all of them; of several, the smallest."""
    return min(intervals, key=lambda k: (held(k), k))
