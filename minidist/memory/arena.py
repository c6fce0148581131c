"""Addresses: where in a memory of fixed size each array lies, by first fit. It can be full of holes.

A pool counts bytes, as if an array could be scattered over all free memory. But a device needs one range of addresses
for each array, and may have enough memory in total but not in one piece (ZeRO, section 6.3). An Arena, given to a pool
(`Pool.give_addresses`), shows that. It records the last two steps, so that they can be drawn.
"""

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(eq=False)
class AddressRange:
    """An array's range of addresses, and its lifetime, by the arena's clock, which counts arrays."""

    start: int
    nbytes: int
    kind: str
    born: int
    gone: int | None = None


@dataclass
class Course:
    """The arrays in an arena during a step. Times are the arena's clock."""

    blocks: list[AddressRange] = field(default_factory=list)
    boundaries: list[tuple[int, str]] = field(default_factory=list)  # time, and what ended then
    begun: int = 0
    ended: int = 0


class Arena:
    """Address ranges of one memory. capacity: bytes; None: any number."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.holes: list[tuple[int, int]] = [(0, capacity or 1 << 62)]  # (start, end), in order, never adjacent
        self.clock = 0  # arrays placed so far
        self.top = 0  # the highest address that was ever in use
        self.here: dict[AddressRange, None] = {}  # in order of birth
        self.course = Course()  # of the step that is under way
        self.before = Course()  # of the one before

    def place(self, nbytes: int, kind: str) -> AddressRange | None:
        """Place an array in the lowest hole that is long enough; None if there is none. The rest stays a hole."""
        for i, (start, end) in enumerate(self.holes):
            if end - start >= nbytes:
                self.holes[i : i + 1] = [(start + nbytes, end)] if end - start > nbytes else []
                self.clock = self.course.ended = self.clock + 1
                self.top = max(self.top, start + nbytes)
                block = AddressRange(start, nbytes, kind, self.clock)
                self.here[block] = None
                self.course.blocks.append(block)
                return block
        return None

    def free(self, block: AddressRange) -> None:
        """Make a block's range a hole again, merged with the adjacent holes."""
        del self.here[block]
        block.gone = self.clock
        if not block.nbytes:
            return
        start, end = block.start, block.start + block.nbytes
        i = bisect_left(self.holes, (start, end))
        if i < len(self.holes) and self.holes[i][0] == end:
            end = self.holes.pop(i)[1]
        if i > 0 and self.holes[i - 1][1] == start:
            start = self.holes.pop(i - 1)[0]
            i -= 1
        self.holes.insert(i, (start, end))

    def note_boundary(self, what: str, name: str) -> None:
        """Note a boundary, see Pool.mark. At the end of a step, the course of the next one begins."""
        self.course.boundaries.append((self.clock, name))
        if what == "step":
            self.before = self.course
            self.begin()

    def begin(self) -> None:
        """Start a new course, with the arrays that are here and those to come."""
        self.course = Course(list(self.here), [], self.clock, self.clock)

    @property
    def largest_hole(self) -> int:
        """Bytes of the longest hole."""
        return max((end - start for start, end in self.holes), default=0)

    @property
    def vacant_bytes(self) -> int:
        """Bytes of all holes."""
        return sum(end - start for start, end in self.holes)
