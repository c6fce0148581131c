"""Training on ranks compared with serial training: the same but for the order of sums, or close in mixed precision.

What is compared has losses, and perhaps other series, by step; gradients and parameters by name.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray


def largest_element(x: Array) -> float:
    return float(np.abs(x).max())


def norm(x: Array) -> float:
    """Of single elements, Adam's first updates of lr·g/(|g| + 1e-8) make the rounding error of a gradient near zero a
    million times larger; the norm is as large as before."""
    return float(np.linalg.norm(x))


def largest_difference(
    found: Mapping[str, Array], truth: Mapping[str, Array], size: Callable[[Array], float] = largest_element
) -> float:
    """Over all parameters, the largest difference relative to the parameter."""
    assert found.keys() == truth.keys()
    return max(size(found[name] - truth[name]) / size(truth[name]) for name in truth)


def check_equal(
    found: Mapping[str, Any],
    truth: Mapping[str, Any],
    *series: str,
    size: Callable[[Array], float] = largest_element,
    name: str = "",
) -> None:
    """In float64. name: of the case, where one test has several."""
    for values in ("losses", *series):
        np.testing.assert_allclose(found[values], truth[values], rtol=1e-12, atol=0, err_msg=name)
    for kind in ("gradients", "parameters"):
        assert largest_difference(found[kind], truth[kind], size) < 1e-12, name


def check_close(
    found: Mapping[str, Any], truth: Mapping[str, Any], losses: float = 2e-3, gradients: float = 4e-3
) -> None:
    """In mixed precision: float16 has 11 bits."""
    np.testing.assert_allclose(found["losses"], truth["losses"], rtol=losses)
    for name, gradient in truth["gradients"].items():
        wide = gradient.astype(float)
        error = np.linalg.norm(found["gradients"][name].astype(float) - wide)
        assert error < gradients * np.linalg.norm(wide) + 1e-3 * np.sqrt(gradient.size), name
