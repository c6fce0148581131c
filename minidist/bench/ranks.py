"""The parts of the benchmark that run on ranks. Each function is the target of a job of `minidist.launch.launcher`."""

import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minidist.bench.one_process import HAS_TORCH, run_step
from minidist.collectives import all_reduce as chosen_all_reduce
from minidist.collectives import doubling_all_reduce
from minidist.data_parallel import DataParallel
from minidist.engine import Engine, Settings
from minidist.memory.allocator import keep_freed_memory
from minidist.mpi.comm import Comm
from minidist.mpi.over_mpi import MPI
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import AdamW
from minidist.nn.precision import PRECISIONS
from minidist.ring import all_reduce, cut
from minidist.zero3 import ZeRO3

ENGINES: dict[str, Callable[..., Engine]] = {"data_parallel": DataParallel, "zero3": ZeRO3}


def share_cores(comm: Comm) -> None:
    """If there are at least as many ranks as cores, bind this rank, and the threads that it will start, to one core.

    Without this, after gloo, whose ranks sleep while they wait, the kernel may leave several ranks on one core for a
    while, and the measurement depends on where they happen to be.
    """
    if sys.platform == "linux":
        cores = sorted(os.sched_getaffinity(0))
        if comm.size >= len(cores):
            os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})


def time_in_turn(
    comm: Comm, functions: dict[str, Callable[[], object]], pairs: int, repeat: int = 1, warm_up: int = 3
) -> dict[str, list[float]]:
    """Seconds of each function, called in turn on all ranks together: for each call, the slowest rank's time.

    The order is drawn anew each time, the same on all ranks: the function after gloo shares cores with gloo's threads.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for pair in range(-warm_up, pairs):
        for name in np.random.default_rng(pair + warm_up).permutation(list(functions)).tolist():
            function = functions[name]
            function()  # fills the caches with this function's data, not the previous function's
            comm.barrier()
            begin = time.perf_counter()
            for _ in range(repeat):
                function()
            if pair >= 0:
                times[name].append((time.perf_counter() - begin) / repeat)
    return {name: np.max(comm.all_gather_object(taken), axis=0).tolist() for name, taken in times.items()}


def all_reduces(comm: Comm, nbytes: list[int], store: str) -> dict[str, dict[str, list[float]]]:
    """Seconds of the ring, of the chapters' choice, of recursive doubling, of MPI's own Allreduce, and of gloo.
    Also what a faster ring could reach: its messages and sums without minidist's code, and a copy of its bytes."""
    share_cores(comm)
    keep_freed_memory()
    if HAS_TORCH:
        import torch

        from minidist.bench import pytorch

        pytorch.one_thread()
        pytorch.join(comm.rank, comm.size, store)
    found = {}
    for size in nbytes:
        x, zeros = np.ones(size // 4, np.float32), np.zeros(size // 4, np.float32)  # sums in place: zeros stay zeros
        out = np.empty_like(x)
        moved = (comm.size - 1) * x.size // comm.size  # elements that a rank sends in each half of an all-reduce
        functions: dict[str, Callable[[], object]] = {
            "ring": partial(all_reduce, comm, x, out),
            "mpi": partial(MPI.COMM_WORLD.Allreduce, x, out),
            "ring in place": partial(all_reduce, comm, zeros, zeros),
            "mpi in place": partial(MPI.COMM_WORLD.Allreduce, MPI.IN_PLACE, zeros),
            "chosen": partial(chosen_all_reduce, comm, x, out),
            "doubling": partial(doubling_all_reduce, comm, x),
            "bare": bare_ring(comm, x, out),
            "copy": partial(copy_chunks, out[:moved], x[:moved]),
        }
        if HAS_TORCH:
            functions["gloo"] = partial(torch.distributed.all_reduce, torch.zeros(size // 4))  # in place
        found[str(size)] = time_in_turn(comm, functions, pairs=7, repeat=max(1, (1 << 23) // size))
    return found


def bare_ring(comm: Comm, x: np.ndarray, out: np.ndarray) -> Callable[[], None]:
    """The ring's all-reduce of x (divisible by the ranks) in bare MPI calls: no counting, no checks, all prepared."""
    n, rank, sendrecv = comm.size, comm.rank, MPI.COMM_WORLD.Sendrecv
    right, left = (rank + 1) % n, (rank - 1) % n
    parts, sums = cut(x, n), cut(out, n)

    def all_reduce() -> None:
        partial = parts[rank - 1]
        for step in range(2, n + 1):
            incoming = sums[rank - step]
            sendrecv(partial, right, 0, incoming, left)
            partial = np.add(incoming, parts[rank - step], out=incoming)
        for step in range(n - 1):
            sendrecv(sums[rank - step], right, 0, sums[rank - step - 1], left)

    return all_reduce


def copy_chunks(to: np.ndarray, source: np.ndarray) -> None:
    """Copy the least that an all-reduce must move: (N-1)/N of the array for each of its halves."""
    np.copyto(to, source)
    np.copyto(to, source)


def steps(
    comm: Comm, names: list[str], config: dict[str, Any], batch: int, precision: str, store: str
) -> dict[str, list[float]]:
    """Seconds of a training step of some engines of minidist's, or of PyTorch's "ddp" or "fsdp", in turn."""
    share_cores(comm)
    keep_freed_memory()
    sizes = GPTConfig(**config)
    tokens = np.random.default_rng(0).integers(0, sizes.vocabulary, (batch, sizes.context + 1))
    functions: dict[str, Callable[[], object]] = {}
    for name in names:
        if name in ENGINES:
            engine = ENGINES[name](gpt(sizes), Settings(PRECISIONS[precision], AdamW(weight_decay=0.1)), comm)
            functions[name] = partial(run_step, engine, tokens)
        else:
            from minidist.bench import pytorch

            pytorch.one_thread()
            pytorch.join(comm.rank, comm.size, store)
            wrap = {"ddp": pytorch.data_parallel, "fsdp": pytorch.fully_sharded}[name]
            rows = np.array_split(tokens, comm.size)[comm.rank]
            functions[name] = partial(pytorch.TorchStep(wrap(pytorch.GPT(sizes))), rows[:, :-1], rows[:, 1:])
    return time_in_turn(comm, functions, pairs=20)


def step_and_messages(comm: Comm, config: dict[str, Any], pairs: int) -> dict[str, Any]:
    """Seconds of a ZeRO-3 step in mixed precision, one sequence per rank, and of the same work without other ranks: all
    ranks step alone at the same time. Also the messages that this rank sends in a step, control messages included."""
    share_cores(comm)
    keep_freed_memory()
    sizes = GPTConfig(**config)
    tokens = np.random.default_rng(0).integers(0, sizes.vocabulary, (comm.size, sizes.context + 1))
    together = partial(run_step, ZeRO3(gpt(sizes), Settings(), comm), tokens)
    by_itself = ZeRO3(gpt(sizes), Settings(), comm.split(comm.rank))
    together()
    before = comm.ledger.ever()
    together()
    sent = comm.ledger.ever() - before
    messages = sum(number for (*_, what), number in sent.items() if what == "messages")
    alone = partial(run_step, by_itself, tokens[comm.rank :][:1])
    return {"messages": messages, **time_in_turn(comm, {"step": together, "alone": alone}, pairs, warm_up=1)}


def resident(comm: Comm, name: str, config: dict[str, Any], batch: int) -> dict[str, int]:
    """A rank's peak resident memory before the model and after two steps, and what its engine says that it holds."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    engine = ENGINES[name](gpt(GPTConfig(**config)), Settings(), comm)
    tokens = np.random.default_rng(0).integers(0, config["vocabulary"], (batch, config["context"] + 1))
    for _ in range(2):
        run_step(engine, tokens)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"before": before, "after": after, **engine.peak_bytes()}
