"""Hosts as a value: how many, how fast their links are; and what a job on them has sent, by two accounts."""

import json
import os
import re
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minidist import UsageError
from minidist.launch import launcher
from minidist.mpi import interface
from minidist.system import processes
from minidist.system.files import temporary_folder

HEADERS = 66  # bytes of each packet: Ethernet's 14, IP's 20, TCP's 32 with its timestamps
LARGE = 4096  # bytes of the mean message, from which on both accounts have to agree within 2 %
KINDS = "payload", "control"
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True)
class Network:
    """Hosts, joined by links of `rate` in each direction; `racks` groups of them, by links of `between`."""

    hosts: int
    ranks_per_host: int = 1
    rate: str = "1gbit"
    racks: int = 1
    between: str = "50mbit"
    delay: str | None = None
    spread: bool = False  # whether consecutive ranks are on different hosts

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host

    def host_of(self, rank: int) -> int:
        return rank % self.hosts if self.spread else rank // self.ranks_per_host

    def run(self, command: Sequence[str], **how: Any) -> tuple[int, str, list["Record"]]:
        """Run a command on all ranks. Returns its exit status, its errors if stderr is piped, and what each rank of
        minidist recorded. Raises UsageError where there can be no hosts."""
        mpirun = check_programs()
        with temporary_folder() as folder:
            spec = {**asdict(self), "mpirun": mpirun, "command": [*command], "parent": os.getpid()}
            environment = {**os.environ, interface.HOSTS: str(folder)}
            done = processes.run(
                [sys.executable, "-m", "minidist.hosts.inside", json.dumps(spec)],
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process only, which then ends the job
                text=True,
                **how,
            )
            found = [Path(folder, f"{rank}.json") for rank in range(self.ranks)]
            records = [Record(rank, json.loads(each.read_text())) for rank, each in enumerate(found) if each.exists()]
        return done.returncode, done.stderr or "", records if len(records) == self.ranks else []


def bits(rate: str) -> float:
    """Bits per second of 200mbit."""
    number, unit = re.fullmatch(r"([\d.]+)([kmg]bit)", rate).groups()  # type: ignore[union-attr]
    return float(number) * UNITS[unit]


def check_programs() -> str:
    """The path of MPICH's mpirun. Raises UsageError for what is missing."""
    if sys.platform != "linux":
        raise UsageError("hosts are namespaces, which only Linux has")
    missing = [name for name in ("ip", "tc", "nsenter") if shutil.which(name) is None]
    if missing:
        raise UsageError(f"hosts need {' and '.join(missing)}: install iproute2 and util-linux")
    mpirun = launcher.find_mpiexec()
    if launcher.is_open_mpi(mpirun):
        raise UsageError("hosts need MPICH's mpirun: Open MPI's daemons choose addresses of their own")
    return mpirun


class Record:
    """What a rank recorded."""

    def __init__(self, rank: int, found: Any) -> None:
        self.rank, self.counters, self.moments = rank, found["counters"], found["moments"]
        self.sent: list[tuple[str, int, str, int]] = [
            (kind, int(peer), unit, count) for (kind, _, peer, unit), count in found["sent"]
        ]

    def steps(self) -> list[tuple[float, float, dict[int, int]]]:
        """Of each step but the first: seconds, of these waiting, and bytes sent to each rank. A step is from one reset
        of the ledger to the next."""
        pairs = [*zip(self.moments, self.moments[1:], strict=False)]
        return [
            (end - begin, waited - before, {int(peer): sent for peer, sent in peers.items()})
            for (begin, before, _), (end, waited, peers) in pairs[1:] or pairs
        ]


class Account(NamedTuple):
    """What a host has sent, in bytes: the kernel's count, and what it consists of."""

    host: int
    kernel: int
    received: int
    payload: int
    control: int
    envelopes: float
    headers: int
    large: bool  # whether the mean message has LARGE bytes or more

    @property
    def rest(self) -> float:
        return self.kernel - self.payload - self.control - self.envelopes - self.headers

    @property
    def agrees(self) -> bool:
        return abs(self.rest) <= (0.02 if self.large else 0.1) * self.kernel


def account(network: Network, host: int, records: Sequence[Record]) -> Account:
    """Both accounts of a host, from the records of all ranks."""
    mine = [record for record in records if network.host_of(record.rank) == host]
    begin, end, empty = mine[0].counters
    left = [sent for record in mine for sent in record.sent if network.host_of(sent[1]) != host]
    payload, control = (sum(n for of, _, unit, n in left if (of, unit) == (kind, "bytes")) for kind in KINDS)
    messages = sum(n for _, _, unit, n in left if unit == "messages")
    crossing = len(mine) * (len(records) - len(mine))  # pairs of a rank here and a rank elsewhere
    envelope = content(end, empty) / (interface.EMPTY * max(crossing, 1))
    kernel = end["sent"] - begin["sent"]
    return Account(
        host,
        kernel,
        end["received"] - begin["received"],
        payload,
        control,
        envelope * messages,
        kernel - content(begin, end),
        payload + control >= LARGE * messages,
    )


def content(begin: dict[str, int], end: dict[str, int]) -> int:
    """Bytes sent between two readings, without the packets' headers."""
    return end["sent"] - begin["sent"] - HEADERS * (end["packets out"] - begin["packets out"])


def step_of(records: Sequence[Record]) -> tuple[float, float]:
    """Seconds of a step, and of these, waiting: means, of the rank that waits least."""
    rows = [record.steps() for record in records]
    if not all(rows):
        return 0.0, 0.0
    means = [(statistics.mean(step[0] for step in steps), statistics.mean(step[1] for step in steps)) for steps in rows]
    return min(means, key=lambda mean: mean[1])


def across(network: Network, records: Sequence[Record]) -> float:
    """Bytes of a step, by the ledger, over the busiest link of a host, in its busier direction."""
    sent: defaultdict[tuple[int, int], float] = defaultdict(float)  # (host, +1 or -1) -> bytes out of it, or in
    for record in records:
        steps = record.steps()
        for peer, nbytes in ((peer, nbytes / len(steps)) for step in steps for peer, nbytes in step[2].items()):
            here, there = network.host_of(record.rank), network.host_of(peer)
            if here != there:
                sent[here, 1] += nbytes
                sent[there, -1] += nbytes
    return max(sent.values(), default=0)
