"""What a submission may use, and what it finds: limits for all its ranks together, an environment of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from classroom.grading import Graded, Grader, grader
from minidist.classroom import limits

CHILDREN = """
import os, time

def reduce_scatter(comm, x, out=None):
    for _ in range({children}):
        if not os.fork():
            held = bytearray(os.urandom(1)) * {nbytes}
            time.sleep(30)
            os._exit(0)
    time.sleep(2)
    return x
"""
NAMESPACES = """
import ctypes, os

def reduce_scatter(comm, x, out=None):
    libc = ctypes.CDLL(None, use_errno=True)
    refused = 0
    for flags in (0x10000000, 0x10020000, 0x20000):  # users; users and mounts; mounts
        refused += libc.unshare(flags) == -1
    os.makedirs("room", exist_ok=True)
    refused += libc.mount(b"tmpfs", b"room", b"tmpfs", 0, b"size=480m") == -1
    raise RuntimeError(f"{refused} of 4 refused")
"""


@pytest.fixture(scope="module")
def ring() -> Iterator[Grader]:
    with grader("04") as made:
        yield made


def said_of(made: Grader, folder: Path, text: str) -> str:
    (folder / "exercise.py").write_text(text)
    graded: Graded = made.grade(folder / "exercise.py", only={"reduce_scatter"})
    assert graded.lost == {"reduce_scatter"}
    return graded.messages["reduce_scatter"]


needs_proc = pytest.mark.skipif(not limits.look_at([os.getpid()])[0], reason="the kernel tells nothing of processes")


@needs_proc
def test_children_together_cannot_have_more_memory_than_a_submission(
    ring: Grader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has less than a process may."""
    monkeypatch.setattr(limits, "MEMORY", 700 << 20)
    said = said_of(ring, tmp_path, CHILDREN.format(children=1, nbytes=150 << 20))
    assert "with all that they have started, had " in said
    assert "bytes of memory; all together may have 734,003,200" in said


@needs_proc
def test_a_process_whose_name_is_no_text_is_looked_at_too() -> None:
    """It gives itself that name, which stands in the kernel's files on it."""
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\x98)\\xff', 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert limits.memory_of(process.pid) > 0
        assert limits.state(process.pid) in "RSD"
        assert process.stdin
        process.stdin.close()


@needs_proc
def test_processes_of_a_submission_are_counted(ring: Grader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOGETHER", 20)
    said = said_of(ring, tmp_path, CHILDREN.format(children=8, nbytes=1))
    assert "processes; all together may be 20" in said


def test_there_is_no_memory_of_its_own_to_mount(ring: Grader, tmp_path: Path) -> None:
    if ring.wire.isolation:
        pytest.skip(ring.wire.isolation)
    assert "RuntimeError: 4 of 4 refused" in said_of(ring, tmp_path, NAMESPACES)


@pytest.mark.parametrize("isolate", [True, False])
def test_a_program_has_an_environment_of_its_own(
    isolate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.setenv("HOME", "/home/grader")
    text = (
        "import os\n\ndef reduce_scatter(comm, x, out=None):\n"
        "    try:\n        everything = open('/proc/self/environ').read()\n"
        "    except OSError:\n        everything = ''\n"
        "    raise RuntimeError(sorted(os.environ), os.environ['HOME'] == os.getcwd(), 'secret' in everything)\n"
    )
    with grader("04", isolate=isolate) as made:
        said = said_of(made, tmp_path, text)
    assert "True, False)" in said
    assert "'LANG', " in said
    assert "'PATH', " in said
    for name in ("TOKEN", "USER", "VIRTUAL_ENV", "SHELL", "MINIDIST"):
        assert name not in said


def test_where_a_cgroup_may_be_made_the_kernel_limits_all_together(tmp_path: Path) -> None:
    """As the files of a version-2 hierarchy have it; a folder in place of the kernel's."""
    root, of = tmp_path / "cgroup", tmp_path / "self"
    (root / "user" / "shell").mkdir(parents=True)
    of.write_text("1:name=systemd:/x\n0::/user/shell\n")
    (root / "user" / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (root / "user" / "shell" / "cgroup.subtree_control").write_text("\n")
    group = limits.make_group(root, of)
    assert group is not None
    assert group.parent == root / "user"
    assert int((group / "memory.max").read_text()) == limits.MEMORY + limits.RESERVE
    assert (group / "pids.max").exists()
    limits.join_group(group, 1)
    assert (group / "cgroup.procs").read_text() == "1"
    (root / "user" / "cgroup.subtree_control").write_text("cpu\n")
    assert limits.make_group(root, of) is None
    assert limits.make_group(root, tmp_path / "nowhere") is None


def test_a_rank_cannot_count_what_others_start(ring: Grader, tmp_path: Path) -> None:
    """Numbers of processes and threads, and the machine's counters, would be a way past the wire."""
    if ring.wire.isolation:
        pytest.skip(ring.wire.isolation)
    text = (
        "import ctypes, os, threading\n\ndef start(n):\n    for _ in range(n):\n        child = os.fork()\n"
        "        if not child:\n            os._exit(0)\n        os.waitpid(child, 0)\n    return child\n\n"
        "def reduce_scatter(comm, x, out=None):\n    before = start(1)\n    comm.barrier()\n"
        "    if comm.rank == 1:\n        start(7)\n    comm.barrier()\n    shown = sorted(os.listdir('/proc'))\n"
        "    free = ctypes.CDLL(None).sysinfo(ctypes.create_string_buffer(256))\n"
        "    if comm.rank == 0:\n        raise RuntimeError(start(1) - before, os.getpid(), 'loadavg' in shown, free)\n"
        "    comm.barrier()\n"
    )
    said = said_of(ring, tmp_path, text)
    assert "RuntimeError: (1, 1, False, -1)" in said, said
