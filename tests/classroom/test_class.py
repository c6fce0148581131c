"""A class: whatever folder an LMS leaves, everybody has a row, and nothing is graded twice."""

import ast
import csv
import io
import os
import re
import zipfile
from pathlib import Path, PurePath

import pytest

from classroom.tiny import HALF, HIDDEN, RIGHT, TRIPLE, classroom, lay, make_lessons
from minidist.classroom.__main__ import main
from minidist.classroom.course import feedback, handed_in, roster
from minidist.classroom.course import gradebook as course
from minidist.classroom.grading.grade import MACHINE_FAULT, Part, lesson_of, lessons_in, read_program


@pytest.fixture
def lessons(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_lessons(tmp_path)


def rows(file):
    """{student: the other cells}, without the header; and the header. Columns of the office (test_course.py) are left
    out."""
    header, *body = csv.reader(io.StringIO(Path(file).read_text(), newline=""))
    kept = [i for i, name in enumerate(header) if name not in ("manual", "late", "remark")]
    return [header[i] for i in kept], {row[0]: [row[i] for i in kept[1:]] for row in body}


ROSTER = """student,email,id,section
Ada Lovelace,ada@uni.edu,1815,A
Bob Noyce,noyce@uni.edu,1927,A
Cem Özgür,cem@uni.edu,1990,B
"Dora, née Day",dora@uni.edu,1001,B
Eli Rest,eli@uni.edu,1002,B
"""
FOLDER = {
    "Ada Lovelace_11_assignsubmission_file_/work/01_tiny/exercise.py": RIGHT,
    "Ada Lovelace_11_assignsubmission_file_/work/01_tiny/test_exercise.py": "def double(): pass\n",
    "Ada Lovelace_11_assignsubmission_file_/work/02_small/exercise (1).py": TRIPLE,
    "Ada Lovelace_11_assignsubmission_file_/__MACOSX/work/._exercise.py": "\0",
    "noycebob_LATE_1927_70000_exercise-2.py": HALF,
    "dora/exercise.py": RIGHT,
    "dora/exercise (1).py": HALF,
    "dora/again/exercise.py": RIGHT,
    "fay/lesson.ipynb": "{}",
    "gus.py": "nothing here\n",
    "hal/": "",
}


@pytest.mark.slow
def test_a_class_as_an_lms_leaves_it(lessons, capsys):
    lay(lessons / "handed in", FOLDER)
    with zipfile.ZipFile(lessons / "handed in" / "Cem Özgür.zip", "w") as archive:
        archive.writestr(
            "my work/exercise copy.py", "def double(comm, x):\n    import ctypes\n    ctypes.string_at(0)\n"
        )
        archive.writestr("my work/02_small/exercise.py", "def triple(comm, x:")
    (lessons / "handed in" / "ivy.zip").write_bytes(b"PK no zip")
    (lessons / "roster.csv").write_text("\ufeff" + ROSTER)
    (lessons / "more").mkdir()
    (lessons / "more" / "test_more.py").write_text(HIDDEN)
    assert main(["class", "handed in", "--roster", "roster.csv", "--csv", "points.csv", "--feedback", "pages"]) == 0
    printed = capsys.readouterr().out

    header, points = rows("points.csv")
    assert header == ["student", "email", "id", "section", "01_tiny", "02_small", "total", "note"]
    assert list(points) == [
        "Ada Lovelace",
        "Bob Noyce",
        "Cem Özgür",
        "Dora, née Day",
        "Eli Rest",
        "fay",
        "gus",
        "hal",
        "ivy",
    ]
    assert points["Ada Lovelace"] == ["ada@uni.edu", "1815", "A", "2.5", "2.5", "5", ""]
    assert points["Bob Noyce"][3:] == ["2", "", "2", "no 02_small"]
    assert points["Cem Özgür"][3:] == ["0", "0", "0", ""]
    twice = "01_tiny found twice, keep one: dora/again/exercise.py, dora/exercise (1).py"
    assert points["Dora, née Day"][3:] == ["", "", "", twice]
    assert points["Eli Rest"][3:] == ["", "", "", "nothing handed in"]
    unknown = "not in the roster; "
    assert points["fay"][3:] == ["", "", "", unknown + "fay/lesson.ipynb is a notebook; what is graded is exercise.py"]
    assert points["gus"][3:] == ["", "", "", unknown + "gus.py defines nothing that a lesson asks for"]
    assert points["hal"][3:] == ["", "", "", unknown + "nothing handed in"]
    assert points["ivy"][6].startswith(unknown + "ivy.zip cannot be unpacked: ")
    for line in (f"Dora, née Day: {twice}", "Eli Rest: nothing handed in", "Bob Noyce: no 02_small"):
        assert f"\n{line}\n" in printed
    assert re.search(r"01_tiny: 3 submissions\n\n   1  doubles +2 of 3\n +2  negative numbers too +1 of 3\n", printed)

    pages = {file.name: file.read_text() for file in (lessons / "pages").iterdir()}
    assert set(pages) == {f"{student}.html" for student in points} - {"Dora, née Day.html"} | {"Dora_ née Day.html"}
    assert "<h2>01_tiny: 2 of 2.5 points</h2>" in pages["Bob Noyce.html"]
    assert "<pre>-1 becomes 2</pre>" in pages["Bob Noyce.html"]
    assert "killed by signal 11" in pages["Cem Özgür.html"]
    assert "&#x27;(&#x27; was never closed" in pages["Cem Özgür.html"]
    assert twice in pages["Dora_ née Day.html"]
    assert not re.search(r"(src|href)=", "".join(pages.values()))


def test_a_class_goes_on_where_it_was_interrupted(lessons, monkeypatch, capsys):
    """What has been graded is not graded again, unless it was handed in anew or is to be graded otherwise."""
    lay(lessons / "all", {f"{name}/exercise.py": RIGHT + f"# {name}\n" for name in ("ada", "bob", "cem")})
    graded = []

    def grade(lesson, file, **options):
        if stop and file.parent.name >= stop:
            raise KeyboardInterrupt
        graded.append(file.parent.name)
        lost = Part("b", "negative", 0.5, 0, "-1 becomes 2" if HALF in file.read_text() else "")
        return course.Grade(lesson.name, file, [Part("a", "doubles", 2, 2), lost], seed=3, notes=["a note"])

    monkeypatch.setattr(course, "grade", grade)
    command = ["class", "all", "--csv", "points.csv", "--feedback", "pages"]
    stop = "bob"
    with pytest.raises(KeyboardInterrupt):
        main(command)
    assert rows("points.csv")[1] == {"ada": ["2", "", "2", ""], "bob": ["", "", "", ""], "cem": ["", "", "", ""]}
    with open("points.csv.jsonl", "a") as file:
        file.write('\n{"of": "half a li')
    stop = ""
    assert main(command) == 0
    assert rows("points.csv")[1] == {name: ["2", "", "2", ""] for name in ("ada", "bob", "cem")}
    assert graded == ["ada", "bob", "cem"]
    assert re.search(r"1  doubles +3 of 3\n", capsys.readouterr().out)

    (lessons / "all" / "bob" / "exercise.py").write_text(HALF)  # handed in anew
    assert main([*command, "--jobs", "3"]) == 0
    assert graded == ["ada", "bob", "cem", "bob"]
    assert "-1 becomes 2" in (lessons / "pages" / "bob.html").read_text()
    assert main([*command, "--seed", "7"]) == 0
    assert len(graded) == 7
    for number, name in enumerate(("on_ranks.py", "given.py"), start=1):
        (lessons / "lessons" / "01_tiny" / name).write_text("# other tests")
        assert main(command) == 0
        assert len(graded) == 7 + 3 * number


def test_what_a_busy_machine_could_not_grade_is_tried_again(lessons, monkeypatch, capsys):
    """At the end, one at a time; a name that looks like a formula is none in a spreadsheet."""
    lay(lessons / "all", {f"{name}/exercise.py": RIGHT + f"# {name}\n" for name in ("ada", "=bob", "cem", "dan")})
    tried = []

    def grade(lesson, file, **options):
        name = file.parent.name
        tried.append(name)
        graded = course.Grade(lesson.name, file, [Part("a", "doubles", 2, 2)], seed=3)
        if name == "dan" or (name == "cem" and tried.count(name) == 1):
            graded.machine, graded.error = True, "not graded, for a fault of this machine: too busy"
        return graded

    monkeypatch.setattr(course, "grade", grade)
    assert main(["class", "all", "--csv", "points.csv", "--jobs", "2"]) == MACHINE_FAULT
    assert sorted(tried) == ["=bob", "ada", "cem", "cem", "dan", "dan"]
    why = "not graded, for a fault of this machine: too busy"
    graded = {name: ["2", "", "2", ""] for name in ("ada", "'=bob", "cem")}
    assert rows("points.csv")[1] == {**graded, "dan": ["", "", "", why]}  # no points, which is not 0
    said = capsys.readouterr().out
    assert re.search(r"\d of 4, \d s left", said)
    assert f"\ndan: {why}\n" in said
    assert said.endswith("points written to points.csv\n")


def test_hidden_parts_are_one_line_of_a_page(tmp_path):
    parts = [Part("a", "shown", 1, 1), Part("b", "a secret", 2, 0, "what it asks", hidden=True)]
    feedback.write(tmp_path / "page.html", "<Ada>", [course.Grade("01", Path("x.py"), parts)], [])
    page = (tmp_path / "page.html").read_text()
    assert "<h1>&lt;Ada&gt;</h1>" in page
    assert "01: 1 of 3 points" in page
    assert "your instructor's own parts</td><td>0 of 2</td>" in page
    assert "secret" not in page
    assert "what it asks" not in page


def test_a_page_says_a_syntax_error_once():
    wrong = "exercise.py is no Python: line 3: '(' was never closed"
    parts = [Part(name, name, 1, 0, wrong) for name in "abc"] + [Part("d", "d", 1, 0, "something else")]
    page = feedback.section(course.Grade("01", Path("x.py"), parts))
    assert page.count("was never closed") == page.count("something else") == 1
    assert page.count("<p>for the same reason</p>") == 2


def test_what_cannot_be_read_has_its_row(lessons, monkeypatch, capsys):
    """A link, a pipe, a file and a folder that are closed, and students whom the roster does not name. No one waits."""
    lay(lessons / "all", {"ada/exercise.py": RIGHT, "cem/exercise.py": RIGHT, "dan/in/exercise.py": RIGHT})
    lay(lessons / "all", {"gil/exercise.py": RIGHT, "gil/venv/x.txt": "", "roster.csv": "student\nada\nbob\n"})
    for name in ("bob", "eva", "fay"):
        (lessons / "all" / name).mkdir()
    (lessons / "all" / "roster.csv").rename(lessons / "roster.csv")
    (lessons / "all" / "bob" / "exercise.py").symlink_to(lessons / "all" / "ada" / "exercise.py")
    os.mkfifo(lessons / "all" / "eva" / "exercise.py")
    os.mkfifo(lessons / "all" / "hal.py")
    (lessons / "all" / "fay" / "work").symlink_to(lessons / "all" / "ada")
    (lessons / "all" / "gil" / "venv" / "python").symlink_to("/nowhere")
    closed, able, walk = {"cem", "dan"}, os.access, os.walk
    monkeypatch.setattr(os, "access", lambda file, mode: "cem" not in str(file) and able(file, mode))

    def shut(folder, **how):
        for parent, folders, files in walk(folder, **how):
            if parent.endswith("dan"):
                how["onerror"](PermissionError(13, "Permission denied", parent))
                folders[:] = []
                continue
            yield parent, folders, files

    monkeypatch.setattr(os, "walk", shut)
    monkeypatch.setattr(course, "grade", lambda lesson, file, **how: course.Grade(lesson.name, file, notes=["a note"]))
    assert main(["class", "all", "--roster", "roster.csv", "--csv", "points.csv"]) == 0
    notes = {student: cells[-1] for student, cells in rows("points.csv")[1].items()}
    new = "not in the roster; "
    assert notes == {
        "ada": "",
        "bob": "bob/exercise.py is a link: hand in the file itself",
        "cem": new + "cem/exercise.py cannot be read: its owner alone may",
        "dan": new + "dan cannot be opened: its owner alone may",
        "eva": new + "eva/exercise.py is no file, but a device or a pipe",
        "fay": new + "fay/work is a link: hand in the file itself",
        "gil": new.removesuffix("; "),
        "hal": new + "hal.py is no file, but a device or a pipe",
    }
    said = capsys.readouterr().out.splitlines()
    assert closed <= {line.partition(":")[0] for line in said}
    assert "note on all: a note" in said
    assert "nobody has handed in 02_small" in said


def test_what_nobody_has_handed_in_is_one_line(lessons, capsys):
    lay(lessons, {"all/ada/notes.txt": ""})
    assert main(["class", "all"]) == 0
    assert "\nnobody has handed in 01_tiny, 02_small\n" in capsys.readouterr().out


def test_notepad_s_files_are_read(tmp_path, lessons):
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "exercise.py").write_text(f"# ü\n{TRIPLE}", encoding=encoding)
        assert lesson_of(tmp_path / "exercise.py", lessons_in(lessons / "lessons")) == lessons / "lessons" / "02_small"
        assert ast.parse(read_program(tmp_path / "exercise.py"))
    (tmp_path / "exercise.py").write_bytes(b"\xff\xfex")  # half a character
    assert read_program(tmp_path / "exercise.py") == b"\xff\xfex"


def test_pages_have_names_that_any_file_system_keeps_apart():
    names = feedback.names(["Ada/../x", "ada_.._x", "..", "Özgür", "a" * 300])
    assert list(names.values()) == ["Ada_.._x.html", "ada_.._x 2.html", "_.html", "Özgür.html", "a" * 100 + ".html"]


# ---- whose is what ---------------------------------------------------------------------------------------------------


def found(*names):
    return [handed_in.Found(PurePath(name), Path(name)) for name in names]


@pytest.mark.parametrize(
    ("names", "students"),
    [
        (["ada.py", "bob/exercise.py", "cem/second/exercise.py"], ["ada", "bob", "cem"]),
        (["ada (1).py", "Ada Lovelace.py"], ["ada", "Ada Lovelace"]),
        (["lovelaceada_12_34_exercise.py", "noycebob_LATE_12_34_exercise-1.py"], ["lovelaceada", "noycebob"]),
        (["Ada L_5_assignsubmission_file_/exercise.py", "Bob_6_assignsubmission_onlinetext_/x.html"], ["Ada L", "Bob"]),
        (["01_tiny/ada.py", "01_tiny/bob/exercise.py", "02_small/ada/x.py"], ["ada", "bob"]),
        (["Homework 4/ada/exercise.py", "Homework 4/bob/exercise.py"], ["ada", "bob"]),
        (["ada/work/exercise.py"], ["ada"]),
        (["01_tiny/exercise.py"], ["01_tiny"]),
    ],
)
def test_a_student_s_name_without_a_roster(names, students):
    assert list(roster.by_student(found(*names), None, ["01_tiny", "02_small"])) == students


def test_a_name_of_many_digits_is_read_once():
    """Not in each of the 2^200 ways in which they could be several numbers."""
    assert list(roster.by_student(found("ada/exercise 2.py", f"exercise{'1' * 200}x.py"), None, [])) == [
        "ada",
        f"exercise{'1' * 200}x",
    ]
    assert not handed_in.EXERCISE.fullmatch(f"exercise{'1' * 200}x")
    for name in ("exercise", "my-exercise(1)", "exercise - Copy 2", "Exercise_1-2", "exercise copy copy"):
        assert handed_in.EXERCISE.fullmatch(name), name


@pytest.mark.parametrize(
    ("part", "student"),
    [
        ("ada", "Ada Lovelace"),  # of the address
        ("ADA  LOVELACE", "Ada Lovelace"),
        ("Ada_Lovelace_exercise", "Ada Lovelace"),
        ("HW1_noyce_attempt_2026-01-02-03-04-05_exercise", "Bob Noyce"),
        ("x_1815_70000_exercise", ""),  # a number of Canvas's
        ("noycebob_LATE_1815_70000_exercise-2", "Bob Noyce"),  # as Canvas writes it
        ("Bob Noyce_1815_assignsubmission_file_", "Bob Noyce"),  # Moodle's number of this hand-in
        ("Cem O\u0308zgu\u0308r_3_assignsubmission_file_", "Cem Özgür"),  # as macOS writes it
        ("Ada Smith", ""),  # somebody else
        ("A", ""),  # a section is nobody's name
        ("1815_1927", ""),  # two students'
    ],
)
def test_a_student_s_name_in_the_roster(tmp_path, part, student):
    (tmp_path / "roster.csv").write_text(ROSTER)
    assert roster.read(tmp_path / "roster.csv").whose(part) == student


@pytest.mark.parametrize(
    ("header", "row", "name", "number"),
    [
        ("student,id", "Ada,1815", "x_1815_70000_exercise.py", ""),  # a number of another kind
        ("student,Canvas ID", "Ada,1815", "x_1815_70000_exercise.py", "Ada"),
        ("Student,ID,SIS User ID", "Ada,1815,9", "x_LATE_1815_9_exercise.py", "Ada"),
        ("Student,ID,SIS User ID", "Ada,1815,9", "x_9_1815_exercise.py", ""),
        ("student,Identifier", "Ada,Participant 1815", "x_1815_assignsubmission_file_/exercise.py", "Ada"),
        ("student,Canvas ID", "Ada,1815", "x_1815_assignsubmission_file_/exercise.py", ""),  # Moodle's
        ("student,Canvas ID", "Ada,1815", "bob_1815_70000_exercise.py", "bob"),  # a name before any number
    ],
)
def test_a_number_counts_where_the_roster_has_that_system_s_and_no_name_says_whose_it_is(
    lessons, header, row, name, number
):
    lay(lessons, {"roster.csv": f"{header}\n{row}\nbob,,\n"[: None if header.count(",") > 1 else -2] + "\n"})
    lay(lessons / "all", {name: RIGHT})
    known = roster.read(lessons / "roster.csv")
    files = handed_in.look(lessons / "all", lessons)
    [(owner, [file])] = [(who, of) for who, of in roster.by_student(files, known, []).items() if of]
    assert owner == (number or "x")
    assert roster.by_number_alone(file, known) == (number == "Ada")
    result = course.Class({owner: [file]}, lessons_in(lessons / "lessons"), known, course.Outputs(None, None))
    assert any("by its number alone" in said for said in result.problems(owner)) == (number == "Ada")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("student,id\n", "has nobody in it"),
        ("", "is no CSV file with a header"),
        ("student,id\nada,1\nada,2\n", "has 'ada' twice"),
        ("student,id\n,1\n", "student 1, ',1', does not fit the header"),
        ("student\nLovelace, Ada\n", "does not fit the header"),
    ],
)
def test_a_roster_that_is_none(lessons, capsys, text, words):
    lay(lessons, {"roster.csv": text, "all/ada.py": RIGHT})
    with pytest.raises(Exception, match=words):
        main(["class", "all", "--roster", "roster.csv"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["all/ada.py"], "there is no folder all/ada.py"),
        (["empty"], "there are no submissions in empty"),
        (["bad.zip"], "bad.zip cannot be unpacked"),
        (["all", "--roster", "nobody.csv"], "cannot read --roster nobody.csv"),
        (["all", "--csv", "no/points.csv"], "there is no folder no"),
        (["all", "--csv", "all/points.csv"], "is in the folder of submissions"),
        (["all", "--feedback", "all/pages"], "is in the folder of submissions"),
        (["all", "--feedback", "bad.zip"], "--feedback bad.zip cannot be a folder"),
        (["all", "--roster", "roster.csv", "--csv", "roster.csv"], "would overwrite the file of --roster"),
        (["all", "--lesson", "all"], "all is no lesson"),
        (["all", "--hidden", "all"], "there is no test_*.py in all"),
    ],
)
def test_a_wrong_command_is_one_line(lessons, arguments, words):
    lay(lessons, {"all/ada.py": RIGHT, "empty/": "", "bad.zip": "no", "roster.csv": ROSTER})
    with pytest.raises(Exception, match=re.escape(words)) as refused:
        main(["class", *arguments])
    assert type(refused.value).__name__ == "UsageError"


def test_a_zip_of_them_all_and_status_2(lessons):
    with zipfile.ZipFile(lessons / "all.zip", "w") as archive:
        archive.writestr("all/ada/exercise.py", RIGHT)
        archive.writestr("all/bob/notes.txt", "")
    run = classroom(lessons, "class", "all.zip", "--lesson", "lessons/01_tiny")
    assert (run.returncode, run.stderr) == (0, "")
    assert re.search(r"^ada +01_tiny +2.5 of 2.5 +\d+\.\d s$", run.stdout, re.MULTILINE)
    assert "\nbob: no exercise.py, only all/bob/notes.txt" in run.stdout
    run = classroom(lessons, "class", "nowhere")
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)


def archive_of(file, names):
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, RIGHT)


def test_zips_that_cannot_be_unpacked_say_why_in_few_words(tmp_path):
    names = {"deep": ["a/" * 1500 + "exercise.py"], "long": ["a" * 300 + "/exercise.py"], "secret": ["exercise.py"]}
    for name, inside in names.items():
        archive_of(tmp_path / f"{name}.zip", inside)
    closed = bytearray((tmp_path / "secret.zip").read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flags of its only file, in both headers
        closed[closed.index(mark) + place] |= 1
    (tmp_path / "secret.zip").write_bytes(closed)
    said = {}
    for name in names:
        (tmp_path / "to" / name).mkdir(parents=True)
        said[name] = handed_in.unpack(tmp_path / f"{name}.zip", tmp_path / "to" / name)
        assert not list((tmp_path / "to" / name).iterdir())
    assert said == {
        "deep": "deep.zip has folders in folders, 1,500 deep: at most 50 are read",
        "long": "long.zip cannot be unpacked: File name too long",
        "secret": "secret.zip is locked with a password: hand it in without one",
    }


@pytest.mark.parametrize("content", [RIGHT, "nothing = 1\n"])
@pytest.mark.parametrize("name", ["exercise ({}).py", "some{}.py", "{}.ipynb", "{}.txt"])
def test_a_note_names_only_a_few_of_very_many_files(name, content, lessons):
    lay(lessons, {f"all/ada/{name.format(i)}": f"{content}# {i}\n" for i in range(999)})
    found = handed_in.look(lessons / "all", lessons)
    _, problems = handed_in.sort_out(found, lessons_in(Path("lessons"))[:1], "ada")
    assert problems
    assert all(len(problem) < 250 for problem in problems)
    assert any("and 996 more" in problem for problem in problems)


def test_no_control_character_of_a_name_reaches_a_terminal_or_a_csv(lessons, capfd):
    red = "\x1b[31mada\x07"
    lay(lessons, {f"all/{red}.txt": "", f"all/{red}/{red}.txt": ""})
    main(["class", "all", "--csv", "points.csv", "--feedback", "pages"])
    printed = "".join(capfd.readouterr()) + Path("points.csv").read_text()
    printed += "".join(page.read_text() + page.name for page in Path("pages").iterdir())
    assert r"\x1b[31mada\x07" in printed
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", printed.replace("\r\n", "\n"))
