"""A wire without MPI, in the process that grades: every message of every rank goes through here.

    with Nursery() as nursery:
        job = route(nursery, "on_ranks.py:part", [(x0,), (x1,)], Rules("synchronous", "contrary"), patience=30)
    job.values, job.transfers

Ranks are processes, each with a socket to this one. Their messages are counted here, by phase and peer, and delivered
when and in the order that the rules say. Which rank waits for which is known exactly. A rank may run any program: what
it says is checked, and nothing that it says is unpickled, waited for, or raises an exception here.
"""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from minidist.classroom.grading import limits, sense
from minidist.classroom.grading.lines import OUTPUTS, Lines
from minidist.classroom.grading.nursery import Exit, Nursery
from minidist.exchange import waits
from minidist.exchange.operations import Start
from minidist.exchange.rules import CONTROL, PAYLOAD, Deadlock, Exchange, Rules
from minidist.launch.job import JobOutcome, RankResult, blame, describe_exit
from minidist.launch.main_stack import frames_in, place_of
from minidist.launch.notebook_cell import MACHINERY
from minidist.system.files import temporary_folder

LOOK = 0.1  # seconds between looks at what ranks use together
TICK = 0.1  # seconds without an event, after which deadlocks are looked for even if some ranks compute
LULL = 1.0  # seconds: a job that wants a processor for less than half of these does not compute
ENOUGH = 4  # ranks that used this part of their processor time were not starved: a right answer needs less
STARVED = "the ranks were given too little processor time; try again when less else is running"

Transfer = tuple[str, int, str]  # (phase, world rank of the peer, line of the program)
Message = tuple[str, int, int]  # of payload: (communicator, sender's world rank, number that it sent there before)
EMPTY = 64  # messages that a rank may send in a case
MEETINGS = 8  # splits and barriers that a graded program may ask for in a case
KEPT = 1 << 16  # bytes of a message's content
NOTHING: Mapping[Message, bytes] = MappingProxyType({})


class Seen(NamedTuple):
    """A message that went through."""

    where: str  # the line that sent it
    content: bytes  # its first KEPT bytes


@dataclass
class Routed(JobOutcome):
    """How a job ended, and what each rank sent."""

    transfers: list[dict[Transfer, list[int]]] = field(default_factory=list)  # -> [bytes, messages], of payload
    unreceived: list[Start] = field(default_factory=list)  # sends that no receive has met
    groups: list[dict[str, dict[Transfer, list[int]]]] = field(default_factory=list)  # the same, for each communicator
    # that was split off the world, with all that were split off it: "world/0.0" is the first
    messages: dict[Message, Seen] = field(default_factory=dict)  # all payload messages, except empty ones
    places: list[str] = field(default_factory=list)  # the last place that each rank named
    splits: int = 0  # how often the world was split
    fault: str = ""  # of the machine: why this end says nothing about the program
    used: float = 0.0  # seconds of processor time, with all that the ranks have started
    idle: float = 0.0  # seconds in which they wanted no processor, as far as the kernel says that


def route(
    nursery: Nursery,
    target: str,
    arguments: Sequence[Sequence[Any]],
    rules: Rules,
    patience: float,
    program: str = "",
    *,
    guarded: bool = True,
    objects: bool = True,
    spoiled: Mapping[Message, bytes] = NOTHING,
    seconds: float = 3600.0,
    longest: float = 0.0,
    memory: int = 0,
    together: float = 0.0,
    cases: int = 0,
) -> Routed:
    """Call `target`(comm, *arguments[rank]) on as many ranks as there are arguments, and return when all have ended.

    target is "module:function" or "path/to/file.py:function". patience is in seconds, up to `longest` while a rank
    computes, or would if the machine were less busy. Each rank may use `seconds` of processor time. Transfers and
    deadlocks name lines of the file `program`, or else the line that called Comm. guarded: as in Desk. Without
    `objects`, a rank that sends one fails. Messages that are `spoiled` arrive with these bytes at their beginning.
    memory: bytes that all ranks and their descendants may have together. together: seconds of processor time, of all
    of them. 0: no limit. cases: without `objects`, how often the world may be split.
    """
    begin, n = time.monotonic(), len(arguments)
    with ExitStack() as opened:
        folder = opened.enter_context(temporary_folder())
        router = Router(n, rules, objects, spoiled, program)
        router.memory, router.together, router.cases, router.longest = memory, together, cases, longest
        router.before = limits.look_at(nursery.processes).seconds
        opened.callback(router.close)
        opened.callback(nursery.end)
        for rank in range(n):
            with router.connect(rank) as line, ExitStack() as theirs:
                outputs = [router.open_output(rank, name) for name in OUTPUTS]
                for output in outputs:
                    theirs.callback(os.close, output)
                own = folder / str(rank) if nursery.isolation else None
                if own:
                    own.mkdir()
                nursery.fork(rank, target, [line.fileno(), *outputs], seconds, str(own or ""))
            router.processes = nursery.processes
            router.say(rank, [rank, n, program, guarded, tuple(arguments[rank])])
        router.run(patience)
        if router.hung:
            nursery.write_stacks()
        exits = nursery.end(router.first if router.gone else None)
        job = router.outcome(exits, time.monotonic() - begin)
        job.used = limits.look_at(nursery.processes).seconds - router.before
        job.idle = router.idle if limits.waiting_time(os.getpid()) else 0.0
        return job


class Router(Lines):
    """Connects the ranks' lines to an exchange."""

    def __init__(
        self, n: int, rules: Rules, objects: bool = True, spoiled: Mapping[Message, bytes] = NOTHING, program: str = ""
    ) -> None:
        super().__init__(n)
        self.exchange = Exchange(n, rules)
        self.objects, self.spoiled, self.program = objects, spoiled, program
        self.ranks = [RankResult() for _ in range(n)]
        self.transfers: list[dict[Transfer, list[int]]] = [{} for _ in range(n)]
        self.groups: list[dict[str, dict[Transfer, list[int]]]] = [defaultdict(dict) for _ in range(n)]
        self.messages: dict[Message, Seen] = {}
        self.sent: dict[tuple[str, int], int] = defaultdict(int)  # messages of payload on a communicator
        self.places = [""] * n
        self.met = [0] * n  # how often each rank has asked for a split or a barrier
        self.empty = [0] * n  # messages that each rank has sent
        self.first: int | None = None  # the rank that has ended the job
        self.gone = False  # `first` closed its line without a report
        self.hung: Deadlock | None = None  # set if the job cannot end, or takes too long
        self.late = False  # the job takes too long
        self.longest = 0.0  # seconds that the job may take while ranks compute
        self.fault = ""  # of the machine, for which the job is ended
        self.processes: list[int] = []  # from which all ranks descend
        self.memory = 0  # bytes that they may have together
        self.together = 0.0  # seconds of processor time that they may use together
        self.used = 0.0  # and how many they have used
        self.idle = 0.0  # seconds in which they wanted no processor
        self.before = 0.0  # seconds that the processes from which they descend had used for earlier jobs
        self.cases = 0  # number of cases: the world is split for each
        self.excess = ""  # what they use too much of, in words

    def run(self, patience: float) -> None:
        """Run until all ranks have returned, one failed or disappeared, they hang, or use too much time or memory."""
        begin = time.monotonic()
        look, checked, wanted, computes = begin + LOOK, begin, 0.0, True
        while not (all(self.exchange.finished) or self.first is not None or self.hung or self.excess or self.fault):
            if self.memory and time.monotonic() > look:
                self.look_at_use()
                look = time.monotonic() + LOOK
            events = self.selector.select(TICK)
            for key, mask in events:
                act: Callable[[int], None] = key.data
                act(mask)
            for rank, answer in self.exchange.advance():
                if isinstance(answer, Deadlock):
                    self.hung = answer
                else:
                    self.say(rank, answer)
            if not events:
                self.hung = self.hung or self.exchange.deadlock()
            now = time.monotonic()
            if now > checked + LULL:
                before, wanted = wanted, self.wanted()
                computes = wanted - before > (now - checked) / 2
                self.idle += 0 if computes else now - checked
                checked = now
            allowed = max(patience, self.longest) if computes else patience
            if now > begin + allowed and not self.hung and self.first is None:
                enough = self.together and self.used > self.together / ENOUGH
                self.late, self.fault = True, STARVED if computes and not enough else ""
                self.hung = self.give_up(waits.tell_late(self.exchange.looks(), patience))

    def wanted(self) -> float:
        """Seconds for which the ranks, their descendants and this process have had a processor, or waited for one."""
        found = limits.descendants(self.processes)
        waited = sum(map(limits.waiting_time, [*found, os.getpid()]))
        return waited + sum(map(limits.processor_time, found)) + time.process_time()

    def look_at_use(self) -> None:
        """Set `excess` if all ranks and their descendants together use more than they may, and `fault` if the machine
        has no memory for them."""
        nbytes, number, seconds = limits.look_at(self.processes)
        self.used = seconds - self.before
        who = "its ranks, with all that they have started,"
        if number > limits.TOGETHER:
            self.excess = f"{who} were {number} processes and threads; all together may be {limits.TOGETHER}"
        elif nbytes > self.memory:
            self.excess = f"{who} had {nbytes:,} bytes of memory; all together may have {self.memory:,}"
        elif self.together and self.used > self.together:
            self.excess = (
                f"{who} had used {self.used:.0f} s of processor time; all together may use {self.together:.0f} s"
            )
        elif limits.is_short_of_memory():
            self.fault = "it has hardly any memory left; try again when less else is running"

    def give_up(self, reason: str) -> Deadlock:
        """A Deadlock that says what the ranks are doing, when the router no longer waits for them."""
        return Deadlock(reason, self.exchange.looks(), self.exchange.awaited())

    # ---- what ranks say ---------------------------------------------------------------------------------------------

    def hear(self, rank: int, value: Any) -> None:
        """Check what a rank asks for, and do it. After its result, a rank is ignored."""
        if self.ranks[rank].finished:
            return
        match value:
            case ["tell", list(starts)]:
                self.start(rank, starts)
            case ["ask", list(starts), str(question), tuple(arguments)]:
                sense.sensible(self.exchange.waits[rank] is None)
                self.start(rank, starts)
                sense.check_question(self.exchange, rank, question, arguments)
                if question == "meet" and not self.objects:
                    self.check_meetings(rank, arguments[1])
                getattr(self.exchange, question)(rank, *arguments)
            case ["at", str(place)]:
                self.places[rank] = place[:200]
            case ["returned", result]:
                self.exchange.finish(rank)
                self.ranks[rank].value, self.ranks[rank].finished, self.ranks[rank].state = result, True, "finished"
            case ["failed", str(error_type), str(text)]:
                self.fail(rank, error_type, text)
            case _:
                raise sense.Nonsense("a value")

    def check_meetings(self, rank: int, comm: str) -> None:
        """Limit splits and barriers: a color, or the time of a barrier, could carry information that is not counted."""
        self.met[rank] += 1
        most = MEETINGS * (1 + self.exchange.met["world"])  # each case is on a split of its own
        sense.sensible(comm != "world" or self.exchange.met["world"] < self.cases, "a meeting outside of all cases")
        sense.sensible(self.met[rank] <= most, f"more than {MEETINGS} splits and barriers, which no exercise needs")

    def check_empty(self, rank: int) -> None:
        """Limit empty messages: their number and their dtypes could carry information of which no byte is counted."""
        self.empty[rank] += 1
        most = EMPTY * (1 + self.exchange.met["world"])
        sense.sensible(self.empty[rank] <= most, f"more than {EMPTY} empty messages, which no exercise needs")

    def lose(self, rank: int) -> None:
        if not self.ranks[rank].finished and self.first is None:
            self.first, self.gone = rank, True

    def fail(self, rank: int, error_type: str, text: str) -> None:
        if self.first is None:
            self.first = rank
            self.ranks[rank].error_type, self.ranks[rank].error = error_type, text

    def start(self, rank: int, told: list[Any]) -> None:
        for fields in told:
            start = Start(*fields)
            sense.check_start(self.exchange, rank, start, self.objects)
            if start.lane == PAYLOAD and start.data is not None:
                message = start.comm, rank, self.sent[start.comm, rank]
                self.sent[start.comm, rank] += 1
                if start.data.size:  # an empty message cannot be spoiled
                    self.messages[message] = Seen(start.where, start.data[:KEPT].tobytes())
                elif not self.objects:
                    self.check_empty(rank)
                if content := self.spoiled.get(message):
                    others = np.frombuffer(content, np.uint8)
                    start.data = np.concatenate([others, start.data[len(others) :]])
            self.exchange.start(rank, start)
            if start.data is not None:
                self.count(rank, start, start.data.nbytes)

    def count(self, rank: int, start: Start, nbytes: int) -> None:
        """Count a message that was sent."""
        if start.lane == CONTROL or start.lane.startswith("letter"):
            so_far, messages = self.ranks[rank].control
            self.ranks[rank].control = so_far + nbytes, messages + 1
            return
        transfer = start.phase, self.exchange.members[start.comm][start.peer], start.where
        group = "/".join(start.comm.split("/")[:2])
        for counted in (self.transfers[rank], self.groups[rank][group]):
            entry = counted.setdefault(transfer, [0, 0])
            entry[0] += nbytes
            entry[1] += 1

    # ---- how the job ended ------------------------------------------------------------------------------------------

    def outcome(self, exits: dict[int, Exit], seconds: float) -> Routed:
        """How the job ended."""
        ranks = f"{self.n} {'rank' if self.n == 1 else 'ranks'}"
        report = f"The job finished on {ranks} in {seconds:.1f} s."
        job = Routed("ok", self.ranks, seconds, report, self.transfers, self.exchange.unreceived(), fault=self.fault)
        job.groups, job.messages, job.places, job.splits = (
            *(self.groups, self.messages, self.places),
            self.exchange.met["world"],
        )
        for number, rank in enumerate(self.ranks):
            for name in OUTPUTS if self.pipes else ():
                self.drain(number, name)
            rank.stdout, rank.stderr, rank.stack = (self.text(number, name) for name in OUTPUTS)
            for (phase, peer, _), (nbytes, messages) in self.transfers[number].items():
                before = rank.sent.get((phase, peer), (0, 0))
                rank.sent[phase, peer] = before[0] + nbytes, before[1] + messages
        if self.first is not None and not self.ranks[self.first].error and not self.hung:
            code, used = exits[self.first]
            if self.ranks[self.first].stack and code in (-signal.SIGKILL, -signal.SIGXCPU, None):
                reason = f"rank {self.first} had used {used:.0f} s of processor time"
                self.hung = Deadlock(reason, self.exchange.looks(), self.exchange.awaited())
        if self.excess:
            job.status, job.report = "killed", f"{self.excess}."
        elif self.hung:
            job.status, job.report = "hung", self.explain(self.hung)
        elif self.fault:
            job.status, job.report = "machine", self.fault
        elif self.first is not None:
            cause = self.ranks[self.first]
            job.status, verb = ("failed", "failed") if cause.error else ("killed", "disappeared")
            code = exits[self.first].code
            cause.error = cause.error or ("it closed its connection" if code is None else describe_exit(code))
            blame(job, self.first, verb)
        return job

    def explain(self, hung: Deadlock) -> str:
        """Which rank waits for which, and where the computing ranks are."""
        for rank, look in zip(self.ranks, hung.looks, strict=True):
            assert look
            look.stack = rank.stack
            frames = [
                frame for frame in frames_in(rank.stack) if not frame.filename.startswith((*MACHINERY, "<frozen "))
            ]
            if frames and not (look.waiting and self.program):  # else `where` is a line of the program
                look.where = place_of(frames)
        for number, (rank, look) in enumerate(zip(self.ranks, hung.looks, strict=True)):
            rank.where, rank.state = look.where if look else "", waits.describe(number, hung.looks)
            rank.awaited = hung.awaited[number]
        reason = waits.find_cause(hung.looks, hung.stuck, hung.awaited) if hung.stuck else hung.reason
        what = reason if self.late else f"hung: {reason}"
        return f"The job {what}.\n{waits.explain(hung.looks, hung.awaited)}"
