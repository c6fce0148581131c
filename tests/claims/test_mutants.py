"""Mutants: each is caught by its claims. The runner takes no crash, no other loss and no harmless change for that."""

import re
import subprocess
import sys
import tempfile
import tomllib
from functools import cache
from pathlib import Path

import pytest

from minidist import Finished, UsageError
from minidist.__main__ import CHAPTERS, main
from minidist.claims import mutants
from minidist.claims.mutants import Mutant, changed_copy, mutants_of, perform
from minidist.claims.mutants.patch import Patch, read_patches
from minidist.cli.options import in_one_process
from minidist.mpi import environment
from minidist.programs.chapter import Chapter, find
from minidist.text import data
from sampling import shard_of_this_run

EVERY = [mutant for file in sorted(mutants.TABLE.glob("*.toml")) for mutant in mutants_of(file)]
ALIKE = "zero1", "zero2", "tensor_parallel"  # zero3 and parallel3d say the same
# One of each second of the other chapters, in turn; the rest with -m slow.
SAMPLE = shard_of_this_run([*{mutant.chapter: mutant for mutant in EVERY if mutant.chapter not in ALIKE}.values()], 2)


def named(mutant: Mutant) -> str:
    return f"{mutant.chapter}: {mutant.mistake}"


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", SAMPLE, ids=named)
def test_a_mutant_is_caught_by_its_claims(mutant: Mutant) -> None:
    outcome = perform(mutant)
    assert not outcome.survives, (outcome.failed, outcome.said)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [mutant for mutant in EVERY if mutant not in SAMPLE], ids=named)
def test_each_of_the_others_is_caught(mutant: Mutant) -> None:
    test_a_mutant_is_caught_by_its_claims(mutant)


def test_no_line_is_refused_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """There all mutants run."""
    monkeypatch.setattr("minidist.text.data.load", cache(data.load))
    monkeypatch.setattr("minidist.command.witness.begin", lambda: None)
    for name, options, ranks in {(each.chapter, f"{each.options} {each.layout or ''}", each.ranks) for each in EVERY}:
        monkeypatch.setattr(environment, "ranks_here", ranks)
        if isinstance(chapter := find(name), Chapter):
            chapter.job(options.split(), ranks)


def test_every_chapter_that_makes_claims_has_mutants() -> None:
    # train has nothing to send and nothing to divide; rules of types have their mutants in tests/test_spmd_types.py
    chapters = {chapter.name for chapter in CHAPTERS} - {"train", "spmd_types"}
    assert {mutant.chapter for mutant in EVERY} == chapters
    assert {file.stem for file in mutants.TABLE.glob("*.toml")} == chapters
    assert len({(mutant.chapter, mutant.mistake) for mutant in EVERY}) == len(EVERY) >= 30
    assert all(mutant.caught_by and all(old != new for old, new in mutant.changes) for mutant in EVERY)


# ---- the runner ------------------------------------------------------------------------------------------------------

HEAD = 'options = "--size 8"\n'
ROW = """
[[mutant]]
mistake = "{mistake}"
ranks = 2
file = "{file}"
old = '{old}'
new = '{new}'
caught_by = ["all-reduce ring, sent by each rank"]
"""
SUM = "partial = op(arrived, own, out=total)"


def table(folder: Path, *rows: tuple[str, str, str, str]) -> Path:
    made = [ROW.format(mistake=mistake, file=file, old=old, new=new) for mistake, file, old, new in rows]
    (folder / "ring.toml").write_text(HEAD + "".join(made))
    return folder


def test_what_no_claim_catches_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Nothing changed; a crash; other results, of which the claim says nothing; and one that it catches."""
    rows = (
        ("nothing", "ring.py", SUM, f"{SUM}  # as it was"),
        ("a crash", "ring.py", SUM, "raise LookupError(own)"),
        ("other sums", "ring.py", SUM, "partial = op(arrived, arrived, out=total)"),
        ("one byte more", "mpi/comm.py", "count(peer, array.nbytes)", "count(peer, array.nbytes + 1)"),
    )
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(mutants, "TABLE", table(tmp_path, *rows))
    assert main(["mutants", "ring"]) == 1
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert any(line.startswith("nothing not by: all-reduce ring") and line.endswith("✗") for line in lines)
    assert any(line.startswith("a crash it ended without a report") and line.endswith("✗") for line in lines)
    assert any(re.match(r"other sums and \d+ more", line) and line.endswith("✗") for line in lines)
    assert "one byte more all-reduce ring, sent by each rank ✓" in lines
    assert "1 of 4 mutants were caught by the claims that must catch them." in lines
    assert "ring: all-reduce ring, calls of the busiest rank" in lines  # it caught no mutant
    assert "ring: all-reduce ring, sent by each rank" not in lines
    assert "ring: all-reduce ring, wrong elements of the result" not in lines


def test_a_claim_that_catches_no_mutant_is_an_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    row = ("one byte more", "mpi/comm.py", "count(peer, array.nbytes)", "count(peer, array.nbytes + 1)")
    monkeypatch.setattr(mutants, "TABLE", table(tmp_path, row))
    assert main(["mutants", "ring"]) == 1
    assert "1 of 1 mutants were caught by the claims that must catch them." in capsys.readouterr().out


@pytest.mark.parametrize(("old", "times"), [("what nobody wrote", 0), ("def ", None)])
def test_an_old_text_must_occur_once(old: str, times: int | None, tmp_path: Path) -> None:
    folder = table(tmp_path, ("wrong", "ring.py", old, "x"))
    count = (mutants.PACKAGE / "ring.py").read_text().count(old)
    assert times in (None, count)
    with pytest.raises(UsageError, match=f"^ring.toml: 'wrong': its old text occurs {count} times in ring.py$"):
        mutants_of(folder / "ring.toml")


def test_a_mistake_of_several_changes() -> None:
    written = tomllib.loads(
        """
[[mutant]]
old = "a"
new = "b"
caught_by = ["x"]

[[mutant.change]]
old = "b c"
new = "d"
"""
    )
    [mutant] = read_patches(written, "mutant")
    assert mutant == {"changes": (("a", "b"), ("b c", "d")), "caught_by": ("x",)}
    several = Patch(changes=mutant["changes"])
    assert several.apply("a c", "a text") == "d"
    with pytest.raises(UsageError, match=r"^its old text occurs 2 times in a text$"):
        several.apply("a a", "a text")


@pytest.mark.parametrize("arguments", [["zero9"], ["zero1", "zero2"], ["train"]])
def test_no_such_chapter_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert in_one_process(lambda: main(["mutants", *arguments])) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith(
        f"minidist: error: {' '.join(arguments)!r} is no chapter with mutants: take one of mapreduce,"
    )


def test_not_under_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(UsageError, match="run it without mpirun"):
        main(["mutants", "ring"])


def test_the_next_copy_removes_those_of_killed_processes_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # others who sweep at that moment would hold the lock
    monkeypatch.setattr(tempfile, "tempdir", None)
    program = (
        "from minidist.claims.mutants import changed_copy\n"
        "with changed_copy([]) as folder:\n"
        "    print(folder, flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) as killed:
        assert killed.stdout is not None
        left = Path(killed.stdout.readline().strip())
        with changed_copy([]):
            assert (left / "minidist" / "ring.py").exists()
        killed.kill()
    with changed_copy([]) as folder:
        assert not left.exists()
        assert (Path(folder) / "minidist" / "ring.py").exists()
    assert not Path(folder).exists()


def test_help() -> None:
    with pytest.raises(Finished, match="usage: python -m minidist mutants CHAPTER"):
        main(["mutants", "--help"])


def test_the_right_program_has_the_losses_of_serial_training(tmp_path: Path) -> None:
    """And a table may say of what options they are, apart from those of the layout."""
    file = tmp_path / "zero2.toml"
    file.write_text(
        'options = "--steps 3 --layers 1 --width 16 --heads 2 --context 8 --batch 8"\n'
        "[[mutant]]\n"
        'mistake = "None at all."\nranks = 3\noptions = "--precision fp64"\nlayout = "--host-memory 1GB"\n'
        'file = "zero2.py"\nold = "class ZeRO2(ZeRO1):"\nnew = "class ZeRO2(ZeRO1):  # as it was"\n'
        'caught_by = ["serial training, losses"]\n'
    )
    [mutant] = mutants_of(file)
    outcome = perform(mutant)
    assert outcome.holds["serial training, losses"]
    assert outcome.survives
    assert outcome.failed == []
