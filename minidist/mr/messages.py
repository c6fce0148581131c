"""The messages between the master and the workers of `minidist.mapreduce`. watch.py and peers.py handle them."""

from typing import Any, NamedTuple

from minidist.mr.plan import Record, TaskName, TaskResult

MASTER, WORKERS = 0, 1  # the numbers of their mailboxes
IDLE = 0.001  # seconds of sleep for a rank that has nothing to do, so that it leaves the core to one that has


class PieceId(NamedTuple):
    """Where a piece of a region begins: reduce r, map m, offset."""

    r: int
    m: int
    offset: int


# ---- the master to a worker ------------------------------------------------------------------------------------------


class Do(NamedTuple):
    """Do a task, without bad records (section 4.6)."""

    task: TaskName
    source: list[Any]  # of a map: the pieces of its split; of a reduce, for each map: (worker with its region, bytes)
    skip: dict[Record, str]  # records to leave out, and why


class DropTask(NamedTuple):
    """Another worker has finished this task."""

    task: TaskName


class OutputLost(NamedTuple):
    """The output of these maps is lost: they will be done again (section 3.3)."""

    maps: list[int]


class OutputMoved(NamedTuple):
    """Map m has been done; this worker has its regions, of these sizes in bytes."""

    m: int
    worker: int
    sizes: list[int]


class Ping(NamedTuple):
    """Are you there?"""


class End(NamedTuple):
    """There is nothing more to do. These workers do not answer: do not wait for them."""

    lost: set[int]


class Leave(NamedTuple):
    """All workers that answer have sent `Drained`. This is the job's result."""

    outcome: Any  # see minidist.mr.report


# ---- a worker to the master ------------------------------------------------------------------------------------------


class Hello(NamedTuple):
    """I am here, with the output of these maps from an earlier run; None: it is damaged."""

    held: dict[int, TaskResult | None]


class Pong(NamedTuple):
    """I am here, and have sent this number of bytes to reducers."""

    sent: int


class TaskDone(NamedTuple):
    """A task is done."""

    task: TaskName
    result: TaskResult


class Failed(NamedTuple):
    """The user's function failed on this record; None: no single record is to blame. An error of input
    or output may be the machine's."""

    task: TaskName
    record: Record | None
    explanation: str
    machine: bool


class Gone(NamedTuple):
    """I cannot read the output of this map any more."""

    m: int
    explanation: str


class Dropped(NamedTuple):
    """I have left a task that another worker had finished; I had done this part of it."""

    task: TaskName
    progress: float


class Stalled(NamedTuple):
    """My reduce waits for a map that is to be done again: I could do one meanwhile."""


class Drained(NamedTuple):
    """All that I have sent has arrived; this number of bytes went to reducers."""

    sent: int


# ---- a worker to another ---------------------------------------------------------------------------------------------


class Fetch(NamedTuple):
    """Let me have this piece of a region."""

    place: PieceId
    nbytes: int


class Region(NamedTuple):
    """Here it is, with the bytes as payload."""

    place: PieceId
