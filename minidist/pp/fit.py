"""Which layouts of a pipeline work with which options: stages, chunks, micro-batches, and the units of each chunk."""

import math
from dataclasses import replace
from typing import NamedTuple

from minidist import UsageError
from minidist.layout import Layout
from minidist.nn.layers import Unit
from minidist.pp import balance
from minidist.pp.options import chunks_of, contiguous_of, divisors, parts
from minidist.pp.schedules import SCHEDULES

CONTIGUOUS = "llama3: micro-batches per turn of a chunk, from p to m"  # --contiguous
BANDWIDTH = 0.05  # bytes in the time of a multiplication, as with 10 Gb/s and 25 Tflop/s


class Staging(NamedTuple):
    """What was asked of a pipeline; None: what is usual."""

    schedule: str
    micro_batches: int | None
    chunks: int | None
    contiguous: int | None
    replicas: tuple[int, ...] = ()
    first: int | None = None  # layers of the model's first chunk, and of its last
    last: int | None = None


def fit(asked: Staging, layers: int, batch: int, ranks: int, sharing: int = 1) -> Layout:
    """A layout of stages, chunks and micro-batches, given or by default. Raises UsageError if they do not fit.

    sharing: how many such pipelines share each micro-batch.
    """
    name, replicas = asked.schedule, asked.replicas
    in_turns = name in ("pipedream", "vertical-sync")
    if replicas and not in_turns:
        raise UsageError(f"{name} has one rank for each stage: leave out --replicas, or use --schedule pipedream")
    if replicas and sum(replicas) != ranks:
        counts = ",".join(map(str, replicas))
        raise UsageError(f"--replicas {counts} are {sum(replicas)} ranks, not {ranks}: use mpirun -n {sum(replicas)}")
    stages, schedule = len(replicas) or ranks, SCHEDULES[name]
    chunks = chunks_of(name, asked.chunks)
    if stages % schedule.stages_in:
        without = "dualpipe-v" if name == "dualpipe" else "zb-v"
        raise UsageError(f"{name} needs an even number of stages, not {stages}: use --schedule {without}")

    needed = stages * chunks
    if needed > layers + 2:
        whole = f"{stages} stages" + (f" of {chunks} chunks" if chunks > 1 else "")
        units = f"{layers + 2} units (embedding, {layers} block{'s' * (layers > 1)}, head)"
        raise UsageError(f"{units} are too few for {whole}: use --layers {needed - 2}")

    # m must be a multiple of something and at least something, and the batch a multiple of m.
    multiple = math.lcm(*replicas) if replicas else schedule.micro_batches_in(stages)
    least = schedule.at_least(stages)
    usual = multiple if in_turns or name == "chimera" else 8
    fitting = [m for m in divisors(batch) if m % multiple == 0 and least <= m <= batch // sharing]
    default = next((m for m in fitting if m >= usual), fitting[-1] if fitting else max(usual, least))
    m = asked.micro_batches or default
    if m not in fitting:
        good = -(-max(m, least) // multiple) * multiple
        enough = good * max(-(-batch // good), sharing)
        if m % multiple or m < least:
            needs = f"a multiple of {multiple}" if m % multiple else f"at least {least}"
            reason = f"{name} on {ranks} ranks needs {needs} for --micro-batches, not {m}"
        elif batch % m:
            reason = f"--batch {batch} is not divisible by --micro-batches {m}"
        else:
            reason = f"--batch {batch} in {m} micro-batch{'es' * (m > 1)} is too small for {sharing} ranks"
        remedy = {"--micro-batches": good} if good != m else {}
        remedy |= {"--batch": enough} if enough != batch else {}
        raise UsageError(f"{reason}: use {' '.join(f'{option} {n}' for option, n in remedy.items())}")
    found = Layout(pp=stages, schedule=name, micro_batches=m, chunks=chunks, replicas=replicas)
    contiguous, given = contiguous_of(name, stages, m, asked.contiguous), (asked.first, asked.last)
    uneven = () if given == (None, None) else parts(layers, needed, *given)
    return replace(found, contiguous=contiguous, parts=uneven)


def few_micro_batches(at: Layout) -> int | None:
    """How many micro-batches to a step show all that a schedule does: more than stages, but no more than there are.
    None without a schedule."""
    if at.pp == 1 and not at.replicas:
        return None
    schedule = SCHEDULES[at.schedule]
    multiple = math.lcm(*at.replicas) if at.replicas else schedule.micro_batches_in(at.pp)
    least = max(schedule.at_least(at.pp), at.pp + 1)
    return min(at.micro_batches, -(-least // multiple) * multiple)


def cut(layout: Layout, units: list[Unit], batch: int, context: int, itemsize: int) -> Layout:
    """The layout with the units of each chunk: as it says, or cut so that chunks are balanced."""
    if layout.parts:
        return layout
    known = balance.profile(units, batch // layout.micro_batches, context, itemsize)
    replicas = layout.replicas or (1,) * (layout.pp * layout.chunks)
    _, stages = balance.partition(known, sum(replicas), BANDWIDTH, replicas)
    return replace(layout, parts=tuple(which for which, _ in stages))
