"""MapReduce: two functions from the user; splitting, shuffling, sorting and surviving failures from the system.

    mpirun -n 4 python -m minidist.mapreduce wordcount FILE... --reducers 4 --output DIR
    mpirun -n 4 python -m minidist.mapreduce wordcount FILE... --output DIR --inject stop:2:map:2
    mpirun -n 4 python -m minidist.mapreduce grep FILE... --pattern 'def \\w+' --output DIR
    mpirun -n 4 python -m minidist.mapreduce --job mymodule:MyJob FILE... --output DIR

Dean & Ghemawat, "MapReduce: Simplified Data Processing on Large Clusters", OSDI 2004, section 3.

Rank 0 is the master, the others are workers; a single rank is both. The input is cut into M splits. A map task calls
`map` for every record of a split and leaves the pairs in R region files on its worker's own disk. A reduce task fetches
one region of every map from the workers that hold them, by messages, sorts the pairs, calls `reduce` for every key, and
renames its output file into place. The master hands a task to whichever worker is free: M + R decisions make a job.

A worker that does not answer is given up, and its map tasks, finished ones too, are done again elsewhere: their output
was on its disk. (Here it only stops answering, see --inject. When a process dies, MPICH ends the whole job; --resume
then goes on from what was committed.) Output depends on nothing but the input: however often a task is done, and by
whom, the result is the same, and the first one counts.
"""

import itertools
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from minidist.mpi.comm import Comm
from minidist.mpi.mailbox import Mailbox
from minidist.mpi.run import run as run_chapter
from minidist.mr.files import (
    KEY,
    PAIR_BYTES,
    Block,
    ExternalSort,
    Pair,
    blocks,
    region,
    sample,
    write_pair,
)
from minidist.mr.master import Master
from minidist.mr.plan import Plan, prepare, write_json
from minidist.mr.report import Outcome, report
from minidist.mr.shuffle import IDLE, Abandoned, Attempt, Peer
from minidist.papers.mapreduce import pair_bytes

VALUE_BYTES = 60  # of Python objects around the characters of a value


def run(comm: Comm, plan: Plan) -> Outcome:
    """Do the job. All ranks must call, with the same plan; what the master saw is returned on every rank."""
    begun, lines = time.monotonic(), []
    sent_before = comm.ledger.by_phase().get("shuffle", {"bytes": 0})["bytes"]
    if comm.rank == 0:
        plan.begin()
        lines = sample(plan.files, plan.sampled)
    lines = comm.broadcast_object(lines)
    if plan.sampled:
        plan.job.plan(lines, plan.reducers)

    to_master, to_workers = Mailbox(comm, 0), Mailbox(comm, 1)
    workers = range(min(1, comm.size - 1), comm.size)
    roles: list[Master | Worker] = []
    if comm.rank == 0:
        roles.append(master := Master(plan, workers, to_master, to_workers))
    if comm.rank in workers:
        roles.append(Worker(plan, comm.rank, to_master, to_workers))
    with comm.phase("shuffle"):  # all the payload there is: regions on their way to reducers
        while not all(role.finished for role in roles):
            if not any([role.step() for role in roles]):
                time.sleep(IDLE)
        to_master.close()
        to_workers.close()
    plan.clear(comm.rank)
    sent = comm.all_gather_object(comm.ledger.by_phase().get("shuffle", {"bytes": 0})["bytes"] - sent_before)
    outcome: Outcome = comm.broadcast_object(master.outcome() if comm.rank == 0 else None)
    if comm.rank == 0:
        plan.end()
    outcome.sent, outcome.seconds = sent, time.monotonic() - begun
    return outcome


# ---- a worker --------------------------------------------------------------------------------------------------------


class BadRecord(Exception):
    """The user's function failed on this record."""


class Worker(Peer):
    """Does the tasks that the master gives it. How it gets them, and regions from its peers, see `Peer`."""

    def work(self, attempt: Attempt) -> None:
        """Do a task, and tell the master how it went."""
        outer, self.job.counters = getattr(self.job, "counters", None), attempt.counters
        try:
            sizes = self.map(attempt) if attempt.name[0] == "map" else self.reduce(attempt)
        except BadRecord as error:
            explanation = "".join(traceback.format_exception(error.__cause__))
            self.tell_master("failed", attempt.name, error.args[0], explanation)
        except Abandoned:
            self.tell_master("dropped", attempt.name, attempt.progress)
        else:
            self.tell_master("pong", self.sent)
            self.tell_master("done", attempt.name, (sizes, attempt.stats, attempt.counters))
        self.job.counters = outer  # of the reduce that waits for this map, if it is so
        self.reduces = [reduce for reduce in self.reduces if reduce is not attempt]

    # -- map: steps 3 and 4 of section 3.1 --

    def map(self, attempt: Attempt) -> list[int]:
        """Turn a split into R region files; their sizes. The folder gets its name when all of it is there."""
        stops = self.plan.faults.begin("map")
        pieces = self.plan.splits[attempt.name[1]]
        attempt.total = sum(piece.end - piece.start for piece in pieces)
        unfinished = self.folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        buffer: dict[str, list[str]] = {}  # the values of each key
        held = 0  # bytes, about
        for block in blocks(pieces, self.plan.block):
            for key, value in self.pairs(attempt, block):
                if key in buffer:
                    buffer[key].append(value)
                else:
                    buffer[key] = [value]
                    held += 2 * len(key) + PAIR_BYTES
                held += len(value) + VALUE_BYTES
                if held > self.plan.memory:
                    self.spill(attempt, buffer, unfinished)
                    buffer, held = {}, 0
            self.breathe(attempt, late=True)
            attempt.stats["input bytes"] += len(block.data)
            attempt.progress = attempt.stats["input bytes"] / attempt.total
        if stops:
            self.stop_answering()
        self.spill(attempt, buffer, unfinished)
        files = [region(unfinished, r) for r in range(self.plan.reducers)]
        sizes = [file.stat().st_size if file.exists() else 0 for file in files]
        write_json(unfinished / "done.json", (sizes, attempt.stats, attempt.counters))
        if not self.map_folder(attempt.name[1]).exists():  # done before, by a worker that was given up too early
            os.rename(unfinished, self.map_folder(attempt.name[1]))
        return sizes

    def pairs(self, attempt: Attempt, block: Block) -> Iterable[tuple[str, str]]:
        """What the user's map makes of some lines: of all of them at once, if it can, or of each in turn."""
        text, replaced = block.text()
        attempt.stats["undecodable sequences"] += replaced
        if self.plan.whole_blocks and not attempt.bad:
            before = attempt.counters.copy()
            try:
                self.plan.faults.check(text)
                pairs, n, nbytes = self.job.map_block(block.document, text)
            except Exception:  # the records one by one will show which of them it was
                attempt.counters.clear()
                attempt.counters.update(before)
            else:
                attempt.stats.update({"pairs": n, "bytes of pairs": nbytes + 2 * n, "records": text.count("\n")})
                return pairs
        return self.pairs_of_records(attempt, block)

    def pairs_of_records(self, attempt: Attempt, block: Block) -> Iterator[tuple[str, str]]:
        for offset, line in block.records():
            record = (block.document, offset)
            if record in attempt.bad:
                attempt.stats["records left out"] += 1
                continue
            try:
                self.plan.faults.check(line)
                pairs = iter(self.job.map(block.document, line))
                while some := list(itertools.islice(pairs, 1000)):  # one line may be long
                    attempt.stats["pairs"] += len(some)
                    attempt.stats["bytes of pairs"] += pair_bytes(*zip(*some, strict=True))
                    yield from some
            except Exception as error:
                raise BadRecord(record) from error
            attempt.stats["records"] += 1
            attempt.progress = (attempt.stats["input bytes"] + offset - block.offset) / attempt.total
            self.breathe(attempt)

    def spill(self, attempt: Attempt, buffer: dict[str, list[str]], folder: Path) -> None:
        """Combine the values of each key, and append its pairs to the file of its region (section 4.3)."""
        regions: list[list[str]] = [[] for _ in range(self.plan.reducers)]
        pairs = [
            (key, value)
            for key, values in buffer.items()
            for value in (self.job.combine(key, values) if self.plan.combine and len(values) > 1 else values)
        ]
        for key, value in pairs:
            regions[self.plan.partition(key)].append(write_pair(key, value))
        for r, lines in enumerate(regions):
            if lines:
                with open(region(folder, r), "ab") as file:
                    file.write("".join(lines).encode())
                self.plan.faults.at("region")
        if pairs:
            attempt.stats["combined pairs"] += len(pairs)
            attempt.stats["bytes of combined pairs"] += pair_bytes(*zip(*pairs, strict=True))

    # -- reduce: steps 5 and 6 --

    def reduce(self, attempt: Attempt) -> list[int]:
        """Fetch region r of every map, sort, reduce key by key, and commit."""
        r = attempt.name[1]
        stops = self.plan.faults.begin("reduce")
        unfinished = self.plan.folder / f"reduce-{r:05}.worker-{self.rank}"
        sorter = ExternalSort(self.folder / "runs", self.plan.memory)
        try:
            for piece in self.fetch(attempt):
                sorter.add(piece)
            if stops:
                self.stop_answering()
            with open(unfinished, "w", encoding="utf-8", newline="\n") as file:
                file.writelines(self.lines(attempt, sorter.merged()))
                self.plan.faults.at("write")
            self.breathe(attempt, late=True)
        finally:
            shutil.rmtree(sorter.folder, ignore_errors=True)
            self.asked, self.arrived = {}, {}  # what still comes, nobody waits for
        attempt.stats.update({"pairs reduced": sorter.count, "runs on disk": sorter.written})
        self.plan.commit(r, unfinished, ([], attempt.stats, attempt.counters))
        self.plan.faults.at("commit")
        return []

    def lines(self, attempt: Attempt, pairs: Iterator[Pair]) -> Iterator[str]:
        """The output: the user's reduce for one key after another."""
        count = 0
        for key, of_key in itertools.groupby(pairs, KEY):
            self.breathe(attempt)
            if key in attempt.bad:
                continue
            try:
                for value in self.job.reduce(key, (value for _, value in of_key)):
                    line = key if value is None else f"{key}\t{value}"
                    if "\n" in line:
                        raise ValueError(f"a line break cannot stand in a line of output: {line!r}")
                    yield line + "\n"
                    count += 1
            except OSError:  # it is the disk that failed, and not the function
                raise
            except Exception as error:
                raise BadRecord(key) from error
        attempt.stats["lines of output"] = count


def main(comm: Comm, prepared: tuple[Plan, str | None]) -> int:
    plan, json = prepared
    return report(comm.rank, plan, run(comm, plan), json)


if __name__ == "__main__":
    run_chapter(prepare=lambda comm: prepare(__doc__ or "", sys.argv[1:], comm.rank, comm.size), main=main)
