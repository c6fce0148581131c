"""Which part of a computation goes on which of two memories: every possibility, by what it moves and what it leaves.

A computation is a graph. Its nodes are data of some size, and operations, of none; its edges are what flows from one to
another in a step. A node is on the device or on the host. What flows between the two goes over their link.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Edge = tuple[str, str, int]  # from, to, bytes in a step


class Partition(NamedTuple):
    """One possibility."""

    host: frozenset[str]  # the nodes that are there; the others are on the device
    moved: int  # bytes over the link in a step: of the edges that it cuts
    device: int  # bytes that stay on the device


def partitions(sizes: Mapping[str, int], edges: Sequence[Edge], on_device: str) -> Iterator[Partition]:
    """All of them: 2 to the number of nodes but one.

    sizes: bytes of each node. on_device: the node that cannot be anywhere else.
    """
    free = [node for node in sizes if node != on_device]
    for chosen in itertools.product((False, True), repeat=len(free)):
        host = frozenset(itertools.compress(free, chosen))
        moved = sum(nbytes for start, end, nbytes in edges if (start in host) != (end in host))
        yield Partition(host, moved, sum(nbytes for node, nbytes in sizes.items() if node not in host))


def best(found: Sequence[Partition]) -> list[Partition]:
    """Of those that leave less on the device than everything, the ones that move least; of these, the ones that leave
    least."""
    everything = max(partition.device for partition in found)
    offloading = [partition for partition in found if partition.device < everything]
    cheapest = [each for each in offloading if each.moved == min(other.moved for other in offloading)]
    return [each for each in cheapest if each.device == min(other.device for other in cheapest)]
