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
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minidist import papers
from minidist.mapreduce_files import (
    KEY,
    PAIR_BYTES,
    Block,
    ExternalSort,
    Pair,
    blocks,
    region,
    sample,
    write_pair,
    write_whole,
)
from minidist.mapreduce_master import Master, TaskName
from minidist.mapreduce_plan import Plan, prepare
from minidist.mapreduce_report import Outcome, report
from minidist.mpi.comm import Comm
from minidist.mpi.mailbox import Mailbox
from minidist.mpi.run import run as run_chapter

PIECE, WINDOW = 1 << 20, 8  # a reducer asks for so many bytes of a region at a time, and has so many requests under way
IDLE = 0.001  # seconds of sleep for a rank that has nothing to do, so that it leaves the core to one that has
BREATH = 0.005  # seconds after which a rank at work looks whether someone wants something of it
VALUE_BYTES = 60  # of Python objects around the characters of a value
NOWHERE = -1  # where a region is that was lost with its worker
Place = tuple[int, int, int]  # of a piece: reduce r, map m, offset in the region


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


@dataclass
class Attempt:
    """One execution of a task on this worker."""

    name: TaskName
    bad: set[Any]  # records to leave out
    progress: float = 0.0
    stats: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)  # the user's


class Abandoned(Exception):
    """Someone else has finished the task that this worker is at, or the job is over."""


class BadRecord(Exception):
    """The user's function failed on this record."""


class Worker:
    """Does the tasks that it is given, and meanwhile serves its map output to reducers and answers the master."""

    def __init__(self, plan: Plan, rank: int, to_master: Mailbox, inbox: Mailbox) -> None:
        self.plan, self.job, self.rank, self.to_master, self.inbox = plan, plan.job, rank, to_master, inbox
        self.folder, held = plan.own_folder(rank)
        self.tasks: deque[Attempt] = deque()
        self.unwanted: set[TaskName] = set()
        self.where: dict[int, list[tuple[int, int]]] = {}  # for reduce r, of each map: (worker, bytes of region r)
        self.asked: dict[Place, int] = {}  # the pieces that the present reduce waits for, and who was asked for them
        self.arrived: dict[Place, bytes] = {}
        self.ended = self.drained = self.finished = False
        self.next_breath, self.sent = 0.0, 0
        self.tell_master("hello", held)

    def tell_master(self, *message: Any) -> None:
        self.to_master.post(0, message)

    def step(self) -> bool:
        """Answer, then do a task. Whether there was one, or a message."""
        busy = self.serve()
        if self.tasks and not self.ended:
            self.work(self.tasks.popleft())
        elif self.ended and not self.drained and self.inbox.quiet:
            self.drained = True  # all that this worker has sent has arrived; when it is so everywhere, all may leave
            self.tell_master("drained", None)
        return busy

    def serve(self) -> bool:
        """Do what messages ask; whether there were any."""
        busy = False
        while mail := self.inbox.poll():
            busy = True
            match mail.message:
                case "task", (kind, number), bad, where:
                    if kind == "reduce":
                        self.where[number] = where
                    self.unwanted.discard((kind, number))
                    self.tasks.append(Attempt((kind, number), set(bad)))
                case "drop", name:
                    self.unwanted.add(name)
                case "lost", maps:
                    for r, m in itertools.product(self.where, maps):
                        self.where[r][m] = (NOWHERE, self.where[r][m][1])
                case "moved", m, worker, sizes:
                    for r, where in self.where.items():
                        where[m] = (worker, same(m, where[m][1], sizes[r]))
                case ("ping",) if not self.drained:
                    self.tell_master("pong", self.sent)
                case "fetch", r, m, offset, nbytes if not self.ended:
                    piece = np.frombuffer(self.read(r, m, offset, nbytes), np.uint8)
                    self.inbox.post(mail.source, ("region", r, m, offset), piece)
                    self.sent += nbytes
                case "region", *place if tuple(place) in self.asked and mail.payload is not None:
                    self.arrived[tuple(place)] = mail.payload.tobytes()
                case ("end",):
                    self.ended = True
                case ("leave",):
                    self.finished = True
        return busy

    def breathe(self, attempt: Attempt, late: bool = False) -> None:
        """Called all the time while a task runs: once in a while, look whether someone wants something."""
        if late or time.monotonic() > self.next_breath:
            self.look_up(attempt)
            self.plan.faults.drag(lambda: self.look_up(attempt))
            self.next_breath = time.monotonic() + BREATH

    def look_up(self, attempt: Attempt) -> None:
        """Serve; leave a task that nobody needs any more."""
        self.serve()
        if self.ended or attempt.name in self.unwanted:
            raise Abandoned

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

    def stop_answering(self) -> None:
        """Injected: ignore everything but the end of the job."""
        while not self.ended:
            mail = self.inbox.poll()
            self.ended = mail is not None and mail.message == ("end",)
            time.sleep(0 if mail else IDLE)
        raise Abandoned

    # -- map: steps 3 and 4 of section 3.1 --

    def map(self, attempt: Attempt) -> list[int]:
        """Turn a split into R region files; their sizes. The folder gets its name when all of it is there."""
        stops = self.plan.faults.begin("map")
        pieces = self.plan.splits[attempt.name[1]]
        total = sum(piece.end - piece.start for piece in pieces)
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
            attempt.progress = attempt.stats["input bytes"] / total
        if stops:
            self.stop_answering()
        self.spill(attempt, buffer, unfinished)
        files = [region(unfinished, r) for r in range(self.plan.reducers)]
        sizes = [file.stat().st_size if file.exists() else 0 for file in files]
        write_whole(unfinished / "done.json", (sizes, attempt.stats, attempt.counters))
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
                    attempt.stats["bytes of pairs"] += papers.mapreduce_bytes(*zip(*some, strict=True))
                    yield from some
            except Exception as error:
                raise BadRecord(record) from error
            attempt.stats["records"] += 1
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
            attempt.stats["bytes of combined pairs"] += papers.mapreduce_bytes(*zip(*pairs, strict=True))

    def map_folder(self, m: int) -> Path:
        return self.folder / f"map-{m:05}"

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

    def fetch(self, attempt: Attempt) -> Iterator[bytes]:
        """The regions in order of the maps, piece by piece, from whoever holds them."""
        r = attempt.name[1]
        where = self.where[r]  # messages change it while this runs
        wanted = deque((r, m, at) for m, (_, size) in enumerate(where) for at in range(0, size, PIECE))
        total = max(1, len(wanted))
        while wanted or self.asked:
            while wanted and len(self.asked) < WINDOW:
                self.asked[wanted.popleft()] = NOWHERE
            for place, asked in self.asked.items():
                holder, size = where[place[1]]
                if holder != asked and place not in self.arrived:  # not asked yet, or it has moved
                    self.asked[place] = holder
                    self.ask(holder, place, min(PIECE, size - place[2]))
            first = next(iter(self.asked))
            if first in self.arrived:
                piece = self.arrived.pop(first)
                source = "own disk" if self.asked.pop(first) == self.rank else "others"
                attempt.stats[f"bytes fetched from {source}"] += len(piece)
                attempt.progress = 0.5 * (1 - (len(wanted) + len(self.asked)) / total)
                yield piece
            elif where[first[1]][0] == NOWHERE:
                self.wait_for_map(attempt)
            elif not self.serve():
                time.sleep(IDLE)
            self.breathe(attempt)

    def ask(self, holder: int, place: Place, nbytes: int) -> None:
        """Ask the worker that holds a piece for it; on one's own disk it can be read."""
        if holder == self.rank:
            self.arrived[place] = self.read(*place, nbytes)
        elif holder != NOWHERE:
            self.inbox.post(holder, ("fetch", *place, nbytes))

    def read(self, r: int, m: int, offset: int, nbytes: int) -> bytes:
        with open(region(self.map_folder(m), r), "rb") as file:
            file.seek(offset)
            return file.read(nbytes)

    def wait_for_map(self, attempt: Attempt) -> None:
        """The region was on a machine that is lost. Perhaps it is this worker that must do the map again."""
        self.tell_master("stalled", attempt.name)
        while not self.tasks and any(worker == NOWHERE for worker, _ in self.where[attempt.name[1]]):
            time.sleep(IDLE)
            self.breathe(attempt)
        if self.tasks:
            self.work(self.tasks.popleft())

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


def same(m: int, before: int, now: int) -> int:
    """The size of a region, which must be what it was when the map was done before."""
    if now != before:
        raise RuntimeError(
            f"map {m} gave {before} bytes, and {now} when it was done again: it depends on more than its input"
        )
    return now


def main(comm: Comm, prepared: tuple[Plan, str | None]) -> int:
    plan, json = prepared
    return report(comm.rank, plan, run(comm, plan), json)


if __name__ == "__main__":
    run_chapter(prepare=lambda comm: prepare(__doc__ or "", sys.argv[1:], comm.rank, comm.size), main=main)
