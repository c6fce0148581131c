"""What each rank of a grid sends in a step, by formula, axis by axis. A plan asks the same formulas, without NumPy."""

from collections.abc import Callable, Sequence

from minidist.claims import experts
from minidist.claims.activations import Share, count_forwards
from minidist.claims.experts import Stored
from minidist.claims.run import Asked
from minidist.cp.claims import SOURCES, context_elements, parts_of
from minidist.grid.shares import blocks_of, dividing, flats, own_units, rank_stages, stored
from minidist.papers import chen, pipelines
from minidist.papers.collectives import ring_all_reduce
from minidist.pp.instructions import ACTIVATION, GRADIENT
from minidist.pp.shaped import stage_parts
from minidist.tp import claims as tensor

# ---- within layers, and from stage to stage --------------------------------------------------------------------------


def context_volumes(run: Asked, shares: Sequence[Share]) -> list[tensor.Volume]:
    """Keys, values and their gradients, or heads in exchange for positions, of each rank's layers."""
    if run.layout.cp == 1:
        return []
    parts, volumes = parts_of(run, run.options.batch // run.layout.micro_batches), []
    for phase, (formula, elements) in context_elements(run, parts, run.layout.tp).items():
        times = [share.layers + share.layers_again * phase.endswith("forward") for share in shares]
        sent = [int(n * of_layer) for n, of_layer in zip(times, elements, strict=True)]
        letter = "(l+r)" if times[0] > shares[0].layers else "l"
        source = SOURCES[run.options.scheme]
        volumes.append(
            tensor.Volume(source, phase, f"{letter}b·{formula}", [phase], sent, run.passes, run.bytes.stored)
        )
    return volumes


def expert_volumes(run: Asked, shares: Sequence[Share]) -> list[tensor.Volume]:
    """Tokens on their way to experts and back, among the ranks that divide these; and numbers for each expert."""
    if not run.options.experts:
        return []
    forwards = count_forwards(run, shares)
    rows, formula = experts.rows(run, forwards)
    counts, chosen = ([n // 8 for n in of_ranks] for of_ranks in experts.numbers_sent(run, forwards))
    elements = [size * run.options.width for size in rows]
    return [
        tensor.Volume("GShard §3", "dispatch, combine", formula, [*experts.TOKENS], elements, 1, run.bytes.stored),
        tensor.Volume("MegaBlocks", "counts of rows", "E(P-1)/P a layer", ["counts"], counts, 1, 8),
        tensor.Volume("Switch eq. 5", "shares of choices", "2E(W-1)/W likewise", ["balance"], chosen, 1, 8),
    ]


def message_volumes(run: Asked, shares: Sequence[Share]) -> list[tensor.Volume]:
    """What each rank is to send from stage to stage."""
    pipe = run.layout
    sizes = pipe.schedule, pipe.pp, pipe.micro_batches
    each = [pipelines.count_messages(*sizes, stage, pipe.chunks) for stage in rank_stages(run)]
    made = []
    for kind, messages in zip((ACTIVATION, GRADIENT), zip(*each, strict=True), strict=True):
        sent = [number * size for number, size in zip(messages, crossing(run, shares), strict=True)]
        made.append(tensor.Volume("PTD §2.2", kind, "", [kind], sent, 1, run.bytes.stored))
    return made


def crossing(run: Asked, shares: Sequence[Share]) -> list[int]:
    """Elements of a rank's part of what crosses a boundary between stages for a micro-batch."""
    apart = run.layout.tp if run.options.sequence_parallel else 1
    return [size // apart for size in tensor.elements(run, shares)]


# ---- gradients and parameters ----------------------------------------------------------------------------------------


def tied_volumes(run: Asked) -> list[tensor.Volume]:
    """What the first and the last stage send to sum the gradients of an embedding that both hold; or, in a cross, what
    any two ranks that hold the same stages send to sum all gradients."""
    options = run.options
    if run.layout.pp > 1 and run.layout.schedule in pipelines.CROSSED:
        whole = [[of.shard if options.zero else of.size for of in stored(run, rank)] for rank in range(run.ranks)]
        second = [stage > run.layout.pp // 2 for stage in rank_stages(run)]
        copied = [sum(ring_all_reduce(n, 2).sent[i] for n in sizes) for sizes, i in zip(whole, second, strict=True)]
        formula = "Ψr/G" if options.zero else "Ψr"
        return [tensor.Volume("Chimera", "two copies", formula, ["shared gradients"], copied, 1, run.bytes.stored)]
    if run.layout.pp == 1 or not run.model.tied or run.layout.schedule in pipelines.FOLDED:
        return []
    sent = []
    for rank, stage in enumerate(rank_stages(run)):
        first, *_ = flats(run, rank).get(0, [Stored(0, 1)])  # the embedding's first Flat has the matrix
        both = ring_all_reduce(first.shard if options.zero else first.size, 2).sent
        sent.append(both[0] if stage == 1 else both[1] if stage == run.layout.pp else 0)
    formula = "ψ_emb/G" if options.zero else "ψ_emb"
    return [tensor.Volume("PTD §3", "tied embedding", formula, ["shared gradients"], sent, 1, run.bytes.stored)]


def data_volumes(run: Asked, counts: Callable[[Stored], bool] = lambda of: True) -> list[tensor.Volume]:
    """What a rank sends along the data axis in a step, for its part of the model. counts: whether a Flat counts."""
    options, p = run.options, run.bytes.stored
    g, a, stage = dividing(run), run.passes, options.zero
    once = [sum(of.size - of.shard for of in stored(run, rank) if counts(of)) for rank in range(run.ranks)]
    all_once = "(Ψd(G-1)/G+Ψe(G-P)/G)" if options.experts else "Ψr(G-1)/G"
    if stage == 0:
        twice = [2 * n for n in once]
        return [tensor.Volume("ZeRO §7", "sum gradients", f"2{all_once}", ["all-reduce gradients"], twice, 1, p)]
    times = a if stage >= 2 else 1
    scatter = tensor.Volume("ZeRO §7", "sum gradients", all_once, ["reduce-scatter gradients"], once, times, p)
    if stage < 3:
        return [
            scatter,
            tensor.Volume("ZeRO §7", "get parameters", all_once, ["all-gather parameters"], once, 1, p),
        ]
    gathers, again = ["all-gather forward", "all-gather backward"], read_twice(run, counts)
    twice = [2 * (n + more * (g - 1) // g) for n, more in zip(once, again, strict=True)]
    formula = "2(Ψr+ψ_emb)(G-1)/G" if any(again) else f"2{all_once}"
    volumes = [tensor.Volume("ZeRO §7", "get parameters", formula, gathers, twice, a, p), scatter]
    if any(sent := regathered_elements(run, counts)):
        formula = "(Ψr-ψl)(G-1)/G" if options.recompute == "full" else "Ψ_again(G-1)/G"
        volumes.append(tensor.Volume("GPipe §2.3", "get them again", formula, ["all-gather again"], sent, a, p))
    if run.layout.hosts > 1:
        volumes.append(
            tensor.Volume(
                "FSDP §3.2.2", "sum over hosts", HYBRID, ["all-reduce across hosts"], host_elements(run, counts), 1, p
            )
        )
    return volumes


def read_twice(run: Asked, counts: Callable[[Stored], bool]) -> list[int]:
    """For each rank, the elements that two of its chunks read, each in its own pass: a tied embedding, if a folded or
    crossed pipeline has both ends of the model on a rank."""
    head, staged = run.options.layers + 1, run.layout.pp > 1 and run.model.tied
    ends = [staged and {0, head} <= {*own} for own in own_units(run)]
    first = [flats(run, rank)[0][0] if both else Stored(0, 1) for rank, both in enumerate(ends)]
    return [of.size * counts(of) for of in first]


def regathered_elements(run: Asked, counts: Callable[[Stored], bool]) -> list[int]:
    """Elements that each rank sends so that layers can run once more. Of those that run again together, the last is
    left out: it is gathered for its backward, which follows at once. With full recomputation, a pipeline's chunk runs
    again as a whole."""
    options, found = run.options, []
    for rank, stage in enumerate(rank_stages(run)):
        parts = stage_parts(run.layout, stage)
        kept = {unit: filter(counts, each) for unit, each in flats(run, rank).items()}
        others = {unit: sum(of.size - of.shard for of in each) for unit, each in kept.items()}
        if options.recompute == "full" and run.layout.pp > 1:
            found.append(sum(others[unit] for part in parts for unit in part[:-1]))
        else:
            layer = next((others[unit] for unit in others if 1 <= unit <= options.layers), 0)
            times = sum(chen.count_regathered_layers(options.recompute, n) for n in blocks_of(run, stage))
            found.append(times * layer)
    return found


HYBRID = "2Ψr(W-G)/(GW)"


def host_elements(run: Asked, counts: Callable[[Stored], bool] = lambda of: True) -> list[int]:
    """Elements that each rank sends to sum its shard of every Flat over the hosts."""
    hosts = run.layout.hosts
    return [
        sum(ring_all_reduce(of.shard, hosts).sent[place.host] for of in stored(run, rank) if counts(of))
        for rank, place in enumerate(run.places)
    ]


# ---- what papers leave out -------------------------------------------------------------------------------------------


def others(run: Asked) -> dict[str, tuple[str, int]]:
    """What the papers leave out: norms, and gradients of what every tensor-parallel rank has. By phase, the formula and
    the bytes of all ranks together."""
    t, p, g = run.layout.tp, run.layout.pp, dividing(run)
    copies = run.layout.dp * run.layout.cp if run.options.zero == 0 else run.layout.hosts
    copies *= pipelines.copies(run.layout.schedule) if p > 1 else 1
    rest = f"{run.bytes.stored}·2(t-1)Ψrest·{'W/G' if run.options.zero else 'W'}"
    counting = run.layout.ranks if run.options.zero else ranks_with_layers(run) * (run.options.experts > 0)
    return {
        tensor.SHARD_GRADIENTS: (rest, tensor.replicated_bytes(run, t, copies, g) if t > 1 else 0),
        tensor.TENSOR_NORM: ("8(t-1)Wpt", 8 * (t - 1) * run.layout.ranks),
        "pipeline norm": ("8(p-1)Wpt", 8 * (p - 1) * run.layout.ranks),
        "norm": ("8(G-1)Wpt", 8 * (g - 1) * counting),
    }


def ranks_with_layers(run: Asked) -> int:
    """The number of ranks whose stage has a layer."""
    head, stages = run.options.layers + 1, range(1, run.layout.pp + 1)
    own = [{unit for part in stage_parts(run.layout, stage) for unit in part} - {0, head} for stage in stages]
    return sum(map(bool, own)) * run.layout.ranks // run.layout.pp
