"""What launchers say in the environment of a rank, and that one module reads it."""

import re
from pathlib import Path

import pytest

from minidist import UsageError
from minidist.mpi import environment

ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"\b(?:PMI_RANK|PMI_SIZE|PMIX_RANK|PMIX_SIZE|OMPI_COMM_WORLD_\w+|MPI_LOCAL\w+|SLURM_\w+)")

SRUN = {"SLURM_STEP_NUM_TASKS": "11", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}
LAUNCHERS = {
    "MPICH": {"PMI_RANK": "5", "PMI_SIZE": "11", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
    "MPICH in a job of Slurm": {"PMI_RANK": "5", "PMI_SIZE": "11", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
    | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "11", "PMIX_RANK": "5"}
    | {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
    "srun --mpi=pmi2": {"PMI_RANK": "5", "PMI_SIZE": "11", **SRUN},
    "srun --mpi=pmix": {"PMIX_RANK": "5", **SRUN},
}
NO_JOB = {"none": {}, "a batch job's script": SRUN | {"SLURM_PROCID": "0"}, "an empty variable": {"PMI_RANK": ""}}


def asked(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> tuple[int | None, int, int, int]:
    for name in filter(VARIABLE.fullmatch, [*environment.os.environ]):
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return environment.rank(), environment.ranks(), environment.local_rank(), environment.local_ranks()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_is_understood(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, LAUNCHERS[launcher]) == (5, 11, 1, 4)


@pytest.mark.parametrize("place", NO_JOB)
def test_a_process_that_no_launcher_has_started(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, NO_JOB[place]) == (None, 0, 0, 1)


@pytest.mark.parametrize("tasks", ["", "4", "4(x", "many", "3,"])
def test_what_slurm_should_not_say(tasks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = LAUNCHERS["srun --mpi=pmix"] | {"SLURM_STEP_TASKS_PER_NODE": tasks}
    assert asked(monkeypatch, variables) == (5, 11, 1, 1)


@pytest.mark.parametrize("name", ["PMI_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"])
def test_no_number_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=f"{name} is 'zz'"):
        asked(monkeypatch, {name: "zz"})


def test_one_module_reads_what_launchers_say() -> None:
    files = [*ROOT.glob("minidist/**/*.py"), *ROOT.glob("lessons/**/*.py")]
    reading = [str(file.relative_to(ROOT)) for file in files if VARIABLE.search(file.read_text())]
    assert reading == ["minidist/mpi/environment.py"]
