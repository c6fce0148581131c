"""Chapters, run from their command lines, and the reports that they print for machines."""

import functools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minidist import UsageError
from minidist.launch.launcher import OPEN_MPI_AS_ROOT, mpiexec_for
from minidist.system import processes
from minidist.system.files import temporary_folder

TIMEOUT = 3600.0  # seconds for one job; 1,024 ranks of ZeRO-2 take a few minutes


@functools.cache
def count_here(ranks: int, line: str) -> Any:
    """A chapter's JSON report, from ranks of one process. The chapter runs in a temporary folder, which is removed with
    all files that it leaves there."""
    with temporary_folder() as folder:
        name = f"python -m minidist.{line} --ranks {ranks}"
        return report_in(start([], f"{line} --ranks {ranks} --json -", folder, {}, name), name)


def read_report(ranks: int, line: str, **environment: str) -> Any:
    """The same, from ranks of MPI."""
    with temporary_folder() as folder:
        done = perform(f"{line} --json -", ranks, folder, environment)
    return report_in(done, f"mpirun -n {ranks} python -m minidist.{line}")


def report_in(done: subprocess.CompletedProcess[str], name: str) -> Any:
    """The report that a chapter has printed, whether its claims hold or not. Raises UsageError if there is none."""
    try:
        return json.loads(done.stdout)
    except ValueError:
        *_, last = ["no report", *filter(None, done.stderr.splitlines())]
        raise UsageError(f"{name}: {last}") from None


def perform(
    line: str, ranks: int, folder: Path, environment: Mapping[str, str], of_mpirun: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a chapter's line on ranks of MPI, with options of mpirun's. Raises UsageError if it does not end."""
    words = [*mpiexec_for(ranks), *of_mpirun]
    return start(words, line, folder, environment, f"mpirun -n {ranks} python -m minidist.{line}")


def start(
    words: Sequence[str], line: str, folder: Path, environment: Mapping[str, str], name: str
) -> subprocess.CompletedProcess[str]:
    """Run a chapter's line in a folder, after some words. Raises UsageError if it does not end."""
    try:
        return processes.run(
            [*words, sys.executable, "-m", *shlex.split(f"minidist.{line}")],
            cwd=folder,
            env={**os.environ, **OPEN_MPI_AS_ROOT, **environment},
            timeout=TIMEOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{name}: not done after {TIMEOUT:g} s") from None
