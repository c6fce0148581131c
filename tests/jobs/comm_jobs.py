"""What tests/test_comm.py runs on ranks. Each job runs many cases and returns {name of the case: what came out}."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm
from minidist.mpi.port import DTYPES
from minidist.mpi.witness import witnessed

# Those that over MPI share a start, by the number of ranks.
TOGETHER = {
    2: ("wrong_messages", "bad_calls", "requests", "count"),
    4: ("shapes_and_dtypes", "count", "count_with_witness", "split"),
}
# What rank 0 sends where rank 1 expects 10 x float64.
WRONG_MESSAGES = {
    "shorter": (9, "float64"),
    "longer": (11, "float64"),
    "empty": (0, "float64"),
    "much longer": (1_000_000, "float64"),
    "another dtype": (10, "int64"),
    "another dtype, as many bytes": (20, "float32"),
}


def attempt(function: Callable[[], Any]) -> str:
    """What went wrong, as "CommError: text", or "no error"."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def wrong_messages(comm: Comm) -> dict[str, str]:
    """Two ranks: every wrong message, received in every way; the right message afterwards must still arrive."""
    outcomes = {}
    for name, (count, dtype) in WRONG_MESSAGES.items():
        message, out, right = np.ones(count, dtype), np.zeros(10), np.arange(10.0)
        if comm.rank == 0:
            comm.send(message, 1)
            comm.send(message, 1)
            comm.sendrecv(message, 1, out, 1)
            comm.send(right, 1)
        else:
            outcomes[f"recv, {name}"] = attempt(partial(comm.recv, out, 0))
            outcomes[f"irecv, {name}"] = attempt(comm.irecv(out, 0).wait)
            outcomes[f"sendrecv, {name}"] = attempt(partial(comm.sendrecv, out, 0, out.copy(), 0))
            comm.recv(out, 0)
            outcomes[f"the message after it, {name}"] = str(np.array_equal(out, right))
    return outcomes


def huge_messages(comm: Comm) -> dict[str, str]:
    """Two ranks: more elements than the tag can count. An int8 each, so that it is the elements that are many."""
    outcomes = {}
    size = 2**25 + 5
    for name, count, dtype in (
        ("equal", size, "int8"),
        ("one shorter", size - 1, "int8"),
        ("one longer", size + 1, "int8"),
        ("another dtype", size, "uint8"),
    ):
        message = np.arange(count, dtype=np.int64).astype(dtype)
        if comm.rank == 0:
            comm.send(message, 1)
        else:
            out = np.zeros(size, np.int8)
            outcomes[name] = attempt(partial(comm.recv, out, 0))
            if name == "equal":
                outcomes["equal: content"] = str(np.array_equal(out, message))
    return outcomes


def bad_calls(comm: Comm) -> dict[str, str]:
    """Two ranks: calls that are wrong by themselves, so that nothing is sent."""
    peer, matrix, readonly = 1 - comm.rank, np.zeros((4, 4)), np.zeros(4)
    readonly.flags.writeable = False
    outcomes = {
        "send a column": attempt(lambda: comm.send(matrix[:, 0], peer)),
        "send a transposed matrix": attempt(lambda: comm.isend(matrix.T, peer)),
        "receive into a column": attempt(lambda: comm.recv(matrix[:, 0], peer)),
        "irecv into every second row": attempt(lambda: comm.irecv(matrix[::2], peer)),
        "receive into a read-only array": attempt(lambda: comm.recv(readonly, peer)),
        "send to rank 2 of 2": attempt(lambda: comm.send(matrix, 2)),
        "send to rank -1": attempt(lambda: comm.send(matrix, -1)),
        "receive from rank 2 of 2": attempt(lambda: comm.recv(matrix, 2)),
        "receive from rank -1": attempt(lambda: comm.irecv(matrix, -1)),
        "send an object to rank -1": attempt(lambda: comm.send_object("text", -1)),
        "receive an object from rank 2 of 2": attempt(lambda: comm.recv_object(2)),
        "send objects": attempt(lambda: comm.send(np.array([None]), peer)),
        "send swapped bytes": attempt(lambda: comm.send(np.zeros(4, np.dtype(np.float32).newbyteorder()), peer)),
        "send dates": attempt(lambda: comm.send(np.zeros(2, "datetime64[s]"), peer)),
        "sendrecv from and into one array": attempt(lambda: comm.sendrecv(matrix[1:3], peer, matrix[:2], peer)),
    }
    outcomes["requests left open"] = str(len(comm.ledger.open_requests))
    outcomes["bytes counted"] = str(comm.ledger.total())
    return outcomes


def requests(comm: Comm) -> dict[str, str]:
    """Two ranks: requests and the phases in which they are started and waited for. Every message is really sent."""
    peer, message, out = 1 - comm.rank, np.arange(3.0), np.zeros(3)

    def drop_irecv() -> None:
        with comm.phase("careless"):
            comm.irecv(out, peer)

    def drop_isend() -> None:
        with comm.phase("hasty"):
            comm.isend(message, peer)

    def wait_inside() -> None:
        outer = comm.irecv(out, peer)
        with comm.phase("orderly"):
            inner = comm.isend(message, peer)
            outer.wait()
            inner.wait()
            inner.wait()  # a second wait is no mistake

    def overlap() -> None:
        """What belongs to an open request may be sent while it is being sent, and nothing else."""
        receiving, sending = comm.irecv(out, peer), comm.isend(message, peer)
        try:
            outcomes["receive into what is being sent"] = attempt(lambda: comm.recv(message[1:], peer))
            outcomes["receive into what is being received"] = attempt(lambda: comm.irecv(out[:1], peer))
            outcomes["send what is being received"] = attempt(lambda: comm.send(out[2:], peer))
        finally:
            sending.wait()
            receiving.wait()

    outcomes = {"waited for": attempt(wait_inside), "content": str(np.array_equal(out, message))}
    overlap()
    if comm.rank == 0:
        outcomes["irecv dropped"] = attempt(drop_irecv)
        comm.recv(out, peer)
    else:
        comm.send(message, peer)
        comm.send(message, peer)
    if comm.rank == 0:
        outcomes["isend dropped"] = attempt(drop_isend)
    else:
        comm.recv(out, peer)
    outcomes["phase afterwards"] = comm.ledger.phase
    outcomes["requests left open"] = str(len(comm.ledger.open_requests))
    return outcomes


def shapes_and_dtypes(comm: Comm) -> dict[str, bool]:
    """Any number of ranks: once round the ring with every dtype and shape; whether what came is what the left sent."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    outcomes = {}

    def once_round(name: str, make: Callable[[int], np.ndarray]) -> None:
        out = np.zeros_like(make(left))
        comm.sendrecv(make(comm.rank), right, out, left)
        outcomes[f"{name}, sendrecv"] = out.tobytes() == make(left).tobytes()
        out = np.zeros_like(make(left))
        message = make(comm.rank)
        receiving, sending = comm.irecv(out, left), comm.isend(message, right)
        receiving.wait()
        sending.wait()
        outcomes[f"{name}, isend and irecv"] = out.tobytes() == make(left).tobytes()

    def seven(rank: int, dtype: str) -> np.ndarray:
        return np.linspace(rank, 9, 7).astype(dtype)

    for dtype in DTYPES:
        if dtype == "bfloat16":
            try:
                import ml_dtypes  # NumPy knows bfloat16 by this name once it is imported
            except ImportError:
                continue
            assert np.dtype(dtype) == ml_dtypes.bfloat16
        once_round(dtype, partial(seven, dtype=dtype))
    once_round("0-d", lambda rank: np.array(rank + 0.5))
    once_round("no elements", lambda rank: np.zeros(0))
    once_round("no rows", lambda rank: np.zeros((0, 5), np.float32))
    once_round("3-d", lambda rank: np.arange(24.0).reshape(2, 3, 4) + rank)
    once_round("16 MB", lambda rank: np.arange(2_000_000.0) + rank)
    return outcomes


def count(comm: Comm) -> dict[str, Any]:
    """Any number of ranks: everyone sends 10 * rank + peer + 1 float32 to each peer, once in phase a, twice in b."""
    peers = [peer for peer in range(comm.size) if peer != comm.rank]
    for phase, times in (("a", 1), ("b", 2)):
        with comm.phase(phase):
            for _ in range(times):
                sending = [comm.isend(np.zeros(10 * comm.rank + peer + 1, np.float32), peer) for peer in peers]
                for peer in peers:
                    comm.recv(np.zeros(10 * peer + comm.rank + 1, np.float32), peer)
                for request in sending:
                    request.wait()
    before = comm.ledger.total()
    gathered = comm.all_gather_object({"rank": comm.rank, "text": "x" * 100_000})
    comm.barrier()
    return {
        "by phase": comm.ledger.by_phase(),
        "gathered": [value["rank"] for value in gathered],
        "payload of control traffic": comm.ledger.total() - before,
    }


def count_with_witness(comm: Comm) -> dict[str, Any]:
    """The same, and after it every blocking call once among the even and the odd ranks; and what a witness saw."""
    wired, witness = witnessed(comm, __file__)
    count(wired)
    half = wired.split(comm.rank % 2)
    out, right, left = np.empty(3), (half.rank + 1) % half.size, (half.rank - 1) % half.size
    with half.phase("half"):
        half.sendrecv(np.ones(3), right, out, left)
        request = half.irecv(out, left)
        half.send(np.ones(3), right)
        while not request.done():
            pass
    return {"sent": dict(witness.sent), "received": dict(witness.received)}


def split(comm: Comm) -> dict[str, Any]:
    """Four ranks: evens and odds, each in reverse order, exchange; then each pair of one is split once more."""
    half = comm.split(comm.rank % 2, key=-comm.rank)
    out = np.zeros(5)
    with half.phase("half"):
        half.sendrecv(np.full(5, float(comm.rank)), 1 - half.rank, out, 1 - half.rank)
    alone = half.split(half.rank)
    return {
        "rank": half.rank,
        "size": half.size,
        "world ranks": half.world_ranks,
        "received from": out[0],
        "alone": (alone.rank, alone.size, alone.world_ranks),
        "one ledger": alone.ledger is comm.ledger,
    }


def reset(comm: Comm) -> dict[str, Any]:
    """One rank, which sends to itself."""
    comm.sendrecv(np.ones(3), 0, np.ones(3), 0)
    comm.ledger.reset()
    with comm.phase("after"):
        comm.sendrecv(np.ones(2, np.float16), 0, np.ones(2, np.float16), 0)
    return {"total": comm.ledger.total(), "sent": comm.ledger.sent}
