"""MapReduce's command line: what cannot work is refused in one line, before anything is written."""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minidist import Finished, UsageError
from minidist.mr.jobs import WordCount
from minidist.mr.plan import Plan, TaskResult
from minidist.programs.chapter import find
from tables import table

WRONG = table(__file__, "wrong")
STANDS_FOR = {"FILE": __file__, "LONG": "x" * 300, "PARENTHESES": "(" * 3000 + ")" * 3000}


def written_out(word: str) -> str:
    return functools.reduce(lambda text, name: text.replace(name, STANDS_FOR[name]), STANDS_FOR, word)


def prepare(arguments: list[str], ranks: int = 4) -> Any:
    """What rank 0 makes of a command line."""
    return find("mapreduce").prepared(arguments, SimpleNamespace(rank=0, size=ranks))


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_refused_in_one_line_before_anything_is_written(name: str, tmp_path: Path) -> None:
    arguments, words = WRONG[name]
    with pytest.raises(UsageError, match=re.escape(words)) as refusal:
        prepare(["--output", str(tmp_path / "output"), *map(written_out, arguments)])
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "output").exists()


def commit(plan: Plan) -> None:
    """Leave a finished job's parts, which are empty, and what its reduces have noted."""
    for r in range(plan.reducers):
        plan.part(r).touch()
        plan.counts_path(r).write_text(TaskResult.empty()._replace(sizes=[0], sums=[[]]).note(("reduce", r)))


def test_a_pipe_is_no_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="it is not a regular file"):
        prepare(["wordcount", str(tmp_path / "pipe"), "--output", str(tmp_path / "output")])


MODULES = {
    "fails at import": ("1 / 0", "ZeroDivisionError: division by zero"),
    "does not parse": ("def", "SyntaxError: invalid syntax"),
    "exits at import": ("import sys; sys.exit('no')", "SystemExit: no"),
    "constructor": ("class Job:\n def __init__(self): raise KeyError('no file')", "KeyError: 'no file'"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_job_that_cannot_be_loaded_says_why(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, words = MODULES[name]
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"broken_{name.split()[0]}.py").write_text(source)
    with pytest.raises(UsageError, match=re.escape(words)) as refusal:
        prepare(["--job", f"broken_{name.split()[0]}:Job", __file__, "--output", str(tmp_path / "output")])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("option", ["--local", "--output"])
@pytest.mark.parametrize("below", ["", "/below"])
def test_a_folder_behind_links_that_lead_nowhere_is_refused(option: str, below: str, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "back")
    (tmp_path / "back").symlink_to(tmp_path / "circle")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for name in ("circle", "nowhere"):
        line = ["wordcount", __file__, "--output", str(tmp_path / "output"), option, f"{tmp_path / name}{below}"]
        with pytest.raises(UsageError, match=rf"^{option} .*/{name}{below}"):
            prepare(line)


def test_the_report_is_written_over_no_input_and_into_no_output(tmp_path: Path) -> None:
    """Whatever they are called."""
    output, text, link, hard = (tmp_path / name for name in ("output", "text", "link", "hard"))
    text.write_text("a line\n")
    link.symlink_to(text)
    hard.hardlink_to(text)
    (tmp_path / "door").symlink_to(output)
    output.mkdir()
    line = ["wordcount", str(text), "--output", str(output), "--json"]
    for path in (text, link, hard):
        with pytest.raises(UsageError, match="would overwrite the file of the input"):
            prepare([*line, str(path)])
    for folder in (output, tmp_path / "door", tmp_path / "output" / ".." / "output"):
        with pytest.raises(UsageError, match="is in the output"):
            prepare([*line, str(folder / "report.json")])
    prepare([*line, str(tmp_path / "report.json")])
    assert text.read_text() == "a line\n"


def test_without_a_number_of_maps_there_are_never_too_many(tmp_path: Path) -> None:
    """A petabyte, in name: the file has no blocks."""
    with open(tmp_path / "large", "wb") as file:
        file.truncate(10**13)
    for reducers, maps in ((4, 10_000), (1000, 1000)):
        assert Plan(WordCount(), [str(tmp_path / "large")], tmp_path / "output", reducers=reducers).maps == maps


def test_an_output_folder_must_be_empty_or_that_of_the_same_job(tmp_path: Path) -> None:
    output, text = tmp_path / "output", tmp_path / "text"
    text.write_text("one line\n")
    line = ["wordcount", str(text), "--output", str(output)]

    def prepared(*options: str) -> Plan:
        return prepare([*line, *options])[0]

    plan = prepared("--resume")  # there is nothing yet: it simply begins
    plan.make_folder()
    with pytest.raises(UsageError, match="is not empty: finish the job that was begun there with --resume"):
        prepared()
    prepared("--resume")
    for change, what in {
        ("--reducers", "7"): "reducers",
        ("--maps", "3"): "maps",
        ("--no-combine",): "combine",
        ("--memory", "7"): "memory",
    }.items():
        with pytest.raises(UsageError, match=f"differs in {what}"):
            prepared(*change, "--resume")
    with pytest.raises(UsageError, match="differs in job"):
        prepare(["sort", *line[1:], "--resume"])
    commit(plan)
    plan.end(left_out=0)
    parts = sorted(output.glob("part-*"))
    with pytest.raises(Finished, match="holds all 4 parts already"):
        prepared("--resume")
    parts[2].write_text("x")
    with pytest.raises(UsageError, match="part-00002-of-00004 of the finished one is damaged"):
        prepared("--resume")
    for part in parts:
        part.unlink()
    assert os.listdir(output) == [".mapreduce"]
    prepared()  # its parts have been taken away: it may begin anew
    (output / "notes").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        prepared()
    with pytest.raises(UsageError, match=r"there is no unfinished job in .*part-00000-of-00004 .* is missing"):
        prepared("--resume")


def test_a_folder_that_holds_another_job_is_not_taken_for_finished(tmp_path: Path) -> None:
    """Neither one of another input, of which the parts have the same names, nor one that this program has not made."""
    output, text, other = tmp_path / "output", tmp_path / "text", tmp_path / "other"
    text.write_text("one line\n")
    other.write_text("one line\n")
    plan = prepare(["wordcount", str(text), "--output", str(output)])[0]
    plan.make_folder()
    commit(plan)
    plan.end(left_out=0)
    with pytest.raises(Finished):
        prepare(["wordcount", str(text), "--output", str(output), "--resume"])
    with pytest.raises(UsageError, match="differs in files"):
        prepare(["wordcount", str(other), "--output", str(output), "--resume"])
    with pytest.raises(UsageError, match="differs in job"):
        prepare(["sort", str(text), "--output", str(output), "--resume"])
    shutil.rmtree(output / ".mapreduce")
    with pytest.raises(UsageError, match="there is no unfinished job"):
        prepare(["wordcount", str(text), "--output", str(output), "--resume"])


def test_input_and_code_are_compared_by_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with the same size and time is another one, if something else stands in it; so is a module."""
    monkeypatch.syspath_prepend(tmp_path)
    output, text, module = tmp_path / "output", tmp_path / "text", tmp_path / "a_job_of_ones_own.py"
    text.write_text("one line\n" * 100_000)
    module.write_text("def map(document, line): return [(line, '1')]\ndef reduce(key, values): return values\n")
    line = ["--job", "a_job_of_ones_own", str(text), "--output", str(output)]
    prepare(line)[0].make_folder()
    prepare([*line, "--resume"])
    before = os.stat(text)
    text.write_text("two line\n" * 100_000)
    os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UsageError, match="differs in files"):
        prepare([*line, "--resume"])
    text.write_text("one line\n" * 100_000)
    os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns))
    prepare([*line, "--resume"])
    module.write_text(module.read_text().replace("'1'", "'2'"))
    with pytest.raises(UsageError, match="differs in code"):
        prepare([*line, "--resume"])


def test_a_finished_job_that_has_left_out_records_is_not_a_strict_one(tmp_path: Path) -> None:
    output, text = tmp_path / "output", tmp_path / "text"
    text.write_text("one line\n")
    line = ["wordcount", str(text), "--output", str(output), "--reducers", "1"]
    plan = prepare(line)[0]
    plan.make_folder()
    commit(plan)
    plan.end(left_out=2)
    with pytest.raises(Finished):
        prepare([*line, "--resume", "--skip-bad", "2"])
    with pytest.raises(UsageError, match="has left out 2 records"):
        prepare([*line, "--resume", "--skip-bad", "1"])


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"job": 1}', "\0\1\2"])
def test_a_damaged_job_is_said_to_be_damaged(damage: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    line = ["wordcount", __file__, "--output", str(output)]
    prepare(line)[0].make_folder()
    (output / ".mapreduce" / "job.json").write_text(damage)
    for options in ([], ["--resume"]):
        with pytest.raises(UsageError, match=r"is not empty|is damaged"):
            prepare([*line, *options])
    with pytest.raises(UsageError, match="is damaged"):
        prepare([*line, "--resume"])


def test_a_folder_that_was_put_in_our_place_is_not_used(tmp_path: Path) -> None:
    """Between a kill and --resume somebody exchanges the folder of the intermediate files for a link."""
    text, local = tmp_path / "text", tmp_path / "local"
    text.write_text("a line\n")
    local.mkdir()
    line = ["wordcount", str(text), "--output", str(tmp_path / "output"), "--local", str(local)]
    plan = prepare(line, ranks=1)[0]
    plan.token = plan.make_folder()
    plan.locals.symlink_to(tmp_path)
    with pytest.raises(UsageError, match="is not a folder of yours"):
        prepare([*line, "--resume"], ranks=1)


def test_an_input_in_another_encoding_is_said_last(tmp_path: Path) -> None:
    """Latin-1's letters are no UTF-8: the job counts them as U+FFFD, and its last words say so."""
    (tmp_path / "latin").write_bytes("Übung macht den Meister, für größere Wörter\n".encode("latin-1") * 300)
    (tmp_path / "plain").write_bytes("Übung macht den Meister\n".encode() * 30)
    said = {}
    for name in ("latin", "plain"):
        line = [sys.executable, "-m", "minidist.mapreduce", "wordcount", name, "--output", f"out {name}"]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        said[name] = done.stdout
    assert said["latin"].splitlines()[-2:] == [
        "1,500 sequences of the input are no UTF-8, and became U+FFFD.",
        "If it is in another encoding, convert it first (iconv).",
    ]
    assert "UTF-8" not in said["plain"]
