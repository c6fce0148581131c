"""The wire through the process that grades: counts, deadlocks, ends of all kinds, and what a rank's word is worth."""

import itertools
import os
import random
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist.classroom.grading import limits
from minidist.classroom.grading.nursery import Nursery, own_environment
from minidist.classroom.grading.process import fields
from minidist.classroom.grading.router import Routed, Router, route
from minidist.exchange.operations import Start
from minidist.exchange.rules import Rules
from minidist.launch import over_socket
from minidist.launch.launcher import launch
from minidist.papers.collectives import ring_all_reduce

JOBS = Path(__file__).parents[1] / "jobs"
Run = Callable[..., Routed]
STRICT = Rules("synchronous", "contrary")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made


@pytest.fixture
def run(nursery: Nursery) -> Run:
    def run(job: str, n: int, *arguments: Any, rules: Rules = STRICT, patience: float = 60, source: str = "") -> Routed:
        return route(nursery, f"jobs.{job}", [arguments] * n, rules, patience, source and str(JOBS / source))

    return run


def line_of(file: str, text: str) -> str:
    """ "races.py:12": the first line with this text."""
    lines = (JOBS / file).read_text().splitlines()
    return f"{file}:{next(number for number, line in enumerate(lines, 1) if text in line)}"


# ---- results and counts ---------------------------------------------------------------------------------------------

OPERATIONS = ("all_reduce", "reduce_scatter", "tree")
CASES = [
    [name, "fractions", dtype, [size]]
    for name, dtype, size in itertools.product(OPERATIONS, ("float64", "float16"), (0, 1, 20_003))
]


@pytest.mark.parametrize("rules", [STRICT, Rules("drawn", "drawn", 7)], ids=["strict", "drawn"])
def test_collectives_give_the_bits_of_mpi(run: Run, rules: Rules) -> None:
    theirs = launch("jobs.rings:run_all", 4, CASES).values
    mine = run("rings:run_all", 4, CASES, rules=rules).values
    for rank, case in itertools.product(range(4), map(repr, CASES)):
        for what in ("digest", "sent"):
            assert mine[rank][case][what] == theirs[rank][case][what], (rank, case)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("size", [0, 5, 1000])
def test_bytes_are_counted_here(run: Run, n: int, size: int) -> None:
    job = run("rings:run_all", n, [["all_reduce", "whole numbers", "float32", [size]]])
    for me, (rank, transfers) in enumerate(zip(job.ranks, job.transfers, strict=True)):
        assert sum(nbytes for nbytes, _ in rank.sent.values()) == 4 * ring_all_reduce(size, n).sent[me]
        assert set(rank.sent) == ({("counted", (me + 1) % n)} if n > 1 else set())
        assert sum(messages for _, messages in rank.sent.values()) == 2 * (n - 1)
        assert sum(nbytes for nbytes, _ in transfers.values()) == sum(nbytes for nbytes, _ in rank.sent.values())


def test_what_nobody_receives_is_known(run: Run) -> None:
    job = run("routed:sends_too_much", 2, rules=Rules("eager"), source="routed.py")
    assert job.status == "ok"
    line = line_of("routed.py", "comm.send(np.ones(3), 1)")
    assert [(start.call, start.peer, start.where) for start in job.unreceived] == [("send", 1, line)]


def test_a_wiped_ledger_changes_no_count(run: Run) -> None:
    job = run("routed:hides_what_it_sends", 3, source="routed.py")
    sendrecv = line_of("routed.py", "comm.sendrecv(np.ones(10)")
    assert job.values == [0, 0, 0]
    for me, (rank, transfers) in enumerate(zip(job.ranks, job.transfers, strict=True)):
        assert rank.sent == {("quietly", (me + 1) % 3): (160, 2)}
        assert transfers == {("quietly", (me + 1) % 3, sendrecv): [160, 2]}


def test_each_rank_has_its_own_arguments_and_output(nursery: Nursery) -> None:
    arguments = [(np.arange(3), "a"), (None, {1: (2.5, b"x")})]
    job = route(nursery, "jobs.routed:echo", arguments, Rules(), 60)
    assert job.status == "ok"
    assert job.report.startswith("The job finished on 2 ranks in ")
    (rank, array, word), other = job.values
    assert (rank, array.tolist(), word) == (0, [0, 1, 2], "a")
    assert other == [1, None, {1: (2.5, b"x")}]
    assert [rank.stdout for rank in job.ranks] == ["rank 0 of 2\n", "rank 1 of 2\n"]
    assert [rank.stderr for rank in job.ranks] == ["and a warning\n"] * 2


def test_nothing_is_left_for_the_next_job(run: Run) -> None:
    for word in ("first", "second"):
        assert run("routed:what_is_left", 2, word).values == [(None, []), (None, [])]


def test_ranks_hash_as_processes_do_that_are_started_apart() -> None:
    with Nursery(environment=own_environment()) as made:
        together = route(made, "jobs.routed:hash_texts", [()] * 3, Rules(), 60).values
        assert together == [together[0]] * 3
        made.apart = True
        [apart, again] = [route(made, "jobs.routed:hash_texts", [()] * 3, Rules(), 60).values for _ in range(2)]
    assert len({number for number, _ in apart}) == 3
    assert apart[0][1] != apart[1][1]
    assert apart == again


class Cut:
    """A line on which the first answer is cut short by a signal: sent, and not read."""

    def __init__(self, line: socket.socket) -> None:
        self.line, self.whole = line, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.line, name)

    def recv(self, size: int) -> bytes:
        if self.whole:
            return self.line.recv(size)
        self.whole = True
        raise KeyboardInterrupt


def test_a_signal_in_the_middle_of_a_question_ends_the_nursery() -> None:
    """What unwinds then asks for the ranks' end: it is not given the answer to another question, and raises nothing
    that would take the signal's place."""
    nursery, opened = Nursery(), ExitStack()
    nursery.line = Cut(nursery.line)  # type: ignore[assignment]
    opened.callback(nursery.end)
    with pytest.raises(KeyboardInterrupt), opened:
        nursery._ask({"do": "say hello"})
    assert nursery.process.returncode == 0


@pytest.mark.parametrize("answered", [True, False])
def test_a_grader_that_is_killed_leaves_no_traceback(answered: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """It has asked something and reads no answer: then the line is reset, not closed, or the answer has no reader."""
    left = Nursery()
    left.line.sendall(b'{"do": "write stacks"}')  # which takes a while
    if answered:
        left.line.recv(1, socket.MSG_PEEK)  # until the answer is there
    left.close()
    assert (left.process.returncode, capfd.readouterr().err) == (0, "")


def test_groups_are_counted_apart_and_a_message_can_be_spoiled(nursery: Nursery) -> None:
    job = route(nursery, "jobs.routed:sends_in_groups", [()] * 3, Rules("eager"), 60)
    assert job.values == [1.0, 0.0, 1.0]
    assert job.splits == 2
    assert [{name: list(of.values()) for name, of in rank.items()} for rank in job.groups] == [
        *[{"world/0.0": [[8, 1]], "world/1.0": [[8, 1]]}] * 2,
        {"world/0.0": [[8, 1]]},
    ]
    assert set(job.messages) == {("world/0.0", rank, 0) for rank in range(3)} | {
        ("world/1.0", 0, 0),
        ("world/1.0", 1, 0),
    }
    one = ("world/1.0", 1, 0)
    spoiled = {one: bytes(len(job.messages[one].content) - 1) + b"\x01"}
    again = route(nursery, "jobs.routed:sends_in_groups", [()] * 3, Rules("eager"), 60, spoiled=spoiled)
    assert [again.values[0] == 1.0, again.values[1:]] == [False, [0.0, 1.0]]


def test_objects_may_be_refused(nursery: Nursery) -> None:
    job = route(nursery, "jobs.routed:sends_an_object", [()] * 2, Rules(), 60, objects=False)
    assert job.status == "failed"
    assert "objects, which are not for exercises: send arrays" in job.report


def test_nobody_may_look_after_requests(nursery: Nursery) -> None:
    job = route(nursery, "jobs.routed:changes_what_it_sends_later", [()] * 2, Rules("eager"), 60, guarded=False)
    assert job.values == [1.0, 0.0]
    watched = route(nursery, "jobs.routed:changes_what_it_sends_later", [()] * 2, Rules("eager"), 60)
    assert "was changed before its wait()" in watched.report


# ---- jobs that do not end well --------------------------------------------------------------------------------------


def test_a_deadlock_names_the_lines(run: Run) -> None:
    job = run("races:everybody_sends_first", 3, source="races.py")
    lines = (JOBS / "races.py").read_text().split("def everybody_sends_first")[0].count("\n") + 3
    assert job.status == "hung"
    assert job.report == (
        "The job hung: every rank waits, and no message is under way.\n"
        f"rank 0: send(dest=1) at races.py:{lines}\nrank 1: send(dest=2) at races.py:{lines}\n"
        f"rank 2: send(dest=0) at races.py:{lines}\n"
        "A cycle of waits: 0 -> 1 -> 2 -> 0. Each of these ranks waits for the next, so none can go on."
    )
    assert [rank.where for rank in job.ranks] == [f"races.py:{lines}"] * 3
    assert "in everybody_sends_first" in job.ranks[1].stack
    assert run("races:everybody_sends_first", 3, rules=Rules("eager")).values == ["right"] * 3


def test_a_deadlock_of_some_is_final_while_others_compute(run: Run) -> None:
    job = run("routed:two_stuck_one_busy", 3, patience=600)
    receive, loop = line_of("routed.py", "comm.recv(np.zeros(1), 1 - comm.rank)"), line_of("routed.py", "pass")
    busy = f"rank 2: computing at {loop} in two_stuck_one_busy (not in a message call)"
    other = busy.replace(loop, line_of("routed.py", "while comm.rank == 2"))
    assert job.status == "hung"
    assert job.report in [
        "The job hung: some ranks can never go on.\n"
        f"rank 0: recv(source=1) at {receive} in two_stuck_one_busy\n"
        f"rank 1: recv(source=0) at {receive} in two_stuck_one_busy\n{where}\n"
        "A cycle of waits: 0 -> 1 -> 0. Each of these ranks waits for the next, so none can go on."
        for where in (busy, other)
    ]


def test_an_endless_loop_is_ended(run: Run) -> None:
    job = run("routed:busy", 2, patience=1)
    assert job.status == "hung"
    assert job.report.startswith(
        "The job had not ended after 1 s: rank 0 was still computing.\nrank 0: computing at routed.py:"
    )
    assert job.report.endswith(" in busy (not in a message call)\nrank 1: finished")


def test_processor_time_is_limited_whatever_the_clock_says(nursery: Nursery) -> None:
    job = route(nursery, "jobs.routed:busy", [()] * 2, Rules(), 600, seconds=1)
    assert job.status == "hung"
    assert re.match(
        r"The job hung: rank 0 had used [12] s of processor time\.\nrank 0: computing at routed", job.report
    )


def test_patience_lasts_longer_while_ranks_compute_but_not_while_they_sleep(nursery: Nursery, tmp_path: Path) -> None:
    """Those that still compute when it has ended were given too little of the machine."""

    def run(job: str, *arguments: str, seconds: float, longest: float) -> Routed:
        return route(nursery, f"jobs.{job}", [arguments] * 2, Rules(), 0.2, seconds=seconds, longest=longest)

    computes = run("routed:busy", seconds=1, longest=600)
    assert "rank 0 had used " in computes.report
    sleeps = run("routed:writes_its_process_and_waits", str(tmp_path), seconds=1, longest=600)
    assert "had not ended after 0.2 s" in sleeps.report
    starves = run("routed:busy", seconds=600, longest=2)
    assert "had not ended after 0.2 s" in starves.report
    assert [bool(job.fault) for job in (computes, sleeps, starves)] == [False, False, True]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells who waits for a processor")
def test_a_rank_that_only_looks_busy_is_not(nursery: Nursery) -> None:
    """It waits for a child that sleeps, as a process does that waits for a disk. What counts is processor time."""
    job = route(nursery, "jobs.routed:waits_for_a_child_that_sleeps", [()], Rules(), 0.2, seconds=60, longest=600)
    assert "had not ended after 0.2 s: rank 0 was still computing" in job.report
    assert not job.fault


def test_ranks_that_have_used_much_were_not_starved(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that took on a busy machine."""
    used = iter([0.0])  # before the job
    monkeypatch.setattr(limits, "look_at", lambda _: limits.Use(0, 1, next(used, 300.0)))
    how: dict[str, Any] = {"memory": 1 << 40, "seconds": 600, "together": 1000.0, "longest": 2.0}
    job = route(nursery, "jobs.routed:busy", [()] * 2, Rules(), 0.2, **how)
    assert "had not ended after 0.2 s" in job.report
    assert not job.fault


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells what processes use")
def test_what_ranks_start_uses_their_processor_time(nursery: Nursery) -> None:
    how: dict[str, Any] = {"memory": 1 << 40, "seconds": 600, "together": 1.0}
    job = route(nursery, "jobs.routed:lets_children_compute", [()] * 2, Rules(), 600, **how)
    assert job.status == "killed"
    assert re.search(r"all that they have started, had used \d s of processor time; all .* may use 1 s", job.report)
    assert job.used >= 1


def test_what_is_printed_is_bounded(run: Run) -> None:
    job = run("routed:prints_without_end", 2)
    assert job.status == "failed"
    assert "it printed more than 1,000,000 bytes: does it print for ever?" in job.report
    assert max(len(rank.stdout) for rank in job.ranks) <= 1_000_000


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("raise", "failed", "ValueError: this rank fails"),
        ("sys.exit(3)", "failed", f"sys.exit(3) was called at {line_of('launch_jobs.py', 'sys.exit(3)')}"[:-2]),
        ("os._exit(3)", "killed", "its process ended with status 3 before the function returned"),
        ("SIGKILL", "killed", "it was killed by signal 9 (SIGKILL)"),
        ("SIGSEGV", "killed", "it was killed by signal 11 (SIGSEGV)"),
    ],
)
def test_a_rank_that_leaves_or_disappears_ends_the_job(run: Run, how: str, status: str, words: str) -> None:
    job = run("launch_jobs:fail_on_one", 3, 1, how)
    verb = "failed" if status == "failed" else "disappeared"
    assert job.status == status
    assert job.report.startswith(f"rank 1 {verb}:\n")
    assert words in str(job.ranks[1].error)
    assert job.ranks[1].stdout == "before the end\n"
    assert [rank.state for rank in job.ranks] == [f"ended because rank 1 {verb}", verb, f"ended because rank 1 {verb}"]


def test_a_traceback_is_the_programs_own(run: Run) -> None:
    error = str(run("launch_jobs:fail_on_one", 2, 1, "raise").ranks[1].error)
    assert error.splitlines()[1].startswith(f'  File "{JOBS / "launch_jobs.py"}", line ')
    assert "/minidist/classroom/" not in error


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("launch_jobs:return_a_set", "TypeError: a value of type set cannot pass between processes"),
        ("launch_jobs:drop_a_request", "CommError: never waited for, so the data may be missing"),
        ("launch_jobs:no_such_function", "AttributeError: module 'jobs.launch_jobs' has no attribute"),
        ("no_such_module:f", "ModuleNotFoundError: No module named 'jobs.no_such_module'"),
    ],
)
def test_other_failures(run: Run, job: str, words: str) -> None:
    done = run(job, 2)
    assert done.status == "failed"
    assert words in done.report


@pytest.mark.parametrize(
    ("race", "words"),
    [
        ("changes_what_it_sends", "isend to rank {} at races.py:{} was changed before its wait()"),
        (
            "passes_on_before_the_wait",
            "to rank {} was computed from the array of irecv at races.py:{} before its wait()",
        ),
        ("writes_into_a_receive", "irecv from rank {} at races.py:{} was written to before its wait()"),
    ],
)
def test_races_are_found(run: Run, race: str, words: str) -> None:
    lines = (JOBS / "races.py").read_text().splitlines()
    start = lines.index(f"def {race}(comm: Comm) -> Any:")
    request = 1 + next(i for i in range(start, len(lines)) if "= comm.i" in lines[i])
    ranks = run(f"races:{race}", 3).ranks
    assert any(words.format(peer, request) in str(rank.error) for peer in range(3) for rank in ranks)


# ---- what a rank says ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "arguments", "words"),
    [
        ("lies_about_a_dtype", (), "10 bytes as 3 x float64"),
        ("writes_rubbish", (), "JSONDecodeError"),
        ("closes_its_line", (0,), "its process ended with status 0 before the function returned"),
        ("closes_its_line", (600,), "it closed its connection"),
    ],
)
def test_a_rank_that_goes_past_its_comm(run: Run, job: str, arguments: tuple[Any, ...], words: str) -> None:
    done = run(f"routed:{job}", 2, *arguments)
    assert done.status in ("failed", "killed")
    assert words in done.report


def listen(streams: list[bytes]) -> Router:
    """A router that gets these bytes from its ranks, and then nothing more."""
    router = Router(len(streams), Rules())
    for rank, stream in enumerate(streams):
        with router.connect(rank) as theirs:
            theirs.sendall(stream)
            theirs.shutdown(socket.SHUT_WR)
    router.run(5)
    router.close()
    return router


def whole(*values: Any) -> bytes:
    return b"".join(bytes(piece) for value in values for piece in over_socket.to_frame(value))


START = Start(0, "send", True, "world", "payload", 0, 11 | 1 << 4, None, "main", "x.py:1", np.zeros(4, np.uint8))
SENSIBLE = [["ask", [fields(START)], "probe", ("world", "x.py:2")], ["tell", []], ["returned", [1, np.ones(3)]]]


def test_a_sensible_stream() -> None:
    router = listen([whole(*SENSIBLE)])
    assert router.first is None
    assert router.ranks[0].finished
    assert router.transfers == [{("main", 0, "x.py:1"): [4, 1]}]


def test_a_rank_that_asks_before_it_has_its_answer() -> None:
    barrier = whole(["ask", [], "meet", ("barrier", "world", 0, 0, "x.py:1")])
    router = listen([barrier * 2, b""])
    assert router.first == 0
    assert "a call that cannot be" in str(router.ranks[0].error)


def test_streams_of_rubbish() -> None:
    for seed in range(400):
        draw = random.Random(seed)
        stream = bytearray(whole(*SENSIBLE) if seed % 4 else draw.randbytes(draw.randrange(1, 300)))
        for _ in range(draw.randrange(1, 6)):
            stream[draw.randrange(len(stream))] = draw.randrange(256)
        router = listen([bytes(stream[: draw.randrange(1, len(stream) + 1)])])
        assert router.ranks[0].finished or router.first == 0 or router.hung


words = st.sampled_from(["world", "payload", "send", "split", "x"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.floats() | words,
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)
questions = st.sampled_from(["block", "meet", "probe", "collect", "look", "finish", "advance", "__init__", "x"])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_frames_of_nonsense(data: st.DataObject) -> None:
    """Frames as a rank would write them, in which anything may stand anywhere."""
    start = fields(START)
    for place in data.draw(st.sets(st.integers(0, len(start) - 1), max_size=2)):
        start[place] = data.draw(anything)
    value = [
        "ask",
        [start] * data.draw(st.integers(0, 2)),
        data.draw(questions),
        tuple(data.draw(st.lists(anything, max_size=5))),
    ]
    router = listen([whole(value), whole(["returned", None])])
    assert router.first is not None or router.hung or router.ranks[0].finished


def test_a_frame_too_large_is_not_waited_for() -> None:
    router = listen([over_socket.LENGTHS.pack(10, 1 << 40)])
    assert router.first == 0
    assert "at most 1,073,741,824 are read" in str(router.ranks[0].error)


# ---- processes -------------------------------------------------------------------------------------------------------


def test_what_ranks_will_import_is_there_before_them() -> None:
    """If it can be imported: else it is the rank that fails, where it tries."""
    names = ["minidist.zero1", "minidist.not_there"]
    cell = [("the cell", f"import sys; found = [name in sys.modules for name in {names}]")]
    with Nursery(modules=names) as nursery:
        job = route(nursery, "minidist.launch.notebook_cell:run_cell", [(cell, {}, ["found"])] * 2, Rules("eager"), 60)
    assert job.values == [[[True, False]]] * 2


def test_ranks_end_with_the_process_that_forked_them(tmp_path: Path) -> None:
    nursery, router = Nursery(), Router(2, Rules())
    with open(os.devnull, "wb") as nowhere:
        for rank in range(2):
            with router.connect(rank) as line:
                nursery.fork(
                    rank, "jobs.routed:writes_its_process_and_waits", [line.fileno(), *[nowhere.fileno()] * 3], 600, ""
                )
            router.say(rank, [rank, 2, "", True, (str(tmp_path),)])
    give_up = time.monotonic() + 60
    while not all((tmp_path / str(rank)).exists() and (tmp_path / str(rank)).read_text() for rank in range(2)):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    processes = [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
    nursery.process.kill()
    nursery.close()
    give_up = time.monotonic() + 30
    while any(Path(f"/proc/{process}").exists() for process in processes):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    router.close()


def test_a_job_leaves_no_process(run: Run, tmp_path: Path) -> None:
    assert run("routed:writes_its_process_and_waits", 2, str(tmp_path), patience=2).status == "hung"
    for rank in range(2):
        assert not Path(f"/proc/{(tmp_path / str(rank)).read_text()}").exists()
