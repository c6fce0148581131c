"""`python -m minidist audit`: what the MPI library counted, beside the ledger."""

import json
import shutil
import stat
from functools import cache
from pathlib import Path

import pytest

from minidist import UsageError
from minidist.claims import audit, reports
from minidist.exchange.one_process import run_ranks
from minidist.launch.launcher import find_mpiexec, is_open_mpi
from minidist.mpi.comm import Ledger
from minidist.mpi.rank import AUDIT, run_rank
from minidist.programs.chapter import Chapter, find, find_all
from minidist.text import data

LIBRARY = """\
# POINT TO POINT
E\t1\t0\t576 bytes\t5 msgs sent\t1,0,0,3
E\t1\t2\t4777330 bytes\t211 msgs sent\t0,0,0,0
I\t1\t0\t12 bytes\t4 msgs sent
# COLLECTIVES
C\t1\t2\t12 bytes\t4 msgs sent
"""


def test_both_accounts_are_read_and_compared_peer_by_peer(tmp_path: Path) -> None:
    """What MPI sends for itself, I and C, is not the program's."""
    (tmp_path / "library.1.prof").write_text(LIBRARY)
    sent = {("payload", "a", 2, "bytes"): 4777000, ("payload", "b", 2, "bytes"): 320, ("control", "", 0, "bytes"): 576}
    sent |= {
        ("payload", "a", 2, "messages"): 200,
        ("payload", "b", 2, "messages"): 10,
        ("control", "", 0, "messages"): 5,
    }
    (tmp_path / "1.json").write_text(json.dumps([*sent.items()]))
    assert list(audit.read_sent(1, 3, tmp_path)) == [
        audit.Sent(1, 0, (0, 0), (576, 5), (576, 5)),
        audit.Sent(1, 1, (0, 0), (0, 0), (0, 0)),
        audit.Sent(1, 2, (4777320, 210), (0, 0), (4777330, 211)),
    ]
    assert [one.difference for one in audit.read_sent(1, 3, tmp_path)] == [(0, 0), (0, 0), (10, 1)]


def test_a_ledger_knows_what_was_sent_before_it_was_reset() -> None:
    ledger = Ledger()
    for _ in range(2):
        ledger.count(1, 100)
        ledger.phase = "other"
        ledger.count(1, 10)
        ledger.count(2, 1)
        ledger.count_control(1, 7)
        ledger.reset()
    ledger.count(2, 5)
    assert ledger.ever() == {
        ("payload", "main", 1, "bytes"): 100,
        ("payload", "main", 1, "messages"): 1,
        ("payload", "other", 1, "bytes"): 120,
        ("payload", "other", 1, "messages"): 3,
        ("payload", "other", 2, "bytes"): 7,
        ("payload", "other", 2, "messages"): 3,
        ("control", "", 1, "bytes"): 14,
        ("control", "", 1, "messages"): 2,
    }
    assert (ledger.total(), ledger.control) == (5, (0, 0))


def test_every_line_is_possible_on_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an odd number of them, too."""
    monkeypatch.setattr("minidist.text.data.load", cache(data.load))
    for name, chapter in find_all().items():
        for n in (chapter.ranks or (3, 4)) if isinstance(chapter, Chapter) else ():
            for options in audit.list_lines({name: chapter}).get(name, {}).values():
                chapter.job(audit.fill_line(name, options, n).split()[1:], n)


def test_what_a_proof_sends_is_in_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library sees from the first message to the last."""
    chapter, line = find("zero1"), f"{audit.SMALL} --layers 1".format(n=2, width=16, batch=4).split()
    monkeypatch.setenv(AUDIT, str(tmp_path))
    run_ranks(lambda comm: run_rank(comm, chapter.work, lambda comm: chapter.prepared(line, comm)), 2)
    for rank in range(2):
        written = json.loads((tmp_path / f"{rank}.json").read_text())
        assert any(kind == "payload" and phase == "proof" and sent for (kind, phase, *_), sent in written)


@pytest.mark.parametrize(
    ("line", "said"),
    [(["zerro3"], "'zerro3' cannot be audited: take of mapreduce"), (["-n", "0"], "-n: must be at least 1")],
)
def test_bad_input_is_one_line(line: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        audit.main(line, find_all())


def test_a_run_that_does_not_end_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text("#!/bin/sh\nexec sleep 60\n")
    mpiexec.chmod(mpiexec.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(reports, "mpiexec_for", lambda n: [str(mpiexec)])
    monkeypatch.setattr(reports, "TIMEOUT", 0.2)
    said = r"^mpirun -n 2 python -m minidist\.zero3 --steps 2.*: not done after 0\.2 s$"
    with pytest.raises(UsageError, match=said):
        reports.read_report(2, "zero3 --steps 2")
    with pytest.raises(UsageError, match=said):
        audit.watch("zero3 --steps 2", 2)


def test_without_open_mpi_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "mpiexec"
    other.write_text("#!/bin/sh\necho HYDRA build details\n")
    other.chmod(other.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(audit.launcher, "find_mpiexec", lambda: str(other))
    with pytest.raises(UsageError, match=r"mpirun is not Open MPI's.*make audit$"):
        audit.main(["zero3"], find_all())


@pytest.mark.skipif(
    shutil.which("mpiexec") is None or not is_open_mpi(find_mpiexec()),
    reason="only Open MPI counts what it sends; mpirun is another MPI's",
)
def test_every_byte_is_counted_and_one_that_is_not_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["zero3", "-n", "3"], find_all()) == 0
    assert "1 of 1 runs agree" in capsys.readouterr().out
