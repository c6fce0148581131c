"""The bytes and messages that Comm counts, against what the MPI library itself counted.

Open MPI can write down, for every rank, what its point-to-point layer sent to whom: a count that no line of this
project has touched. MPICH has nothing like it, so this runs where mpirun is Open MPI's.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.engines import ENGINES

MPIRUN = shutil.which("mpirun", path=f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}")
RANKS = 3


def is_open_mpi() -> bool:
    return (
        MPIRUN is not None
        and "Open MPI" in subprocess.run([MPIRUN, "--version"], capture_output=True, text=True).stdout
    )


@pytest.mark.skipif(not is_open_mpi(), reason="only Open MPI counts what it sends; mpirun is another MPI's")
@pytest.mark.parametrize("engine", ENGINES)
def test_the_library_counted_the_same(engine: str, tmp_path: Path) -> None:
    folder = Path(__file__).parents[1]
    monitoring = {"enable": "2", "enable_output": "3", "filename": str(tmp_path / "monitor")}
    options = [word for key, value in monitoring.items() for word in ("--mca", f"pml_monitoring_{key}", value)]
    program = [sys.executable, "-m", "jobs.audited", engine, str(tmp_path)]
    path = os.pathsep.join([str(folder), str(folder.parent)])
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    subprocess.run(
        [str(MPIRUN), "--oversubscribe", "-n", str(RANKS), *options, *program],
        env={**os.environ, **allowed, "PYTHONPATH": path},
        check=True,
        timeout=120,
    )
    for rank in range(RANKS):
        # A line of the application's own messages: E, sender, receiver, "948408 bytes", "57 msgs sent", sizes.
        lines = (tmp_path / f"monitor.{rank}.prof").read_text().splitlines()
        external = [line.split("\t") for line in lines if line.startswith("E")]
        seen = {peer: [int(sent.split()[0]), int(messages.split()[0])] for _, _, peer, sent, messages, *_ in external}
        assert seen == json.loads((tmp_path / str(rank)).read_text())
