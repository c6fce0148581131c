"""The house: what stands on which floor, and that an import only ever points down.

Every import counts, wherever it stands: at the top of a module, inside a function, under TYPE_CHECKING.

- The lowest rooms, nn, papers, memory, layout and contents, know nothing of one another or of anything but
  minidist/__init__.py, which is below all and imports nothing itself; the function in it that IPython calls opens a
  door when it is called. The leaves files.py, with which they all write, colors.py, in which they all draw,
  processes.py, which starts programs, and unix.py, by which they do without Unix, are below them.
- Rooms on one floor do not import each other in a circle. A chapter imports earlier ones only.
- A workshop serves one chapter. It never imports its chapter, which is above it, nor another chapter's workshop.
- `formulas/` knows papers, the layout and the orders of a pipeline's work. `claims/` holds them against a run.
- `programs/` makes programs of the chapters: what a chapter imports has neither claims nor options. A chapter's tail
  reaches its program by name (`contents.run`), never by an import.
- `zr/` is the workshop of `zero_r.py`, which stands on `tensor_parallel.py`: likewise, between the two.
- Files import each other in no circle, not even within a room.
- Only `mpi/` imports mpi4py.
- np.float16 and bfloat16 are named in `nn/precision.py`.
- matplotlib and rich are imported where something is drawn, not with a module: whatever ranks import may be imported by
  all of them, and those that print nothing shall not pay for it. A lesson's `pictures.py` is for its notebook alone.
"""

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from minidist import contents
from minidist.claims.promises import Promises
from minidist.programs.chapter import Chapter, find, find_all
from tables import table

ROOT = Path(__file__).parents[1]

APART = ("train", "ring", "parallel3d")  # of which floors below and above are made
CHAPTERS = tuple(name for name, *_ in contents.CHAPTERS if name not in APART)  # in a reader's order
WORKSHOPS = {
    "mr": "mapreduce",
    "ps": "parameter_server",
    "tp": "tensor_parallel",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "zr": "zero_r",
    "pp": "pipeline",
}
FLOORS: tuple[tuple[str, ...], ...] = (  # the lowest first
    ("minidist",),
    ("system",),
    ("nn", "papers", "memory", "layout", "contents"),
    ("mpi",),
    ("exchange",),
    ("launch",),
    ("cli", "text"),
    ("pp",),
    ("formulas",),
    ("ring", "collectives", "passes", "engine"),
    ("checkpoints",),
    ("claims",),
    ("command", "train"),
    ("mr", "ps", "tp", "cp", "ep"),
    CHAPTERS[: CHAPTERS.index("zero_r")],
    ("zr",),
    CHAPTERS[CHAPTERS.index("zero_r") :],
    ("parallel3d",),
    ("ty",),
    ("programs",),
    ("deepspeed", "plan", "bench", "hosts", "classroom", "bugs", "lessons", "__main__"),
    ("site",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

OPTIONS = re.compile(r"options|arguments|parsed|\b(own|line|job|training|files|asked|o)\b")  # what they are called

DRAWING = "with the module, not where something is drawn"

BODIES = (ast.mod, ast.stmt, ast.excepthandler, ast.match_case)  # what an import can stand in: no expression

House = dict[str, str]  # file -> source


class Import(NamedTuple):
    """One name that a file imports."""

    file: str
    line: int
    module: str
    runs: str  # "at the top", "in a function", or "for types"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def house(root: Path) -> House:
    """The package and the lessons."""
    files = [*root.glob("minidist/**/*.py"), *root.glob("lessons/*/*.py")]
    return {str(file.relative_to(root)): file.read_text() for file in sorted(files)}


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def room_of(module: str) -> str:
    """Of minidist.nn.ops nn, of minidist.ring ring, of what minidist/__init__.py holds minidist."""
    first, _, rest = module.partition(".")
    return rest.partition(".")[0] if first == "minidist" and rest else first


def imports(built: House, file: str) -> Iterator[Import]:
    """What a file imports: of `from minidist.papers import zero` the module, of `from minidist import UsageError`
    the package."""
    modules = {module_of(other) for other in built}
    package = module_of(file) if file.endswith("/__init__.py") else module_of(file).rpartition(".")[0]

    def found(node: ast.AST, runs: str) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, name.name, runs) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            for name in node.names:
                whole = f"{origin}.{name.name}"
                yield Import(file, node.lineno, whole if whole in modules else origin, runs)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from (each for child in node.body for each in found(child, "for types"))
            yield from (each for child in node.orelse for each in found(child, runs))
        elif isinstance(node, BODIES):
            inside = "in a function" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else runs
            yield from (each for child in ast.iter_child_nodes(node) for each in found(child, inside))

    yield from dict.fromkeys(found(ast.parse(built[file]), "at the top"))


def breaches(built: House) -> Iterator[tuple[Import, str]]:
    """Every import that breaks a rule, with the rule."""
    between: dict[tuple[str, str], Import] = {}  # rooms of one floor that import each other
    for file in sorted(built.keys() - set(homeless(built))):
        room = room_of(module_of(file))
        floor = FLOOR_OF[room]
        for each in imports(built, file):
            target = room_of(each.module)
            if target == "mpi4py" and room != "mpi":
                yield each, "only mpi/ does"
            if target in ("matplotlib", "rich") and each.runs == "at the top" and not file.endswith("/pictures.py"):
                yield each, DRAWING
            if target not in FLOOR_OF or target == room or (room == "minidist" and each.runs == "in a function"):
                continue
            if FLOOR_OF[target] > floor:
                yield each, f"up, from {room} to {target}"
            elif room in WORKSHOPS and target in WORKSHOPS and FLOOR_OF[target] == floor:
                yield each, f"the workshop of {WORKSHOPS[target]}, but not through it"
            elif FLOOR_OF[target] == floor == FLOOR_OF["nn"]:
                yield each, f"{room} knows nothing of {target}"
            elif room in CHAPTERS and target in CHAPTERS[CHAPTERS.index(room) :]:
                yield each, "a later chapter"
            elif FLOOR_OF[target] == floor:
                between.setdefault((room, target), each)
    circle: TopologicalSorter[str] = TopologicalSorter()
    for room, target in between:
        circle.add(room, target)
    try:
        circle.prepare()
    except CycleError as error:
        rooms = error.args[1][::-1]
        for room, target in itertools.pairwise(rooms):
            yield between[room, target], f"in a circle: {' -> '.join(rooms)}"


def circle_of_files(built: House) -> list[str]:
    """Files of which each imports the next, the first one again at the end; [] if there are none. The package itself
    is left out: every file imports it, and it opens doors to what stands above it."""
    file_of = {module_of(file): file for file in built if file != "minidist/__init__.py"}
    needs: TopologicalSorter[str] = TopologicalSorter()
    for file in file_of.values():
        needs.add(file, *{file_of[each.module] for each in imports(built, file) if each.module in file_of} - {file})
    try:
        needs.prepare()
    except CycleError as error:
        return list(error.args[1][::-1])
    return []


def homeless(built: House) -> list[str]:
    """Files that stand on no floor."""
    return [file for file in built if room_of(module_of(file)) not in FLOOR_OF]


# ---- this house ------------------------------------------------------------------------------------------------------


def test_every_file_stands_on_a_floor() -> None:
    assert not homeless(house(ROOT)), "give it a floor in FLOORS"


def test_imports_point_down() -> None:
    found = [f"{each}: {rule}" for each, rule in breaches(house(ROOT))]
    assert not found, "\n".join(found)


def test_files_import_each_other_in_no_circle() -> None:
    assert circle_of_files(house(ROOT)) == []


def test_the_whole_house_is_read() -> None:
    """Imports that are known to be there, one of each kind."""
    built = house(ROOT)
    read = {(each.file, each.module, each.runs) for file in built for each in imports(built, file)}
    assert {
        ("minidist/pp/links.py", "minidist.mpi.comm", "at the top"),
        ("minidist/pp/watch.py", "minidist.mpi.comm", "for types"),
        ("minidist/cli/paths.py", "minidist", "at the top"),
        ("minidist/cli/tables.py", "rich.table", "in a function"),
        ("minidist/zero2.py", "minidist.zero1", "at the top"),
        ("lessons/09_zero_3/on_ranks.py", "minidist.nn.flat", "at the top"),
    } <= read
    assert {file for file, _, _ in read} > {f"minidist/{chapter}.py" for chapter in ("ring", "pipeline", "parallel3d")}


# What a reader has to open: files that an import of the algorithm loads, and a chapter's length.
LOADED = {"ring": 8} | dict.fromkeys(("data_parallel", "zero1", "zero2", "zero3", "fsdp"), 30) | {"tensor_parallel": 31}
LONGEST = 260
LONGER = "This chapter is long"  # so begins, in its docstring, why


@pytest.mark.parametrize("chapter", LOADED)
def test_an_algorithm_loads_few_files(chapter: str) -> None:
    count = f"import sys, minidist.{chapter}; print(sum(name.split('.')[0] == 'minidist' for name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", count], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(loaded.stdout) <= LOADED[chapter]


LATER = ("claims", "formulas", "checkpoints", "exchange")  # rooms that a run loads where it uses them
BEGINS = {"minidist.exchange.doors": "through which it begins"} | dict.fromkeys(
    ("minidist.claims", "minidist.formulas", "minidist.checkpoints", "minidist.exchange"), "a room's door"
)


@pytest.mark.parametrize("chapter", [name for name, made in find_all().items() if isinstance(made, Chapter)])
def test_a_program_begins_without_what_is_said_at_its_end(chapter: str) -> None:
    """No claim, formula or checkpoint: on each of many ranks every file costs a millisecond, and one rank prints."""
    show = f"import sys, minidist.programs.{chapter}; print(*(name for name in sys.modules if 'minidist.' in name))"
    loaded = subprocess.run([sys.executable, "-c", show], cwd=ROOT, capture_output=True, text=True, check=True)
    names = loaded.stdout.split()
    assert [name for name in names if name.split(".")[1] in LATER and name not in BEGINS] == []
    assert chapter != "zero3" or len(names) < 80


def test_what_a_chapter_promises_is_found_by_its_name() -> None:
    for name, made in find_all().items():
        if isinstance(made, Chapter):
            assert isinstance(made.promises, Promises), name


@pytest.mark.parametrize("chapter", [entry.name for entry in contents.CHAPTERS])
def test_chapters_are_short_and_meet_their_programs_by_name(chapter: str) -> None:
    source = (ROOT / f"minidist/{chapter}.py").read_text()
    assert len(source.splitlines()) <= LONGEST or LONGER in source.split('"""')[1]
    assert source.split("\n\n\n")[-1].startswith(f'if __name__ == "__main__":\n    contents.run("{chapter}")')
    assert find(chapter).name == chapter


NO_OPTIONS = ("minidist/cli/", "minidist/classroom/", "lessons/")  # a student's module is looked into by its names


def test_options_leave_the_command_line_as_frozen_dataclasses_alone() -> None:
    """No Namespace of argparse's, nothing that stands for one, and no dictionary of
    one."""
    found = []
    for file, source in house(ROOT).items():
        for node in ast.walk(ast.parse(source)) if not file.startswith(NO_OPTIONS) else ():
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            if name in ("Namespace", "SimpleNamespace", "parse_args"):
                found.append(f"{file}:{node.lineno}: {ast.unparse(node)}")  # type: ignore[attr-defined]
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "vars":
                found += [f"{file}:{node.lineno}: {ast.unparse(node)}"] * bool(
                    OPTIONS.search(ast.unparse(node.args[0]))
                )
    assert not found, "\n".join(found)


# ---- houses that fall ------------------------------------------------------------------------------------------------

SOUND = table(__file__, "sound")


def said(changed: House) -> list[str]:
    return [f"{each}: {rule}" for each, rule in breaches(SOUND | changed)]


def test_a_sound_house() -> None:
    assert not homeless(SOUND)
    assert said({}) == []


@pytest.mark.parametrize(("file", "source", "says"), table(__file__, "a_broken_rule_is_named"))
def test_a_broken_rule_is_named(file: str, source: str, says: str) -> None:
    assert said({f"minidist/{file}": source}) == [f"minidist/{file}:{says.replace('DRAWING', DRAWING)}"]


def test_engines_set_no_field_before_the_engine_that_they_extend() -> None:
    """Arrays are made by hooks that Engine's constructor calls, so a subclass needs no field of its own before that."""
    classes = {
        node.name: node
        for path in (ROOT / "minidist").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    engines = {"Engine"}
    while more := {
        name
        for name, node in classes.items()
        if name not in engines and any(isinstance(base, ast.Name) and base.id in engines for base in node.bases)
    }:
        engines |= more
    assert {"DataParallel", "FSDP", "Infinity3", "Limited", "Replay"} <= engines
    for name in sorted(engines - {"Engine"}):
        for method in classes[name].body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                first = next(line for line in method.body if not isinstance(getattr(line, "value", 0), ast.Constant))
                assert ast.unparse(first).startswith("super().__init__("), name


def test_dtypes_of_storage_are_named_in_one_place() -> None:
    """Everything else is told its precision: so another one is a line there."""
    files = (ROOT / "minidist").rglob("*.py")
    named = [file for file in files if re.search(r"np\.float16|import ml_dtypes|from ml_dtypes", file.read_text())]
    assert named == [ROOT / "minidist/nn/precision.py"]


def test_pictures_are_for_a_notebook_alone() -> None:
    assert len(said({"lessons/04/on_ranks.py": "import matplotlib"})) == 1


TOP = {"bench", "classroom"}


@pytest.mark.parametrize(
    ("changed", "rooms"),
    [
        ({"cli/a.py": "import minidist.text.data", "text/data.py": "import minidist.cli"}, {"cli", "text"}),
        (
            {"deepspeed/a.py": "import minidist.plan.b", "plan/b.py": "import minidist.bench.ranks"}
            | {"bench/ranks.py": "import minidist.deepspeed.a"},
            {"deepspeed", "plan", "bench"},
        ),
        ({"ring.py": "if TYPE_CHECKING:\n    from minidist import engine"}, {"ring", "engine"}),
        ({"bench/ranks.py": "import minidist.classroom", "classroom/a.py": "import minidist.deepspeed"}, set()),
        ({"bench/ranks.py": "import minidist.classroom", "classroom/a.py": "import minidist.bench"}, TOP),
    ],
)  # fmt: skip
def test_rooms_that_import_each_other_in_a_circle(changed: House, rooms: set[str]) -> None:
    found = list(breaches(SOUND | {f"minidist/{file}": source for file, source in changed.items()}))
    assert {room_of(module_of(each.file)) for each, _ in found} == rooms
    assert len(found) == len(rooms)
    assert all(set(rule.removeprefix("in a circle: ").split(" -> ")) == rooms for _, rule in found)


def test_files_that_import_each_other_in_a_circle() -> None:
    assert circle_of_files(SOUND) == []
    files = {
        "minidist/mpi/run.py": "import minidist.mpi.stops",
        "minidist/mpi/stops.py": "def f():\n    from . import run",
    }
    assert {*circle_of_files(SOUND | files)} == {*files}


def test_a_file_on_no_floor() -> None:
    assert homeless(SOUND | {"minidist/helpers.py": "", "minidist/utils/__init__.py": ""}) == [
        "minidist/helpers.py",
        "minidist/utils/__init__.py",
    ]
