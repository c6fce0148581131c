"""ZeRO-R: wherever checkpoints wait and however small the buffer, losses are those of the same grid without."""

import itertools
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from jobs import zero_rs as jobs
from jobs.zero_rs import Case
from minidist import command
from minidist.claims.described import described
from minidist.exchange.one_process import run_ranks
from minidist.formulas.residual import needs
from minidist.memory.pool import NEEDED
from minidist.mpi.comm import Comm
from minidist.programs.chapter import find
from minidist.programs.zero_r import PLACES
from minidist.zr import configurations
from programs import run_chapter
from ranks import launch

RANKS = 4
GRIDS = [
    (zero, tp, sequence, accumulate, dropout)
    for zero, (tp, sequence), accumulate, dropout in itertools.product(
        range(4), ((1, False), (2, False), (2, True)), (1, 3), (0.0, 0.1)
    )
]
WAYS = [(where, bucket, False) for where, bucket in itertools.product(PLACES, (None, 100))]
WAYS += [("device", 7, True), ("host", 10**6, True)]
ELSEWHERE = [
    Case(*grid, "mixed", *way)
    for (i, grid), (j, way) in itertools.product(enumerate(GRIDS), enumerate(WAYS))
    if (i + i // 6 + j) % 2 == 0
    and not (grid[2] and way[0] == "partitioned")  # half of them: each way in every grid's kin
]
EXACT = [
    Case(*grid, "fp64", *way)
    for i, (grid, way) in enumerate(itertools.product(GRIDS, WAYS))
    if i % 5 == 0 and not (grid[2] and way[0] == "partitioned")
]


def plain(case: Case) -> Case:
    """The same grid; each checkpoint stays where it was made, and each unit's gradient is summed by itself."""
    return Case(*case[:6])


def test_checkpoints_are_a_store() -> None:
    """Whatever a tape may ask of one: what passes, too, and where the inputs wait of what runs again within."""

    def ask(comm: Comm) -> tuple[bool, Any]:
        case = Case(2, 1, False, 1, 0.0, "fp64", "host", None, False)
        engine = jobs.engine_of(comm, case)
        assert engine.checkpoints
        passing = engine.checkpoints.as_workspace(np.ones(3))
        return engine.host.has(passing), engine.checkpoints.checkpoints

    assert run_ranks(ask, 1) == [(True, None)]


# One case of 19 in every run: 19 has no common divisor with the number of ways. Of EXACT one of 11: so every
# place for activations comes, every bucket, and scattering.
STEPS = pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.slow)])


def exact(every: int) -> list[Case]:
    return EXACT[:: min(every, 11)]


@cache
def on_ranks(every: int) -> dict[Case, Any]:
    """All cases in one job."""
    elsewhere = ELSEWHERE[::every]
    cases = [*dict.fromkeys([*elsewhere, *exact(every), *map(plain, elsewhere)])]
    found = launch("jobs.zero_rs:train_all", RANKS, cases, timeout=2000 / every).values[0]
    return dict(zip(cases, found, strict=True))


@STEPS
def test_every_loss_and_every_state_is_the_same_to_the_last_bit(every: int) -> None:
    """A checkpoint that is cut, moved and put together again is the one that stayed; and in a buffer each element is
    summed in the same order."""
    for case in ELSEWHERE[::every]:
        found, truth = on_ranks(every)[case], on_ranks(every)[plain(case)]
        np.testing.assert_array_equal(found["losses"], truth["losses"], err_msg=str(case))
        assert found["states"] == truth["states"], case


@cache
def serial(accumulate: int, dropout: float) -> list[float]:
    return jobs.serial(Case(0, 1, False, accumulate, dropout, "fp64"))


@STEPS
def test_losses_are_those_of_serial_training(every: int) -> None:
    for case in exact(every):
        truth = serial(case.accumulate, case.dropout)
        np.testing.assert_allclose(on_ranks(every)[case]["losses"], truth, rtol=1e-12, atol=0, err_msg=str(case))


@STEPS
def test_each_checkpoint_goes_down_and_up_once(every: int) -> None:
    """Two layers' in each of a step's micro-batches; rows are 12 in a step, shared by the data axis."""
    for case in ELSEWHERE[::every]:
        moved = on_ranks(every)[case]["moved"]
        rows = jobs.BATCH // (RANKS // case.tp)
        nbytes = 2 * jobs.STEPS * jobs.LAYERS * rows * jobs.CONTEXT * 20 // case.tp
        once = {"checkpoints": {"bytes": nbytes, "moves": jobs.STEPS * jobs.LAYERS * case.accumulate}}
        assert moved == ({"device to host": once, "host to device": once} if case.activations == "host" else {}), case


# ---- the command line ------------------------------------------------------------------------------------------------


SMALL = "--steps 2 --layers 3 --width 24 --heads 4 --context 8 --batch 8 --witness"
LINES = [
    f"--tp {tp} --zero {zero} {more}"
    for (tp, zero), more in zip(
        itertools.product((1, 2, 4), range(4)),
        itertools.cycle(
            (
                "--activations host --accumulate 2",
                "--dropout 0.1 --bucket-size 100 --precision mixed",
                "--activations device --sequence-parallel --precision fp32",
                "--untied --scattered --precision fp64",
                "--model llama --kv-heads 4 --bucket-size 1",
                "--activations host --sequence-parallel --scattered",
                "--activations device --bucket-size 1000000000",
            )
        ),
        strict=False,
    )
]


# Each way of tensor parallelism, each place for activations, dropout, buckets of 100; the other stages are in the cases
# above, Llama and buckets of 1, which are thousands of messages, in the slow ones.
IN_EVERY_RUN = [LINES[i] for i in (1, 7, 9)]


@cache
def reports(every_run: bool) -> dict[str, Any]:
    with_json = [f"zero_r {SMALL} {line}" for line in LINES if (line in IN_EVERY_RUN) == every_run]
    with TemporaryDirectory() as folder:
        return launch("jobs.chapters:command_lines", RANKS, with_json, folder, timeout=300).values[0]


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[pytest.mark.slow] * (line not in IN_EVERY_RUN)) for line in LINES]
)
def test_every_claim_holds_and_everything_is_named(line: str) -> None:
    report = reports(line in IN_EVERY_RUN)[f"zero_r {SMALL} {line}"]
    assert report["status"] == 0, [claim for claim in report["claims"] if not claim["holds"]]
    assert "agrees with NumPy" in [claim["claim"] for claim in report["claims"]]
    assert all(rank["witness"]["unnamed"] == {} for rank in report["counted"])
    job = prepared(f"{SMALL} {line}".replace("--witness", ""))
    promised = [rank.total for rank in needs(described("zero_r", job, job.layout, job.vocabulary))]
    assert [held[NEEDED] for held in report["memory"]] == promised  # the formulas know the fullest moment to the byte


FRAGMENTED = (
    "zero_r --tp 1 --activations device --precision fp32 --zero 3 --width 128 --context 32 --batch 8 --layers 2"
    " --steps 2 --device-memory 3.2MB"
)


@pytest.mark.slow
def test_a_run_fails_with_a_third_of_its_memory_free_and_trains_with_one_room(tmp_path: Path) -> None:
    pieces, room = tmp_path / "pieces.svg", tmp_path / "room.svg"
    scattered = run_chapter(f"{FRAGMENTED} --scattered --arena-plot {pieces}", 8, timeout=150)
    assert scattered.returncode == 1
    said = scattered.stderr.strip().splitlines()[0]
    assert said.startswith("minidist: error: rank ")
    assert " do not fit into a hole of the device, though " in said
    free = int(said.partition("are free (")[2].partition("%")[0])
    assert free > 30
    together = run_chapter(f"{FRAGMENTED} --arena-plot {room}", 8, timeout=150)
    assert (together.returncode, together.stderr.count("error")) == (0, 0)
    assert "out of memory" in pieces.read_text()
    assert "out of memory" not in room.read_text()
    assert "<!-- block0 backward -->" in room.read_text()


@pytest.mark.slow
def test_the_largest_models_are_those_of_the_formulas(tmp_path: Path) -> None:
    """Each of C1 to C5 trains as many layers as fit by the formulas, and one more does not; P_a, P_os+g and the host
    each make room for more."""
    report, bars = tmp_path / "report.json", tmp_path / "bars.svg"
    line = f"zero_r --configurations {bars} --width 16 --context 16 --batch 32 --device-memory 400KB --json {report}"
    done = run_chapter(line, 4, timeout=150)
    assert (done.returncode, done.stderr) == (0, "")
    found = {row["name"]: row["layers"] for row in json.loads(report.read_text())["configurations"]}
    assert list(found) == ["C1", "C2", "C3", "C4", "C5"]
    assert found["C1"] < found["C2"] < found["C4"] < found["C5"]
    assert found["C1"] < found["C3"] < found["C4"]
    assert all(row["layers"] == row["promised"] for row in json.loads(report.read_text())["configurations"])
    assert all(f"<!-- {name} -->" in bars.read_text() for name in found)


def prepared(line: str) -> command.Job:
    job: command.Job = find("zero_r").job(line.split(), RANKS)
    return job


@pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
def test_bisection(most: int) -> None:
    for truth in range(most + 1):
        asked: list[int] = []

        def works(n: int, asked: list[int] = asked, truth: int = truth) -> bool:
            asked.append(n)
            return n <= truth

        assert configurations.find_largest(works, most) == truth
        assert len(asked) == len(set(asked)) <= 2 * most.bit_length() + 1
        assert all(1 <= n <= most for n in asked)
