"""Hosts that are namespaces: two accounts of what a host sends, links with a rate, and nothing that stays behind."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from minidist import UsageError
from minidist.__main__ import main
from minidist.hosts import compare
from minidist.hosts.network import Network, Record, account, across, bits, check_programs, step_of
from minidist.launch import launcher
from minidist.programs.chapter import find
from programs import run_python
from tables import table

MARK = "MINIDIST_TEST_HOSTS"  # in the environment of all processes of a test
ANOTHER_USER = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]  # not root, and without its rights
SMALL = ["--steps", "3", "--validate", "0", "--layers", "2"]


def hosts(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command. Skips the test, with the reason, where the system allows no namespaces."""
    done: subprocess.CompletedProcess[str] = run_python("-m", "minidist", "hosts", *words, env=environment, timeout=300)
    if done.stderr.startswith(("minidist: error: hosts", "minidist: error: no hosts on this system: unshare")):
        pytest.skip(done.stderr.strip())
    return done


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_the_kernel_counts_what_ranks_send() -> None:
    done = hosts("2", "--rate", "500mbit", "--", sys.executable, "-m", "minidist.zero3", *SMALL)
    assert done.returncode == 0, done.stderr + done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("host")]
    assert [row[0] for row in rows[1:]] == ["host0", "host1"]
    assert all(row[-1] == "✓" for row in rows[1:])
    received, sent, payload = (int(rows[1][i].replace(",", "")) for i in (1, 2, 3))
    assert min(received, sent) > payload > 100_000
    assert "A step takes" in done.stdout


def test_a_host_has_its_own_name_and_memory_but_not_its_own_disk(tmp_path: Path) -> None:
    text = (
        "import os, pathlib, socket; from mpi4py import MPI; name = socket.gethostname()\n"
        f"pathlib.Path({str(tmp_path)!r}, name).write_text(' '.join(sorted(os.listdir('/dev/shm'))))\n"
        "MPI.COMM_WORLD.Barrier()"
    )
    done = hosts("2", "--", *program(text))
    assert done.returncode == 0, done.stderr
    segments = [set((tmp_path / name).read_text().split()) for name in ("host0", "host1")]
    assert not segments[0] & segments[1]


def test_a_link_between_racks_is_slow_and_a_link_within_is_not(tmp_path: Path) -> None:
    """Only lower bounds of time, so that a loaded machine cannot break it."""
    text = (
        "import time, pathlib, numpy; from mpi4py import MPI; world = MPI.COMM_WORLD; rank = world.rank\n"
        "data, out = numpy.zeros(500_000, 'u1'), numpy.zeros(500_000, 'u1')\n"
        "for peer in (rank ^ 1, rank ^ 2):\n"
        "    world.Barrier(); begin = time.monotonic(); world.Sendrecv(data, peer, 0, out, peer)\n"
        "    took = time.monotonic() - begin\n"
        f"    pathlib.Path({str(tmp_path)!r}, f'{{rank}}-{{peer}}').write_text(str(took))\n"
    )
    done = hosts("4", "--rate", "1gbit", "--racks", "2", "--between", "10mbit", "--", *program(text))
    assert done.returncode == 0, done.stderr
    across = [float((tmp_path / f"{rank}-{rank ^ 2}").read_text()) for rank in range(4)]
    # Two hosts of a rack share its link: 2 x 500,000 bytes, less what may pass at once.
    assert max(across) > 0.8 * 8 * 2 * (500_000 - 65_536) / 10e6
    assert min(float((tmp_path / f"{rank}-{rank ^ 1}").read_text()) for rank in range(4)) < max(across)


MOVING = """
import time
import numpy as np
from minidist.mpi import interface, over_mpi
from minidist.mpi.run import run

def main(comm, _):
    out, nothing = np.zeros(1 << 24, np.uint8), interface.read()["received"]
    comm.barrier()
    requests = [comm.irecv(out, 1 - comm.rank), comm.isend(np.ones_like(out), 1 - comm.rank)]
    give_up = time.monotonic() + {seconds}
    while interface.read()["received"] - nothing < out.size and time.monotonic() < give_up:
        time.sleep(0.05)  # computing, without a call of MPI
    moved = interface.read()["received"] - nothing >= out.size
    for request in requests:
        request.wait()
    return 0 if moved and out.all() else 9

run(main, lambda comm: over_mpi.__dict__.update(POLL={poll}))
"""


@pytest.mark.parametrize(("poll", "seconds", "status"), [("over_mpi.POLL", 60, 0), ("100", 2, 9)])
def test_messages_between_hosts_move_while_ranks_compute(poll: str, seconds: int, status: int, tmp_path: Path) -> None:
    """Also that they do not without the thread, so that the test can fail."""
    (tmp_path / "moving.py").write_text(MOVING.format(poll=poll, seconds=seconds))
    done = hosts("2", "--", sys.executable, str(tmp_path / "moving.py"))
    assert done.returncode == status, done.stderr


def test_the_status_is_that_of_the_job() -> None:
    assert hosts("2", "--", *program("raise SystemExit(7)")).returncode == 7


def test_delay_needs_netem() -> None:
    done = hosts("2", "--delay", "2ms", "--", "true")
    if done.returncode == 0:
        pytest.skip("this kernel has netem")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "netem" in done.stderr


def test_root_is_not_needed_where_users_may_have_namespaces() -> None:
    if subprocess.run([*ANOTHER_USER, "true"], capture_output=True).returncode:
        pytest.skip("this system allows no user namespaces")
    words = ["-m", "minidist", "hosts", "2", "--", sys.executable, "-m", "minidist.zero1", *SMALL]
    done = subprocess.run([*ANOTHER_USER, sys.executable, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "host1" in done.stdout


@pytest.mark.parametrize(("line", "said"), table(__file__, "what_cannot_work_is_refused_in_a_line"))
def test_what_cannot_work_is_refused_in_a_line(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=said):
        main(["hosts", *line.split()])


def test_another_mpi_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_mpiexec", lambda: "mpirun")
    monkeypatch.setattr(launcher, "is_open_mpi", lambda mpirun: True)
    with pytest.raises(UsageError, match="MPICH"):
        check_programs()


# ---- both accounts, from records ------------------------------------------------------------------------------------


def record(rank: int, payload: int, messages: int, wire: int, **more: Any) -> Record:
    """A rank whose host has sent `wire` bytes in packets of 1,000, and whose empty messages took 30 bytes each."""
    end = {"sent": wire, "received": wire, "packets out": wire // 1000}
    after = {"sent": wire + 50 * 96, "received": wire, "packets out": wire // 1000 + 50}
    zero = dict.fromkeys(end, 0)
    sent = [(("payload", "p", 1 - rank, "bytes"), payload), (("payload", "p", 1 - rank, "messages"), messages)]
    sent += [(("payload", "p", rank, "bytes"), 10**9)]  # stays within the host
    return Record(rank, {"counters": [zero, end, after], "moments": [], "sent": sent, **more})


@pytest.mark.parametrize(("forgotten", "agrees"), [(0, True), (15_000, True), (30_000, False), (-30_000, False)])
def test_a_count_that_is_wrong_by_three_percent_is_seen(forgotten: int, agrees: bool) -> None:
    wire, messages = 1_000_000, 100
    payload = wire - 66 * 1000 - 30 * messages - forgotten
    found = account(Network(2), 0, [record(rank, payload, messages, wire) for rank in (0, 1)])
    assert (found.payload, found.headers, found.envelopes, found.rest) == (payload, 66_000, 3000, forgotten)
    assert found.agrees == agrees


def test_small_messages_may_differ_by_ten_percent() -> None:
    wire, messages = 1_000_000, 1000
    for forgotten, agrees in ((90_000, True), (110_000, False)):
        payload = wire - 66 * 1000 - 30 * messages - forgotten
        assert account(Network(2), 1, [record(rank, payload, messages, wire) for rank in (0, 1)]).agrees == agrees


def stepping(rank: int, waited: float, **sent: int) -> Record:
    """A rank of four with two steps of a second, after a first one of nine."""
    moments = [[float(at), waited * at, {peer[1:]: n for peer, n in sent.items()}] for at in (0, 9, 10, 11)]
    return record(rank, 0, 0, 0, moments=moments)


def test_a_step_is_from_reset_to_reset() -> None:
    assert step_of([stepping(0, 0.5), stepping(1, 0.25)]) == (1.0, 0.25)
    assert step_of([record(0, 0, 0, 0)]) == (0.0, 0.0)
    assert bits("200mbit") == 200e6
    assert bits("1.5gbit") == 1.5e9


def test_bytes_across_a_link_depend_on_where_ranks_are() -> None:
    records = [stepping(0, 0, r1=100, r2=7), stepping(1, 0, r0=1), stepping(2, 0, r3=10), stepping(3, 0, r2=50)]
    assert across(Network(2, 2), records) == 7
    assert across(Network(2, 2, spread=True), records) == 100 + 10
    assert across(Network(4), records) == 107
    assert across(Network(1, 4), records) == 0


def test_the_table_of_layouts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step that takes twice as long as its bytes, and one of tensor parallelism that takes five times that."""

    def measure(network: Network, line: str) -> tuple[float, float]:
        nbytes = 5e6 if line.startswith("tensor") or network.spread else 1e6
        return 2 * 8 * nbytes / bits(network.rate), nbytes

    monkeypatch.setattr(compare, "measure", measure)
    monkeypatch.chdir(tmp_path)
    assert main(["hosts", "--compare", "--plot", "layouts.svg"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line.split() for line in lines if line.startswith("ZeRO-3"))
    assert row == ["ZeRO-3", "1,000", "16", "2.0", "80", "2.0", "320", "2.0"]
    said = " ".join(lines)
    assert "plan, told how long data parallelism takes at 1gbit, expects these ms at 50mbit:" in said
    assert "5.0 times as long as data parallelism" in said
    assert "5.0 times as long if its tensor axis crosses" in said
    assert b"<svg" in (tmp_path / "layouts.svg").read_bytes()


@pytest.mark.parametrize("name", compare.LAYOUTS)
def test_each_layout_is_one_that_its_chapter_takes(name: str) -> None:
    network, line = compare.LAYOUTS[name]
    chapter, *options = f"{line} {compare.RUN}".split()
    assert find(chapter).job(options, network().ranks).layout.ranks == 4


def test_plan_knows_most_layouts_and_what_slow_links_do_to_them() -> None:
    found = compare.expected(0.11 - 8 * 1_265_000 / 1e9)
    assert len(found) == len(compare.LAYOUTS) - 7
    assert found["hybrid sharding, 2 hosts x 2"] < found["ZeRO-3"] < found["context"] < found["tensor"]
    assert found["3D, tensor axis within hosts"] < found["3D, tensor axis across hosts"]
    assert found["ZeRO-3"] == found["FSDP"] > 8 * 1_897_000 / 50e6


def test_two_orders_are_compared_pair_by_pair_without_ties(capsys: pytest.CaptureFixture[str]) -> None:
    compare.say_order({"a": 1.0, "b": 2.0, "c": 3.0, "d": 0.5}, {"a": 1.0, "b": 3.0, "c": 2.0})
    assert "a 1,000; c 2,000; b 3,000." in " ".join(capsys.readouterr().out.split())
    compare.say_order({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 2.5, "b": 3.0, "c": 2.0})
    said = " ".join(capsys.readouterr().out.split())
    assert "1 of 3 pairs are in the measured order. Most often in the others: c (2); a (1); b (1)." in said
    compare.say_order({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 1.0005})
    assert capsys.readouterr().out.endswith("0 of 0 pairs are in the measured order.\n")


# ---- nothing is left ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 30))])
def test_nothing_is_left_after_a_kill(seed: int) -> None:
    hosts("1", "--", "true")  # skips where there can be none
    draw = random.Random(seed)
    before = set(os.listdir("/sys/class/net"))
    words = ["2", "--", sys.executable, "-m", "minidist.zero3", "--steps", "2000", "--validate", "0"]
    mark = f"{os.getpid()}.{seed}"
    user = ANOTHER_USER * (seed % 2)
    if user and subprocess.run([*user, "true"], capture_output=True).returncode:
        pytest.skip("this system allows no user namespaces")
    process = subprocess.Popen(
        [*user, sys.executable, "-m", "minidist", "hosts", *words],
        env={**os.environ, MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        time.sleep(draw.uniform(0, 5))
        victim = process.pid if draw.random() < 0.7 else draw.choice(marked(mark) or [process.pid])
        os.kill(victim, draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        if victim != process.pid:  # the job may be able to go on without it
            time.sleep(0.5)
            process.kill()
        process.wait(30)
        give_up = time.monotonic() + 30
        while marked(mark) and time.monotonic() < give_up:
            time.sleep(0.05)
        assert not marked(mark)
        assert set(os.listdir("/sys/class/net")) == before
    finally:
        process.kill()


def marked(mark: str) -> list[int]:
    """The processes with this mark in their environment, in any namespace."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"{MARK}={mark}".encode() in Path("/proc", name, "environ").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return [process for process in found if process != os.getpid()]
