"""The plan of a MapReduce job: what is to be done, and the folders in which it is done.

OUTPUT/part-00000-of-00004 ...            what has been committed
OUTPUT/.mapreduce/                        until the job has ended:
    job.json                                  what the job is, so that --resume goes on with the same one
    reduce-00000.json                         what the attempt that was committed has counted
    worker-1/map-00000/region-00003           map output on a worker's own disk (--local puts it elsewhere)
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from minidist import Finished, UsageError
from minidist.claims.files import write_whole
from minidist.mr.files import SPLIT, Block, check_inputs, pairs_and_bytes, part

MB = 1 << 20

TaskName = tuple[str, int]  # ("map", m) or ("reduce", r)
Record = tuple[str, int] | str  # what the user's function is given: of a map (document, offset), of a reduce the key


class Result(NamedTuple):
    """What came of a task."""

    sizes: list[int]  # of a map: the bytes of its R regions
    stats: Counter[str]  # what the attempt counted
    counters: Counter[str]  # what the user's function counted
    left_out: list[tuple[Record, str]]  # bad records, and why (section 4.6)

    def as_json(self) -> str:
        return json.dumps(self)


@dataclass
class Plan:
    """A job, the same on every rank. Only the first three have no default."""

    job: Any  # see minidist.mr.jobs
    inputs: Sequence[str]  # files
    output: Path
    reducers: int = 4  # R
    maps: int = 0  # M; 0: a split for every 16 MB
    memory: int = 64 * MB  # for intermediate pairs in a task, about
    combine: bool = True  # if the job has a combine
    skip_bad: int = 0  # records that may be left out because the functions fail on them (section 4.6)
    backup: bool = True
    replicas: int = 3  # of each split
    timeout: float = 10.0  # seconds without an answer after which a worker is given up
    grace: float = 3.0  # seconds that such a worker has at the end to say farewell
    resume: bool = False
    local: Path | None = None  # folder for intermediate files; None: in the output's
    log: bool = False  # print the master's decisions
    shown: bool = False  # the status line

    def __post_init__(self) -> None:
        """Look at the input. Raises UsageError if it cannot be read."""
        self.files = check_inputs(self.inputs)  # (path, bytes) of each
        self.size = sum(size for _, size in self.files)
        self.maps = self.maps or max(1, -(-self.size // SPLIT))
        self.combine = self.combine and getattr(self.job, "combine", None) is not None
        self.block = min(max(self.memory // 16, 64 << 10), 4 * MB)  # bytes of input that a worker takes at a time
        self.own_partition = getattr(self.job, "partition", None)
        self.records = getattr(self.job, "records", Block.lines)  # what is a record of a block (section 4.4)
        self.measure = getattr(self.job, "measure", pairs_and_bytes)
        self.sampled = min(10_000, 1000 + 100 * self.reducers) if hasattr(self.job, "plan") else 0  # lines
        self.folder = self.output / ".mapreduce"
        self.hosts: list[str] = []  # of each rank, when the job has begun
        self.name = self.job.map.__qualname__.removesuffix(".map")
        self.manifest = {
            "job": f"{self.job.map.__module__}:{self.job.map.__qualname__}",
            "pattern": getattr(self.job, "pattern", ""),
            "files": [[path, size, os.stat(path).st_mtime_ns] for path, size in self.files],
            "maps": self.maps,
            "reducers": self.reducers,
            "combine": self.combine,
        }
        name = blake2b(os.fsencode(self.output.absolute()), digest_size=8).hexdigest()
        self.locals = self.local / f"minidist-{name}" if self.local else self.folder

    def check_output(self) -> None:
        """Raise UsageError unless the job may begin, or go on, in its folder; Finished if it is done already."""
        output, begun = self.output, self.folder / "job.json"
        if output.exists() and not output.is_dir():
            raise UsageError(f"--output {output} is not a folder")
        for folder in (output, self.local or output):
            above = next(place for place in (folder, *folder.absolute().parents) if place.exists())
            if not above.is_dir() or not os.access(above, os.W_OK):
                raise UsageError(f"{folder}: cannot write into {above}")
        if not output.exists() or not any(output.iterdir()):
            return
        if not self.resume:
            hint = "; --resume finishes the job that was begun there" if begun.exists() else ""
            raise UsageError(f"--output {output} is not empty{hint}")
        if not begun.exists():
            if all((output / part(r, self.reducers)).exists() for r in range(self.reducers)):
                raise Finished(f"{output} holds all {self.reducers} parts already.")
            raise UsageError(f"--resume: there is no unfinished job in {output}")
        earlier = json.loads(begun.read_text())
        for name, value in self.manifest.items():
            if earlier.get(name) != value:
                raise UsageError(f"--resume: the unfinished job in {output} differs in {name}; finish it with the same")

    def near(self, m: int, workers: Iterable[int]) -> list[int]:
        """The workers with a replica of split m (3.4). Simulated: here all ranks read from the same disk."""
        order = sorted(workers, key=lambda worker: blake2b(f"{m} {worker}".encode()).digest())
        return order[: self.replicas]

    # ---- folders ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """On one rank, first of all."""
        self.check_output()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "job.json", self.manifest)

    def gasp(self, worker: int) -> Path:
        """Where stands what a worker is at."""
        return self.folder / f"worker-{worker}.at"

    def part(self, r: int) -> Path:
        """Where the output of a reduce is when it has been committed."""
        return self.output / part(r, self.reducers)

    def counted(self, r: int) -> Path:
        """Where stands what that reduce has counted."""
        return self.folder / f"reduce-{r:05}.json"

    def committed(self) -> dict[int, Result]:
        """The results of the reduces whose output is there from before."""
        return {r: read_result(self.counted(r)) for r in range(self.reducers) if self.part(r).exists()}

    def clear(self, rank: int) -> None:
        """On each rank, when nobody fetches any more."""
        shutil.rmtree(self.locals / f"worker-{rank}", ignore_errors=True)
        with suppress(OSError):  # other ranks of this machine are not so far yet
            self.locals.rmdir()

    def end(self) -> None:
        """On one rank, last of all."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_json(path: Path, document: Any) -> None:
    """Write something that is then there as a whole, or not at all."""
    write_whole(str(path), json.dumps(document).encode())


def read_result(path: Path) -> Result:
    sizes, stats, counters, left_out = json.loads(path.read_text())
    bad = [(record if isinstance(record, str) else (record[0], record[1]), why) for record, why in left_out]
    return Result(sizes, Counter(stats), Counter(counters), bad)
