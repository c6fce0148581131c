"""Two functions are written, the others are still to come."""
# keeps: partition, map_task, map_regions, map_sorted, map_combine
# says: half_finished.py:\d+ in shuffle is not written yet: it raises NotImplementedError

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from minidist.mpi.comm import Comm

Pair = tuple[str, str]


def pairs_of(run: str) -> Iterator[Pair]:
    for line in run.split("\n")[:-1]:
        key, value = line.split("\t")
        yield key, value


def send_text(comm: Comm, text: str, dest: int) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    comm.send(np.array([data.size]), dest)
    comm.send(data, dest)


def receive_text(comm: Comm, source: int) -> str:
    size = np.empty(1, np.int64)
    comm.recv(size, source)
    data = np.empty(size[0], np.uint8)
    comm.recv(data, source)
    return data.tobytes().decode()


def partition(key: str, reducers: int) -> int:
    return crc32(key.encode()) % reducers


def map_task(job: Any, document: str, lines: Iterable[str], reducers: int) -> list[str]:
    pairs = [pair for line in lines for pair in job.map(document, line)]
    values: dict[str, list[str]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    if job.combine is not None:
        values = {key: list(job.combine(key, of_key)) for key, of_key in values.items()}
    regions = [""] * reducers
    for key in sorted(values):
        r = partition(key, reducers)
        for value in values[key]:
            regions[r] += f"{key}\t{value}\n"
    return regions


def shuffle(comm: Comm, regions: Sequence[str]) -> list[str]:
    raise NotImplementedError


def merge(runs: Iterable[Iterable[Pair]]) -> Iterator[tuple[str, list[str]]]:
    raise NotImplementedError


def reduce_task(job: Any, runs: Iterable[str], path: Path, worker: int) -> None:
    raise NotImplementedError
