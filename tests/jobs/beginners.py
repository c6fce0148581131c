"""Mistakes of a beginner: `python -m jobs.beginners MISTAKE --ranks 3`, or under mpirun. The words should not depend on
the door."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from minidist import Stopped, UsageError, ring
from minidist.exchange.doors import run
from minidist.mpi.comm import Comm

LARGE = 100_000  # elements: MPI does not send so many before they are received


def right(comm: Comm) -> int:
    return (comm.rank + 1) % comm.size


def left(comm: Comm) -> int:
    return (comm.rank - 1) % comm.size


def all_but_rank_1(work: Callable[[Comm], Any]) -> Callable[[Comm], None]:
    def on_rank(comm: Comm) -> None:
        if comm.rank != 1:
            work(comm)

    return on_rank


def sends_and_receives_the_same(comm: Comm) -> None:
    array = np.zeros(3)
    comm.sendrecv(array, right(comm), array, left(comm))


def one_has(comm: Comm, array: Any, other: Any) -> None:
    """Rank 0 sends an array, and rank 1 receives into another."""
    if comm.rank == 0:
        comm.send(array, 1)
    if comm.rank == 1:
        comm.recv(other, 0)


def raises_on_one(error: BaseException) -> Callable[[Comm], None]:
    def on_rank(comm: Comm) -> None:
        if comm.rank == 1:
            raise error
        comm.barrier()

    return on_rank


def leaves(comm: Comm) -> None:
    if comm.rank == 1:
        sys.exit(3)
    comm.barrier()


def never_waits(comm: Comm) -> None:
    comm.irecv(np.zeros(3), left(comm))
    comm.send(np.zeros(3), right(comm))


def sends_what_it_receives(comm: Comm) -> None:
    array = np.zeros(9)
    comm.irecv(array, left(comm))
    comm.send(array[3:], right(comm))


def leaves_a_request_in_a_phase(comm: Comm) -> None:
    with comm.phase("first"):
        comm.isend(np.zeros(3), right(comm))
    comm.recv(np.zeros(3), left(comm))


def prints_and_raises(comm: Comm) -> None:
    if comm.rank == 1:
        print("on its way", flush=True)
        raise KeyError("gone")
    comm.barrier()


def computes_for_ever(comm: Comm) -> None:
    while comm.rank == 1:
        pass
    comm.barrier()


def looks_for_ever(comm: Comm) -> None:
    while comm.probe() is None:
        pass


ENDLESS = {"computes for ever": computes_for_ever, "looks for ever": looks_for_ever}
MISTAKES: dict[str, Callable[[Comm], Any]] = {
    "all receive first": lambda comm: comm.recv(np.zeros(1), right(comm)),
    "one never comes": all_but_rank_1(lambda comm: ring.broadcast(comm, np.zeros(LARGE), root=1)),
    "one leaves a barrier": all_but_rank_1(Comm.barrier),
    "one leaves a send": all_but_rank_1(lambda comm: comm.send(np.zeros(LARGE), 1)),
    "raises": raises_on_one(ValueError("a mistake")),
    "raises a KeyError": raises_on_one(KeyError("name")),
    "divides by zero": lambda comm: comm.split(1 // (comm.rank - 1)),
    "sys.exit": leaves,
    "no memory": raises_on_one(MemoryError("Unable to allocate 3. EiB")),
    "usage error": raises_on_one(UsageError("no such file: x.json")),
    "stopped": raises_on_one(Stopped("the disk has gone")),
    "another dtype": lambda comm: one_has(comm, np.zeros(3, np.float32), np.zeros(3)),
    "another size": lambda comm: one_has(comm, np.zeros(2), np.zeros(3)),
    "a longer message": lambda comm: one_has(comm, np.zeros(4), np.zeros(3)),
    "an empty message": lambda comm: one_has(comm, np.zeros(0), np.zeros(3)),
    "no such rank": lambda comm: comm.send(np.zeros(3), 3),
    "negative rank": lambda comm: comm.recv(np.zeros(3), -1),
    "a list": lambda comm: comm.send([1, 2], 1),  # type: ignore[arg-type]
    "a number": lambda comm: comm.send(1.5, 1),  # type: ignore[arg-type]
    "receives into a list": lambda comm: comm.recv([0, 0], 1),  # type: ignore[arg-type]
    "not contiguous": lambda comm: comm.send(np.zeros((3, 3)).T[1:], 1),
    "read-only": lambda comm: comm.recv(np.broadcast_to(np.zeros(1), (1,)), 1),
    "no such dtype": lambda comm: comm.send(np.array(["a"]), 1),
    "objects": lambda comm: comm.send(np.array([None]), 1),
    "same memory": sends_and_receives_the_same,
    "arguments in another order": lambda comm: comm.send(1, np.zeros(3)),  # type: ignore[arg-type]
    "never waits": never_waits,
    "memory of a request": sends_what_it_receives,
    "two phases": leaves_a_request_in_a_phase,
    "prints and raises": prints_and_raises,
    "rows that do not divide": lambda comm: ring.all_to_all(comm, np.zeros((4, 2))),
}

if __name__ == "__main__":
    run(lambda comm, mistake: (MISTAKES | ENDLESS)[mistake](comm) and None, lambda comm: sys.argv[1], "jobs.beginners")
