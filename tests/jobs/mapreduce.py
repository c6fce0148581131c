"""What tests/test_mapreduce.py runs on ranks: many jobs one after another, and what they report."""

import ctypes
import errno
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from minidist import Finished, UsageError
from minidist.mapreduce import run
from minidist.mpi.comm import Comm
from minidist.mr import load
from minidist.mr.disk import Disk
from minidist.mr.faults import parse
from minidist.mr.jobs import Functions
from minidist.mr.plan import Plan
from minidist.mr.report import claims, failure_text
from minidist.programs.chapter import find


class Vowels:
    """A job of one's own: the lines that begin with each letter, longest first; it has a partition and counters."""

    counters: Counter[str]
    pause = 0.0

    def map(self, document: str, line: str) -> Iterator[tuple[str, str]]:
        if self.counters["lines"] == 0:
            time.sleep(self.pause)  # a task takes a while, so that every worker gets some
        self.counters["lines"] += 1
        self.counters["vowels"] += sum(line.count(vowel) for vowel in "aeiou")
        if line:
            yield line[0], line

    def partition(self, key: str, reducers: int) -> int:
        return ord(key) % reducers

    def reduce(self, key: str, values: Iterable[str]) -> Iterator[str]:
        self.counters["first letters"] += 1
        yield from sorted(values, key=len, reverse=True)


def emit_length(document: str, line: str) -> Iterator[tuple[str, str]]:
    yield f"{len(line):05}", document


def count_values(key: str, values: Iterable[str]) -> Iterator[str]:
    yield str(sum(1 for _ in values))


class SlowVowels(Vowels):
    pause = 0.15


class FailsOnKey(Vowels):
    """Its reduce fails on one key."""

    def reduce(self, key: str, values: Iterable[str]) -> Iterator[str]:
        for value in values:
            yield value
            if key == "T":
                raise ValueError("I do not like T")


class Wrong(Vowels):
    """A job with one mistake."""

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake

    def map(self, document: str, line: str) -> Any:
        match self.mistake:
            case "map returns None" if "The 500" in line:
                return None
            case "map emits a number" if "The 500" in line:
                return [("a", "b"), ("number", 7)]
            case "map emits no pair" if "The 500" in line:
                return ["no"]
            case "map exits" if "The 500" in line:
                raise SystemExit("enough")
            case "map exits at once" if "The 500" in line:
                os._exit(0)
            case "map is interrupted" if "The 500" in line:
                raise KeyboardInterrupt
        return list(super().map(document, line))

    def partition(self, key: str, reducers: int) -> Any:
        if self.mistake in PARTITIONS and key == "T":
            return PARTITIONS[self.mistake]
        if self.mistake == "partition exits at once" and key == "T":
            os._exit(0)
        return super().partition(key, reducers)

    def combine(self, key: str, values: Iterable[str]) -> Any:
        if key == "T":
            match self.mistake:
                case "combine returns None":
                    return None
                case "combine emits bytes":
                    return [b"x"]
                case "combine fails":
                    raise KeyError("no such thing")
        return values

    def reduce(self, key: str, values: Iterable[str]) -> Any:
        if key == "T":
            match self.mistake:
                case "reduce returns None":
                    return None
                case "reduce returns a text":
                    return "123"
                case "reduce emits two lines in one":
                    return ["one\ntwo"]
                case "reduce emits bytes":
                    return [b"x"]
                case "reduce emits a list":
                    return [[1]]
                case "reduce exits at once":
                    os._exit(0)
                case "reduce fails":
                    raise KeyError("no such thing")
        return super().reduce(key, values)


PARTITIONS: dict[str, Any] = {
    "partition": 2,
    "partition below 0": -1,
    "partition returns None": None,
    "partition returns a text": "0",
    "partition returns a half": 0.5,
}
MISTAKES = (
    *("map returns None", "map emits a number", "map emits no pair", "map exits", "map exits at once"),
    *("map is interrupted", *PARTITIONS, "partition exits at once"),
    *("combine returns None", "combine emits bytes", "combine fails"),
    *("reduce returns None", "reduce returns a text", "reduce emits two lines in one", "reduce fails"),
    *("reduce emits bytes", "reduce emits a list", "reduce exits at once"),
)


def run_wrong(comm: Comm, file: str, output: str) -> dict[str, Any]:
    """What each mistake leads to."""
    failures = {}
    for mistake in MISTAKES:
        failure = run(comm, Plan(Wrong(mistake), [file], Path(output) / mistake, maps=2, reducers=2)).failure
        if failure is not None:
            failures[mistake] = (list(failure.task), failure.record, failure.explanation, failure_text(failure))
    return failures


class Needs(Vowels):
    """A job that needs a file of its own, which only some workers have."""

    def __init__(self, file: str) -> None:
        self.file = file

    def reduce(self, key: str, values: Iterable[str]) -> Iterator[str]:
        with open(self.file) as file:
            assert file.read() == ""
        return super().reduce(key, values)


class Opens(Vowels):
    """Its reduce needs a file that does not exist."""

    def reduce(self, key: str, values: Iterable[str]) -> Iterator[str]:
        return open("absent")


class Shortens(Vowels):
    """Its input loses its end while it is read."""

    def map(self, document: str, line: str) -> Iterator[tuple[str, str]]:
        os.truncate(document, 70_000)
        return super().map(document, line)


class BrokenDisk(Disk):
    """It is full, or what has been written to it cannot be read any more."""

    def __init__(self, plan: Plan, rank: int, faults: dict[int, str]) -> None:
        super().__init__(plan, rank)
        self.fault = faults.get(rank)
        self.renamed: set[Path] = set()

    def append(self, path: Path, data: bytes) -> None:
        if self.fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().append(path, data)

    def rename(self, path: Path, name: Path) -> None:
        super().rename(path, name)
        if self.fault == "damages" or (self.fault == "damages once" and name not in self.renamed):
            for file in name.glob("region-*"):
                file.write_bytes(file.read_bytes().replace(b"quick", b"quiet"))
        self.renamed.add(name)

    def read(self, path: Path, offset: int, nbytes: int) -> bytes:
        if self.fault == "unreadable":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return super().read(path, offset, nbytes)


def run_broken(comm: Comm, file: str, output: str) -> dict[str, Any]:
    """What becomes of the job if the disk of worker 1 is broken, or it has not the file that the job needs."""
    present, absent = f"{output}/present", f"{output}/absent"
    Path(present).touch()
    found = {}
    for name, disks, needed in (
        ("full", {1: "full"}, present),
        ("unreadable", {1: "unreadable"}, present),
        ("without the file", {}, absent if comm.rank == 1 else present),
        ("damaged", {1: "damages"}, present),
        ("all damaged once", {1: "damages once", 2: "damages once"}, present),
        ("all damaged", {1: "damages", 2: "damages"}, present),
        ("all full", {1: "full", 2: "full"}, present),
        ("all without the file", {}, absent),
    ):
        job = Needs(needed)
        job.pause = 0.05  # a task takes a while, so that every worker gets some
        plan = Plan(job, [file], Path(output) / name, maps=6, reducers=4, backup=False)
        outcome = run(comm, plan, partial(BrokenDisk, faults=disks))
        found[name] = {
            "failure": outcome.failure and failure_text(outcome.failure),
            "events": [(e.what, e.kind, e.number, e.worker, str(e.detail)) for e in outcome.events],
            "claims": {claim.claim: claim.holds for claim in claims(plan, outcome)} if not outcome.failure else {},
        }
    return found


class Hangs(Vowels):
    """The first worker that meets a certain line never returns from it, the first at another is stopped by a signal; a
    third line silences everyone who meets it, and a fourth takes longer than the master waits for an answer."""

    def map(self, document: str, line: str) -> Iterator[tuple[str, str]]:
        if "The 700 quick" in line and first_time("loop"):
            while True:
                pass
        if "The 100 quick" in line and first_time("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if "The 500 quick" in line and "always" in os.environ.get("HANGS", ""):
            time.sleep(1000)
        if "The 300 quick" in line and "long" in os.environ.get("HANGS", ""):
            time.sleep(2.5)
        return super().map(document, line)


class Ends(Vowels):
    """Its map does not end as others do, at some lines that every split has."""

    thread: threading.Thread | None = None

    def map(self, document: str, line: str) -> Iterator[tuple[str, str]]:
        if "0 quick" in line:
            match os.environ["ENDS"]:
                case "thread" if not self.thread:
                    self.thread = threading.Thread(target=time.sleep, args=(1000,))
                    self.thread.start()
                case "exit":
                    ctypes.CDLL(None)._exit(0)
                case "loop":
                    while True:
                        pass
        return super().map(document, line)


def first_time(what: str) -> bool:
    """Whether this is to happen, and has not happened in any process yet."""
    try:
        open(os.environ["MARKS"] + what, "x").close()
    except (KeyError, OSError):
        return False
    return what in os.environ["HANGS"]


def make(name: str, fast: bool) -> Any:
    own = {
        "vowels": Vowels(),
        "slow vowels": SlowVowels(),
        "fails-on-a-key": FailsOnKey(),
        "lengths": Functions(emit_length, count_values),
    }
    if name in own:
        return own[name]
    kind, _, pattern = name.partition(" ")
    return load.make(kind, pattern or None, fast)


def run_all(comm: Comm, files: list[str], output: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """A case has a job, M and R, what is injected, and perhaps other fields of a plan. Reports by name of the case."""
    reports = {}
    for case in cases:
        options = dict(case)
        workers = range(min(1, comm.size - 1), comm.size)
        faults = parse(options.pop("inject", []), comm.rank, workers)
        job = make(options.pop("job"), fast=options.get("combine", True) and faults.bad is None)
        faults.poison(job)
        name = options.pop("name")
        plan = Plan(job, files, Path(output) / name, **options)
        outcome = run(comm, plan, faults.disk, faults.mailbox)
        reports[name] = {
            "stats": dict(outcome.stats),
            "counters": dict(outcome.counters),
            "bad": [[kind, record] for kind, record, _ in outcome.left_out],
            "why": sorted({why for _, _, why in outcome.left_out}),
            "sent": outcome.sent,
            "saved": outcome.saved,
            "events": [(e.what, e.kind, e.number, e.worker, str(e.detail)) for e in outcome.events],
            "claims": {claim.claim: (claim.expected, claim.counted, claim.holds) for claim in claims(plan, outcome)},
        }
    return reports


def committed_files(output: Path) -> list[Path]:
    """All that a killed job goes on with."""
    found = (*output.glob("part-*"), *output.glob(".mapreduce/*.json"), *output.glob(".mapreduce/worker-*/map-*/*"))
    return sorted(path for path in found if path.is_file())


def damage(kind: str, path: Path, other: Path, draw: random.Random) -> None:
    """Do to a file what disks and people do."""
    content = path.read_bytes()
    place = draw.randrange(max(1, len(content)))
    match kind:
        case "flip":
            path.write_bytes(content[:place] + bytes(byte ^ draw.randrange(1, 256) for byte in content[place:][:1]))
            with open(path, "ab") as file:
                file.write(content[place + 1 :])
        case "truncate":
            path.write_bytes(content[:place])
        case "empty":
            path.write_bytes(b"")
        case "append":
            path.write_bytes(content + draw.choice((b"x", b"\n", b"a\t1\n", b"\0", content)))
        case "delete":
            path.unlink()
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case "swap":
            path.write_bytes(other.read_bytes())
            other.write_bytes(content)


def run_damaged(comm: Comm, line: list[str], killed: str, folder: str, seeds: list[int]) -> dict[int, Any]:
    """For each seed: what was damaged in a copy of a killed job, why it was refused, and what came of --resume."""
    found: dict[int, Any] = {}
    for seed in seeds:
        draw = random.Random(seed)
        output, kind = (
            Path(folder, str(seed)),
            draw.choice(("flip", "truncate", "empty", "append", "delete", "pipe", "swap")),
        )
        if comm.rank == 0:
            shutil.copytree(killed, output)
            some = committed_files(output)
            groups = [[path for path in some if path.name[:4] == name] for name in ("part", "redu", "regi", "done")]
            group = draw.choice([*groups, *groups, some])
            path, other = draw.choice(group), draw.choice(draw.choice((group, some)))
            damage(kind, path, other, draw)
            found[seed] = {"damage": f"{kind} {path.relative_to(output)} {other.relative_to(output)}"}
        comm.barrier()
        plan, why = None, ""
        try:
            plan = find("mapreduce").prepared([*line, "--output", str(output), "--resume", "--json", "-"], comm).plan
        except (UsageError, Finished) as refusal:
            why = str(refusal)
        refused = any(comm.all_gather_object(plan is None))
        if plan is None or refused:
            found.setdefault(seed, {})["refused"] = why
            continue
        outcome = run(comm, plan)
        found.setdefault(seed, {}).update(
            refused=outcome.failure and failure_text(outcome.failure),
            damaged=[str(event) for event in outcome.events if event.what == "damaged"],
            claims={claim.claim: claim.holds for claim in claims(plan, outcome)} if not outcome.failure else {},
        )
    return found
