"""Folders of minidist's own, in a folder that others can write to: what they have planted there is neither followed nor
overwritten, and they can neither look nor write into ours."""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from minidist import UsageError, command, train
from minidist.checkpoints import checkpoint
from minidist.engine import Engine
from minidist.mr.disk import Disk
from minidist.mr.jobs import WordCount
from minidist.mr.plan import Plan
from minidist.programs.chapter import find

ROOT = Path(__file__).parents[1]


def plan_of(shared: Path) -> Plan:
    (shared.parent / "text").touch()
    plan = Plan(WordCount(), [str(shared.parent / "text")], shared.parent / "output", local=shared)
    plan.hosts, plan.token = ["here"], "token"
    return plan


def local(shared: Path) -> Path:
    """mapreduce --local"""
    plan = plan_of(shared)
    Disk(plan, 0)
    return plan.locals


def work(shared: Path) -> Path:
    """mapreduce --output, of a finished job of which the parts have been taken away"""
    plan = plan_of(shared)
    plan.output, plan.folder = shared, shared / ".mapreduce"
    plan.make_folder()
    plan.end(0)
    return plan.folder


OWN = {"local": local, "work": work}
NAMES = {"local": "", "work": ".mapreduce"}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / "treasure").mkdir()
    (tmp_path / "treasure" / "victim").write_text("precious")
    return tmp_path / "shared"


def planted(kind: str, shared: Path) -> Path:
    return plan_of(shared).locals if kind == "local" else shared / NAMES[kind]


@pytest.mark.parametrize("kind", OWN)
def test_nobody_else_looks_into_it(kind: str, shared: Path) -> None:
    """Nor into one that an earlier run has made with another mode."""
    for _ in range(2):
        folder = OWN[kind](shared)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.chmod(0o777)


@pytest.mark.parametrize("kind", OWN)
def test_a_planted_link_is_refused(kind: str, shared: Path) -> None:
    planted(kind, shared).symlink_to(shared.parent / "treasure")
    with pytest.raises((UsageError, OSError), match="is not a folder of yours"):
        OWN[kind](shared)
    assert os.listdir(shared.parent / "treasure") == ["victim"]
    assert (shared.parent / "treasure" / "victim").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("kind", OWN)
def test_a_planted_folder_is_refused(kind: str, shared: Path) -> None:
    """It is another user's, with links to what is ours."""
    folder = planted(kind, shared)
    folder.mkdir(mode=0o777)
    (folder / "victim").symlink_to(shared.parent / "treasure" / "victim")
    os.chown(folder, 12345, 12345)
    with pytest.raises((UsageError, OSError), match="is not a folder of yours"):
        OWN[kind](shared)
    assert (folder / "victim").is_symlink()
    assert (shared.parent / "treasure" / "victim").read_text() == "precious"


def test_a_checkpoint_is_made_in_a_private_folder_and_read_by_others(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared.parent / "text").write_text("no more and no less " * 50)
    small = f"--layers 1 --width 8 --heads 2 --context 8 --batch 2 --steps 0 --data {shared.parent}/text"
    job = find("train").job(small.split(), 1)
    modes: list[int] = []
    rename: Callable[[str, str], None] = os.rename

    def seen(draft: str, name: str) -> None:
        modes.append(stat.S_IMODE(os.stat(f"{draft}/manifest.json").st_mode))
        rename(draft, name)

    (shared / "latest").symlink_to("../treasure/victim")
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "rename", seen)
        engine = Engine(job.units, job.settings)
        checkpoint.save(str(shared), engine, train.Alone(), command.about(job, 1))
    finally:
        os.umask(before)
    assert modes == [0o640]
    assert stat.S_IMODE((shared / "step000000").stat().st_mode) == 0o750
    assert not (shared / "latest").is_symlink()
    assert (shared.parent / "treasure" / "victim").read_text() == "precious"


def test_folders_of_ones_own_are_made_in_one_place() -> None:
    """Whoever gives a folder a mode makes one of his own."""
    making = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "minidist").rglob("*.py")
        if re.search(r"mkdir\([^)]*mode=|0o700", file.read_text())
    }
    assert making == {"minidist/system/files.py", "minidist/system/unix.py"}
