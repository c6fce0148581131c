"""Exercise 04: all-reduce around a ring.

Fill in the three functions; `pytest lessons/04_ring_all_reduce` says how many points they earn. Send and receive with

    comm.send(array, dest)      comm.recv(out, source)      comm.sendrecv(array, dest, out, source)

which move NumPy arrays; the received array is written into `out`. comm.rank is this rank, comm.size is N.
Every function must work for each N >= 1 and for each size, divisible by N or not, including 0.
"""

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


def chunk(size: int, n: int, i: int) -> slice:
    """The i-th of n consecutive chunks of `size` elements: the first size mod n are one element longer.

    Given, because all ranks must cut in the same places: x[chunk(x.size, n, i)] is a view of chunk i of x.
    """
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))


# ---- here is room for reduce_scatter_step and all_gather_step, as you wrote them in the notebook ---------------------


# ---- what is asked for -----------------------------------------------------------------------------------------------


def reduce_scatter(comm: Comm, x: Array, out: Array | None = None) -> Array:
    """Sum x over the ranks; rank r gets chunk r of the sum.

    x (S,)          the same size on every rank; it is not changed
    out (|chunk r|,)  where the result goes, if it is given; it may be a view of x. Return it, or a new array.

    There are N-1 steps. In each, send a partial sum to the right neighbor, rank+1, and receive one from the left,
    rank-1 (both modulo N). Chunk c starts at rank c+1; each rank on its way adds its own part to it; it ends at
    rank c. So in the first step rank r sends its own part of chunk r-1, and receives the partial sum of chunk r-2.
    In each later step a rank sends the partial sum that it received in the step before, with its own part added.
    """
    raise NotImplementedError


def all_gather(comm: Comm, x: Array, size: int, out: Array | None = None) -> Array:
    """Put all ranks' chunks together; each rank gets all `size` elements.

    x (|chunk r|,)  rank r's chunk of `size` elements, as `chunk` cuts them; it is not changed
    out (size,)     where the result goes, if it is given; x may be a view of it. Return it, or a new array.

    There are N-1 steps. In each, send a chunk to the right neighbor and receive one from the left: in the first step
    rank r sends chunk r and receives chunk r-1, and then it passes on the chunk that it received last.
    """
    raise NotImplementedError


def all_reduce(comm: Comm, x: Array, out: Array | None = None) -> Array:
    """Sum x over the ranks; each rank gets all of the sum.

    x (S,)          the same size on every rank; it is not changed unless it is `out`
    out (S,)        where the result goes, if it is given; it may be x itself. Return it, or a new array.

    A reduce-scatter and then an all-gather: 2(N-1) steps. If N divides S, every rank sends 2(N-1)/N·S elements.
    In addition to x and the result, hold no more than three chunks at a time.
    """
    raise NotImplementedError
