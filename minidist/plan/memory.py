"""What the fullest rank of a row holds, by kind: the formulas of `claims/needs.py`, which every run is checked by.

A pipeline's stage may have several chunks. Then the micro-batches in flight are not alike, and what they hold follows
from the order of the stage's work: `in_flight` counts chunks over the schedule's own instructions. Where W comes later
than B, some of them wait for W alone, and hold what `claims/postponed.py` says.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import mul
from typing import Any, NamedTuple, TypeVar

from minidist.claims.activations import Share, keep_after_forward, keep_at_most, layer_bytes, name_recomputation
from minidist.claims.experts import Stored
from minidist.claims.needs import (
    Moment,
    Place,
    end_bytes,
    moments_of_one,
    token_bytes,
    waiting,
)
from minidist.claims.postponed import ends_split, layers_split
from minidist.claims.run import Asked
from minidist.cp.claims import blocks_of, parts_of
from minidist.grid.shares import dividing, flats, states_in
from minidist.papers import zero
from minidist.plan.choice import Planned
from minidist.plan.orders import splits
from minidist.pp.instructions import Backward, Both, Forward, Instructions, Weight
from minidist.pp.schedules import SCHEDULES
from minidist.pp.shaped import stage_parts

T = TypeVar("T")


class Held(NamedTuple):
    """Bytes on one rank: model states, the most of each other kind, and the most at a time."""

    parameters: float
    gradients: float
    optimizer: float
    passing: float  # whole units of ZeRO-2 and 3: gathered parameters, gradients
    activations: float  # that layers keep for their backward
    ends: float  # what embedding, head and loss keep
    messages: float  # keys and values on their way
    total: float  # at a time

    @property
    def states(self) -> float:
        return self.parameters + self.gradients + self.optimizer


class Memo(dict[Any, Any]):
    """Values of formulas, by what they depend on: a search needs each of them many times."""

    def recall(self, key: Any, formula: Callable[[], T]) -> T:
        if key not in self:
            self[key] = formula()
        found: T = self[key]
        return found


def states_of(asked: Planned, memo: Memo, rank: int) -> zero.ModelStates:
    """A rank's model states."""

    def states() -> zero.ModelStates:
        of_units = units_of(asked, memo, rank)
        return states_in(asked, [each for of in of_units.values() for each in of])

    return memo.recall(("states", *of_part(asked, rank), asked.options.zero), states)


def units_of(asked: Planned, memo: Memo, rank: int) -> dict[int, list[Stored]]:
    """What a rank stores of each unit."""
    return memo.recall(("flats", *of_part(asked, rank)), partial(flats, asked, rank))


def held(asked: Planned, memo: Memo | None = None) -> list[Held]:
    """What each asked rank holds. Kinds have their peaks at different moments, so `total` is less than their sum."""
    memo = Memo() if memo is None else memo
    found, at = [], asked.layout
    m, group = at.micro_batches, at.contiguous or at.pp
    enough = m if at.schedule in KEEPS_ALL else min(m, 3 * group + m % group)
    order = (at.schedule, enough, group) if at.pp > 1 else ()
    stage = max(asked.options.zero, 1)  # of ZeRO: below 2, nothing is in passing
    for rank, place in enumerate(asked.places):
        on = (stage, place.context, *of_part(asked, rank, stage >= 2), *of_pass(asked))
        fullest = memo.recall(("fullest", *on, *order), partial(peaks, asked, memo, rank, order))
        message = memo.recall(("messages", *on), partial(messages, asked, rank))
        states = states_of(asked, memo, rank)
        kinds = states.parameters, states.gradients, states.optimizer, *fullest.of_kinds, message
        found.append(Held(*kinds, states.total + fullest.together + message))
    return found


class Peaks(NamedTuple):
    """The most bytes of each kind on a rank, and the most at a time, in addition to model states."""

    of_kinds: Moment
    together: float

    def and_also(self, more: Moment) -> "Peaks":
        """The peaks if `more` is held all the time, too."""
        kinds = (one + other for one, other in zip(self.of_kinds, more, strict=True))
        return Peaks(Moment(*kinds), self.together + sum(more))


def most_of(moments: Sequence[Moment]) -> Peaks:
    """The peaks over these moments."""
    return Peaks(Moment(*map(max, zip(*moments, strict=True))), max(map(sum, moments)))


def peaks(asked: Planned, memo: Memo, rank: int, order: tuple[Any, ...]) -> Peaks:
    """The peaks over all moments of a step. order: schedule, enough micro-batches to see all moments, and a group's."""
    one, at, stage = partial(asked.alone, rank), asked.places[rank], max(asked.options.zero, 1)
    part = asked.layout.cp, at.context, *of_part(asked, rank), stage, asked.rows
    places = memo.recall(("places", *part), lambda: chunk_places(one(), at.pipeline + 1, units_of(asked, memo, rank)))
    key = at.tensor, at.context, splits(asked.layout.schedule), *of_pass(asked)

    def pass_through(chunk: Place) -> Pass:
        return memo.recall((chunk, *key), lambda: passage(one(), memo, chunk))

    passes = [pass_through(chunk) for chunk in places]
    return peaks_of_stage(asked, at.pipeline + 1, places, passes, *order) if order else passes[0].back


def of_part(asked: Asked, rank: int, divided: bool = True) -> tuple[Any, ...]:
    """What a rank's part of the model depends on. divided: its padding, too, with which ranks can divide it."""
    at, place = asked.layout, asked.places[rank]
    among = (dividing(asked), at.ep) if divided else ()
    return at.tp, *among, at.pp, at.chunks, SCHEDULES[at.schedule].shape, place.pipeline, place.tensor


def of_pass(asked: Planned) -> tuple[Any, ...]:
    """What a micro-batch's pass through a chunk depends on, in addition to the chunk."""
    at, o = asked.layout, asked.options
    return at.tp, at.cp, at.ep, at.pp == 1, asked.rows, o.accumulate > 1, o.recompute


def messages(asked: Planned, rank: int) -> float:
    """Bytes of keys, values and their gradients on their way, on one context rank."""
    if asked.layout.cp == 1:
        return 0.0
    own = parts_of(asked.alone(rank), asked.options.batch // asked.layout.micro_batches)
    [blocks] = blocks_of(asked, own, [part.b for part in own], asked.layout.tp)
    return max(blocks)


# ---- a chunk, a stage ------------------------------------------------------------------------------------------------


class Pass(NamedTuple):
    """A micro-batch in a chunk: the most that it holds while it is at work there, and what it holds while it waits."""

    ahead: Peaks  # in its forward, if W comes later than B; otherwise in either direction
    back: Peaks
    for_backward: Moment
    for_weights: Moment


def peaks_of_stage(
    asked: Asked, stage: int, places: Sequence[Place], passes: Sequence[Pass], schedule: str, m: int, group: int
) -> Peaks:
    """The peaks of a stage: while one micro-batch passes a chunk, others are in flight."""
    found, at = list[Peaks](), asked.layout
    targets = token_bytes(asked, places[-1].share) * places[-1].share.head
    before = list(zip(*(of.for_backward for of in passes), strict=True))  # by kind
    after = list(zip(*(of.for_weights for of in passes), strict=True))
    for now in in_flight(schedule, at.pp, m, stage, at.chunks, group):
        others = [number - (kind == now.at_work) for kind, number in enumerate(now.counts)]
        passing, layers, ends = (
            sum(map(mul, others, one)) + sum(map(mul, now.postponed, other))
            for one, other in zip(before, after, strict=True)
        )
        at_work = passes[now.at_work].back if now.back else passes[now.at_work].ahead
        found.append(at_work.and_also(Moment(passing, layers, ends + now.lingering * targets)))
    kinds, together = zip(*found, strict=True)
    return Peaks(Moment(*map(max, zip(*kinds, strict=True))), max(together))


def chunk_places(asked: Planned, stage: int, of_unit: dict[int, list[Stored]]) -> list[Place]:
    """What the formulas ask about chunks of the one rank's stage: the first, one of those between (they are alike), and
    the last. of_unit: what the rank stores of each unit."""
    o, layout, head = asked.options, asked.layout, asked.options.layers + 1
    reads = {unit: sum(each.size for each in of) for unit, of in of_unit.items()}
    layer = next((size for unit, size in reads.items() if 0 < unit < head), 0)
    [own] = parts_of(asked, o.batch // layout.micro_batches)
    made = []
    parts = stage_parts(layout, stage) if layout.pp > 1 else [range(head + 1)]
    for part in parts[:2] + parts[-1:] if len(parts) > 2 else parts:
        layers = len(part) - (0 in part) - (head in part)
        share = Share(own.b, layers, 0 in part, head in part, length=own.c if layout.cp > 1 else None)
        tied = asked.model.tied and share.head
        both = of_unit[0][0].size if tied and share.embedding else 0  # the embedding's first Flat has the matrix
        last = (reads.get(head, 0) + (reads[0] if tied and not share.embedding else 0)) * share.head
        first = reads.get(0, 0) * share.embedding
        units = (first, layer * (layers > 0), last, both) if o.zero >= 2 else (0, 0, 0, 0)  # in passing
        made.append(Place(zero.ModelStates(0, 0, 0), share, *units, o.zero))
    return made


def passage(asked: Planned, memo: Memo, at: Place) -> Pass:
    """A micro-batch's pass through one chunk of the one rank that is asked about."""
    t, [place] = asked.layout.tp, asked.places
    share = at.share._replace(embedding=False, head=False, layers_again=0)  # layers do not depend on these
    kept = memo.recall(("kept", share, place.tensor, place.context, *of_pass(asked)), partial(keeps, asked, share))
    waits = waiting(asked, t, at, kept.after, kept.given)
    if splits(asked.layout.schedule):
        return split_passage(asked, at.share, kept, waits)
    either = most_of(moments_of_one(asked, t, at, kept.after, kept.most, kept.layer, kept.given))
    return Pass(either, either, waits, Moment(0, 0, 0))


def split_passage(asked: Planned, share: Share, kept: "Kept", waits: Moment) -> Pass:
    """`passage` if W comes later than B: no unit is in passing, and nothing runs again. B begins with all that the
    forward has left, and goes through the head, the layers, the embedding."""
    t, tokens = asked.layout.tp, token_bytes(asked, share)
    layers = layers_split(asked, t, 0, share, kept.layer)
    first, last = ends_split(asked, t, share)
    whole = Moment(0, kept.after, tokens + sum(end_bytes(asked, t, share)))
    back = [whole, Moment(0, layers.most, tokens + last), Moment(0, layers.waiting, tokens + first + last)]
    later = Moment(0, layers.waiting, first + last + token_bytes(asked, share))
    return Pass(most_of([whole]), most_of(back), waits, later)


class Kept(NamedTuple):
    """Bytes that layers keep: one layer's activations, or its input; all layers after a forward, and at most."""

    layer: float
    given: float
    after: float
    most: float


def keeps(asked: Planned, share: Share) -> Kept:
    """What layers keep of this share of the work, on the one rank that is asked about."""
    t, recompute = asked.layout.tp, asked.options.recompute
    [layer], [given] = (layer_bytes(asked, t, [share], what, False) for what in (name_recomputation(recompute), "full"))
    [after], [most] = keep_after_forward(asked, t, [share], False), keep_at_most(asked, t, [share], False)
    return Kept(layer, given, after, most)


class Flight(NamedTuple):
    """The micro-batches in flight on a stage when a backward begins, or, if W comes later than B, when a forward ends.
    Its chunks between the first and the last are alike."""

    counts: tuple[int, ...]  # micro-batches before B: in the first chunk, in those between, in the last one
    lingering: int  # those that have left the last chunk, but not yet all others: their targets are still there
    at_work: int  # the one of these chunks that is at work
    back: bool = True
    postponed: tuple[int, ...] = ()  # like counts: micro-batches that wait for W alone

    @property
    def held(self) -> tuple[int, ...]:
        return *self.counts, self.lingering, *self.postponed

    def exceeds(self, other: "Flight") -> bool:
        """Whether it holds at least as much of each kind as the other moment, and more of one."""
        alike = (self.at_work, self.back) == (other.at_work, other.back)
        return alike and self != other and all(more >= less for more, less in zip(self.held, other.held, strict=True))


KEEPS_ALL = ("gpipe", "breadth-first")  # others hold no more after three groups of micro-batches and a smaller one


def one_by_one(instructions: Instructions) -> Instructions:
    """The instructions as ranks run them: of a forward and a backward that overlap, the forward comes first."""
    for work in instructions:
        if isinstance(work, Both):
            yield from (work.forward, work.backward, Weight(work.backward.micro_batch, work.backward.chunk))
        else:
            yield work


@cache
def in_flight(schedule: str, p: int, m: int, stage: int, v: int = 1, group: int = 0) -> list[Flight]:
    """The fullest moments of a stage (from 1), over the schedule's own instructions: those that no other exceeds."""
    kind, found = SCHEDULES[schedule], set[Flight]()
    at = kind.places(p, m, v, contiguous=group)[stage - 1]
    counts, under_way = [0] * min(at.chunks, 3), Counter[int]()  # chunks that a micro-batch is still to leave
    postponed = [0] * len(counts) * kind.splits
    left = set[int]()  # micro-batches that have left the last chunk

    def kind_of(chunk: int) -> int:
        return 0 if chunk == 0 else len(counts) - 1 if chunk == at.chunks - 1 else 1

    for work in one_by_one(kind.instructions(at)):
        if isinstance(work, Forward):
            counts[kind_of(work.chunk)] += 1
            under_way[work.micro_batch] += 1
            if kind.splits:  # before the next B there may be a W
                found.add(Flight(tuple(counts), len(left), kind_of(work.chunk), False, tuple(postponed)))
        elif isinstance(work, Backward):
            found.add(Flight(tuple(counts), len(left), kind_of(work.chunk), True, tuple(postponed)))
            if kind.splits:
                counts[kind_of(work.chunk)] -= 1
                postponed[kind_of(work.chunk)] += 1
        elif isinstance(work, Weight):
            (postponed if kind.splits else counts)[kind_of(work.chunk)] -= 1
            under_way[work.micro_batch] -= 1
            left = {k for k in left | {work.micro_batch} if under_way[k]}
    return [one for one in found if not any(other.exceeds(one) for other in found)]
