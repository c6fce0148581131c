"""How much memory a run will need on each rank's device, by formula: of each kind, and at the fullest moment.

Nothing is read from the program's arrays: the formulas are in V, s, h, L, a, the batch, N and the bytes of a number.
Kinds have their peaks at different moments of a step. So the most that is needed at a time is not the sum of the peaks,
but the need of the fullest moment below. While one micro-batch is at work in a chunk of a stage, others wait:
`flights.py` counts them, and those that wait for W alone hold what `postponed.py` says.
"""

from collections.abc import Callable, Sequence
from operator import mul
from typing import NamedTuple

from minidist.formulas.activations import Kept, keeps
from minidist.formulas.asked import Asked
from minidist.formulas.ends import end_bytes, token_bytes
from minidist.formulas.experts import Stored
from minidist.formulas.flights import flights
from minidist.formulas.postponed import ends_split, layers_split
from minidist.formulas.shares import Share, chunks_of, flats, parts_of, states_of
from minidist.formulas.zero import constant_buffer_size
from minidist.papers import chen
from minidist.pp.schedules import SCHEDULES


class Moment(NamedTuple):
    """Bytes on a rank at a moment of a step, in addition to model states."""

    passing: float  # whole units of ZeRO-2 and 3: gathered parameters, gradients
    activations: float  # that layers keep for their backward
    ends: float  # what embedding, head and loss keep


class Peaks(NamedTuple):
    """The peak of each kind on a rank, and of all together, in addition to model states."""

    of_kinds: Moment
    together: float

    def and_also(self, more: Moment) -> "Peaks":
        """The peaks if `more` is held all the time, too."""
        kinds = (one + other for one, other in zip(self.of_kinds, more, strict=True))
        return Peaks(Moment(*kinds), self.together + sum(more))


def most_of(moments: Sequence[Moment]) -> Peaks:
    """The peaks over these moments."""
    return Peaks(Moment(*map(max, zip(*moments, strict=True))), max(map(sum, moments)))


class Needs(NamedTuple):
    """Bytes on one rank: the peak of each kind, of all together, and kinds for which there is no formula."""

    kinds: dict[str, float]
    total: float
    without: Sequence[str] = ()

    def but(self, **kinds: float) -> "Needs":
        """The same with other bytes of some kinds."""
        more = sum(nbytes - self.kinds[kind] for kind, nbytes in kinds.items())
        return self._replace(kinds=self.kinds | kinds, total=self.total + more)


Estimate = Callable[[Asked], list[Needs]]  # a formula for what each rank's device will need


def needs(run: Asked) -> list[Needs]:
    """What each rank will need: its part of every layer of its stage, divided by ZeRO's stage. A chapter has one of the
    axes; the others have one rank."""
    found, without = [], list_unpredicted(run)
    for rank in range(run.ranks):
        states, most = states_of(run, rank), peaks(run, rank)
        kinds = {**vars(states), **most.of_kinds._asdict()}
        found.append(Needs(kinds, states.total + most.together, without))
    return found


def list_unpredicted(run: Asked) -> list[str]:
    """What a run holds for which the papers have no formula."""
    schedule, found = run.layout.schedule, []
    if run.staged:
        found.append("messages on their way")
        if not follows_formula(run):
            found.append(f"activations with {schedule}, of all but one micro-batch")
        if not SCHEDULES[schedule].flushes:
            found.append("older versions of the parameters")
    found += ["keys and values on their way"] * (run.scheme is not None)
    return found + ["rows beyond the mean of all experts"] * (run.model.experts > 0 and run.capacity is None)


def follows_formula(run: Asked) -> bool:
    """Whether the bytes of all micro-batches in flight follow a formula. Without a flush there is none. If W comes
    later than B, there is one without recomputation and dropout, and if ZeRO holds no transient units."""
    schedule = SCHEDULES[run.layout.schedule]
    plain = run.recompute == "none" and not run.dropout and run.zero < 2
    return schedule.flushes and (plain or not schedule.splits)


# ---- a stage ---------------------------------------------------------------------------------------------------------


def peaks(run: Asked, rank: int) -> Peaks:
    """A rank's peaks over all moments of a step."""
    chunks = chunks_held(run, rank, flats(run, rank))
    return peaks_of(run, rank, {at: passage(run, rank, at, keeps(run, rank, at.share)) for at in chunks}, chunks)


def peaks_of(run: Asked, rank: int, passages: "dict[Chunk, Pass]", chunks: "Sequence[Chunk]") -> Peaks:
    """The same, if it is known what a micro-batch holds in each of the rank's chunks."""
    if run.staged and follows_formula(run):
        return peaks_of_stage(run, rank, chunks, passages)
    kinds, together = zip(*(one.back for one in passages.values()), strict=True)
    return Peaks(Moment(*map(max, zip(*kinds, strict=True))), max(together))


class Chunk(NamedTuple):
    """What the formulas ask about a chunk of a stage. Units in elements, padded so that the data axis divides them; 0:
    not held, or not transient."""

    share: Share
    embedding: int
    layer: int
    head: int  # all that it reads, except `both`
    both: int = 0  # elements of a tied embedding, which the head also reads, if this chunk holds it
    starts_with_layer: bool = False  # if it is recomputed as a whole, and keeps its input
    buffer: int = 0  # elements of the constant buffer for gradients: then only a tied embedding's gradient waits whole


def chunks_held(run: Asked, rank: int, of_unit: dict[int, list[Stored]]) -> list[Chunk]:
    """A rank's chunks. of_unit: what it stores of each unit."""
    head, made, [own] = run.model.layers + 1, [], parts_of(run, run.micro_batch)[rank : rank + 1]
    reads = {unit: sum(each.size for each in of) for unit, of in of_unit.items()} if run.zero >= 2 else {}
    layer = next((size for unit, size in reads.items() if 0 < unit < head), 0)
    ends_again = run.staged and run.recompute == "full"
    for part in chunks_of(run, run.stages[rank]):
        layers = len(part) - (0 in part) - (head in part)
        length = own.c if run.scheme else None
        share = Share(own.b, layers, 0 in part, head in part, ends_again=ends_again, length=length)
        tied = run.model.tied and share.head and run.zero >= 2
        both = of_unit[0][0].size if tied and share.embedding else 0  # the embedding's first Flat has the matrix
        last = (reads.get(head, 0) + (reads[0] if tied and not share.embedding else 0)) * share.head
        first, starts = reads.get(0, 0) * share.embedding, 1 <= part[0] < head
        made.append(Chunk(share, first, layer * (layers > 0), last, both, starts, constant_buffer_size(run)))
    return made


class Pass(NamedTuple):
    """A micro-batch in a chunk: the most that it holds while it is at work there, and what it holds while it waits."""

    ahead: Peaks  # in its forward, if W comes later than B; otherwise in either direction
    back: Peaks
    for_backward: Moment
    for_weights: Moment = Moment(0, 0, 0)


def peaks_of_stage(run: Asked, rank: int, chunks: Sequence[Chunk], passages: dict[Chunk, Pass]) -> Peaks:
    """The peaks of a stage: while one micro-batch passes a chunk, others are in flight."""
    at, found, passes = run.layout, list[Peaks](), [*passages.values()]
    kinds = tuple(map([*passages].index, chunks))
    targets = token_bytes(run, chunks[-1].share) * chunks[-1].share.head
    before = list(zip(*(of.for_backward for of in passes), strict=True))  # by kind
    after = list(zip(*(of.for_weights for of in passes), strict=True))
    for now in flights(at, run.stages[rank], kinds):
        others = [number - (kind == now.at_work) for kind, number in enumerate(now.counts)]
        passing, layers, ends = (
            sum(map(mul, others, one)) + sum(map(mul, now.postponed, other))
            for one, other in zip(before, after, strict=True)
        )
        at_work = passes[now.at_work].back if now.back else passes[now.at_work].ahead
        found.append(at_work.and_also(Moment(passing, layers, ends + now.lingering * targets)))
    of_kinds, together = zip(*found, strict=True)
    return Peaks(Moment(*map(max, zip(*of_kinds, strict=True))), max(together))


# ---- a micro-batch in a chunk ----------------------------------------------------------------------------------------


def passage(run: Asked, rank: int, at: Chunk, kept: Kept) -> Pass:
    """A micro-batch's pass through a chunk. kept: what the chunk's layers keep."""
    if SCHEDULES[run.layout.schedule].splits and follows_formula(run):
        return split_passage(run, rank, at.share, kept)
    either = most_of(moments(run, at, kept))
    return Pass(either, either, waiting(run, at, kept))


def split_passage(run: Asked, rank: int, share: Share, kept: Kept) -> Pass:
    """`passage` if W comes later than B: no unit is transient, and nothing is recomputed. B begins with all that the
    forward has left, and goes through the head, the layers, the embedding."""
    tokens, ends = token_bytes(run, share), sum(end_bytes(run, share))
    layers, (first, last) = layers_split(run, rank, share, kept.layer), ends_split(run, share)
    whole = Moment(0, kept.after, tokens + ends)
    back = [whole, Moment(0, layers.most, tokens + last), Moment(0, layers.waiting, tokens + first + last)]
    later = Moment(0, layers.waiting, tokens + first + last)
    return Pass(most_of([whole]), most_of(back), whole, later)


def waiting(run: Asked, at: Chunk, kept: Kept) -> Moment:
    """What a micro-batch holds after its forward, while another one is at work."""
    if at.share.ends_again:  # a stage keeps only its input, and is recomputed as a whole
        given = kept.given * (at.share.head and not at.share.layers)
        return Moment(0, kept.given * at.starts_with_layer, token_bytes(run, at.share._replace(head=False)) + given)
    return Moment(0, kept.after, sum(end_bytes(run, at.share)) + token_bytes(run, at.share))


def moments(run: Asked, at: Chunk, kept: Kept) -> list[Moment]:
    """The moments of a micro-batch at which a rank may hold most, if no other one is under way."""
    layers, p, g = at.share.layers, run.bytes.stored, run.gradient_bytes
    first, last = end_bytes(run, at.share)
    tokens, gather, bucket = token_bytes(run, at.share), p * (run.zero >= 3), g * (run.zero >= 2)
    held, most = kept.after, kept.most
    if at.share.ends_again:
        held = most = layers * kept.layer
        after = max(layers - 1, 0) * kept.layer
    else:
        inputs = chen.at_most(run.recompute, layers)
        after = max(of.inputs * kept.given + max(of.layers - 1, 0) * kept.layer for of in inputs)

    def reduced(unit: int) -> int:
        """Bytes of a unit's transient gradient."""
        return bucket * (at.both if at.buffer else unit)

    found = [Moment(gather * at.embedding + reduced(at.embedding), 0, tokens)]  # embedding, backward
    if at.share.embedding:
        found.append(Moment(gather * at.embedding, 0, tokens + first))  # forward
    if layers:  # forward; backward, before a layer's activations go, and when its gradients are there instead
        passing = at.layer + at.both
        found.append(Moment(gather * passing, held, tokens + first))
        found.append(Moment(gather * passing + bucket * at.both, most, tokens + first))
        found.append(Moment(gather * passing + reduced(passing), after, tokens + first))
    if at.share.head:
        passing = at.head + at.both
        found.append(Moment(gather * passing, held, tokens + first + last))
        found.append(Moment(gather * passing + reduced(passing), held, tokens + first))
    if not at.buffer:
        return found
    return [moment._replace(passing=moment.passing + g * at.buffer) for moment in found]
