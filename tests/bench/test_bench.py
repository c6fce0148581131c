"""The benchmark: what it computes from times, and what it writes. No test looks at how long something takes."""

import json
import platform
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from minidist.bench import __main__ as bench
from minidist.bench import jobs, machine, mapreduce, one_process, results
from minidist.bench.measure import Comparison, alternate, compare, missing_row
from minidist.cli.options import in_one_process
from minidist.memory import plot as memory_plot
from minidist.mpi import shm
from minidist.nn.gpt import GPTConfig

ROW = compare("ring, 65 KiB, 4 ranks", "MPI Allreduce", [2.0, 9.0, 3.0, 8.0], [1.0, 3.0, 2.0, 2.0], 3.0, "ms")


def test_two_functions_are_called_in_turn():
    calls = []
    ours, theirs = alternate(lambda: calls.append("a"), lambda: calls.append("b"), pairs=3, warm_up=2)
    assert calls == ["a", "b"] * 5
    assert (len(ours), len(theirs)) == (3, 3)


def test_a_row_states_the_median_of_the_pairs_ratios_and_their_quartiles():
    assert ROW.ratio == 2.5  # of 2, 3, 1.5 and 4; not the ratio of the medians
    assert ROW.spread == (2.0, 3.0)
    assert ROW.figures == "5500 / 2000 ms"
    assert ROW.reached is True


@pytest.mark.parametrize(
    ("ratio", "target", "reached"), [(1.0, 1.0, True), (1.01, 1.0, False), (None, 1.0, None), (1.0, None, None)]
)
def test_a_target_is_reached_at_or_below_it(ratio, target, reached):
    assert Comparison("a", "b", ratio, None, target).reached is reached


def test_figures_have_three_digits_and_no_exponent():
    assert [Comparison("a", "b", 1, None, None, *pair, "ms").figures for pair in ((0.0204, 0.016), (1234.5, 12))] == [
        "0.0204 / 0.016 ms",
        "1230 / 12 ms",
    ]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Comparison:
    """A benchmark of two sections that takes no time, on 80 columns; the row that is missing."""
    missing = missing_row("data_parallel, 2 ranks, fp32", "PyTorch FSDP2, gloo", 0.9, one_process.MISSING)
    monkeypatch.setattr(bench, "SECTIONS", {"one": lambda: iter([ROW]), "two": lambda: iter([missing])})
    monkeypatch.setenv("COLUMNS", "80")
    return missing


def bench_with(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    return in_one_process(bench.main)


def test_what_is_printed_and_written(measured, tmp_path, monkeypatch, capsys):
    assert bench_with(monkeypatch, "--json", str(tmp_path / "rows.json")) == 0
    printed = capsys.readouterr().out
    assert "2.50  2.00-3.00     ≤ 3" in printed
    assert "no PyTorch here" in printed
    assert "…" not in printed
    assert max(len(line) for line in printed.splitlines() if " written to " not in line) <= 80
    written = json.loads((tmp_path / "rows.json").read_text())
    assert set(written["machine"]) == {
        *("processor", "cores", "caches", "system", "python", "numpy", "blas", "threads", "mpi", "others", "malloc")
    }
    assert written["machine"]["numpy"] == np.__version__
    usual = {"ratio": 2.5, "spread": [2.0, 3.0], "target": 3.0, "ours": 5500.0, "theirs": 2000.0, "unit": "ms"}
    missing = {**dict.fromkeys(usual), "target": 0.9, "unit": ""}
    assert written["rows"] == [
        {"name": ROW.name, "beside": ROW.beside, **usual, "reached": True},
        {"name": measured.name, "beside": measured.beside, **missing, "reached": None},
    ]


# ---- the machine -----------------------------------------------------------------------------------------------------


def test_a_processor_that_does_not_name_its_model(monkeypatch):
    monkeypatch.setattr(machine.Path, "read_text", lambda self: "processor\t: 0\nCPU implementer\t: 0x41\n")
    assert machine.processor() in (platform.processor(), platform.machine())


def test_caches_are_those_that_the_system_lists(tmp_path):
    for i, (level, size) in enumerate((("1", "48K"), ("2", "2048K"), ("3", "33000K"))):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}/level").write_text(level + "\n")
        (tmp_path / f"index{i}/size").write_text(size + "\n")
    assert machine.caches(tmp_path) == {"L2": "2 MiB", "L3": "33000 KiB"}
    assert machine.caches(tmp_path / "nothing") is None


def test_the_machine_is_named_in_lines_of_80_columns():
    here = machine.describe({"M_MMAP_THRESHOLD": 32 << 20})
    for known in (here, here | {"caches": None, "mpi": None, "others": dict.fromkeys(here["others"])}):
        lines = machine.lines(known)
        assert lines[0].startswith(machine.name_of(known))
        assert max(map(len, lines)) <= 80
    assert "M_MMAP_THRESHOLD 32 MiB" in machine.lines(here)[-1]


# ---- results of several machines -------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """The files of a clone to write to."""
    for name in ("RESULTS", "README"):
        copy = tmp_path / getattr(results, name).name
        copy.write_bytes(getattr(results, name).read_bytes())
        monkeypatch.setattr(results, name, copy)
    return tmp_path


def test_the_table_in_the_readme_is_what_the_file_gives():
    readme = results.README.read_text(encoding="utf-8")
    assert results.table(results.read()) in readme
    assert results.replace_table(readme, "what", results.table(results.read())) == readme


def entry_of(described: machine.Machine) -> results.Entry:
    """The entry of a machine."""
    name = machine.name_of(described)
    (found,) = [entry for entry in results.read() if machine.name_of(entry["machine"]) == name]
    return found


def test_rows_are_kept_under_their_machine_and_in_the_readme(measured, clone, monkeypatch, capsys):
    before = results.read()
    assert bench_with(monkeypatch, "--keep") == 0
    here = entry_of(machine.describe({}))
    assert [entry for entry in results.read() if entry != here] == [
        entry for entry in before if machine.name_of(entry["machine"]) != machine.name_of(here["machine"])
    ]
    assert [row["beside"] for row in here["sections"]["one"]["rows"]] == [ROW.beside]
    assert here["sections"]["two"]["rows"] == []  # nothing was measured
    readme = results.README.read_text(encoding="utf-8")
    assert f"| {ROW.name} | {ROW.beside} | ≤ 3 |" in readme
    assert "2.50 (5500 / 2000 ms) |" in readme
    assert readme.count("| what |") == 1
    monkeypatch.setattr(bench, "SECTIONS", {"one": lambda: iter([replace(ROW, ratio=4.0)])})
    assert bench_with(monkeypatch, "--keep") == 0
    assert list(entry_of(here["machine"])["sections"]) == list(here["sections"])
    assert "**4.00** (5500 / 2000 ms) |" in results.README.read_text(encoding="utf-8")
    capsys.readouterr()
    assert bench_with(monkeypatch, "--table") == 0
    assert capsys.readouterr().out == results.table(results.read())


def test_what_was_measured_with_other_libraries_goes(clone):
    here = machine.describe({})
    results.write_results(here, {"one": [ROW], "two": [ROW]})
    results.write_results(here | {"numpy": "1.0"}, {"one": [ROW]})
    assert list(entry_of(here)["sections"]) == ["one"]


# ---- the picture -----------------------------------------------------------------------------------------------------


def test_a_bar_for_each_row_that_was_measured(measured, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    assert bench_with(monkeypatch, "--plot", str(tmp_path / "bench.svg")) == 0
    drawn = (tmp_path / "bench.svg").read_text()
    assert drawn.count("patch_") > 1
    assert f"<!-- {ROW.name}  compared with  {ROW.beside} -->" in drawn
    assert measured.name not in drawn


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--only", "rnig"), "rnig"),
        (("--plot", "bench.doc"), "bench.doc: give it a name that ends in .pdf, .png or .svg"),
        (("--json", "rows.svg", "--plot", "rows.svg"), "would overwrite"),
        (("--run", "no.txt"), "no.txt"),
    ],
)
def test_a_mistake_is_one_line(arguments, says, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    assert bench_with(monkeypatch, *arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert says in err


def test_without_matplotlib_a_picture_is_refused_in_one_line(measured, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory_plot, "find_spec", lambda name: None)
    assert bench_with(monkeypatch, "--plot", str(tmp_path / "bench.png")) == 2
    assert capsys.readouterr().err.endswith("--plot needs matplotlib: pip install --editable '.[lessons]'\n")


# ---- sections --------------------------------------------------------------------------------------------------------


def test_what_starts_the_ranks_starts_no_mpi():
    program = "import sys, minidist.bench.__main__; sys.exit('mpi4py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_chapter_that_does_not_start_is_a_line(measured, monkeypatch, capsys):
    monkeypatch.setattr(bench, "SECTIONS", {"start": jobs.start})
    monkeypatch.setattr(jobs, "mpiexec_for", lambda n: ["false"])
    assert bench_with(monkeypatch) == 2
    assert "minidist doctor" in capsys.readouterr().err


def test_words_are_counted_as_others_count_them(monkeypatch):
    """Rows come out only if all programs that are here agree."""
    rows = list(mapreduce.measure_word_count(size=200_000, pairs=1))
    assert [row.beside for row in rows] == [name for name, *_ in mapreduce.PROGRAMS]
    for row, (name, _, package) in zip(rows, mapreduce.PROGRAMS, strict=True):
        assert row.figures.endswith("MB/s" if package is None or find_spec(package) else f"no {name} here")


def test_programs_that_count_something_else_are_no_row(monkeypatch):
    def ours(text, output):
        output.mkdir()
        (output / "part-0").write_text("a\t1\n")

    def theirs(text, output):
        output.write_text("      2 a\n")

    monkeypatch.setattr(mapreduce, "run_minidist", ours)
    monkeypatch.setattr(mapreduce, "PROGRAMS", (("other", theirs, None),))
    with pytest.raises(AssertionError, match="MapReduce and other do not agree"):
        list(mapreduce.measure_word_count(size=1000, pairs=1))


def test_a_message_and_the_memory_of_a_rank(monkeypatch):
    monkeypatch.setattr(jobs, "CURVE", ((2, 2),))
    monkeypatch.setattr(jobs, "BROAD", jobs.TINY)
    time, counted, grown = jobs.many_ranks()
    assert (time.name, time.beside, time.unit) == ("a message of a zero3 step", "20 µs, on 2 ranks", "µs")
    assert counted.beside == grown.beside == "16Ψ/N, 2 ranks"
    assert counted.ratio == pytest.approx(1, abs=0.01)  # but for padding
    assert grown.unit == "MiB"


def test_without_room_for_ranks_there_are_rows_without_figures(monkeypatch):
    monkeypatch.setattr(shm, "shortage", lambda ranks: "no room")
    assert {row.figures for row in jobs.many_ranks()} == {"too little /dev/shm"}


@pytest.mark.parametrize("section", [one_process.training_step, one_process.adam])
def test_without_pytorch_there_is_one_line_for_each_row(section, monkeypatch):
    monkeypatch.setattr(one_process, "HAS_TORCH", False)
    assert {(row.ratio, row.figures) for row in section()} == {(None, "no PyTorch here")}


@pytest.mark.parametrize("picture", [(), ("--plot", "bench.svg")])
def test_without_pytorch_there_is_no_picture(picture, tmp_path, monkeypatch, capsys):
    """What was measured is printed, and a line says why nothing is drawn."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(one_process, "HAS_TORCH", False)
    assert bench_with(monkeypatch, "--only", "adam", *picture) == len(picture) // 2
    said = capsys.readouterr()
    assert "no PyTorch here" in said.out
    assert ("minidist: error: --plot bench.svg: there is no ratio to draw" in said.err) == bool(picture)
    assert not list(tmp_path.iterdir())


def test_without_a_compiler_there_is_no_compiled_step(monkeypatch):
    pytest.importorskip("torch")
    from minidist.bench import pytorch

    sizes = GPTConfig(11, 4, 1, 1, 4)
    monkeypatch.setenv("CXX", "/bin/false")
    tokens = np.zeros((1, 4), int)
    assert pytorch.compiled_step(sizes, tokens, tokens) is None
