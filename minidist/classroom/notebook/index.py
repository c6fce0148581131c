"""work/index.ipynb, which `make lessons` opens: a tour, the map of the course, its lessons and paths, and your points.

Lessons come from the first cell of each lesson's notebook; paths, and how to work, from lessons/README.md. The
README's links also work in work/, because that folder is at the same depth.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minidist.classroom.grading.grade import WORK, grade, lessons_in
from minidist.classroom.notebook.syllabus import ROWS, Header, plain, read_headers

Needs = dict[str, set[str]]  # number of a lesson, "05" -> the lessons before it

TOUR = """\
%%mpirun -n 4
from minidist.ring import all_reduce

gradient = np.full(1_000_000, comm.rank, np.float32)  # 4,000,000 bytes, on each of four ranks
total = all_reduce(comm, gradient)
print(f"the sum is {total[0]:g}; sent {comm.ledger.total():,} bytes to", *comm.ledger.by_peer())"""

POINTS = """\
from minidist.classroom.notebook.index import show_points

show_points()"""


def notebook_text(lessons: Path) -> str:
    """The page as a notebook without outputs."""
    headers = read_headers(lessons)
    cells = [
        markdown(f"# minidist: the course\n\n{course_map(headers)}"),
        markdown(
            "## A one-minute tour\n\nThe second cell below runs on four processes, called ranks. Each has a gradient of"
            " its own. `all_reduce` leaves the sum on every rank, and each rank counts the bytes that it sends.\n\n"
            "**Before you run it:** a gradient has 4,000,000 bytes. How many bytes will a rank send?"
        ),
        code("%load_ext minidist"),
        code(TOUR),
        markdown(
            "With N ranks, each sends 2(N-1)/N times its gradient, and only to its neighbor: 1.5 times with four"
            " ranks, almost twice with a thousand. [Lesson 04](04_ring_all_reduce/lesson.ipynb) builds this all-reduce"
            " from `send` and `recv`, and shows why no algorithm sends less."
        ),
        *section(lessons, "How to work in a notebook"),
        markdown(f"## Lessons\n\n{table(headers)}"),
        *section(lessons, "Paths"),
        markdown(
            "## Your points so far\n\nThe next cell grades each `exercise.py` that you have begun. It takes about ten"
            " seconds per lesson. `make grade`, in a terminal, also says what to look at next."
        ),
        code(POINTS),
    ]
    return write(cells)


def place_notebook(lessons: Path) -> Path:
    """Write the page to work/, unless the student has changed the one there; outputs are no change."""
    page = lessons.parent / WORK / "index.ipynb"
    if not page.exists() or is_ours(page):
        page.write_text(notebook_text(lessons), encoding="utf-8")
    return page


# ---- its parts -------------------------------------------------------------------------------------------------------


def course_map(headers: Sequence[Header]) -> str:
    """Which lesson comes before which, as a Mermaid diagram: dotted where it only helps."""
    needed, helpful = read_needs(headers)
    lines = ["```mermaid", "flowchart LR"]
    for header in headers:
        number, _, title = header.title.partition(". ")
        lines.append(f'    {number}["{number} {re.split("[:,]", title)[0]}"]')
    for number in needed:
        lines += [f"    {before} --> {number}" for before in sorted(needed[number])]
        lines += [f"    {before} -.-> {number}" for before in sorted(helpful[number])]
    return "\n".join(
        [*lines, "```", "", "Solid arrow: do this lesson first. Dotted arrow: it helps, or a section needs it."]
    )


def read_needs(headers: Sequence[Header]) -> tuple[Needs, Needs]:
    """For each lesson the lessons that it needs, and those that only help, from its "You need", such as "lesson 05;
    07 to 17 help". A lesson that another of them needs is left out."""
    numbers = [header.title[:2] for header in headers]
    needed: Needs = {number: set() for number in numbers}
    helpful: Needs = {number: set() for number in numbers}
    for number, header in zip(numbers, headers, strict=True):
        for clause in plain(header.rows["You need"]).split(";"):
            partly = re.search(r"help|sentence|section|folded", clause)
            for first, last in re.findall(r"\b(\d\d)\b(?: to (\d\d)\b)?", clause):
                named = {one for one in numbers if first <= one <= (last or first)}
                (helpful if partly else needed)[number].update(named - {number})

    def behind(number: str) -> set[str]:
        """All lessons that a lesson needs, directly or not."""
        return needed[number].union(*map(behind, needed[number]))

    whole = {number: behind(number) for number in numbers}

    def nearest(lessons: set[str]) -> set[str]:
        return lessons.difference(*(whole[lesson] for lesson in lessons))

    return (
        {number: nearest(needed[number]) for number in numbers},
        {number: nearest(helpful[number] - whole[number]) for number in numbers},
    )


def table(headers: Sequence[Header]) -> str:
    """The lessons. Only the total time is shown: about half of it is for the exercise, in every lesson."""
    names = [*ROWS]
    rows = [["lesson", *(name.lower() for name in names)], ["---"] * (1 + len(names))]
    for header in headers:
        link = f"[{header.title}]({header.folder}/lesson.ipynb)"
        said = header.rows | {"It takes": header.rows["It takes"].partition(",")[0].rpartition(": ")[2]}
        rows.append([link, *(said[name].replace("](../", "](") for name in names)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def section(lessons: Path, heading: str) -> list[dict[str, Any]]:
    """A section of lessons/README.md, without the part for instructors."""
    readme = lessons / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    found = re.search(rf"^## {heading}\n.*?(?=^## |^\*\*For instructors|\Z)", text, re.MULTILINE | re.DOTALL)
    return [markdown(found[0].rstrip())] if found else []


# ---- points ----------------------------------------------------------------------------------------------------------


def show_points(lessons: Path | None = None) -> None:
    """Grade the exercises in work/ that the student has changed, and print the points of each as soon as they are
    known."""
    lessons = lessons or Path.cwd().parent / "lessons"
    earned = possible = 0.0
    for lesson in lessons_in(lessons):
        exercise = lessons.parent / WORK / lesson.name / "exercise.py"
        if not exercise.is_file() or exercise.read_bytes() == (lesson / "exercise.py").read_bytes():
            print(f"{lesson.name:30} not begun")
            continue
        graded = grade(lesson, exercise)
        print(f"{lesson.name:30} {graded.error or f'{graded.earned:g} of {graded.possible:g} points'}", flush=True)
        earned, possible = earned + graded.earned, possible + graded.possible
    print(f"{'total':30} {earned:g} of {possible:g} points, of what you have begun")


# ---- notebooks -------------------------------------------------------------------------------------------------------


def markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def code(text: str) -> dict[str, Any]:
    source = text.splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}


def write(cells: list[dict[str, Any]]) -> str:
    numbered = [{**cell, "id": f"cell-{number}"} for number, cell in enumerate(cells)]
    metadata = {**kernel_metadata(), "minidist": {"cells": fingerprint(cells)}}
    page = {"cells": numbered, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(page, indent=1, ensure_ascii=False) + "\n"


def kernel_metadata() -> dict[str, Any]:
    """What JupyterLab writes into a notebook when its kernel has started: a page that has it already stays saved."""
    spec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    info: dict[str, Any] = {"name": "python"}
    with contextlib.suppress(ImportError):  # without JupyterLab
        from ipykernel.ipkernel import IPythonKernel
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

        info = IPythonKernel.language_info
        with contextlib.suppress(NoSuchKernel):
            spec["display_name"] = KernelSpecManager().get_kernel_spec("python3").display_name
    return {"kernelspec": spec, "language_info": info}


def fingerprint(cells: list[dict[str, Any]]) -> str:
    """A hash of the cells without outputs and without empty cells: JupyterLab adds one after the last cell has run."""
    sources = [[cell["cell_type"], "".join(cell["source"])] for cell in cells if cell["source"]]
    return hashlib.blake2b(json.dumps(sources).encode(), digest_size=8).hexdigest()


def is_ours(page: Path) -> bool:
    """Whether the cells are unchanged since they were made."""
    try:
        found = json.loads(page.read_text(encoding="utf-8"))
        return bool(fingerprint(found["cells"]) == found["metadata"]["minidist"]["cells"])
    except (ValueError, KeyError, TypeError):
        return False
