"""Printed figures that ranks can count: the chapters are run from their command lines, and their reports are read.

A figure is counted at the paper's own N, or p and m, on ranks of one process. If the paper's model does not fit into a
laptop, bytes per parameter are counted on a small model, and multiplied by the paper's Ψ. Padding counts as parameters:
on 256 ranks and more a unit of the small model is not divided evenly, and each rank holds as much as any other.
"""

import importlib
from collections.abc import Callable
from typing import Any

from minidist.claims import divided, fewer, staged
from minidist.claims.declared import Job, gpipes, mixtures, models, report_on, sent
from minidist.exchange.one_process import run_ranks
from minidist.papers import fsdp, local_sgd, mixed_precision, parameter_server, zero, zero_offload
from minidist.papers.figure import Figure

MOST = 256  # ranks of a job that runs unless all are asked for


def run(job: Job) -> list[tuple[Figure, float]]:
    """Start its ranks, and read their report. Raises UsageError if they leave none."""
    report = report_on(job.ranks, job.line) if job.line else None
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


def times_less(report: dict[str, Any]) -> float:
    """How many times less the fullest rank holds than one rank that divides nothing."""
    return each(report_on(1, on_one_gpu().line)) / each(report)


def more_sent(report: dict[str, Any]) -> float:
    """Per cent that a rank sends in addition to what data parallelism sends."""
    return 100 * (volume(report) / volume(report_on(report["ranks"], zero_on(report["ranks"], 0).line)) - 1)


def zero_on(n: int, stage: int) -> Job:
    """Model states (table 1, figure 1), what fits (table 2) and what is sent (section 7) with one stage on n ranks."""
    gives = [(rows[n][stage - 1], states(zero.SIZES[model])) for model, rows in zero.TABLE_1.items() if stage]
    if n == 64:
        gives += [(zero.FIGURE_1[stage], states(zero.SIZES["7.5B"])), (zero.VOLUMES[stage], volume)]
        cells = {figure.cell: figure for figure in zero.TABLE_2}
        for mp in zero.PRINTED_TABLE_2:
            cell = cells[f"MP = {mp}, {zero.STAGES[stage]}"]
            gives.append((cell, largest_model(mp, 1000 if cell.unit.startswith("T") else 1)))
    if (stage, n) in zero.LESS:
        gives.append((zero.LESS[stage, n], times_less))
    if (stage, n) == (3, 64):
        gives.append((zero.MORE_SENT, more_sent))
    if (stage, n) == (3, 1024):
        gives.append((zero.TRILLION[n], states(1e12)))
    small = SMALL if n <= 64 else SMALL.replace("64", "16")
    return Job(n, f"{CHAPTERS[stage]} --batch {n} {small}", gives)


def on_one_gpu() -> Job:
    """What data parallelism holds: sections 3.1 of ZeRO and 2 of ZeRO-Offload, and the first row of its table 1."""
    weights, everything, *_ = zero.EXAMPLES
    gives = [(weights, states(zero.GPT_2, "parameters")), (everything, states(zero.GPT_2))]
    sizes = (8e9, 11e9, 17.2e9)
    gives += [(figure, states(size)) for figure, size in zip(zero_offload.STATES, sizes, strict=True)]
    gives += [(zero_offload.TABLE_1[()][0], each), (zero.TRILLION[1], states(1e9))]
    return Job(1, f"data_parallel --batch 1 {SMALL}", gives)


def offloaded() -> Job:
    """The last row of that table: bytes per parameter on the GPU, and how many times less than all."""

    def times_less(report: dict[str, Any]) -> float:
        below = sum(report["below"][0]["host"][kind] for kind in STATES)
        return 1 + below / elements(report) / each(report)

    def moved(report: dict[str, Any]) -> float:
        """Bytes between the rank's two memories, in M."""
        kinds = [of for way in report["moved"][0].values() for of in way.values()]
        return sum(of["bytes"] for of in kinds) / elements(report)

    held, less = zero_offload.TABLE_1["g16", "update super"]
    gives = [(held, each), (less, times_less), (zero_offload.MOVED, moved)]
    return Job(1, f"offload --batch 1 {SMALL}", gives)


# ---- FSDP ------------------------------------------------------------------------------------------------------------

# What full sharding sends, relative to data parallelism's 2Ψ (section 3.2.1).
SHARDED = Job(4, f"fsdp --batch 4 {SMALL}", [(fsdp.FIGURES[0], lambda report: volume(report) / 2)])


def hybrid() -> Job:
    """16 ranks on hosts of 8: how many groups hold the parameters (figure 4), what a rank sends to other hosts (section
    3.2.2), and its shard of the layer of figure 3."""

    def shard(_: Any) -> float:
        program = importlib.import_module("minidist.programs.fsdp")
        return float(max(run_ranks(lambda comm: program.hold_linear(comm, 4, 3), 16)))

    def groups(report: dict[str, Any]) -> float:
        return float(sum(rank["parameters"] for rank in report["memory"]) / 2 / report["parameters"])

    def across(report: dict[str, Any]) -> float:
        return sent(report, "all-reduce across hosts") / 2 / report["parameters"]

    line = f"fsdp --strategy hybrid_shard --ranks-per-host 8 --batch 16 {SMALL}"
    return Job(16, line, [(fsdp.GROUPS, groups), (fsdp.ACROSS, across), (fsdp.LAYER, shard)])


# ---- fewer bytes, and more -------------------------------------------------------------------------------------------

TINY = "--layers 1 --width 8 --heads 2 --context 4 --validate 0"


def seldom() -> Job:
    """DiLoCo's 8 workers and 500 steps: what data parallelism sends in as many, relative to what they send."""
    workers, steps = local_sgd.WORKERS, local_sgd.EVERY

    def less(report: dict[str, Any]) -> float:
        step = report_on(workers, f"data_parallel --precision fp32 --batch {workers} --steps 1 {TINY}")
        return report["steps"] * sent(step, "all-reduce gradients") / float(report["counted"][0]["sent"])

    line = f"local_sgd --every {steps} --steps {steps} --batch {workers} {TINY}"
    return Job(workers, line, [(local_sgd.LESS, less)])


def cached_keys() -> Job:
    """The parameter server's keys and values, both of 8 bytes, to and from two workers in 100 steps."""

    def nbytes(report: dict[str, Any]) -> float:
        """What all ranks send, headers apart."""
        sent = [of["bytes"] for phases in report["sent"] for phase, of in phases.items() if phase != "headers"]
        return float(sum(sent))

    def saved(report: dict[str, Any]) -> float:
        return 100 * (1 - nbytes(report) / nbytes(report_on(3, line.format("list"))))

    line = f"parameter_server --keys {{}} --precision fp64 --batch 4 --steps 100 {TINY}"
    return Job(3, line.format("cached"), [(parameter_server.CACHED, saved)])


def master_copy() -> Job:
    """Weights and their master copy. Moments take four bytes each with both precisions: what else the optimizer keeps
    in mixed precision is the copy."""

    def more(report: dict[str, Any]) -> float:
        [mixed], [single] = report["memory"], report_on(1, line.format("fp32"))["memory"]
        copy = mixed["optimizer"] - single["optimizer"]
        return 100 * float((mixed["parameters"] + copy) / single["parameters"] - 1)

    line = f"data_parallel --precision {{}} --batch 1 --steps 1 {TINY}"
    return Job(1, line.format("mixed"), [(mixed_precision.MORE, more)])


JOBS = [
    *(zero_on(n, stage) for n in (1, 4, 16) for stage in (1, 2, 3)),
    *(zero_on(64, stage) for stage in (0, 1, 2, 3)),
    *(zero_on(n, stage) for n in (256, 1024) for stage in (1, 2, 3)),
    on_one_gpu(),
    offloaded(),
    SHARDED,
    hybrid(),
    seldom(),
    cached_keys(),
    master_copy(),
    models(),
    gpipes(),
    mixtures(),
    *staged.JOBS,
    *divided.JOBS,
    *fewer.JOBS,
]
