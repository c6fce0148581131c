"""What is handed out: a student's edition without answers in which everything runs, and autograders as Gradescope wants
them, tried in its layout: /autograder/source, /autograder/submission, /autograder/results."""

import ast
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from classroom.grading import ANSWERS, LESSONS, ROOT, load
from classroom.mistakes import SUBMISSIONS
from classroom.tiny import HALF, HIDDEN, RIGHT, classroom, lay, make_lessons
from minidist.classroom.__main__ import main
from minidist.classroom.course import release
from minidist.classroom.grading import sandbox
from minidist.classroom.grading.likeness import forms_by_name
from minidist.classroom.grading.submission import forms_of_chapters


@pytest.fixture(scope="module")
def edition(tmp_path_factory):
    """The student's edition of the real lessons."""
    return release.students_edition(tmp_path_factory.mktemp("release") / "student", list(LESSONS.values()))


# ---- the student's edition -------------------------------------------------------------------------------------------


def run_in(edition, program):
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-c", program], cwd=edition, env=env, capture_output=True, text=True)


def test_no_file_of_the_edition_has_an_answer(edition):
    """In the grader's normal form, short ones too; nor has it tests, wrong submissions, or pieces of chapters in
    patches."""
    programs = [*edition.rglob("*.py")]
    texts = [program.read_text() for program in programs]
    for notebook in edition.rglob("*.ipynb"):
        cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
        texts += ["".join(cell["source"]) for cell in cells if not "".join(cell["source"]).startswith(("%", "!"))]
    trees = {text: ast.parse(text) for text in texts}
    for lesson in LESSONS.values():
        tests = load(lesson / "test_exercise.py")
        answers = forms_of_chapters(tests.HIDDEN, tests.ASKED, lesson)
        assert answers
        defined = tuple(f"def {name.rpartition('.')[2]}(" for name in tests.ASKED)
        for text, tree in trees.items():
            if any(words in text for words in defined):
                found = forms_by_name([tree], tests.ASKED)
                assert not [name for name in answers if answers[name] == found.get(name)]
    handed_out = b"\n".join(file.read_bytes() for file in edition.rglob("*") if file.is_file())
    wrong = [mistake.text() for submissions in SUBMISSIONS.values() for mistake in submissions.values()]
    for text in (*ANSWERS.values(), *wrong):
        assert text.encode() not in handed_out
    assert not [file for file in edition.rglob("*") if file.name in ("tests", "mutants.py", "__pycache__", ".git")]
    tables = {str(file.relative_to(edition)): file.read_text() for file in edition.rglob("*.toml")}
    products = "minidist/deepspeed/", "minidist/site/", "minidist/plan/", "minidist/cli/", "minidist/formulas/"
    of_products = {name for name in tables if name.startswith(products)}
    others = {name for name, text in tables.items() if not text.startswith('"""Sealed: ')} - of_products
    assert others == {"pyproject.toml", "minidist/checkpoints/names.toml", "minidist/claims/letters.toml"}


def test_sealed_chapters_run_and_the_others_are_as_they_were(edition):
    program = (
        "import inspect, pathlib, minidist, minidist.ring, minidist.zero2, minidist.zero3 as zero3, minidist.engine\n"
        "assert pathlib.Path(minidist.__file__).parent == pathlib.Path.cwd() / 'minidist'\n"
        "print(zero3.__doc__.splitlines()[0], sorted(name for name in vars(minidist.ring) if name[0] != '_'))\n"
        "print(zero3.ZeRO3.__mro__[1].__module__, 'def ' in inspect.getsource(minidist.engine))\n"
        "inspect.getsource(minidist.ring.reduce_scatter)\n"
    )
    run = run_in(edition, program)
    import minidist.ring
    import minidist.zero3

    names = sorted(name for name in vars(minidist.ring) if name[0] != "_")
    assert run.stdout.splitlines()[0] == f"{minidist.zero3.__doc__.splitlines()[0]} {names}"
    assert run.stdout.splitlines()[1] == "minidist.zero2 True"
    assert "class Attention" in (edition / "minidist" / "nn" / "layers.py").read_text()  # though lesson 10 hides it
    assert "OSError" in run.stderr.splitlines()[-1]  # of inspect: there is no text


def test_bugs_are_made_in_sealed_chapters(edition):
    """Which lesson 18 runs: in a copy of the edition's package, whose sealed files are readable where they change."""
    program = (
        "from minidist.bugs.systems import read_bugs\n"
        "from minidist.claims.mutants import changed_copy\n"
        "from pathlib import Path\n"
        "bugs = read_bugs()\n"
        "assert 'Sealed' in Path('minidist/zero3.py').read_text()\n"
        "for name in ('whole-parameters', 'zero2-is-zero1', 'cp-wrong-backward'):\n"
        "    with changed_copy(bugs[name].change) as folder:\n"
        "        [(file, patch)] = bugs[name].change\n"
        "        assert patch.changes[0][1] in Path(folder, 'minidist', file).read_text()\n"
    )
    run = run_in(edition, program)
    assert run.returncode == 0, run.stderr


def test_an_assistant_is_told_to_explain(edition):
    told = (edition / "AGENTS.md").read_text()
    assert "Explain,\nand do not solve." in told
    for place in re.findall(r"`((?:lessons|minidist)[^` ]*/)`", told):
        assert (edition / place).is_dir()
    assert not (ROOT / "AGENTS.md").exists()  # it is for students, not for who works on the project


def test_answers_to_questions_stay_with_the_instructor():
    folded = "Why?\n\n<details><summary>Answer</summary>\n\nBecause.\n</details>\n"
    hint = "<details><summary>Hint 1</summary>\n\nLook at the answer's size.\n</details>"
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": [folded, hint]},
        {"cell_type": "code", "metadata": {"tags": ["answers"]}, "source": ["x = 42"]},
        {"cell_type": "code", "metadata": {}, "source": ["x = ..."]},
    ]
    kept = json.loads(release.without_answers(json.dumps({"cells": cells})))["cells"]
    assert ["".join(cell["source"]) for cell in kept] == [f"Why?\n{hint}", "x = ..."]


# ---- Gradescope ------------------------------------------------------------------------------------------------------

CASES = {  # what was uploaded: points, and what the student reads
    "renamed": (
        {"Exercise (1).py": HALF, "notes.txt": ""},
        5,
        r"^Exercise \(1\)\.py was graded\. Submit exercise\.py, ",
    ),
    "right": ({"work/01_tiny/exercise.py": RIGHT, "work/01_tiny/test_exercise.py": "def double(): 0"}, 5.5, None),
    "nothing": ({}, 0, r"^Not graded: nothing handed in\. Submit exercise\.py"),
    "notebook": ({"lesson.ipynb": "{}"}, 0, r"lesson\.ipynb is a notebook.*copy the functions"),
    "text": ({"exercise.py.txt": RIGHT}, 0, r"no exercise\.py, only exercise\.py\.txt"),
    "twice": ({"a/exercise.py": RIGHT, "b/exercise.py": HALF}, 0, r"found twice, keep one: a/exercise\.py, b/"),
    "garbage": ({"exercise.py": "\x00)"}, 0, None),
}


@pytest.fixture(scope="module")
def autograder(tmp_path_factory):
    """Gradescope's folder, but for the environment: setup.sh's is this one."""
    folder = make_lessons(tmp_path_factory.mktemp("gradescope"))
    lay(folder, {"more/test_more.py": HIDDEN})
    run = classroom(folder, "release", "out", "--hidden", "more", "--seed", "3")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.split() == ["out/student", "out/autograder/01_tiny.zip", "out/autograder/02_small.zip"]
    assert not (folder / "out" / "student" / "more").exists()
    with zipfile.ZipFile(folder / "out" / "autograder" / "01_tiny.zip") as archive:
        for name in ("setup.sh", "run_autograder"):
            assert stat.S_IXUSR & archive.getinfo(name).external_attr >> 16
        archive.extractall(folder / "autograder" / "source")
    place = folder / "autograder"
    (place / "environment" / "bin").mkdir(parents=True)
    python = place / "environment" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{place / "source"}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return place


def submit(autograder, files):
    """Run the autograder as Gradescope does; what it has written."""
    for name in ("submission", "results"):
        shutil.rmtree(autograder / name, ignore_errors=True)
        (autograder / name).mkdir()
    lay(autograder / "submission", files)
    shutil.copy(autograder / "source" / "run_autograder", autograder)
    (autograder / "run_autograder").chmod(0o755)  # as Gradescope does
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [autograder / "run_autograder"], cwd=autograder, env=env | {"AUTOGRADER": str(autograder)}, capture_output=True
    )
    assert run.returncode == 0
    assert b"points" not in run.stdout or b"(--seed 3 grades the same again)" in run.stdout
    return json.loads((autograder / "results" / "results.json").read_text())


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case == "garbage")) for case in CASES])
def test_there_are_results_whatever_is_submitted(autograder, case):
    files, points, said = CASES[case]
    results = submit(autograder, files)
    check_format(results)
    assert results["score"] == points
    assert re.search(said, results["output"]) if said else "output" not in results
    if points:
        assert [(test["name"], test["max_score"], test["visibility"]) for test in results["tests"]] == [
            ("doubles", 2, "visible"),
            ("negative numbers too", 0.5, "visible"),
            ("large numbers", 3, "hidden"),
        ]
    elif case == "garbage":
        assert all("no Python" in test["output"] for test in results["tests"])


def check_format(results):
    """As gradescope-autograders.readthedocs.io/en/latest/specs has it."""
    settings = {"hidden", "after_due_date", "after_published", "visible"}
    optional = {
        "execution_time",
        "output",
        "visibility",
        "stdout_visibility",
        "extra_data",
        "test_output_format",
        "tests",
    }
    assert results.keys() <= {"score", *optional}
    assert isinstance(results["score"], int | float)
    assert {results.get("visibility", "visible"), results["stdout_visibility"]} <= settings
    for test in results["tests"]:
        assert test.keys() <= {"score", "max_score", "status", "name", "number", "output", "visibility", "tags"}
        assert test["status"] in ("passed", "failed")
        assert 0 <= test["score"] <= test["max_score"]
        assert test["visibility"] in settings
        assert isinstance(test["output"], str)


def test_there_are_results_even_if_the_autograder_itself_is_broken(autograder):
    whole = autograder / "source" / "lesson"
    whole.rename(autograder / "gone")
    try:
        results = submit(autograder, {"exercise.py": RIGHT})
    finally:
        (autograder / "gone").rename(whole)
    assert (results["score"], results["tests"]) == (0, [])
    assert "tell your instructor" in results["output"]
    python = autograder / "environment" / "bin" / "python"
    python.rename(python.with_name("no python"))
    try:
        results = submit(autograder, {"exercise.py": RIGHT})
    finally:
        python.with_name("no python").rename(python)
    assert results["score"] == 0
    assert "ended with status 127" in results["output"]


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root can become another user")
def test_a_rank_of_another_user_has_its_folder_and_nothing_of_root_s(tmp_path):
    """What is done in Gradescope's container, where root can make no namespaces."""
    lay(tmp_path, {"secret.py": RIGHT, "own/": ""})
    (tmp_path / "secret.py").chmod(0o600)
    child = os.fork()
    if not child:
        refused = 0
        os.chdir(tmp_path / "own")
        sandbox.become_another(3, str(tmp_path / "own"))
        Path("mine").write_text("x")
        secret = os.path.relpath(tmp_path / "secret.py")
        for attempt in (Path(secret).read_text, lambda: os.kill(os.getppid(), 0), lambda: os.setuid(0)):
            try:
                attempt()
            except PermissionError:
                refused += 1
        os._exit(refused if os.getuid() == sandbox.USERS + 3 else 9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


@pytest.mark.parametrize("script", ["setup.sh", "run_autograder"])
def test_scripts_are_bash(script):
    assert subprocess.run(["bash", "-n", release.KIT / script]).returncode == 0


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: OUT"),
        (["lessons"], "lessons is not empty: name a new folder"),
        (["lessons/01_tiny/out"], "is in lessons/01_tiny, which is to be released"),
        (["file"], "file cannot be written to"),
        (["out", "--hidden", "lessons"], "there is no test_*.py in lessons"),
    ],
)
def test_a_wrong_command_is_one_line(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(make_lessons(tmp_path))
    Path("file").touch()
    with pytest.raises(Exception, match=re.escape(words)) as refused:
        main(["release", *arguments])
    assert type(refused.value).__name__ == "UsageError"
    assert not Path("out").exists()


def test_release_needs_lessons(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=f"there are no lessons in lessons/: cd {ROOT}"):
        main(["release", "out"])


def run_autograder(*arguments):
    command = [sys.executable, "-P", "-m", "minidist.classroom.autograder", *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)


@pytest.mark.parametrize(
    "what", ["nothing", "a file", "a device", "no source", "source is a file", "results is a file"]
)
def test_a_folder_that_is_not_gradescope_s_is_refused_in_a_line(what, tmp_path):
    place = {"nothing": tmp_path / "none", "a device": Path("/dev/null")}.get(what, tmp_path / "place")
    laid = {
        "a file": {"place": ""},
        "no source": {"place/submission/exercise.py": RIGHT},
        "source is a file": {"place/source": ""},
        "results is a file": {"place/source/lesson/01_tiny/exercise.py": RIGHT, "place/results": ""},
    }
    lay(tmp_path, laid.get(what, {}))
    run = run_autograder(place)
    assert (run.returncode, run.stdout) == (2, "")
    assert re.fullmatch(f"minidist: error: .*{place}.*\n", run.stderr)
    assert what == "results is a file" or not (tmp_path / "place" / "results").exists()


@pytest.mark.parametrize("lessons", [{}, {"01/x.py": "", "02/x.py": ""}])
def test_an_autograder_without_its_lesson_says_so_in_a_line(lessons, tmp_path):
    lay(tmp_path, {"source/": "", **{f"source/lesson/{name}": text for name, text in lessons.items()}})
    run = run_autograder(tmp_path)
    assert run.returncode == 0
    assert run.stderr == f"minidist: error: there are {len(lessons)} lessons in {tmp_path}/source/lesson, not 1\n"
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    assert (results["score"], results["tests"]) == (0, [])
    assert "tell your instructor" in results["output"]
