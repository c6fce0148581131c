"""What tests/test_mailbox.py runs on ranks."""

import time
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm
from minidist.mpi.mailbox import Mail, Mailbox


def take(box: Mailbox, n: int) -> list[Mail]:
    """The next n messages, however long they take."""
    taken: list[Mail] = []
    while len(taken) < n:
        if mail := box.poll():
            taken.append(mail)
        else:
            time.sleep(0.001)
    return taken


def everyone_to_everyone(comm: Comm) -> dict[str, Any]:
    """Every rank posts three messages to every rank, itself included, before it looks into its mailbox."""
    box = Mailbox(comm, 0)
    for dest in range(comm.size):
        for i in range(3):
            box.post(dest, ("number", i))
    taken = take(box, 3 * comm.size)
    box.close()
    return {
        "from": {source: [m.message for m in taken if m.source == source] for source in range(comm.size)},
        "left": box.poll() is None,
        "payload": comm.ledger.total(),
        "control": list(comm.ledger.control),
    }


ARRAYS: list[np.ndarray] = [
    np.arange(5, dtype=np.uint8),
    np.zeros((0,), np.float32),
    np.arange(600_000.0).reshape(2, -1),
    np.array(7),
]


def payloads(comm: Comm) -> dict[str, Any]:
    """Arrays small and large cross in all directions at the same time: nobody may wait for anybody."""
    box = Mailbox(comm, 0)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    with comm.phase("letters"):
        for dest in others:
            for i, array in enumerate(ARRAYS):
                box.post(dest, i, array)
            box.post(dest, "no array")
        taken = take(box, len(others) * (len(ARRAYS) + 1))
        box.close()
    right = []
    for _, message, payload in taken:
        if payload is None:
            right.append(message == "no array")
        else:
            posted = ARRAYS[message]
            right.append(np.array_equal(payload, posted) and payload.dtype == posted.dtype)
    return {"right": all(right), "messages": len(right)}


def two_boxes(comm: Comm) -> dict[str, Any]:
    """Rank 0 posts into two mailboxes; rank 1 reads the second first. A payload of one is no payload of the other."""
    first, second = Mailbox(comm, 0), Mailbox(comm, 1)
    if comm.rank == 0:
        first.post(1, "first", np.full(100_000, 1.0))
        second.post(1, "second", np.full(100_000, 2.0))
        quiet_before = first.quiet
        first.close()
        second.close()
        return {"quiet before it is taken": quiet_before, "quiet after": first.quiet and second.quiet}
    time.sleep(0.2)  # rank 0 asks meanwhile whether its messages have been taken
    (b,), (a,) = take(second, 1), take(first, 1)
    assert a.payload is not None
    assert b.payload is not None
    return {"messages": [a.message, b.message], "values": [float(a.payload.sum()), float(b.payload.sum())]}
