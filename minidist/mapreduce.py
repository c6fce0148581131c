"""MapReduce: the user writes two functions; the system splits, shuffles, sorts, and survives failures.

    mpirun -n 4 python -m minidist.mapreduce wordcount FILE... --reducers 4 --output DIR
    mpirun -n 4 python -m minidist.mapreduce wordcount FILE... --output DIR --maps 8 --inject stop:2:map:2

    mpirun -n 4 python -m minidist.mapreduce grep FILE... --pattern 'def \\w+' --output DIR
    mpirun -n 4 python -m minidist.mapreduce --job mymodule:MyJob FILE... --output DIR
    python -m minidist.mapreduce --cluster

Dean & Ghemawat, "MapReduce: Simplified Data Processing on Large Clusters", OSDI 2004, section 3.
https://www.usenix.org/conference/osdi-04/mapreduce-simplified-data-processing-large-clusters

Rank 0 is the master, the others are workers; a single rank is both. The input is cut into M splits. A map task calls
`map` for every record of a split and writes the pairs to R region files on its worker's own disk. A reduce task fetches
one region of every map, by messages from the workers that hold them, sorts the pairs, calls `reduce` for every key, and
renames its output file into place. The master gives each task to a worker that is free: a job takes M + R decisions.

The master gives up a worker that does not answer. Its map tasks are executed again elsewhere, even finished ones,
because their output was on its disk. (A worker may hang, or be stopped by a signal or by --inject. If a process dies,
MPICH ends the whole job; --resume then continues from the committed output.) The output depends on the input alone: no
matter how often a task runs, and on which worker, its result is the same, and the first one counts.

This chapter is long because section 3 is one algorithm from split to commit, with a master and a worker on each step.
"""

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from zlib import crc32

from minidist import contents
from minidist.mpi.comm import Comm
from minidist.mpi.mailbox import NumberedMailbox
from minidist.mr import files, messages
from minidist.mr.checksums import PIECE
from minidist.mr.disk import Disk
from minidist.mr.messages import IDLE, PieceId
from minidist.mr.peers import WorkerPeer
from minidist.mr.plan import Plan, TaskResult
from minidist.mr.report import EndedJob
from minidist.mr.tasks import NOWHERE, Attempt, Task, Tasks
from minidist.mr.watch import MasterPeer

WINDOW = 8  # requests that a reducer has under way, each for one piece of a region
BACKUP_AFTER = 0.5  # seconds; a shorter task is not worth a second execution


def run(
    comm: Comm,
    plan: Plan,
    disk: Callable[[Plan, int], Disk] = Disk,
    mailbox: Callable[[Comm, int], NumberedMailbox] = NumberedMailbox,
) -> EndedJob:
    """Run the job. All ranks must call this with the same plan; each returns what the master recorded.

    disk, mailbox: make a worker's disk and each rank's mailboxes; `minidist.mr.faults` has some that fail.
    """
    begun, quiet = time.monotonic(), 0
    plan.begin(comm)
    to_master, to_workers = mailbox(comm, messages.MASTER), mailbox(comm, messages.WORKERS)
    workers = range(min(1, comm.size - 1), comm.size)
    roles: list[MasterPeer | WorkerPeer] = []
    try:
        if comm.rank == 0:
            tasks = Tasks(plan, split(plan.files, plan.maps), workers)
            roles.append(FaultTolerantMaster(plan, workers, tasks, to_master, to_workers))
        if comm.rank in workers:
            roles.append(Worker(plan, comm.rank, disk(plan, comm.rank), to_workers, to_master))
        with comm.phase("shuffle"):  # the only payload: regions on their way to reducers
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


# ---- step 1: split the input -----------------------------------------------------------------------------------------


def split(inputs: Sequence[tuple[str, int]], m: int) -> list[list[files.InputPiece]]:
    """Cut the input files (path, bytes) into m splits of about equal size. If there are few lines, some are empty.

    The files, one after another, are cut at equal distances, and each cut is moved to the next beginning of a line. So
    no split cuts a line. None cuts a UTF-8 character either, because a line feed's byte is part of no other character.
    """
    splits: list[list[files.InputPiece]] = [[] for _ in range(m)]
    total, before, i = sum(size for _, size in inputs), 0, 0  # before: bytes of the files before this one
    for path, size in inputs:
        start = 0
        while start < size:
            target = (i + 1) * total // m - before  # where split i would end if every line had one byte
            end = size if target >= size else files.next_line(path, size, max(start, target))
            if end > start:
                splits[i].append(files.InputPiece(path, start, end))
            i += target < size
            start = end
        before += size
    return splits


# ---- step 2: assign tasks --------------------------------------------------------------------------------------------


class Master(MasterPeer):
    """Gives tasks to free workers, and knows where all regions are. It touches no data.

    This is the whole master as long as no worker fails; `FaultTolerantMaster` adds what happens when one does.
    """

    def hand_out(self) -> None:
        """Give a task to every free worker."""
        for worker in sorted(self.alive):
            if self.tasks.free(worker) and (task := self.pick(worker)):
                self.assign(task, worker)

    def pick(self, worker: int) -> Task | None:
        """An idle task, if there is one. The best is a map on a machine with a replica of its split (section 3.4)."""
        idle = self.tasks.idle[self.tasks.kind].values()
        near = (task for task in idle if worker in task.near and worker not in task.refused)
        anywhere = (task for task in idle if worker not in task.refused)
        return next(near, None) or next(anywhere, None)

    def assign(self, task: Task, worker: int) -> None:
        """Let a worker run a task. A map needs its split; a reduce needs to know where its region of every map is."""
        kind, number = task.name
        detail = "backup" if task.running else "" if kind == "reduce" else "near" if worker in task.near else "far"
        self.events.note("assigned", task.name, worker, detail)
        self.tasks.begin(task, worker, self.clock())
        regions = [(done.worker, done.result.sizes[number]) for done in self.tasks.map] if kind == "reduce" else []
        self.tell([worker], messages.Do(task.name, regions or task.split, task.skip))

    def complete(self, task: Task, worker: int, result: TaskResult) -> None:
        """A task is done: its output is a committed file, or is on the disk of the worker that ran the map."""
        unexpected = self.tasks.finish(task, worker, result, self.clock())  # from an earlier run, or a worker given up
        self.events.note("found" if unexpected else "done", task.name, worker, "backup" if task.running else "")


# ---- a worker: steps 3 to 6 ------------------------------------------------------------------------------------------


class Worker(WorkerPeer):
    """Runs the tasks that the master gives it. Whenever it pauses (`breathe`), `WorkerPeer` reads its mail."""

    # -- step 3: map --

    def map(self, attempt: Attempt) -> TaskResult:
        """Call the user's map for every record of a split, and write the pairs to R region files."""
        folder, buffer = self.disk.fresh("unfinished"), files.Buffer()
        for document, offset, text in self.records(attempt):
            for pairs in attempt.call((document, offset), files.emit_pairs, self.job.map, document, text):
                attempt.count("pairs", *self.plan.measure(pairs))
                for key, value in pairs:
                    buffer.add(key, value)
                    if buffer.held > self.plan.memory:
                        self.write_regions(attempt, buffer, folder)
        self.write_regions(attempt, buffer, folder)
        self.look_up(attempt)
        result = attempt.result(files=self.plan.reducers)
        self.disk.note(folder / "done.json", attempt.name, result)
        self.disk.remove(self.map_folder(attempt.number))  # done before, by a worker wrongly taken for dead
        self.disk.rename(folder, self.map_folder(attempt.number))  # atomic: all of it is there, or nothing
        return result

    # -- step 4: combine, and partition --

    def write_regions(self, attempt: Attempt, buffer: files.Buffer, folder: Path) -> None:
        """Combine the values of each key (section 4.3), and append its pairs to its reduce task's region file."""
        with attempt.between_records():
            regions: list[list[tuple[str, str]]] = [[] for _ in range(self.plan.reducers)]
            for key, values in buffer.take():
                combine = self.plan.combine and len(values) > 1
                pairs = files.combined(self.job.combine, key, values) if combine else [(key, value) for value in values]
                regions[self.partition(key, self.plan.reducers)] += pairs
            for r, pairs in enumerate(regions):
                if pairs:
                    self.disk.append(files.region(folder, r), attempt.bytes_for(r, files.write_pairs(pairs)))
                    attempt.count("combined pairs", *files.pairs_and_bytes(pairs))

    def partition(self, key: str, reducers: int) -> int:
        """The reduce task of a key: hash(key) mod R, unless the job has its own partition function (section 4.1).

        The hash is crc32, because Python's own hash of a string differs from process to process.
        """
        if self.plan.own_partition:
            return files.chosen(self.plan.own_partition, key, reducers)
        return crc32(key.encode()) % reducers

    # -- step 5: shuffle, and sort --

    def shuffle(self, attempt: Attempt) -> Iterator[bytes]:
        """Region r of every map in order, piece by piece, from the disks of the workers that hold them."""
        r, regions = attempt.number, attempt.source  # messages change the latter while this runs
        wanted = deque(PieceId(r, m, at) for m, (_, size) in enumerate(regions) for at in range(0, size, PIECE))
        total = len(wanted)
        while wanted or self.asked:
            while wanted and len(self.asked) < WINDOW:
                self.asked[wanted.popleft()] = NOWHERE
            for place, asked in self.asked.items():
                holder, size = regions[place.m]
                if holder != asked and place not in self.arrived:  # not asked for yet, or its map was executed again
                    self.asked[place] = holder
                    if holder != NOWHERE:
                        self.inbox.post(holder, messages.Fetch(place, min(PIECE, size - place.offset)))
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

    def reduce(self, attempt: Attempt) -> TaskResult:
        """Fetch and sort the pairs, call the user's reduce for one key after another, and commit the output by name."""
        r, breathing = attempt.number, functools.partial(self.breathing, attempt)
        sorter = files.ExternalSort(self.disk.fresh("runs"), self.plan.memory, self.disk.moved, breathing)
        unfinished = self.plan.folder / f"reduce-{r:05}.worker-{self.rank}"
        try:
            for piece in self.shuffle(attempt):
                sorter.add(piece)  # sorts by key: in memory, or in sorted runs on disk, which `merged` merges
            self.disk.write(unfinished, self.lines(attempt, sorter.merged()))
            self.look_up(attempt)
        finally:
            self.disk.remove(sorter.folder)
            self.asked, self.arrived = {}, {}  # pieces that still arrive are dropped
        attempt.stats.update({"pairs reduced": sorter.count, "runs on disk": sorter.written})
        result = attempt.result(files=1)
        self.disk.note(self.plan.counts_path(r), attempt.name, result)
        self.disk.rename(unfinished, self.plan.part(r))  # atomic, however many attempts get here
        return result

    def lines(self, attempt: Attempt, pairs: Iterator[files.Pair]) -> Iterator[bytes]:
        """The output: the user's reduce for one key after another, in increasing order (section 4.2)."""
        for key, of_key in itertools.groupby(pairs, files.KEY):
            self.breathe(attempt)
            if not attempt.leaves_out(key):
                values = (value for _, value in self.breathing(attempt, of_key))
                for lines in attempt.call(key, files.output_lines, self.job.reduce, key, values):
                    attempt.stats["lines of output"] += len(lines)
                    yield attempt.bytes_for(0, "".join(lines))


# ---- when a worker fails: re-execution (section 3.3) -----------------------------------------------------------------


class FaultTolerantMaster(Master):
    """The master when workers do not answer, or are slow. `MasterPeer` detects workers that do not answer."""

    def lose(self, worker: int) -> None:
        """Make a lost worker's tasks idle again: those under way, and finished maps. Finished reduces are safe."""
        self.tasks.stalled.discard(worker)
        self.lose_output([task for task in self.tasks.map if task.done and task.worker == worker], "lost")
        for task in self.tasks.doing[worker].copy():
            self.tasks.release(task, worker)
            self.requeue(task, "lost")
            if task.name[0] == "reduce":
                self.tell(
                    [worker], messages.DropTask(task.name)
                )  # if it comes back, it does not know where regions are

    def lose_output(self, maps: list[Task], why: str) -> None:
        """Run these maps again; reduces in progress that have not read their output will read the new one."""
        self.tell(self.alive, messages.OutputLost([task.name[1] for task in maps]))
        for task in maps:
            self.tasks.undo(task)
            self.requeue(task, why)

    def requeue(self, task: Task, why: str) -> None:
        """Make a task idle again, unless another worker is running it."""
        if self.tasks.put_back(task):
            self.events.note("again", task.name, detail=why)

    def complete(self, task: Task, worker: int, result: TaskResult) -> None:
        """Other workers that run the task may drop it; reduces in progress learn where a map's output is now."""
        super().complete(task, worker, result)
        self.tell(task.running, messages.DropTask(task.name))
        if task.name[0] == "map" and any(reduce.running for reduce in self.tasks.reduce):
            self.tell(self.alive, messages.OutputMoved(task.name[1], worker, result.sizes))

    # -- when a worker is slow: backup tasks (section 3.6) --

    def hand_out(self) -> None:
        """If no task is idle, a task that one worker has run for twice the usual time gets a second execution."""
        self.late: list[Task] = []
        usual, now = self.tasks.usual_time(), self.clock()
        if self.plan.backup and usual is not None and not self.tasks.idle[self.tasks.kind]:
            too_long = max(BACKUP_AFTER, 2 * usual)
            self.late = [task for task in self.tasks.tasks_in_progress() if now - min(task.running.values()) > too_long]
        super().hand_out()

    def pick(self, worker: int) -> Task | None:
        task = super().pick(worker)
        if task or self.tasks.doing[worker]:  # a worker with a task waits in the middle of a reduce
            return task
        return next((task for task in self.late if len(task.running) == 1 and worker not in task.refused), None)


if __name__ == "__main__":
    contents.run("mapreduce")  # its options, and step 7, the report to the user: programs/mapreduce.py
