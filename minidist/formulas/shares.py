"""Which rank has what, by formula: units, Flats, model states, and its share of a micro-batch."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from minidist.formulas import experts
from minidist.formulas.asked import Asked
from minidist.formulas.experts import Stored
from minidist.papers import chen, context, models, pipelines, zero
from minidist.papers.collectives import chunk_sizes
from minidist.papers.decoder import MIXTURE

# ---- units -----------------------------------------------------------------------------------------------------------


def chunks_of(run: Asked, stage: int) -> list[range]:
    """The units of each chunk of a stage, from 1, as the papers lay them out: the embedding is 0, the layers follow,
    the head is the last. Without a pipeline, there is one chunk, with all units."""
    pipe = run.layout
    if not pipe.parts:
        return [range(run.model.layers + 2)]
    return [pipe.parts[part] for part in pipelines.parts_of(pipe.schedule, pipe.pp, stage, pipe.chunks)]


def own_units(run: Asked, rank: int) -> list[int]:
    """The units of a rank's stage."""
    return [unit for chunk in chunks_of(run, run.places[rank].pipeline + 1) for unit in chunk]


def blocks_of(run: Asked, stage: int) -> list[int]:
    """The number of layers in each chunk of a stage."""
    return [len({*chunk} - {0, run.model.layers + 1}) for chunk in chunks_of(run, stage)]


# ---- the share of a micro-batch --------------------------------------------------------------------------------------


class Share(NamedTuple):
    """A rank's share of the work on a micro-batch."""

    b: int  # sequences
    layers: int
    embedding: bool = True
    head: bool = True
    layers_again: int = 0  # forwards of layers that run once more before the backward
    ends_again: bool = False  # whether embedding and head run once more, too
    length: int | None = None  # positions of each sequence, if ranks divide the sequences

    def tokens(self, context: int) -> int:
        """The tokens of the share, if a whole sequence has `context` of them."""
        return self.b * (self.length or context)


class Part(NamedTuple):
    """A rank's part of a micro-batch."""

    b: int  # sequences
    of: Sequence[int]  # the number of positions of each rank of its group
    rank: int  # in this group
    heads: list[int]  # with Ulysses, the key/value heads of each rank in between

    @property
    def c(self) -> int:
        """The number of its positions."""
        return self.of[self.rank]


def parts_of(run: Asked, sequences: int) -> list[Part]:
    """Each rank's part of this number of sequences."""
    n, rows = run.layout.cp, chunk_sizes(sequences, run.layout.dp)
    sizes = context.sizes(run.context, n, run.positions) if n > 1 else [run.context]
    heads = chunk_sizes(run.model.kv // run.layout.tp, n)
    return [
        Part(rows[share], sizes, place.context, heads) for share, place in zip(run.data_shares, run.places, strict=True)
    ]


def shares_of(run: Asked) -> list[Share]:
    """The share of a micro-batch that each rank works on."""
    head, found = run.model.layers + 1, []
    ends_again = run.staged and run.recompute == "full"
    for part, stage in zip(parts_of(run, run.micro_batch), run.stages, strict=True):
        chunks = chunks_of(run, stage)
        own = {unit for chunk in chunks for unit in chunk}
        again = sum(chen.runs_again(run.recompute, len({*chunk} - {0, head})) for chunk in chunks)
        length = part.c if run.scheme else None
        found.append(Share(part.b, len(own - {0, head}), 0 in own, head in own, again, ends_again, length))
    return found


def count_forwards(run: Asked, shares: Sequence[Share]) -> list[tuple[int, int]]:
    """For each rank, the forwards of its mixtures in a step, and how many of these run a layer again."""
    return [(run.passes * (of.layers + of.layers_again), run.passes * of.layers_again) for of in shares]


# ---- what is stored --------------------------------------------------------------------------------------------------


def flats(run: Asked, rank: int) -> dict[int, list[Stored]]:
    """For each unit, what a rank stores separately: the whole unit, or, if it is cut, the rank's part of what is cut
    and what is left whole; and its experts. If another stage's head reads the embedding's matrix, that stage stores the
    part of the embedding with the matrix."""
    own, g, head = own_units(run, rank), run.dividing, run.model.layers + 1
    sizes = run.model.without_experts(run.layout.tp)[run.places[rank].tensor]

    @cache  # layers are alike
    def stored_as(cut: int, whole: int) -> list[Stored]:
        return [Stored(models.padded(size, g), g) for size in ((cut, whole) if run.layout.tp > 1 else (cut + whole,))]

    found = {unit: stored_as(*sizes[unit]) for unit in own}
    if run.model.apart:  # what persists (DeepSpeed) is padded apart from the rest of its unit
        found = {unit: [Stored(run.model.units(g)[unit], g)] for unit in own}
    if run.model.tied and head in own and 0 not in own:
        found[0] = stored_as(*sizes[0])[:1]
    if run.model.experts:
        routed, kinds = experts.stored(run)[rank], ["", *run.model.decoder.kinds, ""]
        found |= {unit: [*of, routed] for unit, of in found.items() if kinds[unit] == MIXTURE}
    return found


def stored(run: Asked, rank: int) -> list[Stored]:
    """All that a rank stores."""
    return [each for of in flats(run, rank).values() for each in of]


def stored_parameters(run: Asked) -> list[int]:
    """Ψr: for each rank, the sum of what it stores."""
    return [sum(of.size for of in stored(run, rank)) for rank in range(run.ranks)]


def states_of(run: Asked, rank: int) -> zero.ModelStates:
    """Bytes of a rank's model states."""
    return states_in(run, stored(run, rank))


def states_in(run: Asked, held: Sequence[Stored]) -> zero.ModelStates:
    """Bytes of model states of what is stored: G ranks divide it, or the ranks with the same experts."""
    p, g, k = run.bytes.stored, run.gradient_bytes, run.optimizer_bytes
    alike = Counter(held).items()  # layers are alike
    each = [(n, zero.model_states(of.size, of.among, run.zero, p, g, k)) for of, n in alike]
    return zero.ModelStates(
        *(sum(n * getattr(of, kind) for n, of in each) for kind in ("parameters", "gradients", "optimizer"))
    )
