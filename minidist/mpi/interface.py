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

from minidist.mpi.comm import Comm, Ledger

HOSTS = "MINIDIST_HOSTS"
INTERFACE = "eth0"
EMPTY = 50  # messages without content to each other rank: their size on the wire is what MPI adds to any message


class StepLedger(Ledger):
    """A ledger that also keeps when it was reset, how long this rank had waited until then, and what it had sent since
    the reset before: a step."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[tuple[float, float, dict[int, int]]] = []

    def reset(self) -> None:
        self.moments.append((time.perf_counter(), self.waited, self.by_peer()))
        super().reset()


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
    nothing = np.empty(0, np.uint8)
    for distance in [*range(1, comm.size)] * EMPTY:
        comm.sendrecv(nothing, (comm.rank + distance) % comm.size, nothing.copy(), (comm.rank - distance) % comm.size)
    record: dict[str, Any] = {"counters": [begin, end, look(comm)], "moments": getattr(comm.ledger, "moments", [])}
    record["sent"] = [*sent.items()]
    Path(os.environ[HOSTS], f"{comm.rank}.json").write_text(json.dumps(record), encoding="utf-8")


def look(comm: Comm) -> dict[str, int]:
    """The counters, when all ranks are here: what they sent has arrived, and none sends more."""
    comm.barrier()
    counters = read()
    comm.barrier()
    return counters
