"""A row of the plan, and the question that it puts to `formulas/`.

Those formulas are checked by every run on ranks. They ask an `Asked` where each rank stands. A plan's Asked names one
rank for each kind of stage (the first, the second, the last), so that a question about 16,384 ranks costs no more than
one about three.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

from minidist.formulas.asked import Asked
from minidist.formulas.profile import PAPER, Profile
from minidist.layout import Layout, Place
from minidist.papers.models import Model
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

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.cp * self.pp

    def micro_batches(self, batch: int) -> int:
        """m: the micro-batches in a step of this many sequences."""
        return batch // (self.dp * self.rows)

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
            parts=parts(wanted.model.layers, self.pp * self.chunks),  # in a cross, each is on two stages
            ep=self.ep,
        )


def contiguous(schedule: str, p: int, m: int) -> int:
    """The micro-batches that go through a chunk before the next chunk's turn: for Llama 3 (section 3.3.2) the fewest,
    from p on, that leave no rest of m, or a rest of p or more. 0: p, as in every other schedule."""
    return next(n for n in range(p, m + 1) if m % n == 0 or m % n >= p) if schedule == "llama3" else 0


def divides(layers: int, n: int) -> bool:
    """Whether n chunks can have equally many layers, or equally many units."""
    return layers % n == 0 or ((layers + 2) % n == 0 and n > 1)


def misfit(wanted: Wanted, at: Choice) -> str:
    """Why these axes cannot divide the model or the batch, in a line; empty if they can."""
    model, s = wanted.model, wanted.context
    if math.gcd(model.a, model.kv) % at.tp:
        return f"{at.tp} tensor ranks cannot divide {model.kv} heads"
    if wanted.sequence and s % at.tp:
        return f"{at.tp} tensor ranks cannot divide {s:,} positions"
    if not divides(model.layers, at.pp):
        return f"{at.pp} stages cannot divide {model.layers} layers"
    if wanted.batch % at.dp:
        return f"{at.dp} data ranks cannot divide {wanted.batch:,} sequences"
    if at.cp > 1 and s % (2 * at.cp * at.tp):
        return f"{at.cp} context ranks of zigzag positions need a multiple of {2 * at.cp * at.tp} positions, not {s:,}"
    if wanted.scheme == "ulysses" and model.kv // at.tp % at.cp:
        return f"{at.cp} context ranks cannot divide {model.kv // at.tp} heads, as Ulysses does"
    return ""


def parts(layers: int, n: int) -> tuple[range, ...]:
    """The units of each of n chunks: equally many layers; the first also has the embedding, and the last the head. If
    n does not divide the layers, embedding and head count as layers (Llama 3, section 3.3.2: its 126 layers make
    128 units, and the first and the last stage have a layer fewer)."""
    if layers % n == 0:
        ends = [1 + layers // n * i for i in range(n + 1)]
        ends[0], ends[-1] = 0, layers + 2
    else:
        ends = [(layers + 2) // n * i for i in range(n + 1)]
    return tuple(range(first, end) for first, end in pairwise(ends))


def ask(wanted: Wanted, choice: Choice, every_rank: bool = False) -> Asked:
    """The question about a row: about one rank of the first, the second and the last stage, or about every rank. If W
    comes later than B, also about the third stage: V-Min's stages are alike in threes."""
    near = 3 if SCHEDULES[choice.schedule].splits else 2
    stages = sorted({*range(1, min(near, choice.pp) + 1), choice.pp})
    return Asked(
        chapter="parallel3d",
        model=wanted.model,
        layout=choice.layout(wanted),
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
        only=() if every_rank else tuple(Place(0, 0, stage - 1, 0, 0) for stage in stages),
    )
