"""The paper's sort on a tenth of its cluster, in simulated time: locality, backup tasks and lost workers (section 5).

The master is the chapter's own: it assigns, notices, gives up and repeats as it does on ranks. Clock and workers are
simulated: a map or a reduce takes as long as the paper's figures say on average, give or take a quarter. So this shows
what the master's decisions are worth if machines are slow or die. The paper does not print how slow its slow machines
were, so its figures are shown next to the result, but are no claims.
"""

import heapq
import itertools
import math
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from minidist.cli.tables import print_table
from minidist.mpi import environment
from minidist.mpi.mailbox import Letter
from minidist.mr import messages
from minidist.mr.jobs import Sort
from minidist.mr.plan import Plan, TaskName, TaskResult
from minidist.mr.report import EndedJob
from minidist.mr.tasks import Tasks
from minidist.mr.watch import MasterPeer
from minidist.papers.mapreduce import SORT

SCALE = 10
WORKERS, MAPS, REDUCES = SORT.workers // SCALE, SORT.maps // SCALE, SORT.reduces // SCALE
# A worker runs M/W maps until all are done, and R/W reduces in the remaining time, both rounded up.
SECONDS = {
    "map": SORT.maps_done / math.ceil(MAPS / WORKERS),
    "reduce": (SORT.seconds - SORT.maps_done) / math.ceil(REDUCES / WORKERS),
}
TICK = 1.0  # seconds after which the master looks for missing workers, if nothing else happens


@dataclass(frozen=True)
class Case:
    """What is wrong with the cluster, and what the master does about it."""

    slow: dict[int, float] = field(default_factory=dict)  # how many times slower some workers are
    killed: dict[int, float] = field(default_factory=dict)  # when some workers die
    backup: bool = True
    replicas: int = 3


class Box:
    """A mailbox between the master and simulated workers."""

    def __init__(self) -> None:
        self.mail: deque[Letter] = deque()

    def poll(self) -> Letter | None:
        return self.mail.popleft() if self.mail else None

    def post(self, rank: int, message: Any) -> None:
        if not isinstance(message, messages.Ping):
            self.mail.append(Letter(rank, message, None))

    def push(self) -> None:
        """Do nothing: `post` delivers at once."""


def seconds_of(name: TaskName) -> float:
    """How long a task takes on a machine that is not slow: its kind's time, give or take up to a quarter."""
    share = int.from_bytes(blake2b(repr(name).encode(), digest_size=4).digest()) / 2**32
    return SECONDS[name[0]] * (0.75 + share / 2)


def simulate(make_master: Callable[..., MasterPeer], case: Case) -> tuple[float, EndedJob]:
    """The seconds until all output is there, and what the master recorded."""
    now, order = 0.0, itertools.count()
    plan = Plan(
        Sort(),
        [],
        Path(os.devnull) / "nowhere",
        reducers=REDUCES,
        maps=MAPS,
        backup=case.backup,
        replicas=case.replicas,
    )
    workers, to_master, to_workers = range(1, WORKERS + 1), Box(), Box()
    tasks = Tasks(plan, [[] for _ in range(MAPS)], workers)
    master = make_master(plan, workers, tasks, to_master, to_workers, lambda: now)
    done = {"map": TaskResult([0] * REDUCES, *TaskResult.empty()[1:]), "reduce": TaskResult.empty()}
    under_way: list[tuple[float, int, int, TaskName]] = []  # (when it will be done, order, worker, task)
    dropped: set[tuple[int, TaskName]] = set()
    for worker in workers:
        to_master.post(worker, messages.Hello({}))
    while not master.finished:
        master.heard.update((w, now) for w in workers if now < case.killed.get(w, math.inf))  # pings are answered
        master.step()
        while mail := to_workers.poll():
            worker = mail.source
            if now >= case.killed.get(worker, math.inf):
                continue
            match mail.message:
                case messages.Do(name):
                    dropped.discard((worker, name))
                    end = now + seconds_of(name) * case.slow.get(worker, 1.0)
                    heapq.heappush(under_way, (end, next(order), worker, name))
                case messages.DropTask(name):
                    dropped.add((worker, name))
                    to_master.post(worker, messages.Dropped(name, 0.0))
                case messages.End():
                    to_master.post(worker, messages.Drained(0))
        if to_master.mail:
            continue
        now = min(now + TICK, under_way[0][0]) if under_way else now + TICK
        while under_way and under_way[0][0] <= now:
            _, _, worker, name = heapq.heappop(under_way)
            if (worker, name) not in dropped and now < case.killed.get(worker, math.inf):
                to_master.post(worker, messages.TaskDone(name, done[name[0]]))
    assert master.outcome
    assert master.ended
    return master.ended, master.outcome


SLOWER, SLOW_ONES = 4.0, (44, 88, 132)  # how many times slower one worker is; which one, in turn: a row is their mean
DEATH = 150.0  # seconds: "several minutes into the computation" (section 5.5)
CASES = {
    "all is well": [Case()],
    f"one worker {SLOWER:g} times slower": [Case(slow={worker: SLOWER}) for worker in SLOW_ONES],
    "the same, no backup tasks": [Case(slow={worker: SLOWER}, backup=False) for worker in SLOW_ONES],
    f"{SORT.killed // SCALE} workers die": [Case(killed=dict.fromkeys(range(1, SORT.killed // SCALE + 1), DEATH))],
    "one copy of each split": [Case(replicas=1)],
    "two copies": [Case(replicas=2)],
}
PRINTED = {
    "all is well": f"{SORT.seconds:g} s",
    "the same, no backup tasks": f"{SORT.without_backups:g} s",
    f"{SORT.killed // SCALE} workers die": f"{SORT.seconds_with_killed:g} s",
}


@dataclass(frozen=True)
class CaseMeans:
    """The result of a case, on average."""

    seconds: float
    again: float  # executions because of lost workers
    backups: float
    near: float  # the part of the maps that began on a machine with a copy of their split

    @classmethod
    def of(cls, make_master: Callable[..., MasterPeer], cases: list[Case]) -> "CaseMeans":
        seconds, outcomes = zip(*(simulate(make_master, case) for case in cases), strict=True)
        near, first = (sum(o.count("assigned", *where) for o in outcomes) for where in (("near",), ("near", "far")))
        again, backups = (sum(o.count(*what) for o in outcomes) for what in (("again",), ("assigned", "backup")))
        return cls(sum(seconds) / len(cases), again / len(cases), backups / len(cases), near / first)


def print_cluster(make_master: Callable[..., MasterPeer]) -> None:
    """Print the table: each case next to the paper's figures for its cluster."""
    if environment.rank():
        return
    rows = {name: CaseMeans.of(make_master, cases) for name, cases in CASES.items()}
    least = rows["all is well"].seconds
    print("A tenth of the paper's sort (section 5.3):")
    print(f"W = {WORKERS} workers, M = {MAPS} maps, R = {REDUCES} reduces")
    print_table(
        "In simulated time, next to the paper's whole cluster",
        "",
        ("seconds", "times", "again", "backup", "near", "paper", "times"),
        [
            [
                name,
                f"{row.seconds:.0f}",
                f"{row.seconds / least:.2f}",
                f"{row.again:.0f}",
                f"{row.backups:.1f}",
                f"{row.near:.0%}",
                PRINTED.get(name, ""),
                f"{float(PRINTED[name][:-2]) / SORT.seconds:.2f}" if name in PRINTED else "",
            ]
            for name, row in rows.items()
        ],
    )
    print("again: executions because of lost workers")
    print("near:  maps begun where a copy of their split is")
    print("The paper does not say how slow its slow machines were; it restarted the dead.")
