"""The rules of messages between ranks, without MPI and without any I/O: an `Exchange` decides what arrives, and when.

A transport stands between it and the ranks (see threads.py): it tells the exchange what each rank starts (`start`) and
waits for (`block`, `meet`, `probe`, `collect`, `look`), and takes from `advance` which ranks may go on.

`Rules` decide what MPI leaves open, so that a program that relies on luck fails at once, and every time: whether a send
waits for its receiver, and in which order messages arrive. Nothing arrives before every rank waits, so a run depends
only on the seed. Between two ranks, messages of one kind keep their order, and Comm cannot receive from an unnamed
rank. So the k-th send meets the k-th receive, and a program that never looks in between (`probe`, `done`) has one
result under all rules.

For the same reason, a deadlock needs no timeout: it is certain, and has a name, as soon as no rank can go on.
"""

import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from minidist.exchange import waits
from minidist.exchange.waits import Look
from minidist.mpi.comm import CommError

PAYLOAD, CONTROL = "payload", "control"  # lanes; each box has two of its own
# If ranks only look for messages in this many rounds, and nothing else happens, nothing will come any more.
LOOKS_IN_VAIN = 10_000


class Deadlock(CommError):
    """Ranks can never go on: why, what each was doing, and which ranks it waits for."""

    def __init__(self, reason: str, looks: waits.Looks, awaited: list[list[int]], stuck: Sequence[int] = ()) -> None:
        super().__init__(f"{reason[0].upper()}{reason[1:]}.\n{waits.explain(looks, awaited)}")
        self.reason, self.looks, self.awaited = reason, looks, awaited
        self.stuck = stuck  # the ranks that can never go on, where that is the reason


@dataclass(frozen=True)
class Rules:
    """What MPI leaves open."""

    sends: Literal["synchronous", "eager", "drawn"] = "synchronous"  # until they are received, not at all, either
    order: Literal["natural", "contrary", "drawn"] = "natural"  # low ranks first, high ranks first, by the seed
    seed: int = 0

    def draw(self, *what: object) -> int:
        """A number that depends only on the seed and its purpose, not on anything that happened before."""
        return int.from_bytes(hashlib.blake2b(repr((self.seed, *what)).encode(), digest_size=8).digest(), "big")


@dataclass(slots=True)
class Start:
    """A send or a receive, as the rank tells that starts it."""

    number: int  # its name, given by the rank
    call: str  # "isend", as reports name it
    sends: bool
    comm: str
    lane: str
    peer: int  # rank of the communicator
    tag: int
    room: int | None  # bytes that a receive has room for; None: as many as come
    phase: str
    where: str  # "exercise.py:31"
    data: np.ndarray | None = None  # (bytes,) uint8 of a send


# Of a message the tag and the bytes, None if they found no room; of a send, (0, None).
Arrived = tuple[int, np.ndarray | None]


class Path:
    """Messages of one kind from one rank to another, which keep their order."""

    def __init__(self, comm: str, lane: str, source: int, dest: int) -> None:
        self.key = source, dest, comm, lane  # source and dest are ranks of the world
        self.source, self.dest, self.comm, self.lane = source, dest, comm, lane
        self.flying: deque[Operation] = deque()  # sends that have not arrived
        self.arrived: deque[Operation] = deque()  # sends that no receive has met
        self.receives: deque[Operation] = deque()  # receives that no send has met
        self.sent = 0


@dataclass(eq=False, slots=True)
class Operation:
    """A send or a receive under way."""

    path: Path
    start: Start
    through: bool = False
    result: Arrived = (0, None)
    wait: "Wait | None" = None  # the one in which its rank waits for it

    @property
    def peer(self) -> int:
        """The world's rank at the other end."""
        return self.path.dest if self.start.sends else self.path.source


@dataclass(eq=False, slots=True)
class Wait:
    """What a rank has stopped for."""

    call: str  # "recv", as reports name it
    where: str
    peers: list[int] = field(default_factory=list)  # ranks of the world
    operations: list[Operation] = field(default_factory=list)  # which must all get through
    left: int = 0  # how many of them have not
    meeting: tuple[str, str] | None = None  # (communicator, call) at which all must come
    question: Callable[[], Any] | None = None  # of one who only looks: answered in any case


class Exchange:
    """Between `n` ranks. Ranks here are those of the world; communicators have names, and the first is "world"."""

    def __init__(self, n: int, rules: Rules) -> None:
        self.n, self.rules = n, rules
        self.members: dict[str, list[int]] = {"world": list(range(n))}
        self.waits: list[Wait | None] = [None] * n
        self.waited = [0] * n  # how many waits each rank has begun
        self.finished = [False] * n
        self.computing = n  # ranks that neither wait nor have finished
        self.operations: list[dict[int, Operation]] = [{} for _ in range(n)]  # by number, until waited for
        self.paths: dict[tuple[int, int, str, str], Path] = {}
        self.mail: defaultdict[tuple[str, str, int], deque[Path]] = defaultdict(deque)  # where arrived messages wait
        self.meetings: defaultdict[tuple[str, str], dict[int, tuple[int, int]]] = defaultdict(dict)  # who has come
        self.met: defaultdict[str, int] = defaultdict(int)  # meetings of a communicator so far
        self.under_way: list[tuple[Path, int]] = []  # sent since this generation set out
        self.generation: deque[Path] = deque()  # in the order in which they arrive
        self.answers: list[tuple[int, Any]] = []  # ranks that may go on, and with what
        self.in_vain = 0  # rounds in which ranks only looked
        self.verdict: Deadlock | None = None

    # ---- what ranks do ----------------------------------------------------------------------------------------------

    def start(self, rank: int, start: Start) -> None:
        """A rank has started a send or a receive."""
        peer = self.members[start.comm][start.peer]
        source, dest = (rank, peer) if start.sends else (peer, rank)
        key = source, dest, start.comm, start.lane
        path = self.paths.get(key) or self.paths.setdefault(key, Path(start.comm, start.lane, source, dest))
        operation = self.operations[rank][start.number] = Operation(path, start)
        if start.sends:
            path.flying.append(operation)
            self.under_way.append((path, path.sent))
            if self._is_eager(path):
                self._get_through(operation)
            path.sent += 1
        elif path.arrived:
            self.mail[path.comm, path.lane, path.dest].remove(path)
            self._meet(path.arrived.popleft(), operation)
        else:
            path.receives.append(operation)

    def block(self, rank: int, call: str, numbers: list[int], where: str) -> None:
        """A rank waits until these are through; it is answered with what each has brought."""
        operations = [self.operations[rank].pop(number) for number in numbers]
        wait = self._wait(rank, call, where)
        wait.peers, wait.operations = [operation.peer for operation in operations], operations
        for operation in operations:
            operation.wait = wait
            wait.left += not operation.through
        if not wait.left:
            self._answer(rank, [operation.result for operation in operations])

    def meet(self, rank: int, call: str, comm: str, color: int, key: int, where: str) -> None:
        """A rank waits until every rank of the communicator has come to this; it is answered with the name and the
        members of the communicator of its color."""
        wait = self._wait(rank, call, where)
        wait.peers, wait.meeting = self.members[comm], (comm, call)
        self.meetings[comm, call][rank] = color, key

    def probe(self, rank: int, comm: str, where: str) -> None:
        """A rank looks for payload; it is answered with the rank of the communicator from which some waits, or None."""
        mail, members = self.mail[comm, PAYLOAD, rank], self.members[comm]
        self._wait(rank, "probe", where).question = lambda: members.index(mail[0].source) if mail else None

    def collect(self, rank: int, comm: str, lane: str, where: str) -> None:
        """A rank looks for a letter; it is answered with the rank of the communicator that wrote it and its bytes, or
        None."""
        mail, members = self.mail[comm, lane, rank], self.members[comm]

        def answer() -> tuple[int, np.ndarray | None] | None:
            if not mail:
                return None
            path = mail.popleft()
            letter = path.arrived.popleft()
            self._get_through(letter)
            return members.index(path.source), letter.start.data

        self._wait(rank, "collect", where).question = answer

    def look(self, rank: int, numbers: list[int], where: str) -> None:
        """A rank asks which of these are through; it is answered for each with what it has brought, or None."""
        mine = self.operations[rank]

        def answer() -> list[Arrived | None]:
            return [mine.pop(number).result if mine[number].through else None for number in numbers]

        self._wait(rank, "done", where).question = answer

    def finish(self, rank: int) -> None:
        """A rank has come to its end."""
        self.finished[rank] = True
        self.computing -= 1

    # ---- what comes of it -------------------------------------------------------------------------------------------

    def advance(self) -> list[tuple[int, Any]]:
        """The ranks that may go on, in this order, each with the answer to what it waited for. None while others still
        compute. A deadlock is an answer, too: a `Deadlock` for each that waits."""
        while not self.answers and not self.computing and not all(self.finished):
            self._round()
        answers, self.answers = self.answers, []
        return answers

    def end(self, verdict: Deadlock) -> None:
        """Every rank that waits, now or later, gets this as its answer."""
        self.verdict = verdict
        for rank in self.in_order(rank for rank, wait in enumerate(self.waits) if wait):
            self._answer(rank, verdict)

    def deadlock(self) -> Deadlock | None:
        """What there is to say if some ranks can never go on; the others may be computing."""
        stuck = self.stuck()
        if not stuck:
            return None
        looks, awaited = self.looks(), self.awaited()
        return Deadlock(waits.find_cause(looks, stuck, awaited), looks, awaited, stuck)

    def stuck(self) -> list[int]:
        """The ranks that can certainly not go on, whatever those that compute will do: each waits for something that a
        finished rank, or another of them, would have to do."""
        awaited = self.awaited()
        free = {rank for rank, wait in enumerate(self.waits) if not self.finished[rank] and (not wait or wait.question)}
        while freed := {rank for rank, wait in enumerate(self.waits) if wait and free.issuperset(awaited[rank])} - free:
            free |= freed
        return [rank for rank, wait in enumerate(self.waits) if wait and rank not in free]

    def looks(self) -> waits.Looks:
        """What each rank is doing."""
        found: waits.Looks = []
        for wait, finished in zip(self.waits, self.finished, strict=True):
            call = (wait.call, list(wait.peers)) if wait else None
            found.append(Look(finished, call, where=wait.where if wait else "its own code"))
        return found

    def awaited(self) -> list[list[int]]:
        """For each rank those that must do something yet before it can go on; none if it computes or only looks."""
        return [self._awaited(rank) for rank in range(self.n)]

    def unreceived(self) -> list[Start]:
        """What was sent, and nobody has received it."""
        paths = sorted(self.paths.values(), key=lambda path: path.key)
        return [operation.start for path in paths for operation in (*path.arrived, *path.flying)]

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _is_eager(self, path: Path) -> bool:
        if path.lane != PAYLOAD:  # control is short, and under way at once; letters are through when they are collected
            return path.lane == CONTROL
        return self.rules.sends == "eager" or (
            self.rules.sends == "drawn" and self.rules.draw("send", path.key, path.sent) % 2 == 0
        )

    def _wait(self, rank: int, call: str, where: str) -> Wait:
        wait = self.waits[rank] = Wait(call, where)
        self.waited[rank] += 1
        self.computing -= 1
        if self.verdict:
            self._answer(rank, self.verdict)
        return wait

    def _answer(self, rank: int, answer: Any) -> None:
        if wait := self.waits[rank]:
            for operation in wait.operations:
                operation.wait = None
            self.waits[rank] = None
            self.computing += 1
            self.answers.append((rank, answer))

    def _get_through(self, operation: Operation) -> None:
        if not operation.through:
            operation.through = True
            if operation.wait:
                operation.wait.left -= 1

    def _meet(self, send: Operation, receive: Operation) -> None:
        """A message and the receive that it is for have come together."""
        data, room = send.start.data, receive.start.room
        assert data is not None
        receive.result = send.start.tag, data if room is None or data.nbytes <= room else None
        self._get_through(send)
        self._get_through(receive)

    def _round(self) -> None:
        """Every rank waits: let messages arrive until some rank may go on. Where ranks look, they come one at a time,
        so that each is seen before the next."""
        looking = [rank for rank, wait in enumerate(self.waits) if wait and wait.question]
        moved = False
        while self.generation or self.under_way:
            self._arrive()
            moved = True
            if looking:
                break
        able = [rank for rank, wait in enumerate(self.waits) if wait and wait.operations and not wait.left]
        meetings = [key for key, come in self.meetings.items() if len(come) == len(self.members[key[0]])]
        results = {rank: result for comm, call in meetings for rank, result in self._hold(comm, call)}
        self.in_vain = 0 if moved or able or meetings else self.in_vain + 1
        if self.in_vain and (deadlock := self.deadlock()):
            return self.end(deadlock)
        if self.in_vain > LOOKS_IN_VAIN:
            reason = "ranks look for messages again and again, and none will come"
            return self.end(Deadlock(reason, self.looks(), self.awaited()))
        for rank in self.in_order([*able, *results, *looking]):
            wait = self.waits[rank]
            assert wait
            if wait.question:
                self._answer(rank, wait.question())
            else:
                self._answer(rank, results.get(rank, [operation.result for operation in wait.operations]))

    def _arrive(self) -> None:
        """The next message arrives. Those that set out together do so in the order of the rules, and before all that
        set out later: nobody can be overtaken for ever."""
        if not self.generation:
            rules, order = self.rules, sorted(self.under_way, key=lambda sent: sent[0].key)
            if rules.order == "contrary":
                order.reverse()
            elif rules.order == "drawn":
                order.sort(key=lambda sent: rules.draw("arrive", sent[0].key, sent[1]))
            self.generation.extend(path for path, _ in order)
            self.under_way = []
        path = self.generation.popleft()
        send = path.flying.popleft()
        if path.receives:
            self._meet(send, path.receives.popleft())
        else:
            path.arrived.append(send)
            self.mail[path.comm, path.lane, path.dest].append(path)

    def _hold(self, comm: str, call: str) -> list[tuple[int, tuple[str, list[int]]]]:
        """Everyone has come: each rank, and the communicator of its color."""
        come = self.meetings.pop((comm, call))
        results = []
        for color in sorted({color for color, _ in come.values()}):
            name = f"{comm}/{self.met[comm]}.{color}"
            here = [rank for rank in self.members[comm] if come[rank][0] == color]
            members = sorted(here, key=lambda rank: come[rank][1])  # of the same key, in the order of before
            if call == "split":
                self.members[name] = members
            results += [(rank, (name, members)) for rank in members]
        self.met[comm] += 1
        return results

    def in_order(self, ranks: Iterable[int]) -> list[int]:
        """The order in which ranks go on that may do so at the same time."""
        if self.rules.order == "drawn":
            return sorted(ranks, key=lambda rank: self.rules.draw("go on", rank, self.waited[rank]))
        return sorted(ranks, reverse=self.rules.order == "contrary")

    def _awaited(self, rank: int) -> list[int]:
        wait = self.waits[rank]
        if not wait:
            return []
        if wait.meeting:
            return [peer for peer in wait.peers if peer not in self.meetings[wait.meeting]]
        return [operation.peer for operation in wait.operations if not operation.through and self._lacks(operation)]

    def _lacks(self, operation: Operation) -> bool:
        """Whether what this is to meet has not been started."""
        path = operation.path
        if operation.start.sends:
            return [*path.arrived, *path.flying].index(operation) >= len(path.receives)
        return path.receives.index(operation) >= len(path.flying)
