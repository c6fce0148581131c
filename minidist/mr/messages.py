"""A worker of `minidist.mapreduce` as the others see it: it takes tasks, answers, and lets them have its map output.

Dean & Ghemawat, OSDI 2004, section 3.1, step 5: reducers read from the disks of the map workers by remote procedure
call. Here a call is two messages. A worker that maps or reduces must serve its peers at the same time, or two that
fetch from each other would wait for ever; so whatever it does, it looks into its mailbox every few milliseconds.
"""

import itertools
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minidist.mpi.mailbox import Mailbox
from minidist.mr.files import region
from minidist.mr.master import TaskName
from minidist.mr.plan import Plan

PIECE, WINDOW = 1 << 20, 8  # a reducer asks for so many bytes of a region at a time, and has so many requests under way
IDLE = 0.001  # seconds of sleep for a rank that has nothing to do, so that it leaves the core to one that has
BREATH = 0.005  # seconds after which a rank at work looks whether someone wants something of it
NOWHERE = -1  # where a region is that was lost with its worker
Place = tuple[int, int, int]  # of a piece: reduce r, map m, offset in the region


@dataclass
class Attempt:
    """One execution of a task on this worker."""

    name: TaskName
    bad: set[Any]  # records to leave out
    where: list[tuple[int, int]]  # of a reduce, for each map: the worker that holds its region, and the bytes of it
    total: int = 0  # bytes of a map's input
    progress: float = 0.0  # the part of the task that is done
    stats: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)  # the user's

    @property
    def number(self) -> int:
        return self.name[1]


class Abandoned(Exception):
    """Someone else has finished the task that this worker is at, or the job is over."""


class Peer:
    """What a worker does between and during its tasks."""

    def __init__(self, plan: Plan, rank: int, to_master: Mailbox, inbox: Mailbox) -> None:
        self.plan, self.job, self.rank, self.to_master, self.inbox = plan, plan.job, rank, to_master, inbox
        self.folder, held = plan.own_folder(rank)
        self.tasks: deque[Attempt] = deque()
        self.unwanted: set[TaskName] = set()
        self.reduces: list[Attempt] = []  # in progress or about to be
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
                    self.unwanted.discard((kind, number))
                    self.tasks.append(Attempt((kind, number), set(bad), where))
                    if kind == "reduce":
                        self.reduces.append(self.tasks[-1])
                case "drop", name:
                    self.unwanted.add(name)
                case "lost", maps:
                    for attempt, m in itertools.product(self.reduces, maps):
                        attempt.where[m] = (NOWHERE, attempt.where[m][1])
                case "moved", m, worker, sizes:
                    for attempt in self.reduces:
                        attempt.where[m] = (worker, same(m, attempt.where[m][1], sizes[attempt.number]))
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
        """Do a task: see `minidist.mapreduce.Worker`."""
        raise NotImplementedError

    def stop_answering(self) -> None:
        """Injected: ignore everything but the end of the job."""
        while not self.ended:
            mail = self.inbox.poll()
            self.ended = mail is not None and mail.message == ("end",)
            time.sleep(0 if mail else IDLE)
        raise Abandoned

    # ---- map output: one's own, and that of others ------------------------------------------------------------------

    def map_folder(self, m: int) -> Path:
        """Where the output of a map is that this worker has done."""
        return self.folder / f"map-{m:05}"

    def fetch(self, attempt: Attempt) -> Iterator[bytes]:
        """The regions in order of the maps, piece by piece, from whoever holds them."""
        r, where = attempt.number, attempt.where  # messages change where while this runs
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
        while any(worker == NOWHERE for worker, _ in attempt.where):
            for task in self.tasks:
                if task.name[0] == "map":
                    self.tasks.remove(task)
                    self.work(task)
                    break
            else:
                time.sleep(IDLE)
            self.breathe(attempt)


def same(m: int, before: int, now: int) -> int:
    """The size of a region, which must be what it was when the map was done before."""
    if now != before:
        raise RuntimeError(
            f"map {m} gave {before} bytes, and {now} when it was done again: it depends on more than its input"
        )
    return now
