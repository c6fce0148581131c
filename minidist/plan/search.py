"""All rows that divide, the fastest first; and how many do not fit, by their reason.

Whatever divides is tried: every number of tensor, context and data ranks and of stages, and every number of ranks that
divides the experts. So are every number of chunks that leaves each stage equally many layers, and every micro-batch;
ZeRO's stages, hybrid sharding by hosts, and three policies of recomputation. `orders.py` says which schedules. If that
makes more than `MOST` rows, some are not tried: `LIMITS`.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import NamedTuple

from minidist.formulas.asked import Asked
from minidist.papers import ring_attention
from minidist.plan.choice import Choice, Wanted, ask, misfit
from minidist.plan.memory import Held, Memo, held, states_on
from minidist.plan.orders import orders, splits, takes
from minidist.plan.ties import merge_ties, settle_ties
from minidist.plan.time import Cluster, Seconds, StageSeconds, data_time, of_step, slowest, tied_time, useful_flops
from minidist.plan.traffic import data_volumes_along

RECOMPUTE = ("none", "selective", "every:1")


class Row(NamedTuple):
    """A choice, with its memory and its speed."""

    choice: Choice
    held: Held  # of the fullest rank
    seconds: Seconds
    tokens: float  # a second
    mfu: float  # model FLOPs utilization


class SearchResult(NamedTuple):
    """What a search has found."""

    rows: list[Row]  # those that fit, the fastest first
    left_out: Counter[str]  # how many do not, by reason


class Evaluator:
    """Evaluates choices for one model on one cluster."""

    def __init__(self, wanted: Wanted, cluster: Cluster) -> None:
        self.wanted, self.cluster, self.memo = wanted, cluster, Memo()

    def held(self, asked: Asked) -> Held:
        """What the fullest rank holds."""
        return max(held(asked, self.memo), key=lambda rank: rank.total)

    def states(self, asked: Asked) -> float:
        """Bytes of model states on the rank that has most."""
        return max(states_on(asked, self.memo, rank).total for rank in range(asked.ranks))

    def row(self, choice: Choice, asked: Asked | None = None, most: Held | None = None) -> Row:
        asked = asked or ask(self.wanted, choice)
        seconds = self.seconds(choice, asked)
        tokens = self.wanted.tokens / seconds.step
        mfu = tokens * useful_flops(asked) / (self.cluster.ranks * self.cluster.flops)
        return Row(choice, most or self.held(asked), seconds, tokens, mfu)

    def seconds(self, choice: Choice, asked: Asked) -> Seconds:
        order = choice.schedule if splits(choice.schedule) else "loop"
        of_stages = choice.tp, choice.cp, choice.pp, choice.chunks, order, choice.rows, choice.recompute, choice.ep
        stage: StageSeconds = self.memo.recall(("stage", *of_stages), partial(slowest, self.cluster, asked))
        of_data = choice.dp, choice.tp, choice.cp, choice.pp, choice.ep, choice.chunks, order, choice.zero, choice.hosts
        along = self.memo.recall(
            ("data", *of_data, choice.zero == 3 and choice.recompute), partial(data_volumes_along, asked)
        )
        waits = data_time(self.cluster, asked, along, stage) + tied_time(self.cluster, asked, along, stage)
        return of_step(self.cluster, asked, stage, waits)


def search(wanted: Wanted, cluster: Cluster) -> SearchResult:
    """All rows that fit. A larger micro-batch needs no less memory: where one does not fit, no larger one is tried, but
    all are counted. If they are more than `MOST`, the first of `LIMITS` that leaves few enough applies."""
    evaluator, rows, left_out = Evaluator(wanted, cluster), list[Row](), Counter[str]()
    possible = list(axes(wanted, cluster.ranks))
    hidden = [at for at in possible if not hides_nothing(wanted, cluster, at.cp)]
    left_out[CONTEXT] = sum(count_at(wanted, cluster.per_host, at) for at in possible if at not in hidden)
    numbers = list[int]()
    for limits in LIMITS:
        numbers.append(sum(count_at(wanted, cluster.per_host, at, limits) for at in hidden))
        if numbers[-1] <= MOST:
            break
    left_out[limits.words] = numbers[0] - numbers[-1]
    for sizes in (family for at in hidden for family in families_at(wanted, cluster.per_host, at, limits)):
        for done, choice in enumerate(sizes):
            asked = ask(wanted, choice)
            if evaluator.states(asked) > cluster.memory:
                left_out[STATES] += len(sizes) - done
                break
            need = evaluator.held(asked)
            if need.total > cluster.memory:
                left_out[ACTIVATIONS] += len(sizes) - done
                break
            rows.append(evaluator.row(choice, asked, need))
    return SearchResult(settle_ties(rows, wanted), +left_out)


def best_chunks(rows: Sequence[Row]) -> list[Row]:
    """The fastest of rows that differ only in schedule and chunks."""
    found: dict[Choice, Row] = {}
    for row in rows:
        found.setdefault(replace(row.choice, schedule="", chunks=0), row)
    return merge_ties([*found.values()])


STATES, ACTIVATIONS = "model states do not fit", "model states fit, but not with activations"
CONTEXT = "too few positions to hide the ring"


def hides_nothing(wanted: Wanted, cluster: Cluster, cp: int) -> bool:
    """Whether context ranks have too few positions for their work to hide keys and values on their way, even within a
    host (Ring Attention, section 3): then they only add messages."""
    return cp > 1 and wanted.context / cp < ring_attention.least_block(cluster.flops, cluster.within)


# ---- everything that divides -----------------------------------------------------------------------------------------


class SearchLimits(NamedTuple):
    """What a search leaves out, so that it ends in seconds."""

    words: str = ""
    beyond_hosts: bool = True  # tensor ranks of several hosts (PTD, section 3.2: never better)
    stages: tuple[int, ...] = (0, 1, 2, 3)  # ZeRO's
    sequences: int = 2**62  # of a micro-batch


MOST = 20_000  # rows: some seconds
EVERYTHING = SearchLimits()
LIMITS = [
    EVERYTHING,
    SearchLimits("not tried: tensor ranks of several hosts", False),
    SearchLimits("not tried: tensor ranks of several hosts; ZeRO-0, ZeRO-2", False, (1, 3)),
    SearchLimits("not tried: tensor ranks of several hosts; ZeRO-0, ZeRO-2; b over 4", False, (1, 3), 4),
    SearchLimits("not tried: tensor ranks of several hosts; ZeRO-0, ZeRO-2; b over 1", False, (1, 3), 1),
]


def families(wanted: Wanted, cluster: Cluster) -> Iterator[list[Choice]]:
    """Everything that divides, in lists of choices that differ in their micro-batch alone, the smallest first."""
    for at in axes(wanted, cluster.ranks):
        yield from families_at(wanted, cluster.per_host, at)


def families_at(wanted: Wanted, per_host: int, at: Choice, limits: SearchLimits = EVERYTHING) -> Iterator[list[Choice]]:
    """The lists of choices for these sizes of the axes."""
    for (schedule, chunks), usable, (zero, hosts), ep, recompute in kinds_at(wanted, per_host, at, limits):
        yield [Choice(at.dp, at.tp, at.cp, at.pp, ep, schedule, chunks, zero, hosts, recompute, b) for b in usable]


def count_at(wanted: Wanted, per_host: int, at: Choice, limits: SearchLimits = EVERYTHING) -> int:
    """The number of choices for these sizes of the axes."""
    return sum(len(usable) for _, usable, *_ in kinds_at(wanted, per_host, at, limits))


Kind = tuple[tuple[str, int], list[int], tuple[int, int], int, str]


def kinds_at(wanted: Wanted, per_host: int, at: Choice, limits: SearchLimits) -> Iterator[Kind]:
    """For these sizes of the axes: schedule and chunks, micro-batches, ZeRO's stage and hosts, ep, what runs again."""
    if at.tp > per_host and not limits.beyond_hosts:
        return
    rows = [b for b in divisors(wanted.batch // at.dp) if b <= limits.sequences]
    for order in orders(wanted.model.layers, at.pp):
        schedule, _ = order
        usable = [b for b in rows if takes(schedule, wanted.batch // at.dp // b, at.pp)]
        for zero, hosts in shards(at, per_host, schedule) if usable else ():
            if zero in limits.stages or at.dp * at.cp == 1:
                for ep, recompute in product(expert_ranks(wanted, at, hosts), policies(at.cp, schedule)):
                    yield order, usable, (zero, hosts), ep, recompute


def policies(cp: int, schedule: str) -> tuple[str, ...]:
    """What may run again. Context ranks keep no core of attention to be run again (`papers/context.py`)."""
    if splits(schedule):
        return ("none",)
    return RECOMPUTE if cp == 1 else ("none", "every:1")


def axes(wanted: Wanted, ranks: int) -> Iterator[Choice]:
    """Sizes of the axes whose product is the number of ranks."""
    for tp in divisors(ranks):
        for pp in divisors(ranks // tp):
            for cp in divisors(ranks // tp // pp):
                choice = Choice(ranks // tp // pp // cp, tp, cp, pp)
                if not misfit(wanted, choice):
                    yield choice


def shards(choice: Choice, per_host: int, schedule: str) -> Iterator[tuple[int, int]]:
    """The possible stages of ZeRO, each with the number of hosts that hold a copy of the states."""
    if choice.dp * choice.cp == 1:
        yield 0, 1
        return
    for stage in range(2 if splits(schedule) else 4):
        yield stage, 1
    if splits(schedule):
        return
    near = per_host // (choice.tp * choice.cp * choice.pp)
    if near > 1 and choice.dp > near and choice.dp % near == 0:
        yield 3, choice.dp // near


def expert_ranks(wanted: Wanted, choice: Choice, hosts: int) -> list[int]:
    """Possible P: how many of the ranks that divide model states divide the experts."""
    return divisors(math.gcd(wanted.model.experts or 1, choice.dp // hosts * choice.cp))


@cache
def divisors(n: int) -> list[int]:
    """All divisors of n, in ascending order."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def why_not(wanted: Wanted, choice: Choice, per_host: int) -> str:
    """Why a search does not try a choice, in a line; empty if it does."""
    m, pp = choice.micro_batches(wanted.batch), choice.pp
    if found := misfit(wanted, choice):
        return found
    if (choice.schedule, choice.chunks) not in orders(wanted.model.layers, pp):
        return f"{pp} stages of {choice.chunks} chunks cannot divide {wanted.model.layers} layers"
    if not takes(choice.schedule, m, pp):
        return f"{choice.schedule} on {pp} stages does not take {m} micro-batches"
    if (choice.zero, choice.hosts) not in shards(choice, per_host, choice.schedule):
        return f"ZeRO-{choice.zero} has nothing to divide on one data rank: use stage 0"
    if choice.ep not in expert_ranks(wanted, choice, choice.hosts):
        return f"{choice.ep} ranks cannot divide {wanted.model.experts} experts"
    if choice.recompute not in policies(choice.cp, choice.schedule):
        allowed = " or ".join(policies(choice.cp, choice.schedule))
        return f"context ranks keep no core of attention that could run again: choose {allowed}"
    return ""
