"""The same numbers at every layout: what passes, what is told of a difference, and the README's example."""

import re
from pathlib import Path

import numpy as np
import pytest

from minidist.claims.fixtures import assert_same_at_every_layout
from minidist.claims.layouts import Layout
from programs import run_module

README = Path(__file__).parents[2] / "minidist/README.md"
FIRST = {"dp": 1, "tp": 1}
Named = dict[str, np.ndarray]


def arrays() -> Named:
    return {"w": np.arange(1.0, 7.0).reshape(2, 3), "b": np.array([3.0, -1.0]), "loss": np.array(2.5)}


def report(changed: Named, layout: Layout, tolerance: float = 1e-12) -> str:
    """What is said of a program whose arrays change so at a layout."""

    def run(at: Layout) -> Named:
        return arrays() if at == FIRST else arrays() | changed

    with pytest.raises(AssertionError) as raised:
        assert_same_at_every_layout(run, [FIRST, layout], tolerance)
    return str(raised.value)


def test_rounding_passes_and_more_does_not() -> None:
    def run(layout: Layout) -> Named:
        return {name: x * (1 + (layout["dp"] > 1) * 1e-13) for name, x in arrays().items()}

    assert_same_at_every_layout(run, [{"dp": 1}, {"dp": 2}, {"dp": 3}])
    with pytest.raises(AssertionError):
        assert_same_at_every_layout(run, [{"dp": 1}, {"dp": 2}], tolerance=1e-14)
    with pytest.raises(ValueError, match="give two or more"):
        assert_same_at_every_layout(run, [{"dp": 1}])


@pytest.mark.parametrize(
    ("factor", "layout", "says"),
    [
        (4, {"dp": 4}, "w: 4 times as large: off by exactly 4 = dp: a sum that should be a mean?"),
        (1 / 4, {"dp": 4, "tp": 2}, "off by exactly 1/4 = 1/dp: a mean that should be a sum"),
        (2, {"dp": 4, "tp": 2}, "off by exactly 2 = tp: a sum"),
        (8, {"dp": 4, "tp": 2}, "off by exactly 8 = dp·tp: a sum"),
        (3, {"dp": 1, "m": 3}, "off by exactly 3 = m: a sum"),
        (2**0.5, {"tp": 2}, "off by exactly √2 = √tp: squares counted 2 times in a norm?"),
        (-1, {"dp": 4}, "-1 times as large: the sign is wrong"),
        (1.7, {"dp": 4}, "1.7 times as large: a factor that is made of no axis"),
    ],
)
def test_a_factor_is_named_and_explained(factor: float, layout: Layout, says: str) -> None:
    said = report({"w": arrays()["w"] * factor}, layout)
    assert says in said
    assert "b:" not in said
    assert said.startswith(" ".join(f"{axis} {n}" for axis, n in layout.items()) + " is not dp 1 tp 1:\n    w: ")


def test_what_is_no_factor_is_not_called_one() -> None:
    swapped = arrays()["w"][::-1]
    assert "w: differs by 0.77, not by a factor" in report({"w": swapped}, {"dp": 2})
    assert "w: not finite" in report({"w": swapped * np.nan}, {"dp": 2})
    assert "w: of shape (3, 2), not (2, 3)" in report({"w": swapped.T}, {"dp": 2})
    assert "new: only at dp 2" in report({"new": swapped}, {"dp": 2})
    assert "w: differs by 1," in report({"w": swapped * 0}, {"dp": 2})
    assert "b: differs by 110, not by a factor" in report({"b": arrays()["b"] + [112.3, 330.0]}, {"dp": 2})


def test_a_long_report_is_cut() -> None:
    many = {f"w{i}": np.ones(1) for i in range(13)}

    def run(layout: Layout) -> Named:
        return {name: x * layout["dp"] for name, x in many.items()}

    with pytest.raises(AssertionError) as raised:
        assert_same_at_every_layout(run, [{"dp": 1}, {"dp": 2}])
    assert str(raised.value).count("\n") == 11
    assert str(raised.value).endswith("and 3 more")


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    """Pasted into a file elsewhere it passes, and it finds a mean over a rank's own rows."""
    [text] = [
        block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "every_layout" in block
    ]
    source = "\n".join(line.removeprefix("  ") for line in text.splitlines())
    assert len(list(filter(None, source.splitlines()))) <= 15
    assert source.count("/ len(x)") == 1
    (tmp_path / "test_right.py").write_text(source)
    (tmp_path / "test_wrong.py").write_text(source.replace("/ len(x)", "/ len(x[rows])"))
    done = run_module("pytest -q -p no:cacheprovider test_right.py test_wrong.py", cwd=tmp_path)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "FAILED test_wrong.py::test_gradients_are_those_of_one_rank" in done.stdout
    said = " ".join(line.removeprefix("E ").strip() for line in done.stdout.splitlines())
    assert "dp 4 is not dp 1: w: 4 times as large: off by exactly 4 = dp: a sum that should be a mean?" in said
