"""What a build keeps for the next one."""

import itertools
from functools import partial
from pathlib import Path

import pytest

from minidist.site import kept, runs
from minidist.site.kept import Recordings


def test_kept_until_code_or_options_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[str]()

    def make(word: str) -> str:
        made.append(word)
        return word

    for code, options in (("a", "x"), ("a", "x"), ("a", "y"), ("b", "x"), ("a", "x")):
        monkeypatch.setattr(kept, "hash_of_code", lambda code=code: code)
        recordings = Recordings(tmp_path)
        assert recordings.recall(options, partial(make, code + options)) == code + options
    assert made == ["ax", "ay", "bx"]
    recordings.forget_others()
    assert len([*tmp_path.iterdir()]) == 1


def test_the_hash_is_of_what_a_run_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "PACKAGE", tmp_path)
    seen = list[str]()
    for file in ("zero3.py", "nn/flat.py", "README.md", "site/home.md", "classroom/work.py", "text/data.txt"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("1")
        seen.append(kept.hash_of_code())
    assert [later != before for before, later in itertools.pairwise(seen)] == [True, False, False, False, True]


def test_a_chapter_runs_once_and_keeps_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[str]()

    def run(name: str, folder: Path) -> list[runs.CommandRun]:
        ran.append(name)
        (folder / f"{name}-0.png").write_bytes(b"drawn")
        return [runs.CommandRun("one", "printed", folder / f"{name}-0.png"), runs.CommandRun("two", "", None)]

    monkeypatch.setattr(runs, "run_chapter", run)
    recordings = Recordings(tmp_path / "recordings")
    found = [runs.record_chapter("ring", tmp_path, recordings)]
    (tmp_path / "ring-0.png").unlink()
    found.append(runs.record_chapter("ring", tmp_path, recordings))
    assert found[0] == found[1]
    assert ran == ["ring"]
    assert found[1][0].picture == tmp_path / "ring-0.png"
    assert (tmp_path / "ring-0.png").read_bytes() == b"drawn"
