"""Exercise 01: MapReduce, without its master: map, combine, partition, shuffle, merge, reduce, commit.

Fill in the five functions; `pytest lessons/01_mapreduce` says how many points they earn. There are N ranks. Each does
one map task, and reduce task r is done on rank r. What is counted, or whatever else is done, is up to a *job*:

    job.map(document, line)     the pairs (key, value) that a line of a document makes; both are texts
    job.combine(key, values)    a list of values in place of these values of a key; None if the job has no combine
    job.reduce(key, values)     the texts that stand behind the key in the output, one a line

What they return may be a list or a generator: go through it once. A key or value has no tab and no line feed in it.

Between tasks, pairs travel as text: a *region* is all that one map task has for one reduce task, "key<TAB>value<LF>"
for each pair. Where a region arrives it is called a *run*: it is sorted already.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

Pair = tuple[str, str]  # (key, value)


def pairs_of(run: str) -> Iterator[Pair]:
    """Given: the pairs in a text, one after the other."""
    for line in run.split("\n")[:-1]:
        key, value = line.split("\t")
        yield key, value


def send_text(comm: Comm, text: str, dest: int) -> None:
    """Given: how many bytes come, and then the bytes."""
    data = np.frombuffer(text.encode(), np.uint8)
    comm.send(np.array([data.size]), dest)
    comm.send(data, dest)


# ---- here is room for receive_text, as you wrote it in the notebook --------------------------------------------------


# ---- what is asked for -----------------------------------------------------------------------------------------------


def partition(key: str, reducers: int) -> int:
    """The reduce task of a key, from 0 to reducers - 1: the crc32 of its bytes in UTF-8, modulo the number of reducers.

    The same on every rank, today and tomorrow. zlib.crc32 computes it.
    """
    raise NotImplementedError


def map_task(job: Any, document: str, lines: Iterable[str], reducers: int) -> list[str]:
    """Call job.map for every line, and return the regions: for each reduce task one text, "" if there is nothing.

    A pair is in the region that `partition` names for its key. A region is in increasing order of keys, as Python
    compares texts; values of the same key stay in the order in which map emitted them.
    If there is a job.combine, it is called once for each key, with a list of all its values; what it returns takes
    their place.
    """
    raise NotImplementedError


def shuffle(comm: Comm, regions: Sequence[str]) -> list[str]:
    """Send regions[r] to rank r, for every r; return what this rank gets: a run from every rank, in order of ranks.

    The run from itself is its own region, and needs no message. To every other rank go the bytes of one region and a
    length, in no more than two messages. A send may wait until somebody receives: see to it that somebody does.
    """
    raise NotImplementedError


def merge(runs: Iterable[Iterable[Pair]]) -> Iterator[tuple[str, list[str]]]:
    """All keys in increasing order, each once, with the list of its values: first those of the first run, and so on.

    Each run is in increasing order of keys, and can be gone through once. Yield a key before you have read on: from no
    run must more than one pair beyond this key's be read. (A run may be too large for this machine's memory.)
    """
    raise NotImplementedError


def reduce_task(job: Any, runs: Iterable[str], path: Path, worker: int) -> None:
    """Merge the runs, call job.reduce for every key, and leave "key<TAB>text<LF>" for every text in the file `path`.

    The file appears under its name only when it is complete: until then, write under another name in the same folder,
    and rename it then. If job.reduce raises, let it, and let `path` be as it was.
    The same task may be done more than once, by the same worker after it has failed or by several workers (numbers)
    at the same time. In the end there is one complete output.
    """
    raise NotImplementedError
