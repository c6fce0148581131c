"""The port of ranks that are greenlets of one process, and `run_ranks`, which starts them: `Comm` without MPI.

    from minidist.exchange.one_process import run_ranks

    sums = run_ranks(lambda comm: ring.all_reduce(comm, np.ones(10)), 1024)

Between two ranks messages keep their order, and no rank receives from an unnamed one. So matching needs no search: the
k-th send of a pair meets its k-th receive. The second of the two to start copies the array straight into the
receiver's, without a buffer. A send returns when it has met its receive, as MPI's large messages do; short ones are
copied, and never wait; nor do control messages.

If no rank can go on, and some have not finished, they never will: a `Deadlock` says at once which rank waits for which.
A poll (`probe`, `collect`, `done`) that finds nothing is a turn: the other ranks run before it returns.
"""

import traceback
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NoReturn, TypeVar

import numpy as np

from minidist.exchange import waits
from minidist.exchange.greenlets import Turns
from minidist.exchange.lanes import Lane, StartedOperation, first_of, put, take
from minidist.exchange.rules import Deadlock
from minidist.exchange.waits import Look
from minidist.mpi.comm import Comm, Ledger, nearest_line
from minidist.mpi.port import TOO_LONG, Arrival

T = TypeVar("T")

SHORT = 8192  # bytes: a send of at most these completes at once, as MPI's short messages do; its array is free again
PAYLOAD, CONTROL = -2, -1  # lanes; those of letters are 2·box and 2·box + 1
IN_VAIN = 10_000  # turns in a row in which ranks only poll: time to see whether the others can ever go on


def run_ranks(function: Callable[[Comm], T], n: int) -> list[T]:
    """Call `function(comm)` on n ranks; return their results, in order of rank.

    An exception on one rank ends all ranks, and is raised here, with a note that names the rank. Raises Deadlock if
    some ranks can never go on, and CommError if a request is never waited for.
    """
    world = World(n)
    return world.turns.run_named(world.rank_of(function), range(n))


class World:
    """What the ranks of a run share."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.turns: Turns[Any] = Turns(n, self.end)
        self.ledgers = [Ledger() for _ in range(n)]
        self.lanes: dict[tuple[Any, int], Lane] = {}  # by communicator and kind of message
        self.meetings: dict[tuple[Any, str], Meeting] = {}  # by communicator and call: those that some ranks wait in
        self.waits: list[Sequence[StartedOperation] | Meeting] = [
            ()
        ] * n  # what each rank waits for, or last waited for
        self.missing = [0] * n  # how many of these operations are not through
        self.numbers = count()
        self.moves = 0  # messages delivered, meetings held and ranks finished so far
        self.in_vain = self.last_move = 0  # polls since the last of these; which that was
        self.verdict: Deadlock | None = None

    def rank_of(self, function: Callable[[Comm], T]) -> Callable[[int], T]:
        """What a rank does, by its number."""

        def be_rank(rank: int) -> T:
            ledger = self.ledgers[rank]
            value = function(Comm(GreenletPort(self, (), range(self.n), rank), ledger))
            ledger.check_requests()
            self.moves += 1
            return value

        return be_rank

    def match(self, send: StartedOperation, receive: StartedOperation) -> None:
        """Deliver a message; both ranks can go on if they wait for this."""
        data, out = send.array, receive.array
        if out is None:
            receive.array = data  # a control message or a letter, of any length
        elif data.dtype is out.dtype and data.shape == out.shape:
            out[...] = data  # a third of np.copyto's time
            receive.nbytes = data.nbytes
        elif data.nbytes <= out.nbytes:
            out.reshape(-1).view(np.uint8)[: data.nbytes] = data.reshape(-1).view(np.uint8)
            receive.nbytes = data.nbytes
        else:
            receive.nbytes = TOO_LONG
        receive.tag = send.tag
        send.through = receive.through = True
        self.moves += 1
        for operation in (send, receive):
            if operation.awaited:
                rank = operation.rank
                self.missing[rank] -= 1
                if not self.missing[rank]:  # a rank that waits for two goes on when both are through
                    self.turns.ready.append(rank)

    def poll(self, rank: int) -> None:
        """Let all other ranks run that can, because this one has found nothing."""
        self.in_vain = self.in_vain + 1 if self.last_move == self.moves else 1
        self.last_move = self.moves
        if self.in_vain % IN_VAIN == 0 and self.stuck():
            self.verdict = self.deadlock()
            self.turns.ready.clear()
        else:
            self.turns.ready.append(rank)
        self.turns.wait()

    # ---- deadlocks ---------------------------------------------------------------------------------------------------

    def end(self) -> NoReturn:
        """No rank can go on."""
        raise self.verdict or self.deadlock()

    def deadlock(self) -> Deadlock:
        """Which ranks can never go on, and why."""
        looks: waits.Looks = [self.look(rank) for rank in range(self.n)]
        awaited, stuck = self.awaited(), self.stuck()
        return Deadlock(waits.find_cause(looks, stuck, awaited), looks, awaited, stuck)

    def stuck(self) -> list[int]:
        """The waiting ranks that can never go on: each waits for a rank that has finished, or is itself stuck."""
        awaited = self.awaited()
        ended, stuck = set(self.turns.results), {rank for rank, peers in enumerate(awaited) if peers}
        while free := {rank for rank in stuck if not (ended | stuck).intersection(awaited[rank])}:
            stuck -= free
        return sorted(stuck)

    def awaited(self) -> list[list[int]]:
        """For each rank, the ranks that must still act before it can go on; none if it has finished, or runs."""
        return [[] if rank in self.turns.results else self._awaited(self.waits[rank]) for rank in range(self.n)]

    def _awaited(self, wait: "Sequence[StartedOperation] | Meeting") -> list[int]:
        if isinstance(wait, Meeting):
            here = {rank for rank, _, _ in wait.come}
            return [of_world for rank, of_world in enumerate(wait.members) if rank not in here]
        return [operation.peer for operation in wait if not operation.through]

    def look(self, rank: int) -> Look:
        """What a rank is doing."""
        ledger, frame = self.ledgers[rank], self.turns.frame(rank)
        if rank in self.turns.results:
            return Look(finished=True)
        waiting = None
        if ledger.waiting:
            call, comm, peers = ledger.waiting
            waiting = call, [comm.world_ranks[peer] for peer in peers]
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        return Look(waiting=waiting, where=nearest_line(frame) if frame else "its own code", stack=stack)


class Meeting:
    """A call that returns when every rank of a communicator has made it."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members = members  # ranks of the world
        self.come: list[tuple[int, int, int]] = []  # rank, color and key of those that are here


class GreenletPort:
    """A rank's end of a communicator of one process."""

    largest_tag = 2**53 - 1

    def __init__(self, world: World, name: tuple[Any, ...], members: Sequence[int], me: int) -> None:
        self._world, self._name, self._me = world, name, me
        self.world_ranks = list(members)
        self.rank, self.size = self.world_ranks.index(me), len(members)
        self._splits = 0
        self._payload = self._lane(PAYLOAD)
        self._sending, self._receiving = (StartedOperation(me) for _ in range(2))  # of sendrecv: millions of times

    # ---- payload -----------------------------------------------------------------------------------------------------

    def send(self, array: np.ndarray, dest: int, tag: int) -> None:
        self._await(self.isend(array, dest, tag))

    def recv(self, out: np.ndarray, source: int) -> Arrival:
        return self.wait(self._recv(out, source))

    def sendrecv(self, array: np.ndarray, dest: int, tag: int, out: np.ndarray, source: int) -> Arrival:
        ranks, lane = self.world_ranks, self._payload
        sending = self._begin_send(self._sending.start(ranks[dest], array, tag), dest, lane)
        receiving = self._begin_recv(self._receiving.start(ranks[source], out), source, lane)
        if not (sending.through and receiving.through):
            self._await(sending, receiving)
        sending.array = receiving.array = None  # or they would live until the next
        return receiving.tag, receiving.nbytes

    def isend(self, array: np.ndarray, dest: int, tag: int) -> StartedOperation:
        handle = self._send(array, dest, tag)
        if not handle.through and array.nbytes <= SHORT:
            handle.array, handle.through = array.copy(), True
        return handle

    def irecv(self, out: np.ndarray, source: int) -> StartedOperation:
        return self._recv(out, source)

    def wait(self, handle: StartedOperation) -> Arrival:
        self._await(handle)
        return handle.tag, handle.nbytes

    def done(self, handle: StartedOperation) -> bool:
        if not handle.through:
            self._world.poll(self._me)
        return handle.through

    def unfinished(self, handles: list[StartedOperation]) -> list[StartedOperation]:
        if not all(handle.through for handle in handles):
            self._world.poll(self._me)
        return [handle for handle in handles if not handle.through]

    def probe(self) -> int | None:
        return self._first(self._payload)

    # ---- groups ------------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        self._meet("barrier")

    def split(self, color: int, key: int) -> "GreenletPort":
        self._splits += 1
        come = self._meet("split", color, key)
        here = sorted((key, rank) for rank, of, key in come if of == color)
        name = (*self._name, self._splits, color)
        return GreenletPort(self._world, name, [self.world_ranks[rank] for _, rank in here], self._me)

    # ---- control, and letters ----------------------------------------------------------------------------------------

    def send_control(self, message: bytes, dest: int) -> None:
        self._send(message, dest, 0, self._lane(CONTROL))

    def recv_control(self, source: int) -> bytes:
        receive = self._recv(None, source, self._lane(CONTROL))
        self._await(receive)
        return receive.array

    def post(self, letter: bytes, dest: int, box: int) -> StartedOperation:
        return self._send(letter, dest, 0, self._lane(2 * box))

    def collect(self, box: int) -> tuple[int, bytes] | None:
        lane = self._lane(2 * box)
        source = self._first(lane)
        return None if source is None else (source, self._recv(None, source, lane).array)

    def enclose(self, array: np.ndarray, dest: int, box: int) -> StartedOperation:
        return self._send(array, dest, 0, self._lane(2 * box + 1))

    def extract(self, out: np.ndarray, source: int, box: int) -> StartedOperation:
        return self._recv(out, source, self._lane(2 * box + 1))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _lane(self, kind: int) -> Lane:
        return self._world.lanes.setdefault((self._name, kind), Lane())

    def _send(self, array: Any, dest: int, tag: int, lane: Lane | None = None) -> StartedOperation:
        operation = StartedOperation(self._me).start(self.world_ranks[dest], array, tag)
        return self._begin_send(operation, dest, lane or self._payload)

    def _recv(self, out: Any, source: int, lane: Lane | None = None) -> StartedOperation:
        operation = StartedOperation(self._me).start(self.world_ranks[source], out)
        return self._begin_recv(operation, source, lane or self._payload)

    def _begin_send(self, send: StartedOperation, dest: int, lane: Lane) -> StartedOperation:
        pair = self.rank * self.size + dest
        receive = take(lane.receives, pair)
        if receive:
            self._world.match(send, receive)
        else:
            send.number = next(self._world.numbers)
            put(lane.sends, pair, send)
        return send

    def _begin_recv(self, receive: StartedOperation, source: int, lane: Lane) -> StartedOperation:
        pair = source * self.size + self.rank
        send = take(lane.sends, pair)
        if send:
            self._world.match(send, receive)
        else:
            put(lane.receives, pair, receive)
        return receive

    def _await(self, *operations: StartedOperation) -> None:
        """Return when all are through."""
        world, me, missing = self._world, self._me, 0
        for operation in operations:
            if not operation.through:
                operation.awaited = True
                missing += 1
        if missing:
            world.missing[me], world.waits[me] = missing, operations
            world.turns.wait()
            world.waits[me] = ()  # or it would keep their arrays alive

    def _first(self, lane: Lane) -> int | None:
        """The rank whose message has waited longest; looks again after a turn of the others if there is none."""
        for attempt in range(2):
            firsts = (first_of(lane.sends, source * self.size + self.rank) for source in range(self.size))
            waiting = [(first.number, source) for source, first in enumerate(firsts) if first]
            if waiting or attempt:
                return min(waiting)[1] if waiting else None
            self._world.poll(self._me)
        return None

    def _meet(self, call: str, color: int = 0, key: int = 0) -> list[tuple[int, int, int]]:
        """Wait until every rank of the communicator has made this call; return what each brought."""
        world, place = self._world, (self._name, call)
        meeting = world.meetings.setdefault(place, Meeting(self.world_ranks))
        meeting.come.append((self.rank, color, key))
        if len(meeting.come) == self.size:
            del world.meetings[place]
            world.moves += 1
            world.turns.ready.extend(self.world_ranks[rank] for rank, _, _ in meeting.come[:-1])
        while len(meeting.come) < self.size:
            world.waits[self._me] = meeting
            world.turns.wait()
        return meeting.come
