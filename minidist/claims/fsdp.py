"""What the FSDP paper says of a run, next to what it held, sent, and read off its clock."""

from dataclasses import replace

from minidist.claims.activations import whole_layers_peak
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.published import count_agreeing, print_zero_closing
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims, traffic_claims
from minidist.cli.tables import number, say
from minidist.layout import Layout
from minidist.papers import chen, fsdp
from minidist.papers.collectives import ring_all_reduce

HYBRID = "2M(W-G)/(GW)"


def claims(run: Run) -> list[Claim]:
    """What the papers say of this run."""
    if run.options.strategy == "no_shard":
        return [*memory_claims(run, stage=0), whole_layers_peak(run), *traffic_claims(run, stage=0)]
    # On each host as if there were no other.
    states = memory_claims(replace(run, layout=Layout(dp=run.layout.shard)), stage=3)
    return [*states, *passing_claims(run), whole_layers_peak(run), *sent_claims(run), *time_claims(run)]


def passing_claims(run: Run) -> list[Claim]:
    """What is held of whole units. A tied embedding, which the head also reads, is held along with each other unit."""
    options, p, f = run.options, run.bytes.stored, run.layout.shard
    units, psi, tied = run.model.units(f), run.model.parameters(f), " + ψ_emb" * run.model.tied
    ahead = options.forward_prefetch or options.backward_prefetch == "pre"
    window = options.prefetch + 1 if ahead else options.prefetch if options.backward_prefetch == "post" else 1
    gathered, formula = window_parameters(run, window), f"{p}·(max of {window} ψ{tied})"
    if options.strategy == "shard_grad_op":
        gathered, formula = psi, f"{p}Ψ"
    bucket, held = (psi, f"{p}Ψ") if options.no_sync else (window_parameters(run, 1), f"{p}·(max ψ{tied})")
    arriving = max(units) * (f - 1) // f
    return [
        on_each_rank("FSDP §3.4", "gathered at a time", formula, p * gathered, run.memory_of("gathered"), "bytes"),
        on_each_rank("FSDP §3.3.4", "whole gradients", held, p * bucket, run.memory_of("bucket"), "bytes"),
        on_each_rank(
            "in addition", "shards to be summed", f"{p}·max ψ(F-1)/F", p * arriving, run.memory_of("messages"), "bytes"
        ),
    ]


def window_parameters(run: Run, window: int) -> int:
    """Parameters of the largest run of `window` consecutive units, plus those of a tied embedding."""
    units = run.model.units(run.layout.shard)
    always = units.pop(0) if run.model.tied else 0
    return always + max(sum(units[i : i + window]) for i in range(len(units)))


def sent_claims(run: Run) -> list[Claim]:
    """What a rank sends in a step: by phase, to other hosts, and together."""
    p, f, hosts = run.bytes.stored, run.layout.shard, run.layout.hosts
    host = [place.host for place in run.places]
    psi, collectives = run.model.parameters(f), collectives_of(run)
    claims = []
    for phase, times in collectives.items():
        formula, elements = f"{p}·{times if times != 1 else ''}Ψ(F-1)/F", fsdp.volume(psi, f, times)
        claims.append(on_each_rank("FSDP §3.2.1", phase, formula, p * elements, run.sent_in(phase), "bytes"))
    again = regathered_elements(run)
    if again:
        formula, counted = f"{p}·Ψ_again(F-1)/F", run.sent_in("all-gather again")
        claims.append(on_each_rank("ZeRO §7", "all-gather again", formula, p * again, counted, "bytes"))
    rings = [ring_all_reduce(unit // f, hosts).sent for unit in run.model.units(f)]
    across = [p * sum(sent[i] for sent in rings) for i in range(hosts)]  # from each rank of the i-th host
    if hosts > 1:
        outside = [sum(sent for peer, sent in to.items() if host[peer] != host[i]) for i, to in enumerate(run.sent_to)]
        promised = [across[i] for i in host]
        claims.append(on_each_rank("FSDP §3.2.2", "left the host", HYBRID, promised, outside, "bytes"))
    norm = 8 * (f - 1)  # a float64 for each of the other shards; the paper leaves it out
    inside = p * (fsdp.volume(psi, f, sum(collectives.values())) + again) + norm
    gathers = f"({sum(collectives.values())}Ψ+Ψ_again)" if again else f"{sum(collectives.values())}Ψ"
    formula = f"{p}·{gathers}(F-1)/F + 8(F-1){f' + {HYBRID}' * (hosts > 1)}"
    sent = [run.sent_by(rank) for rank in range(run.ranks)]
    for name, counted, from_host in (("all that is sent", sent, 0), ("all that arrives", run.received, -1)):
        in_all = [inside + across[(i + from_host) % hosts] for i in host]
        claims.append(on_each_rank("together", name, formula, in_all, counted, "bytes"))
    return claims


def regathered_elements(run: Run) -> float:
    """Elements that each rank sends so that layers can run again (papers/chen.py): none if it still holds them."""
    options, f = run.options, run.layout.shard
    if options.strategy == "shard_grad_op":
        return 0
    layers = options.accumulate * chen.count_regathered_layers(options.recompute, options.layers)
    return fsdp.volume(run.model.units(f)[1], f, layers)


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
    counted = [rank["time"] for rank in run.counted]
    return [on_each_rank("FSDP §3.3", "a step's time", formula, time(run), counted, "units of time")]


def time(run: Run) -> float:
    """Of all forwards and backwards of a step. In a unit of time, a rank runs one parameter's forward, or half its
    backward, or sends it."""
    options, times, tied = run.options, collectives_of(run), run.model.tied
    forward, backward = unit_times(run)
    units = [fsdp.volume(psi, run.layout.shard, 1) for psi in run.model.units(run.layout.shard)]
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


def unit_times(run: Run) -> tuple[list[float], list[float]]:
    """The time of each unit's forward and backward. Recomputation counts as equal shares of the blocks' backwards."""
    forward: list[float] = [*run.model.units(run.layout.shard)[:-1], run.model.read_by_head(run.layout.shard)]
    embedding, *blocks, head = forward
    again = chen.runs_again(run.options.recompute, len(blocks)) / len(blocks)
    return forward, [2 * embedding, *((2 + again) * block for block in blocks), 2 * head]


# ---- on the screen ---------------------------------------------------------------------------------------------------


def print_closing(run: Run) -> None:
    """The letters, what overlap saves, and the paper's own figure for hybrid sharding."""
    options, w, f = run.options, run.ranks, run.layout.shard
    if options.strategy == "no_shard":
        print_zero_closing(run)
        return
    psi = number(run.model.parameters(f))
    print(f"F = {f} of W = {w} ranks divide Ψ parameters, {psi} with each unit's padding; ψ: of")
    print("a unit, ψ_emb: of the embedding. In a unit of time a rank runs a parameter's")
    print("forward, half its backward, or sends it: f, b; g to gather, r to reduce-scatter.")
    print_overlap(run)
    if f < w:
        print_across_hosts(run.bytes.stored * run.model.parameters(f), w, f)
    say(f"Figures of the paper that come out: {count_agreeing(fsdp.FIGURES)}; python -m minidist papers --paper fsdp")


def print_overlap(run: Run) -> None:
    """How much of the time on the wire is hidden by computation."""
    f, collectives = run.layout.shard, sum(collectives_of(run).values())
    wire = fsdp.volume(run.model.parameters(f), f, collectives) + regathered_elements(run)
    computed = run.options.accumulate * sum(map(sum, unit_times(run)))
    waited = run.counted[0]["time"] - computed
    hidden = f"{1 - waited / wire:.0%}" if wire else "none"
    print(f"A step's forwards and backwards: {number(computed)} to compute, {number(waited)} to wait")
    print(f"for the wire, which is busy for {number(wire)}: {hidden} of that is hidden.")


def print_across_hosts(m: float, w: int, g: int) -> None:
    """The paper's own figure for what leaves a host, next to what its formula should give."""
    printed, exact = fsdp.across_hosts_as_printed(m, w, g), fsdp.across_hosts(m, w, g)
    print(f"Of the parameters' M = {number(m)} bytes each rank sends {number(exact)} to other hosts.")
    print(f"The FSDP paper prints 2M(W-1)/(GW), {number(printed)}: {printed / exact:.2f} times as much.")
