"""A work/ folder of the version before: what its students have, kept in former_work/ as it was.

    uses.toml    of each module of this project the names that the copies of all lessons use: notebooks, skeletons and
                 the modules that are copied with them
    NN.toml      a lesson's copies: exercise.py solved from its skeleton; of the lessons in WHOLE all other files, too

If you rename something that stands in uses.toml, its former name stays as an alias for one release. After a release,
make all of this again:

    PYTHONPATH=tests python -m classroom.former
"""

import ast
import inspect
import json
import pkgutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from classroom.grading import ANSWERS, LESSONS
from classroom.overlay import overlay
from minidist.classroom.work import GRADING, without_outputs

KEPT = Path(__file__).with_name("former_work")
WHOLE = ("05", "09", "13")  # engines of two kinds, whose methods a notebook watches, and stages of a pipeline
HEAD = "# A lesson's copies as students of the version before have them: see classroom/former.py.\n\n"


def copies(number: str) -> dict[str, str]:
    """What `make lessons` copies of a lesson, with the exercise solved."""
    lesson = LESSONS[number]
    files = sorted(file for file in lesson.iterdir() if file.suffix in (".py", ".ipynb") and file.name not in GRADING)
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    texts["lesson.ipynb"] = without_outputs(texts["lesson.ipynb"])
    texts["exercise.py"] = overlay(texts["exercise.py"], ANSWERS[number])
    return texts


def kept(number: str) -> dict[str, str]:
    """What is kept of these copies."""
    return tomllib.loads((KEPT / f"{number}.toml").read_text(encoding="utf-8"))


def kept_uses() -> dict[str, list[str]]:
    return tomllib.loads((KEPT / "uses.toml").read_text(encoding="utf-8"))


def uses(files: Mapping[str, str]) -> set[tuple[str, str]]:
    """(module of this project, name) of all that these files import, and of what they read of imported modules."""
    found = set[tuple[str, str]]()
    for name, text in files.items():
        nodes = [node for program in programs(name, text) for node in ast.walk(ast.parse(program))]
        modules = dict[str, str]()
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "minidist":
                for alias in node.names:
                    found.add((str(node.module), alias.name))
                    if inspect.ismodule(pkgutil.resolve_name(whole := f"{node.module}.{alias.name}")):
                        modules[alias.asname or alias.name] = whole
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                found.add((modules[node.value.id], node.attr))
    return found


def programs(name: str, text: str) -> Iterator[str]:
    """A module, or the cells of a notebook, without lines for IPython."""
    if name.endswith(".py"):
        yield text
        return
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(line for line in cell["source"] if not line.startswith("%"))


def keep() -> None:
    KEPT.mkdir(exist_ok=True)
    by_module: dict[str, list[str]] = {}
    for number in LESSONS:
        files = copies(number)
        for module, name in sorted(uses(files)):
            by_module.setdefault(module, []).append(name)
        some = files if number in WHOLE else {"exercise.py": files["exercise.py"]}
        texts = [f"{json.dumps(name)} = '''\n{text}'''\n" for name, text in some.items()]
        (KEPT / f"{number}.toml").write_text(HEAD + "\n".join(texts), encoding="utf-8")
        assert kept(number) == some, f"lesson {number} has a text that TOML cannot quote"
    lines = [f'"{module}" = {json.dumps(sorted(set(names)))}\n' for module, names in sorted(by_module.items())]
    (KEPT / "uses.toml").write_text(HEAD + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    keep()
