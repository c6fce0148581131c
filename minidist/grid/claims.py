"""What the papers say about a run on a grid of ranks, next to what it held, sent, and read off its clocks."""

from collections.abc import Sequence

from minidist.claims.activations import Share, keep_after_forward, keep_at_most, layer_bytes
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.fsdp import print_across_hosts
from minidist.claims.needs import Needs, Place, at_places
from minidist.claims.published import print_ptd
from minidist.claims.run import Asked, Run
from minidist.claims.zero import states_claims
from minidist.cp.claims import SOURCES, context_elements, parts_of
from minidist.papers import chen, models, pipelines, zero
from minidist.papers.collectives import ring_all_reduce
from minidist.pp import claims as pipeline
from minidist.pp.instructions import ACTIVATION, GRADIENT
from minidist.tp import claims as tensor


def claims(run: Run) -> list[Claim]:
    """The claims axis by axis; then about everything together."""
    options, t, p = run.options, run.layout.tp, run.layout.pp
    at, shares = rank_stages(run), shares_of(run)
    of_axes = [
        *tensor.layer_volumes(run, t, shares),
        *tensor.end_volumes(run, t, shares),
        *context_volumes(run, shares),
        *data_volumes(run),
        *tied_volumes(run),
    ]
    everything = list(of_axes)
    staged, stamps = [], 0
    if p > 1:
        each, shape = pipeline.count_messages(run, at), "bsh/t" if options.sequence_parallel else "bsh"
        sizes = [run.bytes.stored * size for size in crossing(run, shares)]
        of_messages = pipeline.message_claims(run, each, sizes, shape)
        timed = [*pipeline.bubble_claims(run, at), *pipeline.in_flight_claims(run, at)]
        staged = [*timed, *pipeline.weight_claims(run, at), *of_messages]
        everything += message_volumes(run, shares)
        stamps = sum(map(sum, each.values()))
    return [
        *states_claims(run, stored_parameters(run), dividing(run), run.options.zero, among="G"),
        *activation_claims(run, at, shares),
        *staged,
        *(tensor.collectives(run, t, shares) if t > 1 else []),
        *(volume.claim(run) for volume in of_axes if any(volume.elements)),
        *left_host(run),
        *tensor.total_claims(run, everything, others(run), stamps),
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


def others(run: Asked) -> dict[str, tuple[str, int]]:
    """What the papers leave out: norms, and gradients of what every tensor-parallel rank has. By phase, the formula and
    the bytes of all ranks together."""
    t, p, g = run.layout.tp, run.layout.pp, dividing(run)
    copies = run.layout.dp * run.layout.cp if run.options.zero == 0 else run.layout.hosts
    copies *= pipelines.copies(run.layout.schedule) if p > 1 else 1
    rest = f"{run.bytes.stored}·2(t-1)Ψrest·{'W/G' if run.options.zero else 'W'}"
    return {
        tensor.SHARD_GRADIENTS: (rest, tensor.replicated_bytes(run, t, copies, g) if t > 1 else 0),
        tensor.TENSOR_NORM: ("8(t-1)Wpt", 8 * (t - 1) * run.layout.ranks),
        "pipeline norm": ("8(p-1)Wpt", 8 * (p - 1) * run.layout.ranks),
        "norm": ("8(G-1)Wpt", 8 * (g - 1) * run.layout.ranks if run.options.zero else 0),
    }


# ---- which rank has what ---------------------------------------------------------------------------------------------


def dividing(run: Asked) -> int:
    """G: the number of ranks that divide model states among them. Those that divide the sequences do, too."""
    return run.layout.shard * run.layout.cp


def rank_stages(run: Asked) -> list[int]:
    """Each rank's stage, from 1."""
    return [place.pipeline + 1 for place in run.places]


def own_units(run: Asked) -> list[list[int]]:
    """The units of each rank's stage, by number: the embedding is 0, the layers follow, the head is the last."""
    return [
        [unit for part in pipeline.parts_of(run.layout, run.places[rank].pipeline + 1) for unit in part]
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
    return [len({*part} - {0, head}) for part in pipeline.parts_of(run.layout, stage)]


def flats(run: Asked, rank: int) -> dict[int, list[int]]:
    """For each unit, the sizes of what a rank stores separately, padded so that the data axis can divide it: the whole
    unit, or, if it is cut, the rank's part of what is cut and what is left whole. If another stage's head reads the
    embedding's matrix, that stage stores the part of the embedding with the matrix."""
    options, own = run.options, own_units(run)[rank]
    sizes = run.model.cut_and_whole(run.layout.tp)[run.places[rank].tensor]
    stored = [list(both) if run.layout.tp > 1 else [sum(both)] for both in sizes]
    found = {unit: stored[unit] for unit in own}
    if run.model.tied and options.layers + 1 in own and 0 not in own:
        found[0] = stored[0][:1]
    return {unit: [models.padded(size, dividing(run)) for size in of] for unit, of in found.items()}


def stored_parameters(run: Asked) -> list[int]:
    """Ψr: for each rank, the sum of what it stores."""
    return [sum(map(sum, flats(run, rank).values())) for rank in range(run.ranks)]


def needs(asked: Asked) -> list[Needs]:
    """What each rank will need: its part of every layer of its stage, divided by ZeRO's stage."""
    o, p, k, head = asked.options, asked.bytes.stored, asked.optimizer_bytes, asked.options.layers + 1
    places = []
    for rank, (share, stage, psi) in enumerate(
        zip(shares_of(asked), rank_stages(asked), stored_parameters(asked), strict=True)
    ):
        of_unit = flats(asked, rank)
        reads = {unit: sum(sizes) for unit, sizes in of_unit.items()}
        layer = next((size for unit, size in reads.items() if 0 < unit < head), 0)
        tied = asked.model.tied and share.head
        both = of_unit[0][0] if tied and share.embedding else 0  # the first of the embedding's has the matrix
        own = reads.get(head, 0) + (reads[0] if tied and not share.embedding else 0)
        states = zero.model_states(psi, dividing(asked), o.zero, p, p, k)
        embedding = reads[0] if share.embedding else 0
        flying = pipeline.most_in_flight(asked, stage) if asked.layout.pp > 1 else 1
        starts = 1 <= asked.layout.parts[stage - 1][0] <= o.layers
        places.append(Place(states, share, embedding, layer, own, both, o.zero, flying, starts))
    without = [*pipeline.list_unpredicted(asked)] if asked.layout.pp > 1 else []
    without += ["keys and values on their way"] * (asked.layout.cp > 1)
    return at_places(asked, asked.layout.tp, places, without)


# ---- what is held ----------------------------------------------------------------------------------------------------


def activation_claims(run: Run, at: Sequence[int], shares: Sequence[Share]) -> list[Claim]:
    """Activations: of a layer; or in a pipeline of all layers of the stage, for all micro-batches in flight. With full
    recomputation a stage keeps the input of each of these, but of the one that runs again all that its layers keep
    (GPipe, section 2.3)."""
    options, t = run.options, run.layout.tp
    if run.layout.pp == 1:
        return tensor.activations(run, t, shares)
    if pipeline.has_no_formula(run.layout):
        return []
    dropout, full, p = options.dropout > 0, options.recompute == "full", run.bytes.stored
    if full:
        layers = layer_bytes(run, t, shares, "none", dropout)
        most = [share.layers * layer for share, layer in zip(shares, layers, strict=True)]
        inputs = layer_bytes(run, t, shares, "full", dropout)
        # a stage that begins with the embedding, or has the head alone, keeps no layer's input
        firsts = [1 <= own[0] <= options.layers for own in own_units(run)]
        waits = [given * first for given, first in zip(inputs, firsts, strict=True)]
    else:
        most = keep_at_most(run, t, shares, dropout)
        waits = keep_after_forward(run, t, shares, dropout)
    flying = [pipelines.in_flight(run.layout.schedule, run.layout.pp, run.layout.micro_batches, stage) for stage in at]
    expected = [one + (number - 1) * other for one, other, number in zip(most, waits, flying, strict=True)]
    counted = [counts["layer_activations"] for counts in run.counted]
    formula = "peak+(f-1)·kept"
    if options.recompute in ("none", "full"):
        formula = f"l·layer+(f-1){p}bs{'h/t' if options.sequence_parallel else 'h'}" if full else "f·l·layer"
    return [on_each_rank("Korthikanti §4", "layers keep", formula, expected, counted, "bytes")]


# ---- what is sent ----------------------------------------------------------------------------------------------------


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


def tied_volumes(run: Asked) -> list[tensor.Volume]:
    """What the first and the last stage send to sum the gradients of an embedding that both hold; or, in a cross, any
    two ranks that hold the same stages, of all that they hold."""
    options = run.options
    pieces = dividing(run) if options.zero else 1
    if run.layout.pp > 1 and run.layout.schedule in pipelines.CROSSED:
        whole = [[size // pieces for of in flats(run, rank).values() for size in of] for rank in range(run.ranks)]
        second = [stage > run.layout.pp // 2 for stage in rank_stages(run)]
        copied = [sum(ring_all_reduce(n, 2).sent[i] for n in sizes) for sizes, i in zip(whole, second, strict=True)]
        formula = "Ψr/G" if options.zero else "Ψr"
        return [tensor.Volume("Chimera", "two copies", formula, ["shared gradients"], copied, 1, run.bytes.stored)]
    if run.layout.pp == 1 or not run.model.tied or run.layout.schedule in pipelines.FOLDED:
        return []
    sent = []
    for rank, stage in enumerate(rank_stages(run)):
        ends = flats(run, rank).get(0, [0])  # the first of the embedding's has the matrix
        both = ring_all_reduce(ends[0] // pieces, 2).sent
        sent.append(both[0] if stage == 1 else both[1] if stage == run.layout.pp else 0)
    formula = "ψ_emb/G" if options.zero else "ψ_emb"
    return [tensor.Volume("PTD §3", "tied embedding", formula, ["shared gradients"], sent, 1, run.bytes.stored)]


def data_volumes(run: Asked) -> list[tensor.Volume]:
    """What a rank sends along the data axis in a step, for its part of the model."""
    options, p = run.options, run.bytes.stored
    g, a, stage = dividing(run), run.passes, options.zero
    once = [psi * (g - 1) // g for psi in stored_parameters(run)]
    if stage == 0:
        twice = [2 * n for n in once]
        return [tensor.Volume("ZeRO §7", "sum gradients", "2Ψr(G-1)/G", ["all-reduce gradients"], twice, 1, p)]
    times = a if stage >= 2 else 1
    scatter = tensor.Volume("ZeRO §7", "sum gradients", "Ψr(G-1)/G", ["reduce-scatter gradients"], once, times, p)
    if stage < 3:
        return [
            scatter,
            tensor.Volume("ZeRO §7", "get parameters", "Ψr(G-1)/G", ["all-gather parameters"], once, 1, p),
        ]
    gathers, again = ["all-gather forward", "all-gather backward"], read_twice(run)
    twice = [2 * (n + more * (g - 1) // g) for n, more in zip(once, again, strict=True)]
    formula = "2(Ψr+ψ_emb)(G-1)/G" if any(again) else "2Ψr(G-1)/G"
    volumes = [tensor.Volume("ZeRO §7", "get parameters", formula, gathers, twice, a, p), scatter]
    if any(sent := regathered_elements(run)):
        formula = "(Ψr-ψl)(G-1)/G" if options.recompute == "full" else "Ψ_again(G-1)/G"
        volumes.append(tensor.Volume("GPipe §2.3", "get them again", formula, ["all-gather again"], sent, a, p))
    if run.layout.hosts > 1:
        volumes.append(
            tensor.Volume(
                "FSDP §3.2.2", "sum over hosts", HYBRID, ["all-reduce across hosts"], host_elements(run), 1, p
            )
        )
    return volumes


def read_twice(run: Asked) -> list[int]:
    """For each rank, what two of its chunks read, each in a pass of its own: a tied embedding, if a folded or crossed
    pipeline has both ends of the model on a rank."""
    head, staged = run.options.layers + 1, run.layout.pp > 1 and run.model.tied
    return [flats(run, rank)[0][0] if staged and {0, head} <= {*own} else 0 for rank, own in enumerate(own_units(run))]


def regathered_elements(run: Asked) -> list[int]:
    """Elements that each rank sends so that layers can run once more: of what runs again together all but the last,
    which is gathered for its backward that follows at once. With full recomputation a pipeline's chunk runs again as a
    whole."""
    options, found = run.options, []
    for rank, stage in enumerate(rank_stages(run)):
        parts, sizes = pipeline.parts_of(run.layout, stage), flats(run, rank)
        if options.recompute == "full" and run.layout.pp > 1:
            psi = sum(sum(sizes[unit]) for part in parts for unit in part[:-1])
        else:
            layer = sum(next((sizes[unit] for unit in sizes if 1 <= unit <= options.layers), [0]))
            psi = layer * sum(chen.count_regathered_layers(options.recompute, n) for n in blocks_of(run, stage))
        found.append(psi * (dividing(run) - 1) // dividing(run))
    return found


HYBRID = "2Ψr(W-G)/(GW)"


def host_elements(run: Asked) -> list[int]:
    """Elements that each rank sends to sum its shard of every Flat over the hosts."""
    hosts = run.layout.hosts
    sizes = [[size for of in flats(run, rank).values() for size in of] for rank in range(run.ranks)]
    return [
        sum(ring_all_reduce(size // dividing(run), hosts).sent[run.places[rank].host] for size in stored)
        for rank, stored in enumerate(sizes)
    ]


def left_host(run: Run) -> list[Claim]:
    """Everything that left a host, for any purpose, identified by its receiver."""
    if run.layout.hosts == 1:
        return []
    host = [place.host for place in run.places]
    p = run.bytes.stored
    promised = [p * elements for elements in host_elements(run)]
    counted = [
        sum(nbytes for peer, nbytes in sent.items() if host[peer] != host[rank])
        for rank, sent in enumerate(run.sent_to)
    ]
    return [on_each_rank("FSDP §3.2.2", "bytes to others", f"{p}·{HYBRID}", promised, counted, "bytes")]


def print_closing(run: Run) -> None:
    """Print what the letters mean; and, with hybrid sharding, the paper's own figure."""
    m = stored_parameters(run)[0] * run.bytes.stored
    w, g, t, p = run.layout.dp * run.layout.cp, dividing(run), run.layout.tp, run.layout.pp
    if run.layout.cp > 1:
        print(f"W = {run.layout.dp} data x N = {run.layout.cp} context ranks; g: key/value heads to a query head.")
    print(f"{w} data x {p} pipeline x {t} tensor ranks: W x p x t; G = {g} of W divide model states.")
    print("Ψr: a rank's parameters, padded; l: its layers; b: its sequences, s long, of a")
    print("micro-batch; h: width; a: heads; m: micro-batches; i: stage, from 1; F, B, W: 1")
    print("of time; f: micro-batches in flight.")
    if w > g:
        print_across_hosts(m, w, g)
    print()
    print_ptd()
