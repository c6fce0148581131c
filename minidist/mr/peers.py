"""The master and the workers of `minidist.mapreduce` as the others see them: how they listen while they work.

Dean & Ghemawat, OSDI 2004, section 3.1, step 5: reducers read from the disks of the map workers by remote procedure
call. Here a call is two messages, `Fetch` and `Region`. A worker that maps or reduces must serve its peers at the same
time, or two that fetch from each other would wait for ever; so whatever it does, it looks into its mailbox every few
milliseconds.
"""

import itertools
import os
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minidist.mpi.mailbox import Mailbox
from minidist.mr import messages
from minidist.mr.disk import Disk
from minidist.mr.files import JobError, blocks, region
from minidist.mr.last_gasp import LastGasp, read
from minidist.mr.messages import IDLE, Place
from minidist.mr.plan import Plan, Record, Result, TaskName
from minidist.mr.report import Events, Failure, Outcome
from minidist.mr.tasks import NOWHERE, Attempt, Task, Tasks

BREATH = 0.005  # seconds after which a rank at work looks whether someone wants something of it


class MasterPeer:
    """The master reads its mail, pings the workers, and notices who does not answer."""

    def __init__(self, plan: Plan, workers: range, tasks: Tasks, inbox: Mailbox, outbox: Mailbox) -> None:
        self.plan, self.workers, self.tasks, self.inbox, self.outbox = plan, workers, tasks, inbox, outbox
        self.events = Events(plan, len(workers))  # everything that happens, for the log and for the report
        self.heard: dict[int, float] = {}  # when each worker spoke last
        self.alive: set[int] = set()
        self.awaited: set[int] = set()  # the last worker, while it does not answer
        self.drained: set[int] = set()
        self.sent: Counter[int] = Counter()  # bytes that each worker has sent to reducers
        self.pinged = self.stepped = time.monotonic()
        self.ended: float | None = None  # since when there is nothing more to do
        self.failure: Failure | None = None  # that has ended the job
        self.outcome: Outcome | None = None  # when all may leave

    def step(self) -> bool:
        """Read what has come, see who is missing, give work to those who have none. Whether anything had come."""
        heard = False
        while mail := self.inbox.poll():
            heard = True
            self.hear(mail.source, mail.message)
        self.outbox.push()
        if len(self.heard) == len(self.workers):  # each may hold output of a job that is resumed
            self.watch()
            if self.ended is None:
                self.hand_out()
                if not self.tasks.left["reduce"]:
                    self.end()
            elif self.drained >= self.alive and (
                len(self.drained) == len(self.workers) or time.monotonic() - self.ended > self.plan.grace
            ):
                self.leave()
            self.events.show(self.tasks.left, self.sent.total(), len(self.alive))
        return heard

    @property
    def finished(self) -> bool:
        return self.outcome is not None

    def end(self, failure: Failure | None = None) -> None:
        """There is nothing more to do. Whoever has been given up gets one more chance to say farewell."""
        self.ended, self.failure = time.monotonic(), failure
        self.awaited.clear()
        for task in self.tasks.idle["map"].values():  # lost after the last reduce that needed it
            self.events.note("unneeded", task.name)
        self.tell(self.workers, messages.End(set(self.workers) - self.alive))

    def leave(self) -> None:
        sent = [self.sent[rank] for rank in range(self.workers.stop)]
        self.outcome = self.events.outcome(self.tasks, sent, set(self.workers) - self.drained, self.failure)
        self.tell(self.drained, messages.Leave(self.outcome))

    def hear(self, worker: int, message: Any) -> None:
        self.heard[worker] = time.monotonic()
        self.awaited.discard(worker)
        if worker not in self.alive and self.ended is None:
            self.alive.add(worker)
            self.awaited.clear()
            self.events.note("joined", worker=worker, detail="" if isinstance(message, messages.Hello) else "again")
        match message:
            case messages.Hello(held):  # what it has done already, if the job is resumed
                for m, result in held.items():
                    self.complete(self.tasks["map", m], worker, result)
            case messages.Pong(sent):
                self.sent[worker] = sent
            case messages.Done(task, result) if self.ended is None:
                self.complete(self.tasks[task], worker, result)
            case messages.Failed(task, record, explanation, machine) if self.ended is None:
                self.events.note("failed", task, worker, record)
                self.tasks.release(self.tasks[task], worker)
                if machine:
                    self.refuse(self.tasks[task], worker, explanation, record)
                else:
                    self.fail(self.tasks[task], worker, record, explanation)
            case messages.Gone(m, explanation) if self.ended is None and self.tasks.map[m].worker == worker:
                self.events.note("gone", ("map", m), worker)
                self.miss_output(self.tasks.map[m])
                self.refuse(self.tasks.map[m], worker, explanation, None)
            case messages.Dropped(task, progress):
                self.drop(self.tasks[task], worker, progress)
            case messages.Stalled():
                self.stall(worker)
            case messages.Drained(sent):
                self.sent[worker] = sent
                self.drained.add(worker)

    def watch(self) -> None:
        """Ping the workers now and then; who has not answered for `timeout` seconds is given up (section 3.3)."""
        now, timeout = time.monotonic(), self.plan.timeout
        if now - self.stepped > timeout / 2:  # it was this process that was away: that says nothing about the others
            self.heard = dict.fromkeys(self.heard, now)
        self.stepped = now
        if now - self.pinged > min(0.5, timeout / 4):
            self.pinged = now
            self.tell(self.workers, messages.Ping())  # also those given up: who answers again is welcome
        for worker in sorted(self.alive - self.awaited - self.drained):
            if now - self.heard[worker] > timeout:
                self.miss(worker)

    def miss(self, worker: int) -> None:
        """A worker does not answer. The last one is not given up: nobody could do its work, and it may only be slow."""
        doing = [task.name for task in self.tasks.doing[worker]]
        task, record = self.place(worker) or (doing[-1] if doing else ("", -1), None)
        last = len(self.alive) == 1 and self.ended is None
        self.events.note("awaited" if last else "lost", task, worker, (self.plan.timeout, record))
        if record is not None and self.ended is None:
            why = f"no answer for {self.plan.timeout:g} s; if the function may take so long, give a longer --timeout"
            self.blame(self.tasks[task], worker, record, why, times=2)
            if last and self.ended is None and record in self.tasks[task].skip:
                self.end(Failure(task, worker, record, f"{why}\nNo other worker is left that could do without it."))
        if last and self.ended is None:
            self.awaited.add(worker)
            return
        self.alive.remove(worker)
        if self.ended is None:
            self.lose(worker)
        else:
            self.tell(self.alive, messages.End(set(self.workers) - self.alive))

    def place(self, worker: int) -> tuple[TaskName, Record] | None:
        """The record that a worker's function is at, if that can be known here."""
        hosts = self.plan.hosts
        return read(self.plan.gasp(worker)) if hosts and hosts[worker] == hosts[0] else None

    def tell(self, workers: Iterable[int], message: Any) -> None:
        for worker in workers:
            self.outbox.post(worker, message)

    # What it decides: see `minidist.mapreduce`.

    def hand_out(self) -> None:
        raise NotImplementedError

    def complete(self, task: Task, worker: int, result: Result) -> None:
        raise NotImplementedError

    def lose(self, worker: int) -> None:
        raise NotImplementedError

    def stall(self, worker: int) -> None:
        raise NotImplementedError

    def fail(self, task: Task, worker: int, record: Record | None, explanation: str) -> None:
        raise NotImplementedError

    def refuse(self, task: Task, worker: int, explanation: str, record: Record | None) -> None:
        raise NotImplementedError

    def miss_output(self, *maps: Task) -> None:
        raise NotImplementedError

    def blame(self, task: Task, worker: int, record: Record, explanation: str, times: int) -> None:
        raise NotImplementedError

    def drop(self, task: Task, worker: int, progress: float) -> None:
        raise NotImplementedError


class Abandoned(Exception):
    """Someone else has finished the task that this worker is at, or the job is over."""


class WorkerPeer:
    """A worker takes tasks, answers, and lets the others have its map output."""

    def __init__(self, plan: Plan, rank: int, disk: Disk, inbox: Mailbox, to_master: Mailbox) -> None:
        self.plan, self.job, self.rank = plan, plan.job, rank
        self.disk, self.inbox, self.to_master = disk, inbox, to_master
        self.todo: deque[Attempt] = deque()
        self.unwanted: set[TaskName] = set()
        self.reduces: list[Attempt] = []  # in progress or about to be
        self.asked: dict[Place, int] = {}  # the pieces that the present reduce waits for, and who was asked for them
        self.arrived: dict[Place, bytes] = {}
        self.ended = self.drained = self.stalled = False
        self.lost: set[int] = set()  # workers that will never take what is sent to them
        self.outcome: Outcome | None = None  # what came of the job, when it is over
        self.next_breath = 0.0
        self.ledger, self.before = inbox.comm.ledger, inbox.comm.ledger.total()
        self.gasp = LastGasp(plan.gasp(rank))
        self.tell_master(messages.Hello(disk.held(plan.reducers)))

    @property
    def finished(self) -> bool:
        return self.outcome is not None

    @property
    def sent(self) -> int:
        """Bytes that have gone to reducers: there is no other payload."""
        return self.ledger.total() - self.before

    def tell_master(self, message: Any) -> None:
        self.to_master.post(0, message)

    def step(self) -> bool:
        """Answer, then do a task. Whether there was one, or a message."""
        busy = self.serve()
        if self.todo and not self.ended:
            self.work(self.todo.popleft())
        elif self.ended and not self.drained and self.inbox.pending() <= self.lost:
            self.drained = True  # all that this worker has sent has arrived; when it is so everywhere, all may leave
            self.tell_master(messages.Drained(self.sent))
        return busy

    def work(self, attempt: Attempt) -> None:
        """Do a task, and tell the master how it went."""
        outer, self.job.counters = getattr(self.job, "counters", None), attempt.counters
        try:
            result = self.map(attempt) if attempt.name[0] == "map" else self.reduce(attempt)
        except Abandoned:
            self.tell_master(messages.Dropped(attempt.name, attempt.progress))
        except (Exception, SystemExit) as error:
            why, machine = explain(error, attempt.record), isinstance(error, OSError)
            self.tell_master(messages.Failed(attempt.name, attempt.record, why, machine))
        else:
            self.tell_master(messages.Pong(self.sent))
            self.tell_master(messages.Done(attempt.name, result))
        self.job.counters = outer  # of the reduce that waits for this map, if it is so
        self.reduces = [reduce for reduce in self.reduces if reduce is not attempt]

    # What the tasks are: see `minidist.mapreduce`.

    def map(self, attempt: Attempt) -> Result:
        raise NotImplementedError

    def reduce(self, attempt: Attempt) -> Result:
        raise NotImplementedError

    # ---- what a worker does while it works ---------------------------------------------------------------------------

    def breathe(self, attempt: Attempt) -> None:
        """Called all the time while a task runs: once in a while, look up from it."""
        if time.monotonic() > self.next_breath:
            self.look_up(attempt)

    def look_up(self, attempt: Attempt) -> None:
        """See whether someone wants something; leave a task that nobody needs any more."""
        self.serve()
        self.next_breath = time.monotonic() + BREATH
        if self.ended or attempt.name in self.unwanted:
            raise Abandoned

    def serve(self) -> bool:
        """Do what messages ask; whether there were any."""
        busy = False
        self.to_master.push()
        while mail := self.inbox.poll():
            busy = True
            match mail.message:
                case messages.Do(task, source, skip):
                    self.unwanted.discard(task)
                    self.todo.append(Attempt(task, source, skip, self.gasp))
                    if task[0] == "reduce":
                        self.reduces.append(self.todo[-1])
                case messages.Drop(task):
                    self.unwanted.add(task)
                case messages.Lost(maps):
                    self.stalled = False
                    for attempt, m in itertools.product(self.reduces, maps):
                        attempt.source[m] = (NOWHERE, attempt.source[m][1])
                case messages.Moved(m, worker, sizes):
                    for attempt in self.reduces:
                        attempt.source[m] = (worker, sizes[attempt.number])
                case messages.Ping() if not self.drained:
                    self.tell_master(messages.Pong(self.sent))
                case messages.Fetch(place, nbytes) if not self.ended:
                    path = region(self.map_folder(place.m), place.r)
                    try:
                        piece = np.frombuffer(self.disk.read(path, place.offset, nbytes), np.uint8)
                    except OSError as error:
                        self.disk.remove(self.map_folder(place.m))
                        self.tell_master(messages.Gone(place.m, str(error)))
                    else:
                        self.inbox.post(mail.source, messages.Region(place), piece)
                case messages.Region(place) if place in self.asked and mail.payload is not None:
                    self.arrived[place] = mail.payload.tobytes()
                case messages.End(lost):
                    self.ended, self.lost = True, lost
                case messages.Leave(outcome):
                    self.outcome = outcome
        return busy

    def map_folder(self, m: int) -> Path:
        """Where the output of a map is that this worker has done."""
        return self.disk.folder / f"map-{m:05}"

    def do_a_map_meanwhile(self) -> None:
        """This worker's reduce waits for a map that must be done again. Perhaps nobody else is free to do it."""
        if not self.stalled:
            self.stalled = True
            self.tell_master(messages.Stalled())
        if task := next((task for task in self.todo if task.name[0] == "map"), None):
            self.todo.remove(task)
            self.work(task)
        else:
            time.sleep(IDLE)

    def records(self, attempt: Attempt) -> Iterator[tuple[str, int, str]]:
        """(document, offset, text) of the records of a split, but for those that are to be left out (section 4.6)."""
        size = sum(piece.end - piece.start for piece in attempt.source)
        for block in blocks(attempt.source, self.plan.block):
            read = attempt.stats["input bytes"]
            for offset, text in self.plan.records(block):
                if attempt.leaves_out((block.document, offset)):
                    attempt.stats.update({"records left out": 1, "records": -1})
                else:
                    yield block.document, offset, text
                attempt.progress = (read + offset - block.offset) / size
                self.breathe(attempt)
            done = {"input bytes": len(block.data), "records": len(block), "undecodable sequences": block.replaced}
            attempt.stats.update(done)


OURS = os.path.dirname(os.path.dirname(__file__))


def explain(error: BaseException, record: Record | None) -> str:
    """The traceback of the user's function, without this package's own frames; all of it if it was no function of
    theirs that failed."""
    if isinstance(error, JobError):
        return str(error)
    below = error.__traceback__
    while below and below.tb_frame.f_code.co_filename.startswith(OURS):
        below = below.tb_next
    whole = error.__traceback__ if record is None else None
    return "".join(traceback.format_exception(type(error), error, below or whole)).rstrip()
