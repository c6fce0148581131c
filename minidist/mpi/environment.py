"""What a launcher says in a process's environment: its rank, and the number of ranks on this machine and in total.

It is known before MPI has started, and even if MPI never starts. The variables are those of MPICH's mpirun, of Open
MPI's, and of Slurm's srun. srun sets PMI_RANK (--mpi=pmi2) or PMIX_RANK (--mpi=pmix). Its own variables are also set
where it has started no ranks (in the script of a batch job, for example). So they count only for a process with a rank.

This module loads no MPI, and keeps to the syntax of Python 3.8, for the doctor.
"""

from __future__ import annotations

import argparse
import os
from typing import Callable, Mapping, TypeVar  # noqa: UP035 (Python 3.8's collections.abc.Mapping takes no [...])

from minidist import UsageError

T = TypeVar("T")

RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
RANKS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
LOCAL_RANK = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")
LOCAL_RANKS = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")

ranks_here = 1  # in this process: `exchange/run.py` sets it
MOST_HERE = 4096  # ranks that a process may have


def rank(variables: Mapping[str, str] = os.environ) -> int | None:
    """The rank of this process, or of one with these variables; None if no launcher has made it a rank."""
    return _first(RANK, variables)


def ranks() -> int:
    """The number of ranks of the job; 0 if no launcher says it."""
    return _first(RANKS) or _of_slurm("SLURM_STEP_NUM_TASKS") or 0


def local_rank() -> int:
    """The place of this process among the ranks of its machine; 0 if no launcher says it."""
    found = _first(LOCAL_RANK)
    return found if found is not None else _of_slurm("SLURM_LOCALID") or 0


def local_ranks() -> int:
    """The number of ranks on this machine, 1 or more. Raises UsageError as `check` does."""
    check()
    return _first(LOCAL_RANKS) or _local_tasks_of_slurm() or ranks_here


def check() -> None:
    """Raise UsageError if a variable of a launcher is not a number."""
    for name in (*RANK, *RANKS, *LOCAL_RANK, *LOCAL_RANKS):
        text = os.environ.get(name)
        if text and not text.isdecimal():
            raise UsageError(f"{name} is {text!r}, and should be a number, as mpirun sets it: unset it")


def option_in(arguments: list[str], name: str, kind: Callable[[str], T]) -> T | None:
    """An option of a command line that its program has not read yet; None if it is not there, or wrong: the program
    will refuse it."""
    made = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    made.add_argument(name, type=kind, dest="found")
    try:
        return made.parse_known_args(arguments)[0].found
    except argparse.ArgumentError:
        return None


def _first(names: tuple[str, ...], variables: Mapping[str, str] = os.environ) -> int | None:
    found = (variables.get(name, "") for name in names)
    return next((int(text) for text in found if text.isdecimal()), None)


def _of_slurm(name: str) -> int | None:
    return _first((name,)) if rank() is not None else None


def _local_tasks_of_slurm() -> int | None:
    """Slurm lists tasks by node, and abbreviates repetitions: 4(x2),3 means 4 on nodes 0 and 1, and 3 on node 2."""
    node = _of_slurm("SLURM_NODEID")
    if node is None:
        return None
    counts: list[int] = []
    for entry in os.environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        count, _, times = entry.rstrip(")").partition("(x")
        if not count.isdecimal() or not (times or "1").isdecimal():
            return None
        counts += [int(count)] * int(times or 1)
    return counts[node] if node < len(counts) else None
