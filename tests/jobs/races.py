"""Programs with a mistake that MPI seldom shows, each beside its right twin, for two ranks or three.

A wrong one returns what it should not, or fails; a right one returns RIGHT on every rank.
"""

from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

RIGHT = "right"


def verdict(right: bool) -> str:
    return RIGHT if right else "wrong"


def neighbours(comm: Comm) -> tuple[int, int]:
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def changes_what_it_sends(comm: Comm) -> Any:
    (right, left), x, out = neighbours(comm), np.full(4, float(comm.rank)), np.empty(4)
    request = comm.isend(x, right)
    x += 1
    comm.recv(out, left)
    request.wait()
    return verdict(bool((out == left).all()))


def changes_it_later(comm: Comm) -> Any:
    (right, left), x, out = neighbours(comm), np.full(4, float(comm.rank)), np.empty(4)
    request = comm.isend(x, right)
    comm.recv(out, left)
    request.wait()
    x += 1
    return verdict(bool((out == left).all()))


def reads_before_the_wait(comm: Comm) -> Any:
    (right, left), x, out = neighbours(comm), np.full(4, float(comm.rank)), np.zeros(4)
    request = comm.irecv(out, left)
    comm.send(x, right)
    total = x + out
    request.wait()
    return total


def reads_after_the_wait(comm: Comm) -> Any:
    (right, left), x, out = neighbours(comm), np.full(4, float(comm.rank)), np.zeros(4)
    receiving, sending = comm.irecv(out, left), comm.isend(x, right)
    receiving.wait()
    total = x + out
    sending.wait()
    return verdict(bool((total == comm.rank + left).all()))


def passes_on_before_the_wait(comm: Comm) -> Any:
    """Rank 0's number goes round, and is passed on before it is there."""
    (right, left), x = neighbours(comm), np.ones(4, np.float32)
    if comm.rank == 0:
        comm.send(x, right)
        comm.recv(x, left)
    else:
        request = comm.irecv(x, left)
        comm.send(x * 2, right)
        request.wait()
    return RIGHT


def passes_on_after_the_wait(comm: Comm) -> Any:
    (right, left), x = neighbours(comm), np.ones(4, np.float32)
    if comm.rank == 0:
        comm.send(x, right)
        comm.recv(x, left)
    else:
        request = comm.irecv(x, left)
        request.wait()
        comm.send(x * 2, right)
    return verdict(comm.rank > 0 or bool((x == 2 ** (comm.size - 1)).all()))


def writes_into_a_receive(comm: Comm) -> Any:
    (right, left), x, out = neighbours(comm), np.full(4, comm.rank), np.zeros(4, int)
    receiving, sending = comm.irecv(out, left), comm.isend(x, right)
    out[1] = 7
    sending.wait()
    receiving.wait()
    return verdict(bool((out == left).all()))


def never_waits(comm: Comm) -> Any:
    (right, left), x, out = neighbours(comm), np.full(4, float(comm.rank)), np.zeros(4)
    comm.irecv(out, left)
    comm.send(x, right)
    return out


def everybody_sends_first(comm: Comm) -> Any:
    (right, left), x, out = neighbours(comm), np.full(4, float(comm.rank)), np.zeros(4)
    comm.send(x, right)
    comm.recv(out, left)
    return verdict(bool((out == left).all()))


def one_receives_first(comm: Comm) -> Any:
    (right, left), x, out = neighbours(comm), np.full(4, float(comm.rank)), np.zeros(4)
    if comm.rank == 0:
        comm.recv(out, left)
    comm.send(x, right)
    if comm.rank > 0:
        comm.recv(out, left)
    return verdict(bool((out == left).all()))


def believes_in_an_order(comm: Comm) -> Any:
    """Rank 0 takes the message that is there first for rank 1's."""
    if comm.rank > 0:
        comm.send(np.array([comm.rank]), 0)
        return RIGHT
    outs = [np.zeros(1, int) for _ in range(1, comm.size)]
    requests = [comm.irecv(out, source) for source, out in enumerate(outs, 1)]
    done: list[int] = []
    while len(done) < len(requests):
        done += [i for i, request in enumerate(requests) if i not in done and request.done()]
    return verdict(done[0] == 0)


def asks_who_it_was(comm: Comm) -> Any:
    if comm.rank > 0:
        comm.send(np.array([comm.rank]), 0)
        return RIGHT
    got: set[int] = set()
    while len(got) < comm.size - 1:
        if (source := comm.probe()) is not None:
            out = np.zeros(1, int)
            comm.recv(out, source)
            assert out[0] == source
            got.add(source)
    return verdict(got == set(range(1, comm.size)))


def believes_others_are_ready(comm: Comm, board: dict[str, int]) -> Any:
    """Rank 0 puts something where all can see it, and no barrier keeps the others from looking too early."""
    if comm.rank == 0:
        board["here"] = 1
    return verdict("here" in board)


def waits_until_all_are_ready(comm: Comm, board: dict[str, int]) -> Any:
    if comm.rank == 0:
        board["here"] = 1
    comm.barrier()
    return verdict("here" in board)
