"""The comparison of all schemes, on ranks as threads; rooms that are used in turn; the ring as lesson 16 draws it."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from minidist import UsageError
from minidist.cli.shared import ModelOptions
from minidist.cp.compare import SchemeMeasure, Spans, draw
from minidist.cp.group import ContextGroup
from minidist.exchange.one_process import run_ranks
from minidist.memory.colors import RANKS
from minidist.mpi.comm import Comm
from minidist.programs.axes import check_context
from minidist.programs.chapter import find

SIZES = "--layers 2 --width 16 --heads 4 --context 24 --batch 2"


def test_schemes_are_compared_and_the_ring_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, picture = tmp_path / "report.json", tmp_path / "ring.svg"
    line = f"{SIZES} --model llama --kv-heads 2 --compare {picture} --json {report}"

    def be_rank(comm: Comm) -> int:
        chapter = find("context_parallel")
        return chapter.compare(comm, chapter.job(line.split(), comm.size))

    assert run_ranks(be_rank, 4) == [0] * 4
    rows = json.loads(report.read_text())["rows"]
    # two key/value heads are too few for Ulysses on four ranks
    assert [row["scheme"] for row in rows] == ["ring"] * 3 + ["all-gather"] * 3
    for row in rows:
        assert row["holds"]
        assert sum(row["pairs"]) == 2 * 2 * 4 * 24 * 25 / 2  # layers, sequences, heads
    busy = {(row["scheme"], row["positions"]): row["busy"] for row in rows}
    assert busy["ring", "zigzag"] == 1
    assert busy["ring", "contiguous"] == pytest.approx((4 * 6 + 1) / (7 * 6 + 1))
    assert "ring, contiguous" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"<?xml")


def test_the_rings_picture_has_each_step_and_each_ranks_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks with unequal work: boxes from begin to end in the colors of the keys' owners, and bars of pairs."""
    figures = list[Any]()
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    spans: list[Spans] = [[(0, 0.0, 2.0)], [(0, 0.0, 4.0), (1, 4.0, 6.0)], [(1, 1.0, 2.0)]]
    some = [1] * 3
    draw([SchemeMeasure("ring", "contiguous", some, some, [2.0] * 3, [2, 6, 1], [2, 6, 2], some, some, spans)], "svg")
    times, balance = figures[0].axes
    boxes = [path.get_extents().bounds for one in times.collections for path in one.get_paths()]  # left, row, size
    expected = [(0, -0.4, 2, 0.8), (0, 0.6, 4, 0.8), (4, 0.6, 2, 0.8), (1, 1.6, 1, 0.8)]
    assert boxes == [pytest.approx(box) for box in expected]
    owners = [0, 1, 0, 1]  # in step 1, a rank has its left neighbor's keys
    assert [to_hex(one.get_facecolor()[0]) for one in times.collections] == [to_hex(RANKS[rank]) for rank in owners]
    assert [text.get_text() for text in times.texts] == [str(rank) for rank in owners]
    assert [bar.get_width() for bar in balance.patches] == [2, 6, 1]
    assert [line.get_xdata()[0] for line in balance.lines] == [3]


def test_a_row_falls_if_other_bytes_are_sent() -> None:
    row = SchemeMeasure("ring", "zigzag", [8, 8], [16, 16], [24, 24], [3, 3], [3, 3], [1, 1], [1, 1], [])
    assert row.holds
    assert row.busy == 1
    assert not row._replace(forward=[8, 9]).holds


def test_rooms_are_used_in_turn() -> None:
    def be_rank(comm: Comm) -> None:
        rooms = ContextGroup(comm, np.float32).rooms(np.empty((2, 3, 1, 9, 5)), [4, 3])
        first, second = rooms.take(4), rooms.take(3)
        assert (first.shape, second.shape) == ((2, 2, 3, 1, 4, 5), (2, 2, 3, 1, 3, 5))
        assert not np.may_share_memory(first, second)
        assert np.may_share_memory(first, rooms.take(3))
        assert np.may_share_memory(second, rooms.take(4))

    run_ranks(be_rank, 1)


def test_ulysses_has_fewer_heads_where_tensor_ranks_share_them() -> None:
    model = ModelOptions(heads=8)
    check_context(model, "ulysses", 4, t=2)
    with pytest.raises(UsageError, match="there are 2 on each of 4 tensor-parallel ranks, for 4 ranks: use --cp 2"):
        check_context(model, "ulysses", 4, t=4)


def test_a_reader_moves_through_the_ring_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lesson 16 draws any step: whose keys each rank holds, as ranks said, and the pairs that it computes."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    folder, said = Path(__file__).parents[2] / "lessons/16_long_sequences", list[str]()
    monkeypatch.setattr("minidist.classroom.notebook.drawing.show", lambda figure, words: said.append(words))
    monkeypatch.syspath_prepend(folder)
    show_step = runpy.run_path(str(folder / "pictures.py"))["show_step"]
    del sys.modules["given"]  # other lessons have another
    held, at = [[0, 3, 2, 1], [1, 0, 3, 2], [2, 1, 0, 3], [3, 2, 1, 0]], np.split(np.arange(32), 4)
    for step in range(4):
        show_step(step, held, at)
        for rank, of in enumerate(held):
            pairs = 36 if of[step] == rank else 64 * (of[step] < rank)  # 8·9/2, or 8·8, or all are later
            words = f"rank {rank} holds the keys and values of rank {of[step]} and computes {pairs} pairs"
            assert words in said[-1]
    show_step(4, held, at)  # says which steps there are
    assert len(said) == 4
    pyplot.close("all")
