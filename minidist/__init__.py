"""minidist: the book on distributed training that runs.

Importing the package loads no MPI, no NumPy and no plotting: `python -m minidist` lists the chapters.
"""

import os
import signal
import sys
from contextlib import suppress
from typing import Any

__version__ = "0.1.0"

# One BLAS thread a rank: ranks are the parallelism here, and N ranks that each start a thread for every core fight one
# another for the cores. It must be set before NumPy loads its BLAS; a value that the user has set stays.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")


def _say_what_is_missing(kind: Any, error: Any, trace: Any) -> None:
    """A program that finds no NumPy, no mpi4py, no MPI, or no memory for them, is one line, however many ranks it has,
    and status 2."""
    unmapped = ("failed to map segment", "annot allocate memory")
    if issubclass(kind, MemoryError) or (
        issubclass(kind, ImportError) and any(text in str(error) for text in unmapped)
    ):
        _refuse("no memory is left to begin with: give it more")
    if isinstance(error, ModuleNotFoundError) and error.name in ("numpy", "rich", "safetensors", "mpi4py"):
        what = f"{error.name} is not installed for {sys.executable}"
        mend = "run make setup, then source .venv/bin/activate; or see what python -m minidist doctor says"
    elif issubclass(kind, (ImportError, RuntimeError)) and ("load MPI library" in str(error) or "libmpi" in str(error)):
        what, mend = "mpi4py finds no MPI library", "python -m minidist doctor says how to mend it"
    else:
        sys.__excepthook__(kind, error, trace)
        return
    if (os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0") == "0":
        sys.stderr.write(f"minidist: error: {what}: {mend}\n")
    sys.exit(2)


def _refuse(why: str) -> None:
    from minidist.mpi import early

    early.end_job(f"minidist: error: {why}", 2)


LEAST = 200_000_000  # bytes of addresses: with less, BLAS and MPI end a process in words of their own


def _check_memory() -> None:
    """Of what ulimit -v leaves to a process."""
    import resource

    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY and allowed < LEAST:
        _refuse(f"ulimit -v allows {allowed / 1e6:.0f} MB of memory; at least {LEAST / 1e6:.0f} MB are needed")


def _leave(*_: Any) -> None:
    """Ctrl-C before a program has started: one line, and of a job under mpirun the end."""
    from minidist.mpi import early

    early.end_job("minidist: interrupted", early.INTERRUPTED)


# Until a program has started that minds Ctrl-C itself, its way out is at once: not a traceback of half an import. Of
# whoever merely imports the package, notebooks and tests, the signals are theirs.
_words = getattr(sys, "orig_argv", [])  # the doctor must be reachable from a Python that has none
_by_name = os.path.basename((getattr(sys, "argv", None) or [""])[0]) == "minidist"  # the command that pip installs
_as_module = any(flag == "-m" and name.split(".")[0] == "minidist" for flag, name in zip(_words, _words[1:]))  # noqa: B905, RUF007
if _by_name or _as_module:
    signal.signal(signal.SIGINT, _leave)
    sys.excepthook = _say_what_is_missing
    if not _by_name and "minidist" not in _words:  # the table of contents, and the doctor
        _check_memory()


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
