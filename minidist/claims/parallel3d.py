"""What the papers say about a run on a grid of ranks, next to what it held, sent, and read off its clocks."""

from collections.abc import Sequence

from minidist.claims import expert_parallel, pipeline, tensor_parallel
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.fsdp import print_across_hosts
from minidist.claims.letters import Letters
from minidist.claims.promises import Promises
from minidist.claims.published import print_ptd
from minidist.claims.run import Run
from minidist.claims.zero import states_claims
from minidist.formulas import experts
from minidist.formulas.needs import needs
from minidist.formulas.shares import (
    Share,
    blocks_of,
    count_forwards,
    own_units,
    shares_of,
    states_of,
    stored_parameters,
)
from minidist.formulas.tensor import end_volumes, layer_volumes
from minidist.formulas.volumes import (
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


def claims(run: Run) -> list[Claim]:
    """The claims axis by axis; then about everything together."""
    shares, states = shares_of(run), [states_of(run, rank) for rank in range(run.ranks)]
    of_axes = [
        *layer_volumes(run, shares),
        *end_volumes(run, shares),
        *context_volumes(run, shares),
        *expert_volumes(run, shares),
        *data_volumes(run),
        *tied_volumes(run),
    ]
    everything, stamps = list(of_axes), 0
    if run.layout.pp == 1:
        held = (
            expert_parallel.activations(run, shares) if run.model.experts else tensor_parallel.activations(run, shares)
        )
    else:
        each, shape = pipeline.count_messages(run), "bsh/t" if run.sequence_parallel else "bsh"
        sizes = [run.bytes.stored * size for size in crossing(run, shares)]
        timed = [*pipeline.bubble_claims(run), *pipeline.in_flight_claims(run), *pipeline.weight_claims(run)]
        held = [*pipeline.activation_claims(run), *timed, *pipeline.message_claims(run, each, sizes, shape)]
        everything += message_volumes(run, shares)
        stamps = sum(map(sum, each.values()))
    letters = ("(Ψd+Ψe)", "(Ψd/G+Ψe/(G/P))") if run.model.experts else ("Ψr", "Ψr/G")
    return [
        *group_claims(run),
        *states_claims(run, states, run.zero, *letters),
        *held,
        *(tensor_parallel.collectives(run, shares) if run.layout.tp > 1 else []),
        *(tensor_parallel.volume_claim(run, volume) for volume in of_axes if any(volume.elements)),
        *(expert_parallel.routing(run) if run.model.experts else []),
        *left_host(run, shares),
        *tensor_parallel.total_claims(run, everything, others(run), stamps),
    ]


# ---- what is held ----------------------------------------------------------------------------------------------------


def group_claims(run: Run) -> list[Claim]:
    """Parameters by group: those of experts, and all others."""
    if not run.model.experts:
        return []
    layers = [sum(blocks_of(run, stage)) for stage in run.stages]
    dense = [
        sum(sum(run.model.without_experts(run.layout.tp)[place.tensor][unit]) for unit in own_units(run, rank))
        for rank, place in enumerate(run.places)
    ]
    of_experts = [number * size for number, size in zip(layers, experts.sizes(run), strict=True)]
    found = []
    for name, formula, expected in (("dense", "Ψd", dense), ("experts", "Ψe = l·ψₑE/P", of_experts)):
        counted = [counts[name] for counts in run.counted]
        found.append(on_each_rank("DeepSpeed-MoE §4", f"parameters, {name}", formula, expected, counted, ""))
    return found


# ---- what is sent ----------------------------------------------------------------------------------------------------


def left_host(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """Everything that left a host, for any purpose, identified by its receiver: shards; and, with a mixture, shares of
    choices, where the ring of all data ranks goes from host to host."""
    if run.layout.hosts == 1:
        return []
    host = [place.host for place in run.places]
    p = run.gradient_bytes
    promised = [p * elements for elements in host_elements(run)]
    if run.model.experts:
        _, around = experts.numbers_sent(run, count_forwards(run, shares))
        for rank, at in enumerate(run.places):
            promised[rank] += around[rank] * (at.shard == run.layout.shard - 1 and at.context == run.layout.cp - 1)
    counted = [
        sum(nbytes for peer, nbytes in sent.items() if host[peer] != host[rank])
        for rank, sent in enumerate(run.sent_to)
    ]
    return [on_each_rank("FSDP §3.2.2", "bytes to others", f"{p}·{HYBRID}", promised, counted, "bytes")]


def letters(run: Run) -> Letters:
    """What the letters of its claims mean."""
    w, at = run.layout.dp * run.layout.cp, run.layout
    return {
        **pipeline.letters(run),
        **(expert_parallel.letters(run) if run.model.experts else {}),
        "c": "positions of a context rank",
        "ψl": "those of its last layer",
        "Ψrest": "a rank's replicated parameters",
        "Ψr": "a rank's parameters, padded",
        "W": f"data{' x context' * (at.cp > 1)} ranks, {w} (in F+B+W: a backward for weights)",
        "G": f"ranks that shard model states, {run.dividing}",
        **({"N": f"context ranks, {at.cp}"} if at.cp > 1 else {}),
        "g": "key/value heads to a query head",
        **dict.fromkeys(("p", "K", "n"), f"stages, {at.pp}"),
        "t": f"tensor ranks, {at.tp}",
    }


def print_closing(run: Run) -> None:
    """Where tokens go; and, with hybrid sharding, the paper's own figure."""
    w, g = run.layout.dp * run.layout.cp, run.dividing
    if run.model.experts:
        expert_parallel.print_reached(run)
    if w > g:
        print_across_hosts(stored_parameters(run)[0] * run.bytes.stored, w, g)


class GridPromises(Promises):
    claims, needs, letters = staticmethod(claims), staticmethod(needs), staticmethod(letters)
    closing, published = staticmethod(print_closing), staticmethod(print_ptd)


PROMISES = GridPromises()
