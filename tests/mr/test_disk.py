"""The disk of a MapReduce worker: what it takes over, and what it leaves alone."""

import fcntl
import os
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest

from minidist.mr.disk import Disk, private_folder
from minidist.mr.jobs import WordCount
from minidist.mr.plan import Plan, TaskResult


def leave_map(folder: Path, m: int) -> None:
    """What a worker leaves of a map: 5 bytes for reduce 0, nothing for reduce 1."""
    (folder / f"map-{m:05}").mkdir(parents=True)
    (folder / f"map-{m:05}" / "region-00000").write_text("a\t1\n\n")
    result = TaskResult([5, 0], Counter(pairs=1), Counter(), [], [[crc32(b"a\t1\n\n")], []])
    (folder / f"map-{m:05}" / "done.json").write_text(result.note(("map", m)))


def test_maps_of_workers_that_are_elsewhere_now_are_taken_over(tmp_path: Path) -> None:
    """Five workers were on this machine. Now ranks 2 and 4 of five are, and rank 5 is no more."""
    (tmp_path / "text").touch()
    plan = Plan(WordCount(), [str(tmp_path / "text")], tmp_path / "output", reducers=2, local=tmp_path / "local")
    plan.hosts, plan.token = ["a", "b", "here", "b", "here"], "token"
    for worker in range(1, 6):
        leave_map(plan.locals / f"worker-{worker}", worker)
    leave_map(plan.locals / "worker-3", 1)  # done by two of them
    (plan.locals / "worker-5" / "unfinished").mkdir()
    disks = {rank: Disk(plan, rank) for rank in (4, 2)}
    assert {rank: sorted(disk.kept_results(2)) for rank, disk in disks.items()} == {2: [1, 2, 3, 5], 4: [4]}
    assert sorted(path.name for path in plan.locals.iterdir()) == ["worker-2", "worker-4"]


def test_a_map_counts_only_if_all_of_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    plan = Plan(WordCount(), [str(tmp_path / "text")], tmp_path / "output", reducers=2)
    plan.hosts = ["here"]
    plan.make_folder()
    for m in range(4):
        leave_map(plan.folder / "worker-0", m)
    (plan.folder / "worker-0" / "map-00000" / "region-00000").write_text("a\t1")
    (plan.folder / "worker-0" / "map-00001" / "region-00000").unlink()
    (plan.folder / "worker-0" / "map-00002" / "done.json").write_text("[[5, 0], {")
    held = Disk(plan, 0).kept_results(2)
    assert [m for m in sorted(held) if held[m]] == [3]
    assert [m for m in sorted(held) if not held[m]] == [0, 1, 2]  # damaged
    assert [path.name for path in (plan.folder / "worker-0").iterdir()] == ["map-00003"]


def test_a_folder_in_which_somebody_works_is_not_removed(tmp_path: Path) -> None:
    for name in ("job-a", "job-b"):
        (tmp_path / name).mkdir()
    lock = os.open(tmp_path / "job-a", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    os.close(private_folder(tmp_path, "job-c", "job-"))
    assert sorted(os.listdir(tmp_path)) == ["job-a", "job-c"]
    os.close(lock)


def test_neither_a_link_nor_a_file_is_a_private_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(OSError, match="is not a folder of yours"):
            private_folder(tmp_path, name, "job-")
