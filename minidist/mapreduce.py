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
import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from zlib import crc32

from minidist.mpi.comm import Comm
from minidist.mpi.mailbox import Mailbox
from minidist.mpi.run import abort
from minidist.mpi.run import run as run_chapter
from minidist.mr.disk import Disk
from minidist.mr.faults import Faults
from minidist.mr.files import (
    KEY,
    Buffer,
    ExternalSort,
    JobError,
    Pair,
    Piece,
    each,
    emitted,
    next_line,
    output_lines,
    pairs_and_bytes,
    region,
    sample,
    write_pair,
)
from minidist.mr.messages import IDLE, MASTER, WORKERS, Do, Drop, Fetch, Lost, Moved, Place
from minidist.mr.options import prepare
from minidist.mr.peers import MasterPeer, WorkerPeer
from minidist.mr.plan import Plan, Record, Result
from minidist.mr.report import Failure, Outcome, report
from minidist.mr.tasks import NOWHERE, Attempt, Task, Tasks

PIECE, WINDOW = 1 << 20, 8  # a reducer asks for so many bytes of a region at a time, and has so many requests under way
BACKUP_AFTER = 0.5  # seconds; for less, another execution is not worth it


def run(
    comm: Comm,
    plan: Plan,
    disk: Callable[[Plan, int], Disk] = Disk,
    mailbox: Callable[[Comm, int], Mailbox] = Mailbox,
) -> Outcome:
    """Do the job. All ranks must call, with the same plan; what the master saw is returned on every rank."""
    begun = time.monotonic()
    plan.token = comm.broadcast_object(plan.begin() if comm.rank == 0 else None)
    plan.hosts = comm.all_gather_object(platform.node())
    lines = comm.broadcast_object(sample(plan.files, plan.sampled) if comm.rank == 0 else None)
    if plan.sampled:
        plan.job.plan(lines, plan.reducers)

    to_master, to_workers = mailbox(comm, MASTER), mailbox(comm, WORKERS)
    workers = range(min(1, comm.size - 1), comm.size)
    roles: list[MasterPeer | WorkerPeer] = []
    try:
        if comm.rank == 0:
            tasks = Tasks(plan, split(plan.files, plan.maps), workers)
            roles.append(FaultTolerantMaster(plan, workers, tasks, to_master, to_workers))
        if comm.rank in workers:
            roles.append(Worker(plan, comm.rank, disk(plan, comm.rank), to_workers, to_master))
        with comm.phase("shuffle"):  # all the payload there is: regions on their way to reducers
            quiet = 0
            while not all(role.finished for role in roles):
                quiet = 0 if any([role.step() for role in roles]) else quiet + 1
                time.sleep(min(IDLE, quiet * IDLE / 20))
    finally:
        plan.clear()
    outcome = roles[0].outcome
    assert outcome
    to_master.close(outcome.left_behind)
    to_workers.close(outcome.left_behind)
    if comm.rank == 0 and not outcome.failure:
        plan.end(len(outcome.left_out))
    outcome.seconds = time.monotonic() - begun
    return outcome


# ---- step 1: the input is split --------------------------------------------------------------------------------------


def split(files: Sequence[tuple[str, int]], m: int) -> list[list[Piece]]:
    """The input, files of so many bytes, as m splits of about as many bytes each; some are empty if lines are few.

    All files, one after another, are cut at equal distances, and each cut is moved on to where a line begins. So no
    split cuts a line, and none cuts a UTF-8 character, for the byte of a line feed is no part of any other character.
    """
    splits: list[list[Piece]] = [[] for _ in range(m)]
    total, before, i = sum(size for _, size in files), 0, 0  # before: bytes of the files before this one
    for path, size in files:
        start = 0
        while start < size:
            target = (i + 1) * total // m - before  # where split i would end if lines were of one byte
            end = size if target >= size else next_line(path, size, max(start, target))
            if end > start:
                splits[i].append(Piece(path, start, end))
            i += target < size
            start = end
        before += size
    return splits


# ---- step 2: the master assigns tasks --------------------------------------------------------------------------------


class Master(MasterPeer):
    """Hands a task to whoever is free, and knows where everything is. It touches no data.

    This is all of it while everybody works; what becomes of it when somebody fails, see `FaultTolerantMaster`.
    """

    def hand_out(self) -> None:
        for worker in sorted(self.alive):
            if self.free(worker) and (task := self.pick(worker)):
                self.assign(task, worker)

    def free(self, worker: int) -> bool:
        return not self.tasks.doing[worker]

    def pick(self, worker: int) -> Task | None:
        """An idle task, if there is one: best a map on a machine with a replica of its split (section 3.4)."""
        idle = [task for task in self.tasks.idle[self.tasks.kind].values() if worker not in task.refused]
        return next((task for task in idle if worker in task.near), None) or next(iter(idle), None)

    def assign(self, task: Task, worker: int) -> None:
        """Let a worker do a task. Of a map it must know the split, of a reduce who holds its region of every map."""
        kind, number = task.name
        detail = "backup" if task.running else "" if kind == "reduce" else "near" if worker in task.near else "far"
        self.events.note("assigned", task.name, worker, detail)
        self.tasks.begin(task, worker, time.monotonic())
        regions = [(done.worker, done.result.sizes[number]) for done in self.tasks.map] if kind == "reduce" else []
        self.tell([worker], Do(task.name, regions or task.split, task.skip))

    def complete(self, task: Task, worker: int, result: Result) -> None:
        """A task is done: its output is a committed file, or lies on the disk of the worker that has mapped."""
        unexpected = self.tasks.finish(task, worker, result)  # done in an earlier job, or by one who had been given up
        self.events.note("found" if unexpected else "done", task.name, worker, "backup" if task.running else "")


# ---- a worker: steps 3 to 6 ------------------------------------------------------------------------------------------


class Worker(WorkerPeer):
    """Does the tasks that the master gives it. `WorkerPeer` reads its mail meanwhile, whenever it draws breath."""

    # -- step 3: map --

    def map(self, attempt: Attempt) -> Result:
        """Call the user's map for every record of a split, and leave the pairs in R region files."""
        folder, buffer = self.disk.fresh("unfinished"), Buffer()
        for document, offset, text in self.records(attempt):
            for pairs in attempt.call((document, offset), emitted, self.job.map, document, text):
                attempt.count("pairs", *self.plan.measure(pairs))
                for key, value in pairs:
                    buffer.add(key, value)
                    if buffer.held > self.plan.memory:
                        self.write_regions(attempt, buffer, folder)
        self.write_regions(attempt, buffer, folder)
        self.look_up(attempt)
        result = attempt.result(sizes=[self.disk.size(region(folder, r)) for r in range(self.plan.reducers)])
        self.disk.note(folder / "done.json", result)
        if not self.map_folder(attempt.number).exists():  # done before, by a worker that was given up too early
            self.disk.rename(folder, self.map_folder(attempt.number))  # all of it is there, or nothing
        return result

    # -- step 4: combine, and partition --

    def write_regions(self, attempt: Attempt, buffer: Buffer, folder: Path) -> None:
        """Combine the values of each key (section 4.3), and append its pairs to the file of its reduce task."""
        combine = self.plan.combine
        with attempt.between_records():
            pairs = [
                (key, value)
                for key, values in buffer.take()
                for value in (each(self.job.combine(key, values), "combine") if combine and len(values) > 1 else values)
            ]
            regions: list[list[str]] = [[] for _ in range(self.plan.reducers)]
            for key, value in pairs:
                regions[self.partition(key, self.plan.reducers)].append(write_pair(key, value))
            for r, lines in enumerate(regions):
                if lines:
                    self.disk.append(region(folder, r), lines)
            attempt.count("combined pairs", *pairs_and_bytes(pairs))

    def partition(self, key: str, reducers: int) -> int:
        """The reduce task of a key: hash(key) mod R, unless the job has a partition of its own (section 4.1).

        The hash is crc32, for Python's own hash of a text differs from process to process.
        """
        r: int = self.plan.own_partition(key, reducers) if self.plan.own_partition else crc32(key.encode()) % reducers
        if not 0 <= r < reducers:
            raise JobError(f"partition({key!r}, {reducers}) is {r}, and not from 0 to {reducers - 1}")
        return r

    # -- step 5: shuffle, and sort --

    def shuffle(self, attempt: Attempt) -> Iterator[bytes]:
        """Region r of every map in order, piece by piece, from the disk of whoever holds it."""
        r, regions = attempt.number, attempt.source  # messages change the latter while this runs
        wanted = deque(Place(r, m, at) for m, (_, size) in enumerate(regions) for at in range(0, size, PIECE))
        total = len(wanted)
        while wanted or self.asked:
            while wanted and len(self.asked) < WINDOW:
                self.asked[wanted.popleft()] = NOWHERE
            for place, asked in self.asked.items():
                holder, size = regions[place.m]
                if holder != asked and place not in self.arrived:  # not asked yet, or its map has been done again
                    self.asked[place] = holder
                    if holder != NOWHERE:
                        self.inbox.post(holder, Fetch(place, min(PIECE, size - place.offset)))
            first = next(iter(self.asked))
            if first in self.arrived:
                source = "own disk" if self.asked.pop(first) == self.rank else "others"
                attempt.stats[f"bytes fetched from {source}"] += len(self.arrived[first])
                attempt.progress = 0.5 * (1 - (len(wanted) + len(self.asked)) / total)
                yield self.arrived.pop(first)
            elif self.asked[first] == NOWHERE:
                self.do_a_map_meanwhile()
            elif not self.serve():
                time.sleep(IDLE / 10)
            self.breathe(attempt)

    # -- step 6: reduce, and commit --

    def reduce(self, attempt: Attempt) -> Result:
        """Fetch and sort, call the user's reduce for one key after another, and give the output its name."""
        r, sorter = attempt.number, ExternalSort(self.disk.fresh("runs"), self.plan.memory)
        unfinished = self.plan.folder / f"reduce-{r:05}.worker-{self.rank}"
        try:
            for piece in self.shuffle(attempt):
                sorter.add(piece)
            self.disk.write(unfinished, self.lines(attempt, sorter.merged()))
            self.look_up(attempt)
        finally:
            self.disk.remove(sorter.folder)
            self.asked, self.arrived = {}, {}  # what still comes, nobody waits for
        attempt.stats.update({"pairs reduced": sorter.count, "runs on disk": sorter.written})
        result = attempt.result(sizes=[])
        self.disk.note(self.plan.counted(r), result)
        self.disk.rename(unfinished, self.plan.part(r))  # all of it is there, or nothing: however many attempts end so
        return result

    def lines(self, attempt: Attempt, pairs: Iterator[Pair]) -> Iterator[str]:
        for key, of_key in itertools.groupby(pairs, KEY):
            self.breathe(attempt)
            if not attempt.leaves_out(key):
                for lines in attempt.call(key, output_lines, self.job.reduce, key, (value for _, value in of_key)):
                    attempt.stats["lines of output"] += len(lines)
                    yield from lines


# ---- when a worker fails: re-execution (section 3.3) -----------------------------------------------------------------


class FaultTolerantMaster(Master):
    """The master, when workers do not answer (3.3), are slow (3.6), or meet records that they cannot process (4.6)."""

    def __init__(self, plan: Plan, workers: range, tasks: Tasks, inbox: Mailbox, outbox: Mailbox) -> None:
        super().__init__(plan, workers, tasks, inbox, outbox)
        self.stalled: set[int] = set()  # workers whose reduce waits for a map that is to be done again
        self.times: dict[str, list[float]] = {"map": [], "reduce": []}  # seconds that tasks took
        for r, result in plan.committed().items():
            self.complete(tasks.reduce[r], NOWHERE, result)

    def lose(self, worker: int) -> None:
        """What it was doing is idle again, and the maps that it has done are. Reduces are not: their output is safe."""
        self.stalled.discard(worker)
        for task in self.tasks.doing[worker].copy():
            self.tasks.release(task, worker)
            self.again(task, "lost")
            if task.name[0] == "reduce":
                self.tell([worker], Drop(task.name))  # should it come back: it does not know where regions are now
        self.miss_output(*[task for task in self.tasks.map if task.done and task.worker == worker])
        for task in (*self.tasks.map, *self.tasks.reduce):
            if task.refused and not task.done:
                self.refuse(task, *task.refused.popitem(), None)  # perhaps it was the last that had not

    def miss_output(self, *maps: Task) -> None:
        """Of maps that are done the output is lost. Reduces that have not read it will read it from elsewhere."""
        self.tell(self.alive, Lost([task.name[1] for task in maps]))
        for task in maps:
            self.tasks.undo(task)
            self.again(task, "lost")

    def again(self, task: Task, why: str) -> None:
        """A task is idle again, unless someone else is at it."""
        if self.tasks.put_back(task):
            self.events.note("again", task.name, detail=why)

    def complete(self, task: Task, worker: int, result: Result) -> None:
        """A task is done. If it was done before, by someone else, this result and its counters are ignored (4.9)."""
        (kind, number), since = task.name, task.running.get(worker)
        if task.done:
            self.tasks.release(task, worker)
            return
        if task.result.sizes not in ([], result.sizes):
            before, now = sum(task.result.sizes), sum(result.sizes)
            why = f"It gave {before} bytes, and {now} when it was done again: it depends on more than its input."
            self.end(Failure(task.name, worker, None, why))
        super().complete(task, worker, result)
        if result.left_out and self.bad_records() > self.plan.skip_bad:  # before --resume, when more were allowed
            record, why = result.left_out[-1]
            self.end(Failure(task.name, worker, record, why, self.plan.skip_bad))
        if since is not None:
            self.times[kind].append(time.monotonic() - since)
        self.tell(task.running, Drop(task.name))
        if kind == "map":
            if any(reduce.running for reduce in self.tasks.reduce):
                self.tell(self.alive, Moved(number, worker, result.sizes))
            if not self.tasks.left["map"]:
                self.stalled.clear()

    def stall(self, worker: int) -> None:
        """In the middle of a reduce it needs a map that is to be done again: it may have to do that map itself."""
        if self.tasks.left["map"]:
            self.stalled.add(worker)

    def free(self, worker: int) -> bool:
        return super().free(worker) or (worker in self.stalled and len(self.tasks.doing[worker]) == 1)

    def refuse(self, task: Task, worker: int, explanation: str, record: Record | None) -> None:
        """A worker's machine cannot do it: perhaps another can."""
        task.refused[worker] = explanation
        self.again(task, "machine")
        if self.alive <= task.refused.keys():
            self.end(Failure(task.name, worker, record, explanation))

    # -- when the user's function fails: bad records (section 4.6) --

    def fail(self, task: Task, worker: int, record: Record | None, explanation: str) -> None:
        """Where records may be left out, try again, and after two failures without this one."""
        if record is None:
            self.end(Failure(task.name, worker, record, explanation))
        else:
            self.blame(task, worker, record, explanation, times=2 if self.plan.skip_bad else 1)
            self.again(task, "failed")

    def blame(self, task: Task, worker: int, record: Record, explanation: str, times: int) -> None:
        """A record is bad on which so many attempts have failed. More bad records than allowed end the job."""
        task.failures[record] += 1
        if task.failures[record] >= times and record not in task.skip:
            task.skip[record] = explanation.splitlines()[-1]
            if self.bad_records() > self.plan.skip_bad:
                self.end(Failure(task.name, worker, record, explanation, self.plan.skip_bad))

    def bad_records(self) -> int:
        return sum(len(task.skip) for task in (*self.tasks.map, *self.tasks.reduce))

    # -- when a worker is slow: backup tasks (section 3.6) --

    def pick(self, worker: int) -> Task | None:
        return super().pick(worker) or (None if self.tasks.doing[worker] else self.straggler(worker))

    def straggler(self, worker: int) -> Task | None:
        """Nothing is idle. A task that has been in progress for twice the usual time deserves a backup."""
        times = self.times[self.tasks.kind]
        if not self.plan.backup or not times:
            return None
        too_long = max(BACKUP_AFTER, 2 * sum(times) / len(times))
        for other, tasks in self.tasks.doing.items():
            for task in tasks:
                alone = task.name[0] == self.tasks.kind and list(task.running) == [other] and not task.done
                if alone and time.monotonic() - task.running[other] > too_long and worker not in task.refused:
                    return task
        return None

    def drop(self, task: Task, worker: int, progress: float) -> None:
        """A worker has left a task that someone else had finished first: how much longer would it have taken?"""
        since = self.tasks.release(task, worker)
        if task.done and since is not None and progress > 0:
            self.events.saved += (time.monotonic() - since) * (1 - progress) / progress


# ---- step 7: the user's program goes on ------------------------------------------------------------------------------


def main(comm: Comm, prepared: tuple[Plan, Faults, str | None]) -> int:
    plan, faults, json = prepared
    outcome = run(comm, plan, faults.disk, faults.mailbox)
    status = report(comm.rank, plan, outcome, json)
    if outcome.left_behind and comm.rank == 0:
        abort(status)  # the others wait in vain for these to leave with them
    return status


if __name__ == "__main__":
    run_chapter(prepare=lambda comm: prepare(__doc__ or "", sys.argv[1:], comm.rank, comm.size), main=main)
