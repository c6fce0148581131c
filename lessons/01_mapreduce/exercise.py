"""Exercise 01: MapReduce, without its master: map, combine, partition, shuffle, merge, reduce, commit.

Fill in the five functions; `pytest lessons/01_mapreduce` says how many points they earn. There are N ranks. Each does
one map task, and reduce task r is done on rank r. A *job* says what is counted or computed:

    job.map(document, line)     returns the pairs (key, value) for a line of a document; both are texts
    job.combine(key, values)    returns a list of values that replaces these values of a key; None if there is none
    job.reduce(key, values)     returns the texts that follow the key in the output, one in each line

The result may be a list or a generator: go through it only once. A key or value contains no tab and no line feed.

Between tasks, pairs are sent as text. A *region* is all that one map task has for one reduce task, "key<TAB>value<LF>"
for each pair. A region that has arrived is called a *run*: it is already sorted.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

Pair = tuple[str, str]  # (key, value)


def pairs_of(run: str) -> Iterator[Pair]:
    """Given: the pairs in a text, one after another."""
    for line in run.split("\n")[:-1]:
        key, value = line.split("\t")
        yield key, value


def send_text(comm: Comm, text: str, dest: int) -> None:
    """Given: send the number of bytes, and then the bytes."""
    data = np.frombuffer(text.encode(), np.uint8)
    comm.send(np.array([data.size]), dest)
    comm.send(data, dest)


# ---- here is room for receive_text, as you wrote it in the notebook --------------------------------------------------


# ---- what is asked for -----------------------------------------------------------------------------------------------


def partition(key: str, reducers: int) -> int:
    """The reduce task of a key, from 0 to reducers - 1: the crc32 of its bytes in UTF-8, modulo the number of reducers.

    It is the same on every rank, today and tomorrow. zlib.crc32 computes it.
    """
    raise NotImplementedError


def map_task(job: Any, document: str, lines: Iterable[str], reducers: int) -> list[str]:
    """Call job.map for every line, and return the regions: for each reduce task one text, "" if there is nothing.

    A pair is in the region that `partition` returns for its key. A region is in increasing order of keys, as Python
    compares texts; values of the same key stay in the order in which map emitted them.
    If job.combine is not None, call it once for each key, with a list of all the key's values; its result replaces
    these values.
    """
    raise NotImplementedError


def shuffle(comm: Comm, regions: Sequence[str]) -> list[str]:
    """Send regions[r] to rank r, for every r; return what this rank gets: a run from every rank, in order of ranks.

    A rank's run from itself is its own region, and needs no message. To every other rank it sends the bytes of one
    region and a length, in no more than two messages. A send may wait until the other rank receives: make sure that it
    does.
    """
    raise NotImplementedError


def merge(runs: Iterable[Iterable[Pair]]) -> Iterator[tuple[str, list[str]]]:
    """All keys in increasing order, each once, with the list of its values: first those of the first run, and so on.

    Each run is in increasing order of keys, and you can go through it only once. Yield a key before you read on: do not
    read more than one pair beyond this key's pairs from any run. (A run may be too large for this machine's memory.)
    """
    raise NotImplementedError


def reduce_task(job: Any, runs: Iterable[str], path: Path, worker: int) -> None:
    """Merge the runs, call job.reduce for every key, and write "key<TAB>text<LF>" for every text to the file `path`.

    The file must appear under its name only when it is complete: until then, write to another name in the same folder,
    and rename it in the end. If job.reduce raises an exception, let it pass, and leave `path` as it was.
    The same task may be done more than once, by the same worker after a failure, or by several workers at the same
    time; `worker` is this worker's number. In the end there is one complete output.
    """
    raise NotImplementedError
