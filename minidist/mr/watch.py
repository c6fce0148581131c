"""The messages that the master of `minidist.mapreduce` gets, and when it gives up a worker, a record, or the job.

Dean & Ghemawat, OSDI 2004, sections 3.3 (a worker that does not answer a ping has failed), 4.6 (bad records) and 4.9
(counters).
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from minidist.mpi.mailbox import NumberedMailbox
from minidist.mr import last_gasp, messages
from minidist.mr.plan import Plan, Record, TaskName, TaskResult
from minidist.mr.report import EndedJob, Events
from minidist.mr.tasks import NOWHERE, PATIENCE, Failure, Task, Tasks, explain_silence


class MasterPeer:
    """The master reads its mail, pings the workers, notices which do not answer, and ends the job."""

    def __init__(
        self,
        plan: Plan,
        workers: range,
        tasks: Tasks,
        inbox: NumberedMailbox,
        outbox: NumberedMailbox,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self.workers, self.tasks, self.inbox, self.outbox = plan, workers, tasks, inbox, outbox
        self.clock = clock
        self.events = Events(plan, len(workers), clock)  # everything that happens, for the log and for the report
        self.heard: dict[int, float] = {}  # when each worker spoke last
        self.alive: set[int] = set()
        self.awaited: set[int] = set()  # the last worker, while it does not answer
        self.drained: set[int] = set()  # workers that have sent `Drained`
        self.sent: Counter[int] = Counter()  # bytes that each worker has sent to reducers
        self.pinged = self.stepped = clock()
        self.ended: float | None = None  # since when there is nothing more to do
        self.failure: Failure | None = None  # the one that ended the job
        self.outcome: EndedJob | None = None  # the result, once all may leave
        for r, result in plan.committed().items():
            if result is None:
                self.events.note("damaged", ("reduce", r))
            else:
                self.complete(tasks.reduce[r], NOWHERE, result)

    # What it decides: see `minidist.mapreduce`.

    def hand_out(self) -> None:
        raise NotImplementedError

    def complete(self, task: Task, worker: int, result: TaskResult) -> None:
        raise NotImplementedError

    def lose(self, worker: int) -> None:
        raise NotImplementedError

    def lose_output(self, maps: list[Task], why: str) -> None:
        raise NotImplementedError

    def requeue(self, task: Task, why: str) -> None:
        raise NotImplementedError

    # ---- what it hears ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Read messages, look for missing workers, give tasks to free ones. Returns whether there was a message."""
        heard = False
        while mail := self.inbox.poll():
            heard = True
            self.hear(mail.source, mail.message)
        self.outbox.push()
        if len(self.heard) == len(self.workers):  # all have spoken: each may hold output of a resumed job
            self.watch()
            if self.ended is None:
                self.hand_out()
                if not self.tasks.left["reduce"]:
                    self.end()
            elif self.drained >= self.alive and (
                len(self.drained) == len(self.workers) or self.clock() - self.ended > self.plan.grace
            ):
                self.leave()
            self.events.show(self.tasks.left, self.sent.total(), len(self.alive))
        return heard

    def hear(self, worker: int, message: Any) -> None:
        self.heard[worker] = self.clock()
        self.awaited.discard(worker)
        if worker not in self.alive and self.ended is None:
            self.alive.add(worker)
            self.awaited.clear()
            self.events.note("joined", worker=worker, detail="" if isinstance(message, messages.Hello) else "again")
        match message:
            case messages.Pong(sent):
                self.sent[worker] = sent
            case messages.Drained(sent):
                self.sent[worker] = sent
                self.drained.add(worker)
            case messages.Dropped(name, progress):
                since = self.tasks.release(task := self.tasks[name], worker)
                if task.done and since is not None and progress > 0:  # how much longer would it have taken?
                    self.events.saved += (self.clock() - since) * (1 - progress) / progress
            case _ if self.ended is not None:
                pass
            case messages.Hello(held):  # what it has done already, if the job is resumed
                for m, result in held.items():
                    if result is None:
                        self.events.note("damaged", ("map", m), worker)
                    else:
                        self.hear_result(self.tasks.map[m], worker, result)
            case messages.TaskDone(name, result):
                self.hear_result(self.tasks[name], worker, result)
            case messages.Failed(name, record, explanation, machine):
                self.events.note("failed", name, worker, record)
                self.tasks.release(self.tasks[name], worker)
                self.fail(self.tasks[name], Failure(name, worker, record, explanation), machine)
            case messages.Gone(m, explanation) if (task := self.tasks.map[m]).done and task.worker == worker:
                self.events.note("gone", task.name, worker, explanation)
                self.lose_output([task], "gone")
                if worker in task.lost_by:  # its disk loses it again and again
                    self.refuse(task, Failure(task.name, worker, None, explanation))
                task.lost_by.add(worker)
            case messages.Stalled() if self.tasks.left["map"]:
                self.tasks.stalled.add(worker)

    def tell(self, workers: Iterable[int], message: Any) -> None:
        for worker in workers:
            self.outbox.post(worker, message)

    def hear_result(self, task: Task, worker: int, result: TaskResult) -> None:
        """If another worker has already done the task, this result and its counters are ignored (4.9)."""
        if task.done:
            self.tasks.release(task, worker)
            return
        if task.result.sizes not in ([], result.sizes):
            before, now = sum(task.result.sizes), sum(result.sizes)
            why = f"It gave {before} bytes, and {now} when it was done again: it depends on more than its input."
            return self.end(Failure(task.name, worker, None, why))
        for reduce, first, again in zip(self.tasks.reduce, task.result.sums, result.sums, strict=False):
            if first != again and len(first) > 1 and reduce.running:
                why = "It gave other pairs, or another order, when done again: it depends on more than its input."
                return self.end(Failure(task.name, worker, None, why))  # a reduce may have read the first of them
        self.complete(task, worker, result)
        if result.left_out and self.tasks.bad_records() > self.plan.skip_bad:  # by an earlier run, which allowed more
            record, why = result.left_out[-1]
            self.end(Failure(task.name, worker, record, why, self.plan.skip_bad))

    # ---- workers that do not answer ----------------------------------------------------------------------------------

    def watch(self) -> None:
        """Ping the workers now and then; give up a worker that has not answered for `timeout` seconds (section 3.3)."""
        now, timeout = self.clock(), self.plan.timeout
        if now - self.stepped > timeout / 2:  # this process itself was paused: that says nothing about the others
            self.heard = dict.fromkeys(self.heard, now)
        self.stepped = now
        if now - self.pinged > min(0.5, timeout / 4):
            self.pinged = now
            self.tell(self.workers, messages.Ping())  # also those given up: one that answers again is welcome
        for worker in sorted(self.alive - self.drained):
            silent = now - self.heard[worker]
            if silent > timeout and worker not in self.awaited:
                self.miss(worker)
            elif silent > PATIENCE * timeout and self.ended is None:
                self.give_up_last(worker, silent)

    def miss(self, worker: int) -> None:
        """A worker does not answer. The last one is not given up: no other could do its work; it may only be slow."""
        name, record = self.find_record(worker)
        last = len(self.alive) == 1 and self.ended is None
        what = "awaited" if last else "lost" if self.ended is None else "left"
        self.events.note(what, name, worker, (self.plan.timeout, record))
        if record is not None and self.ended is None and not self.tasks[name].done:
            why = explain_silence(self.plan.timeout)
            self.blame(self.tasks[name], Failure(name, worker, record, why), times=2)
            if last and record in self.tasks[name].skip:
                why = f"{why}\nNo other worker is left that could do without this record."
                self.end(Failure(name, worker, record, why, self.plan.skip_bad))
        if last and self.ended is None:
            self.awaited.add(worker)
            return
        self.alive.remove(worker)
        if self.ended is None:
            self.lose(worker)
            for task in self.tasks.all():
                self.check_refusals(task)
        else:
            self.tell(self.alive, messages.End(set(self.workers) - self.alive))

    def give_up_last(self, worker: int, silent: float) -> None:
        """End the job: the last worker has been silent for too long, so its function seems never to return."""
        name, record = self.find_record(worker)
        self.end(Failure(name, worker, record, explain_silence(round(silent, 1)) + "\nNo other worker is left."))

    def find_record(self, worker: int) -> tuple[TaskName, Record | None]:
        """The task and the record that a worker is working on, as far as they are known."""
        doing = [task.name for task in self.tasks.doing[worker]]
        return self.current_record(worker) or (doing[-1] if doing else ("", -1), None)

    def current_record(self, worker: int) -> tuple[TaskName, Record] | None:
        """The task and record of a worker's function, if the worker is on this machine."""
        hosts = self.plan.hosts
        return last_gasp.read(self.plan.gasp(worker)) if hosts and hosts[worker] == hosts[0] else None

    # ---- tasks and records that fail ---------------------------------------------------------------------------------

    def fail(self, task: Task, failure: Failure, machine: bool) -> None:
        """Let another machine try the task, or try again and then leave out the record, or end the job."""
        if machine:
            self.refuse(task, failure)
        elif failure.record is None:
            self.end(failure)
        else:
            self.blame(task, failure, times=2 if self.plan.skip_bad else 1)
            self.requeue(task, "failed")

    def refuse(self, task: Task, failure: Failure) -> None:
        """A worker cannot read or write what the task needs: it must not try again."""
        task.refused[failure.worker] = replace(failure, machine=True)
        self.requeue(task, "machine")
        self.check_refusals(task)

    def check_refusals(self, task: Task) -> None:
        """End the job if no worker can do the task."""
        if not task.done and self.alive <= task.refused.keys():
            self.end(next(iter(task.refused.values())))

    def blame(self, task: Task, failure: Failure, times: int) -> None:
        """A record is bad once enough attempts have failed on it. More bad records than allowed end the job (4.6)."""
        assert failure.record is not None
        task.failures[failure.record] += 1
        if task.failures[failure.record] >= times and failure.record not in task.skip:
            task.skip[failure.record] = failure.explanation.splitlines()[-1]
            if self.tasks.bad_records() > self.plan.skip_bad:
                self.end(replace(failure, skip_bad=self.plan.skip_bad))

    # ---- the end ----------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.outcome is not None

    def end(self, failure: Failure | None = None) -> None:
        """End the job. Workers that were given up get one more chance to send `Drained`."""
        if self.ended is not None:
            return
        self.ended, self.failure = self.clock(), failure
        self.awaited.clear()
        for task in self.tasks.idle["map"].values():  # lost after the last reduce that needed it
            self.events.note("unneeded", task.name)
        self.tell(self.workers, messages.End(set(self.workers) - self.alive))

    def leave(self) -> None:
        """Record the outcome, and let the workers leave: all that answer have sent `Drained`."""
        sent = [self.sent[rank] for rank in range(self.workers.stop)]
        self.outcome = self.events.outcome(self.tasks, sent, set(self.workers) - self.drained, self.failure)
        self.tell(self.drained, messages.Leave(self.outcome))
