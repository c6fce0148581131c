"""Printed figures that ranks can count: the chapters are run from their command lines, and their reports are read.

A figure is counted at the paper's own N, or p and m, on ranks of one process. If the paper's model does not fit into a
laptop, bytes per parameter are counted on a small model, and multiplied by the paper's Ψ. Padding counts as parameters:
on 256 ranks and more a unit of the small model is not divided evenly, and each rank holds as much as any other.
"""

from collections.abc import Callable
from typing import Any

from minidist.claims.declared import Job, gpipes, mixtures, models
from minidist.claims.reports import count_here
from minidist.papers import (
    chimera,
    context,
    deepseek_v3,
    dualpipe,
    fsdp,
    korthikanti,
    ring_attention,
    switch,
    v_shapes,
    zero,
    zero_bubble,
    zero_offload,
)
from minidist.papers.figure import Figure

MOST = 256  # ranks of a job that runs unless all are asked for


def run(job: Job) -> list[tuple[Figure, float]]:
    """Start its ranks, and read their report. Raises UsageError if they leave none."""
    report = count_here(job.ranks, f"{job.line} --no-prove") if job.line else None
    return [(figure, read(report)) for figure, read in job.gives]


# ---- ZeRO ------------------------------------------------------------------------------------------------------------

CHAPTERS = ("data_parallel", "zero1", "zero2", "zero3")  # by stage
# One layer of width 64: each unit is divided evenly among 64 ranks, so nothing is padding.
SMALL = "--steps 1 --layers 1 --width 64 --heads 2 --context 4 --validate 0"
STATES = ("parameters", "gradients", "optimizer")


def elements(report: dict[str, Any]) -> float:
    """Ψ with its padding, from what ranks hold: a copy of all parameters, or with ZeRO-3 a part; in two bytes each."""
    held = [rank["parameters"] / 2 for rank in report["memory"]]
    return sum(held) if report["chapter"] == "zero3" else max(held)


def each(report: dict[str, Any], *kinds: str) -> float:
    """Bytes per parameter that the fullest rank holds of these kinds, by default of all model states."""
    return max(sum(rank[kind] for kind in kinds or STATES) for rank in report["memory"]) / elements(report)


def states(psi: float, *kinds: str) -> Callable[[Any], float]:
    """GB of a model of Ψ parameters, at the bytes per parameter that the fullest rank holds."""
    return lambda report: each(report, *kinds) * psi / 1e9


def largest_model(mp: int, billion: float) -> Callable[[Any], float]:
    """The parameters that fill 32 GB of each of n·mp GPUs, at the bytes that one takes here, in `billion` billions."""

    def read(report: dict[str, Any]) -> float:
        return mp * 32 / states(1e9)(report) / billion

    return read


def volume(report: dict[str, Any]) -> float:
    """What a rank sends of parameters and gradients, 2 bytes each, in Ψ, times N/(N-1)."""
    phases, n = report["sent"][0], report["ranks"]
    moved = sum(traffic["bytes"] for phase, traffic in phases.items() if phase != "norm")
    return moved / 2 / report["parameters"] * n / (n - 1)


def zero_on(n: int, stage: int) -> Job:
    """Model states (table 1, figure 1), what fits (table 2) and what is sent (section 7) with one stage on n ranks."""
    gives = [(rows[n][stage - 1], states(zero.SIZES[model])) for model, rows in zero.TABLE_1.items() if stage]
    if n == 64:
        gives += [(zero.FIGURE_1[stage], states(zero.SIZES["7.5B"])), (zero.VOLUMES[stage], volume)]
        cells = {figure.cell: figure for figure in zero.TABLE_2}
        for mp in zero.PRINTED_TABLE_2:
            cell = cells[f"MP = {mp}, {zero.STAGES[stage]}"]
            gives.append((cell, largest_model(mp, 1000 if cell.unit.startswith("T") else 1)))
    small = SMALL if n <= 64 else SMALL.replace("64", "16")
    return Job(n, f"{CHAPTERS[stage]} --batch {n} {small}", gives)


def on_one_gpu() -> Job:
    """What data parallelism holds: sections 3.1 of ZeRO and 2 of ZeRO-Offload, and the first row of its table 1."""
    weights, everything, *_ = zero.EXAMPLES
    gives = [(weights, states(zero.GPT_2, "parameters")), (everything, states(zero.GPT_2))]
    sizes = (8e9, 11e9, 17.2e9)
    gives += [(figure, states(size)) for figure, size in zip(zero_offload.STATES, sizes, strict=True)]
    return Job(1, f"data_parallel --batch 1 {SMALL}", [*gives, (zero_offload.TABLE_1[()][0], each)])


def offloaded() -> Job:
    """The last row of that table: bytes per parameter on the GPU, and how many times less than all."""

    def times_less(report: dict[str, Any]) -> float:
        below = sum(report["below"][0]["host"][kind] for kind in STATES)
        return 1 + below / elements(report) / each(report)

    held, less = zero_offload.TABLE_1["g16", "update super"]
    return Job(1, f"offload --batch 1 {SMALL}", [(held, each), (less, times_less)])


# ---- FSDP ------------------------------------------------------------------------------------------------------------

# What full sharding sends, relative to data parallelism's 2Ψ (section 3.2.1).
FSDP = Job(4, f"fsdp --batch 4 {SMALL}", [(fsdp.FIGURES[0], lambda report: volume(report) / 2)])


# ---- Zero Bubble -----------------------------------------------------------------------------------------------------


def bubble(model: str, m: int, schedule: str) -> Callable[[Any], float]:
    """The bubble rate by the ranks' clocks."""

    def read(report: dict[str, Any]) -> float:
        [row] = [row for row in report["rows"] if (row["model"], row["m"], row["schedule"]) == (model, m, schedule)]
        return row["bubble"]

    return read


def zero_bubble_on(p: int) -> Job:
    """Table 5: the rows for p stages."""
    rows = [row for row in zero_bubble.TABLE_5 if row.p == p]
    gives = [(figure, bubble(row.model, row.m, schedule)) for row in rows for schedule, figure in row.bubble.items()]
    return Job(p, "pipeline --zero-bubble-table", gives)


# ---- folded and crossed pipelines ------------------------------------------------------------------------------------


def most_idle(report: dict[str, Any]) -> float:
    """The idle time of the stage that idles most, between its first and its last work, in forwards."""
    return max(rank["end"] - rank["start"] - rank["busy"] for rank in report["counted"])


def most_in_flight(report: dict[str, Any]) -> float:
    """Micro-batches in flight, or chunks of them, on the fullest stage."""
    return max(rank["in_flight"] for rank in report["counted"])


def pipeline_on(p: int, schedule: str, gives: list[tuple[Figure, Callable[[Any], float]]]) -> Job:
    """A schedule on p ranks, with 2p micro-batches: enough for every formula."""
    model = f"--steps 1 --layers {2 * p} --width 8 --heads 2 --context 4 --batch {2 * p} -m {2 * p}"
    return Job(p, f"pipeline --schedule {schedule} {model}", gives)


def folded() -> list[Job]:
    """Jobs for DeepSeek-V3's table 2, and for Zero Bubble's README, relative to 1F1B's 6(p-1) and 2p half stages."""
    jobs = [
        pipeline_on(p, schedule, [(bubble, most_idle), (held, most_in_flight)])
        for (schedule, p), (bubble, held) in dualpipe.TABLE_2.items()
    ]
    for (schedule, p), figure in v_shapes.TABLE.items():
        gives = [(figure, relative(most_idle, 6 * (p - 1)))]
        if schedule == "zb-v":
            gives.append((v_shapes.ZB_V_HOLDS, relative(most_in_flight, 2 * p)))
        jobs.append(pipeline_on(p, schedule, gives))
    return jobs


def relative(count: Callable[[Any], float], to: int) -> Callable[[Any], float]:
    return lambda report: count(report) / to


def chimera_of(d: int) -> Job:
    """Chimera's bubble on the clock alone, because in its table a backward takes as long as a forward."""
    line = f"pipeline --draw chimera --pp {d} -m {d} --costs 1,0.5,0.5"
    return Job(1, line, [(chimera.TABLE_2[d], lambda report: report["drawn"]["chimera"]["idle"])])


# ---- activations -----------------------------------------------------------------------------------------------------


def recomputed() -> Job:
    """What selective recomputation saves on 8 ranks, of small layers with the papers' as/h: GPT-3's 16, and 12.8."""

    def saved(s: int, h: int) -> Callable[[Any], float]:
        small = f"--sequence-parallel --steps 1 --layers 1 --heads 8 --batch 1 --width {h} --context {s} --validate 0"

        def kept(recompute: str) -> float:
            report = count_here(8, f"tensor_parallel --recompute {recompute} {small} --no-prove")
            return float(report["counted"][0]["layer_activations_with_dropout"])

        return lambda _: 100 * (1 - kept("selective") / kept("none"))

    sizes = (32, 16), (64, 40)
    return Job(8, "", [(figure, saved(*of)) for figure, of in zip(korthikanti.SAVED, sizes, strict=True)])


# ---- mixtures of experts ---------------------------------------------------------------------------------------------


def routed() -> Job:
    """On 8 hosts of one rank each, with a limit of 4: the most hosts that a token goes to; and the balance loss, if all
    experts have the same probability."""
    small = "--steps 1 --layers 1 --width 16 --heads 2 --context 16 --batch 8"
    line = f"expert_parallel --experts 64 --top 8 --ranks-per-host 1 --host-limit 4 {small}"

    def most_hosts(report: Any) -> float:
        return max(i + 1 for rank in report["counted"] for i, tokens in enumerate(rank["hosts"]) if tokens)

    def for_nothing(report: Any) -> float:
        return most_hosts(report) * deepseek_v3.NVLINK / deepseek_v3.INFINIBAND

    uniform = switch.UNIFORM, lambda report: float(report["counted"][0]["uniform"])
    return Job(8, line, [(deepseek_v3.MOST_HOSTS, most_hosts), (deepseek_v3.FREE_EXPERTS, for_nothing), uniform])


# ---- context parallelism ---------------------------------------------------------------------------------------------

LAYERS, BATCH, WIDTH, HEADS = 2, 2, 16, 4
DIVIDED = f"--precision mixed --steps 1 --width {WIDTH} --heads {HEADS} --layers {LAYERS} --batch {BATCH}"


def sent_in(report: Any, rank: int, *phases: str) -> float:
    """Elements that a rank sends in these phases for one layer and one sequence; each has two bytes."""
    return sum(float(report["sent"][rank][phase]["bytes"]) for phase in phases) / 2 / LAYERS / BATCH


def ring_attention_on(n: int) -> Job:
    """Table 2, by what the last of n ranks sends and computes in a step of the ring: its queries see all keys that
    come. From some c on, a block's 4dc² operations take as long as to send its keys and values, 4cd bytes."""
    c = 32

    def nbytes(report: Any) -> float:
        return 2 * sent_in(report, -1, "keys and values forward") / (n - 1)

    def thousands(blocks: Callable[[float], float], flops: float, bandwidth: float) -> Callable[[Any], float]:
        def read(report: Any) -> float:
            pairs = sum(report["counted"][-1]["pairs"][1::n]) / LAYERS / BATCH
            operations = 4 * WIDTH / HEADS * pairs  # a pair of query and key: two products of D
            return blocks((nbytes(report) / c) / (operations / c**2) * flops / bandwidth / 1e3)

        return read

    gives: list[tuple[Figure, Callable[[Any], float]]] = [
        (ring_attention.BLOCK_BYTES, lambda report: nbytes(report) / c / WIDTH)
    ]
    for device, (flops, bandwidth) in ring_attention.DEVICES.items():
        block, sequence = (of for of in ring_attention.FIGURES if of.cell.startswith(f"{device}, "))
        both = flops * 1e12, bandwidth * 1e9
        gives.append((block, thousands(lambda c: c, *both)))
        gives.append((sequence, thousands(ring_attention.tokens_held, *both)))
    return Job(n, f"context_parallel --positions contiguous --context {n * c} {DIVIDED}", gives)


def ulysses_on(p: int) -> list[Job]:
    """What each of p ranks sends in a forward, by Ulysses and by Megatron-LM's sequence parallelism."""
    s, of = 8 * p, context.ULYSSES

    def volume(unit: float, *phases: str) -> Callable[[Any], float]:
        return lambda report: sent_in(report, 0, *phases) * p / (p - 1) / unit

    whole, before = s * WIDTH, "all-to-all before, forward"  # a rank has 3Nh/P of a message of 3Nh
    exchanged = [
        (of["before"], volume(whole / p, before)),
        (of["both"], volume(whole / p, before, "all-to-all after, forward")),
    ]
    layers = volume(whole, "layers: all-gather forward", "layers: reduce-scatter forward")
    return [
        Job(p, f"context_parallel --scheme ulysses --context {s} {DIVIDED}", exchanged),
        Job(p, f"tensor_parallel --sequence-parallel --context {s} {DIVIDED}", [(of["Megatron-LM"], layers)]),
    ]


JOBS = [
    *(zero_on(n, stage) for n in (1, 4, 16) for stage in (1, 2, 3)),
    *(zero_on(64, stage) for stage in (0, 1, 2, 3)),
    *(zero_on(n, stage) for n in (256, 1024) for stage in (1, 2, 3)),
    on_one_gpu(),
    offloaded(),
    FSDP,
    *(zero_bubble_on(p) for p in (8, 16, 32)),
    *folded(),
    *map(chimera_of, chimera.TABLE_2),
    models(),
    gpipes(),
    recomputed(),
    mixtures(),
    routed(),
    ring_attention_on(4),
    *ulysses_on(4),
]
