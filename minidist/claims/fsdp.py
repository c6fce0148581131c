"""What the FSDP paper says of a run, next to what it held, sent, and read off its clock."""

from collections.abc import Sequence
from dataclasses import replace

from minidist.claims import expert_parallel
from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.context_parallel import attention_claims
from minidist.claims.letters import Letters, letters_in
from minidist.claims.promises import Promises
from minidist.claims.published import count_agreeing, print_zero_closing
from minidist.claims.run import Run, nothing_else
from minidist.claims.zero import memory_claims, states_claims, traffic_claims, whole_states
from minidist.cli.tables import number
from minidist.formulas.context import Blocks
from minidist.formulas.context import blocks as blocks_on_way
from minidist.formulas.experts import Stored
from minidist.formulas.shares import flats, shares_of
from minidist.layout import Layout
from minidist.papers import chen, fsdp
from minidist.papers.collectives import ring_all_reduce

HYBRID = "2M(W-G)/(GW)"


def own_claims(
    run: Run, held: Sequence[Claim], blocks: Sequence[Blocks] = (), others: float | None = None
) -> list[Claim]:
    """What its paper says of this run. held: claims about activations. others: bytes that all ranks send for other
    purposes, if there are any."""
    if run.sharding.strategy == "no_shard":
        alike = replace(run, layout=Layout(dp=run.ranks))
        return [*memory_claims(run, stage=0), *held, *traffic_claims(alike)]
    return [*states(run), *passing_claims(run, blocks), *held, *sent_claims(run, others), *time_claims(run)]


# ---- which rank has what ---------------------------------------------------------------------------------------------


def sizes_of(run: Run, rank: int) -> list[int]:
    """ψ: the elements of each unit, padded."""
    return [sum(of.size for of in unit) for unit in flats(run, rank).values()]


def once(unit: Sequence[Stored], times: float = 1) -> float:
    """Elements that a rank sends to gather or to reduce-scatter a unit, `times` times."""
    return sum(fsdp.volume(of.size, of.among, times) for of in unit)


# ---- what is held ----------------------------------------------------------------------------------------------------


def states(run: Run) -> list[Claim]:
    """Model states: each host holds them as if it were the only one."""
    if not run.model.experts:
        return memory_claims(replace(run, layout=Layout(dp=run.dividing)), stage=3)
    return states_claims(run, whole_states(run), 3, "", "(Ψd/F+Ψe/(F/P))")


def passing_claims(run: Run, blocks: Sequence[Blocks]) -> list[Claim]:
    """What is held of whole units. A tied embedding, which the head also reads, is held along with each other unit."""
    p, g, ranks = run.bytes.stored, run.gradient_bytes, range(run.ranks)
    tied = " + ψ_emb" * run.model.tied
    ahead = run.sharding.forward_prefetch or run.sharding.backward_prefetch == "pre"
    window = (
        run.sharding.prefetch + 1 if ahead else run.sharding.prefetch if run.sharding.backward_prefetch == "post" else 1
    )
    gathered, formula = [window_parameters(run, rank, window) for rank in ranks], f"{p}·(max of {window} ψ{tied})"
    everything = [sum(sizes_of(run, rank)) for rank in ranks]
    if run.sharding.strategy == "shard_grad_op":
        gathered, formula = everything, f"{p}Ψ"
    bucket, held = [window_parameters(run, rank, 1) for rank in ranks], f"{g}·(max ψ{tied})"
    if run.sharding.no_sync:
        bucket, held = everything, f"{g}Ψ"
    whole = [p * n for n in gathered], [g * n for n in bucket]
    arriving = [arriving_bytes(run, rank, of) for rank, of in enumerate(blocks or [Blocks()] * run.ranks)]
    name, letters = ("shards and blocks", " + blocks") if blocks else ("shards to be summed", "")
    return [
        on_each_rank("FSDP §3.4", "peak gathered", formula, whole[0], run.memory_of("gathered"), "bytes"),
        on_each_rank("FSDP §3.3.4", "whole gradients", held, whole[1], run.memory_of("bucket"), "bytes"),
        on_each_rank("in addition", name, f"{g}·max ψ(F-1)/F{letters}", arriving, run.memory_of("messages"), "bytes"),
    ]


def arriving_bytes(run: Run, rank: int, blocks: Blocks) -> float:
    """The most bytes on their way to a rank at a time: the other ranks' parts of its shard of a unit's gradient. In a
    layer's backward, blocks of keys and values are added to those parts of the unit above. Validation has such blocks
    of all sequences."""
    parts = [run.gradient_bytes * sum(of.size - of.shard for of in unit) for unit in flats(run, rank).values()]
    return max(*parts, *(above + blocks.backward for above in parts[2:]), blocks.validation)


def window_parameters(run: Run, rank: int, window: int) -> int:
    """Parameters of the largest run of `window` consecutive units, plus those of a tied embedding."""
    units = sizes_of(run, rank)
    always = units.pop(0) if run.model.tied else 0
    return always + max(sum(units[i : i + window]) for i in range(len(units)))


def sent_claims(run: Run, others: float | None) -> list[Claim]:
    """What a rank sends in a step: by phase, to other hosts, and in total."""
    p, f, hosts, ranks = run.bytes.stored, run.dividing, run.layout.hosts, range(run.ranks)
    host, units = [place.host for place in run.places], [[*flats(run, rank).values()] for rank in ranks]
    collectives, claims = collectives_of(run), []
    for phase, times in collectives.items():
        formula, sent = (
            f"{run.width(phase)}·{times if times != 1 else ''}Ψ(F-1)/F",
            [run.width(phase) * sum(once(u, times) for u in of) for of in units],
        )
        claims.append(on_each_rank("FSDP §3.2.1", phase, formula, sent, run.sent_in(phase), "bytes"))
    again = [p * regathered_elements(run, rank) for rank in ranks]
    if any(again):
        formula, counted = f"{p}·Ψ_again(F-1)/F", run.sent_in("all-gather again")
        claims.append(on_each_rank("ZeRO §7", "all-gather again", formula, again, counted, "bytes"))
    shards = [[of.shard for unit in of_rank for of in unit] for of_rank in units]
    g = run.gradient_bytes
    across = [g * sum(ring_all_reduce(shard, hosts).sent[host[rank]] for shard in shards[rank]) for rank in ranks]
    if hosts > 1 and others is None:
        outside = [sum(n for peer, n in to.items() if host[peer] != host[i]) for i, to in enumerate(run.sent_to)]
        claims.append(on_each_rank("FSDP §3.2.2", "left the host", HYBRID, across, outside, "bytes"))
    norm = 8 * (f - 1)  # a float64 for each of the other shards; the paper leaves it out
    each = sum(collectives.values())
    nbytes = sum(run.width(phase) * times for phase, times in collectives.items())
    inside = [nbytes * sum(map(once, units[rank])) + again[rank] + norm for rank in ranks]
    gathers = f"{p}·({each}Ψ+Ψ_again)" if any(again) else f"{p}·{each}Ψ"
    if g != p:
        gathers = f"({nbytes}Ψ+{p}Ψ_again)" if any(again) else f"{nbytes}Ψ"
    formula = f"{gathers}(F-1)/F + 8(F-1){f' + {HYBRID}' * (hosts > 1)}"
    everything = [run.sent_by(rank) for rank in ranks]
    if others is not None:
        return [*claims, *nothing_else(run, sum(inside) + sum(across) + others)]
    for name, counted, from_host in (("total sent", everything, 0), ("total received", run.received, -1)):
        by_host = [across[(host[rank] + from_host) % hosts * f] for rank in ranks]
        in_all = [mine + other for mine, other in zip(inside, by_host, strict=True)]
        claims.append(on_each_rank("together", name, formula, in_all, counted, "bytes"))
    return claims


def regathered_elements(run: Run, rank: int) -> float:
    """Elements that a rank sends so that layers can be recomputed (papers/chen.py): none if it still holds them."""
    if run.sharding.strategy == "shard_grad_op":
        return 0
    layers = run.accumulate * chen.count_regathered_layers(run.recompute, run.model.layers)
    return once(flats(run, rank)[1], layers)


def collectives_of(run: Run) -> dict[str, int]:
    return fsdp.collectives(run.sharding.strategy != "shard_grad_op", run.accumulate, run.sharding.no_sync)


# ---- the clock -------------------------------------------------------------------------------------------------------


WAY_BACK = {"none": "r+g+b", "post": "max(b,r)+g", "pre": "max(b,r+g)"}


def time_claims(run: Run) -> list[Claim]:
    """No formula gives the time of a step that prefetches more units than the paper's one, or in which several units
    are recomputed together."""
    if run.sharding.prefetch > 1 or run.recompute not in ("none", "selective", "full"):
        return []
    formula = (
        f"Σ {'max(f,g)' if run.sharding.forward_prefetch else 'f+g'} + Σ {WAY_BACK[run.sharding.backward_prefetch]}"
    )
    counted, promised = [rank["time"] for rank in run.counted], [time(run, rank) for rank in range(run.ranks)]
    return [on_each_rank("FSDP §3.3", "a step's time", formula, promised, counted, "units of time")]


def time(run: Run, rank: int) -> float:
    """The time of all forwards and backwards of a step. In a unit of time, a rank runs one parameter's forward, or half
    its backward, or sends it."""
    times, tied = collectives_of(run), run.model.tied
    forward, backward = unit_times(run, rank)
    units = [once(unit) for unit in flats(run, rank).values()]
    again = [0 if tied else units[0], *units[1:-1], units[-1] + units[0] * tied]  # the head gathers the embedding
    nothing, wide = [0.0] * len(units), [unit * run.gradient_bytes / run.bytes.stored for unit in units]
    total = 0.0
    for k in range(1, run.accumulate + 1):
        gathers = units if k <= times["all-gather forward"] else nothing
        gathers_again = again if times["all-gather backward"] else nothing
        reduces = wide if k == run.accumulate or not run.sharding.no_sync else nothing
        total += fsdp.forward_time(forward, gathers, run.sharding.forward_prefetch)
        total += fsdp.backward_time(backward[::-1], gathers_again[::-1], reduces[::-1], run.sharding.backward_prefetch)
    return total


def unit_times(run: Run, rank: int) -> tuple[list[float], list[float]]:
    """The time of each unit's forward and backward. Recomputation counts as equal shares of the blocks' backwards."""
    first, *others, last = sizes_of(run, rank)
    forward: list[float] = [first, *others, last + first * run.model.tied]
    embedding, *blocks, head = forward
    again = chen.runs_again(run.recompute, len(blocks)) / len(blocks)
    return forward, [2 * embedding, *((2 + again) * block for block in blocks), 2 * head]


# ---- on the screen ---------------------------------------------------------------------------------------------------


def letters(run: Run) -> Letters:
    """What the letters of its claims mean."""
    if run.sharding.strategy == "no_shard":
        return letters_in("zero")(run)
    psi = f"parameters, {number(sum(sizes_of(run, 0)))} with each unit's padding"
    mixture = letters_in("expert_parallel")(run) if run.model.experts else {}
    n = f"{run.layout.cp} context ranks" if run.layout.cp > 1 else "ranks"
    return {"Ψ": psi, **letters_in("fsdp")(run), **mixture, "N": n, **letters_in("fsdp-times")(run)}


def print_closing(run: Run) -> None:
    """What overlap saves, and the paper's own figure for hybrid sharding."""
    w, f = run.ranks, run.dividing
    if run.sharding.strategy == "no_shard":
        print_zero_closing(run)
        return
    print_overlap(run)
    if f < w:
        print_across_hosts(run.bytes.stored * sum(sizes_of(run, 0)), w, f)


def print_figures() -> None:
    """How many of the paper's figures are reproduced."""
    print(f"{count_agreeing(fsdp.FIGURES)} figures of the paper are reproduced: python -m minidist papers --paper fsdp")


def print_overlap(run: Run) -> None:
    """How much of the time on the wire is hidden by computation."""
    collectives = sum(run.width(phase) * n for phase, n in collectives_of(run).items()) / run.bytes.stored
    wire = sum(once(unit, collectives) for unit in flats(run, 0).values()) + regathered_elements(run, 0)
    computed = run.accumulate * sum(map(sum, unit_times(run, 0)))
    waited = run.counted[0]["time"] - computed
    hidden = f"{1 - waited / wire:.0%}" if wire else "none"
    print(f"A step's forwards and backwards: {number(computed)} to compute, {number(waited)} to wait")
    print(f"for the wire, which is busy for {number(wire)}: {hidden} of that is hidden.")


def print_across_hosts(m: float, w: int, g: int) -> None:
    """The paper's own figure for what leaves a host, next to what its formula should give."""
    printed, exact = fsdp.across_hosts_as_printed(m, w, g), fsdp.across_hosts(m, w, g)
    print(f"Of the parameters' M = {number(m)} bytes each rank sends {number(exact)} to other hosts.")
    print(f"The FSDP paper prints 2M(W-1)/(GW), {number(printed)}: {printed / exact:.2f} times as much.")


def claims(run: Run) -> list[Claim]:
    """FSDP's claims, and those of context ranks and of experts, if there are any."""
    shares, mixture = shares_of(run), run.model.experts > 0
    held = expert_parallel.activations(run, shares) if mixture else [peak_of_layers(run)]
    if run.layout.cp == 1 and not mixture:
        return own_claims(run, held)
    on_way, added, others = list[Blocks](), 0.0, list[Claim]()
    if run.layout.cp > 1:
        on_way = blocks_on_way(run, validates=run.validate > 0)
        others, added = attention_claims(run)
    if mixture:
        others += [
            *expert_parallel.all_to_alls(run, shares),
            *expert_parallel.exchanges(run, shares),
            *expert_parallel.routing(run),
        ]
        added += expert_parallel.bytes_sent(run, shares)
    return [*own_claims(run, held, on_way, added), *others]


PROMISES = Promises(claims=claims, letters=letters, closing=print_closing, published=print_figures)
