"""Intermediate pairs of MapReduce: how they are written, and sorted in more runs than fit into memory."""

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from minidist.mr.files import ExternalSort, write_pair
from minidist.papers.mapreduce import pair_bytes

ANY_TEXT = st.text(st.sampled_from("ab\\\t\nn t\r\0é日\u2028\U0001f600"), max_size=6)


@settings(deadline=None)
@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=40), st.integers(1, 3000), st.integers(1, 50))
def test_external_sort_is_a_stable_sort_of_any_pairs(pairs: list[tuple[str, str]], memory: int, piece: int) -> None:
    data = "".join(write_pair(key, value) for key, value in pairs).encode()
    assert data.count(b"\n") == len(pairs)
    assert pair_bytes([key for key, _ in pairs], [value for _, value in pairs]) == len(data)
    with tempfile.TemporaryDirectory() as folder:
        sorter = ExternalSort(Path(folder) / "runs", memory, Counter())
        for start in range(0, len(data), piece):
            sorter.add(data[start : start + piece])
        assert [tuple(pair) for pair in sorter.merged()] == sorted(pairs, key=lambda pair: pair[0].encode())
        assert sorter.moved["runs read"] == sorter.moved["runs written"] == (len(data) if sorter.runs else 0)


def test_external_sort_merges_many_runs_in_passes() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sorter = ExternalSort(Path(folder) / "runs", 1, Counter())
        for i in range(1000):
            sorter.add(write_pair(str(i % 7), str(i)).encode())
        assert [int(value) for _, value in sorter.merged()] == [i for k in range(7) for i in range(k, 1000, 7)]
        assert sorter.written > 1000
        assert len(list((Path(folder) / "runs").iterdir())) <= 64
