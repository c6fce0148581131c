"""ZeRO-Offload: Ren et al., USENIX ATC 2021, arXiv 2101.06840. Volumes in elements, sizes in bytes a parameter."""

from minidist.papers.figure import SECOND, Figure

# The data-flow graph of mixed-precision training (section 3.1, figure 2). Its nodes, with the bytes that each holds of
# a parameter, and what flows from one to the next in a step. FWD-BWD is both passes: they read the parameters twice.
FWD_BWD = "FWD-BWD"
NODES = {FWD_BWD: 0, "p16": 2, "g16": 2, "p32": 4, "m32": 4, "v32": 4, "update": 0, "float2half": 0}
EDGES = (
    ("p16", FWD_BWD, 2 + 2),
    (FWD_BWD, "g16", 2),
    ("g16", "update", 2),
    *((state, "update", 4) for state in ("p32", "m32", "v32")),
    *(("update", state, 4) for state in ("p32", "m32", "v32")),
    ("p32", "float2half", 4),
    ("float2half", "p16", 2),
)
SUPER = ("p32", "m32", "v32", "update", "float2half")  # "update super": an edge between two of them is 4 (section 3.3)
LEAST = 4  # bytes that any offloading moves, of a parameter in a step (section 3.3)


def elements_moved(
    psi: float, n: int, stage: int, accumulate: int = 1, gathered: float | None = None
) -> dict[str, float]:
    """Elements that each of n ranks moves in a step: gradients down, parameters up (section 4.2). The paper's is stage
    2 with one micro-batch; what comes later is the owner's shard, so all ranks together move as much as one would.

    Stages 2 and 3 hold no whole gradient, so each micro-batch's shard goes down. In stage 1 it is reduced once.
    gathered: parameters that a step gathers, if their shard is on the host, and goes up for each gather.
    """
    up = psi if gathered is None else gathered
    return {"gradients": psi / n * (accumulate if stage >= 2 else 1), "parameters": up / n}


def step_time(passes: float, update: float, delayed: bool) -> float:
    """The time of a step whose update comes after its passes or, delayed, during the next step's (section 5.2)."""
    return max(passes, update) if delayed else passes + update


# ---- what it prints --------------------------------------------------------------------------------------------------


def _row(where: str, saved: int, memory: str, reduction: str, differs: str = "") -> tuple[Figure, Figure]:
    """A row of table 1: bytes a parameter that stay on the GPU, and how many times less that is."""
    table, left = "ZeRO-Offload Table 1", 16 - saved
    return (
        Figure(table, f"{where}: memory", memory, "M", "16 - offloaded", left, evidence=SECOND, differs=differs),
        Figure(table, f"{where}: reduction", reduction, "times", "16 / memory", 16 / left, evidence=SECOND),
    )


# {what is on the CPU: memory, reduction}
TABLE_1 = {
    (): _row("nothing on the CPU", 0, "16", "1"),
    ("g16",): _row("g16 on the CPU", 2, "14", "1.14"),
    ("update super",): _row("update super on the CPU", 12, "4", "4"),
    ("g16", "update super"): _row("both on the CPU", 14, "4", "8", "8 times less than 16M is 2M, as section 3 says"),
}

STATES = [
    Figure("ZeRO-Offload §2", f"{size}B: model states", printed, "GB", "16M", 16 * size, evidence=SECOND, differs=why)
    for size, printed, why in ((8, "128", ""), (11, "176", ""), (17.2, "284", "16 times 17.2 are 275"))
]

L2L = Figure("ZeRO-Offload §6.2.2", "what L2L moves", "7", "times", "28M / 4M", 28 / LEAST, evidence=SECOND)

MOVED = Figure("ZeRO-Offload §3.3", "moved in a step, at least", "4", "M", "2M down + 2M up", LEAST, evidence=SECOND)

LATENCY = [  # of an update on the authors' machine
    Figure("ZeRO-Offload Table 4", f"{size}B: {what}", printed, "s", "measured", evidence=SECOND)
    for size, row in {
        "1": ("0.22", "1.39", "0.10"), "4": ("1.03", "5.71", "0.64"), "10": ("2.57", "14.76", "1.00"),
    }.items()
    for what, printed in zip(("CPU-Adam", "PyTorch, CPU", "PyTorch, GPU"), row, strict=True)
]  # fmt: skip

FIGURES = [*(figure for row in TABLE_1.values() for figure in row), *STATES, L2L, MOVED, *LATENCY]
