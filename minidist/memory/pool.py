"""A pool: the arrays that a rank holds in one memory, by kind, each from its registration until it is really gone.

    flat.param = device.hold("parameters", start.astype(stored))
    room = device.empty("gathered", flat.padded, stored)           # raises OutOfMemory now, not after the message

Every array that outlives an operation is registered. It counts with all of its memory: a view counts as its base, once,
however many views there are. It stops counting when no reference to it or to a view of it is left: a weak reference
tells. So no code has to look at the right moment, and an array that a program keeps in secret still counts.

What a pool does not see: arrays that were not registered (`witness.py` finds those), NumPy's scalars, memory that is
not NumPy's.
"""

import math
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from minidist import Stopped
from minidist.memory.arena import AddressRange, Arena

Array = np.ndarray

KINDS = (  # in the order in which they are drawn and listed
    "parameters",  # as they are stored
    "gradients",  # likewise
    "optimizer",  # its state: the master copy, if there is one, and moments
    "stash",  # older versions of the parameters
    "outer",  # DiLoCo: the parameters after the last averaging, and the outer momentum
    "error",  # what a compressor has not sent of the gradients
    "secondary",  # ZeRO++: the copy of the parameters that the ranks of a host share
    "persistent",  # whole parameters that stay gathered
    "gathered",  # parameters of whole units, from shards
    "bucket",  # gradients of whole units, to become shards
    "messages",  # to be sent, or received
    "activations",  # that layers keep for their backward
    "ends",  # what else is kept for a backward, before the layers and after them: the batch, embedding, head and loss
    "workspace",  # temporary float32 arrays of arithmetic: a real device computes in the dtype that it stores
)
NEEDED = "all but workspace"
ALL = "all"


class OutOfMemory(Stopped):
    """An array does not fit into what is left of the pool's capacity."""


class Watcher(Protocol):
    """An observer of a pool."""

    def changed(self, pool: "Pool") -> None:
        """An array has come. Arrays that went since the last call show only in the bytes of `pool.held`."""

    def note_boundary(self, pool: "Pool", what: str, name: str) -> None:
        """A boundary has been passed, see Pool.mark."""


class Sum:
    """Bytes of some kinds together: now, and the most ever."""

    __slots__ = ("now", "peak")

    def __init__(self) -> None:
        self.now = self.peak = 0


class Known(weakref.ref):
    """A registered array that owns its memory. The pool keeps this entry under the array's id while the array lives."""

    __slots__ = ("block", "key", "kind", "nbytes")
    key: int
    kind: str
    nbytes: int
    block: AddressRange | None  # where it lies, in a pool with addresses


class Pool:
    """One memory of a rank.

    capacity: bytes that fit, not counting workspace; None: any number.
    joint: groups of kinds, by name, whose joint peak is wanted. Peaks of kinds do not add up: they come at different
    moments.
    `beside`: another pool of the same rank; errors take from it what the rank is doing.
    """

    def __init__(
        self,
        name: str,
        capacity: int | None = None,
        joint: Mapping[str, Sequence[str]] | None = None,
        beside: "Pool | None" = None,
    ) -> None:
        self.name, self.capacity, self.beside = name, capacity, beside
        self.doing = "while the model is made"  # what the rank is doing, for the error message
        self.watchers: list[Watcher] = []
        of = {kind: [kind] for kind in KINDS} | {name: list(kinds) for name, kinds in (joint or {}).items()}
        of |= {NEEDED: [kind for kind in KINDS if kind != "workspace"], ALL: list(KINDS)}
        self._sums = {name: Sum() for name in of}
        self._sums_of = {kind: [self._sums[name] for name in of if kind in of[name]] for kind in KINDS}
        self._known: dict[int, Known] = {}
        self.arena: Arena | None = None
        # Arrays die at any moment, in any thread, even within the code below. So a death is only recorded here, in one
        # step that cannot fail, and accounted for at the next request.
        self._dead: deque[Known] = deque()
        self._lock = threading.Lock()

    # ---- arrays come ------------------------------------------------------------------------------------------------

    def hold(self, kind: str, array: Array, rename: bool = True) -> Array:
        """Count the array, and return it. If it already has a kind, it gets this one, unless `rename` is false.

        Raises OutOfMemory if it does not fit. Then the pool does not count it; its memory is freed when the caller
        drops it.
        """
        owner = owner_of(array)
        key = id(owner)
        with self._lock:
            if self._dead:
                self._bury()
            known = self._known.get(key)
            if known is None:
                nbytes = owner.nbytes
                self._check(kind, nbytes)
                block = self._place(kind, nbytes)
                self._add(kind, nbytes)
                self._known[key] = known = Known(owner, self._dead.append)
                known.key, known.kind, known.nbytes, known.block = key, kind, nbytes, block
            elif rename and known.kind != kind:
                if known.kind == "workspace":  # the other kinds count already
                    self._check(kind, known.nbytes)
                self._add(kind, known.nbytes, instead_of=known.kind)
                known.kind = kind
                if known.block:
                    known.block.kind = kind
        for watcher in self.watchers:
            watcher.changed(self)
        return array

    def empty(self, kind: str, shape: int | Sequence[int], dtype: np.typing.DTypeLike) -> Array:
        """An uninitialized array. Raises OutOfMemory before it is made."""
        self._make_sure(kind, shape, dtype)
        return self.hold(kind, np.empty(shape, dtype))

    def zeros(self, kind: str, shape: int | Sequence[int], dtype: np.typing.DTypeLike) -> Array:
        """An array of zeros. Raises OutOfMemory before it is made."""
        self._make_sure(kind, shape, dtype)
        return self.hold(kind, np.zeros(shape, dtype))

    def give_addresses(self, arena: Arena) -> None:
        """From here on, every array has addresses in `arena`: first the present ones, by age. Raises OutOfMemory, now
        and later, if no hole is long enough for an array."""
        with self._lock:
            self._bury()
            self.arena = arena
            for known in self._known.values():
                known.block = self._place(known.kind, known.nbytes)
            arena.begin()

    # ---- what there is ----------------------------------------------------------------------------------------------

    def has(self, array: Array) -> bool:
        """Whether the array, or another view of its memory, is registered here."""
        owner = owner_of(array)
        with self._lock:
            self._bury()
            known = self._known.get(id(owner))
        return known is not None and known() is owner

    @property
    def held(self) -> dict[str, int]:
        """Bytes now: of each kind, of the joint ones, of all but workspace, and of all."""
        with self._lock:
            self._bury()
            return {name: total.now for name, total in self._sums.items()}

    @property
    def peak(self) -> dict[str, int]:
        """The peak of each of these sums."""
        return {name: total.peak for name, total in self._sums.items()}

    def mark(self, what: str, name: str) -> None:
        """A boundary: a "unit", an "instruction", a "message" or a "step" of this name has ended."""
        for watcher in self.watchers:
            watcher.note_boundary(self, what, name)
        if self.arena:
            with self._lock:
                self._bury()  # arrays that went before the boundary
            self.arena.note_boundary(what, name)

    # ---- accounts; the lock is held ---------------------------------------------------------------------------------

    def _bury(self) -> None:
        """Remove arrays that have died since the last call from the account."""
        while self._dead:
            known = self._dead.popleft()
            del self._known[known.key]
            if known.block:
                assert self.arena
                self.arena.free(known.block)
            for total in self._sums_of[known.kind]:
                total.now -= known.nbytes

    def _add(self, kind: str, nbytes: int, instead_of: str | None = None) -> None:
        for total in self._sums_of[instead_of] if instead_of else ():
            total.now -= nbytes
        for total in self._sums_of[kind]:
            total.now += nbytes
            if total.now > total.peak:
                total.peak = total.now

    def _place(self, kind: str, nbytes: int) -> AddressRange | None:
        """A range of addresses, if the pool has addresses. Raises OutOfMemory if no hole is long enough."""
        if not self.arena:
            return None
        block = self.arena.place(nbytes, kind)
        if block is None:
            vacant, largest = self.arena.vacant_bytes, self.arena.largest_hole
            raise OutOfMemory(
                f"out of memory {(self.beside or self).doing}: {nbytes:,} bytes of {kind} do not fit into a hole of the"
                f" {self.name}, though {vacant:,} of its {self.arena.capacity:,} are free"
                f" ({vacant / (self.arena.capacity or 1):.0%}): the largest hole has {largest:,}"
            )
        return block

    def _check(self, kind: str, nbytes: int) -> None:
        """Raise OutOfMemory if `nbytes` more do not fit."""
        if self.capacity is None or kind == "workspace" or self._sums[NEEDED].now + nbytes <= self.capacity:
            return
        doing = (self.beside or self).doing
        listed = ", ".join(f"{kind} {self._sums[kind].now:,}" for kind in KINDS[:-1] if self._sums[kind].now)
        raise OutOfMemory(
            f"out of memory {doing}: {nbytes:,} bytes of {kind} do not fit on the {self.name}, which has"
            f" {self.capacity:,} and holds {listed or 'nothing'}"
        )

    def _make_sure(self, kind: str, shape: int | Sequence[int], dtype: np.typing.DTypeLike) -> None:
        sides = [shape] if isinstance(shape, int) else shape
        with self._lock:
            self._bury()
            self._check(kind, math.prod(sides) * np.dtype(dtype).itemsize)


def owner_of(array: Array) -> Array:
    """The array that owns this one's memory: itself, or the base of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
