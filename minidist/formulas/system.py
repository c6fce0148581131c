"""What a rank of a system such as Megatron-LM holds at the fullest moment of a step: the profile `megatron`.

While one micro-batch is at work in a chunk of a stage, others are in flight (`flights.py`), and hold what their layers
and the head keep (`system_layers.py`). The moment counts that has most: usually the head's backward on the last stage,
before any layer's activations go, and the last layer's SwiGLU on the others. All assumptions are in `profile.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter, mul
from typing import NamedTuple

from minidist.formulas import system_layers as of_layer
from minidist.formulas.asked import Asked
from minidist.formulas.flights import Flight, flights
from minidist.formulas.shares import chunks_of, flats, states_of
from minidist.papers import chen, zero
from minidist.papers.decoder import MIXTURE
from minidist.papers.megatron import padded_vocabulary
from minidist.papers.models import Model

MIB = 2**20
PRODUCTS = 32 * MIB  # a workspace of Transformer Engine for matrix products; experts have one on each of four streams
STREAMS = 4
LOGITS = 16.25 * MIB  # of PyTorch, where the head's matrix product is; inferred from two rows (README)
PAD = 128  # vocabularies are a multiple of this, times the tensor ranks


# ---- what is there all the time --------------------------------------------------------------------------------------


class Fixed(NamedTuple):
    """Bytes that a rank holds during the whole step."""

    parameters: float
    gradients: float
    optimizer: float
    stand_ins: float
    workspaces: float


def fixed(run: Asked, rank: int, of: zero.ModelStates) -> Fixed:
    """Model states, which are given, stand-ins and workspaces of a rank."""
    return Fixed(of.parameters, of.gradients, of.optimizer, stand_ins(run, rank), workspaces(run, rank))


def states(run: Asked, rank: int) -> zero.ModelStates:
    """Model states."""
    return states_of(padded(run), rank)


def padded(run: Asked) -> Asked:
    """The same run, with the entries of the vocabulary that never occur."""
    return replace(run, model=with_vocabulary(run.model, columns(run) * run.layout.tp))


@cache
def with_vocabulary(model: Model, v: int) -> Model:
    """The same model with v entries of its vocabulary."""
    return replace(model, v=v, other=model.other and replace(model.other, v=v))


def columns(run: Asked) -> int:
    """Entries of the vocabulary on a rank: with one more, the end of a document, and up to a multiple."""
    v, t = run.model.v, run.layout.tp
    return (padded_vocabulary(v + 1, PAD * t) if run.profile.vocabulary == "padded" else padded_vocabulary(v, t)) // t


def stand_ins(run: Asked, rank: int) -> float:
    """A gradient of a matrix is added to the buffer of gradients by the matrix product itself. What autograd gets
    instead is a tensor that nobody reads: one for each shape of matrix on the rank, kept for ever. (With ZeRO-2 and 3
    there is no such buffer.)"""
    if run.profile.stand_ins == "none" or run.zero >= 2:
        return 0.0
    of, chunks = run.model.decoder, parts(run, rank)
    kinds = {kind for part in chunks for kind in part.kinds}
    shapes = {weight.shape for kind in kinds for weight in of.matrices(kind, run.layout.tp).values()}
    shapes |= {(columns(run), of.h) for part in chunks if part.head}
    return run.bytes.stored * float(sum(rows * width for rows, width in shapes))


def workspaces(run: Asked, rank: int) -> float:
    """Room for libraries of matrix products, and the table by which positions rotate queries and keys."""
    if run.profile.workspaces == "none":
        return 0.0
    of, chunks = run.model.decoder, parts(run, rank)
    streams = STREAMS * any(MIXTURE in part.kinds for part in chunks)
    room = PRODUCTS * (1 + streams) + LOGITS * any(part.head for part in chunks)
    rotated = of.latent.rope if of.latent else of.d
    return room + (0 if of.learned else of_layer.FULL_PRECISION * run.context / run.layout.cp * rotated)


# ---- a chunk of a stage ----------------------------------------------------------------------------------------------


class StageChunk(NamedTuple):
    """A chunk of a stage: the kinds of its layers, and whether it has an end of the model."""

    kinds: tuple[str, ...]
    embedding: bool
    head: bool


def parts(run: Asked, rank: int) -> list[StageChunk]:
    """A rank's chunks."""
    kinds, last = run.model.decoder.kinds, run.model.layers + 1
    return [
        StageChunk(tuple(kinds[unit - 1] for unit in units if 0 < unit < last), 0 in units, last in units)
        for units in chunks_of(run, run.places[rank].pipeline + 1)
    ]


class Load(NamedTuple):
    """Bytes at a moment, in addition to what is there all the time."""

    passing: float = 0.0  # of ZeRO-2 and 3: gathered units, their gradients
    activations: float = 0.0  # that layers keep for their backward
    ends: float = 0.0  # that the head keeps
    transient: float = 0.0  # what a backward allocates, minus what it has released

    def plus(self, others: "Iterable[tuple[int, Load]]") -> "Load":
        """This, and each of others a number of times."""
        counts, loads = zip(*others, strict=True)
        return Load(*(own + sum(map(mul, counts, each)) for own, *each in zip(self, *loads, strict=True)))


class Pass(NamedTuple):
    """A micro-batch in a chunk: what it holds while it waits, and at the moments of its way back, by their names."""

    waiting: Load
    moments: Mapping[str, Load]


class LayerLoad(NamedTuple):
    """Bytes of a micro-batch in a layer: what it keeps, and by moment, what its backward allocates, minus what that has
    released."""

    kept: float
    moments: Mapping[str, float]


def layer(run: Asked, kind: str) -> LayerLoad:
    """A micro-batch in a layer of this kind."""
    kept = sum(of_layer.attention(run).values()) + sum(of_layer.mlp(run, kind).values())
    return LayerLoad(kept, of_layer.in_layer(run, kind))


class Units(NamedTuple):
    """Bytes of the units that pass through a rank."""

    embedding: float = 0.0
    layer: float = 0.0
    head: float = 0.0


def passage(run: Asked, part: StageChunk, layers: Mapping[str, LayerLoad], units: tuple[Units, Units]) -> Pass:
    """A micro-batch's pass through a chunk. layers: by their kinds; units: that pass through the rank."""
    counted, x = run.profile.transient == "counted", of_layer.residual(run)
    kept, most = by_layers(run, [layers[kind].kept for kind in part.kinds])
    ends = sum(of_layer.head(run, columns(run)).values()) * part.head
    gather, reduce = units
    still = x * (run.profile.sent_gradient == "held" and not part.embedding)
    moments = {"forward": Load(gather.layer, kept, ends)}
    if part.head:
        here = of_layer.in_head(run) * counted
        moments["head"] = Load(gather.head + reduce.head, kept, ends, here + still)
    if part.kinds:
        for name, here in layers[part.kinds[-1]].moments.items():
            moments[name] = Load(gather.layer + reduce.layer, most, 0, here * counted + still)
    if part.embedding:  # the table's gradient is whole, when all layers of this micro-batch are gone
        here = (run.bytes.stored * columns(run) * run.model.h + x) * counted
        moments["embedding"] = Load(gather.embedding + reduce.embedding, 0, 0, here)
    return Pass(Load(0, kept, ends), moments)


def by_layers(run: Asked, layers: list[float]) -> tuple[float, float]:
    """Bytes that a chunk's layers keep after their forward, and when the last of them has been recomputed."""
    if run.recompute in ("none", "selective"):
        return sum(layers), sum(layers)
    number, given, largest = len(layers), of_layer.residual(run), max(layers, default=0.0)
    after = chen.after_forward(run.recompute, number)
    return after.inputs * given + after.layers * largest, chen.peak_bytes(run.recompute, number, given, largest)


def passing(run: Asked, rank: int) -> tuple[Units, Units]:
    """ZeRO-3 gathers a unit's parameters, ZeRO-2 and 3 hold its whole gradient until it is summed."""
    if run.zero < 2:
        return Units(), Units()
    of, last = flats(padded(run), rank), run.model.layers + 1
    sizes = {unit: sum(stored.size for stored in held) for unit, held in of.items()}
    largest = max((size for unit, size in sizes.items() if 0 < unit < last), default=0)
    units = sizes.get(0, 0), largest, sizes.get(last, 0) + sizes.get(0, 0) * run.model.tied
    gather, reduce = (Units(*(each * size for size in units)) for each in (run.bytes.stored, run.gradient_bytes))
    return (gather if run.zero >= 3 else Units()), reduce


# ---- the fullest moment ----------------------------------------------------------------------------------------------


def fullest(
    run: Asked, rank: int, chunks: Sequence[StageChunk], passages: Mapping[StageChunk, Pass]
) -> tuple[str, Load]:
    """The fullest moment of a rank, and what it holds then. passages: of its chunks."""
    passes = [*passages.values()]
    waiting, sums = [each.waiting for each in passes], [sum(each.waiting) for each in passes]
    kinds = tuple(map([*passages].index, chunks))
    one = [Flight((1,), 0, 0)]  # without a pipeline, one micro-batch
    found = list[tuple[float, str, Load, list[int]]]()
    for now in flights(run.layout, run.stages[rank], kinds) if run.layout.pp > 1 else one:
        at_work = passes[now.at_work]
        others = [number - (kind == now.at_work) for kind, number in enumerate(now.counts)]
        if now.postponed:  # those that wait for W keep the inputs of matrices and the gradients of their results
            others = [one + other for one, other in zip(others, now.postponed, strict=True)]
        rest = sum(map(mul, others, sums))
        moments = at_work.moments if now.back else {"forward": at_work.moments["forward"]}
        found += [(sum(load) + rest, name, load, others) for name, load in moments.items()]
    _, name, load, others = max(found, key=itemgetter(0))
    load = load.plus(zip(others, waiting, strict=True))
    buffer = of_layer.whole_residual(run) * of_layer.gathers(run) * (run.profile.transient == "counted")
    if any(part.head for part in chunks):  # the head's gathered input stays in Megatron's buffer
        load = load._replace(transient=load.transient + buffer)
    return name, load
