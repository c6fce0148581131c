"""What a course office needs beside points: late hand-ins, an instructor's own columns, a part that is graded again,
hand-ins that are alike, and what Canvas and Moodle import."""

import ast
import csv
import os
import random
import re
import zipfile
from datetime import datetime
from pathlib import Path

import pytest

from classroom.grading import ANSWERS, LESSONS, ROOT
from classroom.mistakes import BASES
from classroom.test_likeness import Disguise, forms_of, swap_independent_lines
from classroom.tiny import HALF, LESSON, RIGHT, TRIPLE, lay, make_lessons
from minidist import UsageError
from minidist.classroom.__main__ import main
from minidist.classroom.course import gradebook, handed_in, sheets
from minidist.classroom.course.similar import similar
from minidist.classroom.grading import copies
from minidist.classroom.grading.grade import Grade, Part
from minidist.classroom.grading.likeness import Forms

NOON = datetime(2026, 11, 30, 12).timestamp()


@pytest.fixture
def lessons(tmp_path, monkeypatch):
    monkeypatch.chdir(make_lessons(tmp_path))
    return tmp_path


@pytest.fixture
def graded(monkeypatch):
    """Grades without ranks: (student, seed, only) of each call."""
    calls = []

    def grade(lesson, file, **options):
        calls.append((file.parent.name, options["seed"], options.get("only")))
        right = HALF not in file.read_text()
        parts = [Part("a", "doubles", 2, 2), Part("b", "negative numbers too", 0.5, 0.5 * right)]
        if words := options.get("only"):
            parts = [part for part in parts if words in part.title]
        return Grade(lesson.name, file, parts, seed=options["seed"] if options["seed"] is not None else 5)

    monkeypatch.setattr(gradebook, "grade", grade)
    return calls


def table(file, delimiter=","):
    """{student: {column: cell}}"""
    with open(file, newline="", encoding="utf-8-sig") as lines:
        return {row["student"]: row for row in csv.DictReader(lines, delimiter=delimiter)}


# ---- late ------------------------------------------------------------------------------------------------------------


def test_what_is_late_is_marked_in_the_table_and_the_csv(lessons, graded, capsys):
    """By Canvas's mark in a name, or by a file's time, which a zip keeps."""
    lay(lessons / "all", {f"{name}/exercise.py": RIGHT for name in ("ada", "bob")})
    lay(lessons / "all", {"noycecem_LATE_12_34_exercise.py": RIGHT})
    for name, after in (("ada", -60), ("bob", 3 * 3600)):
        os.utime(lessons / "all" / name / "exercise.py", (NOON + after, NOON + after))
    with zipfile.ZipFile(lessons / "all" / "dan.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("exercise.py", (2026, 12, 3, 12, 0, 0)), RIGHT)
    os.utime(lessons / "all" / "noycecem_LATE_12_34_exercise.py", (NOON, NOON))
    assert main(["class", "all", "--csv", "points.csv", "--due", "2026-11-30T12:00"]) == 0
    late = {student: row["late"] for student, row in table("points.csv").items()}
    by = {"ada": "", "bob": "3 h", "noycecem": "as Canvas says", "dan": "3 days"}
    assert late == {student: said and f"01_tiny: {said}" for student, said in by.items()}
    said = capsys.readouterr().out
    assert re.search(r"^bob +01_tiny +2.5 of 2.5 +0.0 s +late", said, re.MULTILINE)
    assert re.search(r"^ada +01_tiny +2.5 of 2.5 +0.0 s(?!.*late)", said, re.MULTILINE)
    assert "\ndan: late, 01_tiny: 3 days\n" in said
    assert main(["class", "all", "--csv", "points.csv"]) == 0  # without --due, what Canvas says remains
    assert [row["late"] for row in table("points.csv").values() if row["late"]] == ["01_tiny: as Canvas says"]


def test_a_deadline_is_a_minute_or_the_end_of_a_day():
    assert handed_in.deadline("2026-11-30T12:00") == handed_in.deadline("2026-11-30 12:00") == NOON
    assert handed_in.deadline("2026-11-30") == NOON + 12 * 3600 - 1
    with pytest.raises(UsageError, match="must be like 2026-12-01 or 2026-12-01T18:00, not 'soon'"):
        main(["class", "all", "--due", "soon"])


# ---- the instructor's own columns ------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_what_an_instructor_writes_into_the_table_survives(lessons, graded, delimiter):
    """Manual points, which count, remarks and columns of one's own; also if a spreadsheet has saved the file anew, and
    the row of a student who is nowhere else."""
    lay(lessons / "all", {f"{name}/exercise.py": RIGHT for name in ("ada", "=bob", "cem")})
    lay(lessons, {"roster.csv": "student,remark\nada,\n=bob,a\ncem,b\ndora,\n"})
    command = ["class", "all", "--csv", "points.csv", "--roster", "roster.csv"]
    assert main(command) == 0
    with open("points.csv", newline="") as file:
        rows = [*csv.reader(file)]
    assert rows[0] == ["student", "remark", "01_tiny", "02_small", "manual", "total", "late", "note", "remark"]
    rows[0].append("oral")
    for row, more in zip(rows[1:], (("-0.5", "came back", "7"), ("1,5", "=1+1", ""), ("two", "", "9")), strict=False):
        row[4], row[8:] = more[0], [*more[1:]]
    rows.append(["eva", "", "", "", "3", "", "", "", "by hand", ""])
    with open("points.csv", "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    for _ in range(2):
        assert main(command) == 0
        with open("points.csv", newline="") as file:
            header, *now = csv.reader(file)
        assert header == rows[0]
        assert [[row[0], row[4], row[5], *row[8:]] for row in now] == [
            ["ada", "-0.5", "2", "came back", "7"],
            ["'=bob", "1,5", "4", "'=1+1", ""],
            ["cem", "two", "2.5", "", "9"],
            ["dora", "", "", "", ""],
            ["eva", "3", "3", "by hand", ""],
        ]
    assert "manual points are no number: 'two'" in now[2][7]
    (lessons / "points.csv").write_bytes(b"student,manual,remark\nada,1,\xfc\n")
    with pytest.raises(UsageError, match=r"is not UTF-8.*or what you wrote in it is lost"):
        main(command)


# ---- a part again ----------------------------------------------------------------------------------------------------


def test_one_part_is_graded_again_once_its_test_was_mended(lessons, graded):
    """With the seed of the grade that it belongs to; students without a grade get all parts; nothing twice."""
    lay(lessons / "all", {f"{name}/exercise.py": f"{HALF}# {name}\n" for name in ("ada", "bob")})
    command = ["class", "all", "--csv", "points.csv", "--lesson", "lessons/01_tiny", "--seed", "3"]
    assert main(command) == 0
    assert [row["total"] for row in table("points.csv").values()] == ["2", "2"]
    again = [*command, "--only", "negative"]
    assert main(again) == 0
    assert len(graded) == 2  # nothing has changed
    tests = lessons / "lessons" / "01_tiny" / "test_exercise.py"
    tests.write_text(tests.read_text() + "# mended\n")
    lay(lessons / "all", {"cem/exercise.py": RIGHT})
    assert main(again) == 0
    assert sorted(graded[2:]) == [("ada", 3, "negative"), ("bob", 3, "negative"), ("cem", 3, None)]
    assert [row["total"] for row in table("points.csv").values()] == ["2", "2", "2.5"]
    assert main(again) == 0
    assert len(graded) == 5


def test_words_that_are_in_no_title_are_refused(lessons):
    lay(lessons / "all", {"ada/exercise.py": RIGHT})
    command = ["class", "all", "--csv", "points.csv", "--lesson", "lessons/01_tiny"]
    assert main(command) == 0
    lay(lessons / "lessons" / "01_tiny", {"test_exercise.py": LESSON["test_exercise.py"] + "# mended\n"})
    with pytest.raises(UsageError, match="no part of 01_tiny has 'nowhere' in its title"):
        main([*command, "--only", "nowhere"])
    assert main([*command, "--only", "negative"]) == 0
    assert table("points.csv")["ada"]["total"] == "2.5"


# ---- alike -----------------------------------------------------------------------------------------------------------


def disguised(text: str) -> str:
    return ast.unparse(ast.fix_missing_locations(swap_independent_lines(Disguise().visit(ast.parse(text)))))


@pytest.mark.parametrize("number", LESSONS)
def test_who_wrote_alone_is_like_nobody_and_a_disguise_is_like_its_source(number: str) -> None:
    """In each lesson, right answers in different styles; among them a copy, with other names and in another order."""
    texts = {"answer": ANSWERS[number], **{name: base.text() for name, base in BASES[number].items()}}
    kept: dict[str, Forms] = {}
    for name, text in texts.items():  # those that were written independently
        forms = forms_of(text)
        if all((forms & other).total() < 0.8 * min(forms.total(), other.total()) for other in kept.values()):
            kept[name] = forms
    skeleton = LESSONS[number] / "exercise.py"
    assert similar(kept, skeleton) == []
    [pair] = similar({**kept, "copy": forms_of(disguised(texts["answer"]))}, skeleton)
    assert {*pair[:2]} == {"answer", "copy"}
    assert 8 < pair.shared <= pair.every


def test_what_many_write_says_nothing() -> None:
    """A class of 200 in which there are few ways to write a function, and two students with more in common."""
    random.seed(1)
    lines = [f"    y{i} = x[{i}:] + f{i}(x, {i})" for i in range(60)]
    hand_ins = {f"s{k}": forms_of("def f(x):\n" + "\n".join(random.sample(lines, 50))) for k in range(200)}
    own = "\n".join(f"    z = x ** {i} @ g(x, {i})" for i in range(12))
    for name in ("s7", "s9"):
        hand_ins[name] += forms_of(f"def g(x):\n{own}")
    pairs = similar(hand_ins, LESSONS["04"] / "exercise.py")
    assert [pair[:2] for pair in pairs] == [("s7", "s9")]


def test_who_is_like_whom_is_for_the_instructor_alone(lessons, monkeypatch, capsys):
    forms = [(str(i), 10, 1) for i in range(20)]
    hands = {"ada": forms, "bob": [*forms[:19], ("own", 10, 1)], "cem": [("x", 9, 30)]}
    lay(lessons / "all", {f"{name}/exercise.py": RIGHT for name in hands})
    monkeypatch.setattr(
        gradebook, "grade", lambda lesson, file, **how: Grade(lesson.name, file, forms=hands[file.parent.name])
    )
    assert main(["class", "all", "--csv", "points.csv", "--feedback", "pages"]) == 0
    assert "\nbob: 01_tiny is like ada's: 19 of 20 statements that few others have\n" in capsys.readouterr().out
    notes = {name: row["note"] for name, row in table("points.csv").items()}
    assert notes["cem"] == ""
    assert notes["ada"].startswith("01_tiny is like bob's: 19 of 20")
    assert not any("like" in page.read_text() for page in (lessons / "pages").iterdir())


# ---- Canvas and Moodle -----------------------------------------------------------------------------------------------

CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,01_tiny (77),Exam (78),Final Score
,,,,,Manual Posting,,
    Points Possible,,,,,2.5,10,(read only)
"Lovelace, Ada",11,S1,ada,A,,9,
"Noyce, Bob",12,S2,bob,A,1,8,
"""
MOODLE = """Identifier,Full name,Email address,Status,Grade,Maximum Grade,Last modified (grade),Feedback comments
Participant 11,Ada Lovelace,ada@uni.edu,Submitted,,2.5,-,
Participant 12,Bob Noyce,bob@uni.edu,Submitted,1,2.5,-,"good, so far"
"""
PEOPLE = "First name,Last name,Email address,Group\nAda,Lovelace,ada@uni.edu,A\nBob,Noyce,bob@uni.edu,A\n"


@pytest.mark.parametrize(
    ("people", "files", "written"),
    [
        (
            CANVAS,
            {"lovelaceada_11_5_exercise.py": RIGHT, "noycebob_12_6_triple.py": TRIPLE},
            "Student,ID,SIS User ID,SIS Login ID,Section,01_tiny (77),02_small\n"
            "    Points Possible,,,,,2.5,2.5\n"
            '"Lovelace, Ada",11,S1,ada,A,2.5,\n"Noyce, Bob",12,S2,bob,A,,2.5\n',
        ),
        (
            MOODLE,
            {"Ada Lovelace_11_assignsubmission_file_/exercise.py": RIGHT},
            MOODLE.replace("Submitted,,2.5", "Submitted,2.5,2.5").replace("Submitted,1,2.5", "Submitted,,2.5"),
        ),
        (
            PEOPLE,
            {"ada/exercise.py": RIGHT, "bob/triple.py": TRIPLE},
            "Email address,01_tiny,02_small\nada@uni.edu,2.5,\nbob@uni.edu,,2.5\n",
        ),
    ],
)
def test_what_canvas_and_moodle_import(lessons, graded, people, files, written):
    """Their own headers and numbers, and nothing that they would take for a grade."""
    lay(lessons, {"roster.csv": people})
    lay(lessons / "all", files)
    command = ["class", "all", "--roster", "roster.csv", "--csv", "points.csv", "--upload", "grades.csv"]
    assert main(command) == 0
    assert Path("grades.csv").read_text().splitlines() == written.splitlines()


def test_manual_points_belong_to_the_only_lesson_or_are_a_column(lessons, graded):
    lay(lessons, {"roster.csv": PEOPLE.replace("First name", "Student")})
    lay(lessons / "all", {"ada/exercise.py": RIGHT})
    command = ["class", "all", "--roster", "roster.csv", "--csv", "points.csv", "--upload", "grades.csv"]
    assert main(command) == 0
    text = Path("points.csv").read_text()
    Path("points.csv").write_text(text.replace(",2.5,,,2.5,", ",2.5,,1,2.5,"))
    assert main(command) == 0
    assert Path("grades.csv").read_text().splitlines()[1:] == ["ada@uni.edu,3.5", "bob@uni.edu,"]
    lay(lessons / "all", {"bob/triple.py": TRIPLE})
    assert main(command) == 0
    assert Path("grades.csv").read_text().splitlines() == [
        "Email address,01_tiny,02_small,manual",
        "ada@uni.edu,2.5,,1",
        "bob@uni.edu,,2.5,",
    ]


@pytest.mark.parametrize(
    ("people", "words"),
    [("student,id\nada,1\n", "that Canvas or Moodle has exported"), (MOODLE, "is for one lesson"), (None, "exported")],
)
def test_an_upload_that_no_system_would_take_is_refused_before_the_work(lessons, graded, people, words):
    lay(lessons, {"roster.csv": people or ""})
    lay(lessons / "all", {"Ada Lovelace/exercise.py": RIGHT, "Bob Noyce/triple.py": TRIPLE})
    with pytest.raises(UsageError, match=words):
        main(["class", "all", "--upload", "grades.csv", *(["--roster", "roster.csv"] if people else [])])
    assert not graded


def test_cells_that_look_like_formulas_come_back_as_they_were():
    for cell in ("=1", "+x", "-", "@a", "-0.5", "+3", "plain", "'quoted"):
        assert sheets.as_was(sheets.as_text(cell)) == cell
    assert sheets.as_text("-0.5") == "-0.5"


# ---- copies of the package -------------------------------------------------------------------------------------------


def test_a_command_of_this_name_is_no_copy_of_the_package(tmp_path, monkeypatch):
    """Whose folder is on sys.path if it is run."""
    lay(tmp_path, {"bin/minidist": "#!/bin/sh\n", "lib/minidist.zip": "", "src/minidist/__init__.py": ""})
    monkeypatch.setattr("sys.path", [str(tmp_path / name) for name in ("bin", "lib", "src")])
    assert copies.other_copies() == [tmp_path / "lib" / "minidist.zip", tmp_path / "src" / "minidist"]


# ---- other systems ---------------------------------------------------------------------------------------------------


def test_the_cell_for_nbgrader_ends_with_the_points(lessons):
    """As TEACHING.md has it: nbgrader takes the last value of a cell for its points."""
    teaching = (ROOT / "minidist" / "classroom" / "TEACHING.md").read_text()
    [cell] = re.findall(r"```python\n(.*?)```", teaching, re.DOTALL)
    (lessons / "exercise.py").write_text(HALF)
    *body, last = ast.parse(cell).body
    assert isinstance(last, ast.Expr)
    names = {"LESSON": "lessons/01_tiny"}
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    assert eval(ast.unparse(last), names) == 2


def test_folders_of_nbgrader_are_a_class(lessons, graded):
    lay(lessons / "submitted", {f"{name}/ring/{file}": RIGHT for name in ("ada", "bob") for file in ("exercise.py",)})
    lay(lessons / "submitted", {"ada/ring/ring.ipynb": "{}", "ada/ring/timestamp.txt": "2026-11-30"})
    assert main(["class", "submitted", "--lesson", "lessons/01_tiny", "--csv", "points.csv"]) == 0
    assert {name: row["total"] for name, row in table("points.csv").items()} == {"ada": "2.5", "bob": "2.5"}
