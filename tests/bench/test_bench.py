"""The benchmark: what it computes from times, and what it writes. No test looks at how long something takes."""

import json
import sys

import pytest

from minidist.bench import __main__ as bench
from minidist.bench.measure import Row, alternate, compare
from minidist.cli.options import in_one_process

ROW = compare("ring, 64 KiB, 4 ranks", "MPI Allreduce", [2.0, 9.0, 3.0, 8.0], [1.0, 3.0, 2.0, 2.0], 3.0, "ms")


def test_two_functions_are_called_in_turn():
    calls = []
    ours, theirs = alternate(lambda: calls.append("a"), lambda: calls.append("b"), pairs=3, warm_up=2)
    assert calls == ["a", "b"] * 5
    assert (len(ours), len(theirs)) == (3, 3)


def test_a_row_states_the_median_of_the_pairs_ratios_and_their_quartiles():
    assert ROW.ratio == 2.5  # of 2, 3, 1.5 and 4; not the ratio of the medians
    assert ROW.spread == (2.0, 3.0)
    assert ROW.note == "5.5e+03 / 2e+03 ms"
    assert ROW.reached is True


@pytest.mark.parametrize(
    ("ratio", "target", "reached"), [(1.0, 1.0, True), (1.01, 1.0, False), (None, 1.0, None), (1.0, None, None)]
)
def test_a_target_is_reached_at_or_below_it(ratio, target, reached):
    assert Row("a", "b", ratio, None, target).reached is reached


def test_what_is_printed_and_written(tmp_path, monkeypatch, capsys):
    missing = Row("data_parallel, 2 ranks, fp32", "sort | uniq -c, own locale", None, None, 0.9, bench.MISSING)
    monkeypatch.setattr(bench, "SECTIONS", {"one": lambda: iter([ROW]), "two": lambda: iter([missing])})
    monkeypatch.setattr(sys, "argv", ["bench", "--json", str(tmp_path / "rows.json")])
    monkeypatch.setenv("COLUMNS", "80")
    bench.main()
    printed = capsys.readouterr().out
    assert "2.50  2.00-3.00     ≤ 3" in printed
    assert "…" not in printed
    assert json.loads((tmp_path / "rows.json").read_text()) == [
        {
            "name": ROW.name,
            "beside": ROW.beside,
            "ratio": 2.5,
            "spread": [2.0, 3.0],
            "target": 3.0,
            "reached": True,
        },
        {
            "name": missing.name,
            "beside": missing.beside,
            "ratio": None,
            "spread": None,
            "target": 0.9,
            "reached": None,
        },
    ]


def test_a_mistyped_section_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "rnig"])
    assert in_one_process(bench.main) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "rnig" in err
