"""What the kernel counts at a host's network interface, and what ranks say that they sent, for the same moments.

The command `hosts` sets HOSTS: then each rank writes its record into that folder.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from minidist.mpi import environment
from minidist.mpi.comm import Comm, Ledger

HOSTS = "MINIDIST_HOSTS"
INTERFACE = "eth0"
EMPTY = 200  # messages without content, whose size on the wire is what MPI adds to any message


class StepLedger(Ledger):
    """A ledger that also keeps when it was reset, and how long this rank had waited until then: a step's beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[tuple[float, float]] = []

    def reset(self) -> None:
        super().reset()
        self.moments.append((time.perf_counter(), self.waited))


def ledger() -> Ledger | None:
    """The ledger of a rank whose host is watched."""
    return StepLedger() if HOSTS in os.environ else None


def read() -> dict[str, int]:
    """Bytes and packets at the interface so far."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    counts = next(line for line in lines if line.strip().startswith(f"{INTERFACE}:")).split(":")[1].split()
    received, _, *_, sent, packets = map(int, counts[:10])
    return {"received": received, "sent": sent, "packets out": packets}


@contextmanager
def watched(comm: Comm) -> Iterator[None]:
    """Compare what happens inside with the kernel's account, between barriers; then send empty messages."""
    if HOSTS not in os.environ:
        yield
        return
    before, begin = comm.ledger.ever(), look(comm)
    yield
    end = look(comm)
    sent = comm.ledger.ever() - before
    size, here = comm.size, environment.local_ranks()
    nothing = np.empty(0, np.uint8)
    for _ in range(EMPTY if here < size else 0):
        comm.sendrecv(nothing, (comm.rank + here) % size, nothing.copy(), (comm.rank - here) % size)
    record: dict[str, Any] = {"counters": [begin, end, look(comm)], "moments": getattr(comm.ledger, "moments", [])}
    record["sent"] = [*sent.items()]
    Path(os.environ[HOSTS], f"{comm.rank}.json").write_text(json.dumps(record), encoding="utf-8")


def look(comm: Comm) -> dict[str, int]:
    """The counters, when all ranks are here: what they sent has arrived, and none sends more."""
    comm.barrier()
    counters = read()
    comm.barrier()
    return counters
