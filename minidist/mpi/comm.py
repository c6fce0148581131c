"""The wire. Every byte that leaves a rank leaves through a `Comm`, and is counted where it leaves.

A Comm uses one communicator of a transport, MPI or another (see `minidist.mpi.port`), and offers point-to-point
messages of NumPy arrays. Collectives are written on top of them (see `minidist.ring`), because a library does not
show which algorithm its own collective chooses. The sender counts the payload, by phase and by peer. Control traffic
(results, checks, loss values for the progress bar) travels separately, and is counted separately.

MPI itself would silently deliver a float32 message into a float64 buffer. Here each message carries its dtype and its
number of elements in its tag, which costs no byte and no message. A receiver that expected something else raises an
error.
"""

import pickle
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from minidist.mpi import ROOMS
from minidist.mpi.port import DTYPES, Arrival, Handle, Port, count_limit, described, message_tag

OWN = tuple(f"minidist.{room}" for room in ROOMS)


class CommError(RuntimeError):
    """A message that does not fit, or a request that was never waited for."""


class Ledger:
    """What one process has sent, what it is waiting for, and which requests are open.

    All communicators that are split from each other share one ledger, so it names peers by their rank in the world.
    """

    def __init__(self) -> None:
        self.phase = "main"
        self.closed = False  # whether phases inside this one count under its name
        self.sent: dict[tuple[str, int], list[int]] = {}  # (phase, world rank of the peer) -> [bytes, messages]
        self.sent_control: dict[int, list[int]] = {}  # world rank of the peer -> [bytes, messages]
        self.received = 0  # payload bytes, counted on arrival: independent of the sender's count
        self.host_of: Sequence[int] = ()  # each world rank's host, if they are on several
        # World rank -> payload messages ever sent to it, and ever received from it.
        self.set_out: defaultdict[int, int] = defaultdict(int)
        self.arrived: defaultdict[int, int] = defaultdict(int)
        self.open_requests: list[Request] = []
        self.waiting: tuple[str, Comm, Sequence[int]] | None = None  # (call, its Comm, ranks of this Comm)
        self.waits, self.waited = 0, 0.0  # how many times this process has begun to wait; seconds
        self._before: Counter[tuple[str, str, int, str]] = Counter()  # counts before the last reset

    def count(self, peer: int, nbytes: int) -> None:
        key = self.phase, peer
        entry = self.sent.get(key) or self.sent.setdefault(key, [0, 0])
        entry[0] += nbytes
        entry[1] += 1

    def count_control(self, peer: int, nbytes: int) -> None:
        entry = self.sent_control.setdefault(peer, [0, 0])
        entry[0] += nbytes
        entry[1] += 1

    @property
    def control(self) -> tuple[int, int]:
        """Bytes and messages of control traffic, to all peers."""
        return sum(nbytes for nbytes, _ in self.sent_control.values()), sum(n for _, n in self.sent_control.values())

    def by_phase(self) -> dict[str, dict[str, int]]:
        """{phase: {"bytes", "messages"}}: what was sent to all peers; control traffic, if any, as "control"."""
        total: dict[str, dict[str, int]] = {}
        for (phase, _), (nbytes, messages) in self.sent.items():
            entry = total.setdefault(phase, {"bytes": 0, "messages": 0})
            entry["bytes"] += nbytes
            entry["messages"] += messages
        if self.control[1]:
            total["control"] = {"bytes": self.control[0], "messages": self.control[1]}
        return total

    def by_peer(self) -> dict[int, int]:
        """Payload bytes sent, over all phases, to each rank of the world."""
        total: dict[int, int] = {}
        for (_, peer), (nbytes, _) in self.sent.items():
            total[peer] = total.get(peer, 0) + nbytes
        return total

    def total(self) -> int:
        """Payload bytes sent, over all phases and peers."""
        return sum(nbytes for nbytes, _ in self.sent.values())

    def reset(self) -> None:
        """Start counting from zero."""
        self._before = self.ever()
        self.sent.clear()
        self.sent_control.clear()
        self.received = 0

    def ever(self) -> Counter[tuple[str, str, int, str]]:
        """{(kind, phase, peer, "bytes" or "messages"): number}: all that this process has ever sent, regardless of
        resets. kind: "payload", or "control", which has no phase."""
        total = self._before.copy()
        sent = [("payload", phase, peer, counts) for (phase, peer), counts in self.sent.items()]
        sent += [("control", "", peer, counts) for peer, counts in self.sent_control.items()]
        for kind, phase, peer, (nbytes, messages) in sent:
            total[kind, phase, peer, "bytes"] += nbytes
            total[kind, phase, peer, "messages"] += messages
        return total

    def check_requests(self, besides: Sequence["Request"] = ()) -> None:
        """Raise if there is an open request other than `besides`: the program has not waited for it."""
        dropped = [request for request in self.open_requests if request not in besides]
        if dropped:
            self.open_requests = [request for request in self.open_requests if request in besides]
            started = "; ".join(str(request) for request in dropped)
            raise CommError(f"never waited for, so the data may be missing: {started}. Call wait() on each request.")


class Request:
    """A send or receive under way. Its array belongs to the port until `wait()` returns."""

    def __init__(self, comm: "Comm", kind: str, peer: int, array: np.ndarray, handle: Handle) -> None:
        self.comm, self.kind, self.peer, self.array, self.handle = comm, kind, peer, array, handle
        self.phase, self.where = comm.ledger.phase, caller(3)  # the line that called isend or irecv
        comm.ledger.open_requests.append(self)

    def wait(self) -> None:
        """Return when the message has been received, or when a sent array may be written again."""
        if self not in self.comm.ledger.open_requests:
            return  # waited for already
        arrival = self.comm._wait(f"wait for {self.kind}", (self.peer,), self.comm._port.wait, self.handle)
        self.comm.ledger.open_requests.remove(self)
        if self.kind == "irecv":
            self.comm._check(self.array, self.peer, arrival)

    def done(self) -> bool:
        """Whether the message is complete; never waits. If it is, the request counts as waited for."""
        if self in self.comm.ledger.open_requests and not self.comm._port.done(self.handle):
            return False
        self.wait()
        return True

    def __str__(self) -> str:
        preposition = "from" if self.kind == "irecv" else "to"
        return f"{self.kind} {preposition} rank {self.peer} at {self.where} in phase {self.phase!r}"


class Comm:
    """A communicator: `rank` of `size`, sending and receiving contiguous NumPy arrays of any shape.

    `ledger` counts what this process has sent. Functions get a communicator as an argument; there is no global one.
    """

    def __init__(self, port: Port, ledger: Ledger | None = None) -> None:
        self._port, self._largest_tag = port, port.largest_tag
        self.rank, self.size, self.world_ranks = port.rank, port.size, port.world_ranks
        self.ledger = ledger or Ledger()
        self._posted: list[Handle] = []

    # ---- where ranks are --------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host, in order; all in one list if they share a host."""
        host_of, ranks = self.ledger.host_of, list(range(self.size))
        of = [host_of[rank] for rank in self.world_ranks] if host_of else [0] * self.size
        return [[rank for rank in ranks if of[rank] == host] for host in dict.fromkeys(of)]

    @property
    def evenly_spread(self) -> bool:
        """Whether these ranks are on several hosts, the same number, and more than one, on each."""
        if not self.ledger.host_of:
            return False
        one, *others = [len(host) for host in self.hosts]
        return one > 1 and {*others} == {one}

    def sent_across(self) -> int:
        """Payload bytes that this rank has sent to other hosts."""
        host_of = self.ledger.host_of
        own = self.world_ranks[self.rank]
        return sum(n for peer, n in self.ledger.by_peer().items() if host_of and host_of[peer] != host_of[own])

    # ---- blocking ---------------------------------------------------------------------------------------------------

    def send(self, array: np.ndarray, dest: int) -> None:
        """Send `array`; returns when it may be written again. Large messages wait for the receiver."""
        buffer, tag = self._outgoing(array, dest)
        self._wait("send", (dest,), self._port.send, buffer, dest, tag)

    def recv(self, out: np.ndarray, source: int) -> None:
        """Receive into `out`, in place. Raises CommError unless the message has out's dtype and size."""
        buffer = self._incoming(out, source)
        self._check(out, source, self._wait("recv", (source,), self._port.recv, buffer, source))

    def sendrecv(self, array: np.ndarray, dest: int, out: np.ndarray, source: int) -> None:
        """Send `array` and receive into `out` at the same time: a ring of these cannot deadlock."""
        if np.may_share_memory(array, out):  # compares bounds: exact for contiguous arrays, and no others are sent
            raise CommError(
                f"rank {self.rank}: cannot receive from rank {source} into memory that is being sent to rank {dest};"
                " it may be overwritten before it has been sent. Receive into another array"
            )
        sending, tag = self._outgoing(array, dest)
        receiving, exchange = self._incoming(out, source), self._port.sendrecv
        arrival = self._wait("sendrecv", (dest, source), exchange, sending, dest, tag, receiving, source)
        self._check(out, source, arrival)

    # ---- non-blocking -----------------------------------------------------------------------------------------------

    def isend(self, array: np.ndarray, dest: int) -> Request:
        """Start sending `array`, which must stay as it is until the request's wait() returns."""
        buffer, tag = self._outgoing(array, dest)
        return Request(self, "isend", dest, array, self._port.isend(buffer, dest, tag))

    def irecv(self, out: np.ndarray, source: int) -> Request:
        """Start receiving into `out`, which holds the message once the request's wait() has returned."""
        buffer = self._incoming(out, source)
        return Request(self, "irecv", source, out, self._port.irecv(buffer, source))

    # ---- mail: for a rank that does not know which rank sends next ---------------------------------------------------

    def probe(self) -> int | None:
        """The rank from which a message is waiting, or None. Never blocks."""
        return self._port.probe()

    def post(self, array: np.ndarray, dest: int) -> None:
        """Send a copy of `array` in the background. Never blocks, and `array` may be written again at once."""
        buffer, tag = self._outgoing(array.copy(), dest)  # the handle keeps the copy
        self._posted = self._port.unfinished(self._posted)
        self._posted.append(self._port.isend(buffer, dest, tag))

    def flush(self) -> None:
        """Return when each posted message has been received, or no longer needs this process."""
        for handle in self._posted:
            self._port.wait(handle)
        self._posted = []

    # ---- phases and groups ------------------------------------------------------------------------------------------

    @contextmanager
    def phase(self, name: str, leave_open: bool = False, closed: bool = False) -> Iterator[None]:
        """Count what is sent inside the block under `name`. A request that is started inside must be waited for inside,
        or, with leave_open, before the rank ends. closed: phases inside count under this name, too."""
        ledger = self.ledger
        outer, already_open = (ledger.phase, ledger.closed), list(ledger.open_requests)
        ledger.phase, ledger.closed = ledger.phase if ledger.closed else name, ledger.closed or closed
        try:
            yield
            if not leave_open:
                ledger.check_requests(besides=already_open)
        finally:
            ledger.phase, ledger.closed = outer

    def split(self, color: int, key: int = 0) -> "Comm":
        """One communicator for each color; within it, ranks are ordered by `key`, then by their rank here."""
        return Comm(self._wait("split", range(self.size), self._port.split, color, key), self.ledger)

    # ---- control traffic --------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._wait("barrier", range(self.size), self._port.barrier)

    def gather_object(self, value: Any) -> list[Any] | None:
        """Control: on rank 0, the value of every rank, in order of rank; None elsewhere."""
        if self.rank > 0:
            self.send_object(value, 0)
            return None
        return [value] + [self.recv_object(source) for source in range(1, self.size)]

    def broadcast_object(self, value: Any) -> Any:
        """Control: rank 0's value, on every rank."""
        if self.rank > 0:
            return self.recv_object(0)
        for dest in range(1, self.size):
            self.send_object(value, dest)
        return value

    def all_gather_object(self, value: Any) -> list[Any]:
        """Control: the value of every rank, in order of rank, on every rank."""
        return self.broadcast_object(self.gather_object(value))

    def send_object(self, value: Any, dest: int) -> None:
        """Control: send any value to one rank."""
        if not 0 <= dest < self.size:
            raise self._no_such_rank("send to", dest)
        message = pickle.dumps(value)
        self.ledger.count_control(self.world_ranks[dest], len(message))
        self._wait("send (control)", (dest,), self._port.send_control, message, dest)

    def recv_object(self, source: int) -> Any:
        """Control: the next value that one rank has sent here."""
        if not 0 <= source < self.size:
            raise self._no_such_rank("receive from", source)
        return pickle.loads(self._wait("recv (control)", (source,), self._port.recv_control, source))

    # ---- what every message goes through ----------------------------------------------------------------------------

    def _outgoing(self, array: np.ndarray, dest: int) -> tuple[np.ndarray, int]:
        """Check and count a message. Returns the array that the port sends, and its tag."""
        if not isinstance(array, np.ndarray):
            raise self._no_array("send", array)
        try:
            known = 0 <= dest < self.size
        except (TypeError, ValueError):  # an array, if the arguments are in another order
            known = False
        if not known:
            raise self._no_such_rank("send to", dest)
        tag = message_tag(array.dtype, array.size, self._largest_tag)
        if tag is None:
            raise CommError(f"rank {self.rank}: cannot send dtype {array.dtype}; use one of {', '.join(DTYPES)}")
        flat = array.flags.c_contiguous and array.dtype.isbuiltin == 1
        buffer = array if flat else self._bytes(array)
        ledger, peer = self.ledger, self.world_ranks[dest]
        if ledger.open_requests:
            self._check_overlap(array, "send", "irecv")
        ledger.count(peer, array.nbytes)
        ledger.set_out[peer] += 1
        return buffer, tag

    def _incoming(self, out: np.ndarray, source: int) -> np.ndarray:
        if not isinstance(out, np.ndarray):
            raise self._no_array("receive into", out)
        try:
            known = 0 <= source < self.size
        except (TypeError, ValueError):
            known = False
        if not known:
            raise self._no_such_rank("receive from", source)
        flags = out.flags
        if not flags.writeable:
            raise CommError(f"rank {self.rank}: cannot receive into a read-only array")
        if self.ledger.open_requests:
            self._check_overlap(out, "receive into", "isend", "irecv")
        return out if flags.c_contiguous and out.dtype.isbuiltin == 1 else self._bytes(out)

    def _bytes(self, array: np.ndarray) -> np.ndarray:
        """The bytes of an array, in place. A port cannot send all dtypes of other packages, such as bfloat16."""
        if not array.flags.c_contiguous:
            raise CommError(
                f"rank {self.rank}: an array of shape {array.shape} and strides {array.strides} is not contiguous;"
                " send np.ascontiguousarray(it), receive into a new array"
            )
        return array.reshape(-1).view(np.uint8)

    def _check_overlap(self, array: np.ndarray, verb: str, *kinds: str) -> None:
        """Raise CommError if an open request uses this memory. MPI would say nothing, and move its current content."""
        for request in self.ledger.open_requests:
            if request.kind in kinds and np.may_share_memory(array, request.array):
                raise CommError(
                    f"rank {self.rank}: cannot {verb} memory of an open request: {request}. Wait for it first"
                )

    def _no_array(self, verb: str, value: Any) -> CommError:
        instead = "np.empty(how many, dtype)"
        if verb == "send":
            simple = isinstance(value, int | float | list | tuple | np.generic) and len(repr(value)) < 80
            instead = f"np.array({np.asarray(value).tolist()})" if simple else "an array of numbers"
        return CommError(
            f"rank {self.rank}: cannot {verb} a value of type {type(value).__name__}: messages are NumPy arrays."
            f" {verb.capitalize()} {instead}"
        )

    def _no_such_rank(self, verb: str, peer: Any) -> CommError:
        if not isinstance(peer, int | float | np.number):
            return CommError(
                f"rank {self.rank}: cannot {verb} a {type(peer).__name__}: a rank is a number, 0 to {self.size - 1}."
                " The order of arguments is array, dest, out, source"
            )
        return CommError(f"rank {self.rank}: cannot {verb} rank {peer}; ranks are 0 to {self.size - 1}")

    def _check(self, out: np.ndarray, source: int, arrival: Arrival) -> None:
        """Count an arrival. Raises CommError unless its tag and length are those that `out` expects."""
        (tag, nbytes), ledger = arrival, self.ledger
        ledger.received += nbytes
        ledger.arrived[self.world_ranks[source]] += 1
        if tag == message_tag(out.dtype, out.size, self._largest_tag) and nbytes == out.nbytes:
            return
        name, size = described(tag)
        more = " or more" if size == count_limit(self._largest_tag) else ""
        raise CommError(
            f"rank {self.rank} expected {out.size} x {out.dtype.name} from rank {source},"
            f" which sent {size}{more} x {name}"
        )

    def _wait(self, what: str, peers: Sequence[int], call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the port. Meanwhile the ledger says what this rank waits for, so that a hang can be explained."""
        ledger = self.ledger
        ledger.waits += 1
        ledger.waiting = (what, self, peers)
        begin = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            ledger.waiting = None
            ledger.waited += time.perf_counter() - begin


def caller(depth: int) -> str:
    """`file.py:line` of the nearest calling function outside these rooms, at least `depth` calls up."""
    return nearest_line(sys._getframe(depth))


def nearest_line(frame: FrameType) -> str:
    """`file.py:line` of this function, or of the nearest one that has called it and is outside these rooms."""
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(OWN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
