"""Jobs like those of `launcher.py`, without MPI: their ranks take turns in one process, a child of this one.

The two sides communicate through files in a folder, and through the child's standard input: a line there asks what the
ranks are doing, and its end ends the child. In the folder:

    job                 the target function, the number of ranks, and the arguments
    turn                the rank that runs, in 4 bytes: if the process disappears, that is the one
    0/stdout, 0/stderr  what rank 0 has printed, and likewise for each rank
    process             what the process has printed before the first turn
    seen                how all ranks were, when asked
    outcome             how all ranks were at the end
"""

import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from minidist.exchange import waits
from minidist.exchange.waits import Look
from minidist.launch import encode
from minidist.launch.job import JobOutcome, RankResult, Watch, blame, describe_exit
from minidist.launch.launcher import here
from minidist.launch.records import PRINTED, finished, last_output, tell_looks, text_of, too_long
from minidist.system import unix
from minidist.system.files import temporary_folder

ANSWER = 2.0  # seconds that the child has to say what its ranks are doing


def launch_in_one_process(target: str, n: int, *args: Any, timeout: float, watch: Watch) -> JobOutcome:
    """Call `target` on n ranks of one process, and return when it has ended. The rest is as for `launch`."""
    begin = time.monotonic()
    with temporary_folder() as folder:
        for rank in range(n):
            (folder / str(rank)).mkdir()
        encode.save(folder / "job", (target, n, args))
        (folder / "turn").write_bytes((-1).to_bytes(4, "little", signed=True))
        program = [sys.executable, "-u", "-P", "-m", "minidist.launch.one_process_main", str(folder)]
        with (
            open(folder / "process", "wb") as output,
            subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=here({}), **unix.APART
            ) as child,
        ):
            stopped = None
            try:
                try:
                    stopped = _watch(child, folder, n, begin + timeout, watch)
                except KeyboardInterrupt:
                    stopped = "interrupted", "was interrupted"
                if stopped:
                    _ask(child, folder)
            finally:
                if child.poll() is None:
                    with suppress(ProcessLookupError):
                        unix.signal_group(child.pid, unix.KILL)
        return _collect(folder, n, child.returncode, stopped, timeout, time.monotonic() - begin)


def _watch(
    child: subprocess.Popen[bytes], folder: Path, n: int, deadline: float, watch: Watch
) -> tuple[str, str] | None:
    """Return None when the child has ended. If it must be ended, return the job's status, and what its report says; ""
    if that depends on what its ranks are doing."""
    while child.poll() is None:
        watch(partial(last_output, folder, n))
        if (talker := too_long(folder, n)) is not None:
            return "hung", f"hung: rank {talker} had printed more than {PRINTED >> 20} MB"
        if time.monotonic() > deadline:
            return "hung", ""
        time.sleep(0.01)
    return None


def _ask(child: subprocess.Popen[bytes], folder: Path) -> None:
    """Let the child write down what its ranks are doing, if it can."""
    assert child.stdin
    give_up = time.monotonic() + ANSWER
    with suppress(OSError):  # it has just ended
        child.stdin.write(b"\n")
        child.stdin.flush()
        while child.poll() is None and not (folder / "seen").exists() and time.monotonic() < give_up:
            time.sleep(0.01)


def _collect(
    folder: Path, n: int, code: int, stopped: tuple[str, str] | None, timeout: float, seconds: float
) -> JobOutcome:
    """Read what the child has written, and report what happened."""
    mine = [folder / str(rank) for rank in range(n)]
    ranks = [RankResult(stdout=text_of(each / "stdout"), stderr=text_of(each / "stderr")) for each in mine]
    job = finished(ranks, seconds)
    found: dict[str, Any] = {"looks": [None] * n, "awaited": [[]] * n, "cause": "", "first": -1}
    for name in ("seen", "outcome"):
        with suppress(Exception):  # it was never written, or the program has written something else there
            found |= encode.load(folder / name)
    for rank, result in found.get("results", {}).items():
        ranks[rank].value, ranks[rank].sent, ranks[rank].control = result
        ranks[rank].finished, ranks[rank].state = True, "finished"
    looks = [look and Look(**look) for look in found["looks"]]
    if found["first"] >= 0:
        first = ranks[found["first"]]
        job.status, (first.error_type, first.error) = "failed", found["error"]
        blame(job, found["first"], "failed")
    elif found["cause"] or stopped:
        job.status, what = stopped or ("hung", f"hung: {found['cause']}")
        why = what or waits.tell_late(looks, timeout)
        tell_looks(job, looks, found["awaited"], f"The job {why}.\n{waits.explain(looks, found['awaited'])}")
    elif not all(rank.finished for rank in ranks):
        turn = int.from_bytes((folder / "turn").read_bytes(), "little", signed=True)
        if turn < 0:
            job.status, job.report = "machine", f"The job did not start:\n{text_of(folder / 'process').strip()}"
        else:
            job.status, ranks[turn].error = "killed", describe_exit(code)
            blame(job, turn, "disappeared")
    return job
