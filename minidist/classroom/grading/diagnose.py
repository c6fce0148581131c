"""From a wrong array, what is in it: which rank's part is missing, was added twice, or came from another place.

The inputs are made so that a sum can be taken apart again. Rank r's elements are primes at digit r of a number in base
8192. So each rank's contribution to a sum can be read off, if it was added up to eight times. A float64 has room for
four ranks (4 x 13 bits). A multiple of one prime is never another.
"""

from collections.abc import Collection, Sequence

import numpy as np

from minidist.papers.collectives import chunk_sizes

Array = np.ndarray
BITS = 13  # per rank
PRIMES = np.array([p for p in range(11, 1024) if all(p % q for q in range(2, 32))], float)  # 163 of them; p * 8 < 2**13


def distinct(n: int, size: int, random: np.random.Generator) -> list[Array]:
    """An input (size,) float64 for each of n <= 4 ranks; up to 163 elements, all elements of a rank differ."""
    return [random.permutation(PRIMES)[np.arange(size) % len(PRIMES)] * 2.0 ** (BITS * rank) for rank in range(n)]


def first_difference(found: Array, expected: Array) -> int | None:
    """The first index at which two arrays (size,) differ, NaN included; None if they are equal."""
    wrong = np.flatnonzero(~(found == expected))
    return int(wrong[0]) if wrong.size else None


def chunk_of(index: int, n: int, size: int) -> int:
    """The number of the chunk that contains element `index`, if `size` elements are cut into n chunks."""
    return int(np.searchsorted(np.cumsum(chunk_sizes(size, n)), index, side="right"))


def in_a_sum(value: float, inputs: Sequence[Array], index: int) -> str:
    """What `value` holds in place of element `index` of the sum of `distinct` inputs."""
    n, size = len(inputs), inputs[0].size
    total = sum(float(x[index]) for x in inputs)
    if n > 1 and value * n == total:
        return "it holds the mean; the sum is wanted, not divided by the number of ranks"
    if n > 1 and value * n**2 == total:
        return "it holds the sum divided by the number of ranks twice"
    if not (float(value).is_integer() and 0 <= value < 2.0 ** (BITS * n)):
        return "it holds something that is no sum of the inputs"
    elsewhere = np.flatnonzero(np.sum(inputs, axis=0) == value)
    if elsewhere.size:
        return f"it holds element {elsewhere[0]} of the sum, of chunk {chunk_of(int(elsewhere[0]), n, size)}"
    return in_a_partial_sum(value, inputs, index, range(n))


def in_a_partial_sum(value: float, inputs: Sequence[Array], index: int, ranks: Collection[int]) -> str:
    """What `value` holds in place of element `index` of the sum over some ranks' inputs."""
    n, size, remarks = len(inputs), inputs[0].size, []
    for rank, x in enumerate(inputs):
        elements = (x / 2.0 ** (BITS * rank)).astype(int)
        held = int(value) >> BITS * rank & 2**BITS - 1
        if rank not in ranks:
            remark = "is in it already" if held else ""
        else:
            remark = _of_one_rank(held, elements, index, chunk_of(index, n, size), n)
        if remark:
            remarks.append(f"rank {rank}'s {remark}")
    return " and ".join(remarks)


def _of_one_rank(held: int, elements: Array, index: int, place: int, n: int) -> str:
    """How a rank's contribution `held` differs from its element `index`, added once; "" if it does not."""
    times, rest = divmod(held, int(elements[index]))
    elsewhere = np.flatnonzero(elements == held)
    if rest == 0:
        times_in_words = {0: "is missing", 1: "", 2: "was added twice"}.get(times, f"was added {times} times")
        return times_in_words and f"chunk {place} {times_in_words}"
    if not elsewhere.size:
        return f"chunk {place} is not what was added here"
    other = chunk_of(int(elsewhere[0]), n, elements.size)
    if other == place:
        return f"element {elsewhere[0]} was added in place of its element {index}"
    return f"chunk {other} was added in place of its chunk {place}"


def in_a_gathering(value: float, expected: Array, n: int, index: int) -> str:
    """What `value` holds in place of element `index` of all ranks' chunks, put together."""
    elsewhere = np.flatnonzero(expected == value)
    if not elsewhere.size:
        return "it holds what is in nobody's chunk, as memory does into which nothing was received"
    return f"it holds element {elsewhere[0]}, of rank {chunk_of(int(elsewhere[0]), n, expected.size)}'s chunk"
