"""What grows with the ranks: each series counts what its formula gives, and the kept points are of today's series."""

import json

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


@pytest.mark.parametrize("name", [name for name in growth.SERIES if name != "ring all-reduce"])
def test_its_time_is_that_of_a_step_alone(name: str) -> None:
    """A proof would be among the seconds of 64 ranks, but not of more."""
    report = growth.count_here(3, growth.SERIES[name].line.format(n=3, positions=3 * growth.CONTEXT))
    assert not [claim for claim in report["claims"] if claim["claim"].startswith("proof")]
