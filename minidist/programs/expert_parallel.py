"""Expert parallelism as a program: its options, and what the papers say of its runs (`minidist/ep/claims.py`)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from minidist import UsageError, command, expert_parallel
from minidist.claims.run import Run
from minidist.cli.options import Parser, at_least
from minidist.cli.tables import make_table, say, show
from minidist.engine import Engine
from minidist.ep import claims
from minidist.ep.compare import compare
from minidist.ep.options import add_mixture, check_mixture, choose_ep, choose_hosts
from minidist.expert_parallel import count_copies, limit_hosts
from minidist.grid.shares import needs
from minidist.layout import Layout
from minidist.memory import plot
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit, count_parameters
from minidist.nn.llama import LlamaConfig, llama
from minidist.nn.mixture import EXPERTS, Routing, choose, with_experts
from minidist.papers import deepseek_v3, deepspeed_moe, mixtral
from minidist.programs.chapter import Chapter

DRAWN = 8_000  # tokens whose routing is drawn at random, on all ranks together
HERE = "this layout"


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--ep", type=at_least(1), metavar="P", help="ranks that divide the experts; default: as many as possible")
    add("--zero", type=int, choices=(0, 1, 2, 3), metavar="N", default=1, help="ZeRO's stage on the data axis, or 0")
    add("--ranks-per-host", type=at_least(1), metavar="G", help="of the P ranks, those that share a host")
    add("--host-limit", type=at_least(1), metavar="H", help="the most hosts that a token may go to")
    add_mixture(parser, experts=8)
    add("--against-dense", type=at_least(1), metavar="S", help="--top 1: S seeds, next to a dense model of that size")
    parser.output("--against-plot", help="draw what --against-dense finds")


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. Raises UsageError for options that cannot work."""
    options = made.parse_args(arguments)
    check_mixture(options)
    p = choose_ep(options, ranks)
    hosts = choose_hosts(options, p)
    if options.against_plot:
        plot.check("--against-plot", options.against_plot)
        if not options.against_dense:
            raise UsageError("--against-plot draws what --against-dense finds: use it with --top 1 --against-dense 5")
    if options.against_dense and options.top > 1:
        raise UsageError("--against-dense compares models of the same active size: use it with --top 1")
    if options.against_dense and not options.validate:
        raise UsageError("--against-dense compares validation losses: use it with --validate 1 or more")
    return command.prepare(made, arguments, ranks, Layout(dp=ranks, ep=p, ep_hosts=hosts), **how)


def make(job: command.Job, comm: Any) -> Any:
    o = job.options
    return expert_parallel.expert_parallel(job.units, job.settings, comm, job.layout, o.zero, o.host_limit)


def perform(chapter: Chapter, comm: Any, job: command.Job) -> int:
    """Train, or compare two models."""
    return compare(job, make, comm) if job.options.against_dense else chapter.train(comm, job, count=count)


def count(job: command.Job, engine: Engine) -> dict[str, Any]:
    """What the routers have decided, and where a uniformly random router would send this rank's tokens."""
    found = claims.count(job, engine)
    if found["hosts"]:
        comm, drawn = vars(engine)["comm"], layouts(job.options, len(found["hosts"])).items()
        place = comm.rank % job.layout.ep / job.layout.ep
        found["drawn"] = {name: draw(of, int(place * of.hosts), comm.rank, comm.size) for name, of in drawn}
    return found


class Hosts(NamedTuple):
    """A layout of experts on hosts: each token goes to k experts, on at most `limit` hosts."""

    experts: int
    k: int
    hosts: int
    limit: int


def layouts(options: command.Options, hosts: int) -> dict[str, Hosts]:
    """The layouts of this run and of DeepSeek-V3."""
    limit = options.host_limit or hosts
    v3 = Hosts(deepseek_v3.EXPERTS, deepseek_v3.CHOSEN, deepseek_v3.HOSTS, deepseek_v3.LIMIT)
    return {HERE: Hosts(options.experts, options.top, hosts, limit), "DeepSeek-V3": v3}


def draw(of: Hosts, own: int, rank: int, ranks: int) -> list[int]:
    """Draw random routing for this rank's tokens. Returns their number, and how many copies of them leave its own host:
    one for each expert, one for each host, and one for each host with the limit."""
    prob = np.random.default_rng([rank, *of]).random((DRAWN // ranks, of.experts))
    limited, each = limit_hosts(prob, of.k, of.hosts, of.limit), of.experts // of.hosts
    free, kept = (count_copies(choose(x, of.k), each, own) for x in (prob, limited))
    return [len(prob), *free, kept[1]]


def print_closing(run: Run) -> None:
    claims.print_closing(run)
    if run.counted[0]["hosts"]:
        print_hosts(run)


def print_hosts(run: Run) -> None:
    """Print how many copies of a token leave its host: with this run's routers, and with a uniformly random router in
    this layout and in DeepSeek-V3's."""
    hosts = len(run.counted[0]["hosts"])
    claims.print_reached(run)
    print()
    tokens = sum(sum(rank["hosts"]) for rank in run.counted)
    mine = np.sum([rank["leave"] for rank in run.counted], axis=0) / tokens
    free = "" if run.options.host_limit else f"{mine[1]:.2f}"
    table = make_table(left=("copies of a token to other hosts",), right=("to experts", "to hosts", "limit", "limited"))
    for name, of in layouts(run.options, hosts).items():
        tokens, *copies = np.sum([rank["drawn"][name] for rank in run.counted], axis=0).tolist()
        to_experts, to_hosts, limited = (number / tokens for number in copies)
        formula = deepseek_v3.copies_to_experts(of.k, of.hosts), deepseek_v3.copies_to_hosts(*of[:3])
        most = deepseek_v3.most_copies(of.limit, of.hosts)
        table.add_row(f"{name}, formula", *(f"{x:.2f}" for x in formula), str(of.limit), f"<= {most:.2f}")
        table.add_row(f"{name}, drawn", f"{to_experts:.2f}", f"{to_hosts:.2f}", str(of.limit), f"{limited:.2f}")
        if name == HERE:
            table.add_row(f"{name}, trained", f"{mine[0]:.2f}", free, str(of.limit), f"{mine[1]:.2f}")
    show("Copies by what routers choose: drawn uniformly, as in the formulas, or trained", table)
    say("This program sends a token once to each of its experts, also if two of them are on the same host.")


# ---- published mixtures, declared on ranks ---------------------------------------------------------------------------


def declare_published(name: str) -> tuple[list[Unit], int]:
    """The units of a published model, and how many experts a token goes through."""
    if name in mixtral.SHAPES:
        of = mixtral.SHAPES[name]
        dense = llama(LlamaConfig(of.v, 1, of.layers, of.a, of.kv, of.h, of.f))
        return with_experts(dense, of.experts, Routing(of.k)), of.k
    units = gpt(GPTConfig(51_200, 2048, 24, 16, deepspeed_moe.WIDTHS[int(name)]))
    units[1:-1:2] = with_experts(units[1:-1:2], 128, Routing())  # in every other layer
    return units, 1


def count_published(comm: Comm, names: list[str]) -> list[dict[str, int]]:
    """Count the parameters of published mixtures on this rank, by group: all ranks divide the experts. "of a token"
    counts those that one token goes through. Nothing is allocated."""
    found = []
    for name in names:
        units, k = declare_published(name)
        mine = expert_parallel.split(units, expert_parallel.ExpertGroup(comm, comm, np.float32))
        flats = [flat for unit in mine for flat in unit.flats]
        experts = sum(flat.size for flat in flats if flat.parameters[0].group == EXPERTS)
        routers = sum(of.size for flat in flats for of in flat.parameters if of.name.endswith("router.weight"))
        of_layer = [vars(unit)["mlp"].experts for unit in mine if any("experts" in flat.name for flat in unit.flats)]
        one = sum(sum(parameter.size for parameter in layer[0].parameters) for layer in of_layer)
        dense = count_parameters(mine) - experts
        found.append({"dense": dense, "experts": experts, "routers": routers, "of a token": dense + k * one})
    return found


CHAPTER = Chapter(
    name="expert_parallel",
    doc=expert_parallel.__doc__,
    make=make,
    add_options=add_options,
    prepare=prepare,
    claims=claims.claims,
    closing=print_closing,
    needs=needs,
    perform=perform,
    cases={"": "", "capacity": "--capacity 1.25 --recompute full", "ZeRO-3": "--zero 3 --experts 2"},
)
