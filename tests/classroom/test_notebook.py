"""`%%mpirun` in plain IPython, and in a kernel under nbclient, as JupyterLab runs it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("IPython", reason="the notebook's tests need ipykernel and nbclient")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
from IPython.core.interactiveshell import InteractiveShell  # noqa: E402

from minidist.classroom import notebook  # noqa: E402
from minidist.classroom.notebook import CellFailed  # noqa: E402

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


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["%%mpirun -n 0\n1"], "%%mpirun: argument -n: must be at least 1, not 0"),
        (["%%mpirun --ranks 4\n1"], "%%mpirun: unrecognized arguments: --ranks 4"),
        (["%%mpirun -n 2\nx = 1\nif x:"], "line 3: expected an indented block"),
        (["%%mpirun -n 1 --out result\n1"], "the cell is to return result, but gave no value to that name"),
        (["lock = object()", "%%mpirun -n 1\nlock"], "lock (of type object) cannot pass from the notebook to the ranks: make it in the cell."),
    ],
)
def test_a_mistake_is_said_plainly(shell, cells, words):
    with pytest.raises(CellFailed) as failure:
        run(shell, *cells)
    assert words in str(failure.value)


def test_a_deadlock_says_who_waits_for_whom(shell):
    with pytest.raises(CellFailed) as failure:
        run(
            shell,
            "def exchange(comm, out):\n    comm.recv(out, 1 - comm.rank)",
            "%%mpirun -n 2\nexchange(comm, np.empty(3))",
        )
    number = len(shell.user_ns["In"]) - 1
    where = f"at In[{number - 1}]:2" + f" in exchange, called from In[{number}]:2" * notebook.has_mpi()
    assert f"rank 0: recv(source=1) {where}\nrank 1: recv(source=0) {where}\nA cycle of waits" in str(failure.value)


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


WAIT_FOR_EVER = """\
%%mpirun -n 2
import os, time
with open(f"rank{comm.rank}", "w") as file:
    file.write(str(os.getpid()))
while True:
    time.sleep(1)"""


def lives(pid):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return state != "" and not state.startswith("Z")


def test_in_a_kernel_an_interrupt_ends_every_rank(tmp_path):
    client, env = kernel(["%load_ext minidist", WAIT_FOR_EVER, "%%mpirun -n 2 --out x\nx = comm.size", "x"], tmp_path)
    pids = []

    def interrupt():
        give_up = time.monotonic() + 60
        while len(ranks_in(tmp_path)) < 2 and time.monotonic() < give_up:
            time.sleep(0.1)
        pids.extend(ranks_in(tmp_path))
        os.kill(client.km.provisioner.pid, signal.SIGINT)

    client.allow_errors = True
    with client.setup_kernel(env=env):
        client.execute_cell(client.nb.cells[0], 0)
        thread = threading.Thread(target=interrupt)
        thread.start()
        for index in (1, 2, 3):
            client.execute_cell(client.nb.cells[index], index)
        thread.join()
    [interrupted] = client.nb.cells[1].outputs
    assert interrupted.traceback == ["Interrupted: every rank has been ended."]
    assert client.nb.cells[3].outputs[0].data["text/plain"] == "[2, 2]"
    assert len(pids) == 2
    assert not any(lives(pid) for pid in pids)
