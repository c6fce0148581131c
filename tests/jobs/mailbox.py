"""What tests/test_mailbox.py runs on ranks."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm
from minidist.mpi.mailbox import Letter, NumberedMailbox


def take(box: NumberedMailbox, n: int) -> list[Letter]:
    """The next n messages, however long they take."""
    taken: list[Letter] = []
    while len(taken) < n:
        if mail := box.poll():
            taken.append(mail)
        else:
            time.sleep(0.001)
    return taken


def everyone_to_everyone(comm: Comm) -> dict[str, Any]:
    """Every rank posts three messages to every rank, itself included, before it looks into its mailbox."""
    box = NumberedMailbox(comm, 0)
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
    box = NumberedMailbox(comm, 0)
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
    first, second = NumberedMailbox(comm, 0), NumberedMailbox(comm, 1)
    if comm.rank == 0:
        first.post(1, "first", np.full(100_000, 1.0))
        second.post(1, "second", np.full(100_000, 2.0))
        quiet_before = not first.pending()
        first.close()
        second.close()
        return {"quiet before it is taken": quiet_before, "quiet after": not (first.pending() or second.pending())}
    time.sleep(0.2)  # rank 0 asks meanwhile whether its messages have been taken
    (b,), (a,) = take(second, 1), take(first, 1)
    assert a.payload is not None
    assert b.payload is not None
    return {"messages": [a.message, b.message], "values": [float(a.payload.sum()), float(b.payload.sum())]}


def one_does_not_listen(comm: Comm, signal: str) -> dict[str, Any]:
    """Rank 2 is in no call of MPI before there is a file. Until then rank 0 has posted it a thousand messages, some
    with a payload, and speaks with rank 1 all the same."""
    box = NumberedMailbox(comm, 0)
    if comm.rank == 0:
        for i in range(1000):
            box.post(2, i, np.full(3, i) if i % 10 == 0 else None)
        box.post(1, "are you there?")
        answers = [mail.message for mail in take(box, 1)]
        silent = box.pending()
        box.post(1, "let rank 2 listen")
        box.close()
        return {"answers": answers, "silent": list(silent), "pending": list(box.pending())}
    if comm.rank == 1:
        take(box, 1)
        box.post(0, "yes")
        take(box, 1)
        Path(signal).touch()
        box.close()
        return {}
    while not Path(signal).exists():
        time.sleep(0.01)
    taken = take(box, 1000)
    return {
        "in order": [mail.message for mail in taken if mail.payload is None] == [i for i in range(1000) if i % 10],
        "payloads": sorted(int(mail.payload[0]) for mail in taken if mail.payload is not None),
    }


def one_is_left_behind(comm: Comm) -> dict[str, Any]:
    """Rank 0 closes its mailbox without waiting for rank 1, which takes what was posted all the same."""
    box = NumberedMailbox(comm, 0)
    if comm.rank == 0:
        box.post(1, "a", np.arange(100_000))
        box.close(besides={1})
        del box
        comm.send_object("now", 1)
        comm.recv_object(1)
        return {}
    comm.recv_object(0)
    (mail,) = take(box, 1)
    comm.send_object("taken", 0)
    assert mail.payload is not None
    return {"sum": int(mail.payload.sum())}
