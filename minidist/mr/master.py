"""The master of `minidist.mapreduce`: who does what, who is missing, and what must be done again.

Dean & Ghemawat, OSDI 2004, sections 3.2 (what the master remembers), 3.3 (failures), 3.4 (locality), 3.6 (backup
tasks), 4.6 (bad records) and 4.9 (counters). It touches no data: it reads small messages, and answers with small ones.
"""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from minidist.mpi.mailbox import Mailbox
from minidist.mr.plan import Plan
from minidist.mr.report import Events, Outcome

TaskName = tuple[str, int]  # ("map", m) or ("reduce", r)
BACKUP_AFTER = 0.5  # seconds; for less, another execution is not worth it
SILENCE = 60.0  # seconds that the master waits for one of the workers to come back when all have been given up
BAD_RECORDS = 10  # in one task; where there are more, it is the function that is at fault


@dataclass
class Task:
    """What the master remembers of a task (section 3.2). It is idle, in progress (`running`), or done."""

    name: TaskName
    near: list[int]  # workers that have the split on their own disk (section 3.4)
    running: dict[int, float] = field(default_factory=dict)  # worker: since when
    done: bool = False
    worker: int = -1  # that has done it
    result: Any = None  # of a map: the bytes of its R regions; and what the attempt counted
    failures: Counter[Any] = field(default_factory=Counter)  # how often each record failed


class Master:
    """Hands out tasks, notices who is missing, and knows where everything is. It touches no data."""

    def __init__(self, plan: Plan, workers: range, inbox: Mailbox, to_workers: Mailbox) -> None:
        self.plan, self.workers, self.inbox, self.to_workers = plan, workers, inbox, to_workers
        self.events = Events(plan, len(workers))  # everything that happens, for the log and for the report
        self.tasks = {
            "map": [Task(("map", m), plan.near(m, workers)) for m in range(len(plan.splits))],
            "reduce": [Task(("reduce", r), []) for r in range(plan.reducers)],
        }
        self.idle = {kind: {task.name: task for task in tasks} for kind, tasks in self.tasks.items()}
        self.left = {kind: len(tasks) for kind, tasks in self.tasks.items()}  # not done yet
        self.times: dict[str, list[float]] = {"map": [], "reduce": []}  # seconds that tasks took
        self.doing: dict[int, list[Task]] = {worker: [] for worker in workers}
        self.alive: set[int] = set()
        self.heard: dict[int, float] = {}  # when each worker spoke last
        self.stalled: set[int] = set()  # workers whose reduce waits for a map that is to be done again
        self.sent: Counter[int] = Counter()  # bytes that each worker has sent to reducers
        self.pinged = self.stepped = time.monotonic()
        self.drained = 0
        self.reducing = False  # whether a reduce has begun
        self.finished = self.ending = False
        for r, result in plan.committed().items():
            self.complete(-1, self.tasks["reduce"][r], result)

    def step(self) -> bool:
        """Read what has come, look who is missing, give work to those who have none. Whether anything had come."""
        heard = False
        while mail := self.inbox.poll():
            heard = True
            self.hear(mail.source, mail.message)
        if len(self.heard) < len(self.workers):
            return heard  # the others may still hold map output of a job that is resumed
        self.watch()
        for worker in sorted(self.alive):
            if not self.ending and (task := self.pick(worker)):
                self.assign(task, worker)
        if not self.left["reduce"] and not self.ending:
            self.ending = True
            for task in self.idle["map"].values():  # lost after the last reduce that needed it
                self.events.note("unneeded", task.name)
            self.tell(self.workers, "end")
        self.events.show(self.left, self.sent.total(), len(self.alive))
        return heard

    def hear(self, worker: int, message: Any) -> None:
        self.heard[worker] = time.monotonic()
        if worker not in self.alive and not self.ending:
            self.alive.add(worker)
            self.events.note("joined", worker=worker, detail="again" if message[0] != "hello" else "")
        match message:
            case "hello", held:  # what it has done already, if the job is resumed
                for m, result in held.items():
                    self.complete(worker, self.tasks["map"][m], result)
            case "pong", sent:
                self.sent[worker] = sent
            case "done", (kind, number), result:
                self.complete(worker, self.tasks[kind][number], result)
            case "failed", (kind, number), record, explanation:
                self.fail(worker, self.tasks[kind][number], record, explanation)
            case "dropped", (kind, number), progress:
                self.drop(worker, self.tasks[kind][number], progress)
            case "stalled", _ if self.left["map"]:
                self.stalled.add(worker)
            case "drained", _:
                self.drained += 1
                self.finished = self.drained == len(self.workers)
                if self.finished:
                    self.tell(self.workers, "leave")

    def tell(self, workers: Iterable[int], *message: Any) -> None:
        for worker in workers:
            self.to_workers.post(worker, message)

    def tell_reducers(self, *message: Any) -> None:
        """Reduces in progress must learn where regions go (3.3), those of a worker that may come back as well."""
        if self.reducing:
            self.tell(self.workers, *message)

    # -- who does what --

    def pick(self, worker: int) -> Task | None:
        """The next task of a worker, if it is free: reduces begin when all maps are done."""
        kind = "map" if self.left["map"] else "reduce"
        doing = self.doing[worker]
        waits = kind == "map" and worker in self.stalled and len(doing) == 1
        if doing and not waits:
            return None
        idle = self.idle[kind].values()
        near = next((task for task in idle if worker in task.near), None)
        return near or next(iter(idle), None) or (None if waits else self.straggler(kind, worker))

    def straggler(self, kind: str, worker: int) -> Task | None:
        """Nothing is idle. A task in progress elsewhere that takes twice the usual time deserves a backup (3.6)."""
        if not self.plan.backup or not self.times[kind]:
            return None
        too_long = max(BACKUP_AFTER, 2 * sum(self.times[kind]) / len(self.times[kind]))
        for other in self.workers:
            for task in self.doing[other]:
                alone = other != worker and list(task.running) == [other] and not task.done
                if alone and task.name[0] == kind and time.monotonic() - task.running[other] > too_long:
                    return task
        return None

    def assign(self, task: Task, worker: int) -> None:
        kind, number = task.name
        detail = "backup" if task.running else "" if kind == "reduce" else "near" if worker in task.near else "far"
        self.events.note("assigned", task.name, worker, detail)
        self.idle[kind].pop(task.name, None)
        task.running[worker] = time.monotonic()
        self.doing[worker].append(task)
        bad = [record for record, times in task.failures.items() if times > 1]  # to be left out (section 4.6)
        self.reducing |= kind == "reduce"
        where = [(done.worker, done.result[0][number]) for done in self.tasks["map"]] if kind == "reduce" else []
        self.tell([worker], "task", task.name, bad, where)

    def release(self, task: Task, worker: int) -> float | None:
        """A worker is no longer at a task; since when it was, None if it had been given up."""
        if task in self.doing.get(worker, []):
            self.doing[worker].remove(task)
        return task.running.pop(worker, None)

    def again(self, task: Task, why: str) -> None:
        """A task is idle again, unless someone else is at it."""
        if not task.running and not task.done and task.name not in self.idle[task.name[0]]:
            self.events.note("again", task.name, detail=why)
            self.idle[task.name[0]][task.name] = task

    # -- what workers report --

    def complete(self, worker: int, task: Task, result: Any) -> None:
        """A task is done. If it was done before, by someone else, this result and its counters are ignored (4.9)."""
        (kind, number), since = task.name, self.release(task, worker)
        if task.done:
            return
        task.done, task.worker, task.result = True, worker, result
        self.left[kind] -= 1
        early = self.idle[kind].pop(task.name, None)  # nobody was at it: it is from an earlier job, or a late answer
        self.events.note("found" if early else "done", task.name, worker, "backup" if task.running else "")
        if since is not None:
            self.times[kind].append(time.monotonic() - since)
            self.plan.faults.at(kind)
        self.tell(task.running, "drop", task.name)
        if kind == "map":
            self.tell_reducers("moved", number, worker, result[0])
            if not self.left["map"]:
                self.stalled.clear()

    def fail(self, worker: int, task: Task, record: Any, explanation: str) -> None:
        """An attempt met a record on which the user's function fails: try again, and after two failures without it."""
        self.release(task, worker)
        task.failures[record] += 1
        self.events.note("failed", task.name, worker, record)
        if len(task.failures) > BAD_RECORDS:
            kind, number = task.name
            raise RuntimeError(f"{kind} {number} failed on more than {BAD_RECORDS} records, at last so:\n{explanation}")
        self.again(task, "failed")

    def drop(self, worker: int, task: Task, progress: float) -> None:
        """A worker has left a task that someone else had finished first: how much longer would it have taken?"""
        since = self.release(task, worker)
        if task.done and since is not None and progress > 0:
            self.events.saved += (time.monotonic() - since) * (1 - progress) / progress

    # -- who is missing --

    def watch(self) -> None:
        """Ping the workers now and then; who has not answered for `timeout` seconds is given up (section 3.3)."""
        now, timeout = time.monotonic(), self.plan.timeout
        if now - self.stepped > timeout / 2:  # it was this process that was away: that says nothing about the others
            self.heard = dict.fromkeys(self.heard, now)
        self.stepped = now
        if now - self.pinged > min(0.5, timeout / 4):
            self.pinged = now
            self.tell(self.workers, "ping")  # also those given up: who answers again is welcome
        for worker in self.workers:
            if worker in self.alive and now - self.heard[worker] > timeout and not self.ending:
                self.lose(worker)
        if not self.alive and now - max(self.heard.values()) > timeout + SILENCE:
            raise RuntimeError(f"no worker has answered for {timeout + SILENCE:g} s")

    def lose(self, worker: int) -> None:
        """What it was doing is idle again, and the maps that it has done are. Reduces are not: their output is safe."""
        self.alive.remove(worker)
        self.stalled.discard(worker)
        self.events.note("lost", worker=worker, detail=self.plan.timeout)
        gone = [task for task in self.tasks["map"] if task.done and task.worker == worker]
        self.tell_reducers("lost", [task.name[1] for task in gone])
        for task in gone:
            task.done = False
            self.left["map"] += 1
        for task in (*gone, *self.doing[worker]):
            self.release(task, worker)
            self.again(task, "lost")

    def outcome(self) -> Outcome:
        tasks = [task for kind in ("map", "reduce") for task in self.tasks[kind]]
        bad = [(t.name[0], record) for t in tasks for record, times in t.failures.items() if times > 1]
        stats, counters = (sum((task.result[i] for task in tasks), Counter[str]()) for i in (1, 2))
        self.events.status.close()
        return Outcome(self.events.list, self.events.saved, stats, counters, bad)
