"""The same numbers at every layout of ranks, as an assertion; and what a constant factor usually means.

    assert_same_at_every_layout(gradients, [{"dp": 1}, {"dp": 4}, {"dp": 2, "tp": 2}])

In float64, the layout changes only the order of sums. So gradients, losses and parameters agree to about 1e-12, and a
larger difference is a bug. Its size says a lot: a gradient that is exactly dp times too large was summed where its mean
was needed.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Layout = Mapping[str, int]  # the size of each axis: {"dp": 2, "tp": 2}; "m": the number of micro-batches

SAME_FACTOR = 1e-6  # relative: two arrays that differ by less, after one of them is scaled, differ by a factor
SHOWN = 10  # differences in a report


def assert_same_at_every_layout(
    run: Callable[[Layout], Mapping[str, Any]], layouts: Iterable[Layout], tolerance: float = 1e-12
) -> None:
    """Raise AssertionError unless run(layout) gives the same numbers at every layout as at the first one.

    run: arrays or numbers by name: gradients, parameters, losses, a norm. They must be whole, however the layout cuts
    them. tolerance: the norm of a difference, relative to the norm of the first layout's array. The report names what
    differs, the factor if there is one, and what it usually means.
    """
    first, *others = layouts
    if not others:
        raise ValueError("one layout alone is always the same: give two or more")
    truth = {name: np.asarray(value) for name, value in run(first).items()}
    reports = []
    for layout in others:
        found = {name: np.asarray(value) for name, value in run(layout).items()}
        told = [tell(name, found, truth, layout, first, tolerance) for name in {**truth, **found}]
        if told := list(filter(None, told)):
            more = [f"    and {len(told) - SHOWN} more"] if len(told) > SHOWN else []
            reports.append("\n".join([f"{named(layout)} is not {named(first)}:", *told[:SHOWN], *more]))
    if reports:
        raise AssertionError("\n".join(reports))


def tell(
    name: str, found: Mapping[str, Array], truth: Mapping[str, Array], layout: Layout, first: Layout, tolerance: float
) -> str:
    """A line about one array; "" if it is the same."""
    if name not in found or name not in truth:
        return f"    {name}: only at {named(layout if name in found else first)}"
    x, y = (of[name].astype(np.float64).reshape(-1) for of in (found, truth))
    if found[name].shape != truth[name].shape:
        return f"    {name}: of shape {found[name].shape}, not {truth[name].shape}"
    size = float(np.linalg.norm(y))
    off = float(np.linalg.norm(x - y)) / (size or 1.0)
    if off <= tolerance:
        return ""
    if not np.isfinite(x).all():
        return f"    {name}: not finite"
    factor = float(x @ y) / size**2 if size else math.nan
    if off > SAME_FACTOR and np.linalg.norm(x - factor * y) <= SAME_FACTOR * np.linalg.norm(x) and factor:
        return f"    {name}: {factor:.6g} times as large{meaning(factor, layout, first)}"
    by = f"{float(f'{off:.2g}'):g}"  # 110, not 1.1e+02
    return f"    {name}: differs by {by}, not by a factor: other rows, a part left out, or another order of parts?"


def meaning(factor: float, layout: Layout, first: Layout) -> str:
    """What a factor usually means, if it is made of the sizes of axes."""
    axes = {axis: n / first.get(axis, 1) for axis, n in layout.items() if n != first.get(axis, 1)}
    chosen = [some for count in range(1, len(axes) + 1) for some in itertools.combinations(axes, count)]
    products = [(math.prod(axes[axis] for axis in some), "·".join(some)) for some in chosen]
    for value_of, says in MEANINGS:
        for n, names in products:
            if math.isclose(factor, value_of(n), rel_tol=SAME_FACTOR):
                return f": off by exactly {says.format(n=f'{n:g}', names=names)}"
    if math.isclose(factor, -1, rel_tol=SAME_FACTOR):
        return ": the sign is wrong"
    return ": a factor that is made of no axis: other tokens, or another scale of the loss?"


MEANINGS: tuple[tuple[Callable[[float], float], str], ...] = (
    (lambda n: n, "{n} = {names}: a sum that should be a mean?"),
    (lambda n: 1 / n, "1/{n} = 1/{names}: a mean that should be a sum, or a part that is not summed?"),
    (math.sqrt, "√{n} = √{names}: squares counted {n} times in a norm?"),
)


def named(layout: Layout) -> str:
    return " ".join(f"{axis} {n}" for axis, n in layout.items())
