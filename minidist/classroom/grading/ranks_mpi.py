"""The same over MPI: a rank of a part that is graded with `--wire mpi`. No process stands between the ranks there, so
messages are counted below the student's Comm, on the rank itself and again at the other end."""

import os
from pathlib import Path
from typing import Any

from minidist.classroom.grading import chapter, ranks
from minidist.launch import encode
from minidist.launch.target_function import find_function
from minidist.mpi.comm import Comm
from minidist.mpi.witness import WireWitness, witnessed


def run_cases(comm: Comm, job: dict[str, Any], folder: str) -> dict[str, Any]:
    """The result of `ranks.run_cases`, and what each case sent and received.

    This rank's inputs are in folder/RANK.inputs, which is deleted before any program is loaded. The rank writes its
    progress to folder/RANK.at: a line for each case, and its place in the case.
    """
    inputs = encode.load(Path(folder) / f"{comm.rank}.inputs")
    os.remove(Path(folder) / f"{comm.rank}.inputs")
    progress = open(Path(folder) / f"{comm.rank}.at", "w")  # noqa: SIM115  (for as long as the rank lives)
    seen: list[WireWitness | None] = []

    def watch(group: Comm) -> Comm:
        wired, witness = witnessed(group, job["program"])
        seen.append(witness)
        print("case", file=progress, flush=True)
        return wired

    ranks.note[0] = lambda where: print(where, file=progress, flush=True)
    find_function(job["target"])  # load it before the chapter that it needs is hidden
    chapter.hide(job["hidden"])
    comm.barrier()
    answer = ranks.run_cases(comm, job, inputs, watch)
    of_cases = [(dict(witness.sent), dict(witness.received)) for witness in seen if witness]
    return {**answer, "seen": of_cases}
