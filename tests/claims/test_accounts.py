"""`python -m minidist audit --memory` and `--disk`: what NumPy and the kernel say, and that they see what is hidden."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from minidist import UsageError
from minidist.claims import accounts, audit
from minidist.claims.accounts import ROOM, Held, Moved, read_workers
from minidist.claims.mutants import PACKAGE, TABLE, mutants_of
from minidist.memory import kernel
from minidist.programs.chapter import find_all


def counts() -> bool:
    """Whether this machine's kernel does."""
    try:
        kernel.forget_most()
        return bool(kernel.pages().most and kernel.Kernel().io())
    except OSError:
        return False


LINUX = pytest.mark.skipif(not counts(), reason="there is no such /proc")


# ---- the kernel's account --------------------------------------------------------------------------------------------


@LINUX
def test_the_kernel_counts_what_is_read_and_written_and_a_look_is_known(tmp_path: Path) -> None:
    account, file = kernel.Kernel(), tmp_path / "a"
    begun = account.io()
    looked = account.looked
    file.write_bytes(bytes(123_456))
    file.read_bytes()
    read, written = (now - before for now, before in zip(account.io(), begun, strict=True))
    assert (read - looked, written) == (123_456, 123_456)


RESIDENT = """
from minidist.memory import kernel
kernel.forget_most()
begun = kernel.pages()
large = bytearray(b"\\1") * (40 << 20)
with_it = kernel.pages().most - begun.now
del large
kernel.forget_most()
print(with_it >> 20, kernel.pages().most - begun.now >> 20, 0 < begun.mapped < begun.now)
"""


@LINUX
def test_the_most_that_was_resident_is_counted_again() -> None:
    """In a process of its own, which has nothing else that the kernel could take away meanwhile."""
    said = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True).stdout
    with_it, afterwards, mapped = said.split()
    assert int(with_it) >= 36
    assert int(afterwards) < 10
    assert mapped == "True"


# ---- verdicts --------------------------------------------------------------------------------------------------------


def test_numpy_must_be_equal_and_the_kernel_within_bounds() -> None:
    honest = Held(8_000_000, 100_000, 1_000_000, 5_000_000, ROOM, "block1 backward", 18, {})
    assert honest.agrees
    assert [*honest.trouble()] == []
    more = honest._replace(rest=ROOM + 8_100_000 // 8 + 1)  # memory that is not NumPy's
    assert not more.agrees
    assert [*more.trouble()] == ["the process has grown by 11,012,501 bytes that no account explains"]
    assert not honest._replace(rest=-ROOM - 2_000_000).agrees  # pools with arrays that are not there
    hidden = honest._replace(unnamed={"unit 3, head backward": 4096})
    assert [*hidden.trouble()] == ["after unit 3, head backward: 4,096 bytes of arrays that no pool knows"]
    assert not hidden.agrees


def test_a_workers_account_is_read(tmp_path: Path) -> None:
    moved = {"input read": 1000, "regions read": 50, "read ahead": 8, "regions written": 70, "notes written": 5}
    account = {"moved": moved, "process read": 1160, "process written": 76, "looked": 100}
    (tmp_path / "2.disk.json").write_text(json.dumps(account))
    rows = [*read_workers(tmp_path)]
    assert rows == [Moved(2, "read", 1050, 108, 1160), Moved(2, "written", 75, 0, 76)]
    assert [row.difference for row in rows] == [2, 1]


# ---- broken programs -------------------------------------------------------------------------------------------------

Mutate = Callable[[str, str, str], None]


@pytest.fixture
def mutate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mutate:
    """A copy of the package that ranks take instead, with other words in one of its files."""

    def change(name: str, old: str, new: str) -> None:
        shutil.copytree(PACKAGE, tmp_path / "minidist", ignore=shutil.ignore_patterns("__pycache__"))
        file = tmp_path / "minidist" / name
        text = file.read_text()
        assert text.count(old) == 1
        file.write_text(text.replace(old, new))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return change


def test_arrays_held_and_not_counted_are_found(
    mutate: Mutate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "LARGER", "--witness")
    [mutant] = [mutant for mutant in mutants_of(TABLE / "zero1.toml") if "in a secret list" in mutant.mistake]
    [change] = mutant.changes
    mutate(mutant.file, *change)
    assert audit.main(["--memory", "zero1", "-n", "1"], find_all()) == 1
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "0 of 1 runs agree" in said
    assert "bytes of arrays that no pool knows" in " ".join(said.split())


@LINUX
def test_bytes_written_and_not_counted_are_found(mutate: Mutate, tmp_path: Path) -> None:
    """By a worker of MapReduce that sorts in runs: a byte more for each piece of a region. All else is equal."""
    text, size = tmp_path / "text", 100_000
    text.write_bytes(audit.TEXT.read_bytes()[:size])
    write = "            file.write(data)\n"
    mutate("mr/disk.py", write, f'{write}        path.with_name("more").write_bytes(b"!")\n')
    line = f"wordcount {text} --maps 2 --reducers 3 --no-combine --memory 0.5"
    read, written = accounts.compare_moved(audit.make_run("mapreduce", "", line, 2, larger=False))
    assert (read.way, read.difference) == ("read", 0)
    assert written.way == "written"
    assert written.difference in range(2 * 3, 5 * 2 * 3)
    assert read.counted > 3 * size  # the input, regions, of which each word has two bytes more, and runs
    assert 0 < read.named < size / 2


@LINUX
def test_what_passes_the_links_by_is_found(
    mutate: Mutate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "ON_DISK", {"infinity": {"ZeRO-3": audit.ON_DISK["infinity"]["ZeRO-3"]}})
    end = "        super().after_update()\n"
    mutate("infinity.py", end, f"        self.settings.swap.file.write(bytes(1234))\n{end}")
    assert audit.main(["--disk", "-n", "1"], find_all()) == 1
    said = capsys.readouterr().out.splitlines()
    read, written = (next(line.split() for line in said if f" {way} " in line) for way in ("read", "written"))
    assert read[-2:] == ["0", "✓"]
    assert written[-2:] == ["1,234", "✗"]
    assert max(map(len, said)) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("what", ["--memory", "--disk"])
@pytest.mark.parametrize("n", ["2", "3"])
def test_nothing_is_hidden(what: str, n: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a few chapters; `make audit` takes all."""
    chapters = ["zero2", "offload", "tensor_parallel", "parallel3d"] if what == "--memory" else []
    assert audit.main([what, *chapters, "-n", n], find_all()) == 0, capsys.readouterr().out


@pytest.mark.parametrize("what", ["--memory", "--disk"])
def test_without_linux_it_says_so_before_it_starts(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit.kernel, "PROCESS", "/proc of another system")
    with pytest.raises(UsageError, match=r"compare with Linux's account: .*No such file"):
        audit.main([what], find_all())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--memory", "ring"], "'ring' cannot be audited: take of data_parallel"),
        (["--disk", "zero3"], "'zero3' cannot be audited: take of infinity, mapreduce"),
        (["--disk", "--memory"], "not allowed with"),
    ],
)
def test_bad_input_is_one_line(line: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        audit.main(line, find_all())
