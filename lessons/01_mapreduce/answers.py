"""Lesson 01's own functions, which the notebook uses where a gap is open, and its model answer: try before you look.

The chapter, minidist/mapreduce.py, does the same a piece at a time, on files, while messages come in and workers fail.
"""

import heapq
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from given import KEY, Pair, pairs_of, send_text

from minidist.mpi.comm import Comm

# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


def receive_text(comm: Comm, source: int) -> str:
    length = np.empty(1, np.int64)
    comm.recv(length, source)
    data = np.empty(length[0], np.uint8)
    comm.recv(data, source)
    return data.tobytes().decode()


def region_of(key: str, reducers: int) -> int:
    return crc32(key.encode()) % reducers


def in_turns(comm: Comm, texts: Sequence[str]) -> list[str]:
    received = []
    for sender in range(comm.size):
        if comm.rank == sender:
            for dest in range(comm.size):
                if dest != sender:
                    send_text(comm, texts[dest], dest)
            received.append(texts[sender])
        else:
            received.append(receive_text(comm, sender))
    return received


def merge_runs(runs: Sequence[Sequence[Pair]]) -> list[tuple[str, list[str]]]:
    together = heapq.merge(*runs, key=lambda pair: pair[0])
    return [(key, [value for _, value in pairs]) for key, pairs in groupby(together, lambda pair: pair[0])]


def commit(lines: Iterable[str], path: Path, worker: int) -> None:
    unfinished = path.with_name(f"{path.name}.worker-{worker}")
    with open(unfinished, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
    os.replace(unfinished, path)


# ---- the exercise ----------------------------------------------------------------------------------------------------


def partition(key: str, reducers: int) -> int:
    return crc32(key.encode()) % reducers


def map_task(job: Any, document: str, lines: Iterable[str], reducers: int) -> list[str]:
    values: dict[str, list[str]] = {}
    for line in lines:
        for key, value in job.map(document, line):
            values.setdefault(key, []).append(value)
    regions: list[list[str]] = [[] for _ in range(reducers)]
    for key in sorted(values):
        combined = job.combine(key, values[key]) if job.combine else values[key]
        regions[partition(key, reducers)] += [f"{key}\t{value}\n" for value in combined]
    return ["".join(region) for region in regions]


def shuffle(comm: Comm, regions: Sequence[str]) -> list[str]:
    runs = []
    for sender in range(comm.size):
        if comm.rank == sender:
            for dest in range(comm.size):
                if dest != sender:
                    send_text(comm, regions[dest], dest)
            runs.append(regions[sender])
        else:
            runs.append(receive_text(comm, sender))
    return runs


def merge(runs: Iterable[Iterable[Pair]]) -> Iterator[tuple[str, list[str]]]:
    for key, pairs in groupby(heapq.merge(*runs, key=KEY), KEY):
        yield key, [value for _, value in pairs]


def reduce_task(job: Any, runs: Iterable[str], path: Path, worker: int) -> None:
    unfinished = path.with_name(f"{path.name}.worker-{worker}")
    with open(unfinished, "w", encoding="utf-8", newline="\n") as file:
        for key, values in merge([pairs_of(run) for run in runs]):
            for text in job.reduce(key, values):
                file.write(f"{key}\t{text}\n")
    os.replace(unfinished, path)
