"""The wire over an exchange: a rank's port. A `Line` carries its questions to the exchange and the answers back.

A send or receive that a rank starts without waiting is reported to the exchange together with its next question. So
only questions cost a round trip. Until its wait(), the memory of a request is guarded.
"""

from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol

import numpy as np

from minidist.exchange import marks
from minidist.exchange.operations import Arrived, Start
from minidist.exchange.rules import CONTROL, PAYLOAD
from minidist.mpi.comm import CommError, Ledger
from minidist.mpi.port import TOO_LONG, Arrival


class Line(Protocol):
    """A rank's connection to the exchange."""

    def ask(self, starts: list[Start], question: str, *arguments: Any) -> Any:
        """Report the new starts, then call the exchange's method `question`; return its answer. Raises Deadlock."""

    def tell(self, starts: list[Start]) -> None:
        """Report the new starts; do not wait for an answer."""

    def where(self) -> str:
        """The line of the program that is running now, as reports name it."""


class Pending:
    """A send or a receive that a rank has started: the handle of an ExchangePort."""

    def __init__(self, start: Start, array: np.ndarray) -> None:
        self.start, self.array = start, array
        self.checksum = self.mark = 0  # 0: none
        self.before: np.ndarray | None = None  # the old content of a marked array
        self.result: Arrived | None = None  # None until it is known to be complete

    def told(self) -> Start:
        """What the exchange is told. A send takes a copy of its array, which should not change until the wait()."""
        if self.start.sends and self.start.data is None:
            self.start.data = marks.as_bytes(self.array).copy()
        return self.start


class Desk:
    """What all ports of a rank share.

    Without `guarded`, the memory of requests is not checked: a message is the content of its array when the send was
    started, and the array of a receive keeps its old content until the wait().
    """

    def __init__(self, line: Line, ledger: Ledger, guarded: bool = True) -> None:
        self.line, self.ledger, self.guarded = line, ledger, guarded
        self.numbers = count()
        self.started: list[Pending] = []  # but not told to the exchange yet
        self.receives: dict[int, str] = {}  # mark -> where its receive was started

    def start(
        self, call: str, sends: bool, comm: str, lane: str, peer: int, tag: int, array: np.ndarray, room: int | None
    ) -> Pending:
        """Start a send of an array, or a receive into it of at most `room` bytes."""
        number, where = next(self.numbers), self.line.where()
        start = Start(number, call, sends, comm, lane, peer, tag, room, self.ledger.phase, where)
        operation = Pending(start, array)
        if sends and self.receives:
            self.check_marks(array, f"what {where} sends to rank {peer}")
        if not self.guarded:
            operation.told()
        elif call in ("isend", "post"):
            operation.checksum = marks.checksum(array)
        elif call == "irecv":
            operation.mark = number % marks.MARKS + 1
            self.receives[operation.mark], operation.before = where, array.copy()
            marks.mark(array, operation.mark)
        self.started.append(operation)
        return operation

    def block(self, call: str, *operations: Pending) -> list[Arrived]:
        """Wait until these operations are complete; return their results."""
        return self.ask("block", call, [operation.start.number for operation in operations])

    def ask(self, question: str, *arguments: Any) -> Any:
        """The exchange's answer to a question."""
        return self.line.ask(self._news(), question, *arguments, self.line.where())

    def finish(self) -> None:
        """Tell the exchange what the rank started last."""
        self.line.tell(self._news())

    def check_marks(self, array: np.ndarray, what: str) -> None:
        """Raise if numbers were computed from a receive's array before its wait()."""
        for mark in marks.marks_in(array) & set(self.receives):
            raise CommError(
                f"{what} was computed from the array of irecv at {self.receives[mark]} before its wait(): until then"
                " that may hold anything. Call wait() on the request first"
            )

    def _news(self) -> list[Start]:
        started, self.started = self.started, []
        return [operation.told() for operation in started]


class ExchangePort:
    """A rank's end of one of the exchange's communicators."""

    largest_tag = 2**53 - 1  # the largest integer that JSON's numbers carry exactly

    def __init__(self, desk: Desk, name: str, members: Sequence[int], me: int) -> None:
        self._desk, self._name, self._me = desk, name, me
        self.world_ranks = list(members)
        self.rank, self.size = self.world_ranks.index(me), len(members)

    # ---- payload ----------------------------------------------------------------------------------------------------

    def send(self, array: np.ndarray, dest: int, tag: int) -> None:
        self._desk.block("send", self._send("send", array, dest, tag))

    def recv(self, out: np.ndarray, source: int) -> Arrival:
        (result,) = self._desk.block("recv", self._recv("recv", out, source))
        return fill(out, result)

    def sendrecv(self, array: np.ndarray, dest: int, tag: int, out: np.ndarray, source: int) -> Arrival:
        both = self._send("sendrecv", array, dest, tag), self._recv("sendrecv", out, source)
        _, result = self._desk.block("sendrecv", *both)
        return fill(out, result)

    def isend(self, array: np.ndarray, dest: int, tag: int) -> Pending:
        return self._send("isend", array, dest, tag)

    def irecv(self, out: np.ndarray, source: int) -> Pending:
        return self._recv("irecv", out, source)

    def wait(self, handle: Pending) -> Arrival:
        if handle.result is None:
            (handle.result,) = self._desk.block(f"wait for {handle.start.call}", handle)
        return self._settle(handle)

    def done(self, handle: Pending) -> bool:
        if handle.result is None:
            (handle.result,) = self._desk.ask("look", [handle.start.number])
        return handle.result is not None

    def unfinished(self, handles: list[Pending]) -> list[Pending]:
        if not handles:
            return []
        results = self._desk.ask("look", [handle.start.number for handle in handles])
        for handle, result in zip(handles, results, strict=True):
            handle.result = result
            if result is not None:
                self._settle(handle)
        return [handle for handle in handles if handle.result is None]

    def probe(self) -> int | None:
        return self._desk.ask("probe", self._name)

    # ---- groups -----------------------------------------------------------------------------------------------------

    def split(self, color: int, key: int) -> "ExchangePort":
        name, members = self._desk.ask("meet", "split", self._name, int(color), int(key))
        return ExchangePort(self._desk, name, members, self._me)

    def barrier(self) -> None:
        self._desk.ask("meet", "barrier", self._name, 0, 0)

    # ---- control ----------------------------------------------------------------------------------------------------

    def send_control(self, message: bytes, dest: int) -> None:
        self._desk.block("send (control)", self._send("send (control)", as_array(message), dest, lane=CONTROL))

    def recv_control(self, source: int) -> bytes:
        call = "recv (control)"
        receive = self._desk.start(call, False, self._name, CONTROL, source, 0, as_array(b""), room=None)
        ((_, message),) = self._desk.block(call, receive)
        assert message is not None
        return message.tobytes()

    # ---- letters ----------------------------------------------------------------------------------------------------

    def post(self, letter: bytes, dest: int, box: int) -> Pending:
        return self._send("post", as_array(letter), dest, lane=f"letter {box}")

    def collect(self, box: int) -> tuple[int, bytes] | None:
        found = self._desk.ask("collect", self._name, f"letter {box}")
        return (found[0], found[1].tobytes()) if found else None

    def enclose(self, array: np.ndarray, dest: int, box: int) -> Pending:
        return self._send("post", array, dest, lane=f"enclosed {box}")

    def extract(self, out: np.ndarray, source: int, box: int) -> Pending:
        return self._recv("poll", out, source, lane=f"enclosed {box}")

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _send(self, call: str, array: np.ndarray, dest: int, tag: int = 0, lane: str = PAYLOAD) -> Pending:
        return self._desk.start(call, True, self._name, lane, dest, tag, array, room=None)

    def _recv(self, call: str, out: np.ndarray, source: int, lane: str = PAYLOAD) -> Pending:
        return self._desk.start(call, False, self._name, lane, source, 0, out, room=out.nbytes)

    def _settle(self, handle: Pending) -> Arrival:
        """Finish a request: check that its memory was left alone, and fill the array of a receive."""
        assert handle.result is not None
        start, array = handle.start, handle.array
        what = f"rank {self.rank}: the array of {start.call} {'to' if start.sends else 'from'} rank {start.peer}"
        if handle.checksum and marks.checksum(array) != handle.checksum:
            raise CommError(f"{what} at {start.where} was changed before its wait(): it may be sent so or so")
        if handle.mark and not marks.still_marked(array, handle.mark):
            raise CommError(f"{what} at {start.where} was written to before its wait(): the message overwrites it")
        if handle.before is not None:
            array[...] = handle.before  # a shorter message leaves the rest unchanged
        return (0, 0) if start.sends else fill(array, handle.result)


def fill(out: np.ndarray, result: Arrived) -> Arrival:
    """Copy a message into `out`, if it fits."""
    tag, data = result
    if data is None:
        return tag, TOO_LONG
    marks.as_bytes(out)[: data.size] = data
    return tag, data.size


def as_array(message: bytes) -> np.ndarray:
    """A message as (bytes,) uint8."""
    return np.frombuffer(message, np.uint8)
