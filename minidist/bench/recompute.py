"""Activation checkpointing: what each policy of `--recompute` keeps, and how much it recomputes.

    python -m minidist recompute

Chen et al., "Training deep nets with sublinear memory cost", 2016: a chain of layers that keep only their input.
Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022: a transformer's layers, which
keep seventeen times their input and more. One process, no MPI. Every number in a column "counted" counts arrays that
lived in a pool, layers that were called, or matrices that were multiplied; next to it is what a formula gives.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from minidist.cli.options import tool
from minidist.cli.tables import mark, number, print_table, say
from minidist.engine import Engine, Settings
from minidist.memory import chain
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.precision import PRECISIONS
from minidist.nn.product import flops
from minidist.papers import chen, korthikanti

CHAIN = 100  # layers: Chen's √n is 10
INTERVALS = (1, 2, 5, 8, 10, 12, 20, 50, 100)


class TinyShape(NamedTuple):
    """The shape of a transformer so small that a step takes no time; trained in float32 without dropout."""

    layers: int
    s: int = 8  # positions: one block of queries in attention, so that all of its scores are computed
    b: int = 1
    h: int = 8
    a: int = 1
    v: int = 11

    @property
    def input_bytes(self) -> int:
        """Bytes of a layer's input."""
        return 4 * self.s * self.b * self.h

    @property
    def layer(self) -> float:
        """Bytes of a layer's activations: Korthikanti's table 2, and the statistics of two norms."""
        kept = korthikanti.layer_activations(self.s, self.b, self.h, self.a, p=4, dropout=False)
        return kept + 4 * 4 * self.s * self.b


DEEP, SMALL = TinyShape(96), TinyShape(12, s=16, h=16)


@cache
def step(shape: TinyShape, recompute: str) -> tuple[int, int]:
    """Run one step of an engine; returns the most bytes of activations, and the FLOPs of all products."""
    config = GPTConfig(shape.v, shape.s, shape.layers, shape.a, shape.h)
    engine = Engine(gpt(config), Settings(PRECISIONS["fp32"], recompute=recompute))
    tokens = np.random.default_rng(0).integers(0, shape.v, (shape.b, shape.s + 1))
    with flops() as counted:
        engine.train_batch(tokens[:, :-1], tokens[:, 1:])
    return engine.device.peak["activations"], counted.count


def main(arguments: Sequence[str]) -> int:
    """Print the tables; returns the exit status: 1 if a count differs from its formula."""
    tool("recompute", __doc__).operands(arguments)
    agree = [*print_chain(), *print_intervals(), *print_flops()]
    return 0 if all(agree) else 1


def print_chain() -> list[bool]:
    """Print Chen's argument, on a chain."""
    n, rows, agree = CHAIN, [], []
    for policy in ("none", *(f"every:{k}" for k in INTERVALS), "sqrt", "log"):
        found, calls = chain.count(n, policy), n + chen.runs_again(policy, n)
        values = 1 + chen.peak_bytes(policy, n, given=1, layer=1)  # the inputs that are kept, and one layer's output
        others = {"none": "n + 1", "log": "⌊log₂n⌋ + 2"}
        formula = others[policy] if policy in others else f"{chen.interval(policy, n)} + n/K"
        agree.append((found.values, found.calls) == (values, calls))
        rows.append([policy, formula, number(values), number(found.values), number(calls), number(found.calls)])
        rows[-1].append(mark(agree[-1]))
    heading = ("formula", "values", "counted", "forwards", "counted", "")
    print_table(f"A chain of n = {n} layers: Chen's K + n/K, and its logarithm", "--recompute", heading, rows)
    held = {k: chain.count(n, f"every:{k}").values for k in range(1, n + 1)}
    best = [str(k) for k, values in held.items() if values == min(held.values())]
    print(f"By trying all K: the least is {min(held.values())}, with K = {', '.join(best)}.")
    print("By formula K = √n.")
    print("Of each recomputed segment one value more is held than it has layers.")
    return agree


def print_intervals() -> list[bool]:
    """Print the best interval of a transformer, by formula and by trying them all."""
    n, given, layer = DEEP.layers, DEEP.input_bytes, DEEP.layer
    tried = range(1, n // 4 + 1)
    best = chain.best_interval(tried, lambda k: step(DEEP, f"every:{k}")[0])
    shown = sorted({*range(1, 7), best, chen.interval("sqrt", n), n // 4})
    rows, agree = [], []
    for policy in ("none", *(f"every:{k}" for k in shown), "sqrt", "log"):
        found, promised = step(DEEP, policy)[0], chen.peak_bytes(policy, n, given, layer)
        agree.append(found == promised)
        rows.append([policy, number(promised), number(found), f"{found / given:.0f}", mark(agree[-1])])
    title = f"A transformer of {n} layers: bytes of activations at the peak of a step"
    print_table(title, "--recompute", ("formula", "counted", "in inputs", ""), rows)
    print(f"A layer keeps {layer / given:.1f} times its input, so K + n/K becomes K·{layer / given:.1f} + n/K:")
    print(
        f"least at K = √(n/{layer / given:.1f}) = {chen.best_interval(n, given, layer):.1f}. By trying K = 1 to", end=""
    )
    print(f" {tried[-1]}: K = {best}.")
    return agree


def print_flops() -> list[bool]:
    """Print what each policy computes more than once."""
    s, b, h, n, v = SMALL.s, SMALL.b, SMALL.h, SMALL.layers, SMALL.v
    model = korthikanti.model_flops(s, b, h, n, v)
    rows, agree = [], []
    for policy in ("none", "selective", "full", "every:3", "sqrt", "log"):
        again, formula = chen.runs_again(policy, n), "r(24bsh²+4bs²h)"
        promised = again * korthikanti.layer_flops(s, b, h)
        if policy == "selective":
            promised, formula = n * korthikanti.core_flops(s, b, h), "l·4bs²h"
        found = step(SMALL, policy)[1] - model
        agree.append(found == promised)
        more = f"{100 * found / model:.1f} %"
        rows.append([policy, formula, number(again), number(promised), number(found), more, mark(agree[-1])])
    title = f"FLOPs more than the {number(model)} of a model of {n} layers"
    print_table(title, "--recompute", ("formula", "r", "formula", "counted", "more", ""), rows)
    printed = korthikanti.hardware_flops_as_printed(s, b, h, n, v) - model
    say(
        "r: forwards of recomputed layers. Korthikanti's appendix A adds s/6h of 72lbsh² for selective"
        " recomputation, 12bs²h a layer: attention's core forward and backward. Its forward alone is recomputed, a"
        f" third: the paper's would be {number(printed)}."
    )
    return agree
