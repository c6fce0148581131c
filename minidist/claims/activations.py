"""What layers kept, next to the formulas; and how the papers write these."""

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.run import Run
from minidist.formulas.activations import all_keep
from minidist.formulas.shares import shares_of


def peak_of_layers(run: Run) -> Claim:
    """The most that layers keep for their backward at any moment of the training, over all micro-batches."""
    most = [kept.most for kept in all_keep(run, shares_of(run))]
    recompute = "none" if run.tiled and run.recompute == "selective" else run.recompute
    formula = peak_formula(recompute, run.bytes.stored, run.layout.tp, run.sequence_parallel)
    return on_each_rank("Chen", "layers' peak", formula, most, run.memory_of("activations"), "bytes")


def formula_of_layers(recompute: str, p: int, t: int, sequence: bool) -> str:
    """The formula for what all layers keep together, if some keep only their inputs."""
    given = activation_formula(p, t, sequence, "full", False)
    return f"⌊log₂l⌋{given} + layer" if recompute == "log" else f"⌈l/{letter(recompute)}⌉{given}"


def peak_formula(recompute: str, p: int, t: int, sequence: bool) -> str:
    """The formula for the most that all layers hold together."""
    given = activation_formula(p, t, sequence, "full", False)
    if recompute == "log":
        return formula_of_layers(recompute, p, t, sequence)
    k = letter(recompute)
    others = {"none": "l·layer", "selective": "l·layer+max(0, core-gone)", "full": f"(l-1){given} + layer"}
    return others.get(recompute, f"(⌈l/{k}⌉-1){given} + {k}·layer")


def letter(recompute: str) -> str:
    """The number of layers that run again together, as formulas write it."""
    return "⌊√l⌉" if recompute == "sqrt" else recompute.removeprefix("every:")


def activation_formula(p: int, t: int, sequence: bool, recompute: str, dropout: bool, tiled: bool = False) -> str:
    """The formula for one layer, as Korthikanti's table 2 writes it, for elements of p bytes, plus the statistics. In
    tiles, a log-sum-exp of each query and head is in the place of the core."""
    shared, core = 4 * p + 2 * dropout, 2 * p + 1 if dropout else p
    statistics = f"{4 * max(p, 4)}sb"
    attention = f"+{max(p, 4)}a/ht" if tiled else "" if recompute == "selective" else f"+{core}as/ht"
    if recompute == "full":
        formula = f"{p}sbh/t" if sequence else f"{p}sbh"
    elif sequence or t == 1:
        formula = f"sbh({shared + 12 * p}/t{attention}) +{statistics}/t"
    else:
        formula = f"sbh({shared}+{12 * p}/t{attention})+{statistics}"
    return formula if t > 1 else formula.replace("/ht", "/h").replace("/t", "")
