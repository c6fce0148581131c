"""All rows that divide, the fastest first; and how many do not fit, by their reason.

Whatever divides is tried: every number of tensor, context and data ranks and of stages, every number of chunks that
leaves each stage equally many layers, every micro-batch, ZeRO's stages, hybrid sharding by hosts, and three policies of
recomputation. GPipe and breadth-first are left out, because they take as long as 1F1B and interleaved, and hold more.
Schedules that split the backward are left out, because no formula says what waits for W.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from minidist.papers import ring_attention
from minidist.plan.choice import Choice, Planned, Wanted, ask, divides, misfit
from minidist.plan.memory import Held, Memo, held
from minidist.plan.time import Cluster, Seconds, Stage, data_time, flops_a_token, of_step, slowest
from minidist.plan.traffic import data_volumes_along, within_layers

RECOMPUTE = ("none", "selective", "every:1")


class Row(NamedTuple):
    """A choice, evaluated."""

    choice: Choice
    held: Held  # of the fullest rank
    seconds: Seconds
    tokens: float  # a second
    mfu: float  # model FLOPs utilization


class Found(NamedTuple):
    """What a search has found."""

    rows: list[Row]  # that fit, the fastest first
    left_out: Counter[str]  # how many do not, by reason


class Evaluator:
    """Evaluates choices for one model on one cluster."""

    def __init__(self, wanted: Wanted, cluster: Cluster) -> None:
        self.wanted, self.cluster, self.memo = wanted, cluster, Memo()
        self.flops = flops_a_token(wanted.model, wanted.context)

    def held(self, asked: Planned) -> Held:
        """Of the fullest rank."""
        return max(held(asked, self.memo), key=lambda rank: rank.total)

    def row(self, choice: Choice, asked: Planned | None = None, most: Held | None = None) -> Row:
        asked = asked or ask(self.wanted, choice)
        seconds = self.seconds(choice, asked)
        tokens = self.wanted.tokens / seconds.step
        mfu = tokens * self.flops / (self.cluster.ranks * self.cluster.flops)
        return Row(choice, most or self.held(asked), seconds, tokens, mfu)

    def seconds(self, choice: Choice, asked: Planned) -> Seconds:
        of_stages = choice.tp, choice.cp, choice.pp, choice.chunks, choice.rows, choice.recompute
        stage: Stage = self.memo.recall(
            ("stage", *of_stages), lambda: slowest(self.cluster, asked, within_layers(asked))
        )
        of_data = choice.dp, choice.tp, choice.cp, choice.pp, choice.chunks, choice.zero, choice.hosts
        along = self.memo.recall(
            ("data", *of_data, choice.zero == 3 and choice.recompute), partial(data_volumes_along, asked)
        )
        return of_step(self.cluster, asked, stage, data_time(self.cluster, asked, along, stage))


def search(wanted: Wanted, cluster: Cluster) -> Found:
    """All rows that fit. A larger micro-batch needs no less memory: where one does not fit, no larger
    one is tried, but all are counted."""
    evaluator, rows, left_out = Evaluator(wanted, cluster), list[Row](), Counter[str]()
    for sizes in families(wanted, cluster):
        if hides_nothing(wanted, cluster, sizes[0].cp):
            left_out[CONTEXT] += len(sizes)
            continue
        for done, choice in enumerate(sizes):
            asked = ask(wanted, choice)
            need = evaluator.held(asked)
            if need.total > cluster.memory:
                reason = STATES if need.states > cluster.memory else ACTIVATIONS
                left_out[reason] += len(sizes) - done
                break
            rows.append(evaluator.row(choice, asked, need))
    rows.sort(key=lambda row: (row.seconds.step, row.held.total))
    return Found(rows, left_out)


def best_chunks(rows: Sequence[Row]) -> list[Row]:
    """Of rows that differ in their chunks alone, the fastest."""
    found: dict[Choice, Row] = {}
    for row in rows:
        found.setdefault(replace(row.choice, schedule="", chunks=0), row)
    return list(found.values())


STATES, ACTIVATIONS = "model states do not fit", "they fit, but not with activations"
CONTEXT = "too few positions to hide the ring"


def hides_nothing(wanted: Wanted, cluster: Cluster, cp: int) -> bool:
    """Whether context ranks have too few positions for their work to hide keys and values on their way, even within a
    host (Ring Attention, section 3): then they only add messages."""
    return cp > 1 and wanted.context / cp < ring_attention.least_block(cluster.flops, cluster.within)


def families(wanted: Wanted, cluster: Cluster) -> Iterator[list[Choice]]:
    """Everything that divides, in lists of choices that differ in their micro-batch alone, the smallest first."""
    for at in axes(wanted, cluster.ranks):
        rows = divisors(wanted.batch // at.dp)
        for schedule, chunks in schedules(wanted, at.pp):
            usable = [b for b in rows if takes(schedule, wanted.batch // at.dp // b, at.pp)]
            for zero, hosts in shards(at, cluster.per_host):
                for recompute in policies(at.cp):
                    sizes = at.dp, at.tp, at.cp, at.pp, 1, schedule, chunks, zero, hosts, recompute
                    if usable:
                        yield [Choice(*sizes, b) for b in usable]


def takes(schedule: str, m: int, pp: int) -> bool:
    """Whether a schedule can have m micro-batches."""
    return schedule == "1f1b" or m % pp == 0


def policies(cp: int) -> tuple[str, ...]:
    """What may run again. Context ranks keep no core of attention to be run again (`papers/context.py`)."""
    return RECOMPUTE if cp == 1 else ("none", "every:1")


def axes(wanted: Wanted, ranks: int) -> Iterator[Choice]:
    """Sizes of the axes whose product is the number of ranks."""
    for tp in divisors(ranks):
        for pp in divisors(ranks // tp):
            for cp in divisors(ranks // tp // pp):
                choice = Choice(ranks // tp // pp // cp, tp, cp, pp)
                if not misfit(wanted, choice):
                    yield choice


def schedules(wanted: Wanted, pp: int) -> Iterator[tuple[str, int]]:
    """Schedules and chunks that p stages allow."""
    yield "1f1b", 1
    if pp > 1:
        for chunks in range(2, (wanted.model.layers + 2) // pp + 1):
            if divides(wanted.model.layers, pp * chunks):
                yield "interleaved", chunks


def shards(choice: Choice, per_host: int) -> Iterator[tuple[int, int]]:
    """ZeRO's stage, and the hosts that hold a copy each."""
    if choice.dp * choice.cp == 1:
        yield 0, 1
        return
    for stage in range(4):
        yield stage, 1
    near = per_host // (choice.tp * choice.cp * choice.pp)
    if near > 1 and choice.dp > near and choice.dp % near == 0:
        yield 3, choice.dp // near


def divisors(n: int) -> list[int]:
    """In ascending order."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def why_not(wanted: Wanted, choice: Choice, per_host: int) -> str:
    """Why a search does not try a choice, in a line; empty if it does."""
    m, pp = choice.micro_batches(wanted.batch), choice.pp
    if found := misfit(wanted, choice):
        return found
    if (choice.schedule, choice.chunks) not in schedules(wanted, pp):
        return f"{pp} stages of {choice.chunks} chunks cannot divide {wanted.model.layers} layers"
    if not takes(choice.schedule, m, pp):
        return f"interleaved takes a multiple of {pp} micro-batches, not {m}"
    if (choice.zero, choice.hosts) not in shards(choice, per_host):
        return f"ZeRO-{choice.zero} has nothing to divide on one data rank: use stage 0"
    if choice.recompute not in policies(choice.cp):
        return f"context ranks keep no core of attention that could run again: {choice.recompute} is not for them"
    return ""
