"""A plan in one sentence, next to its rows."""

import re
from functools import cache

import pytest

from minidist.plan import command, search
from minidist.plan.headline import SPENT, headline
from minidist.plan.ties import Row

STORIES = [
    {"model": "llama2-70b", "ranks": 64, "batch": 2**20, "context": 4096},
    {"model": "llama2-70b", "ranks": 32, "batch": 2**20, "context": 4096},
    {"model": "llama2-7b", "ranks": 8, "batch": 2**18, "context": 4096, "device_memory": 40 * 10**9},
]
ALONE = {"model": "gpt2", "ranks": 1, "batch": 4096, "context": 1024}


@cache
def rows_of(number: int) -> list[Row]:
    options = command.PlanOptions(**[*STORIES, ALONE][number])  # type: ignore[arg-type]
    return search.search(command.wanted_of(options), command.cluster_of(options)).rows


@pytest.mark.parametrize("number", [0, 1, 2], ids=[f"{story['model']} on {story['ranks']}" for story in STORIES])
def test_the_reason_is_where_the_next_layout_loses_most(number: int) -> None:
    rows = rows_of(number)
    best = rows[0]
    axes = (best.choice.dp, best.choice.tp, best.choice.cp, best.choice.pp)
    other = next(row for row in rows if (row.choice.dp, row.choice.tp, row.choice.cp, row.choice.pp) != axes)
    said = headline(rows)
    assert said.startswith("Fastest: ")
    numbers = [int(n) for n in re.findall(r"(\d+) (?:data|tensor|context|stages)", said.partition(",")[0])]
    assert numbers == [n for n in axes if n > 1]
    step = best.seconds.step
    losses = {name: 100 * (getattr(other.seconds, name) - getattr(best.seconds, name)) / step for name in SPENT}
    most = max(losses, key=lambda name: losses[name])
    assert f"spends {losses[most]:.1f} % more on {SPENT[most]}" in said


def test_nothing_else_fits() -> None:
    assert headline(rows_of(3)).endswith("No other layout fits.")


def test_a_layout_that_is_as_fast() -> None:
    rows = rows_of(0)
    other = next(row for row in rows if row.choice.axes != rows[0].choice.axes)
    assert "which are as fast, send more" in headline([rows[0], other._replace(seconds=rows[0].seconds)])
