"""Screens of 80 columns; what was written where; reports for machines; the `minidist` command; what make installs."""

import importlib
import json
import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import minidist
from minidist.contents import CHAPTERS
from programs import run_chapter, run_python

ROOT = Path(__file__).parents[2]
CONFIG = "minidist/deepspeed/zero3.json"
UTF_8 = {"PYTHONIOENCODING": "utf-8"}
SMALL = "--steps 1 --layers 4 --width 8 --heads 4 --context 8 --batch 8"
ALONE = (
    pytest.param("minidist.mapreduce --cluster", marks=pytest.mark.slow),
    f"minidist explain {CONFIG}",
    f"minidist explain {CONFIG} --model llama2-7b --ranks 64",
    "minidist papers",
    "minidist plan --model gpt2 --ranks 4 --batch 8K --tokens 300B --explain 1",
    pytest.param("minidist recompute", marks=pytest.mark.slow),
    pytest.param("minidist lessons", marks=pytest.mark.slow),
    "minidist.pipeline --draw all",
)


def run(*words: str, ranks: int = 0, cwd: Path = ROOT) -> Any:
    return run_python(*words, ranks=ranks, cwd=cwd, env=UTF_8)


def too_wide(text: str) -> list[str]:
    """Lines of more than 80 columns; a path is as long as it is, and so is a command line, which is to be copied."""
    long = [line for line in text.splitlines() if len(line) > 80]
    return [line for line in long if " written to " not in line and not line.startswith("  mpirun -n ")]


@pytest.mark.parametrize("line", ALONE)
def test_lines_of_80_columns(line: str) -> None:
    done = run("-m", *line.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert too_wide(done.stdout) == []


def test_a_configuration_runs_in_80_columns() -> None:
    done = run_chapter(f"deepspeed {CONFIG} --precision bf16 {SMALL}", 4, cwd=ROOT, env=UTF_8)
    assert done.returncode == 0
    assert too_wide(done.stdout + done.stderr) == []


USUAL = ("pipeline", "mapreduce", "ring")


@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name, *_ in CHAPTERS]
)
def test_a_chapter_says_what_it_has_written(name: str, tmp_path: Path) -> None:
    """Once, in 80 columns; and its report for machines has a form, also where it is all of standard output."""
    options = {"ring": [], "mapreduce": ["wordcount", str(ROOT / "LICENSE"), "--output", "out"]}.get(name)
    outputs = {"report": ["--json", "report.json"]}
    if options is None:
        options = SMALL.split()
        options += ["--every", "1"] if name == "local_sgd" else []  # only then does each step end in an averaging
        outputs |= {"checkpoint": ["--save", "saved"], "export": ["--export", "export.st"]}
        outputs |= {"memory plot": ["--memory-plot", "plot.svg"]} if name != "parameter_server" else {}
    outputs |= {"trace": ["--trace", "trace.json"]} if name == "pipeline" else {}

    def run_with(options: list[str]) -> Any:
        ranks = 0 if name == "train" else 4
        return run_chapter([name, *options, *chain(*outputs.values())], ranks, cwd=tmp_path, env=UTF_8)

    done = run_with(options)
    assert (done.returncode, done.stderr) == (0, "")
    assert too_wide(done.stdout) == []
    said = re.findall(r"^(.+) written to (.+)$", done.stdout, re.MULTILINE)
    assert sorted(said) == sorted((what, words[1]) for what, words in outputs.items())
    assert all((tmp_path / path).exists() for _, path in said)
    assert json.loads((tmp_path / "report.json").read_text())["format"] == 1
    if name in ("mapreduce", "ring"):
        outputs["report"] = ["--json", "-"]
        again = run_with(["again" if option == "out" else option for option in options])
        assert json.loads(again.stdout)["format"] == 1


def test_reports_of_tools_have_a_form(tmp_path: Path) -> None:
    assert json.loads(run("-m", "minidist", "papers", "--json", "-").stdout)["format"] == 1


# ---- how it is installed ---------------------------------------------------------------------------------------------


def test_a_minidist_command() -> None:
    module, _, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"][
        "minidist"
    ].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    script = f"import sys; sys.argv[0] = '/bin/minidist'; from {module} import {function}; sys.exit({function}())"
    assert run("-c", script).stdout == run("-m", "minidist").stdout.replace("python -m minidist ", "minidist ")
    refused = run("-c", script, "zero3")
    assert refused.returncode == 2
    assert refused.stderr.endswith(": mpirun -n 4 python -m minidist.zero3\n")
    bare = run("-S", "-c", script, "papers")  # without NumPy
    assert (bare.returncode, bare.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("target", [".runtime", ".lessons"])
def test_make_installs_what_the_readmes_run(target: str) -> None:
    """Comments in a configuration, Accelerate's YAML, --precision bf16."""
    recipe = re.search(
        rf"^\$\(VENV\)/{re.escape(target)}:(?:.*\\\n)*.*\n(?:\t.*\n)+", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert recipe
    (extras,) = re.findall(r"'\.\[(.*)\]'", recipe[0])
    assert {"deepspeed", "bf16"} <= set(extras.split(","))


def test_hints_name_a_command_that_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert minidist.how_to_install("mpich", "lessons") == "pip install --editable '.[mpich,lessons]'"
    assert minidist.how_to_make("lessons") == "make lessons"
    monkeypatch.chdir(tmp_path)
    assert minidist.how_to_install("lessons") == f"pip install --editable '{ROOT}[lessons]'"
    assert minidist.how_to_make("lessons") == f"cd {ROOT} && make lessons"
    monkeypatch.setattr(minidist, "__file__", str(tmp_path / "site-packages" / "minidist" / "__init__.py"))
    assert minidist.how_to_install("lessons") == "pip install 'minidist[lessons]'"
    unpacked = f"minidist-{minidist.__version__}"
    enter = f"tar xf {unpacked}.tar.gz && cd {unpacked} && make lessons"
    assert minidist.how_to_make("lessons") == f"{enter}  # the release's source distribution"
    hints: list[Any] = [
        file.name
        for file in (ROOT / "minidist").rglob("*.py")
        if re.search(r'"[^"\n]*pip install \'', file.read_text()) and file != ROOT / "minidist" / "__init__.py"
    ]
    assert hints == []


def test_rank_0_alone_writes_junit(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import time\n\n\ndef test_it(comm, record_property):\n"
        "    record_property('rank', comm.rank)\n    time.sleep(comm.rank)  # it would write last\n"
    )
    line = "-m pytest -q -p minidist.claims.fixtures -p no:cacheprovider --junitxml=out.xml test_it.py"
    assert run(*line.split(), ranks=2, cwd=tmp_path).returncode == 0
    found = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert [each.get("value") for each in found.iter("property")] == ["0"]
