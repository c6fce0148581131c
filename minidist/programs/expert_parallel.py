"""Expert parallelism as a program: its options."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minidist import UsageError, expert_parallel
from minidist.cli.fields import option, output, part, whole
from minidist.cli.options import at_least
from minidist.cli.shared import Line, MixtureOptions
from minidist.cli.tables import make_table, say, show
from minidist.command import Job
from minidist.engine import Engine
from minidist.ep.count import count as count_experts
from minidist.expert_parallel import count_copies, limit_hosts
from minidist.layout import Layout
from minidist.memory import plot
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Block, Unit, count_parameters
from minidist.nn.llama import LlamaConfig, llama
from minidist.nn.mixture import EXPERTS, Mixture, Routing, choose, with_experts
from minidist.papers import deepseek_v3, deepspeed_moe, mixtral
from minidist.papers.models import Model
from minidist.programs.axes import check_mixture, choose_ep, choose_hosts, stage_option
from minidist.programs.chapter import Chapter
from minidist.programs.serial import Serial

if TYPE_CHECKING:
    from minidist.claims.run import Run

DRAWN = 8_000  # tokens whose routing is drawn at random, on all ranks together
HERE = "this layout"


@dataclass(frozen=True, kw_only=True)
class SomeExperts(MixtureOptions):
    experts: int = option(8, at_least(1, at_most=10_000), "E", "MLPs in place of each block's one")


@dataclass(frozen=True, kw_only=True)
class ExpertOptions:
    ep: int | None = whole("P", "ranks that divide the experts; default: as many as possible")
    zero: int = stage_option(1)
    ranks_per_host: int | None = whole("G", "of the P ranks, those that share a host")
    host_limit: int | None = whole("H", "the most hosts that a token may go to")
    mixture: MixtureOptions = part(SomeExperts)
    against_dense: int | None = whole("S", "--top 1: S seeds, next to a dense model of that size")
    against_plot: str | None = output("draw what --against-dense finds")


def check_comparison(own: ExpertOptions, validate: int) -> None:
    """Raise UsageError for a comparison with a dense model that would compare nothing."""
    if own.against_plot:
        plot.check("--against-plot", own.against_plot)
        if not own.against_dense:
            raise UsageError("--against-plot draws what --against-dense finds: use it with --top 1 --against-dense 5")
    if own.against_dense and own.mixture.top > 1:
        raise UsageError("--against-dense compares models of the same active size: use it with --top 1")
    if own.against_dense and not validate:
        raise UsageError("--against-dense compares validation losses: use it with --validate 1 or more")


class Hosts(NamedTuple):
    """A layout of experts on hosts: each token goes to k experts, on at most `limit` hosts."""

    experts: int
    k: int
    hosts: int
    limit: int


def layouts(experts: int, top: int, limit: int | None, hosts: int) -> dict[str, Hosts]:
    """The layouts of this run and of DeepSeek-V3."""
    v3 = Hosts(deepseek_v3.EXPERTS, deepseek_v3.CHOSEN, deepseek_v3.HOSTS, deepseek_v3.LIMIT)
    return {HERE: Hosts(experts, top, hosts, limit or hosts), "DeepSeek-V3": v3}


def draw(of: Hosts, own: int, rank: int, ranks: int) -> list[int]:
    """Draw random routing for this rank's tokens. Returns their number, and how many copies of them leave its own host:
    one for each expert, one for each host, and one for each host with the limit."""
    prob = np.random.default_rng([rank, *of]).random((DRAWN // ranks, of.experts))
    limited, each = limit_hosts(prob, of.k, of.hosts, of.limit), of.experts // of.hosts
    free, kept = (count_copies(choose(x, of.k), each, own) for x in (prob, limited))
    return [len(prob), *free, kept[1]]


def print_hosts(run: "Run") -> None:
    """Print how many copies of a token leave its host: with this run's routers, and with a uniformly random router in
    this layout and in DeepSeek-V3's."""
    hosts = len(run.counted[0]["hosts"])
    print()
    tokens = sum(sum(rank["hosts"]) for rank in run.counted)
    mine = np.sum([rank["leave"] for rank in run.counted], axis=0) / tokens
    free = "" if run.host_limit else f"{mine[1]:.2f}"
    table = make_table(left=("copies of a token to other hosts",), right=("to experts", "to hosts", "limit", "limited"))
    for name, of in layouts(run.model.experts, run.model.top, run.host_limit, hosts).items():
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
    print_logical(run)


def print_logical(run: "Run") -> None:
    """Print the bytes of dispatches that would go once to each host: those that stay on one, and those that cross."""
    copies = sum(n * tokens for rank in run.counted for n, tokens in enumerate(rank["hosts"], start=1))
    row, across = run.model.h * run.bytes.stored, sum(rank["leave"][1] for rank in run.counted)
    rates = (f"{rate} on {n} are {deepseek_v3.physical(rate, n):.1f}" for n, rate in deepseek_v3.DEEPEP.items())
    once = f"Sent once to each host, dispatches would be {row * copies:,} bytes in a step"
    say(f"{once}: {row * (copies - across):,} stay on a token's own host, {row * across:,} cross to others.")
    say(f"DeepEP's logical GB/s count both: across hosts, {' and '.join(rates)}.")


# ---- published mixtures, declared on ranks ---------------------------------------------------------------------------


def declare_published(name: str) -> tuple[list[Unit], int]:
    """The units of a published model, and how many experts a token goes through."""
    if name in mixtral.SHAPES:
        of = Model.like(mixtral.SHAPES[name])
        dense = llama(LlamaConfig(of.v, 1, of.layers, of.a, of.kv, of.h, of.f))
        return with_experts(dense, of.experts, Routing(of.top)), of.top
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
        of_layer = [block.mlp.experts for block in mine if isinstance(block, Block) and isinstance(block.mlp, Mixture)]
        one = sum(sum(parameter.size for parameter in layer[0].parameters) for layer in of_layer)
        dense = count_parameters(mine) - experts
        found.append({"dense": dense, "experts": experts, "routers": routers, "of a token": dense + k * one})
    return found


class ExpertParallelChapter(Chapter[ExpertOptions]):
    name, doc, options = "expert_parallel", expert_parallel.__doc__, ExpertOptions
    cases = {"": "", "capacity": "--capacity 1.25 --recompute full", "ZeRO-3": "--zero 3 --experts 2"}

    def layout(self, line: Line[ExpertOptions], ranks: int) -> Layout:
        own = line.own
        check_mixture(own.mixture)
        p = choose_ep(own.mixture.experts, own.ep, ranks)
        hosts = choose_hosts(own.mixture, own.ranks_per_host, own.host_limit, p)
        check_comparison(own, line.training.validate)
        return Layout(dp=ranks, ep=p, ep_hosts=hosts)

    def make(self, job: Job[ExpertOptions], comm: Any) -> Engine:
        how = job.own.zero, job.own.host_limit
        return expert_parallel.expert_parallel(job.units, job.settings, comm, job.layout, *how)

    def serial(self, job: Job[ExpertOptions]) -> Serial:
        return Serial(host_limit=job.own.host_limit)

    def work(self, comm: Any, prepared: Job[ExpertOptions]) -> int:
        """Train, or compare two models."""
        if not prepared.own.against_dense:
            return self.train(comm, prepared)
        from minidist.ep.compare import compare

        return compare(prepared, self.make, comm)

    def count(self, job: Job[ExpertOptions], engine: Any) -> dict[str, Any]:
        """What the routers have decided, and where a uniformly random router would send this rank's tokens."""
        found, comm = count_experts(job, engine), engine.comm
        if hosts := len(found["hosts"]):
            drawn = layouts(job.own.mixture.experts, job.own.mixture.top, job.own.host_limit, hosts).items()
            place = comm.rank % job.layout.ep / job.layout.ep
            found["drawn"] = {name: draw(of, int(place * of.hosts), comm.rank, comm.size) for name, of in drawn}
        return found

    def closing(self, run: "Run") -> None:
        super().closing(run)
        if run.counted[0]["hosts"]:
            print_hosts(run)


CHAPTER = ExpertParallelChapter()
