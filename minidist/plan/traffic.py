"""What a rank sends in a step along each axis, and over which links: the volumes of `formulas/`, which every run is
checked by.

Ranks are numbered as Megatron numbers them (`minidist/layout.py`), G to a host. So neighbors on the tensor axis are on
one host if that axis is no longer than G, and those of the outer axes usually are not.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import mul
from typing import NamedTuple

from minidist.formulas.asked import Asked
from minidist.formulas.shares import Share, shares_of
from minidist.formulas.tensor import Volume, end_volumes, layer_volumes
from minidist.formulas.volumes import (
    context_volumes,
    data_volumes,
    expert_volumes,
    message_volumes,
    others,
    tied_volumes,
)
from minidist.layout import Layout
from minidist.papers import pipelines, ptd
from minidist.papers.collectives import chunk_sizes
from minidist.pp.schedules import SCHEDULES

ACROSS_HOSTS = "all-reduce across hosts"  # hybrid sharding: the copies of a shard


class Sent(NamedTuple):
    """Bytes that each asked rank sends along an axis in a step, and the phases in which a run counts them."""

    phases: tuple[str, ...]
    nbytes: list[float]


def volumes_along(asked: Asked) -> dict[str, list[Volume]]:
    """All volumes of a step, by axis. "copies": gradients and parameters of experts, among the ranks that hold the same
    ones."""
    shares = shares_of(asked)
    return {
        **within_layers(asked, shares),
        "pipeline": message_volumes(asked, shares) if asked.layout.pp > 1 else [],
        **data_volumes_along(asked),
    }


def within_layers(asked: Asked, shares: Sequence[Share]) -> dict[str, list[Volume]]:
    """The volumes on the axes within layers: tensor, context, experts. shares: those of the asked ranks."""
    in_layers = [*layer_volumes(asked, shares), *end_volumes(asked, shares)] if asked.layout.tp > 1 else []
    return {
        "tensor": in_layers,
        "context": context_volumes(asked, shares),
        "experts": expert_volumes(asked, shares) if asked.layout.ep > 1 else [],
    }


def data_volumes_along(asked: Asked) -> dict[str, list[Volume]]:
    """The volumes of gradients and parameters; those of experts are apart, if ranks divide the experts. "tied": the
    gradients of parameters on two stages: of an embedding, or in a cross of everything."""
    of_all = data_volumes(asked, lambda of: of.among == asked.dividing)
    of_some = data_volumes(asked, lambda of: of.among < asked.dividing) if asked.layout.ep > 1 else []
    return {
        "data": [volume for volume in of_all if ACROSS_HOSTS not in volume.phases],
        "copies": [volume for volume in of_some if ACROSS_HOSTS not in volume.phases],
        "hosts": [volume for volume in [*of_all, *of_some] if ACROSS_HOSTS in volume.phases],
        "tied": tied_volumes(asked),
    }


def sent(asked: Asked) -> dict[str, Sent]:
    """What each asked rank sends, by axis. "rest": norms, and gradients of what every tensor-parallel rank has. Their
    formulas are for all ranks together; each rank gets its share."""
    found = {}
    for axis, of_axis in volumes_along(asked).items():
        phases = tuple(phase for volume in of_axis for phase in volume.phases)
        nbytes = [0.0] * asked.ranks
        for volume in of_axis:
            for rank, elements in enumerate(volume.elements):
                nbytes[rank] += elements * volume.times * volume.width
        found[axis] = Sent(phases, nbytes)
    rest = others(asked)
    each = chunk_sizes(sum(left.nbytes for left in rest.values()), asked.layout.ranks)
    return {**found, "rest": Sent(tuple(rest), [float(nbytes) for nbytes in each[: asked.ranks]])}


def most_sent(asked: Asked, in_layers: int, along: Mapping[str, Sequence[Volume]]) -> int:
    """Bytes that the busiest rank sends in a step, along all axes: the sum of each axis' most in `sent`. in_layers:
    along the axes within layers, in a micro-batch. along: `data_volumes_along`."""
    at, passes, between = asked.layout, asked.passes, 0
    if at.pp > 1:
        sizes = at.schedule, at.pp, at.micro_batches
        between = max(sum(pipelines.count_messages(*sizes, stage, at.chunks)) for stage in asked.stages)
    rest = -(-sum(left.nbytes for left in others(asked).values()) // at.ranks)
    data = sum(most_bytes(volumes, passes) for volumes in along.values())
    return passes * in_layers + between * boundary_bytes(asked) + data + rest


def most_bytes(volumes: Sequence[Volume], passes: int) -> int:
    """What the busiest of the asked ranks sends of these volumes, if what is sent in each micro-batch is sent in this
    number of them."""
    times = [volume.width * (passes if volume.times > 1 else 1) for volume in volumes]
    by_rank = zip(*(volume.elements for volume in volumes), strict=True)
    return max((sum(map(mul, times, elements)) for elements in by_rank), default=0)


def boundary_bytes(asked: Asked) -> int:
    """Bytes of a rank's part of what crosses a boundary between stages for a micro-batch, in one direction."""
    apart = asked.layout.tp if asked.sequence_parallel else 1
    elements = ptd.boundary_elements(asked.rows, asked.context // asked.layout.cp, asked.model.h)
    return asked.bytes.stored * (elements // apart)


# ---- hosts -----------------------------------------------------------------------------------------------------------


def size_of(layout: Layout, axis: str) -> int:
    """The number of ranks in a group along an axis. Ranks that divide the sequences also divide model states."""
    sizes = {"tensor": layout.tp, "context": layout.cp, "pipeline": layout.pp, "hosts": layout.hosts}
    data = layout.shard * layout.cp
    sizes |= {"data": data, "experts": layout.ep, "copies": data // layout.ep, "tied": min(layout.pp, 2)}
    return sizes[axis]


def on_a_host(layout: Layout, axis: str, per_host: int) -> int:
    """How many ranks of a group are on the same host, next to each other in the group's order."""
    tp, cp, pp = layout.tp, layout.cp, layout.pp

    def within(size: int, stride: int) -> int:
        return min(size, max(1, per_host // stride))

    if axis in ("data", "experts", "copies"):  # every n-th of the ranks that divide model states
        step, size = layout.ep if axis == "copies" else 1, size_of(layout, axis)
        numbers = (divmod(step * i, cp) for i in range(min(size, per_host)))
        return max(1, sum((share * pp * cp + context + 1) * tp <= per_host for share, context in numbers))
    if axis == "tied":
        return 2 if tp * cp * pp <= per_host else 1
    size, stride = {
        "tensor": (tp, 1),
        "context": (cp, tp),
        "pipeline": (pp, tp * cp),
        "hosts": (layout.hosts, tp * cp * pp * layout.shard),
    }[axis]
    return within(size, stride)


def share_across(layout: Layout, axis: str, per_host: int, scheme: str = "ring") -> float:
    """The share of an axis' bytes that leaves a host, counted over all groups: each member sends to the next one in a
    ring. With Ulysses a context rank sends as much to each other, and so do ranks that divide experts. The last stage
    sends to the first one, except from the model's last chunk; in a V or a cross it has no such message."""
    if axis == "rest":
        return 0.0 if layout.ranks <= per_host else 1.0
    size, leaving = 2 if axis == "tied" else size_of(layout, axis), 0
    if size == 1:
        return 0.0
    times = [1] * size  # messages from each member to the next
    if axis == "pipeline":
        loops = layout.chunks - 1 if SCHEDULES[layout.schedule].shape == "loop" else 0
        times = [max(loops + 1, 1)] * (size - 1) + [loops]
    to_all = axis == "experts" or (axis == "context" and scheme == "ulysses")
    for hosts in ([rank // per_host for rank in group] for group in groups_of(layout, axis)):
        if to_all:
            leaving += size**2 - sum(n**2 for n in Counter(hosts).values())
        else:
            following = hosts[1:] + hosts[:1]
            leaving += sum(n for n, one, other in zip(times, hosts, following, strict=True) if one != other)
    each = size * (size - 1) if to_all else sum(times)
    return leaving / each * size / layout.ranks


def groups_of(layout: Layout, axis: str) -> Iterator[list[int]]:
    """The ranks of each group along an axis, in order."""
    tp, cp, pp, n = layout.tp, layout.cp, layout.pp, layout.ranks
    if axis in ("data", "experts", "copies"):
        of_data = [(share * pp * cp + context) * tp for share in range(layout.shard) for context in range(cp)]
        step, width = {"data": (1, n), "experts": (1, layout.ep), "copies": (layout.ep, n)}[axis]
        starts = range(0, len(of_data), layout.ep) if axis == "experts" else range(step)
        for first in (
            host + other for host in range(0, n, n // layout.hosts) for other in range(0, pp * cp * tp, cp * tp)
        ):
            for part in range(first, first + tp):
                for start in starts:
                    yield [part + offset for offset in of_data[start : start + width : step]]
        return
    strides = {"tensor": 1, "context": tp, "pipeline": tp * cp, "tied": tp * cp, "hosts": n // layout.hosts}
    size, stride = pp if axis == "tied" else size_of(layout, axis), strides[axis]
    for first in (block + other for block in range(0, n, size * stride) for other in range(stride)):
        group = list(range(first, first + size * stride, stride))
        yield [group[0], group[-1]] if axis == "tied" else group
