"""Experts on a grid of ranks, by formula: which rank holds which, what the ranks send each other for their tokens, and
what a mixture keeps for its backward. Ranks are numbered here independently: the layout is asked only for sizes.

N = dp x cp ranks share a batch's tokens. G ranks divide model states. Of these, P neighbors divide the experts, and
G/P ranks hold the same experts.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from minidist.formulas.asked import Asked
from minidist.papers import models, switch
from minidist.papers.collectives import chunk_sizes, ring_all_reduce

TOKENS = ("dispatch forward", "combine forward", "dispatch backward", "combine backward")


# ---- which rank holds what -------------------------------------------------------------------------------------------


def places(run: Asked) -> list[int]:
    """Each rank's number among the P ranks that divide the experts."""
    return [(at.shard * run.layout.cp + at.context) % run.layout.ep for at in run.places]


def group_of(run: Asked, rank: int) -> list[int]:
    """The P ranks, in order, that divide the experts together with this rank, itself included."""

    def group(other: int) -> tuple[int, ...]:
        at = run.places[other]
        return at.host, at.pipeline, at.tensor, (at.shard * run.layout.cp + at.context) // run.layout.ep

    return [other for other in range(run.ranks) if group(other) == group(rank)]


def copies(run: Asked) -> int:
    """G/P: the number of ranks that divide the states of the same experts."""
    return run.layout.shard * run.layout.cp // run.layout.ep


def experts_here(run: Asked) -> list[int]:
    """The number of a layer's experts on each rank."""
    sizes = chunk_sizes(run.model.experts, run.layout.ep)
    return [sizes[place] for place in places(run)]


def sizes(run: Asked) -> list[int]:
    """Parameters of a layer's experts on each rank. If t ranks share a layer, the first has the biases of all."""
    t = run.layout.tp
    of_one = [cut + whole * (part == 0) for part, (cut, whole) in enumerate(run.model.mlp(t))]
    return [number * of_one[at.tensor] for number, at in zip(experts_here(run), run.places, strict=True)]


class Stored(NamedTuple):
    """A Flat, by formula."""

    size: int  # elements, with padding
    among: int  # the number of ranks that divide them

    @property
    def shard(self) -> int:
        return self.size // self.among


def stored(run: Asked) -> list[Stored]:
    """A layer's experts on each rank, as a Flat that the ranks with the same experts divide."""
    return [Stored(models.padded(size, copies(run)), copies(run)) for size in sizes(run)]


# ---- what is sent ----------------------------------------------------------------------------------------------------


def mean_tokens(run: Asked) -> Fraction:
    """T: tokens of a rank in a micro-batch, on average."""
    return Fraction(run.micro_batch * run.context, run.layout.dp * run.layout.cp)


def room(run: Asked) -> int | None:
    """C: the rows of a rank for which an expert has room; None without a capacity."""
    if run.capacity is None:
        return None
    return switch.capacity(mean_tokens(run), run.model.experts, run.model.top, run.capacity)


def rows(run: Asked, forwards: Sequence[tuple[int, int]]) -> tuple[list[int], str]:
    """Rows that each rank sends to experts on other ranks, or back, in a step; and the formula. forwards: what
    `count_forwards` returns."""
    p = run.layout.ep
    again = any(repeated for _, repeated in forwards)
    times = (
        f"{'l·' if run.recompute == 'none' else ''}4" if not again else "(4l+2r)" if run.recompute == "log" else "l·6"
    )
    if run.capacity is not None:
        both = zip(
            *switch.rows_of_capacity(mean_tokens(run), run.model.experts, run.model.top, run.capacity, p), strict=True
        )
        there_and_back = [going + coming for going, coming in both]
        whole = run.model.top * Fraction(str(run.capacity)) * mean_tokens(run) / run.model.experts
        formula = f"{times}k·cf·T·h(P-1)/P" if whole == room(run) else f"{times}⌈k·cf·T/E⌉E·h(P-1)/P"
        each = zip(forwards, places(run), strict=True)
        return [(2 * every - repeated) * there_and_back[place] for (every, repeated), place in each], formula
    sent = [0] * run.ranks
    for rank in range(run.ranks):
        for name in ("forwards", "last"):  # every forward sends rows out and back; the last one's backward, too
            for chosen in chosen_by(run, rank, name) or ():
                going, coming = switch.rows_without_capacity(chosen)
                sent[rank] += going[places(run)[rank]] + coming[places(run)[rank]]
    return sent, f"{times.replace('4', '2').replace('6', '3')}(out + in)h"


def numbers_sent(run: Asked, forwards: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Bytes that each rank sends to announce how many rows will come, and to sum each expert's share of choices."""
    n = run.layout.dp * run.layout.cp
    every = [of_rank for of_rank, _ in forwards]
    counts = [
        8 * f * (run.model.experts - here) * (run.capacity is None)
        for f, here in zip(every, experts_here(run), strict=True)
    ]
    around = ring_all_reduce(run.model.experts * (run.balance > 0), n).sent
    at = [share * run.layout.cp + place.context for share, place in zip(run.data_shares, run.places, strict=True)]
    return counts, [8 * f * around[i] * (run.balance > 0) for f, i in zip(every, at, strict=True)]


# ---- what is kept ----------------------------------------------------------------------------------------------------


def more_than_an_mlp(run: Asked, rank: int, tokens: int) -> float:
    """Bytes that a rank's mixture keeps for this number of its tokens, minus what its layer's MLP would keep."""
    h, part = run.model.h, run.places[rank].tensor
    t = run.layout.tp
    hidden = 8 * h / t if run.model.name == "gpt" else 3 * chunk_sizes(run.model.mlp_width, t)[part]
    made, arrived = rows_of_mixture(run, rank, tokens)
    sizes = tokens, run.model.experts, run.model.top, h, hidden, made, arrived, run.bytes.stored, run.bytes.computed
    of = switch.mixture_activations(*sizes, run.balance > 0)
    if run.sequence_parallel and run.balance:  # the probabilities of the rank's own positions, once more
        of += run.bytes.computed * tokens / t * run.model.experts
    return of - run.bytes.stored * tokens * hidden


def rows_of_mixture(run: Asked, rank: int, tokens: int) -> tuple[int, float]:
    """Rows that a rank's mixture makes of its tokens, and those that reach its experts: without a capacity, by all
    ranks' choices in the last forward, the mean over its layers."""
    fixed = room(run)
    if fixed is not None:
        return run.model.experts * fixed, float(experts_here(run)[rank] * fixed * run.layout.ep)
    made = run.model.top * tokens
    chosen = chosen_by(run, rank, "latest")
    if chosen is None:
        return made, float(made)
    first = sum(chunk_sizes(run.model.experts, run.layout.ep)[: places(run)[rank]])
    here = slice(first, first + experts_here(run)[rank])
    found = [sum(sum(row[here]) for row in of_ranks) for of_ranks in chosen]
    return made, sum(found) / max(len(found), 1)


def chosen_by(run: Asked, rank: int, forwards: str) -> list[tuple[Any, ...]] | None:
    """For each of these forwards, the choices of all ranks that divide experts with this one; None before a run."""
    chosen = run.routed(forwards)
    return None if chosen is None else list(zip(*(chosen[other] for other in group_of(run, rank)), strict=True))
