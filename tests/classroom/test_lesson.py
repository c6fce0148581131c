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

from classroom.grading import ANSWERS
from minidist import UsageError
from minidist.classroom import work
from minidist.classroom.grading.grade import exercise_of
from minidist.classroom.notebook import lesson
from minidist.classroom.notebook.index import notebook_text, show_points

ROOT = Path(__file__).parents[2]
WORDS, SERVERS, RING, ZERO_1, ZERO_3, FIND = (
    ROOT / "lessons" / name
    for name in ("01_mapreduce", "03_parameter_server", "04_ring_all_reduce", "07_zero_1", "09_zero_3", "18_find_it")
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
    """A prediction is spoiled by the count below it. Of every lesson, and with no other difference."""
    for folder in (ROOT / "lessons").iterdir():
        if folder.is_dir() and folder != RING:
            shutil.copytree(folder, clone / "lessons" / folder.name, dirs_exist_ok=True)
    work.main()
    originals = sorted(clone.glob("lessons/*/lesson.ipynb"))
    assert len(originals) == 18
    for original in originals:
        text = (clone / "work" / original.parent.name / "lesson.ipynb").read_text()
        committed, copied = json.loads(original.read_text()), json.loads(text)
        assert any(cell.get("outputs") for cell in committed["cells"])
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in copied["cells"])
        for cell, kept in zip(copied["cells"], committed["cells"], strict=True):
            cell |= {name: kept[name] for name in ("outputs", "execution_count") if name in kept}
        assert copied == committed
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
    for heading in ("A one-minute tour", "The map", "Lessons", "Paths", "Your points so far"):
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
    for of in (WORDS, SERVERS, RING, ZERO_1, ZERO_3, FIND):
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
STEP = """\
def reduce_scatter_step(comm, work, step):
    n, rank = comm.size, comm.rank
    sending = work[chunk(work.size, n, (rank - step) % n)]
    adding = work[chunk(work.size, n, (rank - step - 1) % n)]
    incoming = np.empty_like(adding)
    comm.sendrecv(sending, (rank + 1) % n, incoming, (rank - 1) % n)
    adding += incoming
"""
CHUNK = """\
def chunk(size, n, i):
    assert 0 <= i < n, f"there is no chunk {i}: they are 0 to {n - 1}"
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))
"""
GATHER_STEP = """\
def all_gather_step(comm, work, step):
    n, rank = comm.size, comm.rank
    sending = work[chunk(work.size, n, (rank - step + 1) % n)]
    receiving = chunk(work.size, n, (rank - step) % n)
    incoming = np.empty_like(work[receiving])
    comm.sendrecv(sending, (rank + 1) % n, incoming, (rank - 1) % n)
    PUT
"""
EXCHANGE = "def exchange(comm, array, dest, out, source):\n"
GAPS = {
    "open": (
        "pass_right",
        PASS + "    raise NotImplementedError",
        r"\A○ pass_right is not filled in yet; the notebook goes on",
    ),
    "nothing comes back": ("pass_right", PASS + "    out = x.copy()", r"\A✗ .*rank 0 returned None, not an array"),
    "its own": ("pass_right", PASS + "    return x", r"\A✗ .*rank 0 ends with rank 0's numbers; rank 3's are wanted"),
    "an error": (
        "pass_right",
        PASS + "    out = np.empty_like(y)",
        r"(?s)\A✗ .*line 5 of the cell, `out = np\.empty_like\(y\)`.*NameError: name 'y' is not defined",
    ),
    "blocked": (
        "exchange",
        EXCHANGE + "    comm.send(array, dest)\n    comm.recv(out, source)",
        r"(?s)\A✗ .*rank 0: send\(dest=1\) at line 2 of the cell, `comm\.send\(array, dest\)`.*A cycle of waits",
    ),
    "not allowed": (
        "exchange",
        EXCHANGE + "    comm.sendrecv(array, dest, out, source)",
        r"(?s)\A✗ .*line 2 of the cell.*comm\.sendrecv is not to be used here: send and recv alone",
    ),
    "to the left": (
        "reduce_scatter_step",
        STEP.replace("(rank + 1) % n, incoming, (rank - 1) % n", "(rank - 1) % n, incoming, (rank + 1) % n"),
        r"\A✗ .*rank 0 sends to rank 3 at line 6 of the cell, `comm\.sendrecv.*`; its right neighbor is rank 1",
    ),
    "puts in place": (
        "reduce_scatter_step",
        STEP.replace("adding += incoming", "adding[:] = incoming"),
        r"\A✗ .*rank 0, step 1: chunk 2 comes in from the left, .* to chunk 2\. At .* rank 0's chunk 2 is missing",
    ),
    "makes another": (
        "reduce_scatter_step",
        STEP.replace("+=", "="),
        r"\A✗ .*rank 0, step 1: chunk 2 comes in from the left, .* in place\. Nothing in work has changed",
    ),
    "a chunk too far": (
        "reduce_scatter_step",
        STEP.replace("rank - step", "rank - step + 1"),
        r"\A✗ .*rank 0, step 1: chunk 2 comes in from the left, .*\. What has changed in work is chunk 3",
    ),
    "sends another": (
        "reduce_scatter_step",
        STEP.replace("work[chunk(work.size, n, (rank - step) % n)]", "work[chunk(work.size, n, rank)]"),
        r"\A✗ .*rank 0, step 1: chunk 2 comes in .*\. At .* rank 3's chunk 3 was added in place of its chunk 2",
    ),
    "not modulo N": (
        "reduce_scatter_step",
        STEP.replace("(rank - step) % n", "rank - step"),
        r"(?s)\A✗ .*there is no chunk -1: they are 0 to 3",
    ),
    "adds a chunk": (
        "all_gather_step",
        GATHER_STEP.replace("PUT", "work[receiving] += incoming"),
        r"\A✗ .*rank 0, step 1: chunk 3 comes in from the left, .* It was added to what was there",
    ),
    "a step early": (
        "all_gather_step",
        GATHER_STEP.replace("PUT", "work[receiving] = incoming").replace("- step", "- step - 1"),
        r"\A✗ .*rank 0, step 1: chunk 3 comes in from the left, .* What has changed in work is chunk 2",
    ),
    "only its own": (
        "all_gather_step",
        GATHER_STEP.replace("PUT", "work[receiving] = incoming").replace("(rank - step + 1) % n", "rank"),
        r"\A✗ .*rank 0, step 2: chunk 2 comes in from the left, .* It holds element 3, of rank 3's chunk",
    ),
    "only floats": (
        "pass_right",
        PASS + "    out = np.empty(x.size)\n    comm.sendrecv(x, (rank + 1) % n, out, (rank - 1) % n)\n    return out",
        r"(?s)\A✗ .*CommError: rank \d expected 3 x float64 from rank \d, which sent 3 x int64",
    ),
    "another order": (
        "pass_right",
        PASS + "    out = np.empty_like(x)\n    comm.sendrecv(x, out, (rank + 1) % n, (rank - 1) % n)",
        r"(?s)\A✗ .*a rank is a number, 0 to 3\. The order of arguments is array, dest, out, source",
    ),
    "waits": (
        "pass_right",
        PASS + "    out = np.empty_like(x)\n    comm.send(x, (rank + 1) % n)\n    comm.recv(out, (rank - 1) % n)",
        r"(?s)\A✗ .*rank 0: send\(dest=1\) at line 6 of the cell.*A cycle of waits",
    ),
    "leaves": (
        "pass_right",
        PASS + "    if rank == 1:\n        return x\n    out = np.empty_like(x)\n"
        "    comm.sendrecv(x, (rank + 1) % n, out, (rank - 1) % n)\n    return out",
        r"(?s)\A✗ .*hung: rank 1 has left without what rank [02] waits for\.\n.*rank 1: has come out of the function",
    ),
    "another out": (
        "exchange",
        EXCHANGE + "    out = np.empty_like(array)\n    if comm.rank:\n        comm.send(array, dest)\n"
        "    comm.recv(out, source)\n    if not comm.rank:\n        comm.send(array, dest)",
        r"\A✗ .*rank 0 has received nothing into out\. Fill the array that it is given, in place",
    ),
}


GATHER = """\
from minidist.ring import all_gather, reduce_scatter

def gather(comm, shard, rows, columns):
    return all_gather(comm, shard, comm.size * shard.size)[: rows * columns].reshape(rows, columns)
"""
BACKWARD = """\
def backward_layer(comm, shard, h, out, dout):
    width = h.shape[1]
    dz = dout * (1 - out**2)
    with comm.phase("all-gather backward"):
        w = gather(comm, shard, width, width)
    with comm.phase("reduce-scatter gradients"):
        gradient = reduce_scatter(comm, (h.T @ dz).reshape(-1))
    return gradient, dz @ w.T
"""
GAPS_09 = {
    "a view": (
        "cut_shard",
        "def cut_shard(w, n, rank):\n    return np.split(w.reshape(-1), n)[rank]",
        "is a view of the",
    ),
    "a view of a copy": (
        "cut_shard",
        "def cut_shard(w, n, rank):\n    return np.split(np.append(w, np.zeros(-w.size % n)), n)[rank]",
        "is a view of the",
    ),
    "half as wide": (
        "cut_shard",
        "def cut_shard(w, n, rank):\n    return np.resize(w, -(-w.size // n)).astype(np.float32)",
        "the shard is float32 where float64 is wanted",
    ),
    "the first everywhere": (
        "cut_shard",
        "def cut_shard(w, n, rank):\n    return np.resize(w, -(-w.size // n)).copy()",
        r"rank 1: the shard does not hold .*: at index 0 there is -?[\d.e-]+ where -?[\d.e-]+ is wanted",
    ),
    "no padding": (
        "cut_shard",
        "def cut_shard(w, n, rank):\n    return np.split(w.reshape(-1), n)[rank].copy()",
        r"(?s)line 2 of the cell.*array split does not result in an equal division",
    ),
    "zeros and all": ("gather", GATHER.replace("[: rows * columns]", ""), r"(?s)line 2 of the cell|line 4 of the cell"),
    "own part": (
        "backward_layer",
        BACKWARD.replace(
            "reduce_scatter(comm, (h.T @ dz).reshape(-1))", "np.split((h.T @ dz).reshape(-1), 4)[comm.rank]"
        ),
        r"does not hold what it should: it is this rank's own part, not summed over the ranks",
    ),
    "a mean": (
        "backward_layer",
        BACKWARD.replace("return gradient", "return gradient / comm.size"),
        r"it is the sum divided by the number of ranks",
    ),
    "no transpose": ("backward_layer", BACKWARD.replace("w.T", "w"), r"dh does not hold .*: W is not transposed"),
    "another phase": (
        "backward_layer",
        BACKWARD.replace("all-gather backward", "again"),
        r"sends in phase 'again' at a line of another cell, .* belongs into phase 'all-gather backward' or 'reduce",
    ),
    "nothing": (
        "backward_layer",
        BACKWARD.replace("return gradient, dz @ w.T", ""),
        r"returned NoneType; two arrays are wanted",
    ),
}


SEND = """\
def send_text(comm, text, dest):
    data = np.frombuffer(text.encode(), np.uint8)
    comm.send(np.array([data.size]), dest)
    comm.send(data, dest)
"""
RECEIVE = """\
def receive_text(comm, source):
    length = np.empty(1, np.int64)
    comm.recv(length, source)
    data = np.empty(length[0], np.uint8)
    comm.recv(data, source)
    return data.tobytes().decode()
"""
ALL_SEND = """\
def in_turns(comm, texts):
    for dest in range(comm.size):
        if dest != comm.rank:
            send_text(comm, texts[dest], dest)
    return [texts[r] if r == comm.rank else receive_text(comm, r) for r in range(comm.size)]
"""
COMMIT = """\
import os
def commit(lines, path, worker):
    unfinished = path.with_name("unfinished")
    with open(unfinished, "w") as file:
        file.writelines(lines)
    os.replace(unfinished, path)
"""
GAPS_01 = {
    "bytes": (
        "receive_text",
        RECEIVE.replace(".decode()", ""),
        r"Rank 2 sent 'three three three', and receive_text on rank 0 returned bytes",
    ),
    "a fixed size": (
        "receive_text",
        RECEIVE.replace("length[0]", "3"),
        r"(?s)line 5 of the cell, `comm\.recv.*CommError: rank \d expected 3 x uint8 from rank \d, which sent",
    ),
    "salted": ("region_of", "def region_of(key, reducers):\n    return hash(key) % reducers", r"Is that hash\(\)\?"),
    "all send first": (
        "in_turns",
        ALL_SEND,
        r"(?s)rank 1: send\(dest=0\) at a line of another cell, `comm\.send.*A cycle of waits",
    ),
    "no merge": (
        "merge_runs",
        "def merge_runs(runs):\n    return [(key, [value]) for run in runs for key, value in run]",
        r"merge_runs of 4 runs of 22 pairs: (the key '\w+' comes twice|'\w+' comes after '\w+')",
    ),
    "appends": (
        "commit",
        COMMIT.replace('path.with_name("unfinished")', "path").replace('"w"', '"a"'),
        r"There was a file at `path` before the last line was there: who looks now reads half an output",
    ),
    "one name for all": ("commit", COMMIT, r"(?s)`os\.replace\(unfinished, path\)`.*FileNotFoundError"),
}


GATE = """\
def may_read(clocks, worker, clock, staleness):
    return clocks[worker] >= clock and sum(clocks) >= len(clocks) * (clock - staleness)
"""
GAPS_03 = {
    "pulls first": (
        "push_and_pull",
        "def push_and_pull(comm, gradient, weights, server):\n"
        "    comm.recv(weights, server)\n    comm.send(gradient, server)",
        r"(?s)On 2 workers and a server: hung.*rank 0: recv\(source=2\) at line 2 of the cell, `comm\.recv",
    ),
    "a rest": (
        "cut",
        "def cut(size, k):\n    return [slice(i * (size // k), (i + 1) * (size // k)) for i in range(k)]",
        r"cut\(13, 4\) is 0:3, 3:6, 6:9, 9:12: each range begins where the last one ends.*the last ends at 13",
    ),
    "counts pushes": (
        "may_read",
        GATE,
        r"With clocks \[3, 1, 3\], worker 0 at clock 3 and staleness 1, may_read says True",
    ),
    "before the first": (
        "next_weight",
        "def next_weight(w, q, tau):\n    return w[-1] - q * w[-1 - tau] if tau < len(w) else w[-1]",
        r"and the gradient was computed with",
    ),
    "allowed": ("fooled", "def fooled():\n    return [3, 2, 2, 2]", r"of every worker at least 2 updates are there"),
    "held back": (
        "fooled",
        "def fooled():\n    return [3, 0, 2, 2]",
        r"these are 7 pushes, and the counting gate wants 8",
    ),
    "hears a gradient after every header": (
        "hear",
        "def hear(comm, weights):\n    worker, kind, clock = next_header(comm)\n"
        "    gradient = np.empty_like(weights)\n    comm.recv(gradient, worker)\n"
        "    return worker, kind, clock, gradient",
        r"On workers that send PULL, PUSH, STOP: ",
    ),
    "hears into the weights": (
        "hear",
        "def hear(comm, weights):\n    worker, kind, clock = next_header(comm)\n    if kind == PUSH:\n"
        "        comm.recv(weights, worker)\n        return worker, kind, clock, weights\n"
        "    return worker, kind, clock, None",
        r"hear has written into weights. Receive the gradient into a new array",
    ),
    "counts no push": (
        "count_push",
        "def count_push(shard, worker, gradient):\n    shard.update(gradient)",
        r"after push 1, of worker 0, the clocks are \[0 0 0\], and \[1 0 0\] is right",
    ),
    "counts all workers": (
        "count_push",
        "def count_push(shard, worker, gradient):\n    shard.update(gradient)\n    shard.clocks += 1",
        r"the clocks are \[1 1 1\], and \[1 0 0\] is right",
    ),
    "answers all": (
        "answer_fresh",
        "def answer_fresh(comm, shard, held):\n    for worker, clock in held:\n"
        "        answer(comm, shard, worker)\n    return []",
        r"\(worker 2, clock 3\): worker 2 got 1 answer, and 0 is right",
    ),
    "forgets who waits": (
        "answer_fresh",
        "def answer_fresh(comm, shard, held):\n    for worker, clock in held:\n"
        "        if may_read(shard.clocks, worker, clock, shard.staleness):\n"
        "            answer(comm, shard, worker)\n    return []",
        r"answer_fresh returned \[\]; what has to wait is \[\(2, 3\)\]",
    ),
}
GAPS_18 = {
    "a comprehension": (
        "unequal_copies",
        "def unequal_copies(parameters):\n    return [name for name in 'ab' if any(of[name] for of in parameters)]",
        r"\A✗ On unequal_copies, of equal copies, it failed:\n +line 2 of the cell, `return [^\n]*`\nValueError: [^\n]*"
        r"\n  Until",
    ),
    "NumPy's zero": (
        "first_difference",
        "def first_difference(losses, right, tolerance):\n    return np.int64(0)",
        r"\A✗ first_difference, where the third differs: it returned 0; 3 is wanted",
    ),
}
HEADERS = "from answers import may_read\nfrom given import PULL, PUSH, STOP, Shard, answer, next_header, tell"


CELLS = {
    RING.name: [CHUNK],
    ZERO_3.name: [GATHER],
    WORDS.name: [SEND, RECEIVE],
    SERVERS.name: [HEADERS],
    FIND.name: [],
}  # run before a gap
WRONG = [
    pytest.param(of, *gap, id=f"{of.name[:2]} {words}")
    for of, gaps in ((RING, GAPS), (ZERO_3, GAPS_09), (WORDS, GAPS_01), (SERVERS, GAPS_03), (FIND, GAPS_18))
    for words, gap in gaps.items()
]


@pytest.mark.parametrize(("shell", "name", "code", "words"), WRONG, indirect=["shell"])
def test_a_gap_that_is_not_right_is_said_and_the_lessons_own_is_used(shell, capsys, name, code, words):
    for cell in (*CELLS[Path.cwd().name], code, f"check({name!r})"):
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
