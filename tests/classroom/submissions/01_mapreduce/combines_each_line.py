"""The combiner sees the values of a line, not those of the task."""
# loses: map_combine
# says: map emits \d pairs with the key '[\wé]+'; combine, called once with all these values, returns \d, and \d are in the regions

import heapq
import os
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


def map_task(job, document, lines, reducers):
    pairs = []
    for line in lines:
        of_line = {}
        for key, value in job.map(document, line):
            of_line.setdefault(key, []).append(value)
        for key, values in of_line.items():
            pairs += [(key, value) for value in (job.combine(key, values) if job.combine else values)]
    regions = [[] for _ in range(reducers)]
    for pair in sorted(pairs, key=lambda pair: pair[0]):
        regions[partition(pair[0], reducers)].append("\t".join(pair) + "\n")
    return ["".join(region) for region in regions]


def shuffle(comm: Comm, regions: Sequence[str]) -> list[str]:
    runs = list(regions)
    for sender in range(comm.size):
        if sender != comm.rank:
            runs[sender] = receive_text(comm, sender)
            continue
        for dest in range(comm.size):
            if dest != comm.rank:
                send_text(comm, regions[dest], dest)
    return runs


def merge(runs: Iterable[Iterable[Pair]]) -> Iterator[tuple[str, list[str]]]:
    key, values = "", list[str]()
    for following, value in heapq.merge(*runs, key=lambda pair: pair[0]):
        if values and following != key:
            yield key, values
            values = []
        key = following
        values.append(value)
    if values:
        yield key, values


def reduce_task(job: Any, runs: Iterable[str], path: Path, worker: int) -> None:
    own = path.parent / f".{path.name}.{worker}"
    with own.open("w", encoding="utf-8", newline="\n") as file:
        for key, values in merge(pairs_of(run) for run in runs):
            for text in job.reduce(key, values):
                file.write(f"{key}\t{text}\n")
    os.replace(own, path)
