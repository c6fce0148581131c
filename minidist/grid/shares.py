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
from minidist.cp.claims import parts_of
from minidist.papers import chen, models, zero
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
    return [
        [unit for part in stage_parts(run.layout, run.places[rank].pipeline + 1) for unit in part]
        for rank in range(run.ranks)
    ]


def shares_of(run: Asked) -> list[Share]:
    """The share of a micro-batch that each rank works on."""
    options, head = run.options, run.options.layers + 1
    parts = parts_of(run, options.batch // run.layout.micro_batches)
    ends_again = run.layout.pp > 1 and options.recompute == "full"
    return [
        Share(
            parts[rank].b,
            len({*own} - {0, head}),
            0 in own,
            head in own,
            sum(chen.runs_again(options.recompute, n) for n in blocks_of(run, stage)),
            ends_again,
            parts[rank].c if run.layout.cp > 1 else None,
        )
        for rank, (own, stage) in enumerate(zip(own_units(run), rank_stages(run), strict=True))
    ]


def blocks_of(run: Asked, stage: int) -> list[int]:
    """The number of layers in each chunk of a stage."""
    head = run.options.layers + 1
    return [len({*part} - {0, head}) for part in stage_parts(run.layout, stage)]


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
    if run.model.tied and options.layers + 1 in own and 0 not in own:
        found[0] = stored_as(*sizes[0])[:1]
    if options.experts:
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
    each = [(n, zero.model_states(of.size, of.among, run.options.zero, p, p, k)) for of, n in alike]
    return zero.ModelStates(
        *(sum(n * getattr(of, kind) for n, of in each) for kind in ("parameters", "gradients", "optimizer"))
    )


def letters(run: Asked) -> tuple[str, str]:
    """For a formula: Ψr, and Ψr divided."""
    return ("(Ψd+Ψe)", "(Ψd/G+Ψe/(G/P))") if run.options.experts else ("Ψr", "Ψr/G")


def needs(asked: Asked) -> list[Needs]:
    """What each rank will need: its part of every layer of its stage, divided by ZeRO's stage."""
    o, head = asked.options, asked.options.layers + 1
    places = []
    for rank, (share, stage) in enumerate(zip(shares_of(asked), rank_stages(asked), strict=True)):
        of_unit = flats(asked, rank)
        reads = {unit: sum(each.size for each in of) for unit, of in of_unit.items()}
        layer = next((size for unit, size in reads.items() if 0 < unit < head), 0)
        tied = asked.model.tied and share.head
        both = of_unit[0][0].size if tied and share.embedding else 0  # the embedding's first Flat has the matrix
        own = reads.get(head, 0) + (reads[0] if tied and not share.embedding else 0)
        states = states_of(asked, rank)
        embedding = reads[0] if share.embedding else 0
        flying = pipeline.most_in_flight(asked, stage) if asked.layout.pp > 1 else 1
        starts = 1 <= asked.layout.parts[stage - 1][0] <= o.layers
        places.append(Place(states, share, embedding, layer, own, both, o.zero, flying, starts))
    without = [*pipeline.list_unpredicted(asked)] if asked.layout.pp > 1 else []
    without += ["keys and values on their way"] * (asked.layout.cp > 1)
    without += ["rows beyond the mean of all experts"] * (o.experts > 0 and o.capacity is None)
    return at_places(asked, asked.layout.tp, places, without)
