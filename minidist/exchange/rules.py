"""The rules of messages between ranks, without MPI and without any I/O: an `Exchange` decides what arrives, and when.

A transport connects it to the ranks (see threads.py): it tells the exchange what each rank starts (`start`) and waits
for (`block`, `meet`, `probe`, `collect`, `look`), and asks `advance` which ranks may go on.

`Rules` decide what MPI leaves open: whether a send waits for its receiver, and in which order messages arrive. So a
program that relies on luck fails at once, and every time. No message arrives until every rank waits, so a run depends
only on the seed. Between two ranks, messages of one kind keep their order, and Comm cannot receive from an unnamed
rank. So the k-th send meets the k-th receive, and a program that never polls (`probe`, `done`) has one result under
all rules.

For the same reason, a deadlock needs no timeout: it is certain, and is explained, as soon as no rank can go on.
"""

import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from minidist.exchange import waits
from minidist.exchange.operations import Arrived, Operation, Path, Start, Wait
from minidist.exchange.waits import Look
from minidist.mpi.comm import CommError

PAYLOAD, CONTROL = "payload", "control"  # lanes; each box of letters has two more
# If ranks only poll in this many rounds, and nothing else happens, no message will ever come.
LOOKS_IN_VAIN = 10_000


class Deadlock(CommError):
    """Some ranks can never go on. Says why, what each rank was doing, and which ranks it waits for."""

    def __init__(self, reason: str, looks: waits.Looks, awaited: list[list[int]], stuck: Sequence[int] = ()) -> None:
        super().__init__(f"{reason[0].upper()}{reason[1:]}.\n{waits.explain(looks, awaited)}")
        self.reason, self.looks, self.awaited = reason, looks, awaited
        self.stuck = stuck  # the ranks that can never go on, if that is the reason


@dataclass(frozen=True)
class Rules:
    """Decisions that MPI leaves open."""

    sends: Literal["synchronous", "eager", "drawn"] = "synchronous"  # wait for the receive, never wait, drawn for each
    order: Literal["natural", "contrary", "drawn"] = "natural"  # low ranks first, high ranks first, drawn
    seed: int = 0

    def draw(self, *what: object) -> int:
        """A number that depends only on the seed and its purpose, not on anything that happened before."""
        return int.from_bytes(hashlib.blake2b(repr((self.seed, *what)).encode(), digest_size=8).digest(), "big")


class Exchange:
    """The messages of `n` ranks. Ranks are world ranks here; communicators have names, and the first is "world"."""

    def __init__(self, n: int, rules: Rules) -> None:
        self.n, self.rules = n, rules
        self.members: dict[str, list[int]] = {"world": list(range(n))}
        self.waits: list[Wait | None] = [None] * n
        self.waited = [0] * n  # how many waits each rank has begun
        self.finished = [False] * n
        self.computing = n  # ranks that neither wait nor have finished
        self.operations: list[dict[int, Operation]] = [{} for _ in range(n)]  # by number, until waited for
        self.paths: dict[tuple[int, int, str, str], Path] = {}
        self.mail: defaultdict[tuple[str, str, int], deque[Path]] = defaultdict(deque)  # path of each arrived message
        self.meetings: defaultdict[tuple[str, str], dict[int, tuple[int, int]]] = defaultdict(dict)  # color, key
        self.met: defaultdict[str, int] = defaultdict(int)  # meetings that a communicator has completed
        self.under_way: list[tuple[Path, int]] = []  # sends of the next generation
        self.generation: deque[Path] = deque()  # messages in order of arrival
        self.answers: list[tuple[int, Any]] = []  # ranks that may go on, each with its answer
        self.in_vain = 0  # rounds in a row in which ranks only polled
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
        """A rank waits until these operations are complete. The answer is the result of each."""
        operations = [self.operations[rank].pop(number) for number in numbers]
        wait = self._wait(rank, call, where)
        wait.peers, wait.operations = [operation.peer for operation in operations], operations
        for operation in operations:
            operation.wait = wait
            wait.left += not operation.through
        if not wait.left:
            self._answer(rank, [operation.result for operation in operations])

    def meet(self, rank: int, call: str, comm: str, color: int, key: int, where: str) -> None:
        """A rank waits until every rank of the communicator has made this call. The answer is the name and the members
        of the communicator of its color."""
        wait = self._wait(rank, call, where)
        wait.peers, wait.meeting = self.members[comm], (comm, call)
        self.meetings[comm, call][rank] = color, key

    def probe(self, rank: int, comm: str, where: str) -> None:
        """A rank polls for payload. The answer is the communicator's rank that sent a waiting message, or None."""
        mail, members = self.mail[comm, PAYLOAD, rank], self.members[comm]
        self._wait(rank, "probe", where).question = lambda: members.index(mail[0].source) if mail else None

    def collect(self, rank: int, comm: str, lane: str, where: str) -> None:
        """A rank polls for a letter. The answer is the communicator's rank that wrote it and its bytes, or None."""
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
        """A rank asks which of these operations are complete. The answer is the result of each, or None."""
        mine = self.operations[rank]

        def answer() -> list[Arrived | None]:
            return [mine.pop(number).result if mine[number].through else None for number in numbers]

        self._wait(rank, "done", where).question = answer

    def finish(self, rank: int) -> None:
        """A rank has finished."""
        self.finished[rank] = True
        self.computing -= 1

    # ---- answers and deadlocks --------------------------------------------------------------------------------------

    def advance(self) -> list[tuple[int, Any]]:
        """The ranks that may go on, in this order, each with its answer. No message arrives while any rank computes.
        After a deadlock, the answer is a `Deadlock` for each rank that waits."""
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
        """A Deadlock if some ranks can never go on, else None; the other ranks may be computing."""
        stuck = self.stuck()
        if not stuck:
            return None
        looks, awaited = self.looks(), self.awaited()
        return Deadlock(waits.find_cause(looks, stuck, awaited), looks, awaited, stuck)

    def stuck(self) -> list[int]:
        """The ranks that can never go on, whatever the computing ranks will do: each waits for something that a
        finished rank, or another stuck rank, would have to do."""
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
        """For each rank, the ranks that must still act before it can go on; none if it computes or only polls."""
        return [self._awaited(rank) for rank in range(self.n)]

    def unreceived(self) -> list[Start]:
        """The sends that were not received."""
        paths = sorted(self.paths.values(), key=lambda path: path.key)
        return [operation.start for path in paths for operation in (*path.arrived, *path.flying)]

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _is_eager(self, path: Path) -> bool:
        if path.lane != PAYLOAD:  # control is short, and complete at once; letters are complete when they are collected
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
        """Match a message with its receive: both are complete then."""
        data, room = send.start.data, receive.start.room
        assert data is not None
        receive.result = send.start.tag, data if room is None or data.nbytes <= room else None
        self._get_through(send)
        self._get_through(receive)

    def _round(self) -> None:
        """Every rank waits: let all messages arrive, then let ranks go on. If some ranks poll, only one message
        arrives, so that they can see it before the next."""
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
        """Let the next message arrive. Messages of one generation arrive in the order of the rules, and before all
        later ones: no message can be overtaken for ever."""
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
        """All ranks have come: each rank, with the name and the members of the communicator of its color."""
        come = self.meetings.pop((comm, call))
        results = []
        for color in sorted({color for color, _ in come.values()}):
            name = f"{comm}/{self.met[comm]}.{color}"
            here = [rank for rank in self.members[comm] if come[rank][0] == color]
            members = sorted(here, key=lambda rank: come[rank][1])  # equal keys: in the old order
            if call == "split":
                self.members[name] = members
            results += [(rank, (name, members)) for rank in members]
        self.met[comm] += 1
        return results

    def in_order(self, ranks: Iterable[int]) -> list[int]:
        """Sort ranks that may go on at the same time into the order in which they do."""
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
        """Whether the matching receive or send has not been started."""
        path = operation.path
        if operation.start.sends:
            return [*path.arrived, *path.flying].index(operation) >= len(path.receives)
        return path.receives.index(operation) >= len(path.flying)
