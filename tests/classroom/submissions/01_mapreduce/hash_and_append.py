"""The two mistakes that the notebook warns of."""
# loses: partition, commit, twice
# says: Is that hash\(\)\? Python's hash of a text is another number in every process
# says: When reduce_task is done by two workers, one after the other: everything is in it twice

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

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


def partition(key, reducers):
    return hash(key) % reducers


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


def reduce_task(job, runs, path, worker):
    with open(path, "a", encoding="utf-8") as file:
        for key, values in merge([pairs_of(run) for run in runs]):
            for text in job.reduce(key, values):
                print(key, text, sep="\t", file=file)
