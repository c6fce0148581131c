"""The command lines of pipelines and grids, without MPI: what is refused before the work, and in a moment."""

import os

import pytest

from minidist import UsageError
from minidist.pp.options import divisors
from minidist.programs.chapter import find

CHAPTERS = ("pipeline", "parallel3d")


def refusal(chapter, line, ranks=4):
    """What a chapter says to a command line that cannot work."""
    with pytest.raises(UsageError) as error:
        find(chapter).job(line.split(), ranks)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_trace_overwrites_nothing_else(chapter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("some text " * 1000)
    said = "--trace ./p would overwrite the file of --json: give it one of its own"
    assert refusal(chapter, "--json p --trace ./p") == said
    assert refusal(chapter, "--export ./p --trace p").startswith("--trace p would overwrite the file of --export")
    assert refusal(chapter, "--data text --trace text").startswith("--trace text would overwrite the file of --data")
    assert refusal(chapter, "--trace nowhere/p") == "--trace nowhere/p: there is no folder nowhere"


@pytest.mark.parametrize("chapter", CHAPTERS)
@pytest.mark.parametrize("batch", [999_999_937, 10**9, 735_134_400])  # a prime, usual, one with 1344 divisors
def test_a_batch_beyond_memory_is_refused_in_a_moment(chapter, batch):
    """Whatever numbers of micro-batches there are to choose from."""
    said = refusal(chapter, f"--batch {batch}")
    assert said.startswith("this model, --context and --batch need at least ")
    assert " GB on this machine, which has " in said


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_numbers_that_no_batch_can_have(chapter):
    assert refusal(chapter, "--batch 1000000000000").startswith("argument --batch: must be at most 1000000000")


@pytest.mark.parametrize(("recompute", "gigabytes"), [("none", 26), ("full", 13)])
def test_a_context_whose_scores_are_beyond_memory(recompute, gigabytes, monkeypatch):
    """a·s²·b elements: in 4 layers 2 bytes of each of 4 heads' are kept, or one layer's are there in float32."""
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 5 * 10**9 // 4096}
    monkeypatch.setattr(os, "sysconf", pages.get)
    monkeypatch.setenv("MPI_LOCALNRANKS", "4")
    line = f"--context 20000 --batch 2 --micro-batches 1 --recompute {recompute}"
    said = f"this model, --context and --batch need at least {gigabytes} GB on this machine, which has 5 GB"
    assert refusal("pipeline", line) == said


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_model_that_fits_because_stages_are_on_other_hosts(chapter, monkeypatch):
    """Of 16Ψ = 9.3 GB each of four hosts needs a quarter."""
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 5 * 10**9 // 4096}
    monkeypatch.setattr(os, "sysconf", pages.get)
    line = ["--layers", "46", "--width", "1024", "--pp", "4"]
    monkeypatch.setenv("MPI_LOCALNRANKS", "1")
    assert find(chapter).job(line, 4).model.layers == 46
    monkeypatch.setenv("MPI_LOCALNRANKS", "4")
    assert refusal(chapter, " ".join(line)).startswith("this model, --context and --batch need at least 9 GB")


def test_a_grid_of_more_ranks_than_anybody_has():
    assert refusal("parallel3d", "--dp 1000000000") == "--dp 1000000000 does not make 4 ranks: use --dp 2 --pp 1 --tp 2"
    assert refusal("parallel3d", f"--dp {10**15} --pp {10**15} --tp {10**15}").endswith(
        " does not make 4 ranks: use --dp 2 --pp 1 --tp 2"
    )
    assert "use mpirun -n 8" in refusal("parallel3d", "--dp 8")


@pytest.mark.parametrize("n", [1, 2, 12, 97, 5040])
def test_divisors(n):
    assert divisors(n) == [d for d in range(1, n + 1) if n % d == 0]


@pytest.mark.parametrize("line", ["-p 100000", "-m 100000000", "-p 101 -m 1", "--draw interleaved --chunks 100000000"])
def test_a_drawing_that_nobody_could_read(line):
    chapter = find("pipeline")
    options = chapter.job(["--draw", "1f1b", *line.split()], 1)
    with pytest.raises(UsageError, match="are more than can be drawn: use fewer"):
        chapter.work(None, options)
