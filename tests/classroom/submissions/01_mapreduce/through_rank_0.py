"""Rank 0 gets everything, and hands it out again."""
# loses: shuffle_bytes
# says: rank 0 sends \d+ messages to rank 1; a length and a region are two|rank 0 sends [\d,]+ bytes

import heapq
import os
from collections.abc import Iterable, Iterator
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


def shuffle(comm, regions):
    if comm.rank > 0:
        send_text(comm, "|".join(regions), 0)
        return receive_text(comm, 0).split("|")
    theirs = [regions] + [receive_text(comm, source).split("|") for source in range(1, comm.size)]
    for dest in range(1, comm.size):
        send_text(comm, "|".join(of_rank[dest] for of_rank in theirs), dest)
    return [of_rank[0] for of_rank in theirs]


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
