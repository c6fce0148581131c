"""DeepSpeed's own estimates of what model states need, version 0.19.6. `estimate_zero2_model_states_mem_needs` and its
sister for ZeRO-3 (runtime/zero/stage_1_and_2.py, stage3.py), and the examples of its documentation (memory.rst).

Ψ: parameters. They count 18Ψ where the ZeRO paper counts 16Ψ: 4 bytes of float32 gradients instead of 2 in float16,
in addition to the 2Ψ of parameters. A node's memory is that of its host, and `factor` is a margin of safety.
"""

from collections.abc import Sequence
from typing import NamedTuple

from minidist.papers.figure import Figure


class Estimate(NamedTuple):
    """Bytes of a node's host memory, and of each GPU's."""

    cpu: float
    gpu: int


def zero2(psi: int, gpus: int, nodes: int = 1, offload: bool = True, factor: float = 1.5) -> Estimate:
    """Stages 1 and 2 on `nodes` of `gpus` each. offload: optimizer states and update in host memory."""
    ranks = gpus * nodes
    if offload:
        return Estimate(psi * max(4 * ranks, 16) * factor, 2 * psi)
    return Estimate(psi * 4 * gpus * factor, 2 * psi + int(18 * psi / ranks))


def zero3(
    psi: int, largest: int, gpus: int, nodes: int = 1, offload_optimizer: bool = True, offload_param: bool = True,
    init: bool = True, factor: float = 1.5,
) -> Estimate:  # fmt: skip
    """Stage 3. largest: parameters of the largest layer, which is gathered with its gradients, 2 + 2 bytes each.

    init: the model is made within zero.Init, so that no rank ever holds all of it. Parameters are offloaded only where
    the optimizer is.
    """
    ranks, gathered, share = gpus * nodes, 4 * largest, 1 / nodes
    if offload_optimizer and offload_param:
        return Estimate(psi * (18 * share if init else max(4 * gpus, 18 * share)) * factor, gathered)
    if offload_optimizer:
        host = psi * (16 * share if init else max(4 * gpus, 16 * share)) * factor
        return Estimate(host, gathered + int(2 * psi / ranks))
    host = (largest if init else psi) * 4 * gpus * factor
    return Estimate(host, gathered + int(18 * psi / ranks))


# ---- what stage 3 gathers (runtime/zero/partitioned_param_coordinator.py), in whole units ---------------------------


def in_passing(
    units: Sequence[tuple[int, int]], tied: bool, threshold: int, first: int, ahead: int, live: float, buffer: int = 0,
    wider: int = 1,
) -> int:  # fmt: skip
    """The most elements of gathered parameters and of gradients that are held at any moment of a step.

    units: for each, its elements in persistent parameters and in others.
    first: elements of the embedding's matrix, which a tied head also reads. Up to the threshold it is persistent.
    ahead: while fewer are under way, the next unit is gathered, too, unless more than `live` would then be gathered.
    buffer: elements of the buffer through which gradients go. Without it, a unit's are summed at once.
    wider: bytes of a gradient over those of a parameter.
    """
    size = {(i, divided): unit[divided] for i, unit in enumerate(units) for divided in (False, True)}
    reads = [[(i, False), (i, True)] for i in range(len(units))]
    both = [(0, first > threshold)] if tied else []  # the embedding's matrix, and what is divided along with it
    reads[-1] += both
    most = 0
    for order in (range(len(units)), range(len(units) - 1, -1, -1)):
        here: set[tuple[int, bool]] = set()
        for turn, unit in enumerate(order):
            later = [flat for next_unit in order[turn + 1 :] for flat in reads[next_unit]]
            here |= {flat for flat in reads[unit] if flat[1]}
            under_way = 0
            for flat in later:
                if not flat[1] or flat in here or not size[flat]:
                    continue
                if under_way >= ahead or sum(size[each] for each in here) + size[flat] > live:
                    break
                here.add(flat)
                under_way += size[flat]
            waiting = both if buffer else {*reads[unit], *both}
            summed = sum(size[flat] for flat in waiting) if order.step < 0 else 0
            most = max(most, sum(size[flat] for flat in here) + wider * (summed + buffer))
            here = {flat for flat in here if flat in later}
    return most


# ---- what it prints --------------------------------------------------------------------------------------------------

# memory.rst: 2,851 million parameters, with 32 in the largest layer, on one node of 8 GPUs; GB are 2³⁰ bytes.
PSI, LARGEST, GPUS = 2_851_000_000, 32_000_000, 8
ROWS = {
    "ZeRO-3, both offloaded": (zero3(PSI, LARGEST, GPUS), "71.69", "0.12"),
    "ZeRO-3, both offloaded, no Init": (zero3(PSI, LARGEST, GPUS, init=False), "127.45", "0.12"),
    "ZeRO-3, optimizer offloaded": (zero3(PSI, LARGEST, GPUS, offload_param=False), "63.72", "0.78"),
    "ZeRO-3, optimizer offloaded, no Init": (
        zero3(PSI, LARGEST, GPUS, offload_param=False, init=False), "127.45", "0.78",
    ),
    "ZeRO-3": (zero3(PSI, LARGEST, GPUS, offload_optimizer=False), "1.43", "6.09"),
    "ZeRO-3, no Init": (zero3(PSI, LARGEST, GPUS, offload_optimizer=False, init=False), "127.45", "6.09"),
    "ZeRO-2, offloaded": (zero2(PSI, GPUS), "127.45", "5.31"),
    "ZeRO-2": (zero2(PSI, GPUS, offload=False), "127.45", "15.93"),
}  # fmt: skip

OLDER = "the documentation still has what an older release computed, 4Ψ + 16Ψ/N; the code of today gives 11.28"

FIGURES = [
    Figure(
        "DeepSpeed's estimates", f"{row}: {where}", printed, "GB", formula, nbytes / 2**30, evidence="code",
        differs=OLDER if (row, where) == ("ZeRO-2", "GPU") else "",
    )
    for row, (estimate, cpu, gpu) in ROWS.items()
    for where, printed, nbytes, formula in (
        ("host", cpu, estimate.cpu, "times 1.5"),
        ("GPU", gpu, estimate.gpu, "2Ψ + 18Ψ/N, 4ψ + 18Ψ/N"),
    )
]  # fmt: skip
