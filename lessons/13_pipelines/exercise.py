"""Exercise 13: a pipeline, its clock and its schedules.

Fill in the functions; `pytest lessons/13_pipelines` says how many points they earn. An *order* is a list of what one
stage does, one thing after the other. Each thing is a pair (letter, k), and k is the micro-batch, from 0:

    ("F", k)    forward
    ("B", k)    the gradient of the stage's input, which goes to the stage before as soon as it is made
    ("W", k)    the gradient of the stage's own weights; after B
    ("BW", k)   both in one, as a plain backward does it: the gradient goes to the stage before when both are made

A stage does F, and either BW or B and W, once for each of m micro-batches. Stages count from 0 to p-1 here, from 1 in
the papers. What one stage sends to the next arrives in the order in which it was sent.
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
    """When each stage does what: of each stage the list of (letter, k, start, end), in its order.

    orders: one for each stage. costs: the time that "F", "B" and "W" take; "BW" takes those of B and W.
    latency: the time that a message takes.

    All stages begin at time 0. A stage does one thing at a time, as early as it can:

        F of k       on stage s > 0 needs the end of F of k on stage s-1, and a message
        B, BW of k   on stage s < p-1 need the end of B or BW of k on stage s+1, and a message;
                     on the last stage they follow its own F of k

    On one stage F of k comes before B, and B before W. Where nobody can go on and somebody is not done, or an order has
    things in an impossible sequence, raise ValueError: that is a deadlock.
    """
    raise NotImplementedError


# ---- second part: schedules ------------------------------------------------------------------------------------------


def gpipe(s: int, p: int, m: int) -> Order:
    """Stage s of p: all forwards, then all backwards (BW), the last micro-batch's first."""
    raise NotImplementedError


def one_f_one_b(s: int, p: int, m: int) -> Order:
    """1F1B: a few forwards first, then a BW whenever one can be done, and a forward in the room that it makes.

    Stage s holds at most p - s micro-batches. So it begins with p - s forwards (or m, if m is less), and then BW and F
    take turns: BW of 0, F of the next, BW of 1, ... until no forward is left, and then BW alone.
    """
    raise NotImplementedError


def zb_h1(s: int, p: int, m: int) -> Order:
    """ZB-H1: as 1F1B, but B and W apart. W waits until it fills a time in which 1F1B idles.

    F and B come in the order in which 1F1B has F and BW. Stage s leaves s of its W undone: once s + 1 B are done, the
    oldest W that waits comes right behind each B, and the last s at the end. So no stage holds more than p
    micro-batches between F and W.
    """
    raise NotImplementedError


# ---- third part: on ranks --------------------------------------------------------------------------------------------


def perform(comm: Comm, stage: Any, order: Order) -> None:
    """Do an order: this rank is stage comm.rank of comm.size. Receive what each thing needs, send what it makes.

        y = stage.forward(k, x)     x (stage.shape, float64): from rank - 1; on the first stage None
                                    y of the same shape, for rank + 1; on the last stage None
        dx = stage.backward(k, dy)  dy: from rank + 1; on the last stage None. dx: for rank - 1; on the first None
        stage.weight(k)             after backward(k)

    A stage does not copy x and dy: it reads them until weight(k) is done. So what is received needs an array of its
    own. Sends wait for nobody: `comm.isend(array, dest)` returns a request at once. Before you return, wait() for every
    request. `comm.recv(out, source)` fills `out`.
    """
    raise NotImplementedError


# ---- fourth part: a goal ---------------------------------------------------------------------------------------------


def shorter(s: int, p: int, m: int, limit: int) -> Order:
    """A schedule of your own: shorter than 1F1B, and no stage ever holds more than `limit` micro-batches.

    limit: p, as many as the first stage of 1F1B holds, to 2p - 1. m >= 2p. F, B and W take one unit of time each,
    messages none. A micro-batch is held from the start of its F to the end of its W (or BW). What counts is the longest
    time that any stage needs from its first thing to its last. With limit = p it must be less than 1F1B's, and with
    each one more that is allowed it must be less again.
    """
    raise NotImplementedError


# ---- a bonus: no points ----------------------------------------------------------------------------------------------


def interleaved(s: int, p: int, m: int, v: int) -> list[tuple[str, int, int]]:
    """1F1B over v chunks on each stage: a list of (letter, k, chunk), with letters "F" and "BW". m is a multiple of p.

    The model is cut into v·p chunks. Stage s has the chunks s, p + s, 2p + s, ..., here called its chunks 0, 1, 2, ...:
    so behind chunk c on the last stage comes chunk c + 1 on the first.

    Forwards go in groups of p micro-batches: a group through chunk 0, the same group through chunk 1, ..., then the
    next group. Backwards go in the same way, from the last chunk to the first. A stage does 2(p - s - 1) + (v - 1)p + 1
    forwards first (or all, if there are fewer; with v = 1 it is 1F1B), then BW and F take turns.
    """
    raise NotImplementedError
