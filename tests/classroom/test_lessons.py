"""The notebooks, executed from a clean kernel: as they are opened, with gaps, they give what is committed; filled from
the lesson's own functions and the model answer, every check is passed. Either way their claims hold (claimed.toml)."""

import ast
import json
import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from classroom.grading import ANSWERS, load
from minidist import UsageError
from minidist.classroom.grading.checks import lessons_own
from minidist.classroom.notebook.syllabus import read_headers, syllabus

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
LESSONS = sorted(file.parent for file in ROOT.glob("lessons/*/lesson.ipynb"))
CLAIMED = tomllib.loads((Path(__file__).parent / "claimed.toml").read_text())  # about what a notebook has counted
MOST_WORDS = 3200  # before the exercise
IN_EVERY_RUN = {"10_activations"}  # executed open, over MPI, and filled, over the router; the others with -m slow
FORGET = """\
import os, sys
os.chdir({0!r})
sys.path.insert(0, {0!r})
for module in ("exercise", "answers", "given", "pictures", "shapes", "simulated", "stages", "transformer"):
    sys.modules.pop(module, None)
from minidist.classroom.notebook import cell as notebook
notebook.has_mpi = lambda: False  # which is quicker
"""


def printed(notebook):
    """(cell, text) of everything that cells print, return or fail with; of a picture that there is one, in words."""
    return [
        (
            number,
            output.get("text") or "\n".join(output.get("traceback", [])) or sorted(output.get("data", {})),
            output.get("metadata"),
        )
        for number, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", [])
    ]


def filled(source, lesson):
    """A cell's code, with the lesson's own functions in place of its gaps and a number in place of `...`."""
    source = source.replace('", ...)', '", 1.75)')
    if "raise NotImplementedError" not in source:
        return source
    given = {node.name: node for node in ast.parse((lesson / "answers.py").read_text()).body if hasattr(node, "name")}
    tree = ast.parse(source)
    for number, node in enumerate(tree.body):
        if isinstance(node, ast.FunctionDef) and "raise NotImplementedError" in ast.unparse(node):
            tree.body[number] = given[node.name]
            given[node.name].returns = None
            for argument in given[node.name].args.args:
                argument.annotation = None
    return ast.unparse(tree)


def contents(folder):
    return {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize(
    "lesson",
    [pytest.param(it, marks=[pytest.mark.slow] * (it.name not in IN_EVERY_RUN), id=it.name) for it in LESSONS],
)
def test_a_notebook_executes(lesson, tmp_path, monkeypatch):
    """Open; and after that, in the same kernel, filled: a copy in work/."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    folder = shutil.copytree(lesson, tmp_path / "lessons" / lesson.name)
    copy = tmp_path / "work" / lesson.name
    shutil.copytree(folder, copy, ignore=lambda *_: ["test_exercise.py", "on_ranks.py"])
    (copy / "exercise.py").write_text(ANSWERS[lesson.name[:2]])
    before = contents(folder)
    committed = nbformat.read(lesson / "lesson.ipynb", as_version=4)
    opened = nbformat.read(folder / "lesson.ipynb", as_version=4)
    notebook = nbformat.read(folder / "lesson.ipynb", as_version=4)
    for cell in [*opened.cells, *notebook.cells]:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = nbclient.NotebookClient(
        opened, timeout=600, resources={"metadata": {"path": folder}}, coalesce_streams=True
    )

    def execute(code):
        """After the last cell of the notebook that is being executed."""
        client.nb.cells.append(nbformat.v4.new_code_cell(code))
        client.execute_cell(client.nb.cells[-1], len(client.nb.cells) - 1)
        client.nb.cells.pop()

    with client.setup_kernel():
        for number, cell in enumerate(opened.cells):
            client.execute_cell(cell, number)
        assert printed(opened) == printed(committed)
        assert contents(folder) == before
        execute(CLAIMED[lesson.name[:2]])
        execute(FORGET.format(str(copy)))
        client.nb = notebook
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type == "code" and "once" not in cell.metadata.get("tags", []):  # once: no gap matters to it
                cell.source = filled(cell.source, lesson)
                client.execute_cell(cell, number)
        execute(CLAIMED[lesson.name[:2]])
    checks = [
        line
        for _, text, _ in printed(notebook)
        if isinstance(text, str)
        for line in text.splitlines()
        if line[:1] in "✓✗○" and line
    ]
    assert all(line.startswith("✓ ") for line in checks), checks
    open_checks = [line for _, text, _ in printed(opened) for line in str(text).splitlines() if line[:2] == "○ "]
    assert len(checks) == len(open_checks)
    assert contents(folder) == before


def test_every_lesson_is_complete():
    assert [lesson.name[:2] for lesson in LESSONS] == [f"{number:02}" for number in range(1, 21)]
    for lesson in LESSONS:
        for name in ("exercise.py", "test_exercise.py", "on_ranks.py", "answers.py", "pictures.py"):
            assert (lesson / name).is_file(), f"{lesson.name} has no {name}"


def test_the_syllabus_says_of_every_lesson_what_it_needs(tmp_path):
    said = syllabus(ROOT / "lessons")
    assert max(map(len, said.splitlines())) <= 80
    paragraphs = said.split("\n\n")
    assert [paragraph[:2] for paragraph in paragraphs[:-1]] == [lesson.name[:2] for lesson in LESSONS]
    for paragraph in paragraphs[:-1]:
        assert re.findall(r"^  (\w.*?)  +\w", paragraph, re.MULTILINE) == ["needs", "takes", "then you can"]
        assert not re.search(r"[*`|\]]", paragraph)
    with pytest.raises(UsageError, match=r"there are no lessons in .*: .*make lessons"):
        syllabus(tmp_path)


HOURS = {"1½": "90 minutes|an hour and a half", "2": "two hours", "2½": "two and a half hours", "3": "three hours"}


def test_the_page_for_teachers_has_the_hours_that_notebooks_say():
    page = (ROOT / "minidist" / "classroom" / "TEACHING.md").read_text()
    rows = re.findall(r"^\| (\d\d[^|]*) \| (\d?½?) \|$", page, re.MULTILINE)
    hours = {number: in_figures for numbers, in_figures in rows for number in numbers.split(", ")}
    headers = {header.folder[:2]: header.rows["It takes"] for header in read_headers(ROOT / "lessons")}
    assert hours.keys() == headers.keys()
    for number, said in headers.items():
        assert re.search(f"about ({HOURS[hours[number]]}),", said), number


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_a_lesson_has_the_form(lesson):
    """A header, three to eight gaps with a check each, predictions, words for pictures, folded answers and hints. It is
    for a reader: how to work is said once, and what a test checks is not shown."""
    text = (lesson / "lesson.ipynb").read_text()
    document = json.loads(text)
    assert text == json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    sources = ["".join(cell["source"]) for cell in document["cells"]]
    for words in ("**You need**", "**It takes**", "**How hard**", "**You will be able to**"):
        assert words in sources[0]
    assert "](../../lessons/README.md#how-to-work-in-a-notebook)" in sources[0]
    assert not [source for source in sources if re.search("^## (How to work|What was claimed)", source, re.MULTILINE)]
    told = [source for cell, source in zip(document["cells"], sources, strict=True) if cell["cell_type"] == "markdown"]
    assert len("\n".join(told).partition("## The exercise")[0].split()) <= MOST_WORDS
    assert "assert " in CLAIMED[lesson.name[:2]]
    gaps = [number for number, source in enumerate(sources) if "# your turn" in source and "def " in source]
    assert 3 <= len(gaps) <= 8
    for number in gaps:
        [name] = [node.name for node in ast.parse(sources[number]).body if isinstance(node, ast.FunctionDef)]
        assert sources[number + 1] == f'check("{name}")'
        assert "<details><summary>A hint</summary>" in sources[number + 2]
    for cell, source in zip(document["cells"], sources, strict=True):
        if "<summary>Answers" in source:
            assert cell["metadata"]["tags"] == ["answers"]
            assert source.startswith("<details>")
            assert source.endswith("</details>")
        assert not re.search(r"</details>\n\n(?!#)", source), "JupyterLab draws this paragraph close to the fold: <br>"
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                assert len(output["metadata"]["image/png"]["alt"]) > 80
    asked = [
        source.partition('"')[2].partition('"')[0]
        for source in "\n".join(sources).split("predict(")[1:]
        if source[0] == '"'
    ]
    compared = "\n".join(sources).partition("compare({")[2]
    assert asked
    assert all(f'"{question}":' in compared for question in asked)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_a_notebook_shows_the_algorithm_and_little_else(lesson):
    """What counts, draws and prints is in given.py and pictures.py, whose colors mean the same in every lesson. Blank
    lines and comments are not counted."""
    cells = [cell for cell in json.loads((lesson / "lesson.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    lines = [line.rstrip() for cell in cells for line in cell["source"]]
    assert max(len(cell["source"]) for cell in cells) <= 25
    assert sum(1 for line in lines if line and not line.lstrip().startswith("#")) <= 200
    assert max(map(len, lines)) <= 107  # a JupyterLab of 1,280 pixels shows it whole
    pictures = (lesson / "pictures.py").read_text()
    assert "from minidist.memory.colors import" in pictures
    own = re.findall(r"#[0-9a-fA-F]{6}\b", pictures)
    assert all(color[1:3] == color[3:5] == color[5:7] for color in own), own  # greys
    lists = re.findall(r"[(\[][^()]*(?:QUANTITIES\[[^]]*\][^()]*){2,}[)\]]", pictures)
    assert not lists, "colors of quantities in a list of other things"


CONTAINERS = {ast.Dict: "dict", ast.DictComp: "dict", ast.List: "list", ast.ListComp: "list", ast.Set: "set"}


def kinds_of_names(source):
    """What a cell binds: {name: kind}; "value" where the code does not say of which type."""
    ranks = re.match(r"%%mpirun.*?--out (\S+)", source)
    if source.startswith("%%"):
        return dict.fromkeys(ranks[1].split(","), "list") if ranks else {}
    kinds = {}
    for node in ast.parse(re.sub("^%.*", "", source, flags=re.MULTILINE)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            kinds[node.name] = "function"
            continue
        for part in ast.walk(node):
            if isinstance(part, ast.alias):
                kinds[(part.asname or part.name).partition(".")[0]] = "import"
            elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
                kinds[part.targets[0].id] = CONTAINERS.get(type(part.value), "value")
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                kinds.setdefault(part.id, "value")
    return kinds


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_a_cell_can_be_run_again_after_later_ones(lesson):
    """No name that a cell uses is given another type below it."""
    bound, used = {}, {}
    for cell in json.loads((lesson / "lesson.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            for name, kind in kinds_of_names(source).items():
                before = bound.get(name, kind)
                same = kind == before or ("value" in (kind, before) and not {"import", "function"} & {kind, before})
                assert same or name not in used, f"{name}, used in {used[name]}, is another one in {cell['id']}"
                bound[name] = kind
            tree = ast.parse(re.sub("^%.*", "", source, flags=re.MULTILINE))
            used |= {part.id: cell["id"] for part in ast.walk(tree) if isinstance(part, ast.Name) and part.id in bound}


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_what_is_asked_for_cannot_be_imported_from_the_lesson(lesson):
    tests = load(lesson / "test_exercise.py")
    answered = {getattr(node, "name", "") for node in ast.parse((lesson / "answers.py").read_text()).body}
    asked = {name.partition(".")[0] for name in tests.ASKED}
    assert "answers" in tests.HIDDEN or not answered & asked


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_a_student_who_looks_for_a_helper_sees_no_answer(lesson):
    """Answers, to gaps and to the exercise, are in answers.py alone, and given.py imports none of them at its top."""
    if not (lesson / "given.py").exists():
        return
    tests, given = load(lesson / "test_exercise.py"), ast.parse((lesson / "given.py").read_text())
    asked = {name.partition(".")[0] for name in (*tests.ASKED, *tests.GAPS)}
    assert not asked & {getattr(node, "name", "") for node in given.body}
    assert not [node for node in given.body if isinstance(node, ast.ImportFrom) and node.module == "answers"]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_nothing_is_shown_before_it_is_asked(lesson):
    """Neither the model answers, nor a link to the chapter, nor a definition of what is asked for."""
    document = json.loads((lesson / "lesson.ipynb").read_text())
    sources = ["".join(cell["source"]) for cell in document["cells"]]
    [exercise] = [number for number, source in enumerate(sources) if "## The exercise" in source]
    tests = load(lesson / "test_exercise.py")
    asked = [name.rpartition(".")[2] for name in tests.ASKED]
    for number, source in enumerate(sources[: exercise + 1]):
        for chapter in tests.HIDDEN:
            assert f"/{chapter.replace('.', '/')}.py)" not in source, number
        assert "inspect" not in source
        assert "](answers.py)" not in source
        for name in asked:
            assert f"def {name}(" not in source, (number, name)
    shown = [
        "".join(output.get("text", []))
        for cell in document["cells"][: exercise + 1]
        for output in cell.get("outputs", [])
    ]
    assert not any("def " in text for text in shown)


def test_the_last_hint_for_shorter_is_shorter():
    """Lesson 13: followed to the letter, at every limit."""
    lesson = next(it for it in LESSONS if it.name.startswith("13"))
    [ahead] = re.findall(
        r"`ahead = (min\(limit .*?)`, and `late = limit - ahead`", (lesson / "lesson.ipynb").read_text()
    )
    clock, apart = (lessons_own(str(lesson / "test_exercise.py"), name) for name in ("clock", "b_and_w_apart"))
    one = {"F": 1, "B": 1, "W": 1}
    for p, m in ((2, 4), (3, 7), (4, 8), (6, 12)):
        for limit in range(p, 2 * p):
            numbers = [eval(ahead, {"min": min, "limit": limit, "p": p, "s": s}) for s in range(p)]
            spans = clock([apart(m, number, limit - number) for number in numbers], one)
            assert max(of[-1][3] - of[0][2] for of in spans) == 3 * m + 2 * p - 1 - limit  # 1F1B: 3m + 3(p-1)


def test_the_question_of_lesson_14_does_not_answer_its_prediction():
    lesson = next(it for it in LESSONS if it.name.startswith("14"))
    question = "".join(json.loads((lesson / "lesson.ipynb").read_text())["cells"][0]["source"])
    layouts = re.findall(r"(\d+) · (\d+) · (\d+)", question)
    assert len(layouts) == 3
    assert all(int(d) * int(p) * int(t) == 64 and t != "4" for d, p, t in layouts)


def test_what_lesson_08_asks_does_not_answer_the_predictions_of_lesson_07():
    lesson = next(it for it in LESSONS if it.name.startswith("08"))
    cells = json.loads((lesson / "lesson.ipynb").read_text())["cells"]
    asked = "".join("".join(cell["source"]) for cell in cells).partition('predict("')[0]
    assert "31.4" not in asked  # GB on each of 64 ranks
    assert r"2\Psi" not in asked  # sent in a step, as in data parallelism
