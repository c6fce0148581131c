"""How jobs end, from Python (minidist.launch) and under plain mpirun (minidist.mpi.run): well, badly, and never with a
process left over."""

import linecache
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from jobs.processes import lives, wait_until
from minidist import UsageError
from minidist.exchange import waits
from minidist.exchange.waits import Look
from minidist.launch import encode
from minidist.launch.job import JobFailed
from minidist.launch.launcher import find_mpiexec, launch, started
from minidist.launch.main_stack import format_stack, frames_in, main_stack
from minidist.launch.rank_main import look
from minidist.mpi.comm import Ledger
from programs import run_python
from tables import table

JOBS = Path(__file__).parents[1] / "jobs"
ROOT = Path(__file__).parents[2]


def line_of(code):
    """file.py:line of the only line of launch_jobs.py that reads `code`."""
    lines = (JOBS / "launch_jobs.py").read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if line.strip() == code]
    return f"launch_jobs.py:{number}"


# ---- jobs that end well ---------------------------------------------------------------------------------------------


def test_results_and_output_come_back_by_rank():
    job = launch("jobs.launch_jobs:echo", 3, 1, "two", [np.float32(3)], key={4: np.arange(5)})
    assert job.status == "ok"
    assert [rank for rank, _, _, _ in job.values] == [0, 1, 2]
    for number, rank in enumerate(job.ranks):
        _, size, args, kwargs = rank.value
        assert size == 3
        assert args == (1, "two", [3.0])
        np.testing.assert_array_equal(kwargs["key"][4], np.arange(5))
        assert rank.stdout == f"out {number}\n"
        assert rank.stderr == f"err {number}\n"
        assert (rank.finished, rank.error, rank.state) == (True, None, "finished")
    assert job.output == "\n".join(f"---- rank {rank} ----\nout {rank}\nerr {rank}" for rank in range(3))


def test_a_file_may_be_the_target_and_the_harness_counts_what_it_sends():
    job = launch(f"{JOBS / 'launch_jobs.py'}:ring_of_messages", 3, count=100)
    assert job.values == [200.0, 0.0, 100.0]  # the sum of the left neighbour's 100 elements
    assert [rank.sent for rank in job.ranks] == [{("ring", peer): (400, 1)} for peer in (1, 2, 0)]


def test_a_students_folder_is_on_the_path_of_the_ranks_only(tmp_path):
    (tmp_path / "helper_of_student.py").write_text("answer = 42\n")
    (tmp_path / "exercise.py").write_text("import helper_of_student\ndef f(comm): return helper_of_student.answer\n")
    assert launch(f"{tmp_path / 'exercise.py'}:f", 2).values == [42, 42]
    assert str(tmp_path) not in sys.path
    assert "helper_of_student" not in sys.modules


def test_environment_and_working_directory(tmp_path):
    job = launch("jobs.launch_jobs:environment", 1, "MINIDIST_TEST", env={"MINIDIST_TEST": "yes"}, cwd=tmp_path)
    assert job.values == [("yes", str(tmp_path))]


def test_only_the_beginning_of_endless_output_is_read():
    [rank] = launch("jobs.launch_jobs:print_a_lot", 1).ranks
    assert rank.stdout == "x" * 1_000_000 + "\n[500001 more bytes left out]\n"


def test_ranks_that_print_without_end_are_ended():
    job = launch("jobs.launch_jobs:print_without_end", 2, timeout=600)
    assert job.status == "hung"
    assert re.match(r"The job hung: rank [01] had printed more than 64 MB\.", job.report)


@pytest.mark.parametrize(("target", "n", "words"), table(__file__, "nothing_to_start"))
def test_nothing_to_start(target, n, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        launch(target, n)


# ---- jobs that fail -------------------------------------------------------------------------------------------------


def test_an_exception_on_one_rank_is_the_report():
    job = launch("jobs.launch_jobs:fail_on_one", 3, 1, "raise")
    assert job.status == "failed"
    file = JOBS / "launch_jobs.py"
    traceback = f"""\
Traceback (most recent call last):
  File "{file}", line {line_of("leave(how)").split(":")[1]}, in fail_on_one
    leave(how)
  File "{file}", line {line_of('raise ValueError("this rank fails")').split(":")[1]}, in leave
    raise ValueError("this rank fails")
ValueError: this rank fails"""
    error = job.ranks[1].error
    assert re.sub(r"\n *~+\^+(?=\n)", "", error) == traceback  # Python 3.13 underlines the call
    assert job.ranks[1].error_type == "ValueError"
    assert job.ranks[1].stdout == "before the end\n"
    ended = "ended because rank 1 failed"
    assert job.report == f"rank 1 failed:\n{error}\nrank 0: {ended}\nrank 2: {ended}"
    assert [rank.error for rank in job.ranks] == [None, error, None]
    with pytest.raises(JobFailed, match="this rank fails"):
        _ = job.values


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("sys.exit(0)", "failed", f"sys.exit(0) was called at {line_of('sys.exit(0)')}"),
        ("sys.exit(3)", "failed", f"sys.exit(3) was called at {line_of('sys.exit(3)')}"),
        ("os._exit(0)", "killed", "ended with status 0"),
        ("os._exit(3)", "killed", "ended with status 3"),
        ("SIGKILL", "killed", "killed by signal 9 (SIGKILL)"),
        ("SIGSEGV", "killed", "killed by signal 11 (SIGSEGV)"),
        *([("SIGRTMIN+3", "killed", "killed by signal 37")] if sys.platform == "linux" else []),  # it has no name
    ],
)
def test_a_rank_that_leaves_or_disappears_ends_the_job(how, status, words):
    job = launch("jobs.launch_jobs:fail_on_one", 3, 1, how)
    verb = "failed" if status == "failed" else "disappeared"
    assert job.status == status
    assert job.report.startswith(f"rank 1 {verb}:\n")
    assert words in job.ranks[1].error
    assert job.ranks[1].error_type == ("SystemExit" if status == "failed" else None)
    assert job.ranks[1].stdout == "before the end\n"
    for rank in (0, 2):
        assert job.ranks[rank].state == f"ended because rank 1 {verb}"
        assert job.ranks[rank].error is None


@pytest.mark.parametrize(
    ("target", "error_type", "words"),
    [
        ("return_a_set", "TypeError", "a value of type set cannot pass between processes"),
        (
            "drop_a_request",
            "CommError",
            f"irecv from rank 1 at {line_of('comm.irecv(np.empty(3), 1)')} in phase 'main'",
        ),
        ("not_there", "AttributeError", "has no attribute 'not_there'"),
    ],
)
def test_what_the_harness_itself_finds_wrong(target, error_type, words):
    job = launch(f"jobs.launch_jobs:{target}", 2)
    assert job.status == "failed"
    assert words in job.report
    assert error_type in {rank.error_type for rank in job.ranks}
    assert "/minidist/mpi/" not in job.report  # the reader's own frames only


def test_a_result_file_never_runs_code(capfd):
    job = launch("jobs.launch_jobs:forge_result", 2)
    assert job.status == "failed"
    assert "what it recorded cannot be read" in job.ranks[1].error
    assert "run code" not in capfd.readouterr().out


# ---- jobs that hang -------------------------------------------------------------------------------------------------


def test_a_cycle_of_waits_is_reported_as_one():
    job = launch("jobs.launch_jobs:everyone_receives", 3)
    at = line_of("comm.recv(np.empty(3), (comm.rank + 1) % comm.size)")
    assert job.status == "hung"
    assert job.report.splitlines()[1:] == [
        f"rank 0: recv(source=1) at {at} in everyone_receives",
        f"rank 1: recv(source=2) at {at} in everyone_receives",
        f"rank 2: recv(source=0) at {at} in everyone_receives",
        "A cycle of waits: 0 -> 1 -> 2 -> 0. Each of these ranks waits for the next, so none can go on.",
    ]
    assert job.ranks[0].where == f"{at} in everyone_receives"
    assert "comm.recv(np.empty(3)" in job.ranks[0].stack


def test_to_look_at_a_rank_reads_no_file_there_and_here_only_regular_ones(monkeypatch, tmp_path):
    """What is read stays in memory, which a graded rank would seem to hold; and a frame may name /dev/zero."""
    read = []
    monkeypatch.setattr(linecache, "updatecache", lambda name, *_: read.append(name) or [])
    looking = threading.Thread(target=look, args=(Ledger(),))
    looking.start()
    looking.join()
    frames = frames_in(f'  File "/dev/zero", line 2 in inner\n  File "{tmp_path}/outer.py", line 1 in outer\n')
    assert not read
    (tmp_path / "outer.py").touch()
    stack = format_stack([(frame.filename, frame.lineno, frame.name) for frame in frames])
    assert stack.splitlines() == [
        f'  File "{tmp_path}/outer.py", line 1, in outer',
        '  File "/dev/zero", line 2, in inner',
    ]
    assert read == [f"{tmp_path}/outer.py"]


def test_a_wait_for_a_rank_that_has_finished():
    job = launch("jobs.launch_jobs:receive_from_finished", 3)
    assert job.status == "hung"
    assert job.ranks[0].state.startswith("recv(source=1) at ")
    assert job.ranks[0].state.endswith("in receive_from_finished, but rank 1 has finished")
    assert "hung: rank 1 has left without sending what rank 0 waits for.\n" in job.report
    assert [rank.state for rank in job.ranks[1:]] == ["finished", "finished"]


def ended_after(target, seconds):
    """The job, ended when so many seconds have passed since both its ranks have printed something."""
    with started(target, 2) as running:
        printed = [running.folder / str(rank) / "stdout" for rank in range(2)]
        assert running.wait_until(lambda: all(file.exists() and file.stat().st_size for file in printed), 60) is None
        return running.wait(seconds)


def test_a_python_loop_on_one_rank():
    job = ended_after("jobs.launch_jobs:one_loops", 0.5)
    assert job.status == "hung"
    assert job.report.startswith("The job had not ended after 0.5 s: rank 1 was still computing.\n")
    assert job.ranks[0].state.startswith("recv(source=1) at ")
    assert re.fullmatch(r"computing at launch_jobs.py:\d+ in one_loops \(not in a message call\)", job.ranks[1].state)
    assert [rank.stdout for rank in job.ranks] == ["before the hang\n"] * 2


def test_a_rank_inside_native_code_cannot_answer():
    job = ended_after("jobs.launch_jobs:one_is_in_native_code", 0.5)
    assert job.status == "hung"
    assert job.ranks[0].state.endswith("; rank 1 never came")
    assert "gave no answer" in job.ranks[1].state


# ---- jobs that go on ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "status", "words"), [("hang", "hung", "A cycle of waits"), ("fail", "failed", "asked")]
)
def test_a_job_is_asked_again_and_again_until_it_does_not_end_well(tmp_path, last, status, words):
    def ask(number, what):
        (tmp_path / "unfinished").write_text(what)
        (tmp_path / "unfinished").rename(tmp_path / f"ask.{number}")
        answers = [tmp_path / f"answer.{number}.{rank}" for rank in range(2)]
        return running.wait_until(lambda: all(file.exists() for file in answers), 60)

    with started("jobs.launch_jobs:answer", 2, str(tmp_path)) as running:
        assert ask(0, "go on") is None
        assert ask(1, "go on") is None
        job = ask(2, last)
        assert (job.status, running.process.returncode is None) == (status, False)
        assert words in job.report
    assert not running.folder.exists()


def test_a_job_that_goes_on_is_ended_with_its_context(tmp_path):
    with started("jobs.launch_jobs:answer", 2, str(tmp_path)) as running:
        assert running.wait_until(lambda: True, 60) is None
        assert running.process.poll() is None
    assert running.process.returncode is not None
    assert not running.folder.exists()


def test_a_job_that_goes_on_has_a_timeout(tmp_path):
    with started("jobs.launch_jobs:answer", 2, str(tmp_path)) as running:
        job = running.wait_until(lambda: False, 0.5)
    assert job.status == "hung"
    assert "not ended after 0.5 s" in job.report


# ---- hangs in words, without MPI ------------------------------------------------------------------------------------


def waiting(call, *peers, waits=7, cpu=9.0, requests=()):
    return Look(waiting=(call, list(peers)), waits=waits, cpu=cpu, open=list(requests), where="x.py:1 in f")


FINISHED = Look(finished=True)
COMPUTING = Look(where="x.py:2 in g", cpu=9.0)


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (waiting("send", 1), "send(dest=1) at x.py:1 in f"),
        (waiting("sendrecv", 1, 2), "sendrecv(dest=1, source=2) at x.py:1 in f"),
        (waiting("wait for irecv", 2), "wait for irecv(source=2) at x.py:1 in f, but rank 2 has finished"),
        (waiting("wait for isend", 1), "wait for isend(dest=1) at x.py:1 in f"),
        (waiting("recv (control)", 1), "recv(source=1) of an object at x.py:1 in f"),
        (waiting("barrier", 0, 1, 2), "barrier at x.py:1 in f; ranks 1 and 2 never came"),
        (waiting("split", 0, 1), "split at x.py:1 in f; rank 1 never came"),
        (COMPUTING, "computing at x.py:2 in g (not in a message call)"),
        (FINISHED, "finished"),
    ],
)
def test_every_kind_of_wait_has_words(look, words):
    assert waits.describe(0, [look, COMPUTING, FINISHED]) == words


@pytest.mark.parametrize(
    ("looks", "cycle"),
    [
        ([waiting("recv", 1), waiting("recv", 0)], [0, 1]),
        ([waiting("send", 1), waiting("send", 0)], [0, 1]),
        ([waiting("recv", 0)], [0]),
        ([waiting("recv", 1), waiting("recv", 2), waiting("recv", 1)], [1, 2]),
        ([waiting("recv", 1), waiting("barrier", 0, 1)], [0, 1]),
        ([waiting("wait for irecv", 1), waiting("send", 2), waiting("recv", 0)], [0, 1, 2]),
        ([waiting("recv", 1), COMPUTING], []),
        ([waiting("recv", 1), FINISHED], []),
        ([waiting("send", 1), waiting("recv", 0)], []),  # a message under way
    ],
)
def test_the_shortest_cycle_is_found(looks, cycle):
    assert waits.find_cycle(looks) == cycle


ALL = (0, 1, 2)


@pytest.mark.parametrize(
    "looks",
    [
        [waiting("recv", 1), waiting("recv", 2), waiting("recv", 0)],
        [waiting("send", 1), waiting("send", 2), waiting("send", 0)],
        [waiting("recv", 1), FINISHED, FINISHED],
        [waiting("barrier", *ALL), waiting("barrier", *ALL), waiting("recv", 0)],
        [waiting("barrier", *ALL), waiting("barrier", *ALL), FINISHED],
        [waiting("sendrecv", 1, 2), waiting("send", 2), FINISHED],
        [waiting("recv", 1, requests=[("isend", 1)]), waiting("barrier", 0, 1), FINISHED],
    ],
)
def test_a_certain_deadlock(looks):
    before = [look if look.finished else waiting(*look.waiting, cpu=look.cpu - 1) for look in looks]
    unfinished = [rank for rank, look in enumerate(looks) if not look.finished]
    assert waits.find_stuck(before, looks) == unfinished


@pytest.mark.parametrize(
    "looks",
    [
        [FINISHED, FINISHED, FINISHED],
        [waiting("recv", 1), COMPUTING, FINISHED],
        [waiting("recv", 1), None, FINISHED],
        # The awaited message may be under way:
        [waiting("recv", 1), waiting("send", 0), FINISHED],
        [waiting("recv", 1), waiting("wait for isend", 0), FINISHED],
        [waiting("recv", 1), waiting("recv", 2, requests=[("isend", 0)]), waiting("recv", 0)],
        [waiting("send", 1), waiting("send", 2, requests=[("irecv", 0)]), waiting("send", 0)],
        [waiting("wait for irecv", 1), waiting("sendrecv", 0, 2), waiting("recv", 0)],
        [waiting("sendrecv", 1, 2), waiting("sendrecv", 2, 0), waiting("sendrecv", 0, 1)],
        [waiting("barrier", *ALL), waiting("barrier", *ALL), waiting("barrier", *ALL)],
    ],
)
def test_what_may_still_move_is_no_deadlock(looks):
    before = [Look(waits=7) if look is None else Look(look.finished, look.waiting, waits=look.waits) for look in looks]
    assert not waits.find_stuck(before, looks)


def test_ranks_can_be_stuck_while_others_compute():
    """Rank 2 waits for rank 3, which has finished; rank 1 for rank 2; rank 0 will go on when rank 4 sends."""
    looks = [waiting("recv", 4), waiting("recv", 2), waiting("barrier", 2, 3, 4), FINISHED, COMPUTING]
    before = [waiting(*look.waiting, cpu=8) if look.waiting else look for look in looks]
    assert waits.find_stuck(before, looks) == [1, 2]
    assert waits.find_cause(looks, [1, 2]) == "rank 3 has left without calling barrier, in which rank 2 waits"


def test_messages_that_have_arrived_are_not_under_way():
    """Around a ring that rank 1 has left: the sendrecv of rank 2 has begun to send, and rank 0 has all of it."""

    def around(dest, source, set_out, arrived):
        look = waiting("sendrecv", dest, source)
        look.set_out, look.arrived = {dest: set_out}, {source: arrived}
        return look

    looks = [around(1, 2, 1, 1), FINISHED, around(0, 1, 1, 0)]
    before = [look if look.finished else waiting(*look.waiting, cpu=8) for look in looks]
    assert waits.find_stuck(before, looks) == [0, 2]
    assert waits.find_cause(looks, [0, 2]) == "rank 1 has left without sending what rank 2 waits for"
    looks[2].set_out = {0: 2}
    assert waits.find_stuck(before, looks) == [2]


def test_a_rank_that_moved_or_never_ran_in_between_is_no_deadlock():
    now = [waiting("recv", 1), waiting("recv", 0)]
    assert not waits.find_stuck([waiting("recv", 1, cpu=8), waiting("recv", 0, cpu=8, waits=6)], now)
    assert not waits.find_stuck([waiting("recv", 1, cpu=8), waiting("recv", 0, cpu=8.99)], now)
    assert not waits.find_stuck([waiting("recv", 1, cpu=8), None], now)


def test_a_look_keeps_nothing_alive():
    """What a function had is gone when it returns, also while another thread looks at the stack again and again."""
    looks, done = [], threading.Event()

    def hold() -> weakref.ref:
        array = np.zeros(1)
        for _ in range(100):
            pass
        return weakref.ref(array)

    def look_again() -> None:
        while not done.is_set():
            looks.append(main_stack())

    interval, looker = sys.getswitchinterval(), threading.Thread(target=look_again)
    sys.setswitchinterval(1e-5)  # seconds: so that threads change places in the midst of a look
    try:
        looker.start()
        kept, give_up = 0, time.monotonic() + 60  # by then a look has come at the right moment on any machine
        while not any(frame.name == "hold" for look in looks for frame in look) and time.monotonic() < give_up:
            kept += sum(hold()() is not None for _ in range(20_000))
    finally:
        done.set()
        looker.join()
        sys.setswitchinterval(interval)
    assert kept == 0
    assert any(frame.name == "hold" for look in looks for frame in look)


# ---- nothing is left over -------------------------------------------------------------------------------------------


def pids_in(folder, n):
    """The ranks' process ids, when all of them have written theirs."""
    assert wait_until(lambda: all((folder / str(rank)).exists() for rank in range(n)))
    return [int((folder / str(rank)).read_text()) for rank in range(n)]


def test_a_launcher_that_is_killed_leaves_no_rank(tmp_path):
    job = f"launch('jobs.launch_jobs:write_pid_and_wait', 2, {str(tmp_path)!r})"
    program = f"from minidist.launch.launcher import launch; {job}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=env) as launcher:
        pids = pids_in(tmp_path, 2)
        assert all(lives(pid) for pid in pids)
        launcher.kill()
    assert wait_until(lambda: not any(lives(pid) for pid in pids))


def test_ctrl_c_in_the_launcher_ends_every_rank(tmp_path):
    pids = []

    def interrupt():
        pids.extend(pids_in(tmp_path, 2))
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        launch("jobs.launch_jobs:write_pid_and_wait", 2, str(tmp_path))
    thread.join()
    assert len(pids) == 2
    assert wait_until(lambda: not any(lives(pid) for pid in pids))


def test_ctrl_c_of_somebody_who_looks_on_is_in_the_report(tmp_path):
    seen = []

    def look_on(printed):
        seen.append(printed())
        if seen[-1] == ["before the hang\n"] * 2:
            signal.raise_signal(signal.SIGINT)

    job = launch("jobs.launch_jobs:one_loops", 2, watch=look_on)
    assert (seen[0], job.status) == (["", ""], "interrupted")
    assert [rank.stdout for rank in job.ranks] == ["before the hang\n"] * 2
    first, at_0, at_1 = job.report.splitlines()
    assert first == "The job was interrupted."
    assert at_0.startswith("rank 0: recv(source=1) at launch_jobs.py:")
    assert at_1.startswith("rank 1: computing at launch_jobs.py:")


def test_the_timeout_leaves_no_rank_and_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ids = tmp_path / "ids"
    ids.mkdir()
    with started("jobs.launch_jobs:write_pid_and_wait", 2, str(ids)) as running:
        assert running.wait_until(lambda: all((ids / str(rank)).exists() for rank in range(2)), 60) is None
        job = running.wait(0.3)
    assert job.status == "hung"
    assert wait_until(lambda: not any(lives(pid) for pid in pids_in(ids, 2)))
    assert list(tmp_path.iterdir()) == [ids]


# ---- chapters under plain mpirun ------------------------------------------------------------------------------------


def finish(n, *args):
    """(exit status, stdout, stderr) of `mpirun -n N python run_script.py ARGS`, without mpirun if n is 0."""
    done = run_python(str(JOBS / "run_script.py"), *args, ranks=n)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_chapter_that_ends_well(n):
    status, out, err = finish(n, "none")
    assert (status, err) == (0, "")
    assert sorted(re.findall(r"rank (\d) in main", out)) == [str(rank) for rank in range(max(n, 1))]


@pytest.mark.parametrize("n", [0, 3])
def test_a_claim_that_does_not_hold_is_exit_status_1_without_noise(n):
    status, _, err = finish(n, "claim")
    assert (status, err) == (1, "")


@pytest.mark.parametrize(("args", "place"), [((), ""), (("2",), "on rank 2: ")])
def test_a_usage_error_is_one_line_and_exit_status_2(args, place):
    assert finish(3, "usage", *args) == (2, "", f"minidist: error: {place}no such model: tiny; use small\n")


def test_a_usage_error_in_main_is_one_line_too():
    status, _, err = finish(3, "late usage")
    assert (status, err) == (2, "minidist: error: no such file: x.json\n")


def test_help_is_printed_once():
    assert finish(3, "help") == (0, "usage: run_script.py MODE\n", "")


def test_an_exception_on_one_rank_is_printed_alone_and_ends_the_job():
    status, _, err = finish(3, "raise", "1")
    assert status == 1
    assert err.startswith("rank 1 failed:\nTraceback (most recent call last):\n")
    assert err.endswith("ValueError: a mistake in main\n")
    assert err.count("File ") == 1  # main's own frame


@pytest.mark.parametrize(("mode", "words"), table(__file__, "other_ways_to_fail_on_one_rank"))
def test_other_ways_to_fail_on_one_rank(mode, words):
    status, _, err = finish(3, mode, "1")
    assert status == 1
    assert re.fullmatch(words, err)


def test_when_every_rank_fails_the_job_ends_too():
    status, _, err = finish(3, "raise")
    assert status == 1
    assert "ValueError: a mistake in main" in err


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_when_mpirun_is_killed_or_interrupted_no_rank_is_left(sent):
    command = [find_mpiexec(), "-n", "3", sys.executable, JOBS / "run_script.py", "wait"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output = ""
        while output.count("process") < 3 or not output.endswith("\n"):  # lines of several ranks may run together
            line = process.stdout.readline()
            assert line, "the job ended"
            output += line
        pids = [int(pid) for pid in re.findall(r"process (\d+) ", output)]
        assert len(pids) == 3
        assert all(lives(pid) for pid in pids)
        process.send_signal(sent)
        assert wait_until(lambda: not any(lives(pid) for pid in pids))
    finally:
        process.kill()
        process.communicate()


# ---- values in files ------------------------------------------------------------------------------------------------

KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner),
    max_leaves=4,
)
ARRAYS = hypothesis.extra.numpy.arrays(
    hypothesis.extra.numpy.scalar_dtypes(), hypothesis.extra.numpy.array_shapes(min_dims=0, min_side=0, max_side=3)
)
VALUES = st.recursive(
    KEYS | st.floats() | ARRAYS | ARRAYS.map(lambda array: array.flat[0] if array.size else None),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)


def same(a, b):
    """Of the same types and bit for bit equal, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (a != a and b != b)
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@given(value=VALUES)
def test_a_value_comes_back_exactly(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "value"
    encode.save(path, value)
    assert same(encode.load(path), value)


def test_float16_and_awkward_arrays_come_back_exactly(tmp_path):
    for value in (
        np.array([1.5, np.nan, -np.inf, 6e-8], np.float16),
        np.arange(6.0).reshape(2, 3)[:, ::2],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        {("phase", 3): (12, 1), 4: b"\x00\xff", "nan": float("nan")},
    ):
        encode.save(tmp_path / "value", value)
        assert same(encode.load(tmp_path / "value"), value)


@pytest.mark.parametrize("value", [{1, 2}, object(), 1j, np.array([None]), np.zeros(2, "f4,i4"), [{"a": {1}}]])
def test_what_cannot_be_written_is_named(tmp_path, value):
    with pytest.raises(TypeError, match=r"set|object|complex|\('f0'"):
        encode.save(tmp_path / "value", value)
    assert not (tmp_path / "value").exists()
