"""The plan of a parameter server: who works on which rows, and who serves which keys."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from minidist.data_parallel import DataParallel
from minidist.programs.chapter import find
from minidist.ps.engines import Gradients


@given(st.integers(1, 40), st.integers(1, 7), st.data())
def test_workers_share_rows_as_data_parallel_ranks_do(n: int, workers: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, workers - 1))
    worker = SimpleNamespace(plan=SimpleNamespace(workers=range(workers)), number=number)
    comm = SimpleNamespace(size=workers, rank=number)
    rank = SimpleNamespace(axes=SimpleNamespace(rows=None), comm=comm)
    assert Gradients.rows(worker, n) == DataParallel.rows(rank, n)  # type: ignore[arg-type]


def test_servers_share_keys_evenly() -> None:
    line = "--servers 3 --layers 1 --width 7 --heads 1 --context 8 --batch 4 --steps 1"
    _, plan = find("parameter_server").prepared(line.split(), SimpleNamespace(size=5))
    sizes = [last - first for first, last, _ in plan.segments]
    assert sum(sizes) == plan.size
    assert sorted(sizes, reverse=True) == sizes
    assert max(sizes) - min(sizes) <= 1
