"""Printed figures that ranks can count: the chapters are run from their command lines, and their reports are read.

A figure is counted at the paper's own N, or p and m. If the paper's model does not fit into a laptop, bytes per
parameter are counted on a small model, and multiplied by the paper's Ψ.
"""

import functools
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from minidist import UsageError
from minidist.launch.launcher import OPEN_MPI_AS_ROOT, launch, mpiexec_for
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import count_parameters
from minidist.nn.llama import LlamaConfig
from minidist.nn.llama import llama as llama_units
from minidist.papers import (
    chimera,
    context,
    deepseek_v3,
    deepspeed_moe,
    dualpipe,
    fsdp,
    llama,
    megatron,
    mixtral,
    ptd,
    ring_attention,
    switch,
    v_shapes,
    zero,
    zero_bubble,
)
from minidist.papers.figure import Figure

TIMEOUT = 600.0  # seconds for one job; 64 ranks take about ten to start


class Job(NamedTuple):
    """A chapter's command line, and for each figure, how to read it from the report, in the figure's unit. Without a
    line there is no report."""

    ranks: int
    line: str
    gives: list[tuple[Figure, Callable[[Any], float]]]


def run(job: Job) -> list[tuple[Figure, float]]:
    """Start its ranks, and read their report. Raises UsageError if they leave none."""
    report = read_report(job.ranks, f"{job.line} --no-prove") if job.line else None
    return [(figure, read(report)) for figure, read in job.gives]


def read_report(ranks: int, line: str, **environment: str) -> Any:
    """A chapter's JSON report, whether its claims hold or not. Raises UsageError if there is none. The chapter runs in
    a temporary folder, which is removed with all files that it leaves there."""
    with tempfile.TemporaryDirectory(prefix="minidist-run-") as folder:
        done = perform(f"{line} --json -", ranks, folder, environment)
    try:
        return json.loads(done.stdout)
    except ValueError:
        *_, last = ["no report", *filter(None, done.stderr.splitlines())]
        raise UsageError(f"mpirun -n {ranks} python -m minidist.{line}: {last}") from None


def perform(
    line: str, ranks: int, folder: str, environment: Mapping[str, str], of_mpirun: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a chapter's line on ranks, in a folder, with options of mpirun's. Raises UsageError if it does not end."""
    try:
        return subprocess.run(
            [*mpiexec_for(ranks), *of_mpirun, sys.executable, "-m", *shlex.split(f"minidist.{line}")],
            cwd=folder,
            env={**os.environ, **OPEN_MPI_AS_ROOT, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"mpirun -n {ranks} python -m minidist.{line}: not done after {TIMEOUT:g} s") from None


# ---- ZeRO ------------------------------------------------------------------------------------------------------------

CHAPTERS = ("data_parallel", "zero1", "zero2", "zero3")  # by stage
# One layer of width 64: each unit is divided evenly among 64 ranks, so nothing is padding.
SMALL = "--steps 1 --layers 1 --width 64 --heads 2 --context 4"


def states(psi: float) -> Callable[[Any], float]:
    """GB of a model of Ψ parameters, at the bytes per parameter that the fullest rank holds."""

    def read(report: dict[str, Any]) -> float:
        held = max(rank["parameters"] + rank["gradients"] + rank["optimizer"] for rank in report["memory"])
        return held / report["parameters"] * psi / 1e9

    return read


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
    return Job(n, f"{CHAPTERS[stage]} --batch {n} {SMALL}", gives)


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


# ---- models, as they are declared ------------------------------------------------------------------------------------


def declared(scale: float, v: int, s: int, layers: int, h: int) -> Callable[[Any], float]:
    """The parameters of a GPT, summed over what its units declare, in the given unit. Nothing is allocated."""
    config = GPTConfig(v, s, layers, h // 64, h)
    return lambda _: count_parameters(gpt(config)) / scale


def llama_declared(name: str) -> Callable[[Any], float]:
    """The parameters of a Llama, summed over what its units declare."""
    of = llama.MODELS[name]
    config = LlamaConfig(of.v, of.s, of.layers, of.a, of.kv, of.h, of.f)
    return lambda _: count_parameters(llama_units(config))


def models() -> Job:
    """The sizes of published models, to the unit or as printed. One process counts them."""
    small, sizes = megatron.FIGURES[-1], zip(llama.FIGURES, llama.PRINTED, strict=True)
    gives = [(small, declared(1, 50_257, 1024, 12, 768))]
    gives += [(figure, llama_declared(name)) for figure, name in sizes]
    gives += [(row.size, declared(1e9, megatron.VOCABULARY, 1024, row.layers, row.h)) for row in megatron.TABLE_1]
    gives += [(row.size, declared(1e9, 51_200, 2048, row.layers, row.h)) for row in ptd.TABLE_1]
    return Job(1, "", gives)


# ---- mixtures of experts ---------------------------------------------------------------------------------------------


@functools.cache
def held_by_ranks() -> dict[str, list[Any]]:
    """Published mixtures, declared on 8 ranks that divide the experts: what each rank holds."""
    names = [*mixtral.SHAPES, *map(str, range(len(deepspeed_moe.WIDTHS)))]
    job = launch("minidist.programs.expert_parallel:count_published", 8, names, timeout=TIMEOUT)
    return dict(zip(names, map(list, zip(*job.values, strict=True)), strict=True))


def mixtures() -> Job:
    """The sizes of published mixtures: all parameters, the dense ones counted once; and those that a token uses."""

    def everything(name: str, gates: bool) -> Callable[[Any], float]:
        def read(_: Any) -> float:
            of = held_by_ranks()[name]
            dense = of[0]["dense"] - of[0]["routers"] * (not gates)  # the same on every rank
            return (dense + sum(rank["experts"] for rank in of)) / 1e9

        return read

    def of_token(name: str) -> Callable[[Any], float]:
        return lambda _: held_by_ranks()[name][0]["of a token"] / 1e9

    gives = [(figure, everything(str(i), gates=False)) for i, figure in enumerate(deepspeed_moe.FIGURES)]
    for name, (whole, active) in mixtral.SIZES.items():
        gives += [(whole, everything(name, gates=True)), (active, of_token(name))]
    return Job(8, "", gives)


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
    FSDP,
    *(zero_bubble_on(p) for p in (8, 16, 32)),
    *folded(),
    *map(chimera_of, chimera.TABLE_2),
    models(),
    mixtures(),
    routed(),
    ring_attention_on(4),
    *ulysses_on(4),
]
