"""Weights in several versions, so that a micro-batch's backward sees what its forward saw.

Without a flush, updates are made while micro-batches are under way. PipeDream keeps the weights of each of them: weight
stashing (Narayanan et al., SOSP 2019, section 3.3); 2BW keeps two versions (arXiv 2006.09503, section 3.1). With a
flush there is one version, and nothing to keep.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minidist.memory.pool import Pool
from minidist.nn.flat import Flat, fingerprint
from minidist.nn.layers import Unit, flats_of
from minidist.nn.tensor import Array


class Versions:
    """The versions of a stage's weights, each named by the number of updates before it, since the stream began."""

    def __init__(self, flats: Sequence[Flat], widened: Callable[[Array], Array], pool: Pool) -> None:
        """widened: turns a stored array into the one that parameters are bound to."""
        self.flats, self.widened, self.pool, self.made = flats, widened, pool, 0
        self.stash: dict[int, list[Array]] = {}  # older versions that are still needed: each Flat's param
        self.marks: list[int] = []  # a fingerprint of each version, when it was new

    def restart(self) -> None:
        """Begin a new stream: the newest weights are its first version."""
        self.made, self.stash, self.marks = 0, {}, []
        self.mark()

    @contextmanager
    def use(self, version: int) -> Iterator[None]:
        """Inside, the Flats have the weights of this version."""
        newest = [flat.param for flat in self.flats]
        for flat, param in zip(self.flats, self.stash.get(version, newest), strict=True):
            flat.param = param
        try:
            yield
        finally:
            for flat, param in zip(self.flats, newest, strict=True):
                flat.param = param

    def keep(self, oldest: int) -> None:
        """Before an update: drop versions before `oldest`, and keep this one if a micro-batch may still ask for it."""
        self.stash = {version: params for version, params in self.stash.items() if version >= oldest}
        if self.made >= oldest:  # after unneeded versions are dropped, so that there is never one more
            self.stash[self.made] = [self.pool.hold("stash", flat.param.copy()) for flat in self.flats]

    def updated(self) -> None:
        """After an update: count it, and mark the new version."""
        self.made += 1
        self.mark()

    def mark(self) -> None:
        """Take the newest version's fingerprint."""
        self.marks.append(sum(fingerprint(self.widened(flat.param)) for flat in self.flats))


class Used:
    """Which weights were really used, by fingerprints of the arrays that parameters were bound to. Claims count these
    fingerprints, not what a schedule says."""

    def __init__(self) -> None:
        self.by: dict[tuple[int, int], list[int]] = {}  # (k, chunk) -> its forward's fingerprint, its backward's
        self.behind: dict[int, int] = {}  # by micro-batch: updates made when its gradient was complete

    @contextmanager
    def note(self, k: int, chunk: int, units: Sequence[Unit]) -> Iterator[None]:
        """Inside, a micro-batch's forward or backward runs through these units."""
        flats = flats_of(units)
        for flat in flats:
            flat.seen = set()
        yield
        self.by.setdefault((k, chunk), []).append(sum(sum(flat.seen or ()) for flat in flats))

    def counted(self) -> dict[str, Any]:
        """What claims need, in a form that JSON can write."""
        return {
            "used": [[*key, *prints] for key, prints in sorted(self.by.items())],
            "behind": sorted(self.behind.items()),
        }
