"""A sweep of trainings proves each of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cases import status_of
from minidist.parameter_server import Server

SMALL = "--steps 3 --layers 1 --width 12 --heads 2 --context 8 --batch 6 --staleness-sweep"
NAMES = ("bsp", "ssp 1", "ssp 2", "ssp 4", "ssp 8", "ssp 16", "async")
SIZE = "3 steps of 3 x 8 characters, in float64 and in one process"


def sweep(options: str, file: Path) -> tuple[int, dict[str, list[bool]]]:
    """Its status, and whether each training's claims about a proof hold."""

    status = status_of(f"parameter_server {SMALL} {options} --json {file}", 3)
    runs = json.loads(file.read_text())["runs"]
    return status, {
        run["consistency"]: [claim["holds"] for claim in run["claims"] if claim["claim"].startswith("proof: ")]
        for run in runs
    }


def test_each_training_of_a_sweep_is_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = sweep("", tmp_path / "report.json")
    assert (status, found) == (0, dict.fromkeys(NAMES, [True] * 3))
    assert f"proved          {SIZE}\n                of {', '.join(NAMES)}\n" in capsys.readouterr().out


def test_a_mistake_in_one_of_them_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    push = Server.push

    def doubled(self: Any, message: Any) -> None:
        push(self, replace(message, values=2 * message.values) if self.plan.name == "ssp 2" else message)

    monkeypatch.setattr(Server, "push", doubled)
    status, found = sweep("", tmp_path / "report.json")
    assert status == 1
    assert [name for name, holds in found.items() if not all(holds)] == ["ssp 2"]
    assert "of bsp, ssp 1, ssp 4, ssp 8, ssp 16, async\n" in capsys.readouterr().out


def test_a_sweep_without_a_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("--no-prove", tmp_path / "report.json") == (0, {name: [] for name in NAMES})
    assert "proved" not in capsys.readouterr().out
