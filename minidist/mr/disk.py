"""A worker's own disk: its map output, and what it sorts. Nothing on it is safe: a lost worker's disk is lost, too.

worker-1/map-00000/region-00003      of a finished map: the pairs for reduce task 3
worker-1/map-00000/done.json             what the map has counted, and the checksums of its regions
worker-1/unfinished/                 the map under way
worker-1/runs/                       what the current reduce sorts
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from minidist.mr.files import place_in, region
from minidist.mr.plan import Plan, TaskName, TaskResult, read_result
from minidist.system.files import lock, make_own_folder, on_disk, replacing, sweep


class Disk:
    """All file operations of a worker go through this class, so that a failing disk can replace it."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.folder = plan.locals / f"worker-{rank}"
        if plan.local:
            self.lock = private_folder(plan.local, plan.locals.name, plan.prefix)
        make_own_folder(self.folder)
        self.moved: Counter[str] = Counter()  # bytes of files, by what they are and whether they were read or written
        self.adopt(plan, rank)

    def adopt(self, plan: Plan, rank: int) -> None:
        """On --resume, take over the maps of workers that are no longer here: there are fewer workers now, or they are
        on other machines. The first worker that sees this disk does it."""
        ranks = range(min(1, len(plan.hosts) - 1), len(plan.hosts))
        here = [other for other in ranks if not plan.local or plan.hosts[other] == plan.hosts[rank]]
        if rank != here[0]:
            return
        for folder in plan.locals.glob("worker-*/"):
            if folder.name not in {f"worker-{other}" for other in here}:
                for entry in folder.glob("map-*"):
                    with suppress(OSError):  # it is here already
                        entry.rename(self.folder / entry.name)
                self.remove(folder)

    def kept_results(self, reducers: int) -> dict[int, TaskResult | None]:
        """The results of the maps whose output is here from an earlier run; None if it is damaged."""
        results = {}
        for entry in self.folder.iterdir():
            kind, _, number = entry.name.partition("-")
            result = None
            if kind == "map" and number.isdecimal():
                regions = (region(entry, r) for r in range(reducers))
                result = results[int(number)] = read_result(entry / "done.json", ("map", int(number)), regions)
            if result is None:
                self.remove(entry)
        return results

    def fresh(self, name: str) -> Path:
        """An empty folder."""
        self.remove(self.folder / name)
        with on_disk("write", self.folder / name):
            (self.folder / name).mkdir()
        return self.folder / name

    def append(self, path: Path, data: bytes) -> None:
        with on_disk("write", path), open(path, "ab") as file:
            file.write(data)
        self.moved["regions written"] += len(data)

    def write(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Write the pieces, which the user's functions make meanwhile: their errors are not the disk's."""
        with on_disk("write", path):
            file = open(path, "wb")  # noqa: SIM115  (closed below)
        try:
            for piece in pieces:
                with on_disk("write", path):
                    file.write(piece)
        finally:  # even if the reduce is abandoned
            with on_disk("write", path), file:
                file.flush()
                self.moved["output written"] += place_in(file)

    def note(self, path: Path, task: TaskName, result: TaskResult) -> None:
        """Write what a task has counted, unsynced: a task whose note is lost is done again. Another worker may write
        the same note."""
        text = result.note(task)
        with on_disk("write", path), replacing(str(path), synced=False) as file:
            file.write(text.encode())
        self.moved["notes written"] += len(text)  # ASCII

    def read(self, path: Path, offset: int, nbytes: int) -> bytes:
        """Read bytes of a file. Raises FileFailed unless all of them are there."""
        with on_disk("read", path), open(path, "rb") as file:
            file.seek(offset)
            data = file.read(nbytes)
            self.moved["regions read"] += len(data)
            self.moved["read ahead"] += place_in(file) - offset - len(data)
            if len(data) < nbytes:
                raise OSError(f"it ends after {offset + len(data)} bytes")
        return data

    def rename(self, path: Path, name: Path) -> None:
        """Give a file or folder its name, atomically: it exists whole or not at all."""
        with on_disk("write", name):
            os.replace(path, name)

    def remove(self, path: Path) -> None:
        """Remove a folder and all that is in it."""
        shutil.rmtree(path, ignore_errors=True)


def private_folder(parent: Path, name: str, prefix: str) -> int:
    """Make, or find, a private folder of this user, and lock it while this process lives; returns the lock.

    This user's folders from earlier runs of the same job are removed, unless a process still works in them.
    """
    make_own_folder(parent / name)
    held = lock(parent / name, shared=True)
    sweep(parent, prefix)
    return held
