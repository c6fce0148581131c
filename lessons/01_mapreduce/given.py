"""Lesson 01's own functions, which the notebook uses where a gap is open, and its model answer: try before you look.

The chapter, minidist/mapreduce.py, does the same a piece at a time, on files, while messages come in and workers fail.
"""

import heapq
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from minidist.mpi.comm import Comm

Pair = tuple[str, str]  # (key, value)
KEY = itemgetter(0)


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


def pairs_of(run: str) -> Iterator[Pair]:
    for line in run.split("\n")[:-1]:
        key, value = line.split("\t")
        yield key, value


def send_text(comm: Comm, text: str, dest: int) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    comm.send(np.array([data.size]), dest)
    comm.send(data, dest)


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


# ---- what the notebook counts with -----------------------------------------------------------------------------------


def ask_processes(words: Sequence[str], processes: int, reducers: int) -> list[dict[str, int]]:
    """For each of several Python processes, started one by one: its hash(word) % reducers for each word."""
    program = "import sys; print(*[hash(word) % int(sys.argv[1]) for word in sys.argv[2:]])"
    answers = []
    for process in range(processes):
        environment = {**os.environ, "PYTHONHASHSEED": str(process + 1)}
        command = [sys.executable, "-c", program, str(reducers), *words]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        answers.append(dict(zip(words, map(int, said.split()), strict=True)))
    return answers


def split_text(path: str, pieces: int) -> list[tuple[int, int]]:
    """The begin and end of each piece of a text, cut where a line begins."""
    from minidist.mapreduce import split

    return [(piece.start, piece.end) for [piece] in split([(path, os.path.getsize(path))], pieces)]


def count_bytes(pairs: Iterable[Pair]) -> int:
    """The bytes of pairs as text, by the formula: for each the key, a tab, the value, a line feed."""
    from minidist.papers.mapreduce import pair_bytes

    return pair_bytes(*zip(*pairs, strict=True))


def combine_words(pairs: Iterable[Pair]) -> list[Pair]:
    """A combiner's result for the pairs of one rank: each word once, with its count."""
    return [(word, str(count)) for word, count in Counter(word for word, _ in pairs).items()]


def compute_regions(job: Any, document: str, lines_of: Callable[[int], list[str]], combine: bool = True) -> int:
    """Bytes of all regions of four map tasks of a job, by the formula."""
    total = 0
    for rank in range(4):
        values: dict[str, list[str]] = {}
        for line in lines_of(rank):
            for key, value in job.map(document, line):
                values.setdefault(key, []).append(value)
        combined = [(key, job.combine(key, of_key) if combine else of_key) for key, of_key in values.items()]
        total += count_bytes((key, value) for key, of_key in combined for value in of_key)
    return total


def run_chapter(comm: Comm, job: Any, document: str, output: Path) -> tuple[dict[str, int], Path]:
    """The chapter's job with four maps and four reduces: its master's counts, and this rank's output."""
    from minidist.mapreduce import run
    from minidist.mr.plan import Plan

    plan = Plan(job, [document], output, reducers=4, maps=4, backup=False, timeout=60)
    outcome = run(comm, plan)
    return {"chapter": outcome.fetched, "decisions": outcome.count("assigned")}, plan.part(comm.rank)


def add_ranks(of_ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A job's results on all ranks: bytes are added, outputs are the same if each rank's is, the master is rank 0."""
    return {
        **of_ranks[0],
        "in regions": sum(rank["in regions"] for rank in of_ranks),
        "sent": sum(rank["sent"] for rank in of_ranks),
        "same": all(rank["same"] for rank in of_ranks),
    }
