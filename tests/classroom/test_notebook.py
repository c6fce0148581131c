"""`%%mpirun` in plain IPython, and in a kernel under nbclient, as JupyterLab runs it."""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("IPython", reason="the notebook's tests need ipykernel and nbclient")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
from IPython.core.interactiveshell import InteractiveShell  # noqa: E402

from jobs.processes import lives  # noqa: E402
from minidist.classroom.notebook import cell as notebook  # noqa: E402
from minidist.classroom.notebook.cell import CellFailed  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["MPI", "no MPI"])
def shell(request, monkeypatch):
    """One IPython for all tests, with a fresh notebook; over MPI, and as where there is none."""
    if request.param == "no MPI":
        monkeypatch.setattr(notebook, "has_mpi", lambda: False)
    shell = InteractiveShell.instance()
    shell.reset()
    shell.run_line_magic("load_ext", "minidist")
    return shell


def run(shell, *cells):
    """Run cells in turn as a person would, and raise what the last one raises."""
    for cell in cells:
        result = shell.run_cell(cell, store_history=True)
    result.raise_error()


def test_output_is_grouped_by_rank_and_values_come_back(shell, capsys):
    run(shell, "%%mpirun -n 3 --out square,x\nprint('rank', comm.rank)\nsquare = comm.rank**2\nx = np.ones(2)\nsquare")
    assert capsys.readouterr().out == "".join(f"---- rank {rank} ----\nrank {rank}\n{rank**2}\n" for rank in range(3))
    assert shell.user_ns["square"] == [0, 1, 4]
    np.testing.assert_array_equal(shell.user_ns["x"], np.ones((3, 2)))


def test_a_cell_sees_what_the_notebook_defines(shell):
    run(
        shell,
        "import math as m\nimport numpy as np\nfrom minidist.ring import chunk",
        "k = 3\ndata = np.arange(6.0)\nplot = object()",
        "scale = 2\nclass Base:\n    def f(self):\n        return k * scale\n",
        "def twice(f):\n    return lambda: 2 * f()\n",
        "@twice\ndef first():\n    return Child().f() + m.floor(0.5)\n\nclass Child(Base):\n    pass\n",
        "def first():\n    not valid python\n",
        "%%mpirun -n 2 --out result\nplot = 1\nresult = (first(), data[chunk(6, 2, comm.rank)])\n",
    )
    (a, low), (b, high) = shell.user_ns["result"]
    assert (a, b) == (12, 12)
    np.testing.assert_array_equal(np.concatenate([low, high]), np.arange(6.0))


def test_the_last_definition_counts(shell):
    run(shell, "def f():\n    return 1\ndef f():\n    return 2", "%%mpirun -n 1 --out x\nx = f()")
    assert shell.user_ns["x"] == [2]
    run(shell, "def f():\n    return 3", "%%mpirun -n 1 --out x\nx = f()")
    assert shell.user_ns["x"] == [3]


def test_a_definition_that_has_been_replaced_is_not_brought_along(shell):
    run(shell, "def f():\n    return 1\ndef g():\n    return f()", "f = lambda: 2")
    sources, values, left_out = notebook.brought_along(compile("g()", "a cell", "exec"), shell.user_ns)
    assert [text for _, text in sources] == ["", "\n\ndef g():\n    return f()\n"]
    assert (values, list(left_out)) == ({}, ["f"])


def test_what_an_earlier_cell_imports_is_imported_on_the_ranks(shell):
    cell = "%%mpirun -n 1 --out x\nx = [exp(0), g(np.ones(3)), asyncio.run(late())]"
    imports = "import asyncio\nfrom typing import Optional\nfrom numpy import exp"
    definitions = "def g(x: Optional[int]):\n    return x.sum()\n\nasync def late():\n    return 4"
    run(shell, imports, definitions, cell)
    assert shell.user_ns["x"] == [[1.0, 3.0, 4]]


def test_options_as_people_write_them(shell):
    run(shell, "%%mpirun -np 3 --out a, b   # three ranks; it's enough\na = comm.size\nb = 2 * a")
    assert (shell.user_ns["a"], shell.user_ns["b"]) == ([3] * 3, [6] * 3)


def test_a_cell_keeps_the_beginning_and_the_end_of_what_is_very_long(shell, capsys):
    prints = "print('a' * 200_000 + 'b' * 200_000)\ncomm.barrier()\n"
    with pytest.raises(CellFailed) as failure:
        run(shell, f"%%mpirun -n 2\n{prints}if comm.rank == 0:\n    raise ValueError('c' * 200_000)")
    [a, b] = ["a" * 25_000, "b" * 24_999]  # and the end of the line
    block = f"{a}\n[350,001 characters are left out here]\n{b}\n"
    output, _, _ = capsys.readouterr().out.partition("rank 0 failed:")  # which IPython shows after it
    assert output == f"---- rank 0 ----\n{block}---- rank 1 ----\n{block}"
    [report] = failure.value._render_traceback_()
    assert report.startswith("rank 0 failed:\nTraceback")
    assert re.search(r"ccc\nrank 1: (finished|ended because rank 0 failed)$", report)
    assert len(report) < 100_100


def test_a_traceback_shows_the_lines_of_the_cells(shell):
    with pytest.raises(CellFailed) as failure:
        run(
            shell,
            "# a comment\n\ndef divide(x):\n    return 1 / x",
            "%%mpirun -n 2\nif comm.rank == 1:\n    divide(0)",
        )
    report = str(failure.value)
    number = len(shell.user_ns["In"]) - 1
    assert report.startswith("rank 1 failed:\nTraceback (most recent call last):\n")
    assert f'File "In[{number}]", line 3, in <module>\n    divide(0)' in report
    assert f'File "In[{number - 1}]", line 4, in divide\n    return 1 / x' in report
    assert report.count("File ") == 2
    assert failure.value._render_traceback_() == [report]


def test_of_a_mistake_in_a_message_only_the_cell_is_shown(shell):
    with pytest.raises(CellFailed) as failure:
        run(shell, "%%mpirun -n 1\ntry:\n    comm.send(3, 0)\nexcept Exception:\n    comm.send(np.ones(2), 7)")
    number = len(shell.user_ns["In"]) - 1
    report = str(failure.value)
    assert [line.strip() for line in report.splitlines() if "File " in line] == [
        f'File "In[{number}]", line {line}, in <module>' for line in (3, 5)
    ]
    assert report.endswith("CommError: rank 0: cannot send to rank 7; ranks are 0 to 0")


# What is said before there are ranks, and of what one rank does by itself, is the same on either wire.
WITHOUT_MPI = pytest.mark.parametrize("shell", ["no MPI", pytest.param("MPI", marks=pytest.mark.slow)], indirect=True)


@WITHOUT_MPI
@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["%%mpirun -n 0\n1"], "%%mpirun: argument -n: must be at least 1, not 0"),
        (["%%mpirun --ranks 4\n1"], "%%mpirun: unrecognized arguments: --ranks 4"),
        (["%%mpirun -n 2\nx = 1\nif x:"], "line 3: expected an indented block"),
        (["%%mpirun -n 1 --out result\n1"], "the cell is to return result, but gave no value to that name"),
        (["%%mpirun -n 2 --out 'x\n1"], "%%mpirun: no closing quotation"),
        (
            ["%%mpirun -n 1\nx = 1\n%time f(x)"],
            "line 3: %time f(x) is a magic of the notebook, and ranks run plain Python",
        ),
        (["%%mpirun -n 1\nfor i in (1, 2):\n    x = !ls"], "line 3: x = !ls is a command of the shell, and ranks run"),
        (["%%mpirun -n 1\nprint?"], "line 2: print? is a question to the notebook, and ranks run plain Python"),
        (["%%mpirun -n 1\nwhile !True:\n    pass"], "line 2: invalid syntax"),
        (["%%mpirun -n 1\nimport asyncio\nawait asyncio.sleep(0)"], "line 3: ranks have no event loop to await in"),
        (
            ["def f():\n    %time 1", "%%mpirun -n 1\nf()"],
            "Magics (%) and commands of the shell (!) are the notebook's",
        ),
        (["%%mpirun -n 1\ninput()"], "Nobody can answer input() on a rank: ask in a cell without %%mpirun."),
        (["%%mpirun -n 1 --out s\ns = {1}"], "TypeError: --out s: a value of type set cannot pass between processes"),
        (
            ["%%mpirun -n 1 --out p\nfrom collections import namedtuple\np = [namedtuple('P', 'x')(1)]"],
            "TypeError: --out p: a named tuple would come back as a plain one",
        ),
        (
            ["lock = object()", "%%mpirun -n 1\nlock"],
            "lock (of type object) cannot pass from the notebook to the ranks: make it in the cell.",
        ),
    ],
)
def test_a_mistake_is_said_plainly(shell, cells, words):
    with pytest.raises(CellFailed) as failure:
        run(shell, *cells)
    assert words in str(failure.value)


@WITHOUT_MPI
@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("x = lambda: 1", "x is a lambda, and ranks are given functions by their text: write it with def x(...)."),
        ("if True:\n    def x():\n        pass", "x was not defined at the top level of a cell"),
        ("from collections import namedtuple\nx = namedtuple('x', 'a')", "write class x(typing.NamedTuple)."),
        ("from collections import namedtuple\nx = {1: [namedtuple('P', 'a')(2)]}", "x has a named tuple in it"),
        ("class C:\n    def f(self):\n        pass\nx = C().f", "x (of type method) cannot pass from the notebook"),
        ("x = []\nx.append(x)", "x (of type list) cannot pass from the notebook to the ranks: make it in the cell."),
        ("%%mpirun 0\nx = 1", "If x is of an earlier %%mpirun, it went with its ranks: keep it with --out x."),
    ],
)
def test_what_cannot_pass_to_the_ranks_is_said_with_what_to_do(shell, cell, words):
    shell.run_cell(cell, store_history=True)
    shell.run_cell("x", store_history=True)
    _, values, left_out = notebook.brought_along(compile("x", "a cell", "exec"), shell.user_ns)
    assert (values, list(left_out)) == ({}, ["x"])
    assert words in left_out["x"]


def test_a_rank_can_draw_into_a_file_only(shell, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    draw = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    run(shell, f"%%mpirun -n 1\n{draw}\nplt.savefig('{tmp_path}/picture.png')")
    assert capsys.readouterr().out == ""
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    run(shell, f"%%mpirun -n 1\n{draw}")
    assert "\nA picture was drawn that nobody sees. Ranks have no screen: bring the" in capsys.readouterr().out
    with pytest.raises(CellFailed) as failure:
        run(shell, "import matplotlib.pyplot as plt", f"%%mpirun -n 1\n{draw}\nplt.show()")
    number = len(shell.user_ns["In"]) - 1
    assert str(failure.value) == (
        f"rank 0 failed:\nplt.show() was called at In[{number}]:4. Ranks have no screen: bring the numbers back with"
        " --out, and draw them in a cell without %%mpirun."
    )


def test_a_deadlock_says_who_waits_for_whom(shell):
    with pytest.raises(CellFailed) as failure:
        run(
            shell,
            "def exchange(comm, out):\n    comm.recv(out, 1 - comm.rank)",
            "%%mpirun -n 2\nexchange(comm, np.empty(3))",
        )
    number = len(shell.user_ns["In"]) - 1
    where = f"at In[{number - 1}]:2 in exchange, called from In[{number}]:2"
    assert f"rank 0: recv(source=1) {where}\nrank 1: recv(source=0) {where}\nA cycle of waits" in str(failure.value)


COLLECTIVES = {
    "all_reduce": "all_reduce(comm, np.ones(8))",
    "reduce_scatter": "reduce_scatter(comm, np.ones(8))",
    "all_gather": "all_gather(comm, np.ones(2), 8)",
    "broadcast": "broadcast(comm, np.ones(8))",
    "all_to_all": "all_to_all(comm, np.ones((4, 2)))",
    "barrier": "comm.barrier()",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "all_reduce")) for name in COLLECTIVES]
)
def test_a_collective_that_a_rank_never_calls_ends_soon_after_it_has_left(shell, name):
    imported = "" if name == "barrier" else f"from minidist.ring import {name}\n"
    begin = time.monotonic()
    with pytest.raises(CellFailed) as failure:
        run(shell, f"%%mpirun -n 4\n{imported}if comm.rank != 1:\n    {COLLECTIVES[name]}")
    assert time.monotonic() - begin < 30  # about 2; without a look after rank 1 has left, the timeout of 60
    report = str(failure.value)
    assert re.match(rf"The job hung: rank 1 has left without calling {name}, in which rank [023] waits\.\n", report)
    assert f"In[{len(shell.user_ns['In']) - 1}]:" in report


def test_honest_work_beyond_the_timeout_is_not_called_a_hang(shell):
    with pytest.raises(CellFailed) as failure:
        run(shell, "%%mpirun -n 2 --timeout 3\nwhile comm.rank == 1:\n    pass")
    report = str(failure.value)
    assert report.startswith("The job had not ended after 3 s: rank 1 was still computing.\nrank 0: finished\n")
    assert report.endswith("give it more time: %%mpirun --timeout 30")
    assert "hung" not in report


@WITHOUT_MPI
def test_a_comment_may_stand_above_the_magic(shell):
    notebook.load(shell)  # for the second time
    run(shell, "# four ranks\n\n  # of them two\n%%mpirun -n 2 --out x\nx = comm.size  # %%mpirun")
    assert shell.user_ns["x"] == [2, 2]
    number = len(shell.user_ns["In"])
    with pytest.raises(CellFailed, match=rf'File "In\[{number}\]", line 3, in <module>\n    1 / 0'):
        run(shell, "# two ranks\n%%mpirun -n 2\n1 / 0")
    run(shell, '# no magic\ny = """\n%%mpirun"""')
    assert shell.user_ns["y"] == "\n%%mpirun"


@WITHOUT_MPI
@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("total + 1", "If total is of an earlier %%mpirun, it went with its ranks: keep it with --out total."),
        ("def f():\n    return total\nf()", "keep it with --out total."),
        ("comm.size", "Only ranks have comm: begin the cell with %%mpirun -n 4, and four ranks run it."),
        ("nowhere", ""),
        ("int('x')", ""),
    ],
)
def test_a_name_that_only_ranks_have_is_explained_where_it_is_missing(shell, capsys, cell, words):
    run(shell, "%%mpirun -n 1\ntotal = 1")
    notebook.load(shell)  # once more: it is said once all the same
    capsys.readouterr()
    with pytest.raises((NameError, ValueError)):
        run(shell, cell)
    said = [line for line in capsys.readouterr().out.splitlines() if "%%mpirun" in line]
    assert len(said) == bool(words)
    assert not words or said[0].endswith(words)


NEWS = "@jupyterlab/apputils-extension:announcements"


def test_before_the_extension_is_loaded_the_magic_says_what_to_do(tmp_path):
    """In the environment that make sets up, which also keeps JupyterLab from asking about news: no profile changes."""
    venv, profile = tmp_path / "venv", tmp_path / "profile"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (venv / "bin" / "pip").touch()
    (next(venv.glob("lib/python*/site-packages")) / "all.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    made = [venv / "etc" / "ipython" / "ipython_config.py", venv / "etc" / "jupyter" / "labconfig" / "page_config.json"]
    subprocess.run(["make", f"VENV={venv}", *made], cwd=ROOT, check=True, capture_output=True)
    cells = ["# note\n%%mpirun -n 2\nprint(1)", "%load_ext minidist", "# note\n%%mpirun --help\n1"]
    program = f"for cell in {cells!r}: get_ipython().run_cell(cell)"
    command = [venv / "bin" / "python", "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", program]
    env = {**os.environ, "IPYTHONDIR": str(profile)}
    run = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "UsageError: %%mpirun is not loaded" in run.stderr
    assert "Run %load_ext minidist first, or all cells from the top." in run.stderr
    assert run.stdout.startswith("usage: %%mpirun")
    assert not [file for file in profile.rglob("*config.py")]
    assert json.loads(made[1].read_text()) == {"disabledExtensions": {NEWS: True}}


def test_the_core_does_not_need_ipython():
    watch = "import sys, minidist; assert not {'IPython', 'numpy', 'mpi4py'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", watch], cwd=ROOT, check=True)


# ---- under a kernel --------------------------------------------------------------------------------------------------


def kernel(cells, folder):
    """An nbclient for a notebook of these cells."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": folder}}), {
        **os.environ,
        "PYTHONPATH": path,
    }


def ranks_in(folder):
    """Process ids that the ranks have written."""
    return [int(file.read_text()) for file in Path(folder).glob("rank*") if file.read_text()]


GO_ON_WHEN_TOLD = """\
%%mpirun -n 2
import os, time
print("begin", comm.rank)
while not os.path.exists("go on"):
    time.sleep(0.01)
print("end", comm.rank)"""

WAIT_FOR_EVER = """\
%%mpirun -n 2
import os, time
print("here", comm.rank)
with open(f"rank{comm.rank}", "w") as file:
    file.write(str(os.getpid()))
while True:
    time.sleep(1)"""


SAY_NOTHING_UNTIL_TOLD = """\
%%mpirun -n 2
import os, time
while not os.path.exists("say nothing"):
    time.sleep(0.01)"""


@pytest.mark.parametrize("wire", ["MPI", "no MPI"])
def test_in_a_kernel_output_is_seen_while_ranks_run_and_an_interrupt_ends_them(wire, tmp_path):
    load = "%load_ext minidist\nfrom minidist.classroom.notebook import cell as notebook\nnotebook.LONG = 600"
    if wire == "no MPI":
        load += "\nnotebook.has_mpi = lambda: False"
    cells = [load, GO_ON_WHEN_TOLD, WAIT_FOR_EVER, "%%mpirun -n 2 --out x\nx = comm.size", "x"]
    cells += ["notebook.LONG = 0", SAY_NOTHING_UNTIL_TOLD]
    client, env = kernel(cells, tmp_path)
    pids, early, progress = [], [], []

    def wait_until(condition):
        give_up = time.monotonic() + 60
        while not condition() and time.monotonic() < give_up:
            time.sleep(0.05)

    def tell_and_interrupt():
        def look():
            shown = "".join(output.get("text", "") for output in client.nb.cells[1].outputs)
            early[:] = [shown]
            return "begin 0" in shown and "begin 1" in shown

        wait_until(look)
        (tmp_path / "go on").touch()
        wait_until(lambda: len(ranks_in(tmp_path)) == 2)
        pids.extend(ranks_in(tmp_path))
        os.kill(client.km.provisioner.pid, signal.SIGINT)
        wait_until(lambda: progress.extend(client.nb.cells[6].outputs) or progress)
        (tmp_path / "say nothing").touch()

    client.allow_errors = True
    with client.setup_kernel(env=env):
        client.execute_cell(client.nb.cells[0], 0)
        thread = threading.Thread(target=tell_and_interrupt)
        thread.start()
        for index in range(1, len(cells)):
            client.execute_cell(client.nb.cells[index], index)
        thread.join()
    assert early == ["---- rank 0 ----\nbegin 0\n---- rank 1 ----\nbegin 1\n"]
    [kept] = client.nb.cells[1].outputs
    assert kept.text == "---- rank 0 ----\nbegin 0\nend 0\n---- rank 1 ----\nbegin 1\nend 1\n"
    printed, interrupted = client.nb.cells[2].outputs
    assert printed.text == "---- rank 0 ----\nhere 0\n---- rank 1 ----\nhere 1\n"
    where = "computing at In[3]:7 in <module> (not in a message call)"
    assert interrupted.traceback == [f"The job was interrupted.\nrank 0: {where}\nrank 1: {where}"]
    assert client.nb.cells[4].outputs[0].data["text/plain"] == "[2, 2]"
    assert re.fullmatch(r"\[2 ranks have run for \d+ s\]\n", progress[0].text)
    assert client.nb.cells[6].outputs == []
    assert len(pids) == 2
    assert not any(lives(pid) for pid in pids)
