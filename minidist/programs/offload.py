"""ZeRO-Offload as a program: its options, and what the papers say of its runs (`minidist/claims/offload.py`)."""

import os
from collections.abc import Sequence
from typing import Any

from minidist import UsageError, checkpoint, command, offload
from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim
from minidist.claims.offload import below, link_claims, memory_claims, optimum_claims, time_claims
from minidist.claims.published import print_offload_closing
from minidist.claims.run import Run
from minidist.claims.zero import peak_claim, persistent_claims, traffic_claims
from minidist.cli.options import Parser, at_least
from minidist.formulas import needs as formulas
from minidist.formulas.asked import Asked
from minidist.formulas.needs import Needs
from minidist.mpi.comm import Comm
from minidist.mpi.environment import local_ranks
from minidist.programs.chapter import Chapter
from minidist.programs.serial import PLAIN, Delayed, Serial
from minidist.programs.zero3 import add_limits, check_limits, limits_of
from minidist.zr.limits import limited


def claims(run: Run) -> list[Claim]:
    """What the papers say about this run, next to what it held, sent and moved; and about the optimum."""
    stage, passing = run.zero, []
    if stage > 1:  # whole units, for a moment: gradients, and in stage 3 also parameters
        passing.append(peak_claim(run, "arithmetic", "device: in passing", buckets=stage - 1))
    return [
        *memory_claims(run),
        *persistent_claims(run),
        *passing,
        peak_of_layers(run),
        *link_claims(run),
        *traffic_claims(run),
        *time_claims(run, offload.FORWARD + offload.BACKWARD, offload.UPDATE),
        *optimum_claims(),
    ]


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--zero", type=int, choices=(1, 2, 3), default=2, help="the stage")
    add("--parameters", choices=("device", "host"), default="device", help="of --zero 3: where their shard is")
    add_limits(parser)
    add("--delayed-update", type=at_least(0), metavar="N", help="after N steps, update during the next step's passes")


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. --delayed-update N needs two steps after N: the first late update is made in the second."""
    job = command.prepare(made, arguments, ranks, **how)
    after, options = job.options.delayed_update, job.options
    check_limits(options, options.zero)
    if options.parameters == "host" and (options.zero < 3 or options.persist):
        other = "--persist" if options.persist else f"--zero {options.zero}"
        raise UsageError(f"--parameters host keeps no parameters on the device: leave out {other}, or say --zero 3")
    begun = checkpoint.opened(options.load).state["steps"] if options.load else 0
    if after is not None and options.steps < max(after, begun) + 2:
        raise UsageError(f"--delayed-update {after} needs at least --steps {max(after, begun) + 2}")
    if after is not None and options.save_every == 1:
        raise UsageError("--delayed-update: a checkpoint waits for the update, so --save-every must be 2 or more")
    return job


def make(job: command.Job, comm: Comm) -> offload.Offload:
    options, threads = job.options, max(1, (os.cpu_count() or 1) // local_ranks())
    engine = offload.OffloadAll if options.parameters == "host" else offload.ENGINES[options.zero]
    return limited(engine, limits_of(options))(
        job.units, job.settings, comm, delay_after=options.delayed_update, threads=threads
    )


def serial(job: command.Job) -> Serial:
    """If updates run during the next step, its gradients are those of the weights before."""
    if job.options.delayed_update is None:
        return PLAIN

    def make(small: command.Job) -> Delayed:
        m = small.settings.accumulate
        return Delayed(small.units, small.settings, lambda k, flat: max(k // m - 1, 0))

    return Serial(make, steps=3, plain=False, options={"delayed_update": 0})


def needs(asked: Asked) -> list[Needs]:
    """For each rank's device: what this stage of ZeRO needs, without what the host holds."""
    on_host = {"optimizer": 0.0} if asked.zero == 1 else {"gradients": 0.0, "optimizer": 0.0}
    if below(asked):  # the largest shard, while it is gathered
        on_host["parameters"] = asked.bytes.stored * max(asked.model.units(asked.ranks)) / asked.ranks
    return [need.but(**on_host) for need in formulas.needs(asked)]


CHAPTER = Chapter(
    name="offload",
    doc=offload.__doc__,
    make=make,
    add_options=add_options,
    prepare=prepare,
    claims=claims,
    closing=print_offload_closing,
    serial=serial,
    needs=needs,
    cases={f"ZeRO-{stage}": f"--accumulate 2 --zero {stage}" for stage in (1, 2, 3)}
    | {"all": "--zero 3 --parameters host"},
)
