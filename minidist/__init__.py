"""minidist: the book on distributed training that runs.

Importing the package loads no MPI, no NumPy and no plotting: `python -m minidist` lists the chapters.
"""

import os
import sys


def _module_to_run() -> str:
    """The module that `python -m` names, while Python looks for it; or "". Python 3.8 does not tell it, but
    must get to the doctor."""
    if os.path.basename((sys.argv or [""])[0]) == "minidist":  # the command that pip installs
        return "minidist"
    looks = sys.argv[:1] == ["-m"]
    return str(sys.orig_argv[-len(sys.argv)]).removeprefix("-m") if looks and hasattr(sys, "orig_argv") else ""


_is_program = _module_to_run().split(".")[0] == "minidist"
if _is_program and sys.platform != "win32":
    # Ctrl-C waits until cli/start.py can turn it into a line: on a busy machine, what is imported before that takes a
    # quarter of a second. `signal` would import more; what it is made of is built in.
    _built_in = __import__("_signal")
    _built_in.pthread_sigmask(_built_in.SIG_BLOCK, [_built_in.SIGINT])

import importlib  # noqa: E402
import shlex  # noqa: E402
from contextlib import suppress  # noqa: E402
from typing import Any  # noqa: E402

__version__ = "0.2.0"
ADDRESS = ""  # of the project's repository; python -m minidist.site --address https://... writes it here and elsewhere

# One BLAS thread per rank: ranks are the parallelism here, and N ranks that each start a thread for every core compete
# for the cores. It must be set before NumPy loads its BLAS; a value that the user has set stays.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")


class UsageError(Exception):
    """Bad input: shown to the user as one line, exit status 2, before any work has started."""


class Stopped(Exception):
    """Work that cannot go on, for a reason that the user can remove: its rank shows one line, and the job ends
    with this exit status."""

    status = 1


class FileFailed(Stopped, OSError):
    """A file could not be read or written in the middle of the work: a disk is full, for example."""

    status = 74  # EX_IOERR of sysexits.h


class EndJob(Exception):
    """The work is done, and all ranks end now with this exit status, also those that would never leave."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Finished(Exception):
    """The user asked only for this text (--help): shown once, exit status 0."""


def find_clone() -> str:
    """The top of the clone that this package is in, "." if it is the working directory; "" if pip has installed it."""
    clone = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not os.path.isfile(os.path.join(clone, "pyproject.toml")):
        return ""
    with suppress(FileNotFoundError):  # the working directory has been deleted
        return "." if clone == os.getcwd() else clone
    return clone


def how_to_install(*extras: str) -> str:
    """The command that installs what a part needs: from this clone, or from the project's address if this is none."""
    clone, wanted = find_clone(), f"[{','.join(extras)}]" * bool(extras)
    source = f" @ git+{ADDRESS}" * bool(ADDRESS and not clone)
    return f"pip install {'--editable ' * bool(clone)}'{clone or 'minidist'}{wanted}{source}'"


def how_to_enter_clone() -> str:
    """The command after which the working directory has lessons and a Makefile: those of this clone. If this is no
    clone, those of the source distribution, which holds the same files."""
    if clone := find_clone():
        return f"cd {shlex.quote(clone)}"
    unpacked = f"minidist-{__version__}"
    return f"tar xf {unpacked}.tar.gz && cd {unpacked}"


def how_to_make(target: str) -> str:
    """The command that makes a target of the Makefile."""
    if find_clone() == ".":
        return f"make {target}"
    source = "" if find_clone() else "  # the release's source distribution"
    return f"{how_to_enter_clone()} && make {target}{source}"


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext minidist` in a notebook: cells that begin with `%%mpirun -n 4` then run on four ranks."""
    from minidist.classroom.notebook import cell as notebook

    notebook.load(shell)


def former_names(module: str) -> Any:
    """A module's `__getattr__`, for the names that it had in the former version: `former.py` has them all."""

    def find(name: str) -> Any:
        if name.startswith("__"):  # Python asks modules for such names
            raise AttributeError(name)
        from minidist.system import former

        return former.attribute(module, name)

    return find


def loaded_later(room: str, **names: str) -> Any:
    """A room's `__getattr__`, for names that are loaded when they are used: each with its module in the room, or with
    "" if it is one."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        module = importlib.import_module(f"{room}.{names[name] or name}")
        return getattr(module, name) if names[name] else module

    return find


__getattr__ = loaded_later("minidist", initialize="deepspeed")  # and NumPy only then


def _begin(module: str) -> None:
    from minidist.cli import start

    start.begin(module)


# For `python -m minidist.zero3` Python first imports the package, then zero3.py, whose first lines import NumPy. Only
# here can a missing NumPy, or Ctrl-C during its import, become a one-line message. Other programs that import the
# package, such as a notebook or a test, are left alone.
if _is_program:
    _begin(_module_to_run())
