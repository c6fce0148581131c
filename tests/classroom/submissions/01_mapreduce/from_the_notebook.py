"""The notebook's functions as they are: words alone are counted, and runs are lists."""
# loses: map_task, map_combine, merge_slowly
# says: The pair \('[\wé]+', 'a.txt:\d+'\) is missing
# says: When merge yields the key '\w+', it has read \d+ pairs of run \d

import heapq
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
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
    pairs = [(word, "1") for line in lines for word in line.split()]
    regions = [""] * reducers
    for word, count in sorted(pairs):
        regions[partition(word, reducers)] += f"{word}\t{count}\n"
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


def merge(runs):
    together = heapq.merge(*runs, key=lambda pair: pair[0])
    return [(key, [value for _, value in pairs]) for key, pairs in groupby(together, lambda pair: pair[0])]


def reduce_task(job: Any, runs: Iterable[str], path: Path, worker: int) -> None:
    own = path.parent / f".{path.name}.{worker}"
    with own.open("w", encoding="utf-8", newline="\n") as file:
        for key, values in merge(pairs_of(run) for run in runs):
            for text in job.reduce(key, values):
                file.write(f"{key}\t{text}\n")
    os.replace(own, path)
