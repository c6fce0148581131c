"""MPI stays behind its port: one module imports it, and none that a chapter imports."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import minidist
from programs import run_module

PACKAGE = Path(minidist.__file__).parent


def imported(module: Path) -> set[str]:
    """The packages that a module names in its import statements, wherever these stand."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).split(".")[0])
    return found


def test_one_module_imports_mpi4py() -> None:
    importing = [str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if "mpi4py" in imported(path)]
    assert importing == ["mpi/over_mpi.py"]


def test_no_chapter_needs_mpi4py_to_be_imported() -> None:
    chapters = sorted(f"minidist.{path.stem}" for path in PACKAGE.glob("*.py") if not path.stem.startswith("__"))
    assert {"minidist.mapreduce", "minidist.parameter_server", "minidist.pipeline", "minidist.zero3"} <= set(chapters)
    program = f"import sys; sys.modules['mpi4py'] = None; import {', '.join(chapters)}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_a_launcher_of_another_mpi_is_not_taken_for_one_rank(rank: str, lines: int) -> None:
    """Its variables are there, and each process is a whole job to MPI: the classic mixture, which says nothing."""
    variables = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": rank}
    done = run_module("minidist.ring", env=variables)
    assert (done.returncode, done.stdout, done.stderr.count("minidist: error: ")) == (2, "", lines)
    assert ("started 4 ranks, and MPI knows 1" in done.stderr) == bool(lines)


ASKED = """
import os, time
from minidist.mpi import over_mpi
os.sched_yield = lambda: print("yields")
time.sleep = lambda seconds: print("sleeps" if seconds > 0 else "does not sleep")
port = over_mpi.world()._port
print(type(port).__name__, os.environ.get("MPIR_CVAR_POLLS_BEFORE_YIELD"))
port.pause()
"""


@pytest.mark.parametrize(
    ("times", "more", "said"),
    [
        (1, 0, ["MPIPort", "None", "yields"]),
        (1, 1, ["MPIPort", "1", "yields"]),
        (2, 0, ["MPIPort", "1", "yields"]),
        (2, 1, ["CrowdedPort", "1", "sleeps"]),
    ],
)
def test_ranks_that_share_cores_let_each_other_work(times: int, more: int, said: list[str]) -> None:
    ranks = times * (os.cpu_count() or 1) + more
    environment = {**os.environ, "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks)}  # as Open MPI's mpirun says it
    environment.pop("MPIR_CVAR_POLLS_BEFORE_YIELD", None)
    done = subprocess.run([sys.executable, "-c", ASKED], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (said, "")
