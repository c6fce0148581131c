"""The part of a matrix that runs: repeated by its name, and other parts by other names."""

from collections.abc import Iterator

import hypothesis.core
import pytest

from sampling import part_of_this_run, shard_of_this_run

ITEMS = list(range(100))


@pytest.fixture(autouse=True)
def named_anew() -> Iterator[None]:
    part_of_this_run.cache_clear()
    yield
    part_of_this_run.cache_clear()


def test_a_name_repeats_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, list[int]] = {}
    for name in ("one", "two", "one"):
        monkeypatch.setenv("MINIDIST_PART", name)
        part_of_this_run.cache_clear()
        shard = shard_of_this_run(ITEMS, 8)
        assert len(set(shard)) == 13
        assert shard == sorted(shard)
        assert drawn.setdefault(name, shard) == shard
    assert drawn["one"] != drawn["two"]


def test_a_part_of_little(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shard_of_this_run([], 8) == []
    assert shard_of_this_run(["only"], 8) == ["only"]
    assert shard_of_this_run(ITEMS, 1) == ITEMS


def test_the_commit_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIDIST_PART", raising=False)
    assert part_of_this_run()
    monkeypatch.setenv("PATH", "")  # no git
    part_of_this_run.cache_clear()
    assert part_of_this_run() == "first"


def test_examples_are_those_of_the_part(pytestconfig: pytest.Config) -> None:
    assert hypothesis.core.global_force_seed == int(pytestconfig.option.hypothesis_seed)
