"""python -m minidist recompute: what it counts agrees with what it promises, and with numbers known by hand."""

import pytest

from minidist.__main__ import main
from minidist.bench import recompute
from minidist.papers import chen


def test_the_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(recompute, "DEEP", recompute.TinyShape(24))
    assert main(["recompute"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["every:10", "10", "+", "n/K", "20", "20", "200", "200", "✓"] in rows
    assert ["log", "⌊log₂n⌋", "+", "2", "8", "8", "456", "456", "✓"] in rows
    assert not any("✗" in row for row in rows)


def test_what_does_not_agree_is_marked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "DEEP", recompute.TinyShape(4))
    monkeypatch.setattr(chen, "runs_again", lambda recompute, n: n)
    assert main(["recompute"]) == 1
    assert "✗" in capsys.readouterr().out
