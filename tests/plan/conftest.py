"""A search that several tests ask for by the command line is made once."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pytest

from minidist.plan import command
from minidist.plan.choice import Wanted
from minidist.plan.search import EMPTY, SearchResult, search
from minidist.plan.time import Cluster


@lru_cache(maxsize=8)
def found(wanted: Wanted, cluster: Cluster, only: tuple[tuple[str, Any], ...]) -> SearchResult:
    return search(wanted, cluster, dict(only))


def once(wanted: Wanted, cluster: Cluster, only: Mapping[str, Any] = EMPTY) -> SearchResult:
    return found(wanted, cluster, tuple(only.items()))


@pytest.fixture(autouse=True)
def each_search_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "search", once)
