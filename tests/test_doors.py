"""The two doors of a chapter, mpirun and `--ranks N` in one process: the same numbers, bit for bit; the same words."""

import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cases import RANKS, every_case
from jobs.beginners import MISTAKES
from minidist.launch import launcher
from minidist.launch.target_function import find_function
from programs import run_module, run_python
from ranks import in_this_process
from sampling import shard_of_this_run

ROOT = Path(__file__).parents[1]
# No formula says when MPI lets go of an array that it sends in the background, as pipelines do. These kinds of memory
# depend on it.
IN_FLIGHT = {"messages", "all", "all but workspace"}
OWN = {"step_ms", "update ms", "waited ms", "looked", "process read", "process written"}  # times, and the kernel's


# Every case of every chapter whose ranks wait for each other.
EVERY = [of for of in every_case("--prove") if not of[1].startswith("parameter_server")]
EVERY += [(3, "parameter_server --steps 2 --layers 1 --width 8 --heads 2 --context 4 --batch 4")]
EVERY += [(n, "ring --size 20003") for n in RANKS]
HERE = shard_of_this_run([of for of in EVERY if of[0] < 8 or of[1].startswith("parallel3d")], 36)


@functools.cache
def by_doors(ranks: int, every: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """What every rank printed and reported, by line: over MPI, and in this process."""
    mine = [line for n, line in EVERY if n == ranks and ((n, line) in HERE) != every]
    job = "jobs.chapters:command_lines"
    over_mpi = launcher.launch("ranks:be_rank", ranks, job, mine, "over-mpi", timeout=600)
    here = in_this_process(find_function(job), ranks, mine, "here")
    return tuple({line: [of[line] for of in done.values] for line in mine} for done in (over_mpi, here))  # type: ignore


@pytest.fixture(autouse=True, scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("doors"))
        for name in ("here", "over-mpi"):
            os.mkdir(name)
        yield


def without_times(value: Any) -> Any:
    """A report, without what is different whenever it is made."""
    if isinstance(value, dict):
        return {key: without_times(of) for key, of in value.items() if key not in OWN}
    if isinstance(value, list):
        return [without_times(of) for of in value]
    return re.sub(r"[\d.]+ m?s\b.*", "", value).replace("over-mpi", "here") if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("ranks", "line"), [pytest.param(*of, marks=[pytest.mark.slow] * (of not in HERE)) for of in EVERY]
)
def test_losses_bytes_messages_claims_and_screens_are_the_same(ranks: int, line: str) -> None:
    over_mpi, here = by_doors(ranks, (ranks, line) not in HERE)
    if line.startswith(("pipeline", "parallel3d")):
        for of in (*over_mpi[line], *here[line]):
            of["memory"] = [{kind: held[kind] for kind in held if kind not in IN_FLIGHT} for held in of["memory"]]
    assert [without_times(of) for of in here[line]] == [without_times(of) for of in over_mpi[line]]
    assert here[line][0]["status"] == 0


# ---- mistakes -------------------------------------------------------------------------------------------------------


def beginners(mistake: str, options: str = "", ranks: int = 0) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "jobs.beginners", mistake, *options.split(), ranks=ranks, timeout=300)


@functools.cache
def said(mistake: str, door: str) -> tuple[int, str]:
    """The exit status of `tests/jobs/beginners.py` with this mistake, and the first rank's words on stderr."""
    done = beginners(mistake, ranks=3) if door == "MPI" else beginners(mistake, "--ranks 3")
    return done.returncode, re.sub(r"rank \d", "rank R", done.stderr)  # of several that fail, any may speak over MPI


# Over MPI ranks wait for ever where one of them has left, and a watchdog says so after a while: in one process at once.
AT_ONCE = ("all receive first", "one never comes", "one leaves a barrier", "one leaves a send")
SAME = [mistake for mistake in MISTAKES if mistake not in AT_ONCE]
IN_EVERY_RUN = shard_of_this_run(SAME, 5)


@pytest.mark.parametrize("mistake", [pytest.param(m, marks=[pytest.mark.slow] * (m not in IN_EVERY_RUN)) for m in SAME])
def test_mistakes_have_the_same_words(mistake: str) -> None:
    here, there = said(mistake, "one process"), said(mistake, "MPI")
    assert here == there
    assert here[0] in (1, 2)
    assert here[1].startswith(("minidist: error: ", "rank "))


@pytest.mark.parametrize("mistake", AT_ONCE)
def test_a_deadlock_is_known_at_once(mistake: str) -> None:
    status, words = said(mistake, "one process")
    assert status == 1
    first, *ranks = words.splitlines()
    assert first.startswith("minidist: error: ")
    assert re.search("every rank waits|rank R has left without", first)
    assert [line[:7] for line in ranks[:3]] == ["rank R:"] * 3


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("computes for ever", r"rank 1 has computed without a message, at beginners\.py:\d+"),
        ("looks for ever", "ranks have looked for messages, and none has come"),
    ],
)
def test_an_endless_loop_ends_after_the_timeout(mistake: str, says: str) -> None:
    done = beginners(mistake, "--ranks 3 --timeout 1")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert re.match(rf"minidist: error: {says}, for 1 s \(as --timeout says; 0: for ever\)$", done.stderr)


def test_an_interrupt_is_one_line() -> None:
    options = "--ranks 3 --steps 3000 --layers 1 --width 8 --heads 1 --context 4 --batch 3"
    command = [sys.executable, "-m", "minidist.zero3", *options.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()  # it trains
        process.send_signal(signal.SIGINT)
        assert (process.stderr.read(), process.wait(60)) == ("minidist: interrupted\n", 130)


def test_the_ranks_of_mpirun_take_no_more() -> None:
    done = run_module("minidist.ring --ranks 2", 2)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "minidist: error: --ranks starts ranks in this process, and mpirun has started some: use one of them\n"
    )


@pytest.mark.parametrize("asked", ["0", "4097", "x", "-1"])
def test_numbers_of_ranks_that_cannot_be(asked: str) -> None:
    done = run_module(f"minidist.ring --ranks {asked}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "argument --ranks: must be" in done.stderr


def test_one_rank_says_how_to_start_more() -> None:
    done = run_module("minidist.ring --size 9")
    assert (done.returncode, done.stderr) == (
        0,
        "One rank. For more: mpirun -n 4 python -m minidist.ring, or --ranks 4\n",
    )
