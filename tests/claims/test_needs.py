"""What a run is said to need before it begins, beside what its ranks held: exactly, wherever there are formulas."""

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from cases import unnamed
from minidist import command, train
from minidist.claims import needs
from minidist.claims.described import described
from minidist.exchange.one_process import run_ranks
from minidist.formulas.needs import Needs
from minidist.memory.pool import NEEDED
from minidist.mpi.comm import Comm
from minidist.programs.chapter import Chapter, find, find_all
from ranks import launch
from tables import table

POLICIES = ("none", "selective", "full", "every:2", "sqrt", "log")
KINDS = {kind: kind for kind in ("parameters", "gradients", "optimizer", "activations", "ends")} | {
    "passing": "transient"
}
SHAPE = "--layers 5 --width 16 --heads 4 --context 32 --batch 13"
BESIDE, LADDER, ON_FOUR, CUT, STAGED = (
    table(__file__, name) for name in ("beside", "ladder", "on_four", "cut", "staged")
)
ELSEWHERE = ("zero_r",)  # test_zero_r.py
# Chapters with an estimate that are in none of these tables, by their first case.
NEW = [
    (n, [line])
    for n, line in unnamed([*LADDER, *ON_FOUR, *CUT, *STAGED, *ELSEWHERE])
    if getattr(find(line.split()[0]), "needs", None)
]


def lines(chapters: list[str], every: int) -> Iterator[str]:
    """Each chapter with every policy, or with one of them, the next with another."""
    for i, (chapter, policy) in enumerate(itertools.product(chapters, POLICIES)):
        if (i // len(POLICIES) + i) % every == 0:
            name, *more = chapter.split()
            yield " ".join([name, SHAPE, *more, "--recompute", policy, BESIDE[(i + i // len(POLICIES)) % len(BESIDE)]])


SOME = pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])


def job_of(line: str, ranks: int) -> command.Job:
    """As the chapter's command line makes it."""
    name, *options = line.split()
    job: command.Job = find(name).job(options, ranks)
    return job


def held(line: str, ranks: int) -> list[dict[str, int]]:
    """What each rank has held at most, of each kind, in two steps."""

    def be_rank(comm: Comm) -> dict[str, int]:
        job = job_of(line, ranks)
        chapter = find(line.split()[0])
        job.reserved = chapter.reserve(job, comm)
        driver = chapter.make(job, comm)
        with getattr(driver.engine, "folder", nullcontext()):
            for step in range(2):
                train.train_step(driver, job, step)
        return driver.engine.peak_bytes()

    return run_ranks(be_rank, ranks)


def estimated(line: str, ranks: int) -> list[Needs]:
    """What formulas say, from the command line alone."""
    chapter, job = line.split()[0], job_of(line, ranks)
    formula = find(chapter).needs
    assert formula
    return formula(described(chapter, job, job.layout, job.vocabulary))


@SOME
@pytest.mark.parametrize(("n", "chapters"), [(2, LADDER), (3, LADDER[:4]), (4, ON_FOUR), *NEW])
def test_what_is_needed_is_what_is_held(n: int, chapters: list[str], every: int) -> None:
    """To the byte, of each kind and at the fullest moment: data parallelism, ZeRO and tensor parallelism, under every
    policy, in all precisions."""
    for line in lines(chapters, every):
        for rank, (need, found) in enumerate(zip(estimated(line, n), held(line, n), strict=True)):
            assert need.kinds == {kind: found[KINDS[kind]] for kind in need.kinds}, (line, rank)
            assert need.total == found[NEEDED], (line, rank)
            assert need.kinds.keys() == KINDS.keys()


@SOME
def test_with_context_ranks_blocks_on_their_way_are_not_in_it(every: int) -> None:
    """Each kind to the byte; the most at a time is less than what is needed by no more than blocks take."""
    for line in lines(CUT, every):
        for rank, (need, found) in enumerate(zip(estimated(line, 4), held(line, 4), strict=True)):
            assert need.kinds == {kind: found[KINDS[kind]] for kind in need.kinds}, (line, rank)
            assert need.total <= found[NEEDED] <= need.total + found["messages"], (line, rank)
            assert need.without == ["keys and values on their way"]


@SOME
def test_of_a_pipeline_what_lies_between_stages_is_not_in_it(every: int) -> None:
    """Each kind to the byte; the most at a time is less than what is needed by no more than messages take."""
    for line in lines(STAGED, every):
        for rank, (need, found) in enumerate(zip(estimated(line, 4), held(line, 4), strict=True)):
            assert need.kinds == {kind: found[KINDS[kind]] for kind in need.kinds}, (line, rank)
            assert need.total <= found[NEEDED] <= need.total + found["messages"], (line, rank)
            assert need.without == ["messages on their way"]


IN_CHUNKS = "interleaved breadth-first llama3 zb-h1 zb-h2 zb-v v-half v-min chimera dualpipe"


@pytest.mark.parametrize("schedule", IN_CHUNKS.split())
def test_what_is_in_flight_in_several_chunks_or_waits_for_w(schedule: str) -> None:
    """Each kind to the byte, by the order of the stage's own work."""
    line = f"pipeline --schedule {schedule} -m 8 --batch 16 --layers 9 --width 16 --heads 4 --context 16"
    for rank, (need, found) in enumerate(zip(estimated(line, 4), held(line, 4), strict=True)):
        assert need.kinds == {kind: found[KINDS[kind]] for kind in need.kinds}, rank
        assert need.without == ["messages on their way"]


@pytest.mark.parametrize("chapter", ["pipeline", "parallel3d --dp 1 --pp 2 --tp 1 --zero 0"])
def test_in_a_cross_a_micro_batch_is_in_one_of_a_rank_s_two_chunks(chapter: str) -> None:
    """Two are in flight on each of Chimera's two stages (its table 2), one in each of its chunks, and a rank has the
    states of both."""
    name, *more = chapter.split()
    line = " ".join([name, *more, "--schedule chimera -m 2 --layers 4 --width 16 --heads 4 --context 32 --batch 12"])
    for need, found in zip(estimated(line, 2), held(line, 2), strict=True):
        assert need.kinds == {kind: found[KINDS[kind]] for kind in need.kinds}


@pytest.mark.parametrize("n", [2, 5])  # five divide neither what persists nor the rest, and each has padding
def test_what_persists_is_needed_beside_a_shard(n: int) -> None:
    line = f"zero3 {SHAPE} --persist 100"
    for need, found in zip(estimated(line, n), held(line, n), strict=True):
        assert need.kinds["parameters"] == found["parameters"] + found["persistent"]
        assert found["persistent"] > 0
        assert all(need.kinds[kind] == found[kind] for kind in ("gradients", "optimizer"))


@pytest.mark.parametrize(("options", "says"), table(__file__, "where_there_is_no_formula_that_is_said"))
def test_where_there_is_no_formula_that_is_said(options: str, says: str) -> None:
    promised = estimated(f"pipeline {SHAPE} --batch 12 {options}", 4)
    words = " ".join(needs.in_words(promised, 10**6).split())
    missing = "messages on their way, " * ("2bw" in options) + says
    assert f"Not included, because there is no formula: {missing}." in words


def test_every_chapter_says_it_before_it_begins(tmp_path: Any) -> None:
    """On rank 0, above everything else; and runs all the same."""
    found = find_all()
    chapters = [name for name in found if name != "train" and isinstance(found[name], Chapter) and found[name].needs]
    shape = "--layers 2 --width 16 --heads 4 --context 8 --batch 4 --steps 1"
    given = [f"{chapter} {shape} --device-memory 1MB" for chapter in chapters]
    for line, report in launch("jobs.chapters:command_lines", 2, given, str(tmp_path), timeout=120).values[0].items():
        assert report["status"] == 0
        most = max(need.total for need in estimated(line, 2))
        words, said = " ".join(report["printed"].split()), f"{most:,.0f}"
        left = f"{10**6 - most:,.0f}"
        assert words.startswith(("Each rank will need, by formula:", "Rank")), line
        assert f"Together at most {said} bytes at a time, of 1,000,000: {left} are left." in words, line


def test_what_does_not_fit() -> None:
    promised = estimated(f"zero2 {SHAPE} --batch 12", 3)
    assert promised[0] == promised[1]
    words = " ".join(needs.in_words(promised, int(promised[0].total) - 1000).split())
    assert words.startswith("Each rank will need, by formula: parameters")
    assert words.endswith("1,000 too many: it will not fit.")
    uneven = " ".join(needs.in_words(estimated(f"zero2 {SHAPE}", 3), 10**9).split())
    assert uneven.startswith("Rank 0, which needs most, will need, by formula:")
