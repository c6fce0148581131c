"""What each rank sends in a step, by formula, axis by axis. A plan asks the same formulas, without NumPy."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from minidist.formulas import experts
from minidist.formulas.asked import Asked
from minidist.formulas.context import SOURCES, context_elements
from minidist.formulas.experts import Stored
from minidist.formulas.shares import Share, blocks_of, chunks_of, count_forwards, flats, own_units, parts_of, stored
from minidist.formulas.tensor import SHARD_GRADIENTS, TENSOR_NORM, Volume, elements
from minidist.papers import chen, models, pipelines, zero
from minidist.papers.collectives import ring_all_reduce
from minidist.pp.instructions import ACTIVATION, GRADIENT

# ---- within layers, and from stage to stage --------------------------------------------------------------------------


def context_volumes(run: Asked, shares: Sequence[Share]) -> list[Volume]:
    """Keys, values and their gradients, or heads in exchange for positions, of each rank's layers."""
    if run.scheme is None:
        return []
    parts, volumes = parts_of(run, run.micro_batch), []
    for phase, (formula, of_ranks) in context_elements(run, parts).items():
        times = [share.layers + share.layers_again * phase.endswith("forward") for share in shares]
        sent = [int(n * of_layer) for n, of_layer in zip(times, of_ranks, strict=True)]
        letter = "(l+r)" if times[0] > shares[0].layers else "l"
        source = SOURCES[run.attention]
        volumes.append(Volume(source, phase, f"{letter}b·{formula}", [phase], sent, run.passes, run.bytes.stored))
    return volumes


def expert_volumes(run: Asked, shares: Sequence[Share]) -> list[Volume]:
    """Tokens on their way to experts and back, among the ranks that divide these; and numbers for each expert."""
    if not run.model.experts:
        return []
    forwards = count_forwards(run, shares)
    rows, formula = experts.rows(run, forwards)
    counts, chosen = ([n // 8 for n in of_ranks] for of_ranks in experts.numbers_sent(run, forwards))
    elements = [size * run.model.h for size in rows]
    return [
        Volume("GShard §3", "dispatch, combine", formula, [*experts.TOKENS], elements, 1, run.bytes.stored),
        Volume("MegaBlocks", "counts of rows", "E(P-1)/P a layer", ["counts"], counts, 1, 8),
        Volume("Switch eq. 5", "shares of choices", "2E(W-1)/W likewise", ["balance"], chosen, 1, 8),
    ]


def message_volumes(run: Asked, shares: Sequence[Share]) -> list[Volume]:
    """What each rank is to send from stage to stage."""
    pipe = run.layout
    sizes = pipe.schedule, pipe.pp, pipe.micro_batches
    each = [pipelines.count_messages(*sizes, stage, pipe.chunks) for stage in run.stages]
    made = []
    for kind, messages in zip((ACTIVATION, GRADIENT), zip(*each, strict=True), strict=True):
        sent = [number * size for number, size in zip(messages, crossing(run, shares), strict=True)]
        made.append(Volume("PTD §2.2", kind, "", [kind], sent, 1, run.bytes.stored))
    return made


def crossing(run: Asked, shares: Sequence[Share]) -> list[int]:
    """Elements of a rank's part of what crosses a boundary between stages for a micro-batch."""
    apart = run.layout.tp if run.sequence_parallel else 1
    return [size // apart for size in elements(run, shares)]


# ---- gradients and parameters ----------------------------------------------------------------------------------------


def tied_volumes(run: Asked) -> list[Volume]:
    """What the first and the last stage send to sum the gradients of an embedding that both hold; or, in a cross, what
    any two ranks that hold the same stages send to sum all gradients."""
    if run.layout.pp > 1 and run.layout.schedule in pipelines.CROSSED:
        whole = [[of.shard if run.zero else of.size for of in stored(run, rank)] for rank in range(run.ranks)]
        second = [stage > run.layout.pp // 2 for stage in run.stages]
        copied = [sum(ring_all_reduce(n, 2).sent[i] for n in sizes) for sizes, i in zip(whole, second, strict=True)]
        formula = "Ψr/G" if run.zero else "Ψr"
        return [Volume("Chimera", "two copies", formula, ["shared gradients"], copied, 1, run.gradient_bytes)]
    if run.layout.pp == 1 or not run.model.tied or run.layout.schedule in pipelines.FOLDED:
        return []
    sent = []
    for rank, stage in enumerate(run.stages):
        first, *_ = flats(run, rank).get(0, [Stored(0, 1)])  # the embedding's first Flat has the matrix
        both = ring_all_reduce(first.shard if run.zero else first.size, 2).sent
        sent.append(both[0] if stage == 1 else both[1] if stage == run.layout.pp else 0)
    formula = "ψ_emb/G" if run.zero else "ψ_emb"
    return [Volume("PTD §3", "tied embedding", formula, ["shared gradients"], sent, 1, run.gradient_bytes)]


def every_flat(of: Stored) -> bool:
    return True


def data_elements(run: Asked, rank: int, counts: Callable[[Stored], bool] = every_flat) -> dict[str, float]:
    """Elements that a rank sends along the data axis in a step, by phase, for its part of the model: ZeRO's volume, for
    the Flats that as many ranks divide. counts: whether a Flat counts."""
    of_head = [*[0] * run.model.tied, run.model.layers + 1]  # the units that it reads
    kept = [of for unit in of_head * run.keep_last for of in flats(run, rank)[unit]]
    once, again, twice, not_again = (
        among(filter(counts, of)) for of in (stored(run, rank), regathered(run, rank), read_twice(run, rank), kept)
    )
    found: dict[str, float] = {}
    for n, psi in once.items():
        persistent = run.model.persistent(n) if run.model.apart else 0
        of_phases = zero.volume(psi, n, run.zero, run.passes, not_again[n], again[n], persistent)
        for phase, size in of_phases.items():
            more = twice[n] if phase in ("all-gather forward", "all-gather backward") else 0
            found[phase] = found.get(phase, 0) + size + run.passes * more * (n - 1) / n
    return found


def among(flats: Iterable[Stored]) -> Counter[int]:
    """Elements of these Flats by the number of ranks that divide them."""
    found = Counter[int]()
    for of in flats:
        found[of.among] += of.size
    return found


def read_twice(run: Asked, rank: int) -> list[Stored]:
    """What two chunks of a rank read, each in its own pass: a tied embedding, if a folded or crossed pipeline has both
    ends of the model on the rank."""
    both = run.layout.pp > 1 and run.model.tied and {0, run.model.layers + 1} <= {*own_units(run, rank)}
    return [flats(run, rank)[0][0]] if both else []


def regathered(run: Asked, rank: int) -> list[Stored]:
    """What is gathered for recomputation. Of layers that are recomputed together, the last is left out: it is
    gathered for its backward, which follows at once. With full recomputation, a pipeline's chunk is recomputed as a
    whole."""
    of_unit, stage = flats(run, rank), run.stages[rank]
    if run.recompute == "full" and run.layout.pp > 1:
        return [of for part in chunks_of(run, stage) for unit in part[:-1] for of in of_unit[unit]]
    layer = next((of for unit, of in of_unit.items() if 1 <= unit <= run.model.layers), [])
    divided = [Stored(run.model.divided(run.dividing)[1], run.dividing)] if run.model.apart else layer
    return divided * sum(chen.count_regathered_layers(run.recompute, n) for n in blocks_of(run, stage))


def data_volumes(run: Asked, counts: Callable[[Stored], bool] = every_flat) -> list[Volume]:
    """What each rank sends along the data axis. All micro-batches of a step send the same."""
    a, every = run.passes, [data_elements(run, rank, counts) for rank in range(run.ranks)]

    def volume(name: str, formula: str, phases: list[str], times: int = 1, source: str = "ZeRO §7") -> Volume:
        sent = [round(sum(of.get(phase, 0) for phase in phases) / times) for of in every]
        return Volume(source, name, formula, phases, sent, times, run.width(name))

    once = "(Ψd(G-1)/G+Ψe(G-P)/G)" if run.model.experts else "Ψr(G-1)/G"
    if run.zero == 0:
        return [volume("sum gradients", f"2{once}", ["all-reduce gradients"])]
    scatter = volume("sum gradients", once, ["reduce-scatter gradients"], a if run.zero >= 2 else 1)
    if run.zero < 3:
        return [scatter, volume("get parameters", once, ["all-gather parameters"])]
    twice = any(read_twice(run, rank) for rank in range(run.ranks))
    gathers = ["all-gather forward", "all-gather backward"]
    found = [volume("get parameters", "2(Ψr+ψ_emb)(G-1)/G" if twice else f"2{once}", gathers, a), scatter]
    if any(of.get("all-gather again") for of in every):
        formula = "(Ψr-ψl)(G-1)/G" if run.recompute == "full" else "Ψ_again(G-1)/G"
        found.append(volume("get them again", formula, ["all-gather again"], a, "GPipe §2.3"))
    if run.layout.hosts > 1:
        sent = host_elements(run, counts)
        found.append(
            Volume("FSDP §3.2.2", "sum over hosts", HYBRID, ["all-reduce across hosts"], sent, 1, run.gradient_bytes)
        )
    return found


HYBRID = "2Ψr(W-G)/(GW)"


def host_elements(run: Asked, counts: Callable[[Stored], bool] = every_flat) -> list[int]:
    """Elements that each rank sends to sum its shard of every Flat over the hosts."""
    hosts = run.layout.hosts
    return [
        sum(ring_all_reduce(of.shard, hosts).sent[place.host] for of in stored(run, rank) if counts(of))
        for rank, place in enumerate(run.places)
    ]


# ---- what papers leave out -------------------------------------------------------------------------------------------


class Left(NamedTuple):
    """Bytes that all ranks together send in a phase that the papers leave out."""

    formula: str
    nbytes: int


def others(run: Asked) -> dict[str, Left]:
    """What the papers leave out, by phase: norms, and gradients of what every tensor-parallel rank has."""
    t, p, g, n = run.layout.tp, run.layout.pp, run.dividing, run.layout.ranks
    copies = run.layout.dp * run.layout.cp if run.zero == 0 else run.layout.hosts
    copies *= pipelines.copies(run.layout.schedule) if p > 1 else 1
    whole = sum(models.padded(whole, g) for _, whole in run.model.without_experts(t)[0]) * run.sequence_parallel
    rest = f"{run.gradient_bytes}·2(t-1)Ψrest·{'W/G' if run.zero else 'W'}"
    counting = n if run.zero else ranks_with_layers(run) * (run.model.experts > 0)
    return {
        SHARD_GRADIENTS: Left(rest, copies * 2 * (t - 1) * whole * run.gradient_bytes),
        TENSOR_NORM: Left("8(t-1)Wpt", 8 * (t - 1) * n),
        "pipeline norm": Left("8(p-1)Wpt", 8 * (p - 1) * n),
        "norm": Left("8(G-1)Wpt", 8 * (g - 1) * counting),
    }


def ranks_with_layers(run: Asked) -> int:
    """The number of ranks whose stage has a layer."""
    stages = range(1, run.layout.pp + 1)
    return sum(any(blocks_of(run, stage)) for stage in stages) * run.layout.ranks // run.layout.pp
