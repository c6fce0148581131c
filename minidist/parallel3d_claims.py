"""What the papers say of a run on a grid of ranks, beside what it held and sent; and which grids there can be."""

from minidist import UsageError, papers
from minidist.report import Claim, Run, on_each_rank
from minidist.tensor_claims import (
    SHARD_GRADIENTS,
    TENSOR_NORM,
    Volume,
    activations,
    check_tensor,
    collectives,
    in_all,
    not_cut,
    of_ends,
    of_layers,
    unit_sizes,
)
from minidist.train import Options


def check_layout(options: Options, ranks: int) -> int:
    """Fill in the axes that were left open; among how many ranks the batch is shared out. Raises UsageError for a grid
    that cannot work."""
    tensor = options.tensor or (max(1, ranks // options.data_ranks) if options.data_ranks else 2 - ranks % 2)
    data = options.data_ranks or max(1, ranks // tensor)
    if data * tensor != ranks:
        fits = f"--data {ranks // tensor}" if ranks % tensor == 0 else f"--data {ranks} --tensor 1"
        raise UsageError(
            f"--data {data} x --tensor {tensor} is not {ranks} ranks: use {fits}, or mpirun -n {data * tensor}"
        )
    if options.shard and options.zero < 3:
        raise UsageError("--shard says among whom ZeRO-3 divides parameters: use it with --zero 3")
    shard = options.shard or data
    if data % shard:
        works = max(n for n in range(1, shard) if data % n == 0)
        raise UsageError(f"--data {data} is not divisible by --shard {shard}: use --shard {works}")
    check_tensor(options, tensor)
    options.data_ranks, options.shard, options.tensor = data, shard, tensor
    return data


def claims(run: Run) -> list[Claim]:
    """Axis by axis; then everything together."""
    options, t, d = run.options, run.options.tensor, run.options.data_ranks
    shares = [papers.chunk_sizes(options.batch // options.accumulate, d)[rank // t] for rank in range(run.ranks)]
    tensor = [*of_layers(run, t, shares), *of_ends(run, t, shares)]
    data = of_data(run)
    copies = d if options.zero == 0 else d // options.shard
    beside = {
        SHARD_GRADIENTS: not_cut(run, t, copies),
        TENSOR_NORM: 8 * (t - 1) * run.ranks,
        "norm": 8 * (options.shard - 1) * run.ranks if options.zero else 0,
    }
    return [
        *memory(run),
        activations(run, t, shares),
        *(collectives(run, t) if t > 1 else []),
        *(volume.claim(run) for volume in [*tensor, *data] if any(volume.elements)),
        *left_host(run),
        *in_all(run, [*tensor, *data], beside),
    ]


def padded_units(run: Run) -> list[list[int]]:
    """For each rank, its tensor-parallel part of each unit, padded so that its data axis can divide it."""
    options = run.options
    by_part = [
        [-(-size // options.shard) * options.shard for size in units] for units in unit_sizes(run, options.tensor)
    ]
    return [by_part[rank % options.tensor] for rank in range(run.ranks)]


def memory(run: Run) -> list[Claim]:
    """ZeRO's formulas for the part of the model that tensor parallelism leaves to a rank."""
    stage, p, k = run.options.zero, run.precision.bytes, run.precision.optimizer_bytes(run.moments)
    states = [papers.zero_memory(sum(units), run.options.shard, stage, p, p, k) for units in padded_units(run)]
    claims = []
    for kind, factor, divided in (
        ("parameters", p, stage >= 3),
        ("gradients", p, stage >= 2),
        ("optimizer", k, stage >= 1),
    ):
        expected = [getattr(state, kind) for state in states]
        formula = f"{factor}Ψt/G" if divided else f"{factor}Ψt"
        claims.append(on_each_rank(f"ZeRO §5.{max(stage, 1)}", kind, formula, expected, run.memory_of(kind), "bytes"))
    return claims


def of_data(run: Run) -> list[Volume]:
    """What a rank sends along the data axis in a step, for its part of the model."""
    options, p = run.options, run.precision.bytes
    g, a, stage = options.shard, options.accumulate, options.zero
    once = [sum(sizes) * (g - 1) // g for sizes in padded_units(run)]
    if stage == 0:
        twice = [2 * n for n in once]
        return [Volume("ZeRO §7", "sum gradients", "2Ψt(G-1)/G", ["all-reduce gradients"], twice, 1, p)]
    times = a if stage >= 2 else 1
    scatter = Volume("ZeRO §7", "sum gradients", "Ψt(G-1)/G", ["reduce-scatter gradients"], once, times, p)
    if stage < 3:
        return [scatter, Volume("ZeRO §7", "get parameters", "Ψt(G-1)/G", ["all-gather parameters"], once, 1, p)]
    gathers, twice = ["all-gather forward", "all-gather backward"], [2 * n for n in once]
    volumes = [Volume("ZeRO §7", "get parameters", "2Ψt(G-1)/G", gathers, twice, a, p), scatter]
    if options.data_ranks > g:
        volumes.append(Volume("FSDP §3.2.2", "sum over hosts", HYBRID, ["all-reduce across hosts"], across(run), 1, p))
    return volumes


HYBRID = "2Ψt(W-G)/(GW)"


def across(run: Run) -> list[int]:
    """Elements that each rank sends to sum its shard of every unit over the hosts."""
    options = run.options
    hosts, ranks_of_host = options.data_ranks // options.shard, options.tensor * options.shard
    return [
        sum(papers.ring_all_reduce(size // options.shard, hosts).sent[rank // ranks_of_host] for size in sizes)
        for rank, sizes in enumerate(padded_units(run))
    ]


def left_host(run: Run) -> list[Claim]:
    """Everything that left a host, whatever it was sent for, told by its receiver."""
    if run.options.data_ranks == run.options.shard:
        return []
    p = run.precision.bytes
    promised, counted = [p * elements for elements in across(run)], [counts["left_host"] for counts in run.counted]
    return [on_each_rank("FSDP §3.2.2", "bytes to others", f"{p}·{HYBRID}", promised, counted, "bytes")]


def print_closing(run: Run) -> None:
    """The letters; and of hybrid sharding, the paper's own figure."""
    options, m = run.options, sum(padded_units(run)[0]) * run.precision.bytes
    w, g, t = options.data_ranks, options.shard, options.tensor
    print(f"W = {w} data- x t = {t} tensor-parallel ranks; G = {g} of the W divide model states.")
    print("Ψt: the parameters that tensor parallelism leaves to a rank, padded.")
    if w > g:
        printed, exact = papers.hybrid_across_as_printed(m, w, g), papers.hybrid_across(m, w, g)
        print(f"Of the parameters' M = {m:,} bytes each rank sends {exact:,.0f} to other hosts.")
        print(f"The FSDP paper prints 2M(W-1)/(GW), {printed:,.0f}: {printed / exact:.2f} times as much.")
