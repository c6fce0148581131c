"""Context parallelism against serial training, on ranks as threads and over MPI; what it sends, computes and keeps."""

import io
import itertools
import json
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alone import train_alone
from closeness import check_close, check_equal, norm
from jobs import context_parallels as jobs
from minidist import UsageError
from minidist.context_parallel import context_parallel
from minidist.engine import Engine
from minidist.exchange.by_rules import run_by_rules
from minidist.exchange.one_process import run_ranks
from minidist.exchange.rules import Rules
from minidist.layout import Layout
from minidist.mpi.comm import Comm
from minidist.papers import context
from minidist.programs.chapter import find
from ranks import launch
from tables import table

SCHEMES, POSITIONS, MODELS = ("ring", "all-gather", "ulysses"), ("contiguous", "zigzag", "striped"), ("gpt", "llama")


@cache
def serial(name: str, length: int, *settings: Any) -> dict[str, Any]:
    return jobs.train(Engine(jobs.model(name, length, *settings[3:]), jobs.settings(*settings)), length)


def check(case: list[Any], ranks: list[dict[str, Any]]) -> None:
    """fp64: losses, norms, gradients and parameters are those of serial training."""
    name, length, *_ = case
    found = {**ranks[0], "losses": np.sum([rank["losses"] for rank in ranks], axis=0)}
    check_equal(found, serial(name, length, *case[6:]), "norms", size=norm)


@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_equals_serial_training(scheme: str, name: str, n: int) -> None:
    """On ranks whose messages wait for their receiver and arrive late: every way to cut odd contexts, which no number
    of ranks divides, with ZeRO's stages in turn."""
    if scheme == "ulysses" and n > jobs.HEADS[name]:
        pytest.skip("fewer key/value heads than ranks")
    for i, positions in enumerate(POSITIONS):
        case = [name, (11, 13)[(i + n) % 2], scheme, positions, (i + n) % 4, n, "fp64"]
        check(case, run_by_rules(partial(jobs.on_ranks, case=case), n, Rules("synchronous", "contrary")))


@pytest.mark.slow
@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_equals_serial_training_in_every_combination(scheme: str, name: str, n: int) -> None:
    """On 1 to 8 ranks, each way to cut an odd context, each of ZeRO's stages, and FSDP."""
    if scheme == "ulysses" and n > jobs.HEADS[name]:
        pytest.skip("fewer key/value heads than ranks")
    for positions, zero in itertools.product(POSITIONS, (0, 1, 2, 3, "fsdp")):
        case = [name, (11, 13)[n % 2], scheme, positions, zero, n, "fp64"]
        check(case, run_by_rules(partial(jobs.on_ranks, case=case), n, Rules("synchronous", "contrary")))


SEVERAL = table(__file__, "several")


@pytest.mark.parametrize("case", SEVERAL, ids=lambda case: " ".join(map(str, case)))
def test_equals_serial_training_with_all_else(case: list[Any]) -> None:
    check(case, run_by_rules(lambda comm: jobs.on_ranks(comm, case), 4, Rules("eager", "contrary")))


OVER_MPI = [
    *([name, 13, scheme, "zigzag", 3, 4, "fp64"] for name in MODELS for scheme in SCHEMES),
    ["gpt", 13, "ring", "striped", 0, 2, "mixed"],
    ["llama", 13, "all-gather", "zigzag", 2, 4, "mixed"],
    ["gpt", 13, "ulysses", "contiguous", 1, 4, "mixed"],
]


def test_over_mpi() -> None:
    """In one job: exactly serial training in float64, and close to it where two bytes travel."""
    results = launch("jobs.context_parallels:train_all", 4, OVER_MPI, timeout=120).values[0]
    for case in OVER_MPI:
        truth = serial(case[0], case[1], case[6])
        if case[6] == "fp64":
            check_equal(results[repr(case)], truth, "norms", size=norm)
        else:
            check_close(results[repr(case)], truth)


# ---- what is sent, computed and kept ---------------------------------------------------------------------------------


def step(comm: Comm, name: str, length: int, scheme: str, positions: str = "zigzag") -> dict[str, Any]:
    """One step of one rank: what it sent by phase, and held."""
    engine = context_parallel(
        jobs.model(name, length), jobs.settings("fp64"), comm, Layout(cp=comm.size), scheme, positions
    )
    tokens = np.random.default_rng(0).integers(0, jobs.VOCABULARY, (1, length + 1))
    comm.ledger.reset()
    engine.train_batch(tokens[:, :-1], tokens[:, 1:])
    sent = {phase: entry["bytes"] for phase, entry in comm.ledger.by_phase().items() if phase[-9:] != "gradients"}
    return {"sent": sent, "memory": engine.memory(), "kept": engine.layer_activations}


@pytest.mark.parametrize(
    ("n", "name", "scheme"),
    [
        (2, "gpt", "ring"),
        (16, "llama", "ring"),
        pytest.param(64, "gpt", "ring", marks=pytest.mark.slow),
        (16, "gpt", "all-gather"),
        (4, "llama", "ulysses"),
        (8, "gpt", "ulysses"),
    ],
)
def test_bytes_are_those_of_the_papers(n: int, name: str, scheme: str) -> None:
    """Two layers, one sequence, four positions on each of up to 64 ranks."""
    s, (h, g) = 4 * n, (24, 1.0) if name == "gpt" else (32, 0.5)
    ranks = run_ranks(lambda comm: step(comm, name, s, scheme), n)
    keys, result = 8 * 2 * 2 * g * s * h * (n - 1) / n, 8 * 2 * s * h * (n - 1) / n**2
    for rank in ranks:
        sent = rank["sent"]
        if scheme == "ulysses":
            assert sent == {
                "all-to-all before, forward": (1 + 2 * g) * result,
                "all-to-all after, forward": result,
                "all-to-all after, backward": result,
                "all-to-all before, backward": (1 + 2 * g) * result,
            }
            assert sum(sent.values()) / 2 == keys * context.ulysses_over_ring(n, g)
        else:
            phases = "keys and values forward", "keys and values backward", "gradients of keys and values"
            assert sent == dict.fromkeys(phases, keys)


def test_memory_depends_on_the_positions_of_a_rank_not_on_the_sequence() -> None:
    """Four positions on each rank: what layers keep and what travels stays, while the sequence grows."""
    found = {n: run_ranks(lambda comm: step(comm, "gpt", 4 * comm.size, "ring"), n) for n in (2, 4, 8)}
    kept, blocks = ({n: {get(rank) for rank in ranks} for n, ranks in found.items()} for get in (
        lambda rank: rank["kept"], lambda rank: rank["memory"]["messages"]))  # fmt: skip
    assert len(set.union(*kept.values())) == len(set.union(*blocks.values())) == 1
    gathered = {n: run_ranks(lambda comm: step(comm, "gpt", 4 * comm.size, "all-gather"), n)[0] for n in (2, 4)}
    assert gathered[4]["memory"]["messages"] == 2 * gathered[2]["memory"]["messages"]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_pairs_by_the_closed_formulas(n: int) -> None:
    c = 32
    s = n * c
    contiguous, zigzag, striped = (context.pairs(s, n, how) for how in POSITIONS)
    assert max(map(sum, contiguous)) == context.slowest_contiguous(c, n)
    assert {sum(rank) for rank in zigzag} == {s * (s + 1) // 2 // n}
    assert len({tuple(rank[1:]) for rank in zigzag}) == 1  # at every step, too
    assert max(map(sum, striped)) == n * c * (c + 1) // 2
    mean = s * (s + 1) / 2 / n
    assert mean / context.end(contiguous, 1) == pytest.approx(context.efficiency_contiguous(c, n))
    assert context.end(zigzag, 3) == 3 * mean
    for of in (contiguous, zigzag, striped):
        assert sum(map(sum, of)) == s * (s + 1) // 2


def test_published_efficiencies_lie_around_the_formula() -> None:
    """ring-flash-attention on 8 GPUs: within 2 points of 8/15."""
    measured = [float(figure.printed) for figure in context.MEASURED if figure.cell.endswith("ring")]
    limit = 100 * context.efficiency_contiguous(1e9, 8)
    assert limit == pytest.approx(100 * 8 / 15)
    assert len(measured) == 4
    assert all(abs(percent - limit) < 2 for percent in measured)


# ---- command lines ---------------------------------------------------------------------------------------------------

ODD = "--steps 2 --layers 3 --width 24 --heads 6 --batch 6"
EVEN = "--steps 2 --layers 4 --width 24 --heads 4 --batch 6 --precision fp64"
LINES = [
    f"context_parallel --context 13 --precision fp64 {ODD}",
    f"context_parallel --context 13 --positions striped --zero 1 --model llama --kv-heads 3 --recompute full"
    f" --accumulate 3 {ODD}",
    f"context_parallel --context 7 --scheme ulysses --precision fp32 --recompute every:2 {ODD}",
    f"context_parallel --context 9 --cp 2 --scheme all-gather --zero 2 --accumulate 2 --recompute selective {ODD}",
    f"context_parallel --context 11 --cp 2 --positions contiguous --zero 3 --recompute sqrt --precision fp32 {ODD}"
    " --sample 20",
    f"context_parallel --context 4 --dropout 0.1 {ODD}",
    f"context_parallel --context 5 --cp 1 --scheme all-gather {ODD} --sample 20",
]
GRIDS = {  # each meets the model's options in serial training
    f"context_parallel --sample 40 {EVEN}": "--context 13",
    f"context_parallel --cp 2 --scheme ulysses --zero 3 --sample 40 {EVEN}": "--context 13 --model llama --kv-heads 2",
    f"parallel3d --cp 2 --tp 2 {EVEN}": "--context 13",
    f"parallel3d --cp 2 --pp 1 --tp 2 --zero 2 --sequence-parallel --scheme ulysses --recompute full {EVEN}":
        "--context 16 --dropout 0.1",
    f"parallel3d --cp 2 --pp 2 --tp 1 --zero 3 --scheme all-gather --positions striped --sample 40 {EVEN}":
        "--context 13 --model llama --kv-heads 2",
    f"parallel3d --cp 4 --pp 1 --tp 1 --zero 0 --recompute selective --accumulate 2 {EVEN}":
        "--context 9 --dropout 0.1 --accumulate 2",
    f"parallel3d --cp 2 --pp 2 --tp 1 --schedule zb-h1 -m 3 --recompute log --positions contiguous {EVEN}":
        "--context 9",
    f"parallel3d --cp 2 --pp 1 --tp 1 --zero 3 --shard 1 {EVEN}": "--context 9",
    f"fsdp --cp 2 --forward-prefetch {EVEN}": "--context 13 --dropout 0.1",
}  # fmt: skip
LATER = {
    f"parallel3d --dp 1 --cp 2 --pp 2 --tp 1 --schedule dualpipe -m 4 {EVEN} --batch 8": "--context 9 --batch 8",
    f"parallel3d --dp 1 --cp 2 --pp 2 --tp 1 --schedule zb-v -m 3 --zero 2 {EVEN}": "--context 13",
    f"fsdp --cp 4 --untied --scheme all-gather --recompute full --accumulate 2 --no-sync {EVEN}":
        "--context 9 --untied",
    f"fsdp --cp 2 --strategy hybrid_shard --scheme ulysses {EVEN}": "--context 13 --model llama --kv-heads 2",
    f"fsdp --cp 2 --strategy shard_grad_op {EVEN}": "--context 13",
}  # fmt: skip


@cache
def alone(options: str, folder: Path) -> tuple[list[float], str]:
    """Losses of serial training, and what the trained model writes."""
    report = folder / "alone.json"
    with redirect_stdout(io.StringIO()) as printed:
        assert train_alone(*EVEN.split(), *options.split(), "--sample", "40", "--json", str(report)) == 0
    found = json.loads(report.read_text())
    return [*found["loss"], found["validation_loss"]], sample_in(printed.getvalue())


def sample_in(printed: str) -> str:
    return printed.partition("The model writes:\n")[2]


@pytest.mark.parametrize(("odd", "grids"), [(LINES, GRIDS), pytest.param([], LATER, marks=pytest.mark.slow)])
def test_claims_hold_where_nothing_divides_and_grids_equal_serial_training(
    odd: list[str], grids: dict[str, str], tmp_path: Path
) -> None:
    """In one job: the chapter's claims at odd sizes; and the context axis together with all others. Rank 0 alone
    prints, also what the model writes."""
    lines = {f"{line} {options}": options for line, options in grids.items()}
    first, *others = launch("jobs.chapters:command_lines", 4, [*odd, *lines], str(tmp_path), timeout=300).values
    for line, report in first.items():
        fallen = [claim for claim in report["claims"] if not claim["holds"]]
        assert (report["status"], fallen) == (0, []), line
        if line in lines:
            found = [*report["loss"], report["validation_loss"]]
            losses, written = alone(lines[line], tmp_path)
            np.testing.assert_allclose(found, losses, rtol=1e-12, atol=0, err_msg=line)
            if "--sample" in line:
                assert len(written) == 41, written
                assert sample_in(report["printed"]).startswith(written), line  # a pipeline draws its schedule below
        assert [rank[line]["printed"] for rank in others] == ["", "", ""], line


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--cp 3", "--cp 3 does not divide 4 ranks: use --cp 2"),
        ("--context 3", "--context 3 has no position for each of 4 ranks: use --context 4"),
        ("--scheme ulysses --model llama --kv-heads 2", "there are 2, for 4 ranks: use --cp 2 or --scheme ring"),
    ],
)
def test_what_cannot_work_is_one_line(line: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        find("context_parallel").job(line.split(), 4)
    assert says in str(refused.value)
