"""ZeRO-Infinity: where things are and when, limits of three memories, and what becomes of files.

That it trains as data parallelism does: tests/test_offload.py. What it moves and holds: tests/test_chapters.py.
"""

import gc
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from cases import status_of, work
from jobs import engines
from jobs.processes import wait_until
from minidist import UsageError, command, infinity
from minidist.deepspeed import __main__ as ds
from minidist.engine import Engine
from minidist.exchange.one_process import run_ranks
from minidist.fsdp import Turn
from minidist.launch.launcher import mpiexec_for
from minidist.memory.files import SwapFile, place_of
from minidist.memory.pool import NEEDED, OutOfMemory
from minidist.mpi.comm import Comm
from minidist.nn.precision import LossScale
from minidist.programs.chapter import Chapter, find
from minidist.train import Alone
from programs import run_chapter, run_python

SHAPE = "--layers 2 --width 16 --heads 2 --context 8 --batch 8"


def make(stage: int, comm: Comm, settings: Any = None) -> infinity.Infinity:
    settings = settings or engines.settings("mixed", "adamw", 1, 0.5)
    return infinity.ENGINES[stage](engines.model("gpt"), settings, comm, SwapFile("--disk", None))


def alone(function: Callable[[Comm], Any]) -> Any:
    """On the only rank there is."""
    return run_ranks(function, 1)[0]


def tokens(step: int) -> tuple[np.ndarray, np.ndarray]:
    return engines.batch(step, 12)


# ---- what is where, and when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", ["none", "full", "every:2", "log"])
def test_what_was_sent_for_is_what_is_gathered(recompute: str) -> None:
    """In each pass, with nothing left over; two units ahead, and no room twice."""

    def be_rank(comm: Comm) -> list[Any]:
        engine: Any = make(3, comm, engines.settings("mixed", "adamw", 2, 0.5, recompute=recompute))
        expected: list[list[str]] = []
        gathered: list[list[str]] = []
        expect, parameters_of = engine.expect, engine.parameters_of

        def watched_expect(turns: Any) -> None:
            listed = list(turns)
            expected.append([flat.name for flat in infinity.list_gathers(listed)])
            gathered.append([])
            expect(listed)

        def watched(flat: Any) -> np.ndarray:
            if flat.gathered is None:
                gathered[-1].append(flat.name)
                after = min(2, 1 + len(expected[-1]) - len(gathered[-1]))
                under_way = len(engine.host_rooms.taken) + len(engine.device_rooms.taken)
                assert under_way == after
            whole: np.ndarray = parameters_of(flat)
            return whole

        engine.expect, engine.parameters_of = watched_expect, watched
        for step in range(2):
            engine.train_batch(*tokens(step))
        engine.evaluate(*tokens(9))
        assert not [*engine.coming]
        assert not engine.host_rooms.taken
        assert not engine.device_rooms.taken
        assert gathered == expected
        assert engine.other_counts()["overwritten"] == 0
        return gathered[:2]

    forward, backward = run_ranks(be_rank, 2)[0]
    assert forward == ["embedding", "block0", "block1", "head"]
    assert {*backward} == {*forward}
    assert len(backward) == 4 + (recompute == "every:2")


def test_a_turn_again_is_gathered_again() -> None:
    embedding, one, two, head = engines.model("gpt")
    back = [Turn(head, "backward", 2), Turn(one, "again", 1), Turn(two, "backward", 3), Turn(one, "backward", 2)]
    names = [flat.name for flat in infinity.list_gathers([*back, Turn(embedding, "backward", 2)])]
    assert names == ["head", "embedding", "block0", "block1", "block0"]  # the head reads the embedding's matrix


def test_files_have_the_states_and_memory_has_not() -> None:
    def be_rank(comm: Comm) -> None:
        engine = make(3, comm)
        flats = {flat.name: flat for flat in engine.flats}

        def in_file(array: np.ndarray) -> np.ndarray:
            read = os.pread(engine.settings.swap.file.fileno(), array.nbytes, place_of(array))
            return np.frombuffer(read, array.dtype)

        before = flats["block1"].master.copy()
        for step in range(2):
            engine.train_batch(*tokens(step))
        for flat in flats.values():
            master = in_file(flat.master)
            np.testing.assert_array_equal(master, flat.master)
            stored = in_file(flat.param)
            np.testing.assert_array_equal(stored, master.astype(np.float16))
            assert in_file(flat.moments[1]).any()
        assert (flats["block1"].master != before).any()

    alone(be_rank)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_step_that_overflows_moves_no_states(stage: int) -> None:
    def be_rank(comm: Comm) -> None:
        engine = make(stage, comm)
        engine.loss_scale = LossScale(2.0**30)
        engine.slow_link.reset()
        engine.train_batch(*tokens(0))
        assert engine.updates == 0
        moved = engine.slow_link.by_phase()
        assert moved.keys() == ({"disk to host"} if stage == 3 else set())
        assert all(phases.keys() == {"parameters"} for phases in moved.values())
        assert "kernel read" not in engine.other_counts()

    alone(be_rank)


def test_after_a_pass_that_failed_the_next_one_is_right() -> None:
    """What it had sent for is of no unit of the next one."""

    def be_rank(comm: Comm) -> list[float]:
        engine = make(3, comm)
        broken = Engine(engines.model("gpt"), engines.settings("mixed", "adamw", 1, 0.5))
        losses = []
        for step in range(3):
            x, y = tokens(step)
            with pytest.raises(IndexError):
                engine.forward(np.where(x == 0, 99, x), y)  # in the embedding: the others' are under way
            engine.device.capacity = engine.device.held[NEEDED] + 1000
            with pytest.raises(OutOfMemory):
                engine.forward(x, y)
            engine.device.capacity = None
            losses.append(engine.train_batch(x, y) - broken.train_batch(x, y))
        assert engine.other_counts()["overwritten"] == 0
        return losses

    assert alone(be_rank) == [0, 0, 0]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_engine_that_is_dropped_leaves_nothing(stage: int) -> None:
    def once(comm: Comm) -> tuple[Any, Any]:
        engine = make(stage, comm)
        engine.train_batch(*tokens(0))
        return engine.pools, engine.settings.swap.file

    pools, file = alone(once)
    assert [pool.held["all"] for pool in pools] == [0, 0, 0]
    assert file.closed


@pytest.mark.parametrize("precision", ["mixed", "fp32"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_is_loaded_is_refreshed_from_files(stage: int, precision: str) -> None:
    """Through a room: host memory has no more than before."""

    def be_rank(comm: Comm) -> None:
        engine = make(stage, comm, engines.settings(precision, "adamw", 1, 0.5))
        held, peak = engine.host.held, engine.host.peak
        for flat in engine.flats:
            flat.master[...] = np.arange(flat.master.size) % 100
            engine.refresh(flat)
        engine.after_update()
        for flat in engine.flats:
            np.testing.assert_array_equal(flat.param, flat.master)
        messages = max(flat.param.nbytes for flat in engine.flats)
        assert engine.host.held == held
        assert engine.host.peak["all but workspace"] <= peak["all but workspace"] + messages

    alone(be_rank)


# ---- bandwidth -------------------------------------------------------------------------------------------------------


def test_n_disks_are_n_times_as_fast_on_the_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(f"infinity --bandwidth-table --json {tmp_path}/rows.json", 4) == 0
    clocks = [
        (row["ranks"], row["from"], row["clock"])
        for row in json.loads((tmp_path / "rows.json").read_text())["bandwidth"]
    ]
    shards, owner = ([(n, by, 1 / n if by == "shards" else 1.0) for n in (1, 2, 4)] for by in ("shards", "owner"))
    assert sorted(clocks) == sorted(shards + owner)
    assert capsys.readouterr().out.count("✓") == 6
    with pytest.raises(UsageError, match="--bandwidth-table trains nothing: leave out --save"):
        status_of(f"infinity --bandwidth-table --save {tmp_path}/run", 1)


# ---- limits ----------------------------------------------------------------------------------------------------------


def run(n: int, line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_chapter(f"infinity {SHAPE} {line}", n, cwd=folder, timeout=600)


def test_a_model_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert run(1, "--steps 1 --host-memory 8", tmp_path).returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_it_trains_what_two_memories_together_cannot_hold(tmp_path: Path) -> None:
    """The launch line's: a rank's model states are more than its device and its host have."""
    line = "--layers 16 --width 64 --heads 4 --context 64 --batch 8 --recompute full --steps 1 --json report.json"
    done = run(4, f"{line} --device-memory 1MB --host-memory 1MB --disk states", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert 16 * report["parameters"] / 4 > 1_000_000 + 1_000_000
    assert all(claim["holds"] for claim in report["claims"])
    assert list((tmp_path / "states").iterdir()) == []


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    line = f"{SHAPE} --precision fp64 --warmup 0 --min-lr 0.003 --disk {tmp_path}/files"
    whole = losses(f"{line} --steps 8", tmp_path)
    command = [*mpiexec_for(2), sys.executable, "-m", "minidist.infinity", *line.split()]
    endless = [*command, "--steps", "1000000", "--save", "saved", "--save-every", "3", "--lr", "0.003"]
    process = subprocess.Popen(endless, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)  # fmt: skip
    try:
        assert wait_until(lambda: (tmp_path / "saved" / "step000003" / "manifest.json").exists())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert losses(f"{line} --steps 8 --load {tmp_path}/saved/step000003", tmp_path) == whole[3:]
    assert not any((tmp_path / "files").iterdir())


def losses(line: str, folder: Path) -> list[float]:
    """Of a command line, on two ranks that are threads."""
    assert status_of(f"infinity {line} --json {folder}/report.json", 2) == 0
    found: list[float] = json.loads((folder / "report.json").read_text())["loss"]
    return found


def test_a_run_that_stops_leaves_no_files(tmp_path: Path) -> None:

    def be_rank(comm: Comm) -> None:
        with pytest.raises(OutOfMemory):
            work(comm, f"infinity {SHAPE} --disk {tmp_path} --disk-memory 9KB")
        assert list(tmp_path.iterdir()) == []

    alone(be_rank)


def test_nor_does_one_that_a_configuration_describes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = []  # or else the files would go with their engine

    def interrupted(chapter: Any, comm: Any, job: Any, driver: ds.VerbsDriver) -> None:
        alive.append(driver)
        assert cast(infinity.Infinity, driver.engine).settings.swap.size > 0
        raise KeyboardInterrupt

    monkeypatch.setattr(Chapter, "train", interrupted)
    disk, file = tmp_path / "disk", tmp_path / "ds_config.json"
    offload = {"device": "nvme", "nvme_path": str(disk)}
    zero = {"stage": 3, "offload_optimizer": offload, "offload_param": offload}
    file.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": zero}))

    def be_rank(comm: Comm) -> None:
        prepared = ds.prepare([str(file), *SHAPE.split()], 1)
        with pytest.raises(KeyboardInterrupt):
            ds.main(comm, prepared)
        assert list(disk.iterdir()) == []

    alone(be_rank)


def test_what_files_hold_need_not_fit_into_memory() -> None:
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    width = 64 * int(np.sqrt(present / 12 / 12) / 64)  # about so many parameters: a twelfth of the bytes that there are
    line = f"--layers 1 --heads 1 --width {width} --context 8 --batch 1"
    assert find("infinity").job(line.split(), 1).model.width == width
    with pytest.raises(UsageError, match=r"need at least .* GB on this machine"):
        find("train").job(line.split(), 1)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(2, f"--steps 1 --disk {tmp_path}/file", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"minidist: error: --disk {tmp_path}/file: cannot write there: Not a directory\n"


@pytest.mark.parametrize(("precision", "nbytes"), [("mixed", 14), ("fp32", 16), ("fp64", 32)])
def test_a_disk_with_too_little_room(
    precision: str, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is allocated; and nothing is left. (Parameters, a master copy and two moments.)"""
    psi = sum(flat.size for unit in engines.model("gpt") for flat in unit.flats)
    chapter, comm = find("infinity"), cast(Comm, SimpleNamespace(rank=0, size=1))
    monkeypatch.setattr(command, "declare", lambda *_: engines.model("gpt"))
    line = [*SHAPE.split(), "--precision", precision, "--disk", str(tmp_path)]
    for free in (nbytes * psi, nbytes * psi - 1):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr("shutil.disk_usage", lambda path, usage=usage: usage)
        if free == nbytes * psi:
            chapter.reserve(chapter.job(line, 1), comm)
        else:
            with pytest.raises(UsageError, match=f"--disk {tmp_path} needs .* MB; the disk has"):
                chapter.reserve(chapter.job(line, 1), comm)
    assert list(tmp_path.iterdir()) == []


def test_more_files_than_a_process_may_open_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any is made: each array in the file keeps it open. Nothing is left of the file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(resource, "getrlimit", lambda of: (80, 80))
    monkeypatch.setattr(resource, "setrlimit", lambda of, limits: None)
    with pytest.raises(UsageError, match="ulimit -n allows 80 open files, and 88 are needed"):
        find("infinity").prepared([], Alone())
    gc.collect()
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource
from minidist.programs.chapter import find, start

chapter = find("infinity")
made_right = chapter.make

def make(job, comm):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # of a file, as a disk that has no more room
    return made_right(job, comm)

chapter.make = make
start(chapter)
"""


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(FULL)
    done = run_python("full.py", *SHAPE.split(), *["--steps", "1", "--disk", "files"], ranks=2, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (74, "")
    says = r"minidist: error: cannot write a file in files: File too large\n"
    assert re.fullmatch(says, done.stderr), done.stderr
