"""What a lesson's notebook does with what is written in it: copies in work/, predictions, gaps in a plain IPython."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("IPython", reason="the notebook's tests need ipykernel")
from IPython.core.interactiveshell import InteractiveShell

from classroom.grading import ANSWERS, LESSONS
from minidist import UsageError
from minidist.claims.mutants.patch import Patch, read_document, read_patches
from minidist.classroom import work
from minidist.classroom.grading.grade import exercise_of
from minidist.classroom.notebook import lesson
from minidist.classroom.notebook.index import kernel_metadata, notebook_text, read_needs, show_points
from minidist.classroom.notebook.syllabus import read_headers

ROOT = Path(__file__).parents[2]
WORDS, SERVERS, RING, ZERO_1, ZERO_3, FIND, TYPES, WIRE = (
    ROOT / "lessons" / name
    for name in (
        *("01_mapreduce", "03_parameter_server", "04_ring_all_reduce", "07_zero_1", "09_zero_3", "18_find_it"),
        *("19_types", "20_slow_wire"),
    )
)


# ---- copies ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone's lessons alone, at whose top one stands."""
    shutil.copytree(RING, tmp_path / "lessons" / RING.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_copy_is_made_once_and_never_written_over(clone, capsys):
    before = {file: file.read_bytes() for file in clone.glob("lessons/*/*.*")}
    assert work.main() == 0
    copy = clone / "work" / RING.name
    assert {file.name for file in copy.iterdir()} == {"exercise.py", "answers.py", "lesson.ipynb", "pictures.py"}
    (copy / "exercise.py").write_text("mine = 1\n")
    (copy / "pictures.py").unlink()
    assert work.main() == 0
    assert (copy / "exercise.py").read_text() == "mine = 1\n"
    assert (copy / "pictures.py").read_bytes() == (RING / "pictures.py").read_bytes()
    assert work.main() == 0
    said = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("work/index.ipynb: ")]
    assert said == [
        f"work/{RING.name}: your copy, to work in",
        f"work/{RING.name}: your copy, to work in",
        f"work/{RING.name}: yours, left as it is",
    ]
    assert {file: file.read_bytes() for file in clone.glob("lessons/*/*.*")} == before


def test_copies_have_no_outputs_and_lessons_keep_theirs(clone):
    """A prediction is spoiled by the count below it. Of every lesson; the kernel is the only other difference."""
    for folder in (ROOT / "lessons").iterdir():
        if folder.is_dir() and folder != RING:
            shutil.copytree(folder, clone / "lessons" / folder.name, dirs_exist_ok=True)
    work.main()
    originals = sorted(clone.glob("lessons/*/lesson.ipynb"))
    assert len(originals) == 20
    for original in originals:
        text = (clone / "work" / original.parent.name / "lesson.ipynb").read_text()
        committed, copied = json.loads(original.read_text()), json.loads(text)
        assert any(cell.get("outputs") for cell in committed["cells"])
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in copied["cells"])
        for cell, kept in zip(copied["cells"], committed["cells"], strict=True):
            cell |= {name: kept[name] for name in ("outputs", "execution_count") if name in kept}
        assert copied == committed | {"metadata": committed["metadata"] | kernel_metadata()}
        assert work.without_outputs(text) == text
        assert json.dumps(committed, indent=1, ensure_ascii=False) + "\n" == original.read_text()


def test_the_first_page_is_made_of_what_the_lessons_say(clone, capsys):
    shutil.copytree(ROOT / "lessons", clone / "lessons", dirs_exist_ok=True)
    work.main()
    page = clone / "work" / "index.ipynb"
    made = page.read_text()
    cells = json.loads(made)["cells"]
    shown = "\n".join("".join(cell["source"]) for cell in cells)
    for link in re.findall(r"\]\(([^):]+)\)", shown):
        assert (page.parent / link).exists() or (ROOT / "work" / link).resolve().exists(), link
    for folder in (clone / "lessons").glob("*/"):
        assert f"]({folder.name}/lesson.ipynb) | " in shown
    assert "```mermaid" in "".join(cells[0]["source"])  # a window of a laptop shows the map first
    for heading in ("A one-minute tour", "How to work in a notebook", "Lessons", "Paths", "Your points so far"):
        assert f"## {heading}\n" in shown
    assert "**A weekend**" in shown
    assert "For instructors" not in shown
    solid = set(re.findall(r"(\d\d) --> (\d\d)", shown))
    assert {("04", "05"), ("07", "08"), ("09", "11"), ("09", "15")} <= solid
    assert ("04", "08") not in solid  # through 07
    assert set(re.findall(r"(\d\d) -\.-> (\d\d)", shown)) >= {("04", "09"), ("10", "12"), ("10", "11"), ("12", "14")}
    assert all(before < after for before, after in solid)

    ran = json.loads(made)
    ran["cells"][3]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "6,000,000 bytes"}]
    ran["cells"].append({"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": []})
    page.write_text(json.dumps(ran))
    work.main()
    assert page.read_text() == made  # what nobody has changed is made anew
    ran["cells"][0]["source"] = ["# My notes"]
    page.write_text(json.dumps(ran))
    work.main()
    assert json.loads(page.read_text()) == ran


def test_the_map_draws_what_the_table_of_the_course_says():
    """The same lessons are needed, and the same ones help, by each notebook's header and by its row of the README."""
    headers = read_headers(ROOT / "lessons")
    rows = re.findall(r"^\| (\d\d) \| ([^|]+) \| .*hours", (ROOT / "lessons" / "README.md").read_text(), re.MULTILINE)
    assert [number for number, _ in rows] == [header.title[:2] for header in headers]
    by_table = [header._replace(rows={"You need": need}) for header, (_, need) in zip(headers, rows, strict=True)]
    needed, helpful = read_needs(headers)
    assert read_needs(by_table) == (needed, helpful)
    assert needed["18"] == {"05", "06"}
    assert {"10", "17"} <= helpful["18"]
    assert "07" not in helpful["18"]  # through 08


def test_a_page_that_is_opened_has_nothing_to_save(clone):
    """JupyterLab writes what the kernel says of itself into a notebook: a change, unless it is there."""
    manager = pytest.importorskip("jupyter_client.manager")
    work.main()
    kernel, client = manager.start_new_kernel(kernel_name="python3")
    try:
        said = client.kernel_info(reply=True)["content"]["language_info"]
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    for page in (clone / "work" / "index.ipynb", clone / "work" / RING.name / "lesson.ipynb"):
        metadata = json.loads(page.read_text())["metadata"]
        assert metadata["language_info"] == said
        assert metadata["kernelspec"]["display_name"] == kernel.kernel_spec.display_name


def test_points_are_of_what_has_been_begun(clone, capsys):
    work.main()
    capsys.readouterr()
    show_points(clone / "lessons")
    nothing, _ = capsys.readouterr().out.splitlines()
    assert nothing.split() == [RING.name, "not", "begun"]
    shutil.copy(ROOT / "minidist" / "ring.py", clone / "work" / RING.name / "exercise.py")
    show_points(clone / "lessons")
    assert [line.split()[1:4] for line in capsys.readouterr().out.splitlines()] == [["20", "of", "20"]] * 2


def test_make_lessons_opens_the_first_page():
    run = subprocess.run(["make", "--dry-run", "lessons"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--LabApp.default_url=/lab/tree/work/index.ipynb" in run.stdout


def test_the_copy_is_graded_if_it_is_there(clone):
    beside, absolute = Path("lessons") / RING.name, clone / "lessons" / RING.name
    assert exercise_of(beside) == beside / "exercise.py"
    work.main()
    assert exercise_of(beside) == Path("work") / RING.name / "exercise.py"
    assert exercise_of(absolute) == clone / "work" / RING.name / "exercise.py"
    (clone / "elsewhere").mkdir()
    assert exercise_of(clone / "elsewhere") == clone / "elsewhere" / "exercise.py"


def test_git_sees_nothing_of_work():
    run = subprocess.run(["git", "check-ignore", "work/04_ring_all_reduce/exercise.py"], cwd=ROOT, capture_output=True)
    if run.returncode == 128:
        pytest.skip("this is no clone")
    assert run.returncode == 0


# ---- predictions -----------------------------------------------------------------------------------------------------


@pytest.fixture
def desk(tmp_path, monkeypatch):
    folder = tmp_path / "work" / RING.name
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_a_prediction_is_kept_and_shown_beside_the_count(desk, capsys):
    lesson.predict("server", ...)
    lesson.predict("server", 14)
    lesson.predict("ring", np.float32(1.75))
    lesson.predict("server", ...)
    assert json.loads((desk / "predictions.json").read_text()) == {"server": 14.0, "ring": 1.75}
    assert capsys.readouterr().out.splitlines() == [
        "server: no prediction yet; put a number in place of ...",
        "server: you predict 14",
        "ring: you predict 1.75",
        "server: 14",
    ]
    lesson.compare({"server": 7.0, "ring": 1.75, "tree": 3})
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split() for row in rows] == [
        ["server", "14", "7", "2", "times", "what", "was", "counted"],
        ["ring", "1.75", "1.75", "right"],
        ["tree", "-", "3"],
    ]
    lesson.compare({"server": 14 / 112.3})
    assert "   110 times what was counted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("7 arrays", "'7 arrays' is text: write 7, without quotes and unit"),
        ("many", "'many' is text: write 1.5, without quotes and unit"),
        (True, "True is no quantity"),
        ((1, 75), "a comma that should be a point"),
        ([7], "several numbers"),
        (None, "A NoneType is no number"),
        (1j, "A complex is no number"),
        (float("nan"), "nan is not finite"),
        (10**400, "is too large"),
    ],
)
def test_what_is_no_number_is_explained_in_a_line_and_not_kept(desk, capsys, answer, words):
    lesson.predict("server", 3)
    lesson.predict("server", answer)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert said[1].startswith("server: not kept. ")
    assert words in said[1]
    assert json.loads((desk / "predictions.json").read_text()) == {"server": 3.0}


def test_a_notebook_that_was_opened_in_lessons_keeps_predictions_in_work(clone, monkeypatch, capsys):
    monkeypatch.chdir(clone / "lessons" / RING.name)
    lesson.predict("server", 3)
    assert (clone / "work" / RING.name / "predictions.json").exists()
    assert not (clone / "lessons" / RING.name / "predictions.json").exists()


def test_predictions_that_cannot_be_read_are_said(desk, capsys):
    (desk / "predictions.json").write_text("{")
    lesson.compare({"server": 7.0})
    assert "predictions.json cannot be read: delete it, and predict again" in capsys.readouterr().out


# ---- gaps ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def desks(tmp_path_factory):
    """Copies in work/ of a clone's lessons, for all tests: so their checks share a process from which ranks come."""
    clone = tmp_path_factory.mktemp("clone")
    for of in (WORDS, SERVERS, RING, ZERO_1, ZERO_3, FIND, TYPES, WIRE):
        shutil.copytree(of, clone / "lessons" / of.name)
    work.copy_lessons(clone / "lessons")
    return clone / "work"


@pytest.fixture
def shell(desks, monkeypatch, request):
    """An IPython in a copy of lesson 04, or of the lesson that a test is `on`."""
    copy = desks / getattr(request, "param", RING).name
    monkeypatch.chdir(copy)
    monkeypatch.syspath_prepend(copy)
    for name in ("answers", "given", "exercise"):
        sys.modules.pop(name, None)
    lesson._tests.cache_clear()
    shell = InteractiveShell.instance()
    shell.reset()
    shell.run_cell("import numpy as np\nfrom minidist.classroom.notebook.lesson import check", store_history=True)
    yield shell
    lesson._tests.cache_clear()
    for name in ("answers", "given", "exercise"):
        sys.modules.pop(name, None)


def on(lesson):
    return pytest.mark.parametrize("shell", [pytest.param(lesson, id=lesson.name)], indirect=True)


PASS = "# a comment\n\ndef pass_right(comm, x):\n    n, rank = comm.size, comm.rank\n"
WRITTEN = read_document(Path(__file__).with_name("gaps.toml"))


def in_gaps(number):
    """Of a lesson's gaps what is written into them, and what is said of it."""
    right = WRITTEN[number].get("right", {})
    for each in read_patches(WRITTEN[number], "wrong"):
        name, gap, says = (each.pop(key) for key in ("name", "gap", "says"))
        program = each.get("program") or Patch(**each).apply(right[gap], f"the right {gap}")
        yield pytest.param(LESSONS[number], gap, program, says, id=f"{number} {name}")


WRONG = [param for number in WRITTEN for param in in_gaps(number)]


@pytest.mark.parametrize(("shell", "name", "code", "words"), WRONG, indirect=["shell"])
def test_a_gap_that_is_not_right_is_said_and_the_lessons_own_is_used(shell, capsys, name, code, words):
    before = WRITTEN[Path.cwd().name[:2]].get("before", "")
    for cell in (before, code, f"check({name!r})"):
        shell.run_cell(cell, store_history=True).raise_error()
    said = capsys.readouterr().out
    assert said.startswith(("✗ ", "○ "))
    assert re.search(words, said), said
    assert "the notebook goes on with the lesson's own" in said
    assert shell.user_ns[name].__module__ == "answers"
    for ours in ("Traceback", "minidist/", "on_ranks.py", f"{name}.py"):
        assert ours not in said
    assert "yours" not in lesson.whose(name).split()[:1]


REDUCE = """\
from minidist.ring import reduce_scatter
def reduce_shard(comm, grad):
    mine = grad[shard_slice(grad.size, comm.size, comm.rank)]
    with comm.phase("reduce-scatter gradients"):
        return reduce_scatter(comm, grad, out=mine)
"""


@pytest.mark.parametrize("first", ["raise NotImplementedError", "return slice(0, size // n)"])
@on(ZERO_1)
def test_a_gap_can_stand_on_one_that_is_open_or_wrong(shell, capsys, first):
    """For which the lesson's own is there, on ranks as well."""
    shell.run_cell(f"def shard_slice(size, n, rank):\n    {first}", store_history=True).raise_error()
    for cell in ("check('shard_slice')", REDUCE, "check('reduce_shard')"):
        shell.run_cell(cell, store_history=True).raise_error()
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "✓ reduce_shard is right. The notebook goes on with yours."
    assert shell.user_ns["shard_slice"].__module__ == "answers"


@on(WORDS)
def test_an_exercise_may_have_its_model_answer_in_the_lesson(shell, capsys):
    shell.run_cell("check('merge')", store_history=True).raise_error()
    said = capsys.readouterr().out
    assert said.startswith("○ merge in exercise.py is not filled in yet")
    assert "the notebook goes on with the lesson's own" in said
    assert shell.user_ns["merge"].__module__ == "answers"
    assert lesson.whose("merge") == "not yours yet: the lesson's own"


@on(WORDS)
def test_ranks_can_have_all_functions_of_the_exercise_that_are_right(shell, capsys):
    """Each check reads the file anew, and what was checked before is of the same reading."""
    Path("exercise.py").write_text(ANSWERS["01"])
    for name in ("merge", "reduce_task"):
        shell.run_cell(f"check({name!r})", store_history=True).raise_error()
    assert capsys.readouterr().out.count("✓") == 2
    exercise = sys.modules["exercise"]
    assert [shell.user_ns[name] for name in ("merge", "reduce_task")] == [exercise.merge, exercise.reduce_task]


@on(ZERO_3)
def test_a_method_is_checked_in_its_file(shell, capsys):
    Path("exercise.py").write_text(ANSWERS["09"].replace("flat.gathered = None", "raise NotImplementedError"))
    for name in ("owned", "forget"):
        shell.run_cell(f"check('ZeRO3.{name}')", store_history=True).raise_error()
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "✓ ZeRO3.owned is right. The notebook goes on with yours."
    assert said[1] == "○ ZeRO3.forget in exercise.py is not filled in yet; the notebook goes on with the chapter's."


def test_a_gap_that_is_right_is_used_also_after_it_was_wrong(shell, capsys):
    right = (
        PASS + "    out = np.empty_like(x)\n    comm.sendrecv(x, (rank + 1) % n, out, (rank - 1) % n)\n    return out"
    )
    for cell in (PASS + "    raise NotImplementedError", "check('pass_right')", right, "check('pass_right')"):
        shell.run_cell(cell, store_history=True).raise_error()
    assert capsys.readouterr().out.splitlines()[1:] == ["✓ pass_right is right. The notebook goes on with yours."]
    assert shell.user_ns["pass_right"].__module__ == "__main__"
    assert lesson.whose("pass_right") == "yours"


def test_the_exercise_is_checked_in_its_file(shell, capsys):
    for text, words, module in (
        ((RING / "exercise.py").read_text(), "○ all_gather in exercise.py is not filled in yet", "minidist.ring"),
        (ANSWERS["04"], "✓ all_gather is right", "exercise"),
    ):
        Path("exercise.py").write_text(text)
        shell.run_cell("check('all_gather')", store_history=True).raise_error()
        assert capsys.readouterr().out.startswith(words)
        assert shell.user_ns["all_gather"].__module__ == module


@on(ZERO_3)
def test_the_first_part_of_exercise_09_is_checked_and_used(shell, capsys):
    for text, words, module in (
        ((ZERO_3 / "exercise.py").read_text(), "○ train_step in exercise.py is not filled in yet", "answers"),
        (ANSWERS["09"].replace("-= rate", "+= rate"), "✗ .*the gradient was added: go against it", "answers"),
        (ANSWERS["09"], "✓ train_step is right", "exercise"),
    ):
        Path("exercise.py").write_text(text)
        shell.run_cell("check('train_step')", store_history=True).raise_error()
        said = capsys.readouterr().out
        assert re.match(words, said), said
        assert "goes on with the lesson's own" in said or module == "exercise"
        assert shell.user_ns["train_step"].__module__ == module
        assert lesson.whose("train_step") == ("yours" if module == "exercise" else "not yours yet: the lesson's own")


def test_a_cell_that_is_no_python_is_said_and_not_what_it_replaces(shell, capsys):
    shell.run_cell(PASS + "    return x", store_history=True).raise_error()
    shell.run_cell(PASS + "    return (x", store_history=True)
    capsys.readouterr()
    shell.run_cell("check('pass_right')", store_history=True).raise_error()
    said = capsys.readouterr().out
    assert said.startswith("✗ The last cell with `def pass_right` is no Python, line 5: '(' was never closed"), said


def test_a_function_that_no_cell_has_is_said(shell, capsys):
    shell.run_cell("check('exchange')", store_history=True).raise_error()
    assert capsys.readouterr().out.startswith("✗ No cell has defined exchange: run the cell with `def exchange` first.")


def test_a_name_that_is_nobodys_is_said(shell, capsys):
    shell.run_cell("check('exchagne')", store_history=True).raise_error()
    assert "there is no exchagne to check: all_gather_step, exchange, " in capsys.readouterr().out


def test_the_tour_runs(shell, capsys):
    load, tour = ("".join(cell["source"]) for cell in json.loads(notebook_text(ROOT / "lessons"))["cells"][2:4])
    shell.run_cell(load).raise_error()
    capsys.readouterr()  # tests share a shell, which may have loaded it before
    shell.run_cell(tour).raise_error()
    said = [f"---- rank {rank} ----\nthe sum is 6; sent 6,000,000 bytes to {(rank + 1) % 4}\n" for rank in range(4)]
    assert capsys.readouterr().out == "".join(said)


def test_there_is_nothing_to_copy_outside_of_a_clone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"there are no lessons here: cd {ROOT} && make lessons"):
        work.main()
    assert not list(tmp_path.iterdir())
