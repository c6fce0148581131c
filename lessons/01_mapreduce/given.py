"""What lesson 01's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

Pair = tuple[str, str]  # (key, value)
KEY = itemgetter(0)


def pairs_of(run: str) -> Iterator[Pair]:
    for line in run.split("\n")[:-1]:
        key, value = line.split("\t")
        yield key, value


def send_text(comm: Comm, text: str, dest: int) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    comm.send(np.array([data.size]), dest)
    comm.send(data, dest)


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
