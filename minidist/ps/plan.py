"""What all ranks of a parameter server know from the start: who works, who serves, and which keys.

A range of keys is the part of one unit of the model (embedding, block 1, …) that one server holds. All ranges of a
server together are its shard.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minidist import UsageError, command
from minidist.cli.options import Parser, at_least, within
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, flats_of
from minidist.nn.tensor import Array
from minidist.ps.consistent_hash import Segment, segments

MOST_VIRTUAL = 1000  # servers in all: each costs every worker some messages in every iteration


@dataclass(frozen=True)
class Range:
    """Keys lo to hi-1."""

    lo: int
    hi: int
    shard: int  # the number of the server that holds them
    decayed: int  # weight decay applies to the first so many of them

    @property
    def keys(self) -> slice:
        return slice(self.lo, self.hi)


@dataclass(frozen=True)
class Plan:
    """Who does what."""

    workers: list[int]  # the rank of each worker
    servers: list[int]  # the rank of the server of each shard
    segments: list[Segment]  # of all keys: the shard that they belong to
    ranges: list[Range]
    staleness: float  # 0 for bsp, infinite for async
    aggregate: bool  # bsp: sum the workers' gradients, then update once
    first_step: int  # with --load: training steps and updates that the weights have behind them
    first_update: int
    options: argparse.Namespace
    vocabulary: int  # of the text

    @property
    def name(self) -> str:
        """As a table calls it."""
        return "bsp" if self.aggregate else "async" if math.isinf(self.staleness) else f"ssp {self.staleness:g}"

    @property
    def size(self) -> int:
        """S, the number of keys."""
        return max(each.hi for each in self.ranges)

    @property
    def iterations(self) -> int:
        """Pulls and pushes of each worker."""
        return -(-(self.options.steps - self.first_step) // self.options.local_steps)

    def of(self, shard: int) -> list[int]:
        """The numbers of a shard's ranges."""
        return [i for i, each in enumerate(self.ranges) if each.shard == shard]

    def listed(self, each: Range) -> Array | None:
        """The keys that go with the values of a range; None: none, both sides know them."""
        return None if self.options.keys == "none" else np.arange(each.lo, each.hi)

    def chain(self, shard: int, closed: set[int]) -> list[int]:
        """The ranks that hold a shard and have not stopped: the first serves it, the others keep copies."""
        k = len(self.servers)
        holders = [self.servers[(shard + i) % k] for i in range(self.options.replicas + 1)]
        return [rank for rank in holders if rank not in closed]


def share(n: int, parts: int, i: int) -> range:
    """The i-th of consecutive shares of 0 … n-1, as equal as can be."""
    return range(n * i // parts, n * (i + 1) // parts)


def divided(units: Sequence[Unit], k: int) -> list[Flat]:
    """The units' Flats, padded so that k servers can share them evenly."""
    flats = flats_of(units)
    for flat in flats:
        flat.shards = k
    return flats


def cut(flats: Sequence[Flat], held: Sequence[Segment]) -> list[Range]:
    """The ranges into which the borders of units and those of servers' segments cut the keys, in order of keys."""
    ranges, offset = [], 0
    for flat in flats:
        for first, last, shard in held:
            lo, hi = max(offset, first), min(offset + flat.padded, last)
            if lo < hi:
                ranges.append(Range(lo, hi, shard, decayed=min(max(offset + flat.decayed - lo, 0), hi - lo)))
        offset += flat.padded
    return ranges


def pair(number: Callable[[str], float]) -> Callable[[str], tuple[int, float]]:
    """An argument type: RANK:NUMBER."""

    def parse(text: str) -> tuple[int, float]:
        rank, _, value = text.partition(":")
        if not rank.isdigit() or not value:
            raise argparse.ArgumentTypeError(f"write RANK:NUMBER, not {text}")
        return int(rank), number(value)

    return parse


def add_options(parser: Parser) -> None:
    parser.set_defaults(precision="fp32")
    add, consistencies = parser.add_argument, ("bsp", "ssp", "async")
    add(
        "--consistency", choices=consistencies, metavar="NAME", default="bsp", help="bsp; ssp, async: not serial losses"
    )
    add("--staleness", type=at_least(0), metavar="N", default=4, help="ssp: iterations that a read may lag")
    add("--servers", type=at_least(1), metavar="N", default=1, help="the last N ranks; the others work")
    add("--colocated", action="store_true", help="every rank works, and serves 1/N of the keys")
    add("--placement", choices=("even", "hash"), metavar="NAME", default="even", help="of keys: even or hash")
    add("--virtual", type=at_least(1), metavar="N", default=32, help="hash: virtual servers to a server")
    add("--replicas", type=at_least(0), metavar="N", default=0, help="copies of a shard, on the servers after its own")
    add("--local-steps", type=at_least(1), metavar="N", default=1, help="of a worker between pulls")
    lists = ("none", "list", "cached")
    add("--keys", choices=lists, metavar="NAME", default="none", help="with values: none, list or cached")
    add("--filter", type=within(0, 1e9), metavar="X", default=0.0, help="push what exceeds this, keep the rest; 0: all")
    add("--jitter", type=within(0, 1), metavar="X", default=1.0, help="simulated time: how much of it is luck")
    slow, stop = "simulated time: of this worker; may be repeated", "the server on RANK stops at its EVENT-th event"
    add("--slow", type=pair(within(1e-3, 1e3)), metavar="RANK:FACTOR", action="append", default=[], help=slow)
    add("--stop", type=pair(at_least(1)), metavar="RANK:EVENT", help=stop)
    add("--staleness-sweep", action="store_true", help="compare bsp, ssp 1, 2, 4, 8, 16 and async")


def prepare(doc: str, arguments: Sequence[str], ranks: int) -> tuple[command.Job, Plan]:
    """Parse and check; nothing is allocated. doc: the chapter's, for --help."""
    parser = command.parser(doc, "parameter_server")
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.colocated:
        workers, servers = list(range(ranks)), list(range(ranks))
    elif options.servers >= ranks:
        raise UsageError(
            f"--servers {options.servers} leaves no worker among {ranks} rank{'s' * (ranks > 1)}:"
            f" use mpirun -n {options.servers + 1} or more, or --colocated"
        )
    else:
        workers, servers = list(range(ranks - options.servers)), list(range(ranks - options.servers, ranks))
    if options.save_every:
        raise UsageError("--save-every: a parameter server saves at the end, when no push is under way: leave it away")
    if options.precision == "mixed":
        raise UsageError("--precision mixed: a loss scale is not among what workers push: take bf16, fp32 or fp64")
    if options.witness or options.memory_plot or (options.device_memory, options.host_memory) != (None, None):
        raise UsageError(
            "--witness, --memory-plot, --device-memory and --host-memory: what servers hold is counted in another way:"
            " leave it away"
        )
    if options.replicas >= len(servers):
        raise UsageError(f"--replicas {options.replicas} needs at least {options.replicas + 1} servers: use --servers")
    for rank, _ in options.slow:
        if rank not in workers:
            raise UsageError(f"--slow {rank}:…: rank {rank} is no worker; workers are ranks 0 to {workers[-1]}")
    if options.stop and options.stop[0] not in servers:
        raise UsageError(f"--stop {options.stop[0]}:…: rank {options.stop[0]} is no server")
    if options.stop and not options.replicas:
        raise UsageError("--stop: without --replicas there is nobody to take over")
    if options.stop and options.staleness_sweep:
        raise UsageError("--stop and --staleness-sweep do not go together")
    if options.stop and options.keys == "cached":
        raise UsageError("--stop and --keys cached do not go together: the next server has not seen the keys")
    if options.filter and options.keys == "cached":
        raise UsageError("--filter and --keys cached: the keys that pass a filter are never twice the same")

    job = command.prepare(parser, arguments, len(workers))
    k = len(servers)
    flats = divided(job.units, k)
    size = sum(flat.padded for flat in flats)
    if options.placement == "hash":
        if k * options.virtual > MOST_VIRTUAL:
            most = f"{k} servers may have {MOST_VIRTUAL // k} each"
            raise UsageError(f"--virtual {options.virtual}: a worker pulls from every virtual server: {most} at most")
        held = segments(range(k), options.virtual, size)
    else:
        held = [(keys.start, keys.stop, i) for i, keys in enumerate(share(size, k, i) for i in range(k))]
    if len({shard for _, _, shard in held}) < k:
        raise UsageError(f"--virtual {options.virtual}: consistent hashing leaves a server without keys: use more")
    plan = Plan(workers, servers, held, cut(flats, held), 0, False, 0, 0, options, len(job.corpus.vocabulary))
    return job, plan
