"""Mistakes in the planner, in a copy of the package: each is caught by the lines of a check, or the test, it names."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minidist.claims.mutants import changed_copy, python_in
from minidist.claims.mutants.patch import Patch, read_document, read_patches

HERE = Path(__file__).parent
MUTANTS = read_patches(read_document(HERE / "mutants.toml"), "mutant")
ROW = """
import json, sys
from test_check import differences, small
from minidist.plan.choice import Choice
row = json.loads(sys.argv[1])
more = {name: row.pop(name) for name in ("experts", "layers", "batch") if name in row}
print(*(one.what for one in differences(small("gpt", **more), Choice(**row))), sep="\\n")
"""


def caught(mutant: dict[str, Any], folder: str) -> set[str]:
    """What fails in this copy: lines of the check of its row, or its test."""
    env = {**os.environ, **python_in(folder)}
    env["PYTHONPATH"] += os.pathsep + str(HERE) + os.pathsep + str(HERE.parent)
    if "test" in mutant:
        line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / mutant["test"])]
    else:
        line = [sys.executable, "-c", ROW, json.dumps(mutant["row"])]
    done = subprocess.run(line, env=env, cwd=folder, capture_output=True, text=True, check=False)
    if "test" in mutant:
        return {mutant["test"]} if done.returncode == 1 and "FAILED" in done.stdout else set()
    assert done.returncode == 0, done.stderr
    return {*done.stdout.splitlines()}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["mistake"])
def test_a_mistake_of_the_planner_is_noticed(mutant: dict[str, Any]) -> None:
    with changed_copy([(mutant["file"], Patch(changes=mutant["changes"]))]) as folder:
        assert caught(mutant, folder) >= {*mutant.get("caught_by", (mutant.get("test"),))}


def test_every_mistake_can_be_made() -> None:
    """Its old text occurs once; and it names what catches it."""
    package = HERE.parents[1] / "minidist"
    for mutant in MUTANTS:
        text = (package / mutant["file"]).read_text(encoding="utf-8")
        assert Patch(changes=mutant["changes"]).apply(text, mutant["file"]) != text
        assert bool(mutant.get("caught_by")) != bool(mutant.get("test"))
