"""The parameter server as a program: its options, what it refuses, and which trainings a command line asks for."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minidist import UsageError, command, parameter_server, ring
from minidist.claims.described import described
from minidist.claims.proof import Proof
from minidist.cli.shared import FileOptions, TrainingOptions
from minidist.command import Job
from minidist.data_parallel import DataParallel
from minidist.formulas.asked import Asked
from minidist.layout import Layout
from minidist.memory.allocator import keep_freed_memory
from minidist.mpi.comm import Comm
from minidist.nn.layers import Tokens, flats_of
from minidist.programs.chapter import Training
from minidist.programs.proof import prove
from minidist.programs.serial import Serial
from minidist.ps import report
from minidist.ps.consistent_hash import Segment, segments
from minidist.ps.engines import Whole
from minidist.ps.options import CONSISTENCIES, ServerOptions
from minidist.ps.outcome import TrainedRun
from minidist.ps.plan import MOST_VIRTUAL, RankPlan, cut, divided
from minidist.ps.replay import Replay


def roles_of(own: ServerOptions, ranks: int) -> tuple[list[int], list[int]]:
    """The ranks that work, and those that serve. Raises UsageError if none would work."""
    if own.colocated:
        return list(range(ranks)), list(range(ranks))
    if own.servers >= ranks:
        raise UsageError(
            f"--servers {own.servers} leaves no worker among {ranks} rank{'s' * (ranks > 1)}:"
            f" use mpirun -n {own.servers + 1} or more, or --colocated"
        )
    return list(range(ranks - own.servers)), list(range(ranks - own.servers, ranks))


def check_training(training: TrainingOptions, files: FileOptions) -> None:
    """Raise UsageError for shared options that workers and servers do not have."""
    if files.save_every:
        raise UsageError("--save-every: a parameter server saves at the end, when no push is under way: leave it out")
    if training.precision == "mixed":
        raise UsageError("--precision mixed: a loss scale is not among what workers push: take bf16, fp32 or fp64")
    if training.grad_dtype != "stored":
        raise UsageError("--grad-dtype fp32: servers add pushes to weights of the same dtype: leave it out")
    if files.witness or files.memory_plot or (files.device_memory, files.host_memory) != (None, None):
        raise UsageError(
            "--witness, --memory-plot, --device-memory and --host-memory: what servers hold is counted in another way:"
            " leave it out"
        )


def check_roles(own: ServerOptions, workers: Sequence[int], servers: Sequence[int]) -> None:
    """Raise UsageError for ranks that do not have the role that an option needs."""
    if own.replicas >= len(servers):
        raise UsageError(f"--replicas {own.replicas} needs at least {own.replicas + 1} servers: use --servers")
    for rank, _ in own.slow:
        if rank not in workers:
            raise UsageError(f"--slow {rank}:…: rank {rank} is no worker; workers are ranks 0 to {workers[-1]}")
    if own.stop and own.stop[0] not in servers:
        raise UsageError(f"--stop {own.stop[0]}:…: rank {own.stop[0]} is no server")


def check_together(own: ServerOptions) -> None:
    """Raise UsageError for options that do not go together."""
    if own.stop and not own.replicas:
        raise UsageError("--stop: without --replicas no rank can take over")
    if own.stop and own.staleness_sweep:
        raise UsageError("--stop and --staleness-sweep do not go together")
    if own.stop and own.keys == "cached":
        raise UsageError("--stop and --keys cached do not go together: the next server has not seen the keys")
    if own.filter and own.keys == "cached":
        raise UsageError("--filter and --keys cached: the keys that pass a filter are never twice the same")


def place_keys(own: ServerOptions, k: int, size: int) -> list[Segment]:
    """Which of k servers holds which keys. Raises UsageError if that leaves a server without, or is too slow."""
    if own.placement == "hash":
        if k * own.virtual > MOST_VIRTUAL:
            most = f"{k} servers may have {MOST_VIRTUAL // k} each"
            raise UsageError(f"--virtual {own.virtual}: a worker pulls from every virtual server: {most} at most")
        held = segments(range(k), own.virtual, size)
    else:
        held = [(keys.start, keys.stop, i) for i, keys in enumerate(ring.chunk(size, k, i) for i in range(k))]
    if len({shard for _, _, shard in held}) < k:
        raise UsageError(f"--virtual {own.virtual}: consistent hashing leaves a server without keys: use more")
    return held


def asked_of(job: Job[ServerOptions]) -> Asked:
    """What claims about workers ask for."""
    return described(job.chapter, job, Layout(dp=job.layout.dp), job.vocabulary)


class Served:
    """Workers and servers as what takes steps: all at the first call, because workers are in different ones."""

    def __init__(self, comm: Comm, job: Job[ServerOptions], plan: RankPlan) -> None:
        divided(job.units, len(plan.servers))
        self.comm, self.job, self.plan = comm, job, replace(plan, steps=job.training.steps, asked=asked_of(job))
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
                self.losses = [0.0] * self.plan.steps
        return self.losses.pop()


def prove_servers(comm: Comm, job: Job[ServerOptions], plan: RankPlan) -> Proof | None:
    """Prove a training's numbers, in its own order of pushes."""
    made: list[Served] = []

    def make(small: Job[ServerOptions], comm: Comm) -> Served:
        made.append(Served(comm, small, plan))
        return made[0]

    def alone(small: Job[ServerOptions]) -> Replay:
        [served] = made
        assert served.outcome
        return Replay(small, served.plan, served.outcome)

    return prove(comm, job, make, Serial(alone, 3 * plan.own.local_steps, plain=False, shorter=False))


class ParameterServerChapter(Training[ServerOptions]):
    name, doc, options = "parameter_server", parameter_server.__doc__, ServerOptions
    defaults = {"precision": "fp32"}
    cases = {name: f"--consistency {name}" for name in CONSISTENCIES}

    def prepared(self, arguments: Sequence[str], comm: Any) -> tuple[Job[ServerOptions], RankPlan]:
        """Parse and check; nothing is allocated. Raises UsageError for options that cannot work."""
        line, ranks = self.read(arguments), comm.size
        own = line.own
        workers, servers = roles_of(own, ranks)
        check_training(line.training, line.files)
        check_roles(own, workers, servers)
        check_together(own)
        layout = Layout(dp=len(workers), servers=ranks - len(workers))
        job = command.prepare(self.name, line, layout)
        flats = flats_of(divided(job.units, len(servers)))
        held = place_keys(own, len(servers), sum(flat.padded for flat in flats))
        ranges = cut(flats, held)
        return job, RankPlan(workers, servers, held, ranges, 0, False, 0, 0, own, job.training.steps, asked_of(job))

    def begin(self, comm: Comm, prepared: tuple[Job[ServerOptions], RankPlan]) -> int:
        """With --types, a worker's forward: it pulls parameters, R among workers, and servers sum what all push."""
        job, plan = prepared
        if not job.training.types:
            return self.work(comm, prepared)
        from minidist.ty.report import report  # a run that trains loads none of it

        workers = comm.split(int(comm.rank in plan.workers))
        served = comm.rank not in plan.workers
        status = 0 if served else report(DataParallel(job.units, job.settings, workers), job, workers)
        return max(comm.all_gather_object(status))

    def work(self, comm: Comm, prepared: tuple[Job[ServerOptions], RankPlan]) -> int:
        """Run every training that the options ask for, from the same start; returns the exit status."""
        keep_freed_memory()
        job, plan = prepared
        whole = Whole(job, len(plan.servers))
        start = whole.read()
        plan = replace(plan, first_step=whole.steps, first_update=whole.updates)
        if comm.rank == 0:
            report.say_at_start(job, plan)
        plans = [parameter_server.consistent(plan, *asked) for asked in report.trainings(plan.own)]
        proofs = [prove_servers(comm, job, each) for each in plans]
        outcomes = [outcome for each in plans if (outcome := parameter_server.train_once(comm, job, each, start))]
        return comm.broadcast_object(report.report(job, whole, outcomes, proofs) if comm.rank == 0 else None)


CHAPTER = ParameterServerChapter()
