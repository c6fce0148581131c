"""What a transport gives a rank: a `Port`, its end of one communicator, over which bytes move.

`minidist.mpi.comm.Comm` uses a port and is the same over every one: it checks, counts and names each message.
`minidist.mpi.over_mpi` has MPI's port.
"""

import functools
from typing import Any, Protocol

import numpy as np

Handle = Any  # a send or receive under way; it keeps its array alive
Arrival = tuple[int, int]  # (tag that the sender gave the message, its bytes; TOO_LONG if they did not fit)
TOO_LONG = -1


class Port(Protocol):
    """Moves bytes between this rank and the ranks of a communicator. Messages of a pair arrive in the order sent.

    Arrays are C-contiguous and of one of NumPy's own dtypes: the port moves their bytes, whatever they mean. It knows
    no dtype and no phase, checks nothing and counts nothing. A message carries a tag along with its bytes: a number
    from 0 to `largest_tag` that means nothing to the port. Payload, control and letters never mix.
    """

    rank: int
    size: int
    world_ranks: list[int]  # of each rank here, its rank in the communicator from which all were split
    largest_tag: int

    # ---- payload ----------------------------------------------------------------------------------------------------

    def send(self, array: np.ndarray, dest: int, tag: int) -> None:
        """Return when `array` may be written again."""

    def recv(self, out: np.ndarray, source: int) -> Arrival:
        """Fill `out` with the next message from `source`, which may be shorter."""

    def sendrecv(self, array: np.ndarray, dest: int, tag: int, out: np.ndarray, source: int) -> Arrival:
        """Send and receive at the same time."""

    def isend(self, array: np.ndarray, dest: int, tag: int) -> Handle:
        """Start a send."""

    def irecv(self, out: np.ndarray, source: int) -> Handle:
        """Start a receive."""

    def wait(self, handle: Handle) -> Arrival:
        """Return when it is complete; for a send, the returned value means nothing."""

    def done(self, handle: Handle) -> bool:
        """Whether `wait` would return at once."""

    def unfinished(self, handles: list[Handle]) -> list[Handle]:
        """The sends and letters that are not complete yet. The others count as waited for."""

    def probe(self) -> int | None:
        """A rank from which a message has come for which no receive was started; None if there is none."""

    # ---- groups -----------------------------------------------------------------------------------------------------

    def split(self, color: int, key: int) -> "Port":
        """One communicator for each color; within it, ranks are ordered by `key`, then by their rank here."""

    def barrier(self) -> None:
        """Return when every rank has called it."""

    # ---- control: messages of any length ----------------------------------------------------------------------------

    def send_control(self, message: bytes, dest: int) -> None:
        """Return when `message` is under way."""

    def recv_control(self, source: int) -> bytes | bytearray:
        """The next control message from `source`."""

    # ---- letters: control for a rank that does not know which rank writes next; different boxes never mix ------------

    def post(self, letter: bytes, dest: int, box: int) -> Handle:
        """Start sending a letter, which is complete when its receiver has collected it."""

    def collect(self, box: int) -> tuple[int, bytes | bytearray] | None:
        """(sender, letter) of the next letter, or None. Never blocks."""

    def enclose(self, array: np.ndarray, dest: int, box: int) -> Handle:
        """Start sending a letter's payload, which is complete when its receiver takes it."""

    def extract(self, out: np.ndarray, source: int, box: int) -> Handle:
        """Start receiving a letter's payload from `source`."""


# ---- the tag of a message: its dtype and its number of elements ------------------------------------------------------

# The position in this list is the dtype's code on the wire.
DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
CODE_BITS = 4


@functools.lru_cache(maxsize=4096)  # every message needs it twice, and most messages have one of a few sizes
def message_tag(dtype: np.dtype, size: int, largest: int) -> int | None:
    """The tag of a message of `size` elements; None for a dtype that cannot be sent (objects, byte-swapped numbers)."""
    if dtype.name not in DTYPES or not dtype.isnative:
        return None
    return DTYPES.index(dtype.name) | min(size, count_limit(largest)) << CODE_BITS


def described(tag: int) -> tuple[str, int]:
    """The dtype's name and the number of elements in a tag. The limit stands for that many or more."""
    return DTYPES[tag & (1 << CODE_BITS) - 1], tag >> CODE_BITS


def count_limit(largest: int) -> int:
    """The largest count in a tag up to `largest`: it stands for this many elements or more."""
    return (largest >> CODE_BITS) - 1
