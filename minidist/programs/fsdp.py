"""FSDP as a program: its strategies, and their options."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from minidist import UsageError, fsdp
from minidist.cli.fields import choice, flag, part, whole
from minidist.cli.shared import Line
from minidist.command import Job
from minidist.data_parallel import DataParallel
from minidist.engine import Settings
from minidist.ep.count import count as count_experts
from minidist.layout import Layout
from minidist.mpi.comm import Comm
from minidist.nn.layers import Linear, Unit
from minidist.parallel3d import grid
from minidist.programs import axes
from minidist.programs.axes import ContextOptions, DividedOptions
from minidist.programs.chapter import Chapter
from minidist.programs.serial import Serial

STRATEGIES = ("full_shard", "shard_grad_op", "hybrid_shard", "no_shard")


@dataclass(frozen=True, kw_only=True)
class FSDPOptions:
    strategy: str = choice(STRATEGIES, STRATEGIES[0], f"or {', '.join(STRATEGIES[1:])}")
    ranks_per_host: int | None = whole("G", "hybrid_shard: they divide states; default: half of all", also="--shard")
    backward_prefetch: str | None = choice(("pre", "post", "none"), None, "pre, post or none; default: pre", "W")
    forward_prefetch: bool = flag("gather the next units before a forward, too")
    prefetch: int | None = whole("K", "units gathered ahead; default: 1")
    no_sync: bool = flag("reduce once for all micro-batches (--accumulate)")
    cp: int = whole("N", "divide sequences; --scheme, --positions", 1)
    how: ContextOptions = part(ContextOptions)
    mixture: DividedOptions = part(DividedOptions)


def check_strategy(o: FSDPOptions, accumulate: int) -> None:
    """Raise UsageError for options that have no effect with this strategy."""
    strategy = f"--strategy {o.strategy}"
    if o.strategy == "no_shard" and (o.backward_prefetch or o.forward_prefetch or o.prefetch):
        raise UsageError(f"{strategy} gathers nothing: leave --prefetch, --forward-prefetch and --backward-prefetch")
    if o.strategy == "no_shard" and o.no_sync:
        raise UsageError(f"{strategy} has whole gradients, and reduces them once a step anyway: leave out --no-sync")
    if o.strategy == "no_shard" and (o.cp > 1 or o.mixture.experts):
        raise UsageError(
            f"{strategy} divides nothing: with --cp and --experts use python -m minidist.parallel3d --zero 0"
        )
    if o.strategy == "shard_grad_op" and o.backward_prefetch:
        raise UsageError(f"{strategy} gathers nothing in its backward: leave out --backward-prefetch")
    if o.no_sync and accumulate == 1:
        raise UsageError("--no-sync is of several micro-batches: use it with --accumulate 2 or more")
    if o.ranks_per_host and o.strategy != "hybrid_shard":
        raise UsageError(f"--ranks-per-host needs --strategy hybrid_shard, not {strategy}")


def lay_out(o: FSDPOptions, ranks: int) -> Layout:
    """Hosts by strategy, context ranks, ranks that divide experts. Raises UsageError for an impossible layout."""
    dp = ranks // o.cp
    if o.strategy == "no_shard":
        return Layout(dp=ranks, hosts=ranks)
    shard = dp
    if o.strategy == "hybrid_shard":
        shard = o.ranks_per_host or (dp if dp % 2 else dp // 2)
    if dp % shard:
        works = axes.nearest_divisor(dp, shard)
        raise UsageError(f"{dp} ranks are no hosts of {shard} each: use --ranks-per-host {works}")
    ep = axes.choose_ep(o.mixture.experts, o.mixture.ep, shard * o.cp) if o.mixture.experts else 1
    return Layout(dp=dp, cp=o.cp, hosts=dp // shard, ep=ep)


def hold_linear(comm: Comm, inputs: int, outputs: int) -> float:
    """Elements of a linear layer that this rank holds, if all ranks divide it: the paper's figure 3."""
    unit = Unit()
    unit.name = "linear"
    unit.own([Linear(unit.name, inputs, outputs, bias=True)])
    engine = fsdp.FSDP([unit], Settings(), comm)
    return engine.device.peak["parameters"] / np.dtype(engine.precision.stored).itemsize


class FSDPChapter(Chapter[FSDPOptions]):
    name, doc, options = "fsdp", fsdp.__doc__, FSDPOptions
    cases = {
        **{name: f"--forward-prefetch --strategy {name}" for name in ("full_shard", "hybrid_shard")},
        "context": "--cp {axis}",
        "experts": "--experts 8 --ep {axis}",
        "both": "--cp {axis} --experts 8 --scheme all-gather --forward-prefetch",
    }

    def layout(self, line: Line[FSDPOptions], ranks: int) -> Layout:
        own = line.own
        check_strategy(own, line.training.accumulate)
        if ranks % own.cp:
            works = axes.nearest_divisor(ranks, own.cp)
            raise UsageError(f"--cp {own.cp} does not divide {ranks} ranks: use --cp {works}")
        axes.check_context(line.model, own.how.scheme, own.cp)
        axes.check_division(own.mixture)
        return lay_out(own, ranks)

    def complete(self, line: Line[FSDPOptions], layout: Layout) -> Line[FSDPOptions]:
        ahead, way_back = line.own.prefetch or 1, line.own.backward_prefetch or "pre"
        return replace(line, own=replace(line.own, prefetch=ahead, backward_prefetch=way_back))

    def make(self, job: Job[FSDPOptions], comm: Comm) -> DataParallel:
        own = job.own
        if own.strategy == "no_shard":
            return DataParallel(job.units, job.settings, comm)
        build = partial(
            fsdp.FSDP,
            reshard_after_forward=own.strategy != "shard_grad_op",
            forward_prefetch=own.forward_prefetch,
            backward_prefetch=own.backward_prefetch or "pre",
            prefetch=own.prefetch or 1,
            no_sync=own.no_sync,
        )
        how = own.how
        made = grid(job.units, job.settings, comm, job.layout, build=build, scheme=how.scheme, positions=how.positions)
        assert isinstance(made, DataParallel)
        return made

    def serial(self, job: Job[FSDPOptions]) -> Serial:
        return Serial(positions=job.own.how.positions)

    def count(self, job: Job[FSDPOptions], engine: Any) -> dict[str, Any]:
        return count_experts(job, engine) if job.own.mixture.experts else {}


CHAPTER = FSDPChapter()
