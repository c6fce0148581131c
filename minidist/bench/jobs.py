"""What the benchmark measures on ranks: it starts the jobs; what runs in them stands in `ranks.py`."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from minidist import UsageError
from minidist.bench.measure import Comparison, compare, missing_row
from minidist.bench.one_process import HAS_TORCH, MISSING, SMALL
from minidist.launch.launcher import OPEN_MPI_AS_ROOT, launch, mpiexec_for
from minidist.mpi import shm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import count_parameters
from minidist.papers.zero import model_states
from minidist.system import processes
from minidist.system.files import temporary_folder

# The ring's targets by size: compared with MPI's own, compared with MPI's own if both are in place, with gloo.
TARGETS = {
    "64 KiB": (1.5, None, None),
    "1 MiB": (None, None, None),
    "4 MiB": (0.8, 1.0, 0.3),
    "32 MiB": (0.5, 1.0, 0.3),
}


def collectives() -> Iterator[Comparison]:
    """The ring, compared with MPI's own all-reduce, gloo's, recursive doubling, and a copy of the bytes that it moves.

    In three jobs: the place of a process's memory differs from job to job, and changes a short message's time by 20 %.
    """
    sizes = {"64 KiB": 1 << 16, "1 MiB": 1 << 20, "4 MiB": 1 << 22, "32 MiB": 1 << 25}
    for n in (2, 4):
        jobs = [run_on_ranks("all_reduces", n, list(sizes.values()))[0] for _ in range(3)]
        for label, nbytes in sizes.items():
            found, title = [job[str(nbytes)] for job in jobs], f"ring, {label}, {n} ranks"
            times = {name: [seconds for job in found for seconds in job[name]] for name in found[0]}
            beside_mpi, both_in_place, beside_gloo = TARGETS[label]
            chosen = 1.5 if label == "64 KiB" else beside_mpi
            yield compare(title, "MPI Allreduce", times["ring"], times["mpi"], beside_mpi, "ms")
            if "gloo" in times:
                yield compare(title, "gloo", times["ring"], times["gloo"], beside_gloo, "ms")
            else:
                yield missing_row(title, "gloo", beside_gloo, MISSING)
            yield compare(
                f"all_reduce, {label}, {n} ranks", "MPI Allreduce", times["chosen"], times["mpi"], chosen, "ms"
            )
            yield compare(title, "all_reduce", times["ring"], times["chosen"], None, "ms")
            yield compare(title, "recursive doubling", times["ring"], times["doubling"], None, "ms")
            yield compare(title, "its bare messages, sums", times["ring"], times["bare"], None, "ms")
            in_place = times["ring in place"], times["mpi in place"]
            yield compare(title, "MPI, both in place", *in_place, both_in_place, "ms")
            if label == "32 MiB":
                yield compare(title, "memcpy of its bytes", times["ring"], times["copy"], None, "ms")


def parallel_steps() -> Iterator[Comparison]:
    """Data parallelism compared with PyTorch DDP; ZeRO-3 compared with FSDP2, and with data parallelism."""
    config, batch, _ = SMALL
    for n, ours, beside, theirs, target, precision in (
        (2, "data_parallel", "PyTorch DDP, gloo", "ddp", 0.9, "fp32"),
        (2, "zero3", "PyTorch FSDP2, gloo", "fsdp", 0.5, "fp32"),
        (4, "zero3", "PyTorch FSDP2, gloo", "fsdp", 0.35, "fp32"),
        (4, "zero3", "data_parallel", "data_parallel", 1.35, "mixed"),
    ):
        title = f"{ours}, {n} ranks, {precision}"
        if theirs in ("ddp", "fsdp") and not HAS_TORCH:
            yield missing_row(title, beside, target, MISSING)
            continue
        times = run_on_ranks("steps", n, [ours, theirs], config, batch, precision)[0]
        yield compare(title, beside, times[ours], times[theirs], target, "ms")


def memory() -> Iterator[Comparison]:
    """Peak resident memory of a rank, less what it had before the model: ZeRO-3 compared with data parallelism.

    A part of it is what the engines count as held for the model. The rest is activations, float32 workspace and the
    random numbers of the start. If the rest is the same for both, memory falls as the formula says, plus a constant.
    """
    config = {"vocabulary": 512, "context": 32, "layers": 8, "heads": 8, "width": 512}
    n, mib, found = 4, 2**20, {}
    for name in ("zero3", "data_parallel"):
        ranks = launch("minidist.bench.ranks:resident", n, name, config, 8, timeout=300).values
        grown = max(rank["after"] - rank["before"] for rank in ranks) / mib
        states = sum(ranks[0][kind] for kind in ("parameters", "gradients", "optimizer", "transient")) / mib
        found[name] = {"peak memory": grown, "model states": states, "the rest": grown - states}
    for what, ours in found["zero3"].items():
        theirs = found["data_parallel"][what]
        target = 0.5 if what == "peak memory" else None
        yield Comparison(f"zero3, {n} ranks: {what}", "data_parallel", ours / theirs, None, target, ours, theirs, "MiB")


# A model with few operations, so that messages take the time; and one whose states are most of a process's memory.
TINY: dict[str, Any] = {"vocabulary": 64, "context": 8, "layers": 2, "heads": 1, "width": 16}
BROAD: dict[str, Any] = {"vocabulary": 512, "context": 8, "layers": 8, "heads": 4, "width": 256}
CURVE = ((4, 20), (16, 10), (64, 3))  # ranks, and pairs of steps to measure
MESSAGE = 20e-6  # seconds that a message may add to a step


def many_ranks() -> Iterator[Comparison]:
    """A ZeRO-3 step on more and more ranks: what a message costs, and how much memory a rank needs.

    What a message costs: the time of a step, less the time of a step in which each rank trains alone at the same time
    (and updates all of Ψ), divided by the messages of all ranks. This includes all that a message causes, also waiting.
    It should not grow with the ranks, though a step has about 12(N-1)N messages of Ψ/N elements.

    Memory, in mixed precision: the model states that the engine has counted, and the growth of the process. The growth
    includes activations, a gathered unit and its widened copy, and MPI's buffers, which do not shrink with N.
    """
    states, mib = model_states(count_parameters(gpt(GPTConfig(**BROAD))), 1, 3).total, 2**20
    curve: dict[str, list[Comparison]] = {"time": [], "counted": [], "grown": []}
    for n, pairs in CURVE:
        titles = "a message of a zero3 step", "zero3: model states", "zero3: growth of a rank"
        if shm.shortage(n):
            found = [missing_row(title, f"{n} ranks", None, "too little /dev/shm") for title in titles]
        else:
            ranks = launch("minidist.bench.ranks:step_and_messages", n, TINY, pairs, timeout=300).values
            messages = sum(rank["messages"] for rank in ranks)
            times = [(a - b) / messages for a, b in zip(ranks[0]["step"], ranks[0]["alone"], strict=True)]
            beside = f"{1e6 * MESSAGE:.0f} µs, on {n} ranks"
            found = [compare(titles[0], beside, times, [MESSAGE] * len(times), 1.0, "µs")]
            ranks = launch("minidist.bench.ranks:resident", n, "zero3", BROAD, n, timeout=300).values
            counted = max(sum(rank[kind] for kind in ("parameters", "gradients", "optimizer")) for rank in ranks)
            grown = max(rank["after"] - rank["before"] for rank in ranks)
            for title, nbytes, target in ((titles[1], counted, 1.01), (titles[2], grown, None)):
                ratio = nbytes / (states / n)
                sizes = nbytes / mib, states / n / mib
                found.append(Comparison(title, f"16Ψ/N, {n} ranks", ratio, None, target, *sizes, "MiB"))
        for rows, row in zip(curve.values(), found, strict=True):
            rows.append(row)
    yield from (row for rows in curve.values() for row in rows)


def start() -> Iterator[Comparison]:
    """The time from the command to the end of the first step."""
    command = [*mpiexec_for(4), sys.executable, "-m", "minidist.zero3", "--steps", "1"]
    environment = {**os.environ, **OPEN_MPI_AS_ROOT}
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        with processes.started(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C goes to the benchmark only
        ) as process:
            assert process.stdout is not None
            if not any(line.startswith("step") for line in process.stdout):
                raise UsageError("a chapter does not start here; python -m minidist doctor says why")
            seconds.append(time.perf_counter() - begin)
            process.stdout.read()
    yield compare("start of zero3, 4 ranks", "1 s", seconds, [1.0] * len(seconds), 0.5, "s")


def run_on_ranks(function: str, n: int, *args: Any) -> list[Any]:
    """Run a function of minidist.bench.ranks; its last argument is a file in which gloo's processes meet."""
    with temporary_folder() as folder:
        return launch(f"minidist.bench.ranks:{function}", n, *args, str(folder / "store"), timeout=600).values
