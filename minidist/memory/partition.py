"""How to divide a computation between two memories: every partition, with what it moves and what stays on the device.

A computation is a graph. Its nodes are data, which have a size, and operations, which have none. Its edges are what
flows from node to node in a step. A node is on the device or on the host. What flows between the two goes over a link.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Edge = tuple[str, str, int]  # from, to, bytes in a step


class Partition(NamedTuple):
    """One partition."""

    host: frozenset[str]  # the nodes on the host; the others are on the device
    moved: int  # bytes over the link in a step: those of the edges between host and device
    device: int  # bytes that stay on the device


def partitions(sizes: Mapping[str, int], edges: Sequence[Edge], on_device: str) -> Iterator[Partition]:
    """All partitions: 2 to the power of the number of nodes except one.

    sizes: bytes of each node. on_device: the node that cannot be anywhere else.
    """
    free = [node for node in sizes if node != on_device]
    for chosen in itertools.product((False, True), repeat=len(free)):
        host = frozenset(itertools.compress(free, chosen))
        moved = sum(nbytes for start, end, nbytes in edges if (start in host) != (end in host))
        yield Partition(host, moved, sum(nbytes for node, nbytes in sizes.items() if node not in host))


def best(found: Sequence[Partition]) -> list[Partition]:
    """Of the partitions that leave less than everything on the device, those that move the fewest bytes; among these,
    those that leave the fewest bytes."""
    everything = max(partition.device for partition in found)
    offloading = [partition for partition in found if partition.device < everything]
    cheapest = [each for each in offloading if each.moved == min(other.moved for other in offloading)]
    return [each for each in cheapest if each.device == min(other.device for other in cheapest)]
