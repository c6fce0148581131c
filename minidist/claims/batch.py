"""Which part of the batch each rank works on. No paper says it, and every chapter relies on it: if two ranks work on
the same sequences, the loss is wrong, though every byte count is right."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from minidist.claims.claim import Claim, on_each_rank
from minidist.formulas.asked import Asked
from minidist.papers import context
from minidist.papers.collectives import chunk_sizes


def share_claim(asked: Asked, passed: Sequence[Mapping[int, float]]) -> Claim:
    """W ranks share the b sequences of a step. Ranks that share layers work on the same ones, and so do all stages.

    passed: for each rank that trains, the tokens that went forward through each of its units in a step, by the first
    sequence of their micro-batch. If the rank's own sequences have the right number of tokens, all tokens are counted.
    """
    promised, counted = [], []
    for (first, tokens), of_rank in zip(shares(asked), passed, strict=True):
        own = of_rank.get(first, 0)
        promised.append(tokens)
        counted.append(sum(of_rank.values()) if own == tokens else own)
    return on_each_rank("in addition", "tokens of a rank", "tokens/R", promised, counted, "tokens")


def shares(asked: Asked) -> list[tuple[int, int]]:
    """For each rank, its first sequence of a micro-batch, and its tokens of a step. Replicas of a stage take turns."""
    at = asked.layout
    if at.replicas:
        return [(0, asked.batch // workers * asked.context) for workers in at.replicas for _ in range(workers)]
    rows = chunk_sizes(asked.batch // asked.accumulate, at.dp)
    firsts = [0, *accumulate(rows)]
    lengths = context.sizes(asked.context, at.cp, asked.positions) if at.cp > 1 else [asked.context]
    places = zip(asked.data_shares, asked.places, strict=True)
    return [(firsts[share], asked.passes * rows[share] * lengths[place.context]) for share, place in places]
