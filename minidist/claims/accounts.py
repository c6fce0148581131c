"""What a chapter says it holds, reads and writes, compared with what NumPy and the kernel say. Any MPI will do.

**Memory.** The pools count the arrays that were registered (`minidist/memory/pool.py`). Between two operations, NumPy's
own account of arrays must be equal. At its peak it is higher by one operation's temporary arrays, its scratch. The most
that was resident (VmHWM) equals neither, because it counts pages. It is split into arrays, Python's objects and mapped
memory. The rest (holes in the allocator's memory, BLAS's buffers) has no account of its own, so it is only bounded.

**Files.** What links and disks have counted must equal what the kernel has counted of the whole process
(/proc/self/io), except for two named items: reading /proc itself, and what a file's buffer reads ahead of its reader.
A write through a memory map is not a system call, and escapes both accounts.
"""

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from minidist.claims.reports import read_report
from minidist.cli.progress import StatusLine
from minidist.cli.tables import make_table, mark, number, show
from minidist.memory.kernel import AUDIT
from minidist.system.files import temporary_folder

T = TypeVar("T")


class Asked(NamedTuple):
    """A chapter's command line, its number of ranks, and its name in the table."""

    name: str
    line: str
    ranks: int


# ---- memory ----------------------------------------------------------------------------------------------------------

ROOM, SHARE = 10_000_000, 8  # the rest of a process may have ROOM bytes plus 1/SHARE of NumPy's


class Held(NamedTuple):
    """The most that one rank has held, in bytes. The sum is what its process has grown by."""

    pools: int
    scratch: int  # what NumPy's account had in addition, at its peak
    pythons: int  # Python's own objects, and what is needed to trace them
    mapped: int  # code that was loaded on first use, and memory that MPI shares between ranks
    rest: int  # memory outside of all accounts: holes that the allocator keeps, buffers of BLAS
    within: str  # the unit or instruction in which NumPy's account was at its peak
    boundaries: int  # the number of them: at each, the pools were compared with NumPy
    unnamed: dict[str, int]  # boundary -> bytes by which they differed there

    @property
    def agrees(self) -> bool:
        """Whether NumPy's account equals the pools' wherever it must, and the kernel's is within its bounds."""
        return not self.unnamed and abs(self.rest) <= ROOM + (self.pools + self.scratch) // SHARE

    def trouble(self) -> Iterator[str]:
        """Lines that say why the accounts do not agree."""
        for at, nbytes in [*self.unnamed.items()][:2]:
            yield f"after {at}: {number(nbytes)} bytes of arrays that no pool knows"
        if not self.unnamed and not self.agrees:
            yield f"the process has grown by {number(self.rest)} bytes that no account explains"


def compare_held(asked: Asked) -> list[Held]:
    """What each rank held. Raises UsageError if there is no report. If the kernel keeps no account, the rest is 0."""
    found = []
    for counted in read_report(asked.ranks, asked.line)["counted"]:
        seen = counted["witness"]
        pythons, mapped = seen.get("pythons", 0), seen.get("mapped", 0)
        rest = seen["process"] - seen["peak"] - pythons - mapped if "process" in seen else 0
        arrays = seen["peak"] - seen["scratch"], seen["scratch"]
        found.append(Held(*arrays, pythons, mapped, rest, seen["within"], seen["boundaries"], seen["unnamed"]))
    return found


def audit_memory(runs: Sequence[Asked]) -> int:
    """Run all, compare and print the accounts; 1 if a rank's do not agree."""
    each_rank = len(runs) <= 2
    table = make_table(left=("chapter",), right=("N", "pools", "scratch", "Python", "mapped", "rest", "process"))
    table.add_column("", no_wrap=True)
    boundaries, agree, trouble, within = 0, 0, list[str](), list[str]()
    for asked, ranks in performed(runs, compare_held):
        boundaries += sum(rank.boundaries for rank in ranks)
        agree += all(rank.agrees for rank in ranks)
        trouble += [f"{asked.name}, rank {i}, {line}" for i, rank in enumerate(ranks) for line in rank.trouble()]
        fullest = max(range(asked.ranks), key=lambda i: ranks[i].pools)
        for i in range(asked.ranks) if each_rank else [fullest]:
            parts = ranks[i][:5]
            cells = [number(round(nbytes / 1000)) for nbytes in (*parts, sum(parts))]
            agrees = all(rank.agrees for rank in (ranks if not each_rank else [ranks[i]]))
            table.add_row(asked.name + f", rank {i}" * each_rank, str(asked.ranks), *cells, mark(agrees))
            within += [f"{asked.name}, rank {i}: NumPy's account was at its peak within {ranks[i].within}"] * each_rank
    show("The most that a rank held, in KB: by its pools, by NumPy, by the kernel", table)
    for line in (*within, *trouble):
        print(textwrap.fill(line, 79, subsequent_indent="    "))
    print(f"{agree} of {len(runs)} runs agree.")
    words = (
        "pools: as counted here. scratch: what NumPy's own account has in addition, within one operation; between two,"
        f" at {number(boundaries)} boundaries, it has nothing more. Python: its objects, and what traces them. mapped:"
        " code, and what MPI shares. rest: what the kernel's VmHWM has in addition to all these (holes that the"
        f" allocator keeps, BLAS's buffers). The rest is only bounded: {ROOM // 10**6} MB and an eighth of NumPy's."
    )
    print(textwrap.fill(words, 79))
    return 0 if agree == len(runs) else 1


# ---- files -----------------------------------------------------------------------------------------------------------


class Moved(NamedTuple):
    """What one rank has read, or written, in bytes."""

    rank: int
    way: str
    counted: int  # by links, or by a worker's disk
    named: int  # what the kernel counts in addition, for a known reason
    kernels: int

    @property
    def difference(self) -> int:
        """What the kernel has counted, and minidist has not."""
        return self.kernels - self.counted - self.named


def compare_moved(asked: Asked) -> list[Moved]:
    """What each rank read and wrote. Raises UsageError if there is no report."""
    with temporary_folder() as folder:
        report = read_report(asked.ranks, asked.line, **{AUDIT: str(folder)})
        if "moved" in report:
            return [*read_links(report)]
        return [*read_workers(folder)]


def read_links(report: dict[str, Any]) -> Iterator[Moved]:
    """What ZeRO-Infinity's links to the disk moved in its last step."""
    for rank, (counted, links) in enumerate(zip(report["counted"], report["moved"], strict=True)):
        for way, direction, named in (("read", "disk to host", counted["looked"]), ("written", "host to disk", 0)):
            nbytes = sum(phase["bytes"] for phase in links[direction].values())
            yield Moved(rank, way, nbytes, named, counted[f"process {way}"])


def read_workers(folder: Path) -> Iterator[Moved]:
    """What MapReduce's workers read and wrote in a whole job. The master has no disk."""
    for file in sorted(folder.glob("*.disk.json")):
        account = json.loads(file.read_text(encoding="utf-8"))
        ahead = account["moved"].pop("read ahead", 0)
        for way, named in (("read", ahead + account["looked"]), ("written", 0)):
            nbytes = sum(count for what, count in account["moved"].items() if what.endswith(way))
            yield Moved(int(file.name.split(".")[0]), way, nbytes, named, account[f"process {way}"])


def audit_files(runs: Sequence[Asked]) -> int:
    """Run all, compare and print the accounts; 1 if the kernel's differs from minidist's."""
    table = make_table(left=("chapter",), right=("N", "", "counted", "named", "kernel's", "differ"))
    table.add_column("", no_wrap=True)
    each_rank, different = len(runs) <= 2, 0
    for asked, rows in performed(runs, compare_moved):
        different += any(row.difference for row in rows)
        ways = [[row for row in rows if row.way == way] for way in ("read", "written")]
        for some in [[row] for row in rows] if each_rank else ways:
            sums = [sum(column) for column in zip(*(row[2:] for row in some), strict=True)]
            off = sum(abs(row.difference) for row in some)
            name = asked.name + f", rank {some[0].rank}" * each_rank
            table.add_row(name, str(asked.ranks), some[0].way, *map(number, (*sums, off)), mark(not off))
    show("Bytes of files: as counted here, and as the kernel counts them of the process", table)
    print(f"{len(runs) - different} of {len(runs)} runs agree, for each rank. named: reading /proc itself, and what")
    print("a file's buffer reads ahead of its reader. infinity: in its last step;")
    print("mapreduce: its workers, in a whole job.")
    return 1 if different else 0


def performed(runs: Sequence[Asked], perform: Callable[[Asked], list[T]]) -> Iterator[tuple[Asked, list[T]]]:
    """Each run with what `perform` found, one after the other; shows the progress."""
    status = StatusLine(shown=True)
    for i, asked in enumerate(runs):
        status.show(f"mpirun -n {asked.ranks} python -m minidist.{asked.line.split()[0]}", i / len(runs))
        found = perform(asked)
        status.clear()
        yield asked, found
    status.close()
