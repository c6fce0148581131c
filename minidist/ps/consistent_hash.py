"""Which server holds which keys: consistent hashing with virtual servers (Li et al., OSDI 2014, section 4.3).

The keys 0 … S-1 lie around a ring in order, so a piece of the ring is a range of keys. A server is placed on the ring
at the hashes of its names; each of these virtual servers owns the keys from its point to the next one. A
server that joins k others takes about 1/(k+1) of the keys from them and moves no other key. The more virtual servers,
the more even the shares.
"""

from collections.abc import Sequence
from hashlib import blake2b

Segment = tuple[int, int, int]  # first key, last key + 1, server


def segments(servers: Sequence[int], virtual: int, size: int) -> list[Segment]:
    """The ranges of keys 0 to size-1 and the server that owns each, in order of keys."""
    points = sorted((_hash(f"{server}/{i}") * size >> 64, server) for server in servers for i in range(virtual))
    # Before the first point the ring closes: those keys belong to the last virtual server.
    starts = [(0, points[-1][1]), *points]
    ends = [key for key, _ in points] + [size]
    joined: list[Segment] = []
    for (lo, server), hi in zip(starts, ends, strict=True):
        if joined and joined[-1][2] == server:
            joined[-1] = (joined[-1][0], hi, server)
        elif hi > lo:
            joined.append((lo, hi, server))
    return joined


def count_moved(before: Sequence[Segment], after: Sequence[Segment]) -> dict[tuple[int, int], int]:
    """How many keys change hands: {(from, to): keys}."""
    hands: dict[tuple[int, int], int] = {}
    for lo, hi, old in before:
        for start, end, new in after:
            keys = min(hi, end) - max(lo, start)
            if keys > 0 and old != new:
                hands[old, new] = hands.get((old, new), 0) + keys
    return hands


def _hash(name: str) -> int:
    """64 bits that are the same in every process, which Python's own hash(str) is not."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
