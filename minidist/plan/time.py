"""How long a step takes, by a stated model. Bytes, operations and bubbles are exact; times are the model's.

Work is the operations of the stage that has most, over a ceiling of the device. The ceiling is a share of its peak that
is the same for every device and every layout (`CEILING`).

A message takes α + n/β: a latency, and its bytes over the bandwidth of the slowest link of the group. If k ranks of a
group are on one host, all k send to other hosts at once. So the group has k times a rank's bandwidth there. A ring of n
takes n-1 messages for a reduce-scatter or an all-gather (`papers/collectives.py`).

The bubble is a share of the time that a stage works: PTD's (p-1)/(vm) (section 2.2), or another schedule's (`orders`).

What overlap hides: no tensor messages, because a layer waits for them, and no tokens on their way to experts. Messages
of context ranks are hidden behind attention's core of the same layer (Ring Attention, section 3). Messages of a
pipeline are hidden behind other micro-batches, but not while it fills and drains. DualPipe hides tokens on their
way behind the work that overlaps with them (DeepSeek-V3, section 3.2.1). Gradients are hidden behind the last backward,
and parameters behind the first forward. With ZeRO-2 and 3 that is so in each micro-batch: the longer of the two counts
(FSDP, section 3.3.2).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minidist.formulas import experts
from minidist.formulas.asked import Asked
from minidist.formulas.shares import Share, own_units, shares_of
from minidist.formulas.tensor import Volume
from minidist.papers import korthikanti, palm
from minidist.papers.decoder import MIXTURE
from minidist.papers.models import Model
from minidist.plan.orders import idle
from minidist.plan.traffic import boundary_bytes, data_volumes_along, most_bytes, on_a_host, size_of, within_layers

CEILING = 0.58  # set on SC 2021, table 1: `published.fit`


@dataclass(frozen=True)
class Cluster:
    """Devices and links. Bandwidths in bytes a second, of one rank in one direction."""

    ranks: int
    memory: int  # bytes of a device
    per_host: int = 8
    flops: float = 989e12  # operations a second at most
    within: float = 450e9
    across: float = 50e9
    latency: float = 5e-6  # seconds of a message
    ceiling: float = CEILING  # the share of `flops` that a device reaches
    reserve: int = 0  # bytes of a device that an allocator and libraries take

    @property
    def room(self) -> int:
        """Bytes of a device for what formulas count."""
        return self.memory - self.reserve


class Seconds(NamedTuple):
    """Seconds of a step on the slowest stage, by kind; messages count as far as computation does not hide them."""

    work: float
    again: float  # recomputation
    bubble: float
    tensor: float
    context: float
    experts: float
    pipeline: float
    data: float

    @property
    def step(self) -> float:
        return sum(self)


class Operations(NamedTuple):
    """Operations in a forward of one micro-batch on one rank of a stage. A backward has twice as many."""

    layers: float
    core: float  # of these, attention's core
    head: float


def flops_a_token(model: Model, s: int, kept: float = 1.0) -> float:
    """Operations of a token, forward and backward, without recomputation: PaLM's 6N + 12LHQT (appendix B). N: the
    parameters that a token goes through, without the embedding's table, which is read and not multiplied, and without
    the experts that drop it. kept: the share of the tokens' choices for which experts have room."""
    table = 0 if model.tied else model.v * model.h
    of = model.decoder
    positions = model.s * model.h if of.learned else 0
    [mlp] = model.mlp()
    dropped = of.kinds.count(MIXTURE) * model.top * (1 - kept) * sum(mlp)
    n = model.active() - table - positions - dropped
    return palm.flops_a_token(n, model.layers, 1, of.inner, of.keys(s))


def useful_flops(asked: Asked) -> float:
    """`flops_a_token`, without the work that experts drop if all of them are chosen equally often."""
    model, kept = asked.model, 1.0
    if model.experts and (room := experts.room(asked)) is not None:
        kept = min(1.0, float(room * model.experts / experts.mean_tokens(asked) / model.top))
    return flops_a_token(model, asked.context, kept)


def operations(asked: Asked, rank: int, head: bool, rows: int) -> Operations:
    """PaLM's count for the layers and the head of a rank's stage, for b sequences, on one of tp·cp ranks."""
    model, of, s = asked.model, asked.model.decoder, asked.context
    tokens = rows * s / (asked.layout.tp * asked.layout.cp)
    [mlp] = model.mlp()
    sizes, own = model.units(), {*own_units(asked, rank)} - {0, model.layers + 1}
    elements, layers = float(sum(sizes[unit] for unit in own)), len(own)
    if model.experts:  # each of them has a fixed number of rows
        mean = experts.mean_tokens(asked)
        mixtures = sum(of.kinds[unit - 1] == MIXTURE for unit in own)
        elements += mixtures * sum(mlp) * (float(model.experts * (experts.room(asked) or 0) / mean) - model.experts)
    keys = of.keys(s)
    if asked.tiled:  # without tiles that the mask hides (FlashAttention, section 3.1)
        keys -= keys * (keys - 1) / (2 * s)
    core = layers * korthikanti.core_flops(s, rows, of.inner) * keys / s / (asked.layout.tp * asked.layout.cp)
    matrices = palm.flops_a_token(elements, 1, 1, 1, s, attention=False) / 3 * tokens
    logits = palm.flops_a_token(model.v * model.h, 1, 1, 1, s, attention=False) / 3 * tokens
    return Operations(matrices + core, core, head * logits)


def message_time(cluster: Cluster, asked: Asked, axis: str, nbytes: float, messages: float) -> float:
    """α for each message, and bytes over the slowest link."""
    near, size = on_a_host(asked.layout, axis, cluster.per_host), size_of(asked.layout, axis)
    if axis == "experts":  # each rank sends as much to every other one
        away = (size - near) / max(size - 1, 1)
        return messages * cluster.latency + nbytes * max((1 - away) / cluster.within, away / cluster.across)
    bandwidth = cluster.within if near >= size else min(cluster.within, near * cluster.across)
    return messages * cluster.latency + nbytes / bandwidth


class StageSeconds(NamedTuple):
    """Seconds of one micro-batch on a stage."""

    work: float
    again: float
    tensor: float
    context: float  # that attention does not hide
    experts: float
    forward: float  # all of the above that is in the forward
    backward: float
    links: float  # of messages, also of those that are hidden


def of_step(cluster: Cluster, asked: Asked, stage: StageSeconds, data: "Messages") -> tuple[Seconds, float]:
    """The seconds of a step, from those of one micro-batch on the slowest stage, and what the data axis adds; and the
    seconds of its messages, hidden or not."""
    at = asked.layout
    m, p, v = at.micro_batches, at.pp, at.chunks
    through = asked.passes  # micro-batches through each chunk of a stage
    busy, hop = stage.forward + stage.backward, 0.0
    if p > 1:
        hop = message_time(cluster, asked, "pipeline", boundary_bytes(asked), 1)
    filling = 2 * (p - 1) * hop + through * max(0.0, 2 * v * hop - busy)
    work, again, tensor, context, routed = (through * each for each in stage[:5])
    bubble, links = through * busy * idle(at.schedule, p, m, v), through * (stage.links + 2 * v * hop) + data.links
    return Seconds(work, again, bubble, tensor, context, routed, filling, data.waits), links


def slowest(cluster: Cluster, asked: Asked) -> tuple[StageSeconds, int]:
    """The stage that works longest, of those that are asked about; and the bytes that the busiest rank sends within
    layers for a micro-batch."""
    shares = shares_of(asked)
    along = within_layers(asked, shares)
    stages = (of_stage(cluster, asked, along, rank, share) for rank, share in enumerate(shares))
    sent = sum(most_bytes(volumes, asked.passes) for volumes in along.values()) // asked.passes
    return max(stages, key=lambda stage: stage.forward + stage.backward), sent


def of_stage(
    cluster: Cluster, asked: Asked, along: Mapping[str, Sequence[Volume]], rank: int, share: Share
) -> StageSeconds:
    """The seconds of an asked rank's stage. along: the volumes of the tensor, context and expert axes."""
    t, n = asked.layout.tp, asked.layout.cp
    rate = cluster.flops * cluster.ceiling
    done = operations(asked, rank, share.head, share.b)
    run = share.layers and share.layers_again / share.layers  # recomputed forwards, as a part of all
    again = (run * done.layers + (asked.recompute == "selective") * done.core) / rate
    work = 3 * (done.layers + done.head) / rate

    nbytes = sum(volume.width * volume.elements[rank] for volume in along["tensor"])
    collectives = 4 * share.layers + 2 * share.layers_again + share.embedding + share.head
    tensor = message_time(cluster, asked, "tensor", nbytes, 2 * (t - 1) * collectives) if t > 1 else 0.0

    context = ring = 0.0
    if n > 1:
        nbytes = sum(volume.width * volume.elements[rank] for volume in along["context"])
        rounds = (3 * share.layers + share.layers_again) * (n - 1)
        core = (3 + run) * done.core / rate
        ring = message_time(cluster, asked, "context", nbytes, rounds)
        context = max(0.0, ring - core * (asked.attention == "ring"))
    tokens = sum(volume.width * volume.elements[rank] for volume in along["experts"]) / asked.passes
    all_to_alls = (4 * share.layers + 2 * share.layers_again) * (asked.layout.ep - 1)
    routed = message_time(cluster, asked, "experts", tokens, all_to_alls)
    links = tensor + ring + routed
    if asked.layout.schedule.startswith("dualpipe"):
        routed = max(0.0, routed - work)

    forward = (work + tensor + context + routed) / 3
    backward = work + again + tensor + context + routed - forward
    return StageSeconds(work, again, tensor, context, routed, forward, backward, links)


class Messages(NamedTuple):
    """Seconds of messages in a step: those for which it waits, and all."""

    waits: float
    links: float


def data_time(cluster: Cluster, asked: Asked, along: Mapping[str, Sequence[Volume]], stage: StageSeconds) -> Messages:
    """What the data axis adds to a step. along: its volumes, and those between copies of a shard."""
    zero, m = asked.zero, asked.layout.micro_batches
    units = len(asked.layout.parts[0]) * asked.layout.chunks
    took = defaultdict[str, float](float)
    for axis in ("data", "copies"):
        for volume in along[axis]:
            times = 2 if volume.phases[0] in ("all-gather forward", "all-reduce gradients") else 1
            messages = times * units * (size_of(asked.layout, axis) - 1)
            took[volume.phases[0]] += message_time(cluster, asked, axis, volume.width * max(volume.elements), messages)
    forward, backward = stage.forward, stage.backward
    if zero == 0:
        reduce = took["all-reduce gradients"]
        return Messages(max(0.0, reduce - backward), reduce)
    reduce = took["reduce-scatter gradients"]
    if zero < 3:
        every, gather = m if zero == 2 else 1, took["all-gather parameters"]
        return Messages(every * max(0.0, reduce - backward) + max(0.0, gather - forward), every * reduce + gather)
    gather = took["all-gather forward"] / 2  # one half is in the forward, one in the backward
    again = took["all-gather again"]
    hosts = 0.0
    for volume in along["hosts"]:
        messages = 2 * units * (asked.layout.hosts - 1)
        hosts += message_time(cluster, asked, "hosts", volume.width * max(volume.elements), messages)
    waits = max(0.0, gather - forward) + max(0.0, gather + again + reduce - backward)
    return Messages(m * waits + max(0.0, hosts - backward), m * (2 * gather + again + reduce) + hosts)


def tied_time(cluster: Cluster, asked: Asked, along: Mapping[str, Sequence[Volume]], stage: StageSeconds) -> Messages:
    """What gradients of parameters on two stages add to a step. The last backward hides them, as it hides others."""
    elements = (volume.width * max(volume.elements) for volume in along["tied"])
    links = sum(message_time(cluster, asked, "tied", nbytes, 2) for nbytes in elements)
    return Messages(max(0.0, links - stage.backward), links)


def step_time(cluster: Cluster, asked: Asked) -> float:
    """Seconds of a step."""
    (stage, _), along = slowest(cluster, asked), data_volumes_along(asked)
    pairs = zip(*(of(cluster, asked, along, stage) for of in (data_time, tied_time)), strict=True)
    return of_step(cluster, asked, stage, Messages(*map(sum, pairs)))[0].step
