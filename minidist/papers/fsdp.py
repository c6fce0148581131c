"""PyTorch FSDP: Zhao et al., "PyTorch FSDP: Experiences on scaling fully sharded data parallel", VLDB 2023."""

from collections.abc import Sequence

from minidist.papers.figure import Figure, decimals
from minidist.papers.models import padded

# ---- what is sent ----------------------------------------------------------------------------------------------------


def collectives(reshard: bool = True, accumulate: int = 1, no_sync: bool = False) -> dict[str, int]:
    """How often a step of `accumulate` micro-batches gathers each unit, and reduce-scatters its gradient: 3a times
    together, or without resharding after the forward 2a times (sections 3.2.1 and 3.3.4).

    With no_sync, whole gradients add up and are reduced once per step: 2a+1. If units are also not resharded after the
    forward, they stay from micro-batch to micro-batch, as in PyTorch: 2, for any a.
    """
    return {
        "all-gather forward": 1 if no_sync and not reshard else accumulate,
        "all-gather backward": accumulate if reshard else 0,
        "reduce-scatter gradients": 1 if no_sync else accumulate,
    }


def volume(psi: float, f: int, times: float) -> float:
    """Elements that each of f ranks sends in `times` gathers or reduce-scatters of psi elements."""
    return times * psi * (f - 1) / f


def across_hosts(m: float, w: int, g: int) -> float:
    """Elements that each of w ranks on hosts of g sends to other hosts (section 3.2.2): the all-reduce of an m/g shard
    among w/g replicas."""
    return 2 * m * (w - g) / (g * w)


def across_hosts_as_printed(m: float, w: int, g: int) -> float:
    """The paper's figure for it: 0.2344 m instead of 0.1250 m for w = 16 and g = 8."""
    return 2 * m * (w - 1) / (g * w)


# ---- how long it takes -----------------------------------------------------------------------------------------------
# Times of units, in the order in which they run: f or b to compute, g to gather, r to reduce-scatter the gradient. One
# channel carries all collectives in the order in which they are issued (section 3.3.2). With prefetching, two units at
# a time are gathered or on their way (section 3.4).


def forward_time(f: Sequence[float], g: Sequence[float], prefetch: bool) -> float:
    """The time of a forward that waits for each gather, or starts the next one and then computes (section 3.3.3)."""
    if not prefetch:
        return sum(g) + sum(f)
    return g[0] + sum(max(compute, gather) for compute, gather in zip(f, [*g[1:], 0], strict=True))


def backward_time(b: Sequence[float], g: Sequence[float], r: Sequence[float], prefetch: str) -> float:
    """The time of a backward. A unit that needs no gather, because it is here, has g = 0.

    prefetch: when the next gather is issued (section 3.3.2; pre and post are PyTorch's words).

    none   when it is needed, and so after this unit's reduce-scatter: Σ r + g + b
    post   between this unit's backward and its reduce-scatter, which goes on while the next unit computes
    pre    before this unit's backward: it goes on while this unit computes, after the last unit's reduce-scatter
    """
    before, after = [0, *r[:-1]], [*g[1:], 0]  # the reduce-scatter of the unit before, and the gather of the unit after
    units = list(zip(b, before, after, strict=True))
    if prefetch == "pre":
        return g[0] + sum(max(compute, scatter + gather) for compute, scatter, gather in units) + r[-1]
    if prefetch == "post":
        return g[0] + sum(max(compute, scatter) + gather for compute, scatter, gather in units) + r[-1]
    waits = zip(b, before, g, strict=True)
    return (
        sum(scatter + gather + compute if gather else max(compute, scatter) for compute, scatter, gather in waits)
        + r[-1]
    )


# ---- what it prints --------------------------------------------------------------------------------------------------

A100 = 312  # TFLOP/s in bfloat16

OVERHEAD = sum(collectives().values()) / 2  # 3Ψ where data parallelism sends 2Ψ
LINEAR = 4 * 3 + 3  # parameters of a layer, with its bias

ACROSS = Figure(
    "FSDP §3.2.2", "sent to other hosts, W = 16, G = 8", decimals(4)(across_hosts_as_printed(1, 16, 8)), "M",
    "2M(W-G)/(GW)", across_hosts(1, 16, 8),
    differs="2M(W-1)/(GW), filled in: as if the shard of a host's rank went around all W ranks, not W/G replicas",
)  # fmt: skip
LAYER = Figure("FSDP Fig. 3", "a 4x3 linear layer on each of 16 GPUs", "1", "elements", "ψ/F", padded(LINEAR, 16) / 16)
GROUPS = Figure("FSDP Fig. 4", "sharding groups of 16 GPUs, F = 8", "2", "groups", "W/F", 16 / 8)

FIGURES = [
    Figure("FSDP §3.2.1", "volume of full sharding, DDP's = 1", "1.5", "times", "3Ψ/2Ψ", OVERHEAD),
    ACROSS,
    LAYER,
    GROUPS,
    Figure("FSDP §5.4", "175B, batch 1: 173 TFLOPS of an A100", "55", "%", "173/312", 100 * 173 / A100),
    Figure("FSDP §5.4", "175B, batch 2: 186 TFLOPS of an A100", "60", "%", "186/312", 100 * 186 / A100),
]
