"""Which rank of a grid has what, by formula: units, Flats, model states, its share of a micro-batch; and what its
device will need."""

from collections import Counter
from collections.abc import Sequence
from functools import cache

from minidist.claims import experts
from minidist.claims.activations import Share
from minidist.claims.experts import Stored
from minidist.claims.needs import Needs, Place, at_places
from minidist.claims.run import Asked
from minidist.claims.zero import constant_buffer_size
from minidist.cp.claims import parts_of
from minidist.papers import chen, models, pipelines, zero
from minidist.pp import needs as pipeline
from minidist.pp.shaped import stage_parts


def dividing(run: Asked) -> int:
    """G: the number of ranks that divide model states. Ranks that divide the sequences do, too."""
    return run.layout.shard * run.layout.cp


def rank_stages(run: Asked) -> list[int]:
    """Each rank's stage, from 1."""
    return [place.pipeline + 1 for place in run.places]


def own_units(run: Asked) -> list[list[int]]:
    """The units of each rank's stage, by number: the embedding is 0, the layers follow, the head is the last."""
    return [[unit for chunk in chunks_of(run, stage) for unit in chunk] for stage in rank_stages(run)]


def chunks_of(run: Asked, stage: int) -> list[range]:
    """The units of each chunk of a stage, from 1. Without a pipeline, there is one, with all units."""
    return stage_parts(run.layout, stage) if run.layout.parts else [range(run.options.layers + 2)]


def shares_of(run: Asked, through: bool = False) -> list[Share]:
    """The share of a micro-batch that each rank works on. through: in a cross, of the chunk that it goes through, not
    of both that the rank has."""
    options, head, found = run.options, run.options.layers + 1, []
    ends_again = run.staged and options.recompute == "full"
    for part, stage in zip(parts_of(run, options.batch // options.accumulate), rank_stages(run), strict=True):
        chunks = chunks_of(run, stage)
        if through and run.layout.schedule in pipelines.CROSSED and run.staged:
            chunks = chunks[:1]
        own = {unit for chunk in chunks for unit in chunk}
        again = sum(chen.runs_again(options.recompute, len({*chunk} - {0, head})) for chunk in chunks)
        length = part.c if run.scheme else None
        found.append(Share(part.b, len(own - {0, head}), 0 in own, head in own, again, ends_again, length))
    return found


def blocks_of(run: Asked, stage: int) -> list[int]:
    """The number of layers in each chunk of a stage."""
    return [len({*chunk} - {0, run.options.layers + 1}) for chunk in chunks_of(run, stage)]


def flats(run: Asked, rank: int) -> dict[int, list[Stored]]:
    """For each unit, what a rank stores separately: the whole unit, or, if it is cut, the rank's part of what is cut
    and what is left whole; and its experts. If another stage's head reads the embedding's matrix, that stage stores the
    part of the embedding with the matrix."""
    options, own, g = run.options, own_units(run)[rank], dividing(run)
    sizes = run.model.without_experts(run.layout.tp)[run.places[rank].tensor]

    @cache  # layers are alike
    def stored_as(cut: int, whole: int) -> list[Stored]:
        return [Stored(models.padded(size, g), g) for size in ((cut, whole) if run.layout.tp > 1 else (cut + whole,))]

    found = {unit: stored_as(*sizes[unit]) for unit in own}
    if run.model.apart:  # what persists (DeepSpeed) is padded apart from the rest of its unit
        found = {unit: [Stored(run.model.units(g)[unit], g)] for unit in own}
    if run.model.tied and options.layers + 1 in own and 0 not in own:
        found[0] = stored_as(*sizes[0])[:1]
    if run.model.experts:
        routed = experts.stored(run)[rank]
        found |= {unit: [*of, routed] for unit, of in found.items() if 1 <= unit <= options.layers}
    return found


def stored(run: Asked, rank: int) -> list[Stored]:
    """All that a rank stores."""
    return [each for of in flats(run, rank).values() for each in of]


def states_of(run: Asked, rank: int) -> zero.ModelStates:
    """Bytes of a rank's model states."""
    return states_in(run, stored(run, rank))


def states_in(run: Asked, held: Sequence[Stored]) -> zero.ModelStates:
    """Bytes of model states of what is stored: G ranks divide it, or the ranks with the same experts."""
    p, k = run.bytes.stored, run.optimizer_bytes
    alike = Counter(held).items()  # layers are alike
    each = [(n, zero.model_states(of.size, of.among, run.zero, p, p, k)) for of, n in alike]
    return zero.ModelStates(
        *(sum(n * getattr(of, kind) for n, of in each) for kind in ("parameters", "gradients", "optimizer"))
    )


def letters(run: Asked) -> tuple[str, str]:
    """For a formula: Ψr, and Ψr divided."""
    return ("(Ψd+Ψe)", "(Ψd/G+Ψe/(G/P))") if run.options.experts else ("Ψr", "Ψr/G")


def needs(asked: Asked) -> list[Needs]:
    """What each rank will need: its part of every layer of its stage, divided by ZeRO's stage. A chapter has one of the
    axes; the others have one rank."""
    o, head = asked.options, asked.options.layers + 1
    places = []
    for rank, share in enumerate(shares_of(asked, through=True)):
        of_unit, stage = flats(asked, rank), rank_stages(asked)[rank]
        reads = {unit: sum(each.size for each in of) for unit, of in of_unit.items()}
        layer = next((size for unit, size in reads.items() if 0 < unit < head), 0)
        tied = asked.model.tied and share.head
        both = of_unit[0][0].size if tied and share.embedding else 0  # the embedding's first Flat has the matrix
        places.append(
            Place(
                states_of(asked, rank),
                share,
                embedding=reads[0] if share.embedding else 0,
                layer=layer,
                head=reads.get(head, 0) + (reads[0] if tied and not share.embedding else 0),
                both=both,
                stage=asked.zero,
                in_flight=pipeline.most_in_flight(asked, stage) if asked.staged else 1,
                starts_with_layer=1 <= chunks_of(asked, stage)[0][0] <= o.layers,  # in every shape, chunk 0's
                buffer=constant_buffer_size(asked),
            )
        )
    without = [*pipeline.list_unpredicted(asked)] if asked.staged else []
    without += ["keys and values on their way"] * (asked.scheme is not None)
    without += ["rows beyond the mean of all experts"] * (asked.model.experts > 0 and o.capacity is None)
    return at_places(asked, asked.layout.tp, places, without)
