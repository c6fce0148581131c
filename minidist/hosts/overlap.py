"""How much of the sending is hidden behind computing, in seconds, on two hosts.

Each engine takes its steps in turn with one that sends the same bytes and waits at once. That one's time without its
waiting is c, computing; its waiting is t, sending. The engine itself takes T, of max(c, t) to c + t.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minidist import Stopped
from minidist.cli.tables import make_table, number, say, show
from minidist.fsdp import FSDP, Started
from minidist.hosts.network import Network
from minidist.mpi import output
from minidist.mpi.comm import Comm, Request
from minidist.mpi.run import run
from minidist.programs.chapter import find
from minidist.system.files import temporary_folder

LINE = ["--width", "192", "--layers", "6", "--batch", "16", "--precision", "fp32", "--no-prove"]
STEPS = 7  # of which the first is left out
SHARES = (0.5, 1, 2)  # sending, as a multiple of computing


class AtOnce(FSDP):
    """FSDP that waits for each collective where it is started."""

    def start(self, requests: list[Request]) -> Started:
        started = super().start(requests)
        self.wait(started)
        return started


PAIRS: dict[str, tuple[tuple[str, str], ...]] = {  # engine: chapter and options, of the one that waits, and of itself
    "FSDP": (("fsdp", "--backward-prefetch none"), ("fsdp", "--forward-prefetch")),
    "data parallelism": (("data_parallel", ""), ("data_parallel", "--reduce overlap")),
}


def be_rank(comm: Comm, file: str) -> int:
    """Take steps of each engine in turn; rank 0 writes down what they took."""
    pairs = {name: [make(comm, *chapter) for chapter in pair] for name, pair in PAIRS.items()}
    pairs["FSDP"][0][1].__class__ = AtOnce
    taken: dict[str, list[list[tuple[float, float, int]]]] = {name: [] for name in pairs}
    for step in range(STEPS):
        for name, pair in pairs.items():
            taken[name].append([timed(comm, *engine, step) for engine in pair])
    everyone = comm.gather_object(taken)
    if everyone:
        Path(file).write_text(json.dumps(everyone), encoding="utf-8")
    return 0


def make(comm: Comm, name: str, options: str) -> tuple[Any, Any]:
    """A chapter's job and its engine."""
    job = find(name).job([*LINE, *options.split()], comm.size)
    return job, find(name).make(job, comm)


def timed(comm: Comm, job: Any, engine: Any, step: int) -> tuple[float, float, int]:
    """Seconds of a step, of these waiting, and bytes sent."""
    batch, ledger = job.batch(step), comm.ledger
    comm.barrier()
    ledger.reset()
    begin, waited = time.perf_counter(), ledger.waited
    engine.train_batch(*batch)
    return time.perf_counter() - begin, ledger.waited - waited, ledger.total()


def hidden(c: float, t: float, both: float) -> float:
    """The share of what can be hidden that is: 0 if a step takes c + t, 1 if it takes the longer of both."""
    return (c + t - both) / min(c, t)


def measure(bits: float) -> list[dict[str, Any]]:
    """What each rank's steps took at a rate."""
    with temporary_folder() as folder:
        words = [sys.executable, "-m", "minidist.hosts.overlap", f"{folder}/taken"]
        status, errors, _ = Network(2, rate=f"{bits / 1e3:.0f}kbit").run(words, stderr=subprocess.PIPE)
        if status:
            raise Stopped(f"a job on two hosts ended with status {status}: {output.in_a_line(errors[-300:])}")
        found: list[dict[str, Any]] = json.loads(Path(folder, "taken").read_text())
    return found


def row(steps: Sequence[Sequence[tuple[float, float, int]]]) -> tuple[float, float, float, float, bool]:
    """c, t, T and the hidden share, medians over the steps of a rank; and whether the same bytes were sent."""
    values = [(plain[0] - plain[1], plain[1], engine[0]) for plain, engine in steps[1:]]
    c, t, both = (statistics.median(value[i] for value in values) for i in range(3))
    share = statistics.median(hidden(*value) for value in values)
    return c, t, both, share, all(plain[2] == engine[2] for plain, engine in steps)


def compare() -> int:
    """Measure computing at a fast rate, then both engines at rates at which sending takes SHARES of it."""
    [*_, first], _ = (row["FSDP"] for row in measure(10e9))
    (took, waited, nbytes), _ = first
    table = make_table(("engine",), ("rate", "c, ms", "t, ms", "T, ms", "max(c, t)", "c + t", "hidden", "bytes"))
    for share in SHARES:
        bits = 8 * nbytes / (share * (took - waited))
        taken = measure(bits)
        for name in PAIRS:
            c, t, both, part, same = min((row(rank[name]) for rank in taken), key=lambda found: found[3])
            times = [number(round(1e3 * value)) for value in (c, t, both, max(c, t), c + t)]
            table.add_row(name, f"{bits / 1e6:.0f} Mbit", *times, f"{part:.2f}", "same" if same else "differ")
    show("A step on two hosts: computing c, sending t, and both together T", table)
    say("hidden: (c + t - T) / min(c, t), the median over steps, on the rank where it is less.")
    return 0


if __name__ == "__main__":
    run(be_rank, lambda comm: sys.argv[1])
