"""What a rank sends in a step along each axis, and over which links: the volumes of `grid/volumes.py`, which every run
is checked by.

Ranks are numbered as Megatron numbers them (`minidist/layout.py`), G to a host. So neighbors on the tensor axis are on
one host if that axis is no longer than G, and those of the outer axes usually are not.
"""

from typing import NamedTuple

from minidist.claims.run import Asked
from minidist.grid.shares import dividing, shares_of
from minidist.grid.volumes import (
    context_volumes,
    data_volumes,
    expert_volumes,
    message_volumes,
    others,
    tied_volumes,
)
from minidist.layout import Layout
from minidist.pp.schedules import SCHEDULES
from minidist.tp.claims import Volume, end_volumes, layer_volumes

AXES = ("tensor", "context", "experts", "pipeline", "data", "copies", "hosts", "tied", "rest")
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
        **within_layers(asked),
        "pipeline": message_volumes(asked, shares) if asked.layout.pp > 1 else [],
        **data_volumes_along(asked),
    }


def within_layers(asked: Asked) -> dict[str, list[Volume]]:
    """What layers wait for, or attention; and tokens on their way to experts."""
    t, shares = asked.layout.tp, shares_of(asked)
    in_layers = [*layer_volumes(asked, t, shares), *end_volumes(asked, t, shares)] if t > 1 else []
    return {
        "tensor": in_layers,
        "context": context_volumes(asked, shares),
        "experts": expert_volumes(asked, shares) if asked.layout.ep > 1 else [],
    }


def data_volumes_along(asked: Asked) -> dict[str, list[Volume]]:
    """Gradients and parameters; those of experts apart, if ranks divide these. "tied": gradients of what two stages
    hold: an embedding, or in a cross everything."""
    of_all = data_volumes(asked, lambda of: of.among == dividing(asked))
    of_some = data_volumes(asked, lambda of: of.among < dividing(asked)) if asked.layout.ep > 1 else []
    return {
        "data": [volume for volume in of_all if ACROSS_HOSTS not in volume.phases],
        "copies": [volume for volume in of_some if ACROSS_HOSTS not in volume.phases],
        "hosts": [volume for volume in [*of_all, *of_some] if ACROSS_HOSTS in volume.phases],
        "tied": tied_volumes(asked),
    }


def sent(asked: Asked) -> dict[str, Sent]:
    """By axis. "rest": norms, and gradients of what every tensor-parallel rank has; of these the formulas are of all
    ranks together, and each rank has its share."""
    found = {}
    for axis, of_axis in volumes_along(asked).items():
        phases = tuple(phase for volume in of_axis for phase in volume.phases)
        nbytes = [0.0] * asked.ranks
        for volume in of_axis:
            for rank, elements in enumerate(volume.elements):
                nbytes[rank] += elements * volume.times * volume.width
        found[axis] = Sent(phases, nbytes)
    rest = others(asked)
    each = sum(nbytes for _, nbytes in rest.values()) / asked.layout.ranks
    return {**found, "rest": Sent(tuple(rest), [each] * asked.ranks)}


# ---- hosts -----------------------------------------------------------------------------------------------------------


def size_of(layout: Layout, axis: str) -> int:
    """The number of ranks in a group along an axis. Those that divide the sequences also divide model states."""
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
    """The share of an axis' bytes that leaves a host: of k neighbors on a host, the last one sends to another host.
    With Ulysses a context rank sends as much to each other, and so do ranks that divide experts."""
    if axis == "rest":
        return 0.0 if layout.ranks <= per_host else 1.0
    if axis == "pipeline":
        return share_of_stages_across(layout, per_host)
    near, size = on_a_host(layout, axis, per_host), size_of(layout, axis)
    if near >= size:
        return 0.0
    if axis == "experts" or (axis == "context" and scheme == "ulysses"):
        return (size - near) / (size - 1)
    return 1 / near


def share_of_stages_across(layout: Layout, per_host: int) -> float:
    """The same from stage to stage, in all pipelines. The last stage sends to the first one, except from the model's
    last chunk; in a V or a cross it has no such message."""
    stride, pp = layout.cp * layout.tp, layout.pp
    loops = layout.chunks - 1 if SCHEDULES[layout.schedule].shape == "loop" else 0
    times = [max(loops + 1, 1)] * (pp - 1) + [loops]  # from each stage to the next
    leaving = 0
    for first in (data * pp * stride + other for data in range(layout.dp) for other in range(stride)):
        hosts = [(first + stage * stride) // per_host for stage in range(pp)]
        following = hosts[1:] + hosts[:1]
        leaving += sum(n for n, one, other in zip(times, hosts, following, strict=True) if one != other)
    return leaving / max(sum(times) * layout.dp * stride, 1)
