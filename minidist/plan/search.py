"""All rows that divide, the fastest first; and how many do not fit, by their reason.

Whatever divides is tried: every number of tensor, context and data ranks and of stages, and every number of ranks that
divides the experts. So are every number of chunks that leaves each stage equally many layers, or, if the schedule has
a fixed number of chunks, almost (`pp/options.parts`), and every micro-batch; ZeRO's stages, hybrid sharding by hosts,
and three policies of recomputation. `orders.py` says which schedules. If that makes more than `MOST` rows, some are not
tried: `LIMITS`.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

from minidist import UsageError
from minidist.formulas.asked import Asked
from minidist.papers import ring_attention
from minidist.plan.choice import Choice, Wanted, ask, misfit
from minidist.plan.memory import Held, Memo, held, states_on
from minidist.plan.orders import orders, splits, takes
from minidist.plan.ties import Row, merge_ties, settle_ties
from minidist.plan.time import Cluster, Messages, Seconds, data_time, of_step, slowest, tied_time, useful_flops
from minidist.plan.traffic import data_volumes_along, most_sent
from minidist.pp.options import divisors
from minidist.pp.schedules import SCHEDULES

RECOMPUTE = ("none", "selective", "every:1")
EMPTY: Mapping[str, Any] = MappingProxyType({})


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
        seconds, links, sent = self.times(choice, asked)
        tokens = self.wanted.tokens / seconds.step
        mfu = tokens * useful_flops(asked) / (self.cluster.ranks * self.cluster.flops)
        return Row(choice, most or self.held(asked), seconds, tokens, mfu, links, sent)

    def times(self, choice: Choice, asked: Asked) -> tuple[Seconds, float, int]:
        """A row's seconds, those of its messages, hidden or not, and the bytes that its busiest rank sends."""
        order = choice.schedule if splits(choice.schedule) else "loop"
        cut = choice.tp, choice.cp, choice.pp, choice.chunks, choice.first, choice.last, choice.ep, order
        of_stages = *cut, choice.rows, choice.recompute
        stage, in_layers = self.memo.recall(("stage", *of_stages), partial(slowest, self.cluster, asked))
        of_data = *cut, choice.dp, choice.zero, choice.hosts, asked.passes > 1
        along = self.memo.recall(
            ("data", *of_data, choice.zero == 3 and choice.recompute), partial(data_volumes_along, asked)
        )
        pairs = zip(*(of(self.cluster, asked, along, stage) for of in (data_time, tied_time)), strict=True)
        seconds, links = of_step(self.cluster, asked, stage, Messages(*map(sum, pairs)))
        return seconds, links, most_sent(asked, in_layers, along)


def search(wanted: Wanted, cluster: Cluster, only: Mapping[str, Any] = EMPTY) -> SearchResult:
    """All rows that fit. A larger micro-batch needs no less memory: where one does not fit, no larger one is tried, but
    all are counted. If they are more than `MOST`, the first of `LIMITS` that leaves few enough applies. only: fields of
    `SearchLimits`, for which values are given."""
    evaluator, rows, left_out = Evaluator(wanted, cluster), list[Row](), Counter[str]()
    possible = list(axes(wanted, cluster.ranks))
    hidden = [at for at in possible if not hides_nothing(wanted, cluster, at.cp)]
    asked = EVERYTHING._replace(**only)
    left_out[CONTEXT] = sum(count_at(wanted, cluster.per_host, at, asked) for at in possible if at not in hidden)
    numbers = list[int]()
    for limits in (limits._replace(**only) for limits in LIMITS):
        numbers.append(sum(count_at(wanted, cluster.per_host, at, limits) for at in hidden))
        if numbers[-1] <= MOST:
            break
    left_out[limits.words] = numbers[0] - numbers[-1]
    for sizes in (family for at in hidden for family in families_at(wanted, cluster.per_host, at, limits)):
        for done, choice in enumerate(sizes):
            question = ask(wanted, choice)
            if not done and evaluator.states(question) > cluster.room:  # whatever the micro-batch
                left_out[STATES] += len(sizes)
                break
            need = evaluator.held(question)
            if need.total > cluster.room:
                left_out[ACTIVATIONS] += len(sizes) - done
                break
            rows.append(evaluator.row(choice, question, need))
    return SearchResult(settle_ties(rows), +left_out)


def best_chunks(rows: Sequence[Row]) -> list[Row]:
    """The fastest of rows that differ only in the number of chunks."""
    found: dict[Choice, Row] = {}
    for row in rows:
        found.setdefault(replace(row.choice, chunks=0), row)
    return merge_ties([*found.values()])


STATES, ACTIVATIONS = "model states do not fit", "model states fit, but not with activations"
CONTEXT = "sequence parts too short: the ring's messages would not be hidden"


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
    schedule: str = ""  # this one alone; so are the next two
    recompute: str = ""
    rows: int = 0


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
    """For these sizes of the axes: schedule and chunks, micro-batches, ZeRO's stage and hosts, ep, recomputation."""
    if at.tp > per_host and not limits.beyond_hosts:
        return
    rows = [b for b in divisors(wanted.batch // at.dp) if b <= limits.sequences and limits.rows in (0, b)]
    for order in orders(wanted.model.layers, at.pp, limits.schedule):
        schedule, _ = order
        usable = [b for b in rows if takes(schedule, wanted.batch // at.dp // b, at.pp)]
        for zero, hosts in shards(at, per_host, schedule) if usable else ():
            if zero in limits.stages or at.dp * at.cp == 1:
                again = policies(wanted, at.cp, schedule) if not limits.recompute else (limits.recompute,)
                if splits(schedule) and again != ("none",):
                    continue
                for ep, recompute in product(expert_ranks(wanted, at, hosts), again):
                    yield order, usable, (zero, hosts), ep, recompute


def policies(wanted: Wanted, cp: int, schedule: str) -> tuple[str, ...]:
    """What may be recomputed. In tiles, attention keeps no core to recompute, and on context ranks it is in tiles
    (`papers/context.py`)."""
    if splits(schedule):
        return ("none",)
    return RECOMPUTE if cp == 1 and wanted.profile.attention == "whole" else ("none", "every:1")


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


def why_not(wanted: Wanted, choice: Choice) -> str:
    """Why a choice cannot be, or has no formula, in a line; empty if it is one, even if a search does not try it."""
    kind, p, zero = SCHEDULES[choice.schedule], choice.pp, choice.zero
    if found := misfit(wanted, choice):
        return found
    try:
        choice.parts(wanted.model.layers)
    except UsageError as error:
        return str(error)
    if p == 1 and (choice.schedule, choice.chunks) != ("1f1b", 1):
        return f"{choice.schedule} is a pipeline's schedule: use pp=2 or more"
    if choice.chunks != kind.chunks and not (kind.any_chunks and choice.chunks > 1):
        return f"{choice.schedule} does not have {choice.chunks} chunks to a stage: use {kind.chunks}"
    if p % kind.stages_in:
        return f"{choice.schedule} needs an even number of stages, not {p}"
    if wanted.batch % (choice.dp * choice.rows):
        return f"micro-batches of {choice.rows} on {choice.dp} data ranks do not divide {wanted.batch:,} sequences"
    if not takes(choice.schedule, choice.micro_batches(wanted.batch), p):
        return f"{choice.schedule} on {p} stages does not take {choice.micro_batches(wanted.batch)} micro-batches"
    if choice.hosts > 1 and (zero < 3 or choice.dp % choice.hosts):
        return f"{choice.hosts} hosts with a copy of the states each are of ZeRO-3, and divide {choice.dp} data ranks"
    if choice.ep not in expert_ranks(wanted, choice, choice.hosts):
        return f"{choice.ep} ranks cannot divide {wanted.model.experts} experts"
    if splits(choice.schedule) and (zero > 1 or choice.recompute != "none"):
        return f"{choice.schedule} splits the backward: its formulas hold with ZeRO-0 and 1, and without recomputation"
    return ""
