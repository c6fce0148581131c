"""Exercise 13: a pipeline, its clock and its schedules.

Fill in the functions; `pytest lessons/13_pipelines` says how many points they earn. An *order* is the list of tasks
that one stage does, one after another. Each task is a pair (letter, k), where k is the micro-batch, from 0:

    ("F", k)    the forward
    ("B", k)    the gradient of the stage's input, which goes to the stage before as soon as it is computed
    ("W", k)    the gradient of the stage's own weights; after B
    ("BW", k)   both in one, as in a plain backward: the gradient goes to the stage before when both are computed

A stage does F, and either BW or B and W, once for each of m micro-batches. Stages count from 0 to p-1 here, from 1 in
the papers. Messages from one stage to the next arrive in the order in which they were sent.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray
Order = list[tuple[str, int]]
Span = tuple[str, int, float, float]  # (letter, micro-batch, start, end)


# ---- first part: the clock -------------------------------------------------------------------------------------------


def clock(orders: Sequence[Order], costs: dict[str, float], latency: float = 0) -> list[list[Span]]:
    """When each stage does each task: for each stage the list of (letter, k, start, end), in its order.

    orders: one for each stage. costs: the time that "F", "B" and "W" take; "BW" takes the time of B plus that of W.
    latency: the time that a message takes.

    All stages begin at time 0. A stage does one task at a time, as early as it can:

        F of k       on stage s > 0 waits for the end of F of k on stage s-1, and then for a message
        B, BW of k   on stage s < p-1 waits for the end of B or BW of k on stage s+1, and then for a message;
                     on the last stage it follows the stage's own F of k

    On one stage F of k comes before B, and B before W. If tasks remain and no stage can go on, or if an order has
    tasks in an impossible sequence, raise ValueError: that is a deadlock.
    """
    raise NotImplementedError


# ---- second part: schedules ------------------------------------------------------------------------------------------


def gpipe(s: int, p: int, m: int) -> Order:
    """Stage s of p: all forwards, then all backwards (BW), the last micro-batch's first."""
    raise NotImplementedError


def one_f_one_b(s: int, p: int, m: int) -> Order:
    """1F1B: a few forwards first, then a BW as soon as one is possible, and a forward in the room that it frees.

    Stage s holds at most p - s micro-batches. So it begins with p - s forwards (or m, if m is less), and then BW and F
    take turns: BW of 0, F of the next, BW of 1, ... until no forward remains, and then only BW.
    """
    raise NotImplementedError


def zb_h1(s: int, p: int, m: int) -> Order:
    """ZB-H1: like 1F1B, but with B and W apart. W waits until it can fill a time in which 1F1B idles.

    F and B come in the order in which 1F1B has F and BW. Stage s postpones s of its Ws: once s + 1 Bs are done, the
    oldest W that waits comes right after each B, and the last s Ws come at the end. So no stage holds more than p
    micro-batches between F and W.
    """
    raise NotImplementedError


# ---- third part: on ranks --------------------------------------------------------------------------------------------


def perform(comm: Comm, stage: Any, order: Order) -> None:
    """Run an order: this rank is stage comm.rank of comm.size. Receive each task's input, and send its result.

    y = stage.forward(k, x)     x has stage.shape, float64, and comes from rank - 1; it is None on the first stage.
                                y has the same shape, and goes to rank + 1; it is None on the last stage.

    dx = stage.backward(k, dy)  dy comes from rank + 1; it is None on the last stage.
                                dx goes to rank - 1; it is None on the first stage.

    stage.weight(k)             call it after backward(k)

    A stage does not copy x and dy: it reads them until weight(k) is done. So receive each message into an array of its
    own. No send may wait: `comm.isend(array, dest)` returns a request at once. Before you return, wait() for every
    request. `comm.recv(out, source)` fills `out`.
    """
    raise NotImplementedError


# ---- fourth part: a goal ---------------------------------------------------------------------------------------------


def shorter(s: int, p: int, m: int, limit: int) -> Order:
    """A schedule of your own: shorter than 1F1B, and no stage ever holds more than `limit` micro-batches.

    limit: from p, as many as the first stage of 1F1B holds, to 2p - 1. m >= 2p. F, B and W take one unit of time each,
    messages none. A micro-batch is held from the start of its F to the end of its W (or BW). The longest time that any
    stage takes from the start of its first task to the end of its last one counts. With limit = p it must be less than
    in 1F1B, and less again each time that the limit grows by one.
    """
    raise NotImplementedError


# ---- a bonus: no points ----------------------------------------------------------------------------------------------


def interleaved(s: int, p: int, m: int, v: int) -> list[tuple[str, int, int]]:
    """1F1B over v chunks on each stage: a list of (letter, k, chunk), with letters "F" and "BW". m is a multiple of p.

    The model is cut into v·p chunks. Stage s has the chunks s, p + s, 2p + s, ..., here called its chunks 0, 1, 2, ...
    So chunk c on the last stage is followed by chunk c + 1 on the first.

    Forwards go in groups of p micro-batches: a group through chunk 0, the same group through chunk 1, ..., then the
    next group. Backwards go in the same way, from the last chunk to the first. A stage first does 2(p - s - 1) +
    (v - 1)p + 1 forwards (or all, if there are fewer; for v = 1, use 1F1B). Then BW and F take turns.
    """
    raise NotImplementedError
