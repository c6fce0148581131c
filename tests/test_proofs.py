"""A run proves its numbers; and a proof that fails says why. Every case: test_lines.py, test_doors.py."""

import gc
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alone import train_alone
from cases import TRAINING, status_of
from jobs import proofs as jobs
from minidist import ring
from minidist.checkpoints.pieces import Piece, whole_piece
from minidist.claims import proof
from minidist.claims.described import described
from minidist.claims.proof import Proof, Size, Taken, proof_claims
from minidist.data_parallel import DataParallel
from minidist.exchange.by_rules import run_by_rules
from minidist.exchange.one_process import run_ranks
from minidist.exchange.rules import Rules
from minidist.formulas.asked import Asked
from minidist.layout import Layout
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.programs.chapter import find
from minidist.text import data
from tables import table

USUAL = "--steps 6 --layers 2 --width 16 --heads 4 --context 16 --batch 16 --prove"


@pytest.fixture(autouse=True)
def one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", cache(data.load))


def on_threads(n: int, line: str) -> Any:
    return run_by_rules(partial(jobs.prove_all, lines=[line]), n, Rules("synchronous", "contrary"))[0][line]


def check(found: dict[str, Any]) -> None:
    assert found["differs"] == {}
    assert not found["left out"]
    assert found["agree"].keys() >= {"losses", "parameters"}
    assert all(count == agree > 0 for count, agree in found["agree"].values())


# ---- what it says ----------------------------------------------------------------------------------------------------

SMALL_ZERO = "--steps 2 --layers 1 --width 12 --heads 2 --context 8 --batch 8 --prove"


@pytest.mark.parametrize(("factor", "says"), table(__file__, "a_difference_names_parameter_and_factor"))
def test_a_difference_names_parameter_and_factor(factor: float, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    summed = DataParallel.summed

    def scaled(self: Any, comm: Any, gradient: Any) -> Any:
        total = summed(self, comm, gradient)
        total *= factor
        return total

    monkeypatch.setattr(DataParallel, "summed", scaled)
    found = on_threads(4, f"data_parallel {SMALL_ZERO}")
    assert found["differs"]["parameters"].startswith(f"gradient of wte.weight: {says}")
    assert found["agree"]["parameters"] == (16, 0)
    assert found["differs"]["norms"].startswith("from step 2 on" if factor < 0 else "step 1: ")


def test_a_gradient_that_differs_is_named_before_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a wrong update all parameters differ, and none of them by a factor."""
    reduce = DataParallel.reduce

    def twice(self: Any, flat: Any) -> None:
        reduce(self, flat)
        if flat.name == "block0":
            flat.grad *= 2

    monkeypatch.setattr(DataParallel, "reduce", twice)
    found = on_threads(2, f"data_parallel {SMALL_ZERO}")
    assert found["agree"]["parameters"] == (16, 0)
    assert found["differs"]["parameters"].startswith("gradient of block0.qkv.weight: 2 times as large: ")
    assert found["differs"]["losses"] == "from step 2 on"


def test_one_rank_with_another_copy_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    refresh = DataParallel.refresh

    def once(self: Any, flat: Any) -> None:
        if self.comm.rank == 2 and self.updates == 1 and flat.name == "head":
            flat.master[3] += 1e-6
        refresh(self, flat)

    monkeypatch.setattr(DataParallel, "refresh", once)
    found = on_threads(4, f"data_parallel {SMALL_ZERO}")
    assert found["agree"] == {"losses": (2, 2), "norms": (2, 2), "parameters": (16, 15)}
    assert found["differs"]["parameters"].startswith("head.norm.weight: differs by ")


def test_pieces_are_laid_over_the_truth() -> None:
    """Of copies the worst stays, also if it is not a number; what no rank holds is not covered."""
    truth, covered = np.arange(6.0), np.zeros(6, bool)
    found = truth.copy()
    for start, held in ((0, [0.0, 1.5, 2.0]), (0, [0.0, 1.0, 2.0]), (2, [np.nan, 3.0]), (2, [2.0, 3.0])):
        piece = Piece((6,), 0, ((0, 6),), start, start + len(held))
        proof.lay_over(found, covered, truth, piece, np.array(held))
    np.testing.assert_array_equal(found, [0, 1.5, np.nan, 3, 4, 5])
    np.testing.assert_array_equal(covered, [True] * 4 + [False] * 2)


def test_what_no_rank_holds_differs() -> None:
    size, whole = Size(1, 1, 2, 3), whole_piece((4,))
    alone = Taken([1.0], [2.0], {"a": [(whole, np.ones(4))]})
    part = Taken([1.0], [2.0], {"a": [(whole._replace(stop=3), np.ones(3))]})
    made = proof.compare(size, iter([part]), alone, Layout(), one_norm=True)
    assert made.differs == {"parameters": "a: no rank holds all of it"}
    assert made.agree == {"losses": (1, 1), "norms": (1, 1), "parameters": (1, 0)}


def test_the_first_loss_of_the_run_is_as_close_as_its_precision_allows() -> None:
    made = Proof(Size(2, 1, 2, 3), first=4.0)
    for precision, off in proof.FIRST_LOSS.items():
        for factor, holds in ((1 + off / 2, True), (1 + 2 * off, False), (1 - 2 * off, False), (np.nan, False)):
            [claim] = proof_claims(made, [4.0 * factor], precision)
            assert claim.holds == holds, (precision, factor)
            assert claim.expected == 4.0
            np.testing.assert_equal(claim.counted, 4.0 * factor)  # the run's own, whether or not it holds


# ---- when there is none ----------------------------------------------------------------------------------------------


def asked(line: str, ranks: int) -> Any:
    name, *options = line.split()
    job = find(name).job(options, ranks)
    return job, described(name, job, job.layout, job.vocabulary)


@pytest.mark.parametrize(("line", "ranks", "why"), table(__file__, "what_is_left_out"))
def test_what_is_left_out(line: str, ranks: int, why: str) -> None:
    job, of = asked(line, ranks)
    assert proof.why_left_out(of, size_of(of, job)) == why


def size_of(of: Asked, job: Any) -> Size:
    serial = find(of.chapter).serial(job)
    return proof.size_of(of, serial.steps, serial.micro_batches, serial.shorter)


@pytest.mark.parametrize("name", [name for name, chapter in TRAINING.items() if chapter.pooled])
def test_default_runs_are_proved(name: str) -> None:
    job, of = asked(name, 4)
    assert proof.why_left_out(of, size_of(of, job)) == ""


def lines_of(capsys: pytest.CaptureFixture[str], options: str, ranks: int = 2) -> list[str]:
    """The lines about a proof that a whole run prints."""

    assert status_of(f"zero1 {SMALL_ZERO.removesuffix('--prove')} {options}", ranks) == 0
    return [line for line in capsys.readouterr().out.splitlines() if "proved" in line or "proof" in line]


def test_on_the_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = lines_of(capsys, "")
    assert found[0] == "proved          2 steps of 3 x 7 characters, in float64 and in one process"
    assert [line.split()[3] for line in found[1:]] == ["losses", "norms", "parameters", "first"]
    assert all(line.endswith("✓") for line in found[1:])
    assert lines_of(capsys, "--no-prove") == []
    assert lines_of(capsys, "--steps 0 --prove") == []
    monkeypatch.setattr(proof, "MOST_RANKS", 1)
    assert lines_of(capsys, "") == ["not proved      2 ranks are more than 1: use --prove"]
    assert len(lines_of(capsys, "--prove")) == 5


def test_its_pools_have_no_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    """The run fits into 80 KB of each device. The states of its proof, in float64, take 78 of them."""
    assert len(lines_of(capsys, "--device-memory 80KB")) == 5


# ---- and that nothing else changes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("line", table(__file__, "its_memory_is_gone"))
def test_its_memory_is_gone(line: str) -> None:
    """Without a collection of cycles: there are none."""
    gc.collect()
    gc.disable()
    try:
        left = run_ranks(partial(jobs.left_behind, line=f"{line} {USUAL}"), 4)
    finally:
        gc.enable()
    assert left == [[{}] * len(left[0])] * 4


def test_weights_that_are_not_finite_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks stop there; then the run itself ends in one line."""
    initial = Flat.initial
    monkeypatch.setattr(Flat, "initial", lambda flat, seed: initial(flat, seed) * np.inf)
    with np.errstate(all="ignore"):
        found = on_threads(2, f"zero1 {SMALL_ZERO}")
    assert found == {"differs": {}, "agree": {}, "left out": "the gradient of step 0 is not finite: lower --lr"}


def test_a_loaded_checkpoint(tmp_path: Path) -> None:
    """It goes on from the same state as one process that has loaded the same file."""
    file, options = tmp_path / "model.safetensors", "--layers 2 --width 12 --heads 2 --context 8 --batch 8"
    assert train_alone(*f"--steps 3 {options} --export {file}".split()) == 0
    for line in ("zero3", "offload --delayed-update 0", "pipeline", "parameter_server --precision fp32"):
        check(on_threads(2, f"{line} --steps 9 {options} --load {file} --prove"))


def test_phases_inside_a_closed_one_have_its_name() -> None:
    def be_rank(comm: Comm) -> dict[str, Any]:
        with comm.phase("outside", closed=True), comm.phase("inside"):
            ring.all_reduce(comm, np.ones(2))
        with comm.phase("after"):
            ring.all_reduce(comm, np.ones(2))
        return comm.ledger.by_phase()

    assert run_ranks(be_rank, 2)[0].keys() == {"outside", "after"}
