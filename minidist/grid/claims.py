"""What the papers say about a run on a grid of ranks, next to what it held, sent, and read off its clocks."""

from collections.abc import Sequence

from minidist.claims import experts
from minidist.claims.activations import Share, count_forwards, keep_after_forward, keep_at_most, layer_bytes
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.fsdp import print_across_hosts
from minidist.claims.published import print_ptd
from minidist.claims.run import Run
from minidist.claims.zero import states_claims
from minidist.ep import claims as ep
from minidist.grid.shares import (
    dividing,
    letters,
    own_units,
    rank_stages,
    shares_of,
    states_of,
    stored,
)
from minidist.grid.volumes import (
    HYBRID,
    context_volumes,
    crossing,
    data_volumes,
    expert_volumes,
    host_elements,
    message_volumes,
    others,
    tied_volumes,
)
from minidist.papers import pipelines
from minidist.pp import claims as pipeline
from minidist.pp.needs import has_no_formula
from minidist.tp import claims as tensor


def claims(run: Run) -> list[Claim]:
    """The claims axis by axis; then about everything together."""
    options, t, p = run.options, run.layout.tp, run.layout.pp
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
        *group_claims(run),
        *states_claims(run, [states_of(run, rank) for rank in range(run.ranks)], run.options.zero, *letters(run)),
        *activation_claims(run, at, shares),
        *staged,
        *(tensor.collectives(run, t, shares) if t > 1 else []),
        *(volume.claim(run) for volume in of_axes if any(volume.elements)),
        *(ep.routing(run) if options.experts else []),
        *left_host(run, shares),
        *tensor.total_claims(run, everything, others(run), stamps),
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
    """Activations of a layer; or, in a pipeline, of all layers of the stage, for all micro-batches in flight. With full
    recomputation, a stage keeps all activations of the micro-batch that runs again, and only the input of the others
    (GPipe, section 2.3)."""
    options, t = run.options, run.layout.tp
    if run.layout.pp == 1:
        return ep.activations(run, shares) if options.experts else tensor.activations(run, t, shares)
    if has_no_formula(run.layout) or (options.experts and options.capacity is None):
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


def left_host(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """Everything that left a host, for any purpose, identified by its receiver: shards; and, with a mixture, shares of
    choices, where the ring of all data ranks goes from host to host."""
    if run.layout.hosts == 1:
        return []
    host = [place.host for place in run.places]
    p = run.bytes.stored
    promised = [p * elements for elements in host_elements(run)]
    if run.options.experts:
        _, around = experts.numbers_sent(run, count_forwards(run, shares))
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
        ep.print_reached(run)
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
