"""What the doctor says: names of an MPI, and the commands that mend a setup, as you would type them here.

It keeps to the syntax of Python 3.8.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

from minidist import how_to_make


def is_open_mpi(text: str) -> bool | None:
    """Whether a version text is Open MPI's (True), MPICH's or a relative's (False); None if it names neither."""
    if "Open MPI" in text:
        return True
    return False if re.search(r"MPICH|HYDRA|Intel\(R\) MPI", text) else None


def mpi_name(text: str) -> str:
    """Name and version of an MPI, from what its library or its mpirun says of itself."""
    for name, version in (("Open MPI", r"Open MPI\)? v?([\w.]+)"), ("MPICH", r"(?:MPICH|details:)\s+Version:\s+(\S+)")):
        match = re.search(version, text)
        if match:
            return f"{name} {match.group(1)}"
    return text.strip().split("\n")[0] or "of unknown make"


def pip_install(*packages: str) -> str:
    """The command that installs the packages for this Python."""
    in_environment = sys.prefix != sys.base_prefix
    if not in_environment and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists():
        return how_to_make("setup")  # the system's Python takes no packages from pip: minidist needs an environment
    return f"{short(sys.executable)} -m pip install {' '.join(packages)}"


def activate() -> str:
    """The command after which this shell finds the programs of this Python's environment."""
    script = Path(sys.executable).with_name("activate")
    return f"source {short(str(script))}" if script.exists() else f"export PATH={shlex.quote(str(script.parent))}:$PATH"


def short(path: str) -> str:
    """The path as you would type it here."""
    with suppress(FileNotFoundError):  # the working directory has been deleted
        here = os.path.join(os.getcwd(), "")
        path = path[len(here) :] if path.startswith(here) else path
    return shlex.quote(path)


def last_line(output: str) -> str:
    """The last line that has words in it: where Python puts its message."""
    lines = [line.strip() for line in output.splitlines() if re.search(r"\w", line)]
    return lines[-1] if lines else "it says nothing"
