"""The plan of a MapReduce job: what is to be done, from the command line, and the folders in which it is done.

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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

from minidist import Finished, UsageError
from minidist.claims.files import check_writable, write_whole
from minidist.cli.options import Parser, at_least, within
from minidist.mr import jobs as mapreduce_jobs
from minidist.mr.faults import Faults, parse
from minidist.mr.files import check_inputs, part, split

MB = 1 << 20


@dataclass
class Plan:
    """A job, the same on every rank but for the faults. Only the first three have no default."""

    job: Any  # see minidist.mr.jobs
    inputs: Sequence[str]  # files
    output: Path
    reducers: int = 4  # R
    maps: int | None = None  # M; None: a split for every 16 MB
    memory: int = 64 * MB  # for intermediate pairs in a task, about
    combine: bool = True  # if the job has a combine
    backup: bool = True
    replicas: int = 3  # of each split
    timeout: float = 10.0  # seconds without an answer after which a worker is given up
    resume: bool = False
    local: Path | None = None  # folder for intermediate files; None: in the output's
    faults: Faults = field(default_factory=Faults)
    log: bool = False  # print the master's decisions
    shown: bool = False  # the status line

    def __post_init__(self) -> None:
        """Look at the input. Raises UsageError if it cannot be read."""
        self.files = check_inputs(self.inputs)  # (path, bytes) of each
        self.splits = split(self.files, self.maps)
        self.combine = self.combine and hasattr(self.job, "combine") and self.job.combine is not None
        self.whole_blocks = self.combine and hasattr(self.job, "map_block")
        self.block = min(max(self.memory // 16, 64 << 10), 4 * MB)  # bytes of input that a worker takes at a time
        self.own_partition = getattr(self.job, "partition", None)
        self.sampled = min(10_000, 1000 + 100 * self.reducers) if hasattr(self.job, "plan") else 0  # lines
        self.folder = self.output / ".mapreduce"
        self.name = type(self.job).__name__ if hasattr(type(self.job), "map") else self.job.map.__qualname__
        self.manifest = {
            **mapreduce_jobs.identity(self.job),
            "files": [[path, size, os.stat(path).st_mtime_ns] for path, size in self.files],
            "maps": len(self.splits),
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

    def near(self, m: int, workers: range) -> list[int]:
        """The workers with a replica of split m (3.4). Simulated: here all ranks read from the same disk."""
        order = sorted(workers, key=lambda worker: blake2b(f"{m} {worker}".encode()).digest())
        return order[: self.replicas]

    def partition(self, key: str) -> int:
        """The reduce task of a key: crc32, for Python's own hash of a text differs from process to process."""
        if self.own_partition is None:
            return crc32(key.encode()) % self.reducers
        r: int = self.own_partition(key, self.reducers)
        if not 0 <= r < self.reducers:
            raise ValueError(f"partition({key!r}, {self.reducers}) is {r}, and not from 0 to {self.reducers - 1}")
        return r

    # ---- folders ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """On one rank, first of all."""
        self.check_output()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "job.json", self.manifest)

    def own_folder(self, rank: int) -> tuple[Path, dict[int, Any]]:
        """The folder of a worker's own files, and the results of the maps whose output is there from before."""
        folder, held = self.locals / f"worker-{rank}", {}
        if not self.resume:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        for entry in folder.iterdir():
            if entry.name.startswith("map-"):
                held[int(entry.name[4:])] = read_result(entry / "done.json")
            else:
                shutil.rmtree(entry)
        return folder, held

    def commit(self, r: int, unfinished: Path, result: Any) -> None:
        """Give an output file its name: it is there as a whole or not at all."""
        write_json(self.folder / f"reduce-{r:05}.json", result)
        os.replace(unfinished, self.output / part(r, self.reducers))

    def committed(self) -> dict[int, Any]:
        """The results of the reduces whose output is there from before."""
        done = [r for r in range(self.reducers) if (self.output / part(r, self.reducers)).exists()]
        return {r: read_result(self.folder / f"reduce-{r:05}.json") for r in done}

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


def read_result(path: Path) -> Any:
    """(bytes of the regions, what the attempt counted, what the user's function counted)"""
    sizes, stats, counters = json.loads(path.read_text())
    return sizes, Counter(stats), Counter(counters)


# ---- from the command line -------------------------------------------------------------------------------------------


def parser(doc: str) -> Parser:
    made = Parser("mapreduce", doc)
    add = made.add_argument
    add("job_and_files", nargs="+", metavar="JOB FILE", help=f"{', '.join(mapreduce_jobs.JOBS)}; and the input")
    add(
        "--output",
        metavar="DIR",
        default="mapreduce-output",
        help="folder for the output: a file from each reduce task",
    )
    add("--reducers", type=at_least(1), default=4, metavar="R", help="reduce tasks")
    add("--maps", type=at_least(1), metavar="M", help="map tasks; without it, one for every 16 MB")
    add("--pattern", help="wordcount, inverted-index: what a word is, instead of \\w+; grep: what to look for")
    add("--job", metavar="MODULE:CLASS", help="a job of your own; then all arguments are files")
    add("--memory", type=within(0.001, 1e6), default=64.0, metavar="MB", help="for intermediate pairs in a task")
    add("--no-combine", action="store_true", help="send every pair to the reducers")
    add("--no-backup", action="store_true", help="no backup tasks for stragglers")
    add("--replicas", type=at_least(1), default=3, help="machines that hold a copy of each split (simulated)")
    add("--timeout", type=within(0.1, 1e6), default=10.0, metavar="S", help="a worker silent for so long is given up")
    add("--resume", action="store_true", help="finish a job that was killed")
    add("--local", metavar="DIR", help="folder for intermediate files on each machine; default: in the output folder")
    add("--inject", action="append", default=[], metavar="FAULT", help="cause a fault, see minidist/mr/faults.py")
    add("--json", metavar="FILE", help="write the report for machines; - is standard output")
    return made


def prepare(doc: str, arguments: Sequence[str], rank: int, size: int) -> tuple[Plan, str | None]:
    """The plan, and where the report for machines goes. Raises UsageError for whatever cannot work."""
    options = parser(doc).parse_args(arguments)
    check_writable("--json", options.json if options.json != "-" else None)
    name, *files = options.job_and_files
    if options.job:
        name, files = "", options.job_and_files
        if options.pattern is not None:
            raise UsageError("--pattern is for the shipped jobs, not for --job")
    job = mapreduce_jobs.load(options.job) if options.job else mapreduce_jobs.make(name, options.pattern)
    if not files:
        raise UsageError(f"{name} needs an input: name one file or more")
    plan = Plan(
        job,
        files,
        Path(options.output),
        reducers=options.reducers,
        maps=options.maps,
        memory=int(options.memory * MB),
        combine=not options.no_combine,
        backup=not options.no_backup,
        replicas=options.replicas,
        timeout=options.timeout,
        resume=options.resume,
        local=Path(options.local) if options.local else None,
        faults=parse(options.inject, rank, range(min(1, size - 1), size)),
        log=bool(options.inject) and options.json != "-",
        shown=options.json != "-",
    )
    plan.check_output()
    return plan, options.json
