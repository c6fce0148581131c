"""What the ranks of a job have recorded in its folder, and the report on it. `worker.py` lists the files."""

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from minidist.exchange import waits
from minidist.exchange.waits import Looks
from minidist.launch import encode
from minidist.launch.job import LAST, JobOutcome, RankResult, blame, describe_exit

OUTPUT_LIMIT = 1_000_000  # bytes of a rank's output that are read; a rank that prints in an endless loop prints more
PRINTED = 64 << 20  # bytes that a rank may print before it is ended


def collect(folder: Path, n: int, stopped: tuple[str, str, Looks] | None, seconds: float) -> JobOutcome:
    """Read the ranks' records, and report what happened.

    stopped: if the job did not end by itself, its status, why it was ended, and what the ranks were doing.
    """
    ranks, ended_at = zip(*[_read_rank(folder / str(rank)) for rank in range(n)], strict=True)
    job = finished(list(ranks), seconds)
    if all(rank.finished for rank in ranks):
        return job

    if stopped:
        job.status, what, looks = stopped
        for rank in ranks:
            rank.error = None
        awaited = [waits.waits_in_vain_for(rank, looks) for rank in range(n)]
        tell_looks(job, looks, awaited, f"The job {what}.\n{waits.explain(looks)}")
        return job

    if min(ended_at) == math.inf:
        started = any((folder / str(rank) / "started").exists() for rank in range(n))
        what = "was ended from outside" if started else "did not start"
        printed = text_of(folder / "mpiexec").strip() or "(nothing)"
        job.status, job.report = "killed" if started else "machine", f"The job {what}. What mpiexec printed:\n{printed}"
        return job

    # The first rank to fail or disappear is the cause; MPI ended the others, whatever their own records say.
    first = ended_at.index(min(ended_at))
    cause = ranks[first]
    job.status, verb = ("failed", "failed") if cause.error_type else ("killed", "disappeared")
    if not (folder / str(first) / "started").exists():
        job.status, verb = "machine", "could not start MPI"
    blame(job, first, verb)
    return job


def _read_rank(mine: Path) -> tuple[RankResult, float]:
    """What a rank recorded, and when it failed or disappeared (infinity if it did neither)."""
    rank = RankResult(stdout=text_of(mine / "stdout"), stderr=text_of(mine / "stderr"))
    try:
        if (mine / "error").exists():
            error = encode.load(mine / "error")
            rank.error, rank.error_type = str(error["text"]), str(error["type"])
            return rank, float(error["time"])
        if (mine / "result").exists():
            result = encode.load(mine / "result")
            rank.value, rank.sent, rank.control = result["value"], result["sent"], result["control"]
            rank.finished, rank.state = True, "finished"
        elif (mine / "exit").exists():
            code, when = (mine / "exit").read_text().split()
            rank.error = describe_exit(int(code))
            return rank, float(when)
    except Exception as error:  # a student's program can reach these files, and may have written them
        rank.error, rank.error_type = f"what it recorded cannot be read: {error}", type(error).__name__
        return rank, 0.0
    return rank, math.inf


def finished(ranks: list[RankResult], seconds: float) -> JobOutcome:
    """The outcome of a job whose ranks have all finished; it begins so."""
    n = len(ranks)
    return JobOutcome(
        "ok", ranks, seconds, f"The job finished on {n} {'rank' if n == 1 else 'ranks'} in {seconds:.1f} s."
    )


def tell_looks(job: JobOutcome, looks: Looks, awaited: Sequence[list[int]], report: str) -> None:
    """Report on a job that was ended: what each rank was doing, and which ranks it waited for."""
    for number, (rank, look) in enumerate(zip(job.ranks, looks, strict=True)):
        rank.state, rank.awaited = waits.describe(number, looks), awaited[number]
        if look is not None:
            rank.where, rank.stack = look.where, look.stack
    job.report = report


# ---- what ranks have printed -----------------------------------------------------------------------------------------


def text_of(path: Path) -> str:
    """The text of an output file; only the beginning of a very long one."""
    if not path.exists():
        return ""
    with open(path, "rb") as file:
        text = file.read(OUTPUT_LIMIT).decode(errors="replace")
    left_out = path.stat().st_size - OUTPUT_LIMIT
    return text + (f"\n[{left_out} more bytes left out]\n" if left_out > 0 else "")


def too_long(folder: Path, n: int) -> int | None:
    """A rank that has printed more than PRINTED bytes, or None."""
    for rank in range(n):
        for name in ("stdout", "stderr"):
            with suppress(OSError):
                if (folder / str(rank) / name).stat().st_size > PRINTED:
                    return rank
    return None


def last_of(path: Path) -> str:
    """The last LAST bytes of an output file, as text."""
    if not path.exists():
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LAST))
        return file.read(LAST).decode(errors="ignore")  # the first character may be cut


def last_output(folder: Path, n: int) -> list[str]:
    """The last output of each rank."""
    mine = [folder / str(rank) for rank in range(n)]
    return [last_of(each / "stdout") + last_of(each / "stderr") for each in mine]
