"""How much of the sending is hidden behind computing, in seconds, on two hosts with one rank each.

    python tests/jobs/overlap.py            on a quiet machine
    python tests/jobs/overlap.py slow       on any: a rank sleeps while it would compute, and links are as slow
    python tests/jobs/overlap.py still      the same without the thread that moves messages meanwhile
    python tests/jobs/overlap.py units      instead, messages move where units end

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

from minidist.cli.tables import make_table, number, say, show
from minidist.fsdp import FSDP, Started
from minidist.hosts.network import Network
from minidist.mpi import over_mpi
from minidist.mpi.comm import Comm, Request
from minidist.mpi.run import run
from minidist.programs.chapter import find
from minidist.system.files import temporary_folder

LINES = {
    "": "--width 192 --layers 6 --batch 16 --precision fp32 --no-prove",
    "slow": "--width 256 --layers 4 --batch 2 --context 16 --precision fp32 --no-prove",
}
SLEEP = 0.2  # seconds for a million parameters and a forward, in slow motion
SHARES = (0.5, 1, 2)  # sending, as a multiple of computing

PAIRS = {  # engine: chapter and options, of the one that waits, and of itself
    "FSDP": (("fsdp", "--backward-prefetch none"), ("fsdp", "--forward-prefetch")),
    "data parallelism": (("data_parallel", ""), ("data_parallel", "--reduce overlap")),
}

Taken = tuple[float, float, int]  # seconds of a step, of these waiting, and bytes sent


class AtOnce(FSDP):
    """FSDP that waits for each collective where it is started."""

    def start(self, requests: list[Request]) -> Started:
        started = super().start(requests)
        self.wait(started)
        return started


def be_rank(comm: Comm, how: str, steps: int, file: str) -> int:
    """Take steps of each engine in turn; rank 0 writes down what they took."""
    if how in ("still", "units"):
        over_mpi.POLL = 1e6
    pairs = {name: [make(comm, how, *chapter) for chapter in pair] for name, pair in PAIRS.items()}
    pairs["FSDP"][0][1].__class__ = AtOnce
    taken: dict[str, list[list[Taken]]] = {name: [] for name in pairs}
    for step in range(steps):
        for name, pair in pairs.items():
            taken[name].append([timed(comm, *engine, step) for engine in pair])
    everyone = comm.gather_object(taken)
    if everyone:
        Path(file).write_text(json.dumps(everyone), encoding="utf-8")
    return 0


def make(comm: Comm, how: str, name: str, options: str) -> tuple[Any, Any]:
    """A chapter's job and its engine."""
    job = find(name).job([*LINES["slow" if how else ""].split(), *options.split()], comm.size)
    engine = find(name).make(job, comm)
    if not how:
        return job, engine
    leave, collect = engine.leave, engine.collect

    def leave_late(unit: Any, left: Any) -> None:
        if engine.direction == "forward":
            time.sleep(SLEEP / 1e6 * sum(flat.padded for flat in unit.reads))
        leave(unit, left)
        if how == "units":
            for request in comm.ledger.open_requests:
                request.handle.Get_status()

    def collect_late(flat: Any) -> None:
        time.sleep(2 * SLEEP / 1e6 * flat.padded)
        collect(flat)

    engine.leave, engine.collect = leave_late, collect_late
    return job, engine


def timed(comm: Comm, job: Any, engine: Any, step: int) -> Taken:
    batch, ledger = job.batch(step), comm.ledger
    comm.barrier()
    ledger.reset()
    begin, waited = time.perf_counter(), ledger.waited
    engine.train_batch(*batch)
    return time.perf_counter() - begin, ledger.waited - waited, ledger.total()


def measure(how: str, steps: int, bits: float) -> list[dict[str, list[tuple[Taken, Taken]]]]:
    """What each rank's steps took at a rate."""
    with temporary_folder() as folder:
        words = [sys.executable, __file__, how, str(steps), f"{folder}/taken"]
        status, errors, _ = Network(2, rate=f"{bits / 1e3:.0f}kbit").run(words, stderr=subprocess.PIPE)
        assert status == 0, errors
        found: list[dict[str, list[tuple[Taken, Taken]]]] = json.loads(Path(folder, "taken").read_text())
    return found


def summary(steps: Sequence[tuple[Taken, Taken]]) -> tuple[float, float, float, float, bool]:
    """c, t, T, and the hidden share: medians over the steps but the first; and whether the same bytes were sent."""
    values = [(plain[0] - plain[1], plain[1], engine[0]) for plain, engine in steps[1:]]
    c, t, both = (statistics.median(value[i] for value in values) for i in range(3))
    share = statistics.median((c + t - both) / min(c, t) for c, t, both in values)
    return c, t, both, share, all(plain[2] == engine[2] for plain, engine in steps)


def compare(how: str, steps: int = 7) -> None:
    """Measure computing at a fast rate, then both engines at rates at which sending takes SHARES of it."""
    (took, waited, nbytes), _ = measure(how, 2, 10e9)[0]["FSDP"][1]
    columns = ("rate", "c, ms", "t, ms", "T, ms", "max(c, t)", "c + t", "hidden", "bytes")
    table = make_table(("engine",), columns)
    for share in SHARES:
        bits = 8 * nbytes / (share * (took - waited))
        taken = measure(how, steps, bits)
        for name in PAIRS:
            c, t, both, part, same = min((summary(rank[name]) for rank in taken), key=lambda found: found[3])
            times = [number(round(1e3 * value)) for value in (c, t, both, max(c, t), c + t)]
            table.add_row(name, f"{bits / 1e6:.0f} Mbit", *times, f"{part:.2f}", "same" if same else "differ")
    show("A step on two hosts: computing c, sending t, and both together T", table)
    say("hidden: (c + t - T) / min(c, t), the median over steps, on the rank where it is less.")


if __name__ == "__main__":
    how, *more = sys.argv[1:] or [""]
    if more:
        steps, file = more
        run(lambda comm, _: be_rank(comm, how, int(steps), file), lambda comm: None)
    compare(how, steps=4 if how else 7)
