"""Expert parallelism: each rank has some of the experts, and tokens travel to those that the router chose.

    mpirun -n 4 python -m minidist.expert_parallel --experts 8 --top 2
    mpirun -n 4 python -m minidist.expert_parallel --capacity 1.25 --ep 2 --zero 1
    mpirun -n 8 python -m minidist.expert_parallel --experts 16 --top 4 --ranks-per-host 2 --host-limit 2

Shazeer et al., "Outrageously large neural networks", ICLR 2017, arXiv 1701.06538 (mixtures of experts).
Lepikhin et al., "GShard", 2020, arXiv 2006.16668; Fedus, Zoph & Shazeer, "Switch Transformers", 2021, arXiv 2101.03961
(experts on ranks, capacity). Rajbhandari et al., "DeepSpeed-MoE", 2022, arXiv 2201.05596 (with ZeRO).
Gale et al., "MegaBlocks", 2022, arXiv 2211.15841 (no choice is dropped).
DeepSeek-AI, "DeepSeek-V3", 2024, arXiv 2412.19437 (a limit of hosts).

A mixture of experts (`minidist/nn/mixture.py`) has E MLPs in place of one, and each token goes through k of them. So a
model may have E times the parameters at the same arithmetic for each token, and no rank has room for all of them. Here
P of the N ranks divide the experts among them; all N share the batch. A mixture is then, on each rank:

    router       which k experts each of its own T tokens goes to
    dispatch     all-to-all: copies of tokens, to the ranks that hold their experts     k·T·h·(P-1)/P elements sent
    experts      each rank runs its own, on the tokens of all P ranks
    combine      all-to-all: their results, back to the tokens' ranks                   k·T·h·(P-1)/P

The two are inverse permutations, so each one's backward is the other: four all-to-alls in a step, six if the forward
is recomputed. With a capacity factor cf, ranks exchange buffers of fixed size, cf times that many rows, whether full or
not. Without one, they first tell each other how many rows will come.

An expert's gradient is complete on the rank that holds it: the tokens of all P ranks have been there. It is summed only
over the N/P ranks that hold the same expert, at any of ZeRO's stages. Each rank's loss is its part of one sum, so no
gradient is divided by anything. (Dividing the experts' by P, as after a mean over all ranks, is a mistake that Adam
hides: its updates do not depend on the scale of gradients.)

A router that sends everything to one expert makes one rank work and all others wait. The balance loss pulls it back.

`--host-limit` restricts what the router chooses, and changes no message: a token still travels once to each of its
experts, also if two of them are on one host. Sending it once to each host, as DeepSeek-V3 does, would save bytes: how
many is counted from the routers' choices alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from minidist import collectives, contents, ring
from minidist.data_parallel import Axes, DataParallel
from minidist.engine import Settings
from minidist.layout import Layout, Mesh
from minidist.mpi.comm import Comm
from minidist.nn.layers import Batch, Block, Unit, flats_of
from minidist.nn.mixture import EXPERTS, Mixture, RoutingPlan, Tally, choose
from minidist.nn.tensor import Array, Tensor, record
from minidist.zero3 import LADDER


@dataclass(frozen=True)
class ExpertGroup:
    """The ranks among which a mixture is divided, as one of them sees them."""

    experts: Comm  # P ranks that divide the experts among them
    data: Comm  # N ranks that share the batch
    wire: type[np.generic]  # tokens travel as activations are stored
    hosts: int = 1  # on which the P ranks are, the same number on each
    host_limit: int | None = None  # of hosts that a token may go to


# ---- the way to the experts, and back --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Route:
    """Rows from this rank to its experts' ranks, and the way back."""

    group: ExpertGroup
    send_rows: Sequence[int]  # rows for each rank
    recv_rows: Sequence[Sequence[int]]  # rows from each rank, for each expert that is here

    @property
    def counts(self) -> list[int]:
        """Rows for each expert that is here, from all ranks."""
        return [sum(of_ranks) for of_ranks in zip(*self.recv_rows, strict=True)]

    def to_experts(self, rows: Array, phase: str) -> Array:
        """Send this rank's rows (R, C), sorted by expert; returns the rows for the experts here, also so sorted."""
        return self.exchange(rows, self.send_rows, [sum(of) for of in self.recv_rows], phase)[self.by_expert()]

    def to_tokens(self, rows: Array, phase: str) -> Array:
        """Send rows back to the ranks that they came from: the inverse of `to_experts`."""
        by_rank = np.empty_like(rows)
        by_rank[self.by_expert()] = rows
        return self.exchange(by_rank, [sum(of) for of in self.recv_rows], self.send_rows, phase)

    def by_expert(self) -> Array:
        """The order by expert of rows that arrive rank by rank; from each rank they are sorted by expert."""
        expert = np.concatenate([np.repeat(np.arange(len(of)), of) for of in self.recv_rows])
        return np.argsort(expert, kind="stable")

    def exchange(self, rows: Array, send_rows: Sequence[int], recv_rows: Sequence[int], phase: str) -> Array:
        """Rows for each rank, one rank after another -> rows from each rank."""
        if self.group.experts.size == 1:  # nothing travels, and nothing is rounded
            return rows
        sent = rows.astype(self.group.wire, copy=False)
        arrived = np.empty((sum(recv_rows), rows.shape[1]), sent.dtype)
        parts, rooms = np.split(sent, np.cumsum(send_rows)[:-1]), np.split(arrived, np.cumsum(recv_rows)[:-1])
        with self.group.experts.phase(phase):
            ring.all_to_all_v(self.group.experts, parts, rooms)
        return arrived.astype(rows.dtype, copy=False)


def dispatch(rows: Tensor, route: Route) -> Tensor:
    """Before the experts: send rows to the ranks that hold them."""
    arrived = route.to_experts(rows.data, "dispatch forward")
    return record(arrived, (rows,), lambda drows: route.to_tokens(drows, "dispatch backward"))


def combine(rows: Tensor, route: Route) -> Tensor:
    """After them."""
    returned = route.to_tokens(rows.data, "combine forward")
    return record(returned, (rows,), lambda drows: route.to_experts(drows, "combine backward"))


# ---- the layer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpertParallel(Mixture):
    """A mixture whose experts are on other ranks, too; `experts` are those of this rank."""

    group: ExpertGroup = field(kw_only=True)

    def compute(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Each row's expert, wherever it is. counts: this rank's rows for each of all experts."""
        route = self.route(counts)
        return combine(super().compute(dispatch(rows, route), route.counts), route)

    def route(self, counts: list[int]) -> Route:
        comm = self.group.experts
        held = [ring.chunk(self.number, comm.size, rank) for rank in range(comm.size)]
        send_rows = [sum(counts[of]) for of in held]
        if self.routing.capacity is not None:  # every rank has the same number of rows for every expert
            return Route(self.group, send_rows, [counts[held[comm.rank]]] * comm.size)
        recv_rows = np.empty((comm.size, len(self.experts)), np.int64)
        with comm.phase("counts"):
            ring.all_to_all_v(comm, [np.array(counts[of]) for of in held], list(recv_rows))
        return Route(self.group, send_rows, recv_rows.tolist())

    def capacity(self, batch: Batch) -> int | None:
        """C, for the mean of the ranks' tokens: all ranks have the same, even if one has a sequence more."""
        return self.room(Fraction(batch.whole, self.group.data.size))

    def shares(self, chosen: Array, batch: Batch) -> Array:
        """f, over all ranks that share the batch: so the balance loss is the one of the whole batch."""
        counts = np.bincount(chosen.reshape(-1), minlength=self.number).astype(np.float64)
        with self.group.data.phase("balance"):
            total = collectives.all_reduce(self.group.data, counts)
        return total / total.sum()

    def choose(self, prob: Array) -> Array:
        if self.group.host_limit is not None:
            prob = limit_hosts(prob, self.routing.top, self.group.hosts, self.group.host_limit)
        return super().choose(prob)

    def tally(self, chosen: Array, plan: RoutingPlan) -> Tally:
        if self.group.hosts == 1:
            return super().tally(chosen, plan)
        hosts, comm, each = self.group.hosts, self.group.experts, self.number // self.group.hosts
        reached = np.bincount(count_hosts(chosen, each), minlength=hosts + 1)
        leave = count_copies(chosen, each, comm.rank * hosts // comm.size)
        return super().tally(chosen, plan)._replace(hosts=tuple(reached[1:].tolist()), leave=leave)


def count_hosts(chosen: Array, each: int) -> Array:
    """Hosts of each token (n,), by its experts (n, k); each host has `each` of all experts."""
    host = np.sort(chosen // each, axis=1)
    return 1 + np.count_nonzero(np.diff(host, axis=1), axis=1)


def count_copies(chosen: Array, each: int, own: int) -> tuple[int, int]:
    """Copies of these tokens that leave their host: if each expert elsewhere gets one, and if each host gets one."""
    elsewhere = chosen // each != own  # (n, k)
    here = np.count_nonzero(~elsewhere.all(axis=1))  # tokens with an expert on this host
    return int(np.count_nonzero(elsewhere)), int(count_hosts(chosen, each).sum() - here)


def limit_hosts(prob: Array, k: int, hosts: int, limit: int) -> Array:
    """Let each token go to `limit` hosts only: those on which its k/limit best experts are best together (DeepSeek-V3,
    section 2.1.2). prob (n, E), with -1 for the experts on other hosts."""
    by_host = prob.reshape(len(prob), hosts, -1)  # (n, H, E/H)
    scores = np.sort(by_host, axis=-1)[..., -max(1, k // limit) :].sum(axis=-1)  # (n, H)
    allowed = choose(scores, limit)[..., None]  # (n, limit, 1)
    limited = np.full_like(by_host, -1)
    np.put_along_axis(limited, allowed, np.take_along_axis(by_host, allowed, axis=1), axis=1)
    return limited.reshape(prob.shape)


# ---- the model, divided ----------------------------------------------------------------------------------------------


def split(units: list[Unit], group: ExpertGroup) -> list[Unit]:
    """The same model; each rank of the group gets its experts. `units` stay unchanged."""
    return [
        replace(unit, mlp=give_experts(unit.mlp, group))
        if isinstance(unit, Block) and isinstance(unit.mlp, Mixture)
        else unit
        for unit in units
    ]


def give_experts(whole: Mixture, group: ExpertGroup) -> ExpertParallel:
    here = ring.chunk(whole.number, group.experts.size, group.experts.rank)
    return ExpertParallel(**{**vars(whole), "experts": whole.experts[here], "tallies": {}}, group=group)


def share_experts(units: list[Unit], copies: Comm) -> None:
    """Let the ranks that hold the same experts be the data axis of these experts' Flats."""
    for flat in flats_of(units):
        if flat.parameters[0].group == EXPERTS:
            flat.divide(copies)


def expert_parallel(
    units: list[Unit], settings: Settings, comm: Comm, layout: Layout, zero: int = 1, host_limit: int | None = None
) -> DataParallel:
    """All ranks share the batch, and layout.ep of them the experts."""
    experts, copies = Mesh(comm, layout).experts()
    group = ExpertGroup(experts, comm, settings.precision.stored, layout.ep_hosts, host_limit)
    divided = split(units, group)
    share_experts(divided, copies)
    return LADDER[zero](divided, settings, comm, Axes(others=experts))


if __name__ == "__main__":
    contents.run("expert_parallel")  # its options, and what the papers promise: programs/expert_parallel.py
