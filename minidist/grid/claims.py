"""What the papers say about a run on a grid of ranks, next to what it held, sent, and read off its clocks."""

from collections.abc import Sequence

from minidist.claims import experts
from minidist.claims.activations import Share, keep_after_forward, keep_at_most, layer_bytes
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.experts import Stored
from minidist.claims.fsdp import print_across_hosts
from minidist.claims.published import print_ptd
from minidist.claims.run import Run
from minidist.claims.zero import states_claims
from minidist.cp.claims import SOURCES, context_elements, parts_of
from minidist.ep import claims as ep
from minidist.grid.shares import (
    blocks_of,
    dividing,
    flats,
    letters,
    own_units,
    rank_stages,
    shares_of,
    states_of,
    stored,
)
from minidist.papers import chen, pipelines
from minidist.papers.collectives import ring_all_reduce
from minidist.pp import claims as pipeline
from minidist.tp import claims as tensor


def claims(run: Run) -> list[Claim]:
    """The claims axis by axis; then about everything together."""
    options, t, p, d = run.options, run.layout.tp, run.layout.pp, run.layout.dp
    at, shares = rank_stages(run), shares_of(run)
    of_axes = [
        *tensor.layer_volumes(run, t, shares),
        *tensor.end_volumes(run, t, shares),
        *context_volumes(run, shares),
        *expert_volumes(run, shares),
        *data_volumes(run),
        *tied_volumes(run),
    ]
    everything = list(of_axes)
    copies = d * run.layout.cp if options.zero == 0 else run.layout.hosts
    copies *= pipelines.copies(run.layout.schedule) if p > 1 else 1
    rest = f"{run.bytes.stored}·2(t-1)Ψrest·{'W/G' if options.zero else 'W'}"
    counting = run.ranks if options.zero else sum(share.layers > 0 for share in shares) * (options.experts > 0)
    beside = {
        tensor.SHARD_GRADIENTS: (rest, tensor.replicated_bytes(run, t, copies, dividing(run)) if t > 1 else 0),
        tensor.TENSOR_NORM: ("8(t-1)Wpt", 8 * (t - 1) * run.ranks),
        "pipeline norm": ("8(p-1)Wpt", 8 * (p - 1) * run.ranks),
        "norm": ("8(G-1)Wpt", 8 * (dividing(run) - 1) * counting),
    }
    staged, stamps = [], 0
    if p > 1:
        crossing = [size // (t if options.sequence_parallel else 1) for size in tensor.elements(run, shares)]
        each, shape = pipeline.count_messages(run, at), "bsh/t" if options.sequence_parallel else "bsh"
        of_messages = pipeline.message_claims(run, each, [run.bytes.stored * size for size in crossing], shape)
        timed = [*pipeline.bubble_claims(run, at), *pipeline.in_flight_claims(run, at)]
        staged = [*timed, *pipeline.weight_claims(run, at), *of_messages]
        for kind, messages in each.items():
            sent = [number * size for number, size in zip(messages, crossing, strict=True)]
            everything.append(tensor.Volume("PTD §2.2", kind, "", [kind], sent, 1, run.bytes.stored))
            stamps += sum(messages)
    return [
        *group_claims(run),
        *states_claims(run, [states_of(run, rank) for rank in range(run.ranks)], run.options.zero, *letters(run)),
        *activation_claims(run, at, shares),
        *staged,
        *(tensor.collectives(run, t, shares) if t > 1 else []),
        *(volume.claim(run) for volume in of_axes if any(volume.elements)),
        *(ep.routing(run) if options.experts else []),
        *left_host(run, shares),
        *tensor.total_claims(run, everything, beside, stamps),
    ]


# ---- what is held ----------------------------------------------------------------------------------------------------


def group_claims(run: Run) -> list[Claim]:
    """Parameters by group: those of experts, and all others."""
    if not run.options.experts:
        return []
    layers = [len({*own} - {0, run.options.layers + 1}) for own in own_units(run)]
    dense = [
        sum(sum(run.model.without_experts(run.layout.tp)[place.tensor][unit]) for unit in own)
        for own, place in zip(own_units(run), run.places, strict=True)
    ]
    routed = [number * size for number, size in zip(layers, experts.sizes(run), strict=True)]
    found = []
    for name, formula, expected in (("dense", "Ψd", dense), ("experts", "Ψe = l·ψₑE/P", routed)):
        counted = [counts[name] for counts in run.counted]
        found.append(on_each_rank("DeepSpeed-MoE §4", f"parameters, {name}", formula, expected, counted, ""))
    return found


def activation_claims(run: Run, at: Sequence[int], shares: Sequence[Share]) -> list[Claim]:
    """Activations: of a layer; or in a pipeline of all layers of the stage, for all micro-batches in flight. With full
    recomputation a stage keeps the input of each of these, but of the one that runs again all that its layers keep
    (GPipe, section 2.3)."""
    options, t = run.options, run.layout.tp
    if run.layout.pp == 1:
        return ep.activations(run, shares) if options.experts else tensor.activations(run, t, shares)
    if pipeline.has_no_formula(run.layout) or (options.experts and options.capacity is None):
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


def context_volumes(run: Run, shares: Sequence[Share]) -> list[tensor.Volume]:
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


def expert_volumes(run: Run, shares: Sequence[Share]) -> list[tensor.Volume]:
    """Tokens on their way to experts and back, among the ranks that divide these; and numbers for each expert."""
    if not run.options.experts:
        return []
    forwards = ep.forwards(run, shares)
    rows, formula = experts.rows(run, forwards)
    counts, chosen = ([n // 8 for n in of_ranks] for of_ranks in experts.numbers_sent(run, forwards))
    elements = [size * run.options.width for size in rows]
    return [
        tensor.Volume("GShard §3", "dispatch, combine", formula, [*experts.TOKENS], elements, 1, run.bytes.stored),
        tensor.Volume("MegaBlocks", "counts of rows", "E(P-1)/P a forward", ["counts"], counts, 1, 8),
        tensor.Volume("Switch eq. 5", "shares of choices", "2E(W-1)/W likewise", ["balance"], chosen, 1, 8),
    ]


def tied_volumes(run: Run) -> list[tensor.Volume]:
    """What the first and the last stage send to sum the gradients of an embedding that both hold; or, in a cross, any
    two ranks that hold the same stages, of all that they hold."""
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
        first, *_ = flats(run, rank).get(0, [Stored(0, 1)])  # of the embedding's, this has the matrix
        both = ring_all_reduce(first.shard if options.zero else first.size, 2).sent
        sent.append(both[0] if stage == 1 else both[1] if stage == run.layout.pp else 0)
    formula = "ψ_emb/G" if options.zero else "ψ_emb"
    return [tensor.Volume("PTD §3", "tied embedding", formula, ["shared gradients"], sent, 1, run.bytes.stored)]


def data_volumes(run: Run) -> list[tensor.Volume]:
    """What a rank sends along the data axis in a step, for its part of the model."""
    options, p = run.options, run.bytes.stored
    g, a, stage = dividing(run), run.passes, options.zero
    once = [sum(of.size - of.shard for of in stored(run, rank)) for rank in range(run.ranks)]
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
    gathers, again = ["all-gather forward", "all-gather backward"], read_twice(run)
    twice = [2 * (n + more * (g - 1) // g) for n, more in zip(once, again, strict=True)]
    formula = "2(Ψr+ψ_emb)(G-1)/G" if any(again) else f"2{all_once}"
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


def read_twice(run: Run) -> list[int]:
    """For each rank, what two of its chunks read, each in a pass of its own: a tied embedding, if a folded or crossed
    pipeline has both ends of the model on a rank."""
    head, staged = run.options.layers + 1, run.layout.pp > 1 and run.model.tied
    ends = [staged and {0, head} <= {*own} for own in own_units(run)]
    return [flats(run, rank)[0][0].size if both else 0 for rank, both in enumerate(ends)]


def regathered_elements(run: Run) -> list[int]:
    """Elements that each rank sends so that layers can run once more: of what runs again together all but the last,
    which is gathered for its backward that follows at once. With full recomputation a pipeline's chunk runs again as a
    whole."""
    options, found = run.options, []
    for rank, stage in enumerate(rank_stages(run)):
        parts = pipeline.parts_of(run.layout, stage)
        others = {unit: sum(of.size - of.shard for of in each) for unit, each in flats(run, rank).items()}
        if options.recompute == "full" and run.layout.pp > 1:
            found.append(sum(others[unit] for part in parts for unit in part[:-1]))
        else:
            layer = next((others[unit] for unit in others if 1 <= unit <= options.layers), 0)
            times = sum(chen.count_regathered_layers(options.recompute, n) for n in blocks_of(run, stage))
            found.append(times * layer)
    return found


HYBRID = "2Ψr(W-G)/(GW)"


def host_elements(run: Run) -> list[int]:
    """Elements that each rank sends to sum its shard of every Flat over the hosts."""
    hosts = run.layout.hosts
    return [
        sum(ring_all_reduce(of.shard, hosts).sent[place.host] for of in stored(run, rank))
        for rank, place in enumerate(run.places)
    ]


def left_host(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """Everything that left a host, for any purpose, identified by its receiver: shards; and of a mixture the shares of
    choices, where the ring of all data ranks goes from host to host."""
    if run.layout.hosts == 1:
        return []
    host = [place.host for place in run.places]
    p = run.bytes.stored
    promised = [p * elements for elements in host_elements(run)]
    if run.options.experts:
        _, around = experts.numbers_sent(run, ep.forwards(run, shares))
        for rank, at in enumerate(run.places):
            promised[rank] += around[rank] * (at.shard == run.layout.shard - 1 and at.context == run.layout.cp - 1)
    counted = [
        sum(nbytes for peer, nbytes in sent.items() if host[peer] != host[rank])
        for rank, sent in enumerate(run.sent_to)
    ]
    return [on_each_rank("FSDP §3.2.2", "bytes to others", f"{p}·{HYBRID}", promised, counted, "bytes")]


def print_closing(run: Run) -> None:
    """Print what the letters mean; and, with hybrid sharding, the paper's own figure."""
    m = sum(of.size for of in stored(run, 0)) * run.bytes.stored
    w, g, t, p = run.layout.dp * run.layout.cp, dividing(run), run.layout.tp, run.layout.pp
    if run.options.experts:
        print(
            f"P = {run.layout.ep} of G ranks divide E = {run.options.experts} experts, Ψe; Ψd: all others; T: a rank's"
        )
        print("tokens; k: experts of each; C: an expert's room; out, in: rows that leave and arrive.")
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
