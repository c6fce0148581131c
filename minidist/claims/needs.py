"""How much memory a run will need on each rank's device, by formula, before it begins; and whether it will fit.

The formulas are those of the claims: in V, s, h, L, a, the batch, N and the bytes of a number. Nothing is read from the
program's arrays. Kinds have their peaks at different moments of a step. So the most that is needed at a time is not the
sum of the peaks, but the need of the fullest moment below. If the papers have no formula (a pipeline's messages,
activations of schedules that split the backward), the estimate says so, and the run needs more.
"""

import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from minidist.claims.activations import Share, keep_after_forward, keep_at_most, layer_bytes, name_recomputation
from minidist.claims.run import Asked
from minidist.cli.tables import number
from minidist.papers import chen, megatron, zero


class Place(NamedTuple):
    """What the formulas ask about a rank. Units in elements, padded so that the data axis divides them; 0: not held."""

    states: zero.ModelStates
    share: Share
    embedding: int
    layer: int
    head: int  # all that it reads, except `both`
    both: int = 0  # elements of a tied embedding, which the head also reads, if this rank holds it
    stage: int = 0  # of ZeRO: from 2 on, gradients of whole units are held in passing; in 3, also parameters
    in_flight: int = 1  # micro-batches whose forward has run, and whose backward has not
    starts_with_layer: bool = False  # if a stage runs again as a whole, and keeps its input
    buffer: int = 0  # elements of the constant buffer for gradients: then only a tied embedding's gradient waits whole


class Needs(NamedTuple):
    """Bytes on one rank: the most of each kind, the most at a time, and kinds for which there is no formula."""

    kinds: dict[str, float]
    total: float
    without: Sequence[str] = ()

    def but(self, **kinds: float) -> "Needs":
        """The same with other bytes of some kinds."""
        more = sum(nbytes - self.kinds[kind] for kind, nbytes in kinds.items())
        return self._replace(kinds=self.kinds | kinds, total=self.total + more)


class Moment(NamedTuple):
    """What is held at a moment of a step, in addition to model states."""

    passing: float
    activations: float
    ends: float


Estimate = Callable[[Asked], list[Needs]]


def at_places(asked: Asked, t: int, places: Sequence[Place], without: Sequence[str] = ()) -> list[Needs]:
    """What each rank needs, if t ranks share every layer."""
    dropout = asked.options.dropout > 0
    shares = [place.share for place in places]
    layers = layer_bytes(asked, t, shares, name_recomputation(asked.options.recompute), dropout)
    inputs = layer_bytes(asked, t, shares, "full", dropout)
    kept, most = keep_after_forward(asked, t, shares, dropout), keep_at_most(asked, t, shares, dropout)
    found = []
    for rank, place in enumerate(places):
        moments = fullest(asked, t, place, kept[rank], most[rank], layers[rank], inputs[rank])
        states = place.states
        kinds = {"parameters": states.parameters, "gradients": states.gradients, "optimizer": states.optimizer}
        for kind in Moment._fields:
            kinds[kind] = max(getattr(moment, kind) for moment in moments)
        found.append(Needs(kinds, states.total + max(map(sum, moments)), without))
    return found


def fullest(asked: Asked, t: int, at: Place, kept: float, most: float, layer: float, given: float) -> list[Moment]:
    """The moments of a step at which a rank may hold most.

    kept, most: bytes of its layers' activations after a forward, and at most; layer, given: of one layer, of its
    input."""
    waits, others = waiting(asked, t, at, kept, given), at.in_flight - 1
    moments = moments_of_one(asked, t, at, kept, most, layer, given)
    return [Moment(*(one + others * other for one, other in zip(moment, waits, strict=True))) for moment in moments]


def waiting(asked: Asked, t: int, at: Place, kept: float, given: float) -> Moment:
    """What a micro-batch holds after its forward, while another one is at work."""
    if at.share.ends_again:  # a stage keeps its input alone, and runs again as a whole
        first, last = token_bytes(asked, at.share._replace(head=False)), given * (at.share.head and not at.share.layers)
        return Moment(0, given * at.starts_with_layer, first + last)
    return Moment(0, kept, sum(end_bytes(asked, t, at.share)) + token_bytes(asked, at.share))


def moments_of_one(
    asked: Asked, t: int, at: Place, kept: float, most: float, layer: float, given: float
) -> list[Moment]:
    """The moments of `fullest`, if no other micro-batch is under way."""
    recompute, layers, p = asked.options.recompute, at.share.layers, asked.bytes.stored
    first, last = end_bytes(asked, t, at.share)
    tokens, gather, bucket = token_bytes(asked, at.share), p * (at.stage >= 3), p * (at.stage >= 2)
    if at.share.ends_again:
        kept = most = layers * layer
        after = max(layers - 1, 0) * layer
    else:
        after = max(of.inputs * given + max(of.layers - 1, 0) * layer for of in chen.at_most(recompute, layers))

    def reduced(unit: int) -> int:
        """Bytes of a unit's gradient that are held in passing."""
        return bucket * (at.both if at.buffer else unit)

    moments = [Moment(gather * at.embedding + reduced(at.embedding), 0, tokens)]  # embedding, backward
    if at.share.embedding:
        moments.append(Moment(gather * at.embedding, 0, tokens + first))  # forward
    if layers:  # forward; backward, before a layer's activations go, and when its gradients are there instead
        passing = at.layer + at.both
        moments.append(Moment(gather * passing, kept, tokens + first))
        moments.append(Moment(gather * passing + bucket * at.both, most, tokens + first))
        moments.append(Moment(gather * passing + reduced(passing), after, tokens + first))
    if at.share.head:
        passing = at.head + at.both
        moments.append(Moment(gather * passing, kept, tokens + first + last))
        moments.append(Moment(gather * passing + reduced(passing), kept, tokens + first))
    if not at.buffer:
        return moments
    return [moment._replace(passing=moment.passing + p * at.buffer) for moment in moments]


def end_bytes(asked: Asked, t: int, share: Share) -> tuple[float, float]:
    """Bytes that embedding and head keep of a micro-batch, without its tokens: a dropout mask; the inputs of the last
    norm and of the matrix; in full precision, the norm's statistics and the probabilities."""
    o, p, wide = asked.options, asked.bytes.stored, asked.bytes.computed
    bs, apart = share.tokens(o.context), t if asked.sequence_parallel else 1
    statistics = 2 if o.model == "gpt" else 1
    first = bs * o.width * (o.dropout > 0) / apart
    last = bs * (2 * p * o.width + wide * statistics) / apart + bs * wide * logit_columns(asked, t)
    return first * share.embedding, last * share.head


def logit_columns(asked: Asked, t: int) -> int:
    """Entries of the vocabulary for which one of t ranks has logits."""
    cut = 1 if asked.gather_logits else t
    return megatron.padded_vocabulary(asked.vocabulary, cut) // cut


def token_bytes(asked: Asked, share: Share) -> int:
    """Bytes of a micro-batch's tokens, which the embedding keeps, and targets, which the head keeps: 4 each."""
    return 4 * share.tokens(asked.options.context) * (share.embedding + share.head)


# ---- on the screen ---------------------------------------------------------------------------------------------------

CALLED = {"passing": "units in passing", "activations": "activations of layers", "ends": "other activations"}


def in_words(needs: Sequence[Needs], capacity: int) -> str:
    """What the rank with the largest need needs, and whether that fits; 80 columns wide."""
    most = max(needs, key=lambda rank: rank.total)
    where = "Each rank" if all(rank == most for rank in needs) else f"Rank {needs.index(most)}, which needs most,"
    kinds = [f"{CALLED.get(kind, kind)} {format_unbroken(nbytes)}" for kind, nbytes in most.kinds.items() if nbytes]
    left = capacity - most.total
    verdict = (
        f"{format_unbroken(left)} are left" if left >= 0 else f"{format_unbroken(-left)} too many: it will not fit"
    )
    more = f" Not included, because there is no formula: {', '.join(most.without)}." if most.without else ""
    text = (
        f"{where} will need, by formula: {', '.join(kinds)}. Together at most {format_unbroken(most.total)} bytes"
        f" at a time, of {format_unbroken(capacity)}: {verdict}.{more}"
    )
    return textwrap.fill(text, 80, break_on_hyphens=False).replace("_", " ")


def format_unbroken(nbytes: float) -> str:
    """A number that lines do not break in two."""
    return number(nbytes).replace(" ", "_")
