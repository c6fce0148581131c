"""The pictures, as they are committed: their bars are as long as what ranks hold and send, and as the papers say."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from minidist.bench import picture
from minidist.claims.screen import UNITS
from minidist.cli.tables import number

ROOT = Path(__file__).parents[2]
PSI, N = 210_752, 4
# Per parameter, on one of N ranks: parameters, gradients, optimizer (ZeRO, Figure 1); and what is sent (section 7).
FIGURE_1 = {
    "data_parallel": (2, 2, 12),
    "zero1": (2, 2, 12 / N),
    "zero2": (2, 2 / N, 12 / N),
    "zero3": (2 / N, 2 / N, 12 / N),
}
SENT = {
    "data_parallel": {"all-reduce gradients": 2},
    "zero1": {"reduce-scatter gradients": 1, "all-gather parameters": 1},
    "zero2": {"reduce-scatter gradients": 1, "all-gather parameters": 1},
    "zero3": {"all-gather forward": 1, "all-gather backward": 1, "reduce-scatter gradients": 1},
}


def groups(path: Path = picture.PICTURE) -> dict[str, ElementTree.Element]:
    """What is drawn, by its id."""
    root = ElementTree.parse(path).getroot()
    return {group.attrib["id"]: group for group in root.iter("{http://www.w3.org/2000/svg}g") if "id" in group.attrib}


def drawn() -> dict[str, float]:
    """The lengths of the bars, in bytes: of each panel, data parallelism's is the measure."""
    edges = lengths(groups(), "held-", "sent-")
    held = sum(edges[f"held-data_parallel-{kind}"] for kind in ("parameters", "gradients", "optimizer"))
    bytes_a_point = {"held": 16 * PSI / held, "sent": 2 * 2 * PSI * (N - 1) / N / edges[ALL_REDUCE]}
    return {name: length * bytes_a_point[name[:4]] for name, length in edges.items()}


def lengths(drawn: dict[str, ElementTree.Element], *panels: str) -> dict[str, float]:
    """Of the bars, in points."""
    edges = {}
    for name, group in drawn.items():
        if name.startswith(panels):
            path = group.find("{http://www.w3.org/2000/svg}path")
            assert path is not None
            x = [float(number) for number in re.findall(r"[ML] (\S+) \S+", path.attrib["d"])]
            edges[name] = max(x) - min(x)
    return edges


ALL_REDUCE = "sent-data_parallel-all-reduce-gradients"
NEAR = 100.0  # bytes: the file has six decimals of a point


def test_bars_are_the_papers() -> None:
    bars = drawn()
    for chapter, factors in FIGURE_1.items():
        for kind, factor in zip(("parameters", "gradients", "optimizer"), factors, strict=True):
            assert bars[f"held-{chapter}-{kind}"] == pytest.approx(factor * PSI, abs=NEAR)
        for phase, factor in SENT[chapter].items():
            name = f"sent-{chapter}-{phase.replace(' ', '-')}"
            assert bars[name] == pytest.approx(2 * factor * PSI * (N - 1) / N, abs=NEAR)


@pytest.mark.parametrize(
    "chapter",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ("zero1", "zero2"))) for name in picture.CHAPTERS],
)
def test_bars_and_numbers_are_counted(chapter: str) -> None:
    """A run now holds and sends what is drawn, and no more; README says so where the picture is not seen."""
    counted, bars = picture.report(chapter), drawn()
    for panel, found in (("held", picture.held(counted)), ("sent", picture.sent(counted))):
        sizes = {f"{panel}-{chapter}-{what.replace(' ', '-')}": size for what, size, _ in found}
        assert sizes == pytest.approx({name: bars[name] for name in sizes}, abs=NEAR)
        assert sizes.keys() == {name for name in bars if name.startswith(f"{panel}-{chapter}-")}
        beside = ("transient", "norm")  # not of what the formula sums up
        total = f"{sum(size for what, size, _ in found if not what.startswith(beside)):,}"
        assert total in picture.PICTURE.read_text()
        assert total in " ".join((ROOT / "README.md").read_text().split())


# Of the larger model: Ψ and ψ of its largest unit, and what is held in which memory, in order of the kinds.
LARGER, UNIT = 810_560, 49_984
HELD = {f"device-{chapter}": [factor * LARGER for factor in factors] for chapter, factors in FIGURE_1.items()} | {
    "device-offload": [2 * LARGER, 0, 0],
    "host-offload": [0, 2 * LARGER / N, 12 * LARGER / N],
    "device-infinity": [2 * 2 * UNIT / N, 0, 0],
    "host-infinity": [2 * 2 * UNIT / N, 2 * LARGER / N, 3 * 12 * UNIT / N],
    "disk-infinity": [2 * LARGER / N, 0, 12 * LARGER / N],
}


def in_memories() -> dict[str, float]:
    edges = lengths(groups(picture.MEMORIES), *(f"{pool}-" for pool in picture.POOLS))
    states = sum(edges[f"device-data_parallel-{kind}"] for kind in ("parameters", "gradients", "optimizer"))
    return {name: length * 16 * LARGER / states for name, length in edges.items()}


def test_bars_of_three_memories_are_the_papers() -> None:
    bars = in_memories()
    for pool in picture.POOLS:
        for chapter in picture.BELOW:
            expected = HELD.get(f"{pool}-{chapter}", [0, 0, 0])
            found = [bars[f"{pool}-{chapter}-{kind}"] for kind in ("parameters", "gradients", "optimizer")]
            assert found == pytest.approx(expected, abs=NEAR)
            if total := sum(expected):
                assert f"{total:,.0f}" in picture.MEMORIES.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("chapter", ["offload", "infinity"])
def test_bars_of_three_memories_are_counted(chapter: str) -> None:
    counted, bars = picture.report(chapter, *picture.LARGER), in_memories()
    for pool in picture.POOLS:
        for kind, size, _ in picture.held(counted, pool):
            assert size == pytest.approx(bars[f"{pool}-{chapter}-{kind}"], abs=NEAR)


def test_the_table_in_readme_is_what_zero3_prints() -> None:
    sample = re.search(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert sample
    rows = [line.split() for line in sample[1].splitlines() if line.endswith("✓")]
    claims = [claim for claim in picture.report("zero3")["claims"] if not claim["claim"].startswith("proof: ")]
    keys = ("source", "claim", "formula")
    told = [
        [*(c[key] for key in keys), number(c["expected"]), number(c["counted"]), UNITS.get(c["unit"], [""])[0], "✓"]
        for c in claims
    ]
    assert rows == [" ".join(row).split() for row in told]


def test_the_picture_is_small_and_has_no_page_of_its_own() -> None:
    assert picture.PICTURE.stat().st_size < 60_000
    page = groups()["patch_1"].find("{http://www.w3.org/2000/svg}path")
    assert page is not None
    assert "fill: none" in page.attrib["style"]
