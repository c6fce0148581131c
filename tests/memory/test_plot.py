"""What is drawn of a step: recorded by hand, and by the command line."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from alone import train_alone
from minidist import UsageError
from minidist.memory import plot
from minidist.memory.colors import QUANTITIES
from minidist.memory.plot import PoolHistory
from minidist.memory.pool import KINDS, Pool
from minidist.programs.chapter import find


def recorded(stage: int, what: str = "instruction") -> PoolHistory:
    """A stage that takes in `stage` + 1 micro-batches of 100 bytes, and finishes them."""
    pool, kept = Pool("device"), []
    parameters = pool.zeros("parameters", 500, np.uint8)
    with plot.recorded([pool]) as histories:
        for k in range(stage + 1):
            kept.append(pool.zeros("activations", 60, np.uint8))
            pool.mark("unit", "block0 forward")
            kept.append(pool.zeros("activations", 40, np.uint8))
            pool.mark(what, f"F{k + 1}")
        for k in range(stage + 1):
            del kept[:2]
            pool.mark(what, f"B{k + 1}")
    pool.hold("gradients", parameters)  # is not recorded any more
    return histories["device"]


def held(state: tuple[int, ...]) -> dict[str, int]:
    return {kind: nbytes for kind, nbytes in zip(KINDS, state, strict=True) if nbytes}


def test_a_history_has_every_state_and_every_boundary() -> None:
    history = recorded(1)
    parameters = {"parameters": 500}
    activations = [0, 60, 60, 100, 100, 160, 160, 200, 200, 100, 0]  # what comes is noted, and what is there at an end
    assert [held(state) for state in history.states] == [
        parameters | ({"activations": nbytes} if nbytes else {}) for nbytes in activations
    ]
    assert [name for _, what, name in history.boundaries if what == "instruction"] == ["F1", "F2", "B1", "B2"]


def test_intervals_are_of_one_width() -> None:
    """Those of a pipeline end with its instructions; elsewhere every boundary is one."""
    staged, plain = recorded(1), recorded(1, "step")
    assert [name for _, _, name in staged.intervals()] == ["F1", "F2", "B1", "B2"]
    assert [name for _, _, name in plain.intervals()] == ["block0 forward", "F1", "block0 forward", "F2", "B1", "B2"]
    places, states = staged.curve()
    assert places == [0, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 1.75, 2, 3]
    assert states == staged.states


def test_ranks_that_hold_the_same_share_a_panel() -> None:
    picture = plot.draw([{"device": recorded(i)} for i in (0, 1, 1, 0)], "A title", "svg").decode()
    texts = [comment.partition(" -->")[0] for comment in picture.split("<!-- ")[1:]]
    assert sorted(text for text in texts if text.startswith(("rank", "each", "A title", "peak"))) == [
        *("A title", "each of ranks 0, 3", "each of ranks 1 to 2"),
        *("peak without workspace: 600.00 B", "peak without workspace: 700.00 B"),
    ]


def test_areas_are_as_high_as_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stage that takes in two micro-batches: 500 bytes of parameters, and on top of them activations, by the
    places in which they come and go. The dotted line is the most without workspace."""
    monkeypatch.setattr(plot, "saved", lambda figure, format: figure)
    figure: Any = plot.draw([{"device": recorded(1)}], "", "svg")
    [axes] = figure.axes
    tops, name_of = dict[str, list[float]](), {to_hex(color): kind for kind, color in QUANTITIES.items()}
    for area in axes.collections:
        [outline] = area.get_paths()
        edge = {x: [y for at, y in outline.vertices if at == x] for x, _ in outline.vertices}
        tops[name_of[to_hex(area.get_facecolor()[0])]] = [max(edge[x]) for x in WHERE[:-1]]
    assert tops["parameters"] == pytest.approx([500.0] * 10)
    # the edge of a step goes through the heights before and after it: the higher one
    assert tops["activations"] == pytest.approx([500, 560, 560, 600, 600, 660, 660, 700, 700, 700])
    assert [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == ":"] == [700]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["F1", "F2", "B1", "B2"]


WHERE = [0, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 1.75, 2, 3]  # states of that stage, as the next test but one has them


@pytest.mark.parametrize("format", plot.FORMATS)
def test_each_format_is_one(format: str) -> None:
    begins = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    assert plot.draw([{"device": recorded(2)}], "", format).startswith(begins[format])


def two_memories(host: str) -> dict[str, PoolHistory]:
    """A device whose arrays go to the host, or, if there is none, nowhere."""
    device, other = Pool("device"), Pool("host")
    with plot.recorded([device, other]) as histories:
        here = device.zeros("gradients", 100, np.uint8)
        device.mark("unit", "head backward")
        there = (other if host else device).zeros("optimizer", 300, np.uint8)
        del here
        device.mark("step", "update")
    assert there.size == 300
    return histories


def test_two_memories_are_recorded_at_the_same_moments() -> None:
    histories = two_memories("host")
    assert [[*held(state).items()] for state in histories["device"].states] == [
        [], [("gradients", 100)], [("gradients", 100)], [("gradients", 100)], [],
    ]  # fmt: skip
    assert [[*held(state).items()] for state in histories["host"].states] == [
        [], [], [], [("optimizer", 300)], [("optimizer", 300)],
    ]  # fmt: skip
    assert histories["device"].boundaries == histories["host"].boundaries
    assert histories["host"].curve()[0] == [0, 1 / 3, 2 / 3, 1, 1.5]


@pytest.mark.parametrize(("host", "panels"), [("host", {"rank 0, device", "rank 0, host"}), ("", {"rank 0"})])
def test_a_memory_that_nobody_uses_is_not_drawn(host: str, panels: set[str]) -> None:
    picture = plot.draw([two_memories(host)], "A title", "svg").decode()
    texts = {comment.partition(" -->")[0] for comment in picture.split("<!-- ")[1:]}
    assert {text for text in texts if text.startswith("rank")} == panels


SMALL = [*("--steps", "3"), *("--layers", "1"), *("--width", "16"), *("--heads", "2"), *("--context", "8")]


def test_the_command_line_draws_a_step_from_the_middle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = tmp_path / "memory.svg"
    assert train_alone(*SMALL, "--memory-plot", str(drawn)) == 0
    picture = drawn.read_text()
    for text in ("train: what a rank holds", "rank 0", "embedding forward", "block0 backward", "update", "optimizer"):
        assert f"<!-- {text}" in picture
    assert picture.count("<!-- update -->") == 1  # it is one step


def refusal(*arguments: str) -> str:
    with pytest.raises(UsageError) as raised:
        find("train").job([*SMALL, *arguments], ranks=1)
    return str(raised.value)


def test_what_cannot_be_drawn_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jpeg, png = str(tmp_path / "a.jpeg"), str(tmp_path / "a.png")
    assert refusal("--memory-plot", jpeg) == f"--memory-plot {jpeg}: give it a name that ends in .pdf, .png or .svg"
    assert refusal("--memory-plot", png, "--steps", "0").endswith(" has no step to draw: ask for --steps 1 or more")
    assert "would overwrite the file of --export" in refusal("--memory-plot", png, "--export", png)
    monkeypatch.setattr(plot, "find_spec", lambda name: None if name == "matplotlib" else SimpleNamespace())
    assert refusal("--memory-plot", png) == "--memory-plot needs matplotlib: pip install --editable '.[lessons]'"
