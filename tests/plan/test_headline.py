"""A plan in one sentence, next to its rows."""

import re

import pytest

from minidist.plan import command, search
from minidist.plan.headline import SPENT, headline

STORIES = [
    {"model": "llama2-70b", "ranks": 64, "batch": 2**20, "context": 4096},
    {"model": "llama2-70b", "ranks": 32, "batch": 2**20, "context": 4096},
    {"model": "llama2-7b", "ranks": 8, "batch": 2**18, "context": 4096, "device_memory": 40 * 10**9},
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: f"{story['model']} on {story['ranks']}")
def test_the_reason_is_where_the_next_layout_loses_most(story: dict[str, object]) -> None:
    options = command.PlanOptions(**story)  # type: ignore[arg-type]
    rows = search.search(command.wanted_of(options), command.cluster_of(options)).rows
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
    options = command.PlanOptions(model="gpt2", ranks=1, batch=4096, context=1024)
    rows = search.search(command.wanted_of(options), command.cluster_of(options)).rows
    assert headline(rows).endswith("No other layout fits.")


def test_a_layout_that_is_as_fast() -> None:
    options = command.PlanOptions(**STORIES[0])  # type: ignore[arg-type]
    rows = search.search(command.wanted_of(options), command.cluster_of(options)).rows
    other = next(row for row in rows if row.choice.axes != rows[0].choice.axes)
    assert "which are as fast, send more" in headline([rows[0], other._replace(seconds=rows[0].seconds)])
