"""What the FSDP paper says of a run, next to what it held, sent, and read off its clock."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from minidist.claims import experts
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.experts import Stored
from minidist.claims.published import count_agreeing, print_zero_closing
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims, states_claims, traffic_claims
from minidist.cli.tables import number
from minidist.layout import Layout
from minidist.papers import chen, fsdp, models, zero
from minidist.papers.collectives import ring_all_reduce

HYBRID = "2M(W-G)/(GW)"


class Blocks(NamedTuple):
    """The most bytes of keys and values on their way on one rank, if ranks divide the sequences."""

    backward: float = 0
    validation: float = 0


def claims(run: Run, held: Sequence[Claim], blocks: Sequence[Blocks] = (), others: float | None = None) -> list[Claim]:
    """What the papers say of this run. held: claims about activations. others: bytes that all ranks send for other
    purposes, if there are any."""
    if run.options.strategy == "no_shard":
        return [*memory_claims(run, stage=0), *held, *traffic_claims(run, stage=0)]
    return [*states(run), *passing_claims(run, blocks), *held, *sent_claims(run, others), *time_claims(run)]


# ---- which rank has what ---------------------------------------------------------------------------------------------


def dividing(run: Run) -> int:
    """F: the number of ranks that divide a unit. Ranks that divide the sequences also divide units."""
    return run.layout.shard * run.layout.cp


def units_of(run: Run, rank: int) -> list[list[Stored]]:
    """The Flats of each unit. The F/P ranks that have the same experts divide these."""
    f = dividing(run)
    [whole] = run.model.without_experts()
    units = [[Stored(models.padded(sum(both), f), f)] for both in whole]
    if run.model.experts:
        for unit in units[1:-1]:
            unit.append(experts.stored(run)[rank])
    return units


def sizes_of(run: Run, rank: int) -> list[int]:
    """ψ: the elements of each unit, padded."""
    return [sum(of.size for of in unit) for unit in units_of(run, rank)]


def once(unit: Sequence[Stored], times: int = 1) -> float:
    """Elements that a rank sends to gather or to reduce-scatter a unit, `times` times."""
    return sum(fsdp.volume(of.size, of.among, times) for of in unit)


# ---- what is held ----------------------------------------------------------------------------------------------------


def states(run: Run) -> list[Claim]:
    """Model states: each host holds them as if it were the only one."""
    if not run.model.experts:
        return memory_claims(replace(run, layout=Layout(dp=dividing(run))), stage=3)
    p, k, held = run.bytes.stored, run.optimizer_bytes, []
    for rank in range(run.ranks):
        psi = sum(of.shard for unit in units_of(run, rank) for of in unit)
        held.append(zero.ModelStates(p * psi, p * psi, k * psi))
    return states_claims(run, held, 3, "", "(Ψd/F+Ψe/(F/P))")


def passing_claims(run: Run, blocks: Sequence[Blocks]) -> list[Claim]:
    """What is held of whole units. A tied embedding, which the head also reads, is held along with each other unit."""
    options, p, ranks = run.options, run.bytes.stored, range(run.ranks)
    tied = " + ψ_emb" * run.model.tied
    ahead = options.forward_prefetch or options.backward_prefetch == "pre"
    window = options.prefetch + 1 if ahead else options.prefetch if options.backward_prefetch == "post" else 1
    gathered, formula = [window_parameters(run, rank, window) for rank in ranks], f"{p}·(max of {window} ψ{tied})"
    everything = [sum(sizes_of(run, rank)) for rank in ranks]
    if options.strategy == "shard_grad_op":
        gathered, formula = everything, f"{p}Ψ"
    bucket, held = [window_parameters(run, rank, 1) for rank in ranks], f"{p}·(max ψ{tied})"
    if options.no_sync:
        bucket, held = everything, f"{p}Ψ"
    whole = [p * n for n in gathered], [p * n for n in bucket]
    arriving = [arriving_bytes(run, rank, of) for rank, of in enumerate(blocks or [Blocks()] * run.ranks)]
    name, letters = ("shards and blocks", " + blocks") if blocks else ("shards to be summed", "")
    return [
        on_each_rank("FSDP §3.4", "gathered at a time", formula, whole[0], run.memory_of("gathered"), "bytes"),
        on_each_rank("FSDP §3.3.4", "whole gradients", held, whole[1], run.memory_of("bucket"), "bytes"),
        on_each_rank("in addition", name, f"{p}·max ψ(F-1)/F{letters}", arriving, run.memory_of("messages"), "bytes"),
    ]


def arriving_bytes(run: Run, rank: int, blocks: Blocks) -> float:
    """The most bytes on their way to a rank at a time: the other ranks' parts of its shard of a unit's gradient. In a
    layer's backward, blocks of keys and values are added to those parts of the unit above. Validation has such blocks
    of all sequences."""
    parts = [run.bytes.stored * sum(of.size - of.shard for of in unit) for unit in units_of(run, rank)]
    return max(*parts, *(above + blocks.backward for above in parts[2:]), blocks.validation)


def window_parameters(run: Run, rank: int, window: int) -> int:
    """Parameters of the largest run of `window` consecutive units, plus those of a tied embedding."""
    units = sizes_of(run, rank)
    always = units.pop(0) if run.model.tied else 0
    return always + max(sum(units[i : i + window]) for i in range(len(units)))


def sent_claims(run: Run, others: float | None) -> list[Claim]:
    """What a rank sends in a step: by phase, to other hosts, and in total."""
    p, f, hosts, ranks = run.bytes.stored, dividing(run), run.layout.hosts, range(run.ranks)
    host, units = [place.host for place in run.places], [units_of(run, rank) for rank in ranks]
    collectives, claims = collectives_of(run), []
    for phase, times in collectives.items():
        formula, sent = (
            f"{p}·{times if times != 1 else ''}Ψ(F-1)/F",
            [p * sum(once(u, times) for u in of) for of in units],
        )
        claims.append(on_each_rank("FSDP §3.2.1", phase, formula, sent, run.sent_in(phase), "bytes"))
    again = [p * regathered_elements(run, rank) for rank in ranks]
    if any(again):
        formula, counted = f"{p}·Ψ_again(F-1)/F", run.sent_in("all-gather again")
        claims.append(on_each_rank("ZeRO §7", "all-gather again", formula, again, counted, "bytes"))
    shards = [[of.shard for unit in of_rank for of in unit] for of_rank in units]
    across = [p * sum(ring_all_reduce(shard, hosts).sent[host[rank]] for shard in shards[rank]) for rank in ranks]
    if hosts > 1 and others is None:
        outside = [sum(n for peer, n in to.items() if host[peer] != host[i]) for i, to in enumerate(run.sent_to)]
        claims.append(on_each_rank("FSDP §3.2.2", "left the host", HYBRID, across, outside, "bytes"))
    norm = 8 * (f - 1)  # a float64 for each of the other shards; the paper leaves it out
    each = sum(collectives.values())
    inside = [p * sum(once(unit, each) for unit in units[rank]) + again[rank] + norm for rank in ranks]
    gathers = f"({each}Ψ+Ψ_again)" if any(again) else f"{each}Ψ"
    formula = f"{p}·{gathers}(F-1)/F + 8(F-1){f' + {HYBRID}' * (hosts > 1)}"
    everything = [run.sent_by(rank) for rank in ranks]
    if others is not None:
        total = sum(inside) + sum(across) + others
        for name, nbytes in (("sent in all", sum(everything)), ("arrived in all", sum(run.received))):
            claims.append(Claim("together", name, "nothing else", total, nbytes, "bytes", "all ranks"))
        return claims
    for name, counted, from_host in (("all that is sent", everything, 0), ("all that arrives", run.received, -1)):
        by_host = [across[(host[rank] + from_host) % hosts * f] for rank in ranks]
        in_all = [mine + other for mine, other in zip(inside, by_host, strict=True)]
        claims.append(on_each_rank("together", name, formula, in_all, counted, "bytes"))
    return claims


def regathered_elements(run: Run, rank: int) -> float:
    """Elements that a rank sends so that layers can run again (papers/chen.py): none if it still holds them."""
    options = run.options
    if options.strategy == "shard_grad_op":
        return 0
    layers = options.accumulate * chen.count_regathered_layers(options.recompute, options.layers)
    return once(units_of(run, rank)[1], layers)


def collectives_of(run: Run) -> dict[str, int]:
    options = run.options
    return fsdp.collectives(options.strategy != "shard_grad_op", options.accumulate, options.no_sync)


# ---- the clock -------------------------------------------------------------------------------------------------------


WAY_BACK = {"none": "r+g+b", "post": "max(b,r)+g", "pre": "max(b,r+g)"}


def time_claims(run: Run) -> list[Claim]:
    """No formula gives the time of a step that prefetches more units than the paper's one, or in which several units
    run again together."""
    options = run.options
    if options.prefetch > 1 or options.recompute not in ("none", "selective", "full"):
        return []
    formula = f"Σ {'max(f,g)' if options.forward_prefetch else 'f+g'} + Σ {WAY_BACK[options.backward_prefetch]}"
    counted, promised = [rank["time"] for rank in run.counted], [time(run, rank) for rank in range(run.ranks)]
    return [on_each_rank("FSDP §3.3", "a step's time", formula, promised, counted, "units of time")]


def time(run: Run, rank: int) -> float:
    """The time of all forwards and backwards of a step. In a unit of time, a rank runs one parameter's forward, or half
    its backward, or sends it."""
    options, times, tied = run.options, collectives_of(run), run.model.tied
    forward, backward = unit_times(run, rank)
    units = [once(unit) for unit in units_of(run, rank)]
    again = [0 if tied else units[0], *units[1:-1], units[-1] + units[0] * tied]  # the head gathers the embedding
    nothing = [0.0] * len(units)
    total = 0.0
    for k in range(1, options.accumulate + 1):
        gathers = units if k <= times["all-gather forward"] else nothing
        gathers_again = again if times["all-gather backward"] else nothing
        reduces = units if k == options.accumulate or not options.no_sync else nothing
        total += fsdp.forward_time(forward, gathers, options.forward_prefetch)
        total += fsdp.backward_time(backward[::-1], gathers_again[::-1], reduces[::-1], options.backward_prefetch)
    return total


def unit_times(run: Run, rank: int) -> tuple[list[float], list[float]]:
    """The time of each unit's forward and backward. Recomputation counts as equal shares of the blocks' backwards."""
    first, *others, last = sizes_of(run, rank)
    forward: list[float] = [first, *others, last + first * run.model.tied]
    embedding, *blocks, head = forward
    again = chen.runs_again(run.options.recompute, len(blocks)) / len(blocks)
    return forward, [2 * embedding, *((2 + again) * block for block in blocks), 2 * head]


# ---- on the screen ---------------------------------------------------------------------------------------------------


def print_closing(run: Run) -> None:
    """The letters, what overlap saves, and the paper's own figure for hybrid sharding."""
    options, w, f = run.options, run.ranks, dividing(run)
    if options.strategy == "no_shard":
        print_zero_closing(run)
        return
    psi = number(sum(sizes_of(run, 0)))
    print(f"F = {f} of W = {w} ranks divide Ψ parameters, {psi} with each unit's padding; ψ: of")
    print("a unit, ψ_emb: of the embedding. In a unit of time a rank runs a parameter's")
    print("forward (f), half its backward (b), or sends it: to gather (g), to reduce (r).")
    print_overlap(run)
    if f < w:
        print_across_hosts(run.bytes.stored * sum(sizes_of(run, 0)), w, f)
    print(f"Figures of the paper that come out: {count_agreeing(fsdp.FIGURES)}. They are listed by")
    print("  python -m minidist papers --paper fsdp")


def print_overlap(run: Run) -> None:
    """How much of the time on the wire is hidden by computation."""
    collectives = sum(collectives_of(run).values())
    wire = sum(once(unit, collectives) for unit in units_of(run, 0)) + regathered_elements(run, 0)
    computed = run.options.accumulate * sum(map(sum, unit_times(run, 0)))
    waited = run.counted[0]["time"] - computed
    hidden = f"{1 - waited / wire:.0%}" if wire else "none"
    print(f"A step's forwards and backwards: {number(computed)} to compute, {number(waited)} to wait")
    print(f"for the wire, which is busy for {number(wire)}: {hidden} of that is hidden.")


def print_across_hosts(m: float, w: int, g: int) -> None:
    """The paper's own figure for what leaves a host, next to what its formula should give."""
    printed, exact = fsdp.across_hosts_as_printed(m, w, g), fsdp.across_hosts(m, w, g)
    print(f"Of the parameters' M = {number(m)} bytes each rank sends {number(exact)} to other hosts.")
    print(f"The FSDP paper prints 2M(W-1)/(GW), {number(printed)}: {printed / exact:.2f} times as much.")
