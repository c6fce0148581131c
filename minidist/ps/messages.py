"""The parameter server's messages: what each kind says, and a rank's mailbox.

On the wire a message is a header of twelve numbers, 96 bytes (its kind, how many whole numbers and how many values
follow, and its fields), and then those numbers and values.
"""

from collections import deque
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from minidist.mpi.comm import Comm
from minidist.ps.simulated_time import Cable

Array = np.ndarray

HEADER = 12  # float64, in which whole numbers up to 2^53 are exact
ALL = -1  # all ranges of a shard; all workers


@dataclass(kw_only=True)
class WireMessage:
    """What all kinds have. arrays: what may follow the header, keys or clocks (int64) before values, and the phase
    under which the wire counts each."""

    arrays: ClassVar[dict[str, str]] = {}
    nbytes: int = 0  # that came over the wire, without the header


@dataclass(kw_only=True)
class ToShard(WireMessage):
    """To a rank that holds a shard."""

    shard: int


@dataclass(kw_only=True)
class WorkerRequest(ToShard):
    """From a worker to the server of a shard. What a worker sends at one moment carries one stamp."""

    clock: int  # iterations done when it computed this gradient, or when it asks for weights
    # Known when it is sent (requests.py):
    worker: int = 0  # its number
    more: bool = False  # whether another message for this shard follows at the same moment
    stamp: float = 0.0  # simulated time of that moment: servers take messages in its order
    left: float = 0.0  # simulated time at which the last byte has left the worker


@dataclass(kw_only=True)
class Push(WorkerRequest):
    """Here is my gradient of a range of keys."""

    arrays: ClassVar = {"keys": "push keys", "values": "push values"}
    range: int  # the range's number
    share: float  # of the batch: the rows on which the gradient was computed
    cached: bool = False  # whether `keys` is the signature of a list that the server has seen
    keys: Array | None = None  # (n,) of these values; None: all keys of the range
    values: Array | None = None  # (n,)


@dataclass(kw_only=True)
class Pull(WorkerRequest):
    """Send me the weights of a range as soon as they are fresh enough."""

    arrays: ClassVar = {"keys": "pull keys"}
    range: int
    cached: bool = False
    keys: Array | None = None  # (n,)


@dataclass(kw_only=True)
class Flush(WorkerRequest):
    """I have sent my last push: tell me when all pushes are safe."""

    range: ClassVar[int] = ALL


@dataclass(kw_only=True)
class Answer(WireMessage):
    """From a server to a worker: the weights of a range; or, to a Flush, that all is safe."""

    arrays: ClassVar = {"clocks": "clocks", "values": "pull values"}
    shard: int
    range: int  # ALL: it answers a Flush, without weights
    held: float  # simulated seconds for which the request was held back
    left: float = 0.0  # simulated time at which the last byte has left the server
    clocks: Array  # (workers,) iterations of each that are in every one of the weights
    values: Array | None = None  # (n,)


@dataclass(kw_only=True)
class Norm(ToShard):
    """From one server to another, in bsp: the sum of squares of my shard's gradient."""

    teller: int  # the shard whose gradient it is
    clock: int  # iterations done before the update that waits for it
    squares: float
    time: float  # simulated: when it became known


@dataclass(kw_only=True)
class Update(ToShard):
    """An update of a server's weights. It is sent down the chain, so that the copies make it, too."""

    arrays: ClassVar = {"values": "replicate values"}
    range: int  # ALL in bsp: the values of one range after another
    worker: int  # whose gradient it is; ALL in bsp: the sum over all workers
    clock: int  # iterations that the worker had done
    share: float  # of the batch: multiplies the learning rate
    scale: float  # multiplies the gradient: clips it
    time: float = 0.0  # simulated: when all copies have made it
    values: Array  # (n,) the gradient


@dataclass(kw_only=True)
class Copied(ToShard):
    """From the last copy to the server: all copies have made this update."""

    range: int
    worker: int
    clock: int


@dataclass(kw_only=True)
class Closed(WireMessage):
    """To all ranks, from the host of a server that has stopped: no server listens here any more."""

    rank: int


@dataclass(kw_only=True)
class WorkerDone(WireMessage):
    """From a worker to all ranks: I have trained, and what I pushed is safe."""


KINDS: tuple[type[WireMessage], ...] = (Push, Pull, Flush, Answer, Norm, Update, Copied, Closed, WorkerDone)
# For each kind, the fields of its header, at most nine, with their types.
FIELDS: dict[type[WireMessage], dict[str, Any]] = {
    kind: {each.name: each.type for each in fields(kind) if each.name not in ("nbytes", *kind.arrays)} for kind in KINDS
}


def _following(message: WireMessage) -> list[tuple[int, Array, str]]:
    """Place (0: whole numbers, 1: values), array and phase of what follows the header."""
    found = ((name, getattr(message, name), phase) for name, phase in message.arrays.items())
    return [(int(name == "values"), array, phase) for name, array, phase in found if array is not None and array.size]


class Mailbox:
    """Messages to and from any rank, this one included. It never waits for another rank."""

    def __init__(self, comm: Comm, dtype: type[np.generic]) -> None:
        self.comm, self.dtype, self.rank = comm, dtype, comm.rank
        self.closed: set[int] = set()  # ranks whose server has stopped
        self.local: deque[WireMessage] = deque()  # messages to this rank itself

    def send(self, dest: int, message: WireMessage, cable: Cable | None = None, again: bool = False) -> None:
        """Send in the background. cable: the sender's, if it takes simulated time; the message notes when it has left.
        again: it was sent before, to a server that stopped, and is counted apart."""
        header, following = np.zeros(HEADER), _following(message)
        if cable and isinstance(message, WorkerRequest | Answer):
            message.left = cable.send(sum(array.nbytes for _, array, _ in following) * (dest != self.rank))
        if dest == self.rank:
            copies = {name: array.copy() for name in message.arrays if (array := getattr(message, name)) is not None}
            self.local.append(replace(message, **copies))
            return
        header[0] = KINDS.index(type(message))
        for place, array, _ in following:
            header[1 + place] = array.size
        for i, name in enumerate(FIELDS[type(message)], start=3):
            header[i] = getattr(message, name)
        with self.comm.phase("headers"):
            self.comm.post(header, dest)
        for _, array, phase in following:
            with self.comm.phase("sent again" if again else phase):
                self.comm.post(array, dest)

    def next(self) -> WireMessage | None:
        """The message that arrived first, from any rank; None if there is none."""
        if self.local:
            return self.local.popleft()
        source = self.comm.probe()
        if source is None:
            return None
        header = np.empty(HEADER)
        self.comm.recv(header, source)
        kind = KINDS[int(header[0])]
        named = {name: of(number) for (name, of), number in zip(FIELDS[kind].items(), header[3:], strict=False)}
        nbytes = 0
        for name in kind.arrays:
            place = int(name == "values")
            if size := int(header[1 + place]):
                named[name] = np.empty(size, (np.int64, self.dtype)[place])
                self.comm.recv(named[name], source)  # what follows a header comes from the same rank
                nbytes += named[name].nbytes
        return kind(**named, nbytes=nbytes)
