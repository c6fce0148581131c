"""Activations with tensor and sequence parallelism: Korthikanti et al. 2022, arXiv 2205.05198.

t ranks share every layer; s: length of a sequence, b: sequences in a micro-batch, h: width, a: heads.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from minidist.papers import ptd
from minidist.papers.collectives import chunk_sizes
from minidist.papers.figure import Figure, from_rounded


def layer_activations(
    s: int, b: int, h: int, a: int, t: int = 1, sequence: bool = False, recompute: str = "none", p: int = 2,
    dropout: bool = True,
) -> float:  # fmt: skip
    """Bytes of activations that a layer of GPT keeps on each of t ranks (Korthikanti et al., table 2).

    With p = 2 bytes an element and 1 for an element of a dropout mask: sbh(10 + 24/t + 5as/ht), where attention's core,
    the last term, is what selective recomputation recomputes. Sequence parallelism divides the 10, too. Without
    dropout there are no masks, and the softmax's output takes the place of dropout's result.
    """
    apart = t if sequence else 1
    if recompute == "full":
        return s * b * h * p / apart
    shared = 4 * p + 2 * dropout  # the input of both norms and of both column-parallel layers, and two dropout masks
    divided = 12 * p  # q, k, v, the input of the projection; the input of GeLU and its output, 4h each
    scores = 0 if recompute == "selective" else core(s, b, a, 1, p, dropout)
    return s * b * h * shared / apart + (s * b * h * divided + scores) / t


def layer_activations_llama(
    s: int, b: int, h: int, a: int, kv: int, f: int, t: int = 1, sequence: bool = False, recompute: str = "none",
    p: int = 2, dropout: bool = True,
) -> list[float]:  # fmt: skip
    """The same count for a layer of Llama, for each of t ranks: k and v are kv/a as wide, the MLP keeps 2f and f."""
    apart = t if sequence else 1
    if recompute == "full":
        return [s * b * h * p / apart] * t
    scores = 0 if recompute == "selective" else core(s, b, a, 1, p, dropout)
    attention = s * b * (2 * h + 2 * (h // a * kv)) * p
    shared = s * b * h * (4 * p + 2 * dropout) / apart
    return [shared + (attention + scores) / t + s * b * 3 * part * p for part in chunk_sizes(f, t)]


def core(s: int, b: int, a: int, t: int = 1, p: int = 2, dropout: bool = True) -> float:
    """Bytes of attention's core on each of t ranks, 5as²b/t: the softmax's output, its dropout mask, and dropout's
    result."""
    return a * s * s * b * (2 * p + 1 if dropout else p) / t


def bytes_freed_before_core(
    s: int, b: int, h: int, t: int = 1, sequence: bool = False, p: int = 2, dropout: bool = True
) -> float:
    """The part of a layer's activations that its backward has used before it reaches attention's core: the MLP's, the
    projection's, and both masks. With selective recomputation, the core exists only from then on."""
    apart = t if sequence else 1
    return s * b * h * ((2 * p + 2 * dropout) / apart + 9 * p / t)


def bytes_freed_before_core_llama(
    s: int, b: int, h: int, f: int, t: int = 1, sequence: bool = False, p: int = 2, dropout: bool = True
) -> list[float]:
    """The same for a layer of Llama, for each of t ranks."""
    shared = s * b * h * (2 * p + 2 * dropout) / (t if sequence else 1)
    return [shared + s * b * h * p / t + s * b * 3 * part * p for part in chunk_sizes(f, t)]


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def layer_flops(s: int, b: int, h: int) -> int:
    """FLOPs of matrix products in a GPT layer's forward: 24bsh² + 4bs²h (appendix A). A backward takes twice that."""
    return 24 * b * s * h * h + 4 * b * s * s * h


def core_flops(s: int, b: int, h: int) -> int:
    """FLOPs of attention's core among these: QKᵀ and the weighted sum of V, 4bs²h."""
    return 4 * b * s * s * h


def model_flops(s: int, b: int, h: int, layers: int, v: int) -> int:
    """FLOPs of the whole model's forward and backward: 72bLsh²(1 + s/6h + v/12hL), logits included (appendix A)."""
    return 3 * (layers * layer_flops(s, b, h) + 2 * b * s * h * v)


def hardware_flops_as_printed(s: int, b: int, h: int, layers: int, v: int) -> int:
    """FLOPs with selective recomputation, as appendix A prints them: 72bLsh²(1 + s/3h + v/12hL). It adds s/6h, 12bs²h
    per layer: three times the core's forward, though only this forward is recomputed."""
    return model_flops(s, b, h, layers, v) + 3 * layers * core_flops(s, b, h)


# ---- what it prints --------------------------------------------------------------------------------------------------


class Table3Model(NamedTuple):
    """A row of table 3; s = 2,048, v = 51,200 and t = 8 in all of them."""

    a: int
    h: int
    layers: int
    b: int  # sequences in a micro-batch


TABLE_3 = {
    "22B": Table3Model(64, 6144, 48, 4),
    "175B": Table3Model(96, 12288, 96, 1),
    "530B": Table3Model(128, 20480, 105, 1),
    "1T": Table3Model(160, 25600, 128, 1),
}
S, V, A100 = 2048, 51_200, 312e12  # A100: FLOP/s at most, in float16
ON = {"22B": (8, 4), "175B": (64, 64), "530B": (280, 280), "1T": (512, 512)}  # table 3's GPUs, and sequences in a step


def saved_by_selective(model: Table3Model) -> float:
    """Per cent of a layer's activations that selective recomputation does not keep: (5as/h)/(34 + 5as/h)."""
    everything, kept = (
        layer_activations(S, model.b, model.h, model.a, recompute=recompute) for recompute in ("none", "selective")
    )
    return 100 * (1 - kept / everything)


def utilization(name: str, seconds: float, flops: Callable[..., int], copies: int = 1) -> float:
    """Percentage of what the GPUs could do in the time of a step, with `copies` copies of the model."""
    model, (gpus, batch) = TABLE_3[name], ON[name]
    return 100 * flops(S, batch * copies, model.h, model.layers, V) / (seconds * gpus * copies * A100)


SIZES = [
    Figure("Korthikanti Table 3", name, printed, unit, "PTD's equation 2", psi / billions)
    for name, printed, unit, billions in (
        ("22B", "22", "B parameters", 1e9),
        ("175B", "175", "B parameters", 1e9),
        ("530B", "530", "B parameters", 1e9),
        ("1T", "1", "T parameters", 1e12),
    )
    for psi in [ptd.parameters(TABLE_3[name].layers, TABLE_3[name].h)]
]

# Table 4: milliseconds of a layer of the 22B model, forward, backward and both; and how much more both are than in the
# first row, where nothing is recomputed. The last row: sequence parallelism and selective recomputation.
PRINTED_TABLE_4 = {
    "baseline": ("7.7", "11.9", "19.6", None),
    "sequence parallel": ("7.2", "11.8", "19.0", "-3"),
    "full": ("7.7", "19.5", "27.2", "39"),
    "selective": ("7.7", "13.2", "20.9", "7"),
    "both": ("7.2", "13.1", "20.3", "4"),
}


def _table_4() -> list[Figure]:
    made = []
    for row, (*times, percent) in PRINTED_TABLE_4.items():
        for what, printed in zip(("forward", "backward", "together"), times, strict=True):
            cell = f"{row}, {what}"
            made.append(Figure("Korthikanti Table 4", cell, printed, "ms", "measured: A100"))
        if percent:
            more = 100 * (float(times[-1]) / float(PRINTED_TABLE_4["baseline"][2]) - 1)
            cell = f"{row}, more time"
            made.append(Figure("Korthikanti Table 4", cell, percent, "%", "both to 19.6 ms", more))
    return made


# Table 5: seconds of a step with full recomputation, and with sequence parallelism and selective recomputation; how
# much more is done in a second; and the second one's model and hardware utilization.
PRINTED_TABLE_5 = {
    "22B": ("1.42", "1.10", "29.0", "41.5", "43.7"),
    "175B": ("18.13", "13.75", "31.8", "51.4", "52.8"),
    "530B": ("49.05", "37.83", "29.7", "56.0", "57.0"),
    "1T": ("94.42", "71.49", "32.1", "56.3", "57.0"),
}


def _table_5() -> list[Figure]:
    source, made = "Korthikanti Table 5", []
    for name, (full, present, gain, mfu, hfu) in PRINTED_TABLE_5.items():
        for what, printed in (("full recomputation", full), ("present work", present)):
            made.append(Figure(source, f"{name}, {what}", printed, "s", "measured: A100"))
        [least, faster, most] = [
            100 * ((float(full) + half) / (float(present) - half) - 1)
            for half in (-0.005, 0, 0.005)  # both times are rounded
        ]
        cell, formula = f"{name}, more a second", f"{full} s to {present} s"
        if most - least < 1:
            made.append(Figure(source, cell, gain, "%", formula, faster, bounds=(least, most)))
        else:  # their rounding leaves it open
            made.append(Figure(source, cell, gain, "%", "measured: A100"))
        for what, printed, flops, formula in (
            ("MFU", mfu, model_flops, f"72bLsh²(1 + s/6h + v/12hL) in {present} s"),
            ("HFU", hfu, hardware_flops_as_printed, f"72bLsh²(1 + s/3h + v/12hL) in {present} s"),
        ):
            percent = from_rounded(partial(utilization, name, flops=flops), present)
            made.append(Figure(source, f"{name}, {what}", printed, "%", formula, *percent))
    of_eight = from_rounded(partial(utilization, "530B", flops=model_flops, copies=8), "39.15")
    formula = "72bLsh²(1 + s/6h + v/12hL) in 39.15 s"
    made.append(Figure("Korthikanti §6", "530B on 2,240 GPUs, time", "39.15", "s", "measured: A100"))
    made.append(Figure("Korthikanti §6", "530B on 2,240 GPUs, MFU", "54.2", "%", formula, *of_eight))
    return made


_MORE = (  # of the per cent that appendix A says selective recomputation adds to a layer's 72bsh²
    "s/6h is 2.78 % and 1.67 %: the paper cuts off what is behind the first decimal. And s/6h is the core forward and"
    " backward; its forward alone, which is what is recomputed, is s/18h: 0.93 % and 0.56 %"
)
SAVED = [
    Figure("Korthikanti §5", f"{name}, saved", printed, "%", "(5as/h)/(34 + 5as/h)", saved_by_selective(model))
    for name, printed, model in (("GPT-3", "70", TABLE_3["175B"]), ("MT-NLG", "65", TABLE_3["530B"]))
]


def _kept(cell: str, printed: str, unit: str, formula: str) -> Figure:
    """A number in a formula of table 2, as far as that is what ranks keep: bytes of a layer. They also keep 16sb of
    means, deviations and log-sum-exps, which the paper leaves out: h is large enough that this is lost in rounding."""
    return Figure("Korthikanti Table 2", cell, printed, unit, formula)


TABLE_2 = {
    "one rank": _kept("no parallelism", "34", "sbh", "selective/sbh"),
    "core": _kept("no parallelism, attention's core", "5", "as²b", "(all - selective)/as²b"),
    "whole": _kept("tensor parallel, not divided", "10", "sbh", "selective - divided/t"),
    "divided": _kept("tensor parallel, divided", "24", "sbh/t", "(t = 1 - t = 8)·8/7"),
    "sequence": _kept("sequence parallel, selective", "34", "sbh/t", "selective·t/sbh"),
    "full": _kept("full recomputation", "2", "sbh", "full/sbh"),
}
CALLS = {
    what: Figure("Korthikanti §4.2.2", cell, "4", "", "calls of a layer")
    for what, cell in (
        ("all-reduce", "tensor parallel, all-reduces"),
        ("all-gather", "sequence parallel, all-gathers"),
        ("reduce-scatter", "sequence parallel, reduce-scatters"),
    )
}
TIMES_LESS = Figure(  # the abstract's "5x", of the models with 5as/h = 64
    "Korthikanti, abstract", "530B and 1T, less activation memory", "5", "times", "(10+24/t+5as/ht)/(34/t)"
)
FIGURES = [
    TIMES_LESS,
    *CALLS.values(),
    *TABLE_2.values(),
    *SAVED,
    *(
        Figure("Korthikanti §5", f"{name}, more FLOPs", printed, "%", "s/6h", 100 * S / (6 * model.h), differs=_MORE)
        for name, printed, model in (("GPT-3", "2.7", TABLE_3["175B"]), ("MT-NLG", "1.6", TABLE_3["530B"]))
    ),
    *SIZES,
    *_table_4(),
    *_table_5(),
]
