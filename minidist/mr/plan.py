"""The plan of a MapReduce job: its tasks, and its folders.

OUTPUT/part-00000-of-00004 ...            what has been committed
OUTPUT/.mapreduce/                        until the job has ended:
    job.json                                  what the job is, so that --resume continues the same one; it stays
    reduce-00000.json                         what the attempt that was committed has counted, and its checksums
    worker-1/map-00000/region-00003           map output on a worker's own disk (--local puts it elsewhere)
"""

import os
import platform
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from minidist import Finished, UsageError
from minidist.cli.paths import check_folder_takes_files
from minidist.mpi.comm import Comm
from minidist.mr import fingerprint
from minidist.mr.checksums import is_intact, read_note, seal_note
from minidist.mr.files import SPLIT, LineBlock, check_inputs, pairs_and_bytes, part, sample
from minidist.system.files import is_own_folder, make_own_folder, write_whole

MB = 1 << 20
MOST_TASKS, MOST_REGIONS = 10_000, 1_000_000  # tasks of a kind, and region files (M times R): one disk has to hold them

TaskName = tuple[str, int]  # ("map", m) or ("reduce", r)
Record = tuple[str, int] | str  # what the user's function is given: of a map (document, offset), of a reduce the key


class TaskResult(NamedTuple):
    """The result of a task."""

    sizes: list[int]  # bytes of the files that it left: R regions of a map, the part of a reduce
    stats: Counter[str]  # what the attempt counted
    counters: Counter[str]  # what the user's function counted
    left_out: list[tuple[Record, str]]  # bad records, and why (section 4.6)
    sums: Sequence[list[int]] = ()  # of each of these files: the checksums of its pieces

    @classmethod
    def empty(cls) -> "TaskResult":
        return cls([], Counter(), Counter(), [])

    def note(self, task: TaskName) -> str:
        """The note written when the task is committed. It names the task, because files may be swapped."""
        return seal_note({"task": task, **self._asdict()})

    def describes(self, files: Iterable[Path]) -> bool:
        """Whether these files are what the task left."""
        return all(map(is_intact, files, self.sizes, self.sums))


@dataclass
class Plan:
    """A job, the same on every rank. Only the first three have no default."""

    job: Any  # see minidist.mr.jobs
    inputs: Sequence[str]  # files
    output: Path
    reducers: int = 4  # R
    maps: int = 0  # M; 0: a split for every 16 MB
    memory: int = 64 * MB  # bytes for the intermediate pairs of a task, about
    combine: bool = True  # if the job has a combine
    skip_bad: int = 0  # records that may be left out because the functions fail on them (section 4.6)
    backup: bool = True
    replicas: int = 3  # of each split
    timeout: float = 10.0  # seconds without an answer after which a worker is given up
    grace: float = 3.0  # seconds that such a worker gets at the end to send `Drained`
    resume: bool = False
    local: Path | None = None  # folder for intermediate files; None: inside the output
    log: bool = False  # print the master's decisions
    shown: bool = False  # the status line

    def __post_init__(self) -> None:
        """Check the input, and choose what depends on it. Raises UsageError if it cannot be read."""
        self.files = check_inputs(self.inputs)  # (path, bytes) of each
        self.size = sum(size for _, size in self.files)
        most = min(MOST_TASKS, MOST_REGIONS // self.reducers)
        if self.maps > most:
            regions = f"{self.maps * self.reducers:,}"
            raise UsageError(f"--maps {self.maps} and --reducers {self.reducers}: {regions} region files are too many")
        self.maps = self.maps or min(max(1, -(-self.size // SPLIT)), most)
        self.combine = self.combine and getattr(self.job, "combine", None) is not None
        self.block = min(max(self.memory // 16, 64 << 10), 4 * MB)  # bytes of input that a worker takes at a time
        self.own_partition = getattr(self.job, "partition", None)
        self.records = getattr(self.job, "records", LineBlock.lines)  # what is a record of a block (section 4.4)
        self.measure = getattr(self.job, "measure", pairs_and_bytes)
        self.sampled = min(10_000, 1000 + 100 * self.reducers) if hasattr(self.job, "plan") else 0  # lines
        self.folder = self.output / ".mapreduce"
        self.hosts: list[str] = []  # of each rank, when the job has begun
        self.token = ""  # makes the local folder's name unpredictable
        self.name = self.job.map.__qualname__.removesuffix(".map")

    def workers_near(self, m: int, workers: Iterable[int]) -> list[int]:
        """The workers with a replica of split m (3.4). Simulated: here all ranks read from the same disk."""
        order = sorted(workers, key=lambda worker: blake2b(f"{m} {worker}".encode()).digest())
        return order[: self.replicas]

    # ---- folders ----------------------------------------------------------------------------------------------------

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What must be the same when a job is resumed."""
        return {
            "job": f"{self.job.map.__module__}:{self.job.map.__qualname__}",
            "pattern": getattr(self.job, "pattern", ""),
            "code": fingerprint.fingerprint_code(self.job),
            "files": [fingerprint.fingerprint_file(path, size) for path, size in self.files],
            "maps": self.maps,
            "reducers": self.reducers,
            "combine": self.combine,
            "memory": self.memory,  # decides how often a map combines
        }

    def check_output(self) -> None:
        """Raise UsageError unless the job may begin, or go on, in its folder; Finished if it is done already."""
        output = self.output
        if os.path.lexists(output) and not os.path.isdir(output):
            raise UsageError(f"--output {output} is not a folder")
        check_folder("--output", output)
        if os.path.lexists(self.folder) and not is_own_folder(self.folder):
            raise UsageError(f"{self.folder} is not a folder of yours")
        held = os.listdir(output) if output.exists() else []
        if not held:
            return
        if not self.resume:
            if held == [self.folder.name] and self.read_earlier().get("finished"):  # its parts were moved away
                return
            begun = (self.folder / "job.json").exists() and not self.read_earlier().get("finished")
            hint = "finish the job that was begun there with --resume, or " if begun else ""
            raise UsageError(f"--output {output} is not empty: {hint}remove it, or name another")
        earlier = self.read_earlier()
        if not earlier:
            raise UsageError(f"--resume: there is no unfinished job in {output}")
        for name, value in self.manifest.items():
            if earlier[name] != value:
                raise UsageError(f"--resume: the job in {output} differs in {name}; finish it with the same")
        if earlier["finished"]:
            if earlier["left_out"] > self.skip_bad:
                raise UsageError(f"--resume: the job in {output} has left out {earlier['left_out']} records")
            for r, (size, sums) in enumerate(earlier["parts"]):
                trouble = "missing" if not self.part(r).exists() else "damaged"
                if trouble == "missing" or not is_intact(self.part(r), size, sums):
                    gone = f"{self.part(r).name} of the finished one is {trouble}"
                    raise UsageError(f"--resume: there is no unfinished job in {output}; {gone}")
            raise Finished(f"{output} holds all {self.reducers} parts already.")

    def check_local(self) -> None:
        """Raise UsageError unless intermediate files can be written to their folder. Another user may have put
        something else in the place of the resumed job's folder."""
        if self.local:
            check_folder("--local", self.local)
        self.token = self.read_earlier().get("token", "") if self.resume else ""
        if self.local and self.token and os.path.lexists(self.locals) and not is_own_folder(self.locals):
            raise UsageError(f"{self.locals} is not a folder of yours; delete it, or do without --resume")
        for entry in sorted({*self.folder.glob("worker-*"), *self.locals.glob("worker-*")}):
            if self.resume and entry.is_symlink():
                raise UsageError(f"--resume: {entry} is a link, and not this job's; delete it")

    def read_earlier(self) -> dict[str, Any]:
        """The note of the job that was begun here; empty if there is none. Raises UsageError if it is damaged."""
        path = self.folder / "job.json"
        try:
            found = read_note(path)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} is damaged: {error}; delete {self.output}, or take another --output") from None
        if not found.keys() >= {*self.manifest, "token", "finished", "left_out"}:
            raise UsageError(f"{path} is damaged; delete {self.output}, or take another --output")
        return found

    @property
    def locals(self) -> Path:
        """The folder of the workers' folders on this machine."""
        return self.local / f"{self.prefix}{self.token}" if self.local else self.folder

    @property
    def prefix(self) -> str:
        """How the names of this job's local folders begin, in any run."""
        return f"minidist-{blake2b(os.fsencode(self.output.absolute()), digest_size=8).hexdigest()}-"

    def begin(self, comm: Comm) -> None:
        """Make the folders, and agree on what is chosen now. All ranks must call this first."""
        self.token = comm.broadcast_object(self.make_folder() if comm.rank == 0 else None)
        self.hosts = comm.all_gather_object(platform.node())
        lines = comm.broadcast_object(sample(self.files, self.sampled) if comm.rank == 0 else None)
        if self.sampled:
            self.job.plan(lines, self.reducers)

    def make_folder(self) -> str:
        """Make the job's folder, on one rank. Returns the token, which all ranks must know."""
        self.check_output()
        self.token = self.read_earlier().get("token", "") if self.resume else ""
        self.token = self.token or secrets.token_hex(8)
        if not self.resume:
            shutil.rmtree(self.folder, ignore_errors=True)  # of a finished job, whose parts were moved away
        make_own_folder(self.folder)
        try:
            self.write_job(token=self.token, finished=False, left_out=0)
        except OSError:
            if not self.resume:  # without its note the folder is nothing that a job could go on in
                shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self.token

    def write_job(self, **state: Any) -> None:
        """Write the job's note, atomically: what the job is, and how far it has come."""
        write_whole(str(self.folder / "job.json"), seal_note({**self.manifest, **state}).encode())

    def gasp(self, worker: int) -> Path:
        """The file in which a worker notes what it is working on."""
        return self.folder / f"worker-{worker}.at"

    def part(self, r: int) -> Path:
        """The path of a reduce's committed output."""
        return self.output / part(r, self.reducers)

    def counts_path(self, r: int) -> Path:
        """The file with the note of a committed reduce: what it has counted."""
        return self.folder / f"reduce-{r:05}.json"

    def committed(self) -> dict[int, TaskResult | None]:
        """The results of reduces that an earlier run committed; None if the output or its note is damaged."""
        there = [r for r in range(self.reducers) if os.path.lexists(self.part(r))]
        return {r: read_result(self.counts_path(r), ("reduce", r), [self.part(r)]) for r in there}

    def clear(self) -> None:
        """Remove local files on this machine, even of silent workers. Each rank calls it, however the job ends."""
        if self.local and self.token:
            shutil.rmtree(self.locals, ignore_errors=True)

    def end(self, left_out: int) -> None:
        """Remove all but the note that says which job the parts belong to. One rank calls it, at the very end."""
        results = [read_result(self.counts_path(r), ("reduce", r)) or TaskResult.empty() for r in range(self.reducers)]
        parts = [[*result.sizes, *result.sums] or [-1, []] for result in results]
        self.write_job(token="", finished=True, left_out=left_out, parts=parts)
        for entry in self.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != "job.json":
                entry.unlink(missing_ok=True)


def check_folder(option: str, folder: Path) -> None:
    """Raise UsageError unless a folder with files in it can be made here. The check makes nothing that
    a kill would leave there."""
    folder = folder.absolute()
    above = next(place for place in (folder, *folder.parents) if os.path.lexists(place))  # a link may lead nowhere
    try:
        check_folder_takes_files(above)
        for path in (folder, *(above / name for name in folder.relative_to(above).parts)):
            with suppress(FileNotFoundError):
                os.lstat(path)  # says if a name is too long
    except OSError as error:
        raise UsageError(f"{option} {folder}: {error.strerror}") from None


def read_result(path: Path, task: TaskName, files: Iterable[Path] = ()) -> TaskResult | None:
    """The result in a task's note; None if the note or the task's files are missing or damaged."""
    try:
        document = read_note(path)
    except (OSError, ValueError):
        return None
    if document.pop("task", None) != [*task]:
        return None
    found = TaskResult(**document)
    bad = [(record if isinstance(record, str) else (record[0], record[1]), why) for record, why in found.left_out]
    result = found._replace(stats=Counter(found.stats), counters=Counter(found.counters), left_out=bad)
    return result if result.describes(files) else None
