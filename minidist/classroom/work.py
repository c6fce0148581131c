"""A student's copies of the lessons, in work/: made once, then the student's own.

python -m minidist.classroom.work

Each lesson's notebook, its skeleton and the modules that the notebook imports are copied to work/LESSON/. Files that
exist are left as they are. Notebooks are copied without outputs, which would answer their questions. The tests stay in
lessons/, and grade the copy if there is one. work/index.ipynb is the page over all copies (see index.py).
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from minidist import UsageError, how_to_make
from minidist.classroom.grading.grade import WORK, lessons_in
from minidist.classroom.notebook.index import kernel_metadata, place_notebook
from minidist.cli.options import Parser, in_one_process

GRADING = ("test_exercise.py", "on_ranks.py")  # not copied


def copy_lessons(lessons: Path) -> list[tuple[Path, bool]]:
    """Copy what is not there yet; return each copy's folder, and whether anything in it is new."""
    copies = []
    for lesson in lessons_in(lessons):
        copy = lessons.parent / WORK / lesson.name
        copy.mkdir(parents=True, exist_ok=True)
        files = [file for file in [*lesson.glob("*.py"), *lesson.glob("*.ipynb")] if file.name not in GRADING]
        new = [file for file in files if not (copy / file.name).exists()]
        for file in new:
            if file.suffix == ".ipynb":
                (copy / file.name).write_text(without_outputs(file.read_text(encoding="utf-8")), encoding="utf-8")
            else:
                shutil.copy(file, copy / file.name)
        copies.append((copy, bool(new)))
    return copies


def without_outputs(notebook: str) -> str:
    """A notebook's text as if it had never run, with this environment's kernel, and otherwise as it was written."""
    content = json.loads(notebook)
    content["metadata"] |= kernel_metadata()
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] = ()) -> int:
    Parser("classroom.work", __doc__ or "").parse_args(arguments)
    if not lessons_in(Path("lessons")):
        raise UsageError(f"there are no lessons here: {how_to_make('lessons')}")
    for copy, new in copy_lessons(Path("lessons")):
        print(f"{copy}: {'your copy, to work in' if new else 'yours, left as it is'}")
    print(f"{place_notebook(Path('lessons'))}: the map of the course, to begin with")
    return 0


if __name__ == "__main__":
    sys.exit(in_one_process(lambda: main(sys.argv[1:])))
