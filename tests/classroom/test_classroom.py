"""The grader around the parts: what is said of wrong arrays and shards, reports, classes, faults of the machine."""

import builtins
import csv
import json
import os
import re
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from classroom.tiny import HALF, HIDDEN, RIGHT, ROOT, classroom, make_lessons
from minidist import UsageError, ring
from minidist.classroom.__main__ import main
from minidist.classroom.grading import meaning, ranks, reports, training
from minidist.classroom.grading.diagnose import chunk_of, distinct, first_difference, in_a_gathering, in_a_sum
from minidist.classroom.grading.grade import Grade, Part, grade
from minidist.classroom.grading.submission import Case, Lost, Outcome

# ---- what is said of a wrong array -----------------------------------------------------------------------------------


@given(st.integers(2, 4), st.integers(4, 20), st.data())
def test_a_sum_is_taken_apart(n, size, data):
    """From any number of times that each rank's part is in a sum, or another element in its place."""
    inputs = distinct(n, size, np.random.default_rng(data.draw(st.integers(0, 99))))
    index = data.draw(st.integers(0, size - 1))
    times = data.draw(st.lists(st.integers(0, 7), min_size=n, max_size=n).filter(lambda times: set(times) != {1}))
    text = in_a_sum(sum(t * x[index] for t, x in zip(times, inputs, strict=True)), inputs, index)
    place = chunk_of(index, n, size)
    words = {0: "is missing", 2: "was added twice"}
    expected = [
        f"rank {rank}'s chunk {place} {words.get(t, f'was added {t} times')}" for rank, t in enumerate(times) if t != 1
    ]
    assert text == " and ".join(expected)
    other = data.draw(st.integers(0, size - 1).filter(lambda other: chunk_of(other, n, size) != place))
    swapped = inputs[1][other] + sum(x[index] for rank, x in enumerate(inputs) if rank != 1)
    expected_swap = f"rank 1's chunk {chunk_of(other, n, size)} was added in place of its chunk {place}"
    assert in_a_sum(swapped, inputs, index) == expected_swap


def test_other_wrong_values():
    inputs = distinct(3, 6, np.random.default_rng(0))
    total = np.sum(inputs, axis=0)
    assert in_a_sum(total[1] / 3, inputs, 1).startswith("it holds the mean")
    assert in_a_sum(total[1] / 9, inputs, 1).endswith("divided by the number of ranks twice")
    assert in_a_sum(total[5], inputs, 1) == "it holds element 5 of the sum, of chunk 2"
    for value in (np.nan, -1.0, 0.5, 1e30, np.inf):
        assert in_a_sum(value, inputs, 1) == "it holds something that is no sum of the inputs"
    assert in_a_gathering(total[4], total, 3, 0) == "it holds element 4, of rank 2's chunk"
    assert "nobody's chunk" in in_a_gathering(0.0, total, 3, 0)
    assert first_difference(np.array([1, np.nan]), np.array([1, np.nan])) == 1


# ---- messages that are spoiled --------------------------------------------------------------------------------------


class Notices:
    """A submission of which one message is noticed when it is spoiled, and nobody looks at the last one."""

    def attempt(self, target, cases, asked, spoiled):
        changed = {int(comm.split("/")[1].split(".")[0]): rank for comm, rank, _ in spoiled}
        if 1 in changed.values():
            raise Lost("rank 0 failed")
        return [[Outcome(np.array([float(changed[number] == 0)]), {})] for number in range(len(cases))]


def test_a_message_of_no_meaning_is_found_next_to_one_that_is_noticed():
    case, before = Case(1, "three messages", [None]), [Outcome(np.array([0.0]), {})]
    changes = [meaning.Change(("world/0.0", rank, 0), f"x.py:{rank}", b"1") for rank in (0, 0, 1, 0)]
    meaning.check_changes(Notices(), "call", "f", case, before, changes)
    changes += [meaning.Change(("world/0.0", 2, 0), "x.py:2", b"1")]
    with pytest.raises(pytest.fail.Exception, match=r"rank 2 sends at x\.py:2, the results are the same"):
        meaning.check_changes(Notices(), "call", "f", case, before, changes)


# ---- what is said of a wrong shard -----------------------------------------------------------------------------------

MODEL = {"vocabulary": 17, "context": 4, "layers": 1, "heads": 1, "width": 5, "tied": False}


def said(check, *arguments):
    """The message with which a check loses the part."""
    with pytest.raises(pytest.fail.Exception) as failure:
        check(*arguments)
    return str(failure.value)


def run_of(n, what="", **more):
    return training.training(np.random.default_rng(5), n, what, MODEL, **more)


def test_each_rank_has_its_own_rows_and_nobody_elses():
    run = run_of(3, steps=2, accumulate=2)
    for rank, mine in enumerate(run.inputs):
        rows = training.share(5, rank, 3)
        assert np.array_equal(mine[:, :, rows], run.batches[:, :, rows])
        assert not np.array_equal(np.delete(mine, np.r_[rows], axis=2), np.delete(run.batches, np.r_[rows], axis=2))


def test_what_wrong_parameters_and_losses_hold():
    run = run_of(2, steps=2)
    truth = run.truth
    final = truth.parameters[2]
    found = [[truth.shard(whole, rank) for whole in final] for rank in range(2)]
    for wrong, words in [
        (truth.shard(truth.parameters[0][0], 1), "it is as it was at the start"),
        (truth.shard(truth.parameters[1][0], 1), "it is as it was after step 1"),
        (truth.shard(final[0], 0), "it is rank 0's shard after step 2"),
        (final[0], "is float64 (105,) where float64 (53,) is wanted: the unit has 105 elements, 106 with padding"),
        ("NoneType", "is None, not an array of numbers"),
    ]:
        found[1][0] = wrong
        assert words in said(training.check_shards, run, "param", found, final, "then")
    losses = [[part[rank] for part in truth.losses] for rank in range(2)]
    training.check_losses(run, losses, truth.losses, "the loss of batch")
    losses[1][1] *= 1 + 1e-9
    assert "rank 1's part of the loss of batch 2 is" in said(
        training.check_losses, run, losses, truth.losses, "the loss of batch"
    )


# ---- grading ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def lessons(tmp_path):
    return make_lessons(tmp_path)


def test_a_grade_in_every_form(lessons):
    """With a hidden test; Gradescope's and JUnit's files say the same as the table."""
    (lessons / "half.py").write_text(HALF)
    (lessons / "secret").mkdir()
    (lessons / "secret" / "test_more.py").write_text(HIDDEN)
    options = ["--hidden", "secret", "--gradescope", "results", "--junit", "grade.xml"]
    run = classroom(lessons, "grade", "lessons/01_tiny", "--submission", "half.py", *options)
    assert (run.returncode, run.stderr) == (1, "")
    assert re.search(r"✓  1  doubles +2 of 2\n✗  2  negative numbers too +0 of 0.5\n", run.stdout)
    assert re.search(
        r"✓  3  large numbers \(hidden\) +3 of 3\n\n5 of 5.5 points\ngraded in [\d.]+ s; [\d.]+ s of processor time, "
        r"of at most 150 s\n\(--se",
        run.stdout,
    )
    assert run.stdout.endswith("\n✗ 2\n    -1 becomes 2\nJUnit written to grade.xml\n")
    assert max(map(len, run.stdout.splitlines())) <= 80

    results = json.loads((lessons / "results" / "results.json").read_text())
    assert results["score"] == 5
    assert [test["score"] for test in results["tests"]] == [2, 0, 3]
    assert [test["max_score"] for test in results["tests"]] == [2, 0.5, 3]
    assert [test["status"] for test in results["tests"]] == ["passed", "failed", "passed"]
    assert [test["visibility"] for test in results["tests"]] == ["visible", "visible", "hidden"]
    assert results["tests"][1]["output"] == "-1 becomes 2"
    assert results["execution_time"] > 0

    suite = ElementTree.parse(lessons / "grade.xml").getroot()[0]
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("01_tiny", "3", "1")
    assert [case.get("name") for case in suite] == ["doubles", "negative numbers too", "large numbers"]
    assert [case.find("failure") is not None for case in suite] == [False, True, False]
    assert suite[1].find("failure").text == "-1 becomes 2"


def test_nothing_that_lies_where_one_grades_is_run(lessons):
    """Modules are not looked for in this folder: a student's cmd.py in it would run as the instructor."""
    (lessons / "cmd.py").write_text("open('ran', 'w')\n")
    (lessons / "exercise.py").write_text(RIGHT)
    run = classroom(lessons, "grade", "lessons/01_tiny", "--submission", "exercise.py")
    assert (run.returncode, run.stderr) == (0, "")
    assert not (lessons / "ran").exists()


def test_tests_that_cannot_be_started_are_no_grade(lessons):
    """Nothing of the student's has run yet."""
    (lessons / "lessons" / "01_tiny" / "test_exercise.py").write_text("import nowhere\n")
    (lessons / "exercise.py").write_text(RIGHT)
    run = classroom(lessons, "grade", "lessons/01_tiny", "--submission", "exercise.py")
    assert run.returncode == 3
    assert "there was nothing to grade: pytest ended with status 2" in run.stdout
    assert "No module named 'nowhere'" in run.stdout


def test_what_a_program_says_is_shown_as_text_and_not_without_end(lessons):
    """Not so that it writes over the table's points, nor so long that the table takes for ever."""
    said = r"""'\x1b[2J\x1b[1;1H20 of 20\u202e' + 'y' * 300_000"""
    (lessons / "says.py").write_text(f"def double(comm, x):\n    raise ValueError({said})\n")
    run = classroom(lessons, "grade", "lessons/01_tiny", "--submission", "says.py", "--junit", "says.xml")
    assert run.returncode == 1
    assert "ValueError: \\x1b[2J\\x1b[1;1H20 of 20\\u202eyyy" in " ".join(run.stdout.split())
    assert len(run.stdout) < 12_000
    assert "\x1b" not in run.stdout
    [message, _] = [case[1].text for case in ElementTree.parse(lessons / "says.xml").iter("testcase")]
    assert re.search(r"\n\[2\d\d,\d{3} characters more\]\n", message)


def test_results_that_cannot_be_written_are_refused_before_the_work(lessons):
    (lessons / "file").write_text("")
    for folder in ("file", "file/deeper"):
        run = classroom(lessons, "grade", "lessons/01_tiny", "--gradescope", folder)
        assert (run.returncode, run.stdout) == (2, "")
        assert re.fullmatch(rf"minidist.*: error: --gradescope {folder} cannot be a folder: .*\n", run.stderr)


def test_every_part_gets_a_line_even_if_the_process_that_grades_dies(lessons):
    (lessons / "secret").mkdir()
    (lessons / "secret" / "test_end.py").write_text(
        HIDDEN.replace("    [[outcome]]", "    os._exit(7)\n    [[outcome]]")
    )
    (lessons / "right.py").write_text(RIGHT)
    options = ["--hidden", "secret", "--gradescope", "results"]
    run = classroom(lessons, "grade", "lessons/01_tiny", "--submission", "right.py", *options)
    assert run.returncode == 1
    results = json.loads((lessons / "results" / "results.json").read_text())
    assert [test["score"] for test in results["tests"]] == [2, 0.5, 0]
    assert results["tests"][2]["output"] == "not graded: the process that grades ended with status 7"


def test_plain_pytest_says_the_points(lessons):
    command = [sys.executable, "-m", "pytest", "-p", "minidist.classroom.grading.pytest_plugin", "lessons/01_tiny"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    (lessons / "lessons" / "01_tiny" / "exercise.py").write_text(HALF)
    run = subprocess.run(command, cwd=lessons, env=env, capture_output=True, text=True)
    assert re.search(r"2 of 2.5 points \(--seed \d+ grades the same again\)", run.stdout)
    assert "-1 becomes 2" in run.stdout
    assert "Traceback" not in run.stdout


def test_code_behind_a_cache_is_watched(monkeypatch):
    before = ranks.fingerprint()
    assert ranks.changed(before) == []
    monkeypatch.setattr(ring.chunk.__wrapped__, "__code__", (lambda size, n, i: slice(0, size)).__code__)
    assert ranks.changed(before) == ["minidist.ring.chunk.__code__"]


def test_pythons_own_functions_are_watched_without_them(monkeypatch):
    """A program that would have nothing found: all names are as they were, and there are none to look at."""
    before = ranks.fingerprint()
    with monkeypatch.context() as patch:
        for name, lie in {"all": lambda values: True, "map": lambda *_: (), "zip": lambda *_, **__: ()}.items():
            patch.setattr(builtins, name, lie)
        found = ranks.changed(before)
    assert found == ["builtins.all", "builtins.map", "builtins.zip"]


def test_a_module_and_a_name_that_are_gone(monkeypatch):
    before = ranks.fingerprint()
    monkeypatch.delattr(ring, "chunk")
    monkeypatch.delitem(sys.modules, "minidist.ring")
    assert ranks.changed(before) == ["minidist.ring", "minidist.ring.chunk"]


def test_what_fails_while_it_is_imported_is_said_once(lessons):
    program = lessons / "fails.py"
    program.write_text("def double(comm, x):\n    return 2 * x\n\nraise ValueError('no')\n")
    graded = grade(lessons / "lessons" / "01_tiny", program)
    assert [part.message for part in graded.parts] == [graded.parts[0].message] * 2
    assert graded.parts[0].message.startswith("While fails.py was being imported, it failed:\n  File fails.py, line 4")


STATE = """
import numpy as np

calls = []

def double(comm, x):
    calls.append(x)
    return 2 * x * len(calls)
"""


def test_nothing_of_a_part_is_left_for_the_next(lessons):
    (lessons / "remembers.py").write_text(STATE)
    assert grade(lessons / "lessons" / "01_tiny", lessons / "remembers.py").earned == 2.5


def test_points_that_cannot_be_written_are_no_grade(lessons):
    """The file for them has no more room: on a full disk, or by ulimit -f."""
    line = [sys.executable, "-m", "minidist.classroom", "grade", "lessons/01_tiny"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for most in (50, 500):
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
        run = subprocess.run(line, cwd=lessons, env=env, capture_output=True, text=True, preexec_fn=limit)
        assert run.returncode == 3
        assert "Traceback" not in run.stdout + run.stderr
        assert "for a fault of this machine: the points cannot be written to" in run.stdout


NO_MPI = ["--wire", "mpi"], {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}


def test_what_the_machine_is_at_fault_for_is_no_grade(lessons):
    """Here ranks have no MPI. Nobody gets zero points for that, not even in Gradescope, and the exit status says so."""
    (lessons / "submissions").mkdir()
    (lessons / "submissions" / "ada.py").write_text(RIGHT)
    run = classroom(lessons, "class", "submissions", "--csv", "points.csv", *NO_MPI[0], **NO_MPI[1])
    assert (run.returncode, run.stderr) == (3, "")
    said = "not graded, for a fault of this machine: rank 0 could not start MPI:"
    assert run.stdout.count(said) == 3  # as it goes, once more, and at the end
    assert "\n1 not graded, for a fault of this machine: mend it and grade them again\n" in run.stdout
    with open(lessons / "points.csv") as file:
        [row] = csv.DictReader(file)
    note = row.pop("note")
    assert (row.pop("student"), {*row.values()}) == ("ada", {""})  # no points, and no total
    assert note.startswith(said)
    assert "/nowhere/libmpi.so" in note

    options = ["--submission", "submissions/ada.py", "--gradescope", "results", "--junit", "grade.xml"]
    run = classroom(lessons, "grade", "lessons/01_tiny", *options, *NO_MPI[0], **NO_MPI[1])
    assert (run.returncode, run.stderr) == (3, "")
    assert said in run.stdout
    assert not list((lessons / "results").iterdir())
    suite = ElementTree.parse(lessons / "grade.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("errors")) == ("0", "2")
    first, second = suite.findall("testcase/error")
    assert str(first.get("message")).startswith(said.rpartition("machine: ")[2])
    assert str(second.get("message")).startswith("not graded: the process that grades ended")  # it was not tried


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: command"),
        (["grad"], "invalid choice: 'grad'"),
        (["grade", "nowhere"], "nowhere is no lesson: it has no exercise.py"),
        (["grade", "lessons/01_tiny", "--submission", "nothing.py"], "there is no file nothing.py"),
        (["grade", "lessons/01_tiny", "--submission", "notes.md"], "notes.md is no Python file"),
        (["grade", "lessons/01_tiny", "--hidden", "lessons"], "there is no test_*.py in lessons"),
        (["grade", "lessons/01_tiny", "--junit", "no/folder.xml"], "there is no folder no"),
        (["grade", "lessons/01_tiny", "--junit", "lessons/01_tiny/exercise.py"], "overwrite the file of the exercise"),
    ],
)
def test_a_wrong_command_is_one_line(lessons, arguments, words):
    (lessons / "notes.md").touch()
    run = classroom(lessons, *arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.count("\n") == 1
    assert words in run.stderr


def test_without_an_mpi_nothing_is_graded_over_it(monkeypatch):
    monkeypatch.setattr("minidist.launch.launcher.shutil.which", lambda *args, **options: None)
    with pytest.raises(UsageError, match="there is no mpiexec; install an MPI"):
        main(["grade", "lessons/04_ring_all_reduce", "--wire", "mpi"])


def test_help(lessons):
    for arguments in (["--help"], ["grade", "--help"], ["class", "--help"], ["release", "--help"]):
        run = classroom(lessons, *arguments)
        assert (run.returncode, run.stderr) == (0, "")
        assert run.stdout.startswith("usage: python -m minidist.classroom")


# ---- the table -------------------------------------------------------------------------------------------------------


def test_each_lost_part_has_its_own_message_unless_it_is_the_same_slip() -> None:
    """Parts stand together if their messages differ in ranks and sizes alone, or name the same line and end alike."""
    alone = [
        "On 2 experts: gates's dy is wrong: [0, 1] is -0.739, and 0.402 is wanted.",
        "On 2 experts: combine's dy is wrong: [1, 2] is -0.25, and 0.11 is wanted.",
        "On 4 ranks, all_gather of 12 float64: rank 1 returned None, not an array of numbers.",
    ]
    together = [
        *(
            "On 4 ranks, reduce_scatter of 12 float64: rank 0 lost chunk 1",
            "On 3 ranks, reduce_scatter of 7 float64: rank 2 lost chunk 0",
        ),
        *(
            "On a, rank 0 failed:\n  File x.py, line 3, in f\nKeyError: 1",
            "On b, rank 1 failed:\n  File x.py, line 3, in f\nKeyError: 2",
        ),
    ]
    parts = [Part(f"{n}", f"part {n}", 1, 0, said) for n, said in enumerate([*alone, *together])]
    shown = reports.table(Grade("lesson", Path("exercise.py"), parts))
    assert re.findall(r"^✗ ([\d, ]+)$", shown, re.MULTILINE) == ["1", "2", "3", "4, 5", "6, 7"]
    for said in alone:
        assert " ".join(said.split()) in " ".join(shown.split())
