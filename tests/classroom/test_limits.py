"""What a submission may use, and what it finds: limits for all its ranks together, an environment of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from classroom.grading import Graded, Grader, grader
from minidist.classroom.grading import limits, submission
from minidist.classroom.grading.wires import MachineFault

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
THREADS = """
import threading, time

def reduce_scatter(comm, x, out=None):
    for _ in range(8):
        threading.Thread(target=time.sleep, args=[30], daemon=True).start()
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


@contextmanager
def looked_at(code: str) -> Iterator[tuple[int, Callable[[], None]]]:
    """A program that prints a line where it is to be looked at, and waits for one: its process, and what lets it go on
    to its next line."""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        orders, lines = process.stdin, process.stdout

        def go_on() -> None:
            orders.write(b"\n")
            orders.flush()
            lines.readline()

        lines.readline()
        yield process.pid, go_on


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
    code = (
        "import ctypes, time\nctypes.CDLL(None).prctl(15, b'\\x98)\\xff', 0, 0, 0)\n"
        "while time.process_time() < 0.1:\n    pass\nprint(flush=True)\ninput()\n"
    )
    with looked_at(code) as (process, _):
        assert limits.use_of(process).nbytes > limits.HELD
        assert limits.use_of(process).number == 1
        assert limits.use_of(process).seconds > 0


@needs_proc
@pytest.mark.parametrize("text", [CHILDREN.format(children=8, nbytes=1), THREADS])
def test_processes_of_a_submission_are_counted(
    ring: Grader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """With their threads."""
    monkeypatch.setattr(limits, "TOGETHER", 20)
    said = said_of(ring, tmp_path, text)
    assert "processes and threads; all together may be 20" in said


@needs_proc
def test_memory_that_a_process_has_in_tables_of_pages_counts() -> None:
    """A page of zeros in every gigabyte is nobody's, but the kernel keeps a table for each."""
    code = (
        "import ctypes\nmmap = ctypes.CDLL(None).mmap\nmmap.restype = ctypes.c_void_p\n"
        "mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]\n"
        "print(flush=True)\ninput()\nfor k in range(64, 2064):\n"
        "    ctypes.string_at(mmap(k << 30, 4096, 1, 0x32, -1, 0), 1)\nprint(flush=True)\ninput()\n"
    )
    with looked_at(code) as (process, go_on):
        before = limits.use_of(process).nbytes
        go_on()
        assert limits.use_of(process).nbytes > before + 2000 * 4096


@needs_proc
def test_processor_time_of_children_that_have_ended_counts() -> None:
    """Of their children, too."""
    code = (
        "import subprocess, sys\nspin = 'import time\\nwhile time.process_time() < 0.3: pass'\n"
        "again = f'import subprocess, sys; subprocess.run([sys.executable, \"-c\", {spin!r}])'\n"
        "subprocess.run([sys.executable, '-c', again])\nprint(flush=True)\ninput()\n"
    )
    with looked_at(code) as (process, _):
        assert limits.look_at([process]).seconds > 0.28


def test_a_machine_without_memory_is_no_fault_of_the_program(
    ring: Grader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no points less: there is no grade."""
    monkeypatch.setattr(limits, "is_short_of_memory", lambda: True)
    with pytest.raises(MachineFault, match="hardly any memory left"):
        said_of(ring, tmp_path, CHILDREN.format(children=1, nbytes=1))


@pytest.mark.parametrize(("total", "available", "short"), [(32, 1, False), (32, 0, True), (1, 0, True), (1, 1, False)])
def test_what_hardly_any_memory_is(total: int, available: int, short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In GB."""
    text = f"MemTotal: {total << 20} kB\nMemFree: 1 kB\nMemAvailable: {available << 20} kB\n"
    monkeypatch.setattr(limits, "_read", lambda _: text)
    assert limits.is_short_of_memory() == short
    monkeypatch.setattr(limits, "_read", lambda _: "")
    assert not limits.is_short_of_memory()


@needs_proc
def test_all_parts_together_have_a_limit_of_processor_time(
    ring: Grader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever each of them has: once it is reached, no other part is run."""
    monkeypatch.setattr(submission, "WHOLE", 1)
    (tmp_path / "exercise.py").write_text("def reduce_scatter(comm, x, out=None):\n    while True:\n        pass\n")
    parts = {"reduce_scatter", "reduce_scatter_out", "all_gather"}
    messages = ring.grade(tmp_path / "exercise.py", patience=1, only=parts).messages
    first, *others = messages.values()
    assert re.search("had used [1-9] s of processor time; all together may use 1 s", first), first
    assert len(others) == len(parts) - 1
    assert all("in all parts together they may use 1 s" in said for said in others), others


@needs_proc
def test_to_sleep_in_every_part_is_ended_like_computing(
    ring: Grader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No single call sleeps for too long; yet a class would wait for them all."""
    monkeypatch.setattr(submission, "WHOLE", 4)
    if not limits.waiting_time(os.getpid()):
        pytest.skip("the kernel does not say who waits for a processor")
    (tmp_path / "exercise.py").write_text(
        "import time\n\ndef reduce_scatter(comm, x, out=None):\n    time.sleep(2.9)\n"
    )
    messages = ring.grade(tmp_path / "exercise.py", patience=1).messages
    assert "or slept; in all parts together they may use 4 s" in messages["all_gather"]


def test_ranks_leave_other_work_its_share_of_the_machine(ring: Grader, tmp_path: Path) -> None:
    """The kernel may give each session a share, which a rank must not change."""
    if ring.wire.isolation:
        pytest.skip(ring.wire.isolation)
    text = (
        "import os\n\ndef reduce_scatter(comm, x, out=None):\n    refused = 0\n"
        "    for way in (os.setsid, lambda: os.open('/proc/self/autogroup', os.O_WRONLY)):\n        try:\n"
        "            way()\n        except OSError:\n            refused += 1\n"
        "    priority = open('/proc/self/stat').read().rpartition(')')[2].split()[16]\n"
        "    raise RuntimeError(int(priority), refused)\n"
    )
    assert f"RuntimeError: ({os.nice(0) + limits.NICE}, 2)" in said_of(ring, tmp_path, text)


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
