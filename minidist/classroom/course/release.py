"""What an instructor hands out: a student's edition, and an autograder for each lesson.

The student's edition is the project without its tests, which hold answers and wrong submissions. Chapters that answer
its lessons are sealed: their text is not readable, but lessons and later chapters can run them.
"""

import ast
import base64
import json
import os
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from minidist import UsageError, find_clone, how_to_make
from minidist.classroom.grading.grade import check_hidden
from minidist.mpi.output import reason
from minidist.system.files import remove

PACKAGE = Path(__file__).parents[2]
CLONE = PACKAGE.parent
KIT = Path(__file__).parent / "kit"
PROJECT = (".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "Makefile", "README.md", "pyproject.toml")
INSTALLED = ("LICENSE", "README.md", "pyproject.toml")  # what pip needs besides the package
DEBRIS = shutil.ignore_patterns("__pycache__", "*.py[cod]", ".*")
SEED = "seed"  # a file of an autograder's
OWN = "answers.py"  # functions with which a lesson's notebook goes on if a gap is not filled
BUGS = ("claims/mutants/record/*.toml", "bugs/*.toml")
READABLE = ("minidist.nn.layers",)  # hidden by lessons, but not sealed: only a few of its many lines are answers
ANSWERS = "answers"  # the tag of a notebook's cells that students do not get
FOLDED = re.compile(r"\s*<details>\s*<summary>\W*answer.*?</details>", re.IGNORECASE | re.DOTALL)

# Few lines, so that tracebacks, which have the chapter's line numbers, do not show these lines in place of the text.
SEALED = '''\
"""Sealed: here is an answer to {lessons}. It runs as ever; its text is not in the student's edition."""

exec(compile(__import__("zlib").decompress(__import__("base64").b85decode("{text}")), __file__, "exec"))
'''


def release(out: Path, lessons: Sequence[Path], hidden: Path | None = None, seed: int | None = None) -> list[Path]:
    """Write out/student/ and, for each lesson, out/autograder/LESSON.zip; return what was written.

    hidden: an instructor's folder with more tests. seed: of all grades. Both are for autograders alone. Raises
    UsageError if `out` is not empty.
    """
    if not find_clone():
        raise UsageError(f"release needs a clone, and is run there: {how_to_make('setup')}")
    check_hidden(hidden)
    inside = next(
        (path for path in (PACKAGE, *lessons) if path.resolve() in [out.resolve(), *out.resolve().parents]), None
    )
    if inside:
        raise UsageError(f"{out} is in {inside}, which is to be released: name a folder elsewhere")
    student, autograders, finished = out / "student", out / "autograder", False
    try:
        is_new = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UsageError(f"{out} is not empty: name a new folder")
        try:
            students_edition(student, lessons)
            autograders.mkdir()
            written = [autograder(autograders / f"{lesson.name}.zip", lesson, hidden, seed) for lesson in lessons]
            finished = True
            return [student, *written]
        finally:
            if not finished:  # half of it could be handed out as the whole
                remove(str(out if is_new else student))
                remove(str(autograders))
    except OSError as error:
        raise UsageError(f"{out} cannot be written to: {reason(error)}") from None


# ---- for students ----------------------------------------------------------------------------------------------------


def students_edition(folder: Path, lessons: Sequence[Path]) -> Path:
    """Everything but tests, broken chapters, and answers to these lessons."""
    folder.mkdir()
    for name in PROJECT:
        if (CLONE / name).exists():
            shutil.copy(CLONE / name, folder)
    shutil.copytree(PACKAGE, folder / "minidist", ignore=DEBRIS)
    for mutants in (folder / "minidist" / "claims" / "mutants").glob("*.toml"):
        mutants.unlink()  # they quote the chapters that they break
    for bugs in BUGS:  # these do, too, and lesson 18 runs them
        for file in (folder / "minidist").glob(bugs):
            seal(file, ["18_find_it"])
    if (readme := lessons[0].parent / "README.md").is_file():
        (folder / "lessons").mkdir()
        shutil.copy(readme, folder / "lessons")
    for lesson in lessons:
        copy = folder / "lessons" / lesson.name
        shutil.copytree(lesson, copy, ignore=DEBRIS)
        if (copy / OWN).exists():
            seal(copy / OWN, [lesson.name])
        for notebook in copy.glob("*.ipynb"):
            notebook.write_text(without_answers(notebook.read_text(encoding="utf-8")), encoding="utf-8")
    for module, answered in model_answers(lessons).items():
        seal(folder / (module.replace(".", "/") + ".py"), answered)
    shutil.copy(KIT / "for_assistants.md", folder / "AGENTS.md")
    return folder


def model_answers(lessons: Sequence[Path]) -> dict[str, list[str]]:
    """The modules that lessons hide from ranks (HIDDEN in their tests), except those in READABLE. Each comes with the
    lessons that it answers."""
    answered: dict[str, list[str]] = {}
    for lesson in lessons:
        for node in ast.parse((lesson / "test_exercise.py").read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and [ast.unparse(name) for name in node.targets] == ["HIDDEN"]:
                for module in ast.literal_eval(node.value):
                    if "." in module and module not in READABLE:  # without a dot, it is next to the test
                        answered.setdefault(module, []).append(lesson.name)
    return answered


def seal(file: Path, lessons: Sequence[str]) -> None:
    """Replace a file's text by code that runs on any Python, but cannot be read."""
    text = base64.b85encode(zlib.compress(file.read_bytes(), 9)).decode()
    file.write_text(SEALED.format(lessons=" and ".join(lessons), text=text), encoding="utf-8")


def without_answers(notebook: str) -> str:
    """A notebook's JSON without the cells that are tagged as answers, and without answers that are folded."""
    document = json.loads(notebook)
    document["cells"] = [cell for cell in document["cells"] if ANSWERS not in cell["metadata"].get("tags", [])]
    for cell in document["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and FOLDED.search(text):
            cell["source"] = FOLDED.sub("", text).splitlines(keepends=True)
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


# ---- for Gradescope --------------------------------------------------------------------------------------------------


def autograder(archive: Path, lesson: Path, hidden: Path | None, seed: int | None) -> Path:
    """A zip with setup.sh and run_autograder at its root, as Gradescope's autograder specification asks."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        for name in ("setup.sh", "run_autograder"):
            script = zipfile.ZipInfo(name)
            script.external_attr = (stat.S_IFREG | 0o755) << 16  # executable, whatever its mode in the clone
            made.writestr(script, (KIT / name).read_bytes())
        for name in INSTALLED:
            made.write(CLONE / name, name)
        add(made, PACKAGE, "minidist")
        add(made, lesson, f"lesson/{lesson.name}")
        if hidden:
            add(made, hidden, "hidden")
        if seed is not None:
            made.writestr(SEED, str(seed))
    return archive


def add(archive: zipfile.ZipFile, folder: Path, name: str) -> None:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - DEBRIS(parent, folders))
        for file in sorted(set(files) - DEBRIS(parent, files)):
            archive.write(Path(parent, file), Path(name, Path(parent).relative_to(folder), file))
