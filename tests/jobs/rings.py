"""What tests/test_ring.py runs on ranks: every collective, on inputs that the test can make again."""

import hashlib
import tracemalloc
from typing import Any

import numpy as np

from minidist import collectives, ring
from minidist.mpi.comm import Comm
from minidist.programs import busbw
from minidist.programs.ring import COLLECTIVES

Array = np.ndarray


def whole_numbers(rank: int, shape: tuple[int, ...], dtype: str) -> Array:
    """A rank's input. Sums of 8 of them are exact in any order, in float16 as well."""
    return np.random.default_rng([rank, *shape]).integers(-100, 100, shape).astype(dtype)


def fractions(rank: int, shape: tuple[int, ...], dtype: str) -> Array:
    """A rank's input whose sum depends on the order of the summands, to the last bits."""
    return np.random.default_rng([rank, *shape]).standard_normal(shape).astype(dtype)


INPUTS = {"whole numbers": whole_numbers, "fractions": fractions}


def mine(comm: Comm, x: Array) -> Array:
    return x[ring.chunk(x.size, comm.size, comm.rank)]


def all_reduce_into_out(comm: Comm, x: Array) -> Array:
    out = np.full_like(x, 77)
    assert ring.all_reduce(comm, x, out=out) is out
    return out


def all_reduce_in_place(comm: Comm, x: Array) -> Array:
    assert ring.all_reduce(comm, x, out=x) is x
    return x


def all_reduce_into_a_neighbour(comm: Comm, x: Array) -> Array:
    """The result goes one element further on in the memory that x is of."""
    memory = np.append(x, x[:1])
    return ring.all_reduce(comm, memory[: x.size], out=memory[memory.size - x.size :])


def reduce_scatter_into_out(comm: Comm, x: Array) -> Array:
    out = np.full_like(mine(comm, x), 77)
    ring.reduce_scatter(comm, x, out=out)
    return out


def reduce_scatter_into_own_chunk(comm: Comm, x: Array) -> Array:
    """The sum goes where the own part was, as ZeRO-1 has it; the rest of x must stay."""
    before, chunk = x.copy(), ring.chunk(x.size, comm.size, comm.rank)
    ring.reduce_scatter(comm, x, out=x[chunk])
    assert np.array_equal(x[: chunk.start], before[: chunk.start])
    assert np.array_equal(x[chunk.stop :], before[chunk.stop :])
    return x[chunk]


def all_gather_in_place(comm: Comm, x: Array) -> Array:
    """The own chunk is where it belongs in the result already, as ZeRO-1's updated shard is."""
    out = np.full_like(x, 77)
    mine(comm, out)[...] = mine(comm, x)
    assert ring.all_gather(comm, mine(comm, out), x.size, out=out) is out
    return out


def broadcast_from(root: int) -> Any:
    def broadcast(comm: Comm, x: Array) -> Array:
        x = x.copy()
        assert ring.broadcast(comm, x, root) is x
        return x

    return broadcast


OPERATIONS: dict[str, Any] = {
    "all_reduce": ring.all_reduce,
    "all_reduce into out": all_reduce_into_out,
    "all_reduce in place": all_reduce_in_place,
    "all_reduce into a neighbour": all_reduce_into_a_neighbour,
    "server": collectives.server_all_reduce,
    "tree": collectives.tree_all_reduce,
    "doubling": collectives.doubling_all_reduce,
    "halving_doubling": collectives.halving_doubling_all_reduce,
    "reduce_scatter": ring.reduce_scatter,
    "reduce_scatter into out": reduce_scatter_into_out,
    "reduce_scatter into own chunk": reduce_scatter_into_own_chunk,
    "all_gather": lambda comm, x: ring.all_gather(comm, mine(comm, x), x.size),
    "all_gather in place": all_gather_in_place,
    "all_to_all": ring.all_to_all,
    **{f"broadcast from {root}": broadcast_from(root) for root in range(8)},
}
MAY_WRITE_INTO_INPUT = ("all_reduce in place", "reduce_scatter into own chunk")


def digest(array: Array) -> str:
    """Equal only for arrays that are equal to the last bit, in dtype and shape too."""
    return hashlib.blake2b(f"{array.dtype}{array.shape}".encode() + array.tobytes(), digest_size=12).hexdigest()


def run_all(comm: Comm, cases: list[list[Any]]) -> dict[str, Any]:
    """Each case is [operation, kind of input, dtype, shape]; what came out, by the case's repr."""
    outcomes = {}
    for case in cases:
        operation, kind, dtype, shape = case
        given = INPUTS[kind](comm.rank, tuple(shape), dtype)
        x = given.copy()
        comm.ledger.reset()
        with comm.phase("counted"):
            result = OPERATIONS[operation](comm, x)
        outcomes[repr(case)] = {
            "digest": digest(result),
            "result": result if comm.rank == 0 and kind == "fractions" else None,
            "unchanged": operation in MAY_WRITE_INTO_INPUT or bool(np.array_equal(x, given)),
            "sent": {(phase, peer): tuple(counts) for (phase, peer), counts in comm.ledger.sent.items()},
        }
    return outcomes


def bare(comm: Comm, size: int) -> bool:
    """Whether the benchmark's ring without minidist's calls comes to the same bits."""
    from minidist.bench.ranks import bare_ring  # needs MPI, and the others do not

    x = fractions(comm.rank, (size,), "float32")
    out = np.full_like(x, 77)
    bare_ring(comm, x, out)()
    return np.array_equal(out, ring.all_reduce(comm, x))


def memory_of_all_reduce(comm: Comm, size: int) -> dict[str, int]:
    """The most bytes that an all-reduce of `size` float32 takes besides its arguments: into another array, in place.

    The least of three times: one that must wait long takes memory of Python's own for it.
    """
    x, out = np.ones(size, np.float32), np.empty(size, np.float32)
    peaks = {}
    tracemalloc.start()
    for name, result in (("into out", out), ("in place", x)):
        taken = []
        for _ in range(3):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            ring.all_reduce(comm, x, result)
            taken.append(tracemalloc.get_traced_memory()[1] - before)
        peaks[name] = min(taken)
    tracemalloc.stop()
    return peaks


def bandwidths(comm: Comm) -> None:
    """The table of one short array."""
    busbw.SIZES = [4096]
    busbw.compare_bandwidths(comm, {"all-reduce ring": COLLECTIVES["all-reduce ring"]})
