"""Every message is as long as the longest text that may come; then no length need be sent."""
# loses: shuffle_bytes
# says: rank 0 sends 12,288 bytes, at pads_to_the_largest.py:\d+\. Its regions for other ranks are [\d,]+ bytes

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


def send_text(comm, text, dest):
    padded = np.zeros(4096, np.uint8)
    data = np.frombuffer(text.encode(), np.uint8)
    padded[: data.size] = data
    comm.send(padded, dest)


def receive_text(comm, source):
    data = np.empty(4096, np.uint8)
    comm.recv(data, source)
    return data.tobytes().rstrip(b"\0").decode()


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
