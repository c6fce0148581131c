"""A worker's own disk: its map output, and what it sorts. Nothing on it is safe: when the worker is lost, so is it.

worker-1/map-00000/region-00003      of a finished map: the pairs for reduce task 3
worker-1/map-00000/done.json             and what the map has counted
worker-1/unfinished/                 the map that is being done
worker-1/runs/                       what the present reduce sorts
"""

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from minidist.mr.files import region
from minidist.mr.plan import Plan, Result, read_result


class Disk:
    """What a worker does to files goes through here, so that a disk that fails can take its place."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.folder = plan.locals / f"worker-{rank}"
        if not plan.resume:
            self.remove(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if plan.resume:
            self.adopt(plan, rank)

    def adopt(self, plan: Plan, rank: int) -> None:
        """Take over the maps of workers that are no longer here: there are fewer now, or they are on other machines.

        Of the workers that see this disk, the first does it.
        """
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

    def held(self, reducers: int) -> dict[int, Result]:
        """The results of the maps whose output is here from before, as long as it was."""
        results = {}
        for entry in self.folder.iterdir():
            result = read_result(entry / "done.json")
            if result and result.sizes == [self.size(region(entry, r)) for r in range(reducers)]:
                results[int(entry.name.removeprefix("map-"))] = result
            else:
                self.remove(entry)
        return results

    def fresh(self, name: str) -> Path:
        """An empty folder."""
        self.remove(self.folder / name)
        (self.folder / name).mkdir()
        return self.folder / name

    def append(self, path: Path, lines: Iterable[str]) -> None:
        with open(path, "ab") as file:
            file.write("".join(lines).encode())

    def write(self, path: Path, lines: Iterable[str]) -> None:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)

    def note(self, path: Path, result: Result) -> None:
        """What a task has counted; others who note the same do not mind."""
        unfinished = path.with_name(f"{path.name}.{self.folder.name}")
        unfinished.write_text(json.dumps(result))
        os.replace(unfinished, path)

    def read(self, path: Path, offset: int, nbytes: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(nbytes)

    def size(self, path: Path) -> int:
        """Bytes; 0 if there is no such file."""
        return path.stat().st_size if path.exists() else 0

    def rename(self, path: Path, name: Path) -> None:
        """Give a file or folder its name: it is there as a whole or not at all."""
        os.replace(path, name)

    def remove(self, path: Path) -> None:
        """A folder and all that is in it."""
        shutil.rmtree(path, ignore_errors=True)
