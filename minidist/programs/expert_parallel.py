"""Expert parallelism as a program: its options, and what the papers say of its runs (`minidist/ep/claims.py`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist import UsageError, command, expert_parallel
from minidist.claims.run import Run
from minidist.cli.options import Parser, at_least
from minidist.cli.tables import make_table, say, show
from minidist.ep import claims
from minidist.ep.compare import compare
from minidist.ep.options import add_mixture, check_mixture, choose_ep, choose_hosts
from minidist.expert_parallel import count_hosts, limit_hosts
from minidist.layout import Layout
from minidist.nn.mixture import choose
from minidist.papers import deepseek_v3
from minidist.programs.chapter import Chapter

DRAWN = 4_000  # tokens of a router that is drawn


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--ep", type=at_least(1), metavar="P", help="ranks that divide the experts; default: as many as possible")
    add("--zero", type=int, choices=(0, 1, 2, 3), metavar="N", default=1, help="ZeRO's stage on the data axis, or 0")
    add("--ranks-per-host", type=at_least(1), metavar="G", help="of the P ranks, those that share a host")
    add("--host-limit", type=at_least(1), metavar="H", help="the most hosts that a token may go to")
    add_mixture(parser, experts=8)
    add("--against-dense", type=at_least(1), metavar="S", help="--top 1: S seeds, next to a dense model of that size")


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. Raises UsageError for whatever cannot work."""
    options = made.parse_args(arguments)
    check_mixture(options)
    p = choose_ep(options, ranks)
    choose_hosts(options, p)
    if options.against_dense and options.top > 1:
        raise UsageError("--against-dense compares models of the same active size: use it with --top 1")
    return command.prepare(made, arguments, ranks, Layout(dp=ranks, ep=p), **how)


def make(job: command.Job, comm: Any) -> Any:
    options = job.options
    hosts = choose_hosts(options, job.layout.ep)
    return expert_parallel.expert_parallel(
        job.units, job.settings, comm, job.layout, options.zero, hosts, options.host_limit
    )


def perform(chapter: Chapter, comm: Any, job: command.Job) -> int:
    """Train, or compare two models."""
    return compare(job, make, comm) if job.options.against_dense else chapter.train(comm, job, count=claims.count)


def print_closing(run: Run) -> None:
    claims.print_closing(run)
    if run.counted[0]["hosts"]:
        print_hosts(run)


def print_hosts(run: Run) -> None:
    """Copies of a token that leave its host: of the trained routers; and of one that is drawn uniformly, in this
    layout and in DeepSeek-V3's."""
    hosts = len(run.counted[0]["hosts"])
    reached = np.sum([of["hosts"] for of in run.counted], axis=0)
    mean = float(reached @ np.arange(1, hosts + 1) / reached.sum())
    say(f"A token goes to {mean:.2f} of {hosts} hosts on average, and to {np.flatnonzero(reached).max() + 1} at most.")
    print()
    table = make_table(left=("copies of a token to other hosts",), right=("to experts", "to hosts", "limit", "limited"))
    limit = run.options.host_limit or hosts
    for name, sizes in (
        ("this layout", (run.options.experts, run.options.top, hosts, limit)),
        ("DeepSeek-V3", (deepseek_v3.EXPERTS, deepseek_v3.CHOSEN, deepseek_v3.HOSTS, deepseek_v3.LIMIT)),
    ):
        e, k, n, most = sizes
        formula = deepseek_v3.copies_to_experts(k, n), deepseek_v3.copies_to_hosts(e, k, n)
        to_hosts, limited = (drawn_copies(e, k, n, bound) for bound in (n, most))
        table.add_row(f"{name}, formula", *(f"{x:.2f}" for x in formula), str(most), f"<= {most * (n - 1) / n:.2f}")
        table.add_row(f"{name}, drawn", "", f"{to_hosts:.2f}", str(most), f"{limited:.2f}")
    show("A router that is drawn uniformly", table)


def drawn_copies(experts: int, k: int, hosts: int, limit: int) -> float:
    """Copies to other hosts, if each host gets one, of a token whose probabilities are drawn."""
    prob = np.random.default_rng(0).random((DRAWN, experts))
    chosen = choose(limit_hosts(prob, k, hosts, limit), k)
    return float(count_hosts(chosen, experts // hosts).mean()) * (hosts - 1) / hosts


CHAPTER = Chapter(
    name="expert_parallel",
    doc=expert_parallel.__doc__,
    make=make,
    add_options=add_options,
    prepare=prepare,
    claims=claims.claims,
    closing=print_closing,
    perform=perform,
    cases={"": "", "capacity": "--capacity 1.25 --recompute full", "ZeRO-3": "--zero 3 --experts 2"},
)
