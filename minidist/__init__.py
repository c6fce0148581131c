"""minidist: the book on distributed training that runs.

Importing the package loads no MPI, no NumPy and no plotting: `python -m minidist` lists the chapters.
"""

import os
import sys
from contextlib import suppress
from typing import Any

__version__ = "0.1.0"

# One BLAS thread a rank: ranks are the parallelism here, and N ranks that each start a thread for every core fight one
# another for the cores. It must be set before NumPy loads its BLAS; a value that the user has set stays.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")


class UsageError(Exception):
    """Bad input: shown to the user as one line, exit status 2, before any work has started."""


class Stopped(Exception):
    """Work that cannot go on, for a reason that the user can mend: shown as one line, on whichever rank it happens, and
    the whole job ends with exit status 1."""


class Finished(Exception):
    """All that was asked for is this text (--help): shown once, exit status 0."""


def how_to_install(*extras: str) -> str:
    """The command that installs what a part needs: from the clone that this is, or by name where there is none."""
    clone = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    source = clone if os.path.isfile(os.path.join(clone, "pyproject.toml")) else "minidist"
    with suppress(FileNotFoundError):  # the working directory has been deleted
        source = "." if source == os.getcwd() else source
    return f"pip install '{source}[{','.join(extras)}]'"


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext minidist` in a notebook: cells that begin with `%%mpirun -n 4` then run on four ranks."""
    from minidist.classroom import notebook

    notebook.load(shell)


def __getattr__(name: str) -> Any:
    """`minidist.initialize` is `minidist.deepspeed.initialize`, which loads NumPy when it is asked for."""
    if name == "initialize":
        from minidist.deepspeed import initialize

        return initialize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _module_to_run() -> str:
    """While Python looks for what `python -m` names: that name. Else "". Python 3.8 does not tell, and must get as far
    as the doctor."""
    if os.path.basename((sys.argv or [""])[0]) == "minidist":  # the command that pip installs
        return "minidist"
    looks = sys.argv[:1] == ["-m"]
    return str(sys.orig_argv[-len(sys.argv)]).removeprefix("-m") if looks and hasattr(sys, "orig_argv") else ""


def _begin(module: str) -> None:
    from minidist.cli import start

    start.begin(module)


# Of `python -m minidist.zero3` Python imports the package first and zero3.py next, whose first lines import NumPy: this
# is the only place from which a NumPy that is missing, or Ctrl-C meanwhile, can be one line. To any other program that
# imports the package, a notebook or a test, nothing is done.
if _module_to_run().split(".")[0] == "minidist":
    _begin(_module_to_run())
