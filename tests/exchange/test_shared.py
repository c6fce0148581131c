"""What a process has one of, its ranks share: it is kept apart, or refused."""

import contextvars
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidist.exchange.one_process import run_ranks
from minidist.mapreduce import run
from minidist.mpi.comm import Comm
from minidist.mr import peers
from minidist.mr.disk import Disk
from minidist.mr.files import JobError
from minidist.mr.plan import Plan, TaskName, TaskResult
from minidist.nn.product import flops, product
from programs import run_module

ROOT = Path(__file__).parents[2]


def test_each_rank_counts_its_own_flops() -> None:
    """Rank 1 begins to count and ends it while rank 0 counts; a block may count within another."""
    a = np.ones((2, 3))

    def be_rank(comm: Comm) -> list[int]:
        with flops() as outer:
            product(a, a.T)
            comm.barrier()
            with flops() as inner:
                for _ in range(comm.rank):
                    product(a, a.T)
                    comm.sendrecv(a, comm.rank, np.empty_like(a), comm.rank)
                comm.barrier()
        product(a, a.T)  # after its own block, while others are in theirs
        comm.barrier()
        return [outer.count, inner.count]

    once = 2 * 2 * 3 * 2
    assert run_ranks(be_rank, 4) == [[(1 + rank) * once, rank * once] for rank in range(4)]


def test_each_rank_has_its_own_settings_of_numpy_and_context_variables() -> None:
    """They begin as the caller's are, and leave the caller's as they were."""
    mine: contextvars.ContextVar[int] = contextvars.ContextVar("mine", default=-1)
    mine.set(-2)

    def be_rank(comm: Comm) -> tuple[Any, ...]:
        found = [np.geterr()["over"], mine.get()]
        over: Any = ["warn", "ignore", "raise"][comm.rank % 3]
        mine.set(comm.rank)
        with np.errstate(over=over):
            for _ in range(3):
                comm.barrier()
                found += [np.geterr()["over"] == over, mine.get() == comm.rank]
        comm.barrier()
        return (*found, np.geterr()["over"])

    with np.errstate(over="print"):
        assert run_ranks(be_rank, 6) == [("print", -2, *[True] * 6, "print")] * 6
        assert np.geterr()["over"] == "print"
    assert mine.get() == -2


def test_who_may_not_call_exit_while_others_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 is the first to begin and the first to end: the last to end puts back what was there."""
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    before = os._exit

    def be_rank(comm: Comm) -> None:
        with peers.forbid_exit():
            comm.barrier()
            with pytest.raises(JobError, match=rf"be_rank called os\._exit\({comm.rank}\)"):
                os._exit(comm.rank)
            if comm.rank == 1:
                comm.recv(np.empty(1), 0)
        if comm.rank == 0:  # rank 1 is still inside
            os._exit(7)
            comm.send(np.zeros(1), 1)

    run_ranks(be_rank, 2)
    assert left == [7]
    assert os._exit is before


class Lines:
    """A job that is one object for all ranks of a process, as one that a module holds is."""

    counters: Counter[str]

    def map(self, document: str, line: str) -> Iterator[tuple[str, str]]:
        self.counters["lines"] += 1
        yield line, "1"

    def reduce(self, key: str, values: Iterator[str]) -> Iterator[str]:
        for _ in values:
            self.counters["values"] += 1
        yield key


def test_each_task_counts_for_itself_in_a_job_that_ranks_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "BREATH", -1.0)  # a worker looks for messages after every record
    (tmp_path / "text").write_text("".join(f"{i % 7}\n" for i in range(200)))
    job = Lines()

    noted: dict[TaskName, TaskResult] = {}

    class Notes(Disk):
        def note(self, path: Path, task: TaskName, result: TaskResult) -> None:
            noted[task] = result
            super().note(path, task, result)

    def be_rank(comm: Comm) -> None:
        run(comm, Plan(job, [str(tmp_path / "text")], tmp_path / "out", maps=6, reducers=3, backup=False), Notes)

    run_ranks(be_rank, 4)
    assert len(noted) == 9
    for (kind, _), result in noted.items():
        name, number = {"map": ("lines", "records"), "reduce": ("values", "pairs reduced")}[kind]
        assert result.counters == Counter({name: result.stats[number]})


@pytest.mark.parametrize("name", ["zero3", "tensor_parallel"])
def test_what_counts_a_process_s_memory_is_refused(name: str, tmp_path: Path) -> None:
    done = run_module(f"minidist.{name} --steps 1 --witness --ranks 2", cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("minidist: error: --witness counts what a process holds")


def test_what_counts_a_process_s_files_is_refused(tmp_path: Path) -> None:
    line = f"minidist.mapreduce sort README.md --output {tmp_path / 'out'} --ranks 2"
    done = run_module(line, cwd=ROOT, env={"MINIDIST_AUDIT_FILES": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "MINIDIST_AUDIT_FILES" in done.stderr
