"""A row of the plan, and the question that it puts to `formulas/`.

Those formulas are checked by every run on ranks. They ask an `Asked` where each rank stands. A plan's Asked names one
rank for each kind of stage, so that a question about 16,384 ranks costs no more than one about three.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cache

from minidist.formulas.asked import Asked
from minidist.formulas.profile import PAPER, Profile
from minidist.layout import Layout, Place
from minidist.papers import pipelines
from minidist.papers.models import Model
from minidist.pp.options import parts
from minidist.pp.schedules import SCHEDULES


@dataclass(frozen=True)
class Wanted:
    """What to train, and in which batches."""

    name: str
    model: Model
    batch: int  # sequences in a step
    context: int  # s
    precision: str = "bf16"
    sequence: bool = True  # tensor-parallel ranks cut by positions what they do not cut by heads (Korthikanti, §4.2.2)
    scheme: str = "ring"  # how queries meet the keys of other context ranks
    capacity: float = 1.0  # room of an expert, times the mean of rows: then bytes do not depend on where tokens go
    profile: Profile = PAPER  # what the system holds

    @property
    def tokens(self) -> int:
        """The tokens of a step."""
        return self.batch * self.context


@dataclass(frozen=True)
class Choice:
    """A row: how ranks are arranged, and what they keep."""

    dp: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1  # the number of ranks, of dp·cp, that divide the experts
    schedule: str = "1f1b"
    chunks: int = 1  # v: chunks of each stage
    zero: int = 1  # ZeRO's stage
    hosts: int = 1  # copies of the model states among the dp ranks, with stage 3 (hybrid sharding)
    recompute: str = "none"
    rows: int = 1  # b: sequences of a rank in a micro-batch
    first: int | None = None  # layers of the model's first chunk, and of its last; None: as `parts` says
    last: int | None = None

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.cp * self.pp

    @property
    def axes(self) -> tuple[int, ...]:
        return self.dp, self.tp, self.cp, self.pp, self.ep

    def micro_batches(self, batch: int) -> int:
        """m: the micro-batches in a step of this many sequences."""
        return batch // (self.dp * self.rows)

    def parts(self, layers: int) -> tuple[range, ...]:
        """The units of each chunk. In a cross, each is on two stages."""
        return parts(layers, self.pp * self.chunks, self.first, self.last)

    def layout(self, wanted: Wanted) -> Layout:
        """The layout of the ranks, with the units of each chunk."""
        return Layout(
            dp=self.dp,
            pp=self.pp,
            cp=self.cp,
            tp=self.tp,
            hosts=self.hosts,
            schedule=self.schedule,
            micro_batches=self.micro_batches(wanted.batch),
            chunks=self.chunks,
            contiguous=contiguous(self.schedule, self.pp, self.micro_batches(wanted.batch)),
            parts=self.parts(wanted.model.layers),
            ep=self.ep,
        )


def contiguous(schedule: str, p: int, m: int) -> int:
    """The micro-batches that go through a chunk before the next chunk's turn: for Llama 3 (section 3.3.2) the fewest,
    from p on, that leave no rest of m, or a rest of p or more. 0: p, as in every other schedule."""
    return next(n for n in range(p, m + 1) if m % n == 0 or m % n >= p) if schedule == "llama3" else 0


def divides(layers: int, n: int) -> bool:
    """Whether n chunks have equally many layers, or equally many units."""
    return layers % n == 0 or (layers + 2) % n == 0


def misfit(wanted: Wanted, at: Choice) -> str:
    """Why these axes cannot divide the model or the batch, in a line; empty if they can."""
    model, s = wanted.model, wanted.context
    if math.gcd(model.a, model.kv) % at.tp:
        return f"{at.tp} tensor ranks cannot divide {model.kv} heads"
    if wanted.sequence and s % at.tp:
        return f"{at.tp} tensor ranks cannot divide {s:,} positions"
    if at.pp > model.layers and not divides(model.layers, at.pp):
        return f"{at.pp} stages are too many for {model.layers} layers"
    if wanted.batch % at.dp:
        return f"{at.dp} data ranks cannot divide {wanted.batch:,} sequences"
    if at.cp > 1 and s % (2 * at.cp * at.tp):
        return f"{at.cp} context ranks of zigzag positions need a multiple of {2 * at.cp * at.tp} positions, not {s:,}"
    if wanted.scheme == "ulysses" and model.kv // at.tp % at.cp:
        return f"{at.cp} context ranks cannot divide {model.kv // at.tp} heads, as Ulysses does"
    return ""


@cache
def stages_to_ask(schedule: str, pp: int, parts: tuple[range, ...]) -> tuple[int, ...]:
    """Stages, from 1, one of them the fullest: the first of each kind, because it has most micro-batches in flight;
    if W comes later than B, the first two (V-Min's stages are alike in threes); and the last."""
    kinds, near = defaultdict[object, list[int]](list), 2 if SCHEDULES[schedule].splits else 1
    chunks = len(parts) // pp
    for stage in range(1, pp + 1):
        of = [parts[part] for part in pipelines.parts_of(schedule, pp, stage, chunks)]
        kinds[tuple((len(units), units[0] == 0, units[-1] == parts[-1][-1]) for units in of)].append(stage)
    return tuple(sorted({pp, *(stage for stages in kinds.values() for stage in stages[:near])}))


def ask(wanted: Wanted, choice: Choice, every_rank: bool = False) -> Asked:
    """The question about a row: about one rank of each of `stages_to_ask`, or about every rank."""
    layout = choice.layout(wanted)
    stages = () if every_rank else stages_to_ask(layout.schedule, layout.pp, layout.parts)
    return Asked(
        chapter="parallel3d",
        model=wanted.model,
        layout=layout,
        context=wanted.context,
        batch=wanted.batch,
        accumulate=choice.micro_batches(wanted.batch),
        precision=wanted.precision,
        grad_dtype=wanted.profile.grad_dtype,
        tiled=wanted.profile.attention == "tiled",
        profile=wanted.profile,
        recompute=choice.recompute,
        zero=choice.zero,
        sequence_parallel=wanted.sequence and choice.tp > 1,
        attention=wanted.scheme,
        capacity=wanted.capacity,
        only=tuple(Place(0, 0, stage - 1, 0, 0) for stage in stages),
    )
