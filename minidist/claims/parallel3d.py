"""What the papers say about a run on a grid of ranks, next to what it held, sent, and read off its clocks."""

from collections.abc import Sequence

from minidist.claims import expert_parallel, pipeline, tensor_parallel
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.fsdp import print_across_hosts
from minidist.claims.letters import Letters, letters_in
from minidist.claims.promises import Promises
from minidist.claims.published import print_ptd
from minidist.claims.run import Run
from minidist.claims.zero import states_claims
from minidist.formulas import experts, volumes
from minidist.formulas.needs import needs
from minidist.formulas.shares import Share, count_forwards, own_units, shares_of, states_of, stored_parameters
from minidist.formulas.tensor import end_volumes, layer_volumes


def claims(run: Run) -> list[Claim]:
    """The claims axis by axis; then about everything together."""
    shares, states = shares_of(run), [states_of(run, rank) for rank in range(run.ranks)]
    of_axes = [
        *layer_volumes(run, shares),
        *end_volumes(run, shares),
        *volumes.context_volumes(run, shares),
        *volumes.expert_volumes(run, shares),
        *volumes.data_volumes(run),
        *volumes.tied_volumes(run),
    ]
    everything, stamps = list(of_axes), 0
    if run.layout.pp == 1:
        held = (
            expert_parallel.activations(run, shares) if run.model.experts else tensor_parallel.activations(run, shares)
        )
    else:
        each, shape = pipeline.count_messages(run), "bsh/t" if run.sequence_parallel else "bsh"
        sizes = [run.bytes.stored * size for size in volumes.crossing(run, shares)]
        timed = [*pipeline.bubble_claims(run), *pipeline.in_flight_claims(run), *pipeline.weight_claims(run)]
        held = [*pipeline.activation_claims(run), *timed, *pipeline.message_claims(run, each, sizes, shape)]
        everything += volumes.message_volumes(run, shares)
        stamps = sum(map(sum, each.values()))
    letters = ("(Ψd+Ψe)", "(Ψd/G+Ψe/(G/P))") if run.model.experts else ("Ψr", "Ψr/G")
    return [
        *group_claims(run, shares),
        *states_claims(run, states, run.zero, *letters),
        *held,
        *(tensor_parallel.collectives(run, shares) if run.layout.tp > 1 else []),
        *(tensor_parallel.volume_claim(run, volume) for volume in of_axes if any(volume.elements)),
        *(expert_parallel.routing(run) if run.model.experts else []),
        *left_host(run, shares),
        *tensor_parallel.total_claims(run, everything, volumes.others(run), stamps),
    ]


# ---- what is held ----------------------------------------------------------------------------------------------------


def group_claims(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """Parameters by group: those of experts, and all others."""
    if not run.model.experts:
        return []
    dense = [
        sum(sum(run.model.without_experts(run.layout.tp)[place.tensor][unit]) for unit in own_units(run, rank))
        for rank, place in enumerate(run.places)
    ]
    of_experts = [share.layers * size for share, size in zip(shares, experts.sizes(run), strict=True)]
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
    promised = [p * elements for elements in volumes.host_elements(run)]
    if run.model.experts:
        _, around = experts.numbers_sent(run, count_forwards(run, shares))
        for rank, at in enumerate(run.places):
            promised[rank] += around[rank] * (at.shard == run.layout.shard - 1 and at.context == run.layout.cp - 1)
    counted = [
        sum(nbytes for peer, nbytes in sent.items() if host[peer] != host[rank])
        for rank, sent in enumerate(run.sent_to)
    ]
    return [on_each_rank("FSDP §3.2.2", "bytes to others", f"{p}·{volumes.HYBRID}", promised, counted, "bytes")]


def letters(run: Run) -> Letters:
    """What the letters of its claims mean."""
    at, mixture = run.layout, ["expert_parallel"] * (run.model.experts > 0)
    data = f"data{' x context' * (at.cp > 1)} ranks, {at.dp * at.cp} (in F+B+W: a backward for weights)"
    n = {"N": f"context ranks, {at.cp}"} if at.cp > 1 else {}
    return {**letters_in("pipeline", *mixture, "parallel3d")(run), "W": data, **n}


def print_closing(run: Run) -> None:
    """Where tokens go; and, with hybrid sharding, the paper's own figure."""
    w, g = run.layout.dp * run.layout.cp, run.dividing
    if run.model.experts:
        expert_parallel.print_reached(run)
    if w > g:
        print_across_hosts(stored_parameters(run)[0] * run.bytes.stored, w, g)


PROMISES = Promises(claims=claims, letters=letters, needs=needs, closing=print_closing, published=print_ptd)
