"""A student's copies of the lessons, in work/: made once, theirs from then on.

python -m minidist.classroom.work

Each lesson's notebook, skeleton and what the notebook imports are copied to work/LESSON/. A file that is there is left
as it is. What grades stays in lessons/, and grades the copy if there is one.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from minidist import UsageError
from minidist.classroom.grade import WORK, lessons_in
from minidist.cli.options import Parser, in_one_process

GRADING = ("test_exercise.py", "on_ranks.py")  # of the lesson alone


def copy_lessons(lessons: Path) -> list[tuple[Path, bool]]:
    """Copy what is not there yet; each copy's folder, and whether anything of it is new."""
    copies = []
    for lesson in lessons_in(lessons):
        copy = lessons.parent / WORK / lesson.name
        copy.mkdir(parents=True, exist_ok=True)
        files = [file for file in [*lesson.glob("*.py"), *lesson.glob("*.ipynb")] if file.name not in GRADING]
        new = [file for file in files if not (copy / file.name).exists()]
        for file in new:
            shutil.copy(file, copy / file.name)
        copies.append((copy, bool(new)))
    return copies


def main(arguments: Sequence[str] = ()) -> int:
    Parser("classroom.work", __doc__ or "").parse_args(arguments)
    if not lessons_in(Path("lessons")):
        raise UsageError("there are no lessons here: go to the top of a clone, which has them in lessons/")
    for copy, new in copy_lessons(Path("lessons")):
        print(f"{copy}: {'your copy, to work in' if new else 'yours, left as it is'}")
    return 0


if __name__ == "__main__":
    sys.exit(in_one_process(lambda: main(sys.argv[1:])))
