"""The parameter server as a program: its options, what it refuses, and which trainings a command line asks for."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

from minidist import UsageError, command, parameter_server, ring
from minidist.claims.proof import Proof
from minidist.cli.options import Parser, at_least, within
from minidist.layout import Layout
from minidist.memory.allocator import keep_freed_memory
from minidist.mpi.comm import Comm
from minidist.nn.layers import Tokens, flats_of
from minidist.programs.chapter import Program
from minidist.programs.proof import prove
from minidist.programs.serial import Serial
from minidist.ps import report
from minidist.ps.consistent_hash import segments
from minidist.ps.engines import Whole
from minidist.ps.outcome import TrainedRun
from minidist.ps.plan import MOST_VIRTUAL, RankPlan, cut, divided
from minidist.ps.replay import Replay

CONSISTENCIES = ("bsp", "ssp", "async")


def pair(number: Callable[[str], float]) -> Callable[[str], tuple[int, float]]:
    """An argument type: RANK:NUMBER."""

    def parse(text: str) -> tuple[int, float]:
        rank, _, value = text.partition(":")
        if not rank.isdigit() or not value:
            raise argparse.ArgumentTypeError(f"write RANK:NUMBER, not {text}")
        return int(rank), number(value)

    return parse


def parser() -> Parser:
    made = command.parser(parameter_server.__doc__ or "", "parameter_server")
    made.set_defaults(precision="fp32")
    add = made.add_argument
    add(
        "--consistency", choices=CONSISTENCIES, metavar="NAME", default="bsp", help="bsp; ssp, async: not serial losses"
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
    return made


def prepare(made: Parser, arguments: Sequence[str], ranks: int) -> tuple[command.Job, RankPlan]:
    """Parse and check; nothing is allocated. Raises UsageError for options that cannot work."""
    options = made.parse_args(arguments)
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
        raise UsageError("--save-every: a parameter server saves at the end, when no push is under way: leave it out")
    if options.precision == "mixed":
        raise UsageError("--precision mixed: a loss scale is not among what workers push: take bf16, fp32 or fp64")
    if options.witness or options.memory_plot or (options.device_memory, options.host_memory) != (None, None):
        raise UsageError(
            "--witness, --memory-plot, --device-memory and --host-memory: what servers hold is counted in another way:"
            " leave it out"
        )
    if options.replicas >= len(servers):
        raise UsageError(f"--replicas {options.replicas} needs at least {options.replicas + 1} servers: use --servers")
    for rank, _ in options.slow:
        if rank not in workers:
            raise UsageError(f"--slow {rank}:…: rank {rank} is no worker; workers are ranks 0 to {workers[-1]}")
    if options.stop and options.stop[0] not in servers:
        raise UsageError(f"--stop {options.stop[0]}:…: rank {options.stop[0]} is no server")
    if options.stop and not options.replicas:
        raise UsageError("--stop: without --replicas no rank can take over")
    if options.stop and options.staleness_sweep:
        raise UsageError("--stop and --staleness-sweep do not go together")
    if options.stop and options.keys == "cached":
        raise UsageError("--stop and --keys cached do not go together: the next server has not seen the keys")
    if options.filter and options.keys == "cached":
        raise UsageError("--filter and --keys cached: the keys that pass a filter are never twice the same")

    layout = Layout(dp=len(workers), servers=ranks - len(workers))
    job = command.prepare(made, arguments, ranks, layout)
    k = len(servers)
    flats = flats_of(divided(job.units, k))
    size = sum(flat.padded for flat in flats)
    if options.placement == "hash":
        if k * options.virtual > MOST_VIRTUAL:
            most = f"{k} servers may have {MOST_VIRTUAL // k} each"
            raise UsageError(f"--virtual {options.virtual}: a worker pulls from every virtual server: {most} at most")
        held = segments(range(k), options.virtual, size)
    else:
        held = [(keys.start, keys.stop, i) for i, keys in enumerate(ring.chunk(size, k, i) for i in range(k))]
    if len({shard for _, _, shard in held}) < k:
        raise UsageError(f"--virtual {options.virtual}: consistent hashing leaves a server without keys: use more")
    plan = RankPlan(workers, servers, held, cut(flats, held), 0, False, 0, 0, options, len(job.corpus.vocabulary))
    return job, plan


class Served:
    """Workers and servers as what takes steps: all at the first call, because workers are in different ones."""

    def __init__(self, comm: Comm, job: command.Job, plan: RankPlan) -> None:
        divided(job.units, len(plan.servers))
        self.comm, self.job, self.plan = comm, job, replace(plan, options=job.options)
        self.engine = Whole(job, len(plan.servers))
        self.start, self.losses = self.engine.read(), list[float]()
        self.outcome: TrainedRun | None = None  # on rank 0

    def train_batch(self, x: Tokens, y: Tokens) -> float:
        if not self.losses:
            self.outcome = parameter_server.train_once(self.comm, self.job, self.plan, self.start)
            if self.outcome:
                self.engine.write(self.outcome)
                self.losses = self.outcome.losses[::-1]
            else:
                self.engine.flats = []  # rank 0 has collected everything
                self.losses = [0.0] * self.job.options.steps
        return self.losses.pop()


def prove_servers(comm: Comm, job: command.Job, plan: RankPlan) -> Proof | None:
    """Prove a training's numbers, in its own order of pushes."""
    made: list[Served] = []

    def make(small: command.Job, comm: Comm) -> Served:
        made.append(Served(comm, small, plan))
        return made[0]

    def alone(small: command.Job) -> Replay:
        [served] = made
        assert served.outcome
        return Replay(small, served.plan, served.outcome)

    return prove(comm, job, make, Serial(alone, 3 * plan.options.local_steps, plain=False, shorter=False))


def work(comm: Comm, prepared: tuple[command.Job, RankPlan]) -> int:
    """Run every training that the options ask for, from the same start; returns the exit status."""
    keep_freed_memory()
    job, plan = prepared
    whole = Whole(job, len(plan.servers))
    start = whole.read()
    plan = replace(plan, first_step=whole.steps, first_update=whole.updates)
    if comm.rank == 0:
        report.say_at_start(job, plan)
    plans = [parameter_server.consistent(plan, *asked) for asked in report.trainings(plan.options)]
    proofs = [prove_servers(comm, job, each) for each in plans]
    outcomes = [outcome for each in plans if (outcome := parameter_server.train_once(comm, job, each, start))]
    return comm.broadcast_object(report.report(job, whole, outcomes, proofs) if comm.rank == 0 else None)


CHAPTER = Program(
    name="parameter_server",
    parser=parser,
    prepare=lambda made, arguments, comm: prepare(made, arguments, comm.size),
    work=work,
    trains=True,
    cases={name: f"--consistency {name}" for name in CONSISTENCIES},
)
