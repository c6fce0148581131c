"""How tests start a program of minidist as a reader starts it: in a process of its own, or under mpirun."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from minidist.launch.launcher import mpiexec_for
from ranks import by_mpi

ROOT = Path(__file__).parents[1]
PATHS = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"  # minidist, and the tests' own jobs


def run_python(*words: str, ranks: int = 0, env: Any = None, **how: Any) -> Any:
    """`python WORDS`, under mpirun on N ranks, to its end; without a terminal. env: what is another one's there.
    how: of subprocess.run."""
    launcher = mpiexec_for(ranks) if ranks else []
    usual: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "encoding": "utf-8",
        "timeout": 120,
        "start_new_session": True,
    }
    if not {"stdout", "stderr"} & how.keys():
        usual["capture_output"] = True
    environment = {**os.environ, "PYTHONPATH": PATHS, **(env or {})}
    return subprocess.run([*launcher, sys.executable, *words], env=environment, check=False, **{**usual, **how})


def run_chapter(line: str | list[str], ranks: int = 0, **how: Any) -> subprocess.CompletedProcess[str]:
    """`python -m minidist.LINE` on N ranks, by one of the two doors, as `launch` of ranks.py: a part of all over MPI,
    the others in a process of their own. Without ranks: serial training."""
    name, *words = line.split() if isinstance(line, str) else line
    if ranks and not by_mpi(name, ranks, *(word for word in words if "/" not in word)):
        words, ranks = [*words, "--ranks", str(ranks)], 0
    done: subprocess.CompletedProcess[str] = run_python("-m", f"minidist.{name}", *words, ranks=ranks, **how)
    return done


def run_module(line: str, ranks: int = 0, **how: Any) -> subprocess.CompletedProcess[str]:
    """`python -m LINE`, likewise."""
    done: subprocess.CompletedProcess[str] = run_python("-m", *line.split(), ranks=ranks, **how)
    return done
