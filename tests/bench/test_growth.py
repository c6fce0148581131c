"""What grows with the ranks: each series counts what its formula gives, and the kept points are of today's series."""

import json
from typing import Any

import pytest

from minidist.bench import growth


@pytest.mark.parametrize("name", growth.SERIES)
def test_counted_is_what_the_formula_gives(name: str) -> None:
    for n in (1, 3, 16):
        point = growth.measure(name, n)
        assert point["messages"] == point["promised messages"]
        assert point["bytes"] == point["promised bytes"]
        assert (point["bytes"] > 0) == (n > 1)


def test_the_kept_points_are_of_todays_series() -> None:
    points = json.loads(growth.POINTS.read_text())
    assert {point["series"] for point in points} == {*growth.SERIES}
    for point in points:
        assert (
            point["messages"] == point["promised messages"] == growth.SERIES[point["series"]].messages(point["ranks"])
        )
        assert point["bytes"] == point["promised bytes"]
    assert growth.PICTURE.read_text().startswith("<?xml")
    readme = growth.README.read_text(encoding="utf-8")
    assert growth.table(points) in readme
    assert growth.replace_table(readme, "a rank", growth.table(points)) == readme


def point(name: str, n: int, ms: float) -> dict[str, Any]:
    return {"series": name, "ranks": n, "messages": n, "bytes": 2 * n, "ms": ms, "memory": 3 * n}


def test_what_would_take_too_long_is_left_out_and_the_table_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """All-to-all on 64 ranks took two minutes: 256 may take half an hour, and some seconds more."""
    monkeypatch.setattr(growth, "measure", lambda name, n: point(name, n, 1880 if "all-to-all" in name else 1))
    points = growth.measure_all(256)
    assert [of["ranks"] for of in points if of["series"] == "expert all-to-all"] == [1, 4, 16, 64]
    assert [of["ranks"] for of in points if of["series"] == "ZeRO-3"] == [1, 4, 16, 64, 256]
    [row] = [line for line in growth.table(points).splitlines() if "all-to-all" in line]
    assert row.endswith("| 64, 128 B, 1880 ms, 192 B | left out: up to 32 minutes |  |")
    assert growth.table(points).count("left out") == 1


def test_a_short_run_keeps_the_points_of_more_ranks() -> None:
    kept = [point("ZeRO-3", 64, 1), point("ZeRO-3", 1024, 1)]
    assert growth.merge(kept, [point("ring all-reduce", 4, 2), point("ZeRO-3", 64, 2)]) == [
        point("ring all-reduce", 4, 2),
        point("ZeRO-3", 64, 2),
        point("ZeRO-3", 1024, 1),
    ]


@pytest.mark.parametrize("name", [name for name in growth.SERIES if name != "ring all-reduce"])
def test_its_time_is_that_of_a_step_alone(name: str) -> None:
    """A proof would be among the seconds of 64 ranks, but not of more."""
    report = growth.count_here(3, growth.SERIES[name].line.format(n=3, positions=3 * growth.CONTEXT))
    assert not [claim for claim in report["claims"] if claim["claim"].startswith("proof")]
