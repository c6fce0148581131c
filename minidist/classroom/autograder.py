"""In Gradescope's container: grade what is in submission/, and write results/results.json, whatever was submitted.

    python -P -m minidist.classroom.autograder /autograder

The folder has source/, the unpacked zip that release.py has made; submission/, with what the student has uploaded; and
results/.
"""

import os
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minidist import UsageError
from minidist.classroom.course.handed_in import look, sort_out
from minidist.classroom.course.release import SEED, model_answers
from minidist.classroom.grading import reports
from minidist.classroom.grading.grade import MACHINE_FAULT, grade, printable
from minidist.cli.options import Parser, in_one_process, pathlib_path
from minidist.cli.paths import as_json, is_folder, write_inside
from minidist.system.files import temporary_folder

FAILED = "Not graded: the autograder failed. That is no fault of yours; tell your instructor."
WHAT = "Submit exercise.py, the file in which you have written your functions, by this name."
NOTEBOOK = (
    "A notebook cannot be graded: copy the functions that you have written in it into exercise.py, see with"
    " `make grade` what they earn, and submit that file."
)


def main(folder: Path) -> int:
    if not is_folder(folder / "source"):
        raise UsageError(f"{folder} is no folder of an autograder: it has no folder source")
    try:
        (folder / "results").mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}/results cannot be a folder: {error.strerror}") from None
    try:
        document = results(folder)
    except UsageError as error:  # for the instructor: Gradescope does not show it to students
        print(f"minidist: error: {error}", file=sys.stderr)
        document = refusal(FAILED)
    except Exception:
        traceback.print_exc()
        document = refusal(FAILED)
    if document is None:
        return MACHINE_FAULT
    write_inside(str(folder / "results"), "results.json", as_json(document))
    return 0


def results(folder: Path) -> dict[str, Any] | None:
    """The content of results.json; None if a fault of the machine prevented grading."""
    place = folder / "source" / "lesson"
    lessons = [*place.iterdir()] if is_folder(place) else []
    if len(lessons) != 1:
        raise UsageError(f"there are {len(lessons)} lessons in {place}, not 1")
    [lesson] = lessons
    hidden = folder / "source" / "hidden"
    for module in model_answers([lesson]):
        lock(module)
    with temporary_folder() as scratch:
        found = look(folder / "submission", scratch)
        exercises, problems = sort_out(found, [lesson])
        for problem in problems:
            print(printable(problem))
        if lesson.name not in exercises:
            notebook = any(each.shown.suffix.lower() == ".ipynb" for each in found)
            return refusal(f"Not graded: {'; '.join(problems)}. {NOTEBOOK if notebook else WHAT}")
        shown, file, _ = exercises[lesson.name]
        assert file is not None
        seed = folder / "source" / SEED
        drawn = int(seed.read_text()) if seed.is_file() else None
        graded = grade(lesson, file, hidden if hidden.is_dir() else None, seed=drawn)
    print(reports.table(graded))
    if graded.machine:
        return None
    document = reports.gradescope(graded)
    if shown.name != "exercise.py":
        said = f"{shown} was graded. {WHAT}"
        document["output"] = "\n\n".join(text for text in (said, document.get("output", "")) if text)
    return document


def lock(module: str) -> None:
    """Let only root read a chapter: without namespaces, ranks run as other users."""
    spec = find_spec(module)
    if spec is not None and spec.origin is not None and os.getuid() == 0:
        source = Path(spec.origin)
        for file in (source, *(source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")):
            file.chmod(0o600)


def refusal(why: str) -> dict[str, Any]:
    """No points, and the reason."""
    return {"score": 0, "output": why, "visibility": "visible", "stdout_visibility": "hidden", "tests": []}


if __name__ == "__main__":
    parser = Parser("classroom.autograder", __doc__ or "")
    parser.add_argument("folder", type=pathlib_path, metavar="FOLDER", help="with source/, submission/ and results/")
    sys.exit(in_one_process(lambda: main(parser.parse_args().folder.resolve())))
