"""ZeRO: Rajbhandari et al., SC 2020, arXiv 1910.02054."""

from collections.abc import Callable
from dataclasses import dataclass

from minidist.papers.figure import Figure, decimals


@dataclass(frozen=True)
class ModelStates:
    """Bytes on one rank."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


def model_states(psi: float, n: int, stage: int, p: int = 2, g: int = 2, k: int = 12) -> ModelStates:
    """Bytes of model states on each of n ranks (section 5, figure 1). Stage 0 is data parallelism.

    p, g, k: bytes a parameter of parameters, gradients and optimizer state: 2, 2, 12 in the paper, with mixed-precision
    Adam.
    Stage 1 divides the optimizer state by n (P_os), stage 2 gradients too (P_os+g), stage 3 parameters too (P_os+g+p).
    """
    return ModelStates(
        parameters=p * psi / (n if stage >= 3 else 1),
        gradients=g * psi / (n if stage >= 2 else 1),
        optimizer=k * psi / (n if stage >= 1 else 1),
    )


def volume(
    psi: float, n: int, stage: int, accumulate: int = 1, kept: float = 0, again: float = 0, persistent: float = 0
) -> dict[str, float]:
    """Elements that each of n ranks sends in one step of `accumulate` micro-batches, by what they are (section 7).

    The paper's 2Ψ, 2Ψ, 2Ψ and 3Ψ, times (N-1)/N, are accumulate = 1. Stages 2 and 3 hold no full gradient, so they
    reduce after every micro-batch: (a+1)Ψ and 3aΨ. In stage 3, `kept` parameters that stay gathered from the forward to
    the backward are not gathered again: 3Ψ - ψ_kept (as FSDP does it, Zhao et al. 2023, section 3.3.1). And `again`
    more are gathered so that layers can be recomputed. `persistent` ones stay on every rank, and are gathered once,
    after the update (DeepSpeed).
    """
    once = psi * (n - 1) / n
    if stage == 0:
        return {"all-reduce gradients": 2 * once}
    if stage == 1:
        return {"reduce-scatter gradients": once, "all-gather parameters": once}
    if stage == 2:
        return {"reduce-scatter gradients": accumulate * once, "all-gather parameters": once}
    return {
        "all-gather forward": accumulate * (psi - persistent) * (n - 1) / n,
        "all-gather backward": accumulate * (psi - kept - persistent) * (n - 1) / n,
        **({"all-gather persistent": persistent * (n - 1) / n} if persistent else {}),
        **({"all-gather again": accumulate * again * (n - 1) / n} if again else {}),
        "reduce-scatter gradients": accumulate * once,
    }


# ---- what it prints --------------------------------------------------------------------------------------------------

STAGES = ("data parallelism", "P_os", "P_os+g", "P_os+g+p")
STATES = ("16Ψ", "4Ψ + 12Ψ/N", "2Ψ + 14Ψ/N", "16Ψ/N")
SIZES = {"7.5B": 7.5e9, "128B": 128e9, "1T": 1e12}


def three_digits(gigabytes: float) -> str:
    """Rounded to three digits, halves up, with at most two decimals: 41.25 to 41.3, 0.117 to 0.12, 30.0 to 30."""
    rounded = decimals(0 if gigabytes >= 100 else 1 if gigabytes >= 10 else 2)(gigabytes)
    return rounded.rstrip("0").rstrip(".") if "." in rounded else rounded


def cut_off(gigabytes: float) -> str:
    """Whole GB, decimals cut off: 513.5 to 513. Below 100 as `three_digits`."""
    return str(int(gigabytes)) if gigabytes > 100 else three_digits(gigabytes)


def format_one_decimal(gigabytes: float) -> str:
    """Rounded to one decimal, halves up: 1.875 to 1.9, 120.0 to 120."""
    return decimals(1)(gigabytes).removesuffix(".0")


def _figure(source: str, model: str, n: int, stage: int, printed: str, rounded: Callable[[float], str]) -> Figure:
    """GB of model states on each of n ranks, for mixed-precision Adam."""
    gigabytes = model_states(SIZES[model], n, stage).total / 1e9
    return Figure(
        source, f"{model}, N = {n}, {STAGES[stage]}", printed, "GB", STATES[stage], gigabytes, rounded=rounded
    )


PRINTED = {
    "7.5B": {
        1: ("120", "120", "120"),
        4: ("52.5", "41.3", "30"),
        16: ("35.6", "21.6", "7.5"),
        64: ("31.4", "16.6", "1.88"),
        256: ("30.4", "15.4", "0.47"),
        1024: ("30.1", "15.1", "0.12"),
    },
    "128B": {
        1: ("2048", "2048", "2048"),
        4: ("896", "704", "512"),
        16: ("608", "368", "128"),
        64: ("536", "284", "32"),
        256: ("518", "263", "8"),
        1024: ("513", "257", "2"),
    },
    "1T": {
        1: ("16000", "16000", "16000"),
        4: ("7000", "5500", "4000"),
        16: ("4750", "2875", "1000"),
        64: ("4187", "2218", "250"),
        256: ("4046", "2054", "62.5"),
        1024: ("4011", "2013", "15.6"),
    },
}

# Table 1: {model: {ranks: P_os, P_os+g, P_os+g+p}}. It rounds the smallest model's, and cuts off the others'.
TABLE_1 = {
    model: {
        n: [_figure("ZeRO Table 1", model, n, stage, printed, rounded) for stage, printed in enumerate(row, start=1)]
        for n, row in rows.items()
    }
    for (model, rows), rounded in zip(PRINTED.items(), (three_digits, cut_off, cut_off), strict=True)
}

FIGURE_1 = [  # stage 0 to 3
    _figure("ZeRO Fig. 1", "7.5B", 64, stage, printed, format_one_decimal)
    for stage, printed in enumerate(("120", "31.4", "16.6", "1.9"))
]

# Table 2, on 64·MP GPUs of 32 GB, in billions of parameters, or where it says T trillions. {model parallelism: the
# largest model by formula, of data parallelism and each stage; and measured, of data parallelism and P_os}.
PRINTED_TABLE_2 = {
    1: (("2", "7.6", "14.4", "128"), ("1.3", "6.2")),
    2: (("4", "15.2", "28.8", "256"), ("2.5", "12.5")),
    4: (("8", "30.4", "57.6", "0.5 T"), ("5", "25")),
    8: (("16", "60.8", "115.2", "1 T"), ("10", "50")),
    16: (("32", "121.6", "230.4", "2 T"), ("20", "100")),
}


def largest_model(mp: int, stage: int, capacity: float = 32e9, n: int = 64) -> float:
    """Parameters of a model whose states fill n·mp GPUs, if mp of them share each layer: mp·capacity, divided by the
    bytes that each parameter takes."""
    return mp * capacity / model_states(1, n, stage).total


def _of_first_row(mp: int, billion: float, trillion: bool) -> Callable[[float], str]:
    """The table computes its first row, to one decimal, and multiplies that: 7.6 by 2 is 15.2, where 7.64 gives 15.3. A
    trillion has 1,024 billions."""

    def rounded(value: float) -> str:
        billions = mp * float(decimals(1)(value * billion / mp))
        return f"{round(billions / 1024 if trillion else billions, 1):g}"

    return rounded


def _table_2() -> list[Figure]:
    made = []
    for mp, (by_formula, measured) in PRINTED_TABLE_2.items():
        for number, (stage, states, printed) in enumerate(zip(STAGES, STATES, by_formula, strict=True)):
            figure, _, trillion = printed.partition(" ")
            unit, billion = ("T parameters", 1000) if trillion else ("B parameters", 1)
            value, rounded = largest_model(mp, number) / billion / 1e9, _of_first_row(mp, billion, bool(trillion))
            formula = f"MP·32 GB/({states}), N = 64"
            made.append(Figure("ZeRO Table 2", f"MP = {mp}, {stage}", figure, unit, formula, value, rounded=rounded))
        for stage, printed in zip(STAGES, measured, strict=False):
            cell, formula = f"MP = {mp}, {stage}, measured", "measured: V100"
            made.append(Figure("ZeRO Table 2", cell, printed, "B parameters", formula))
    return made


TABLE_2 = _table_2()

# Figure 8, with MP = 16: the largest model that trains in each configuration of table 3.
FIGURE_8 = {
    name: Figure("ZeRO Fig. 8", name, printed, "B parameters", "measured: V100, MP = 16")
    for name, printed in {"C1": "40", "C2": "60", "C4": "140", "C5": "150"}.items()
}

GPT_2 = 1.5e9  # parameters of section 3's example: 48 layers of width 1600


def checkpoints(layers: int, h: int, batch: int, s: int, bytes_each: int = 2) -> float:
    """GB of one checkpoint a layer, of bsh elements (section 6.1)."""
    return layers * h * batch * s * bytes_each / 1e9


def _text(section: str, cell: str, printed: str, formula: str, value: float, differs: str = "") -> Figure:
    """A number of GB in the text."""
    return Figure(f"ZeRO {section}", cell, printed, "GB", formula, value, differs=differs)


_BYTE = "with two bytes an element it is 67 GB; section 3.2 has 60 for the same model"
EXAMPLES = [
    _text("§3.1", "1.5B, weights", "3", "2Ψ", 2 * GPT_2 / 1e9),
    _text("§3.1", "1.5B, model states", "24", "16Ψ", 16 * GPT_2 / 1e9),
    _text("§3.2", "1.5B, activations", "60", "12·hbsL elements of two bytes", 12 * checkpoints(48, 1600, 32, 1024)),
    _text("§3.2", "1.5B, a fused buffer in float32", "6", "4Ψ", 4 * GPT_2 / 1e9),
    _text("§3.2", "3B, a fused buffer in float32", "12", "4Ψ", 4 * 3e9 / 1e9),
    _text("§6.1", "100B, checkpoints", "33", "bshL elements of two bytes", checkpoints(125, 8192, 32, 1024), _BYTE),
    _text(
        "§6.1", "100B, checkpoints cut over 16 ranks", "2", "bshL/t elements of two bytes",
        checkpoints(125, 8192, 32, 1024) / 16, _BYTE,
    ),
]  # fmt: skip

VOLUMES = [  # in Ψ, of any N: what N ranks send, times N/(N-1)
    Figure("ZeRO §7", f"sent by {STAGES[stage]}", printed, "Ψ", "sent·N/(N-1)")
    for stage, printed in enumerate(("2", "2", "2", "3"))
]

# Section 1: how many times less stages 1 to 3 hold, "4x" and "8x" if N is large; and "50% increase in communication".
LESS = {
    (stage, n): Figure("ZeRO §1", f"{STAGES[stage]}, N = {n}, memory reduction", printed, "times", formula)
    for stage, n, printed, formula in (
        (1, 256, "4", "16Ψ/(4Ψ + 12Ψ/N)"), (2, 256, "8", "16Ψ/(2Ψ + 14Ψ/N)"), (3, 64, "64", "16Ψ/(16Ψ/N)"),
    )
}  # fmt: skip
MORE_SENT = Figure("ZeRO §1", "P_os+g+p, more communication", "50", "%", "3Ψ/2Ψ - 1")
TRILLION = {  # model states of 10¹² parameters
    1: Figure("ZeRO §1", "1T, model states", "16", "TB", "16Ψ"),
    1024: Figure("ZeRO §1", "1T, N = 1024, model states", "16", "GB", "16Ψ/N"),
}

# Section 8, for each recomputed layer, in elements sent by each of t ranks, times t/(t-1).
BLOCK = Figure("ZeRO §8", "Megatron-LM, a block", "12", "bsh", "sent·t/(t-1)")
BLOCK_P_A = Figure("ZeRO §8", "P_a, in addition", "1", "bsh", "sent·t/(t-1)")

FIGURES = [
    *LESS.values(),
    MORE_SENT,
    *TRILLION.values(),
    *EXAMPLES,
    *VOLUMES,
    BLOCK,
    BLOCK_P_A,
    *(cell for rows in TABLE_1.values() for row in rows.values() for cell in row),
    *FIGURE_1,
    *TABLE_2,
    *FIGURE_8.values(),
]
