"""`python -m minidist papers`: what papers print, by formula and on ranks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minidist import UsageError
from minidist.claims import counted, declared, divided, fewer, papers, reports, staged
from minidist.data_parallel import DataParallel
from minidist.fsdp import FSDP
from minidist.papers import compression, llama3, zero
from sampling import shard_of_this_run


def test_every_paper_with_figures_is_listed_and_all_numbers_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert papers.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    known = papers.library()
    found = [line.split() for line in lines if line.split() and not line.startswith(" ")]
    rows = {row[0]: row[-5:] for row in found if row[0] in known and row[-1].isdigit()}
    assert rows.keys() == known.keys()
    [total] = [line.split() for line in lines if len(line.split()) == 5 and line.replace(" ", "").isdigit()]
    assert total == [str(sum(int(row[i]) for row in rows.values())) for i in range(5)]
    assert rows["zero"][0] == str(len(zero.FIGURES))
    assert max(map(len, lines)) <= 80


def test_a_paper_is_shown_figure_by_figure_and_why_it_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert papers.main(["--paper", "llama3"]) == 0
    out = capsys.readouterr().out
    [row] = [line for line in out.splitlines() if "faulty GPU" in line]
    assert row.split()[-8:-3] == ["GPU", "30.1", "%", "35.3", "(2)"]
    assert "(2) 148 of 419 is 35.3 %" in out


def test_where_a_number_was_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert papers.main(["--paper", "compression"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Read in the paper: 1-bit Adam §1, DGC table 3, DGC §3.3, DGC, abstract." in said
    assert "Read where others quote the paper: PowerSGD table 3." in said


def test_a_number_that_does_not_come_out_is_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [replace(llama3.FIGURES[0], printed="8,193"), *llama3.FIGURES[1:]]
    monkeypatch.setattr(llama3, "FIGURES", wrong)
    assert papers.main(["--paper", "llama3"]) == 1
    monkeypatch.setattr(llama3, "FIGURES", [replace(wrong[0], differs="a misprint"), *wrong[1:]])
    assert papers.main(["--paper", "llama3"]) == 0


def test_ranks_count_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On few ranks; `python -m minidist papers --run` takes the papers' own numbers of them, to 64."""
    monkeypatch.setattr(counted, "JOBS", [counted.zero_on(4, 2), counted.SHARDED, staged.zero_bubble_on(8)])
    file = tmp_path / "figures.json"
    assert papers.main(["--run", "--json", str(file)]) == 0
    rows = [row for row in json.loads(file.read_text())["figures"] if row["counted"] is not None]
    assert len(rows) == 3 + 1 + 18
    assert all(row["agrees"] for row in rows)
    assert [row["printed"] for row in rows if row["paper"] == "zero"] == ["41.3", "704", "5500"]


def test_a_job_without_a_line_shows_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(counted, "JOBS", [counted.models()])
    papers.count([*papers.library().values()])
    assert {*capsys.readouterr().out.splitlines()} == {"models, as they are declared"}


def test_a_program_that_holds_more_does_not_give_the_figure() -> None:
    """Stage 1's report, read as stage 2's: whole gradients."""
    stage_1, stage_2 = counted.zero_on(4, 1), counted.zero_on(4, 2)
    for figure, value in counted.run(stage_2._replace(line=stage_1.line)):
        assert not figure.agrees(value)


def test_every_job_gives_figures_that_are_declared_and_no_figure_comes_twice() -> None:
    given = [id(figure) for job in counted.JOBS for figure, _ in job.gives]
    assert len(given) == len(set(given))
    assert set(given) <= {id(figure) for paper in papers.library().values() for figure in paper.figures}
    assert sum(len(job.gives) for job in counted.JOBS if job.ranks <= counted.MOST) >= 250


def find(schedule: str) -> declared.Job:
    """The job of 8 stages by this schedule."""
    [job] = [job for job in staged.folded() if job.ranks == 8 and f"--schedule {schedule} " in job.line]
    return job


ONE_LAYER = "--steps 1 --validate 0 --width 16 --heads 4 --layers 1 --batch 8"
OTHERS = {  # what is counted on other ranks: a job, the line of another program, and cells that it does not give
    "stage 1 is not 3": (counted.zero_on(64, 3), counted.zero_on(64, 1).line, ["reduction", "more communication"]),
    "parameters on the host": (
        counted.offloaded(), f"offload --zero 3 --parameters host --batch 1 {counted.SMALL}", ["moved in a step"],
    ),
    "one group": (counted.hybrid(), f"fsdp --batch 16 {counted.SMALL}", ["groups", "other hosts"]),
    "every 10th of 20 steps": (
        counted.seldom(), f"local_sgd --every 10 --steps 20 --batch 8 {counted.TINY}", ["communication"],
    ),
    "keys each time": (counted.cached_keys(), counted.cached_keys().line.replace("cached", "list"), ["keys"]),
    "no copy": (counted.master_copy(), counted.master_copy().line.replace("mixed", "fp32"), ["master copy"]),
    "two moments": (
        counted.gpipes(), counted.gpipes().line.replace("sgd", "adamw"), ["Transformer-3, its", "Transformer-13, its"],
    ),
    "reduce-scatter": (
        divided.divided_layers()[0], divided.divided_layers()[1].line,
        ["operations", "parallel, all-reduces", "parallelism, a layer"],
    ),
    "all-reduce": (divided.divided_layers()[1], divided.divided_layers()[0].line, ["all-gathers", "reduce-scatters"]),
    "nothing is recomputed": (
        divided.checkpoints_on(16)[0],
        divided.checkpoints_on(16)[0].line.replace("zero_r --tp 16 --zero 0", "tensor_parallel"),
        ["a block", "P_a"],
    ),
    "an epoch behind": (fewer.warming(3), fewer.warming(2).line, ["warm-up, epoch 3"]),
    "signs that are two bits": (
        fewer.one_bit(), fewer.one_bit().line.replace("--width 64", "--width 2"), ["compressed stage"],
    ),
    "hosts of 4": (
        fewer.between_hosts(), fewer.between_hosts().line.replace("host 8", "host 4"),
        ["backward reduce-scatter", "ZeRO++, together", "all-to-all of all"],
    ),
    "matrices that are whole": (fewer.moonlight(), fewer.moonlight().line.replace("elements", "matrices"), ["at most"]),
    "any host": (
        divided.routed(), divided.routed().line.replace(" --host-limit 4", ""), ["nodes of a token", "cost of 8"],
    ),
    "a whole sequence on each rank": (
        divided.longer_on(8), f"data_parallel {ONE_LAYER} --context 16", ["3B", "7B", "13B"],
    ),
    "all forwards first": (
        find("zb-h1"), staged.pipeline_on(8, "gpipe").line, ["ZB1P, p = 8, bubble", "ZB1P, p = 8, activations"],
    ),
    "a straight pipeline": (
        find("zb-v"), staged.pipeline_on(8, "1f1b").line, ["communication", "bubble"],
    ),
    "one copy": (
        find("dualpipe"), staged.pipeline_on(8, "1f1b").line, ["bubble", "activations", "parameters"],
    ),
    "a flush": (staged.compared("pipedream"), staged.compared("1f1b").line, ["weights, most"]),
    "one version": (staged.compared("2bw"), staged.compared("1f1b").line, ["weights"]),
    "all in flight": (staged.compared("1f1b"), staged.compared("gpipe").line, ["activations, least"]),
    "one direction": (staged.compared("chimera"), staged.compared("1f1b").line, ["weights", "activations, least"]),
    "one at a time": (staged.compared("gpipe"), staged.compared("gpipe").line.replace("gpipe", "naive"), ["bubble"]),
}  # fmt: skip


SOME = shard_of_this_run([*OTHERS], 8)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SOME)) for name in OTHERS])
def test_another_program_does_not_give_the_figure(name: str) -> None:
    """Its own program does (unless the paper disagrees with itself); what else holds, sends or idles does not."""
    job, line, cells = OTHERS[name]
    for figure, value in counted.run(job):
        assert figure.agrees(value) != bool(figure.differs), figure.cell
    of_another = dict.fromkeys(cells, 0)
    for figure, value in counted.run(job._replace(line=line)):
        for cell in cells:
            if figure.cell.endswith(cell) or cell in figure.cell:
                assert not figure.agrees(value), figure.cell
                of_another[cell] += 1
    assert all(of_another.values())


def test_a_column_more_gives_no_number_of_the_table() -> None:
    """PowerSGD's table 3, with P and Q of rank 3 in place of 2."""
    less = fewer.resnet_sent(None) / fewer.resnet_sent(3)
    assert not any(figure.agrees(less) for figure in compression.LESS.values())


def test_a_layer_that_keeps_a_quarter_more_gives_no_number_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    job, kept = divided.divided_layers()[2], divided.kept
    assert all(figure.agrees(value) for figure, value in counted.run(job))
    monkeypatch.setattr(divided, "kept", lambda ranks, options: 1.25 * kept(ranks, options))
    assert not any(figure.agrees(value) for figure, value in counted.run(job))


def test_a_layer_that_is_not_divided_gives_no_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 3 of FSDP: 15 parameters on 16 ranks are one for each; a rank that holds all of them has 15."""
    [(figure, value)] = [(figure, read(None)) for figure, read in counted.hybrid().gives if "linear" in figure.cell]
    assert figure.agrees(value)
    monkeypatch.setattr(FSDP, "allocate", DataParallel.allocate)
    [again] = [read(None) for figure, read in counted.hybrid().gives if "linear" in figure.cell]
    assert again > value


def test_models_as_they_are_declared_have_the_printed_sizes() -> None:
    """And one that forgets its last norm has not."""
    counts = counted.run(counted.models())
    assert len(counts) == 25
    assert all(figure.agrees(value) for figure, value in counts)
    small, value = counts[0]
    assert small.agrees(124_439_808)
    assert not small.agrees(value - 2 * 768)


def test_what_does_not_need_many_ranks_agrees() -> None:
    """A paper that contradicts itself is not made to agree: 8 times less than 16 bytes are 2, where 4 is printed."""
    for job in (counted.on_one_gpu(), counted.offloaded(), divided.recomputed(), counted.gpipes()):
        for figure, value in counted.run(job):
            assert figure.agrees(value) != bool(figure.differs), figure.cell
    [(_, held), (_, less), (_, moved)] = counted.run(counted.offloaded())
    assert (held, less, moved) == (2, 8, 4)


@pytest.mark.parametrize(("stage", "expected"), [(1, 4 + 12 / 48), (2, 2 + 14 / 48), (3, 16 / 48)])
def test_padding_counts_as_parameters(stage: int, expected: float) -> None:
    """48 ranks cannot divide the units evenly, and still each holds what table 1 says, to the last byte."""
    job = counted.zero_on(64, stage)._replace(ranks=48)
    report = reports.count_here(48, job.line.replace("--width 64", "--width 16"))
    assert counted.elements(report) > report["parameters"]
    assert counted.each(report) == expected


@pytest.mark.parametrize("n", [pytest.param(n, marks=pytest.mark.slow) for n in (256, 1024)])
def test_table_1_on_as_many_ranks(n: int) -> None:
    for stage in (1, 2, 3):
        assert all(figure.agrees(value) for figure, value in counted.run(counted.zero_on(n, stage)))


def test_more_than_256_ranks_are_started_only_if_all_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def run(job: counted.Job) -> list[tuple[Any, float]]:
        started.append(job.ranks)
        return []

    monkeypatch.setattr(counted, "run", run)
    for words, most in ((["--run"], 256), (["--run", "all"], 1024)):
        started.clear()
        assert papers.main(["--paper", "zero", *words]) == 0
        assert max(started) == most


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--paper", "zerro"], "invalid choice: 'zerro'"),
        (["--json", "/nowhere/figures.json"], "there is no folder /nowhere"),
        (["zero"], "unrecognized arguments: zero"),
    ],
)
def test_bad_input_is_one_line(line: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        papers.main(line)


def test_a_chapter_that_fails_is_one_line() -> None:
    job = counted.Job(1, "zero1 --layers 0", [])
    words = r"python -m minidist.zero1 --layers 0 --no-prove --timeout 0 --ranks 1: minidist: error: .*layers"
    with pytest.raises(UsageError, match=words):
        counted.run(job)
