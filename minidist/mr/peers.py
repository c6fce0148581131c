"""The messages of a `minidist.mapreduce` worker: how it listens while it works.

Dean & Ghemawat, OSDI 2004, section 3.1, step 5: reducers read from the disks of the map workers by remote procedure
call. Here a call is two messages, `Fetch` and `Region`. A worker that maps or reduces must serve its peers at the same
time; otherwise two workers that fetch from each other would wait forever. So it looks into its mailbox every few
milliseconds, no matter what it does.
"""

import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import numpy as np

from minidist import FileFailed
from minidist.memory.kernel import AUDIT, Kernel
from minidist.mpi.mailbox import NumberedMailbox
from minidist.mpi.output import no_memory
from minidist.mr import messages
from minidist.mr.checksums import PIECE
from minidist.mr.disk import Disk
from minidist.mr.files import JobError, blocks, region
from minidist.mr.last_gasp import LastGasp
from minidist.mr.messages import IDLE, PieceId
from minidist.mr.plan import Plan, Record, TaskName, TaskResult
from minidist.mr.report import EndedJob
from minidist.mr.tasks import NOWHERE, PATIENCE, Attempt, explain_silence
from minidist.system import unix

T = TypeVar("T")

BREATH = 0.005  # seconds after which a working rank looks for messages


class Abandoned(Exception):
    """Another worker has finished the task that this worker is running, or the job is over."""


class WorkerPeer:
    """A worker takes tasks, answers messages, and sends its map output to the others."""

    def __init__(self, plan: Plan, rank: int, disk: Disk, inbox: NumberedMailbox, to_master: NumberedMailbox) -> None:
        self.plan, self.job, self.rank = plan, plan.job, rank
        self.disk, self.inbox, self.to_master = disk, inbox, to_master
        self.queue: deque[Attempt] = deque()
        self.unwanted: set[TaskName] = set()
        self.reduces: list[Attempt] = []  # in progress or about to be
        self.asked: dict[PieceId, int] = {}  # the pieces that the current reduce waits for, and the workers asked
        self.arrived: dict[PieceId, bytes] = {}
        self.ended = self.drained = self.stalled = False
        self.lost: set[int] = set()  # workers that will never take what is sent to them
        self.outcome: EndedJob | None = None  # the job's result, when it is over
        self.next_breath = 0.0
        self.alone = inbox.comm.size == 1 and threading.current_thread() is threading.main_thread()
        self.ledger, self.before = inbox.comm.ledger, inbox.comm.ledger.total()
        self.gasp = LastGasp(plan.gasp(rank))
        held = disk.kept_results(plan.reducers)
        self.sums = {m: result.sums for m, result in held.items() if result}  # of the maps whose output is here
        self.tell_master(messages.Hello(held))
        self.audited = os.environ.get(AUDIT)  # a folder, if an audit compares what is read and written
        self.kernel = Kernel()
        self.begun = self.kernel.io() if self.audited else (0, 0)

    @property
    def finished(self) -> bool:
        return self.outcome is not None

    @property
    def sent(self) -> int:
        """Bytes sent to reducers: there is no other payload."""
        return self.ledger.total() - self.before

    def tell_master(self, message: Any) -> None:
        self.to_master.post(0, message)

    def step(self) -> bool:
        """Answer messages, then run a task. Returns whether there was a message."""
        busy = self.serve()
        if self.queue and not self.ended:
            self.work(self.queue.popleft())
        elif self.ended and not self.drained and self.inbox.pending() <= self.lost:
            self.drained = True  # all that this worker has sent has arrived; when it is so everywhere, all may leave
            self.tell_master(messages.Drained(self.sent))
        return busy

    def work(self, attempt: Attempt) -> None:
        """Do a task, and tell the master how it went."""
        self.job.counters = attempt.counters
        try:
            with forbid_exit(), self.alarm(attempt):
                result = self.map(attempt) if attempt.name[0] == "map" else self.reduce(attempt)
        except Abandoned:
            self.tell_master(messages.Dropped(attempt.name, attempt.progress))
        except BaseException as error:  # also SystemExit, by which a function would end the process
            record = None if isinstance(error, FileFailed) else attempt.record
            why, machine = explain(error, record), isinstance(error, OSError)
            self.tell_master(messages.Failed(attempt.name, record, why, machine))
        else:
            if attempt.name[0] == "map":
                self.sums[attempt.number] = result.sums
            self.tell_master(messages.Pong(self.sent))
            self.tell_master(messages.TaskDone(attempt.name, result))
        self.gasp.leave()
        self.reduces = [reduce for reduce in self.reduces if reduce is not attempt]

    @contextmanager
    def alarm(self, attempt: Attempt) -> Iterator[None]:
        """If there is only one rank, end a function that never returns: the rank, also the master, cannot notice it."""
        if not self.alone:
            yield
            return
        patience = PATIENCE * self.plan.timeout

        def ring(*_: object) -> None:
            if attempt.record is not None and time.monotonic() > self.next_breath + patience:
                raise JobError(explain_silence(patience))

        with unix.ticking(patience / 5, ring):
            yield

    # What the tasks are: see `minidist.mapreduce`.

    def map(self, attempt: Attempt) -> TaskResult:
        raise NotImplementedError

    def reduce(self, attempt: Attempt) -> TaskResult:
        raise NotImplementedError

    # ---- what a worker does while it works ---------------------------------------------------------------------------

    def breathe(self, attempt: Attempt) -> None:
        """Called all the time while a task runs; now and then it looks for messages."""
        if time.monotonic() > self.next_breath:
            self.look_up(attempt)
        self.job.counters = attempt.counters  # a map meanwhile, or another rank of this process, has had its own

    def look_up(self, attempt: Attempt) -> None:
        """Look for messages; leave a task whose result is no longer needed."""
        self.serve()
        self.next_breath = time.monotonic() + BREATH
        if self.ended or attempt.name in self.unwanted:
            raise Abandoned

    def breathing(self, attempt: Attempt, values: Iterable[T]) -> Iterator[T]:
        """These values, for a function that reads many of them; calls `breathe` in between."""
        for value in values:
            self.breathe(attempt)
            yield value

    def serve(self) -> bool:
        """Do what messages ask. Returns whether there were any."""
        busy = False
        self.to_master.push()
        while mail := self.inbox.poll():
            busy = True
            match mail.message:
                case messages.Do(task, source, skip):
                    self.unwanted.discard(task)
                    self.queue.append(Attempt(task, source, skip, self.gasp))
                    if task[0] == "reduce":
                        self.reduces.append(self.queue[-1])
                case messages.DropTask(task):
                    self.unwanted.add(task)
                case messages.OutputLost(maps):
                    self.stalled = False
                    for attempt, m in itertools.product(self.reduces, maps):
                        attempt.source[m] = (NOWHERE, attempt.source[m][1])
                    for place in self.asked.keys() - self.arrived.keys():
                        if place.m in maps:  # ask again, even if the same worker has it next
                            self.asked[place] = NOWHERE
                case messages.OutputMoved(m, worker, sizes):
                    for attempt in self.reduces:
                        attempt.source[m] = (worker, sizes[attempt.number])
                case messages.Ping() if not self.drained:
                    self.tell_master(messages.Pong(self.sent))
                case messages.Fetch(place, nbytes) if not self.ended:
                    try:
                        piece = np.frombuffer(self.read_region(place, nbytes), np.uint8)
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
                    if self.audited:
                        self.write_account(Path(self.audited, f"{self.rank}.disk.json"))
        return busy

    def read_region(self, place: PieceId, nbytes: int) -> bytes:
        """A piece of a region that a map of this worker has written. Raises FileFailed if it is lost or damaged."""
        path = region(self.map_folder(place.m), place.r)
        data = self.disk.read(path, place.offset, nbytes)
        if crc32(data) != self.sums[place.m][place.r][place.offset // PIECE]:
            raise FileFailed(f"{path} is damaged")
        return data

    def write_account(self, path: Path) -> None:
        """What this worker's disk has moved, next to what the kernel has counted for the whole process, including the
        reading of that count."""
        looked = self.kernel.looked
        read, written = (now - before for now, before in zip(self.kernel.io(), self.begun, strict=True))
        account = {"moved": self.disk.moved, "process read": read, "process written": written, "looked": looked}
        path.write_text(json.dumps(account), encoding="utf-8")

    def map_folder(self, m: int) -> Path:
        """The folder with the output of a map that this worker has done."""
        return self.disk.folder / f"map-{m:05}"

    def do_a_map_meanwhile(self) -> None:
        """This worker's reduce waits for a map that must be repeated. Perhaps no other worker is free to run it."""
        if not self.stalled:
            self.stalled = True
            self.tell_master(messages.Stalled())
        if task := next((task for task in self.queue if task.name[0] == "map"), None):
            self.queue.remove(task)
            self.work(task)
        else:
            time.sleep(IDLE)

    def records(self, attempt: Attempt) -> Iterator[tuple[str, int, str]]:
        """(document, offset, text) of the records of a split, except those to leave out (section 4.6)."""
        size = sum(piece.end - piece.start for piece in attempt.source)
        for block in blocks(attempt.source, self.plan.block, self.disk.moved):
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


@contextmanager
def forbid_exit() -> Iterator[None]:
    """A user's function that calls os._exit would silently end this process, and with it the job: in here that is an
    error like any other. Processes that it has forked, other threads, and other ranks outside of here may still call
    it."""
    token = _may_not_exit.set(os.getpid())
    if not _inside:
        _inside.append(os._exit)
        os._exit = refuse  # type: ignore[assignment]  # it returns where os._exit does not
    _inside.append(token)
    try:
        yield
    finally:
        _may_not_exit.reset(token)
        _inside.remove(token)
        if len(_inside) == 1:
            os._exit = _inside.pop()


_may_not_exit: ContextVar[int] = ContextVar("may not exit", default=0)  # the process in which this rank may not
_inside: list[Any] = []  # what os._exit was, and one token for each rank of this process that is inside


def refuse(status: int) -> None:
    """os._exit, while some rank is inside."""
    if _may_not_exit.get() == os.getpid():
        raise JobError(f"{sys._getframe(1).f_code.co_name} called os._exit({status})")
    _inside[0](status)


OURS = os.path.dirname(os.path.dirname(__file__))


def explain(error: BaseException, record: Record | None) -> str:
    """The traceback of the user's function, without this package's own frames; the whole traceback if the failure was
    not in a user's function."""
    if isinstance(error, JobError | FileFailed):
        return str(error)
    if isinstance(error, MemoryError) and record is None:
        return no_memory(error)
    below = error.__traceback__
    while below and below.tb_frame.f_code.co_filename.startswith(OURS):
        below = below.tb_next
    whole = error.__traceback__ if record is None else None
    return "".join(traceback.format_exception(type(error), error, below or whole)).rstrip()
