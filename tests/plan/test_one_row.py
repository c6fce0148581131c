"""One layout that is asked about, what must hold of it, and the rows next to it."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from minidist import UsageError
from minidist.__main__ import main
from minidist.papers.models import Model
from minidist.plan.choice import Choice, Wanted
from minidist.plan.one_row import assertion, changes, layout_keys, next_better
from minidist.plan.search import Evaluator, best_chunks, search
from minidist.plan.time import Cluster
from tables import table

WANTED = Wanted("a GPT", Model("gpt", 51_200, 2048, 2048, 16, 16, 16, True), 8, 2048)
LINE = ["plan", "--model", "gpt2", "--batch", "64K", "--device-memory", "16GB"]


def asked(tmp_path: Path, *more: str) -> tuple[int, Any]:
    """The exit status, and the report."""
    file = tmp_path / "row.json"
    status = main([*LINE, *more, "--json", str(file)])
    return status, json.loads(file.read_text())


def test_a_layout_is_the_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its keys are the row's; ranks are as many as it needs. The next better row fits, is faster, and says what it
    changes. On the screen as well, in 80 columns."""
    keys = "tp=2,pp=2,dp=2,zero=1,schedule=interleaved,chunks=2"
    status, report = asked(tmp_path, "--layout", keys, "--micro-batch", "2", "--recompute", "full")
    [row] = report["rows"]
    found = ",".join(f"{key}={row[key]}" for key in ("tp", "pp", "dp", "zero", "schedule", "chunks"))
    assert (status, found, row["rows"], row["recompute"]) == (0, keys, 2, "every:1")
    assert row["memory"]["total"] > 10**8
    better = report["better"]
    assert better["seconds"]["step"] < row["seconds"]["step"]
    for key, (one, other) in better["changes"].items():
        assert (row[key], better[key]) == (one, other)
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines() if not line.startswith("report written")) <= 80
    assert "It fits. Of " in text
    assert "The next better row changes " in text


def test_a_layout_that_does_not_fit_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, "--layout", "dp=8,zero=0", "--device-memory", "2GB"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "It does not fit: " in text
    assert "The next better row changes " in text


def test_the_next_better_row_changes_least() -> None:
    """Of faster rows, and if this one does not fit, of all that fit."""
    cluster = Cluster(8, 6 * 10**9, 4, 312e12, 300e9, 12.5e9)
    rows = best_chunks(search(WANTED, cluster).rows)
    row = rows[len(rows) // 2]
    better = next_better(row, rows, cluster.memory)
    assert better
    fewest = min(len(changes(row, other)) for other in rows if other.seconds.step < row.seconds.step)
    assert len(changes(row, better)) == fewest
    assert next_better(rows[0], rows, cluster.memory) is None
    assert next_better(rows[0], rows[1:], rows[0].held.total - 1) in rows[1:]


@pytest.mark.parametrize(
    ("text", "fails"),
    [("memory<16GB", False), ("memory > 16GB", True), ("mfu>=0.01", False), ("mfu>0.99", True), ("step<=1e9", False)],
)
def test_what_must_hold(text: str, fails: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 1 if it does not, for a layout and for the first row."""
    for more in (["--layout", "dp=8"], []):
        status, report = asked(tmp_path, "--assert", "tokens>1", "--assert", text, *more)
        assert (status, report["failed"]) == (int(fails), [text] * fails)
        assert ("does not hold: " in capsys.readouterr().out) == fails


@pytest.mark.parametrize(("sign", "found"), [("<", "001"), ("<=", "011"), (">", "100"), (">=", "110")])
def test_a_bound_below_at_and_above_a_row(sign: str, found: str) -> None:
    row = Evaluator(WANTED, Cluster(8, 80 * 10**9)).row(Choice(8))
    bounds = row.mfu / 2, row.mfu, row.mfu * 2
    assert [assertion(f"mfu{sign}{bound!r}").holds(row) for bound in bounds] == [each == "1" for each in found]


def test_a_schedule_has_rows_of_its_own(tmp_path: Path) -> None:
    """1F1B next to interleaved and the V shapes; or one of them alone."""
    _, report = asked(tmp_path, "--rows", "9999")
    assert {"1f1b", "interleaved", "zb-v", "v-half", "v-min"} <= {row["schedule"] for row in report["rows"]}
    more = "--ranks", "4", "--device-memory", "80GB"
    for schedule in ("1f1b", "v-half", "gpipe"):
        _, report = asked(tmp_path, "--schedule", schedule, "--micro-batch", "2", "--recompute", "none", *more)
        rows = [(row["schedule"], row["rows"], row["recompute"]) for row in report["rows"]]
        assert {*rows} == {(schedule, 2, "none")}


@pytest.mark.parametrize(("text", "says"), table(__file__, "keys_that_are_none"))
def test_keys_that_are_none(text: str, says: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as error:
        layout_keys(text)
    assert says in str(error.value)


@pytest.mark.parametrize("text", ["memory", "memory<", "memory<many", "mfu=0.4", "speed>1", "mfu>80GB", ""])
def test_assertions_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"compares memory, |must be bytes"):
        assertion(text)


@pytest.mark.parametrize(("line", "says"), table(__file__, "errors_are_one_line"))
def test_errors_are_one_line(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError) as error:
        main([*LINE, *line.split()])
    assert says in str(error.value)
    assert capsys.readouterr().out == ""


def test_a_ring_that_is_not_needed_is_not_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama-3 8B at 8K on 8 GPUs: with attention in tiles at any cp, context ranks hold as much for as many tokens, and
    send more. The plan says so."""
    assert main(["plan", "--model", "llama3-8b", "--ranks", "8", "--context", "8192", "--batch", "128K"]) == 0
    text = capsys.readouterr().out
    first = next(line.split() for line in text.splitlines() if line.startswith(" 1 "))
    assert first[3] == "1"
    words = " ".join(text.split())
    assert "Row 2 is the first with context ranks. It changes dp 8 → 4, cp 1 → 2, micro-batch 1 → 2" in words
    assert "its messages, hidden or not, 0.16 s → 0.175 s, memory 73.1 → 73.1 GB" in words
    scores = ["--attention", "whole", "--device-memory", "141GB"]  # the artifact of scores that only cp = 1 holds whole
    assert main(["plan", "--model", "llama3-8b", "--ranks", "8", "--context", "8192", "--batch", "128K", *scores]) == 0
    first = next(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(" 1 "))
    assert first[3] == "2"
