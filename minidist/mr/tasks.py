"""What the master of `minidist.mapreduce` remembers of all tasks (section 3.2), and a worker of its current one."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from minidist.mr.checksums import WrittenPieces
from minidist.mr.files import InputPiece
from minidist.mr.last_gasp import LastGasp
from minidist.mr.plan import Plan, Record, TaskName, TaskResult

NOWHERE = -1  # no worker has this region: it was lost with its worker
PATIENCE = 5  # timeouts that the last worker gets: no other worker could do its work
BATCH = 1000  # pairs that are taken from the user's function at a time: one line may be long


@dataclass(frozen=True)
class Failure:
    """Why an attempt has failed, or the job."""

    task: TaskName
    worker: int
    record: Record | None  # that the user's function was working on
    explanation: str
    skip_bad: int = 0  # records that have been left out: no more may be
    machine: bool = False  # its machine could not read or write a file, perhaps


def explain_silence(seconds: float) -> str:
    """The explanation for a record on which a function does not return."""
    return f"no answer for {seconds:g} s; if the function may take so long, give a longer --timeout"


@dataclass
class Task:
    """A task: idle, in progress (`running`), or done."""

    name: TaskName
    split: list[InputPiece] = field(default_factory=list)  # of a map
    near: list[int] = field(default_factory=list)  # workers that have the split on their own disk (section 3.4)
    running: dict[int, float] = field(default_factory=dict)  # worker -> when it began
    done: bool = False
    worker: int = NOWHERE  # the one that has done it, and holds a map's output
    result: TaskResult = field(default_factory=TaskResult.empty)
    failures: Counter[Record] = field(default_factory=Counter)  # how often an attempt has failed on each record
    lost_by: set[int] = field(default_factory=set)  # workers that had done it, and could not read their output any more
    refused: dict[int, Failure] = field(default_factory=dict)  # workers whose machines could not do it, and why
    skip: dict[Record, str] = field(default_factory=dict)  # records that are to be left out, and why (section 4.6)


class Tasks:
    """All M + R tasks, the idle ones, and those that each worker is running."""

    def __init__(self, plan: Plan, splits: Sequence[list[InputPiece]], workers: Iterable[int]) -> None:
        self.map = [Task(("map", m), split, plan.workers_near(m, workers)) for m, split in enumerate(splits)]
        self.reduce = [Task(("reduce", r)) for r in range(plan.reducers)]
        self.idle = {"map": {task.name: task for task in self.map}, "reduce": {task.name: task for task in self.reduce}}
        self.left = {kind: len(tasks) for kind, tasks in self.idle.items()}  # not done yet
        self.doing: dict[int, list[Task]] = {worker: [] for worker in workers}
        self.stalled: set[int] = set()  # workers whose reduce waits for a map that is to be done again
        self.spent = {"map": (0.0, 0), "reduce": (0.0, 0)}  # seconds, and the number of tasks that took them

    def __getitem__(self, name: TaskName) -> Task:
        kind, number = name
        return self.map[number] if kind == "map" else self.reduce[number]

    def all(self) -> Iterator[Task]:
        return itertools.chain(self.map, self.reduce)

    @property
    def kind(self) -> str:
        """The kind of task to do now: reduces begin when all maps are done."""
        return "map" if self.left["map"] else "reduce"

    def bad_records(self) -> int:
        """How many records are left out."""
        return sum(len(task.skip) for task in self.all())

    def free(self, worker: int) -> bool:
        """Whether a worker can take a task: also if its reduce waits for a map, which it may have to do itself."""
        return not self.doing[worker] or (worker in self.stalled and len(self.doing[worker]) == 1)

    def begin(self, task: Task, worker: int, now: float) -> None:
        """A worker begins a task."""
        self.idle[task.name[0]].pop(task.name, None)
        self.doing[worker].append(task)
        task.running[worker] = now

    def release(self, task: Task, worker: int) -> float | None:
        """A worker no longer runs a task. Returns since when it did; None if it had been given up."""
        if task in self.doing.get(worker, []):
            self.doing[worker].remove(task)
        return task.running.pop(worker, None)

    def finish(self, task: Task, worker: int, result: TaskResult, now: float) -> bool:
        """A task is done. Returns whether it was idle: then no worker was known to run it."""
        kind, since = task.name[0], self.release(task, worker)
        if since is not None:
            seconds, number = self.spent[kind]
            self.spent[kind] = seconds + now - since, number + 1
        task.done, task.worker, task.result = True, worker, result
        task.skip.update(result.left_out)  # perhaps by an earlier run
        self.left[kind] -= 1
        if not self.left["map"]:
            self.stalled.clear()
        return self.idle[kind].pop(task.name, None) is not None

    def undo(self, task: Task) -> None:
        """The result of a task is lost."""
        task.done = False
        self.left[task.name[0]] += 1

    def put_back(self, task: Task) -> bool:
        """Make a task idle again, unless a worker is running it. Returns whether it is idle."""
        idle = self.idle[task.name[0]]
        back = not task.running and not task.done and task.name not in idle
        if back:
            idle[task.name] = task
        return back

    def tasks_in_progress(self) -> Iterator[Task]:
        """Tasks of the current kind that are running on a worker and not done by any."""
        for task in itertools.chain.from_iterable(self.doing.values()):
            if task.name[0] == self.kind and not task.done:
                yield task

    def usual_time(self) -> float | None:
        """Mean seconds of the finished tasks of the current kind; None if there are none."""
        seconds, number = self.spent[self.kind]
        return seconds / number if number else None


@dataclass
class Attempt:
    """One execution of a task on a worker."""

    name: TaskName
    source: list[Any]  # of a map: the pieces of its split; of a reduce, for each map: (worker with its region, bytes)
    skip: dict[Record, str]  # records to leave out, and why
    gasp: LastGasp
    record: Record | None = None  # that the user's function is working on
    progress: float = 0.0  # the part of the task that is done
    stats: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)  # the user's
    left_out: list[tuple[Record, str]] = field(default_factory=list)
    written: defaultdict[int, WrittenPieces] = field(default_factory=lambda: defaultdict(WrittenPieces))  # its files

    @property
    def number(self) -> int:
        return self.name[1]

    def call(self, record: Record, function: Callable[..., Iterable[Any]], *arguments: Any) -> Iterator[list[Any]]:
        """The results of the user's function for a record, in lists of up to BATCH."""
        self.enter(record)
        made = iter(function(*arguments))
        while len(some := list(itertools.islice(made, BATCH))) == BATCH:
            yield some
        yield some
        self.leave()

    def leaves_out(self, record: Record) -> bool:
        """Whether a record is bad. Then it is noted as left out."""
        if record not in self.skip:
            return False
        self.left_out.append((record, self.skip[record]))
        return True

    @contextmanager
    def between_records(self) -> Iterator[None]:
        """No single record is to blame for failures in here."""
        record = self.record
        self.leave()
        yield
        if record is not None:
            self.enter(record)

    def enter(self, record: Record) -> None:
        """Note the record that the user's function is about to see."""
        self.record = record
        self.gasp.enter(self.name, record)

    def leave(self) -> None:
        """Note that the user's function has returned."""
        self.record = None
        self.gasp.leave()

    def count(self, what: str, n: int, nbytes: int) -> None:
        """Add a number of pairs, and their bytes."""
        self.stats[what] += n
        self.stats[f"bytes of {what}"] += nbytes

    def bytes_for(self, i: int, text: str) -> bytes:
        """Text as bytes for file i of the output. The attempt adds them to the file's checksum."""
        data = text.encode()
        self.written[i].add(data)
        return data

    def result(self, files: int) -> TaskResult:
        """The attempt's result: this number of files, and what it has counted."""
        written = [self.written[i] for i in range(files)]
        sizes, sums = [each.size for each in written], [each.sums for each in written]
        return TaskResult(sizes, self.stats, self.counters, self.left_out, sums)
