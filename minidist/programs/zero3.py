"""ZeRO-3 as a program: its options, and what the paper says of its runs."""

from collections.abc import Sequence
from typing import Any

from minidist import UsageError, command, zero3
from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims, peak_claim, persistent_claims, traffic_claims
from minidist.cli.options import Parser, at_least
from minidist.formulas import needs as formulas
from minidist.formulas.asked import Asked
from minidist.formulas.needs import Needs
from minidist.programs.chapter import Chapter
from minidist.programs.data_parallel import add_bucket_size
from minidist.zr.limits import Limits, limited


def add_options(parser: Parser) -> None:
    parser.add_argument("--keep-last", action="store_true", help="keep the last unit gathered from forward to backward")
    add_limits(parser)
    add_bucket_size(parser)


def add_limits(parser: Parser) -> None:
    """Add the limits that DeepSpeed's stage 3 has, in elements."""
    add = parser.add_argument
    add("--persist", type=at_least(0), metavar="N", default=0, help="do not divide parameters of at most N elements")
    add("--ahead", type=at_least(0), metavar="N", default=0, help="gather up to N elements ahead, in whole units")
    add("--live", type=at_least(0), metavar="N", help="but not if more than N would be gathered; default: any")


def limits_of(options: Any) -> Limits:
    return Limits(options.persist, options.ahead, options.live)


def check_limits(options: Any, stage: int = 3) -> None:
    """Raise UsageError for limits without effect, or if parameters are gathered in an order that no formula knows."""
    asked = [name for name in ("persist", "ahead") if vars(options)[name]]
    if options.live is not None and not options.ahead:
        raise UsageError("--live limits what is gathered ahead: use it with --ahead")
    if asked and stage < 3:
        raise UsageError(f"--{asked[0]} is of --zero 3: stage {stage} divides no parameters")
    if asked and vars(options).get("keep_last"):
        raise UsageError(f"--{asked[0]} and --keep-last: use one of them")
    if options.ahead and options.recompute not in ("none", "selective", "full"):
        raise UsageError(f"--ahead needs --recompute none, selective or full, not {options.recompute}")


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. Raises UsageError for options that cannot work."""
    job = command.prepare(made, arguments, ranks, **how)
    check_limits(job.options)
    return job


def needs(asked: Asked) -> list[Needs]:
    """What every layout needs, and in addition the parameters that stay on every rank."""
    more = asked.bytes.stored * asked.model.persistent(asked.ranks)
    without = ("what is gathered ahead",) if asked.ahead else ()
    return [
        need.but(parameters=need.kinds["parameters"] + more)._replace(without=without) for need in formulas.needs(asked)
    ]


def claims(run: Run) -> list[Claim]:
    return [
        *memory_claims(run, stage=3),
        *persistent_claims(run),
        peak_claim(run, "FSDP §3.2.1", "peak gathered", buckets=2),  # parameters and their gradients
        peak_of_layers(run),
        *traffic_claims(run),
    ]


CHAPTER = Chapter(
    name="zero3",
    doc=zero3.__doc__,
    make=lambda job, comm: limited(zero3.ZeRO3, limits_of(job.options))(
        job.units, job.settings, comm, keep_last=job.options.keep_last
    ),
    add_options=add_options,
    prepare=prepare,
    claims=claims,
    needs=needs,
    cases={"": "--recompute full"},
)
