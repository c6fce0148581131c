"""Checkpoints that are whole or not there: killed at each write; and what is damaged is refused, by the file's name."""

import io
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from alone import train_alone
from minidist import UsageError, command, train
from minidist.checkpoints import checkpoint, convert, inspect, manifest
from minidist.checkpoints.files import BLOCK
from minidist.engine import Engine
from minidist.mpi import output
from minidist.programs.chapter import find
from minidist.system import files
from programs import run_python
from tables import table

MODEL = "--layers 1 --width 8 --heads 2 --context 8 --batch 2 --data text.txt"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a text."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("no more and no less " * 50)
    return tmp_path


def trained(steps: int, *more: str) -> tuple[command.Job, Engine]:
    """A training that has come so far."""
    job = find("train").job([*MODEL.split(), "--steps", str(steps), *more], 1)
    engine = Engine(job.units, job.settings)
    for step in range(steps):
        train.train_step(engine, job, step)
    return job, engine


def save(job: command.Job, engine: Engine, keep: int | None = None) -> None:
    checkpoint.save("run", engine, train.Alone(), command.about(job, 1), keep)


def sound(path: str = "run") -> manifest.Manifest:
    """The newest checkpoint, which must be whole."""
    found = manifest.read(path)
    for shard in found.shards:
        manifest.check_shard(found, shard)
    return found


# ---- killed ----------------------------------------------------------------------------------------------------------


class Touches:
    """Every call that changes something on the disk, in order; at the last of so many this process is killed."""

    def __init__(self, patch: pytest.MonkeyPatch, last: int | None = None) -> None:
        self.log: list[tuple[str, str]] = []
        self.last = last
        for name in ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync"):
            patch.setattr(os, name, self.watched(name, getattr(os, name)))
        touches = self

        class File(io.FileIO):
            def write(self, content: Any) -> int:
                content = bytes(content)
                if touches.touch("write", self.name):
                    super().write(content[: len(content) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().write(content)

        patch.setattr(files, "open", File, raising=False)

    def watched(self, name: str, call: Any) -> Any:
        def watch(*arguments: Any, **named: Any) -> Any:
            where = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else os.fspath(arguments[0])
            if self.touch(name, where, *arguments[1:2]):
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return watch

    def touch(self, *what: Any) -> bool:
        self.log.append(what)
        return len(self.log) == self.last


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_killed_at_any_write_the_one_before_still_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each call that changes the disk, and in the middle of each write."""
    save(*trained(2))
    shutil.copytree("run", "first")
    job, engine = trained(4)
    newest, last, status = [], 0, 1
    while status:
        last += 1
        shutil.rmtree("run")
        shutil.copytree("first", "run")
        child = os.fork()
        if child == 0:  # it does nothing else, and never returns
            try:
                with pytest.MonkeyPatch.context() as patch:
                    Touches(patch, last)
                    save(job, engine, keep=1)
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL)
        newest.append(sound().state["steps"])
        for name in manifest.names_in("run"):  # nothing that has the name of a checkpoint is half of one
            sound(f"run/{name}")
        save(job, engine, keep=1)  # and the next one is made, and clears up
        assert sound().state["steps"] == 4
        assert len(os.listdir("run")) == 2, os.listdir("run")
    assert newest == sorted(newest)
    assert newest.count(2) >= 15  # it was killed that often, and then the new one was there
    assert newest.count(4) >= 5  # and so often while the old one went


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_what_gets_its_name_is_on_the_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Files before their folder is renamed, the folder's names before `latest` says them, `latest` before it counts."""
    job, engine = trained(2)
    with monkeypatch.context() as patch:
        touches = Touches(patch)
        save(job, engine)
    log = [(touch[0], os.path.relpath(touch[1], folder)) for touch in touches.log]
    (draft,) = [where for name, where in log if name == "rename"]
    shard, described, latest = [where for name, where in log if name == "replace"]
    assert [os.path.dirname(each) for each in (shard, described, latest)] == [draft, draft, "run"]
    written = [[("fsync", each), ("replace", each), ("fsync", os.path.dirname(each))] for each in (shard, described)]
    assert [touch for touch in log if touch[0] in ("fsync", "rename", "replace")] == [
        *itertools.chain(*written),
        ("rename", draft),
        ("fsync", "run"),
        ("fsync", latest),
        ("replace", latest),
        ("fsync", "run"),
    ]


def test_a_tag_saved_again_replaces_the_one_before_whatever_the_clock_says() -> None:
    job, engine = trained(1)
    save = partial(checkpoint.save, "run", engine, train.Alone(), command.about(job, 1), tag="best")
    save()
    later = time.time() + 10
    os.utime("run/best/manifest.json", (later, later))  # by a clock that was set back since
    save()
    assert sorted(os.listdir("run")) == ["best~2", "latest"]
    assert Path("run/latest").read_text() == "best~2\n"


# ---- damaged ---------------------------------------------------------------------------------------------------------


def refusal(path: str = "run", steps: str = "9") -> str:
    """The line in which training, to-fp32 and inspect refuse it, all three."""
    with pytest.raises(UsageError) as error:
        find("train").job([*MODEL.split(), "--load", path, "--steps", steps], 1)
    said = str(error.value)
    assert said.isprintable()
    with pytest.raises(UsageError) as converting:
        convert.to_fp32(path, "out.safetensors")
    assert said == f"--load {path}: {converting.value}"
    assert not os.path.exists("out.safetensors")
    return said.removeprefix(f"--load {path}: ")


def test_missing_truncated_or_of_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    save(*trained(2))
    shard = Path("run/step000002/rank0-of-1.safetensors")
    content = shard.read_bytes()

    shard.unlink()
    assert refusal() == f"{shard} is missing"
    assert inspect.main("run") == 1
    assert "is missing\n1 of 1 shards cannot be used" in capsys.readouterr().out
    for length in (0, 5, 100, len(content) - 1):
        shard.write_bytes(content[:length])
        assert refusal() == f"{shard} is damaged: it has {length} bytes and should have {len(content)}"
    shard.write_bytes(content + b"x")
    assert refusal().startswith(f"{shard} is damaged")

    shard.write_bytes(content)
    os.rename("run", "other")
    save(*trained(2))  # the same model, data and step
    shutil.copy("other/step000002/rank0-of-1.safetensors", shard)
    assert refusal() == f"{shard} is of another checkpoint than manifest.json next to it"
    shutil.copy("other/step000002/manifest.json", "run/step000002/manifest.json")
    assert inspect.main("run") == 0
    assert "It is whole." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["rank0-of-1.safetensors", "manifest.json"])
def test_a_flipped_bit_anywhere(name: str) -> None:
    save(*trained(1))
    file = Path("run/step000001") / name
    content, rng = file.read_bytes(), np.random.default_rng(0)
    for position in (0, 1, 8, 9, len(content) - 1, *rng.integers(0, len(content), 60)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << int(rng.integers(8))
        file.write_bytes(flipped)
        assert refusal().startswith(f"{file} is ")
    file.write_bytes(content)
    sound()


def load_file_of(path: str, *more: str) -> None:
    find("train").job([*MODEL.split(), "--load", path, "--steps", "9", *more], 1)


def test_a_flipped_bit_anywhere_in_a_file() -> None:
    """Of --export: in the header, the metadata, each tensor."""
    job, engine = trained(1)
    checkpoint.export("model", engine, train.Alone(), command.about(job, 1))
    content, rng = Path("model").read_bytes(), np.random.default_rng(0)
    load_file_of("model")
    header = 8 + int.from_bytes(content[:8], "little")
    of_header, of_data = rng.integers(8, header, 80), rng.integers(header, len(content), 30)
    for position in (0, 1, header - 1, header, len(content) - 1, *of_header, *of_data):
        flipped = bytearray(content)
        flipped[position] ^= 1 << int(rng.integers(8))
        Path("flipped").write_bytes(flipped)
        with pytest.raises(UsageError, match=r"--load flipped"):
            load_file_of("flipped")


def test_a_file_of_the_former_form_has_no_checksums_and_loads() -> None:
    job, engine = trained(1)
    checkpoint.export("model", engine, train.Alone(), command.about(job, 1))
    with safe_open("model", framework="numpy") as file:
        metadata = file.metadata()
    assert set(metadata) == {"identity", "state", "blake2b"}
    del metadata["blake2b"]
    save_file(load_file("model"), "former", metadata)
    load_file_of("former")
    checkpoint.load("former", engine)
    save_file(load_file("model"), "strange", {**metadata, "blake2c": ""})  # as a flipped bit might call it
    with pytest.raises(UsageError, match=r"--load strange is damaged"):
        load_file_of("strange")


# ---- another run's folder --------------------------------------------------------------------------------------------


def save_into(*more: str) -> command.Job:
    return find("train").job([*MODEL.split(), "--save", "run", *more], 1)


@pytest.mark.parametrize(("line", "says"), table(__file__, "the_folder_of_another_run_is_refused"))
def test_the_folder_of_another_run_is_refused(line: str, says: str) -> None:
    Path("other.txt").write_text("quite another text " * 50)
    Path("longer.txt").write_text("no more and no less " * 60)
    save(*trained(2))
    before = contents("run")
    with pytest.raises(UsageError) as error:
        save_into(*line.split())
    assert str(error.value).startswith(f"--save run: step000002 in it {says}")
    assert str(error.value).endswith(": name another folder")
    assert contents("run") == before


def test_a_run_goes_on_in_its_folder() -> None:
    """With another seed, optimizer or precision; also if what is there is damaged, or is not a checkpoint at all."""
    Path("run").mkdir()
    Path("run/notes").write_text("mine")
    save_into()
    save(*trained(2))
    save_into("--seed", "1", "--optimizer", "sgd", "--precision", "fp32")
    save_into("--load", "run", "--steps", "3")
    Path("run/step000002/manifest.json").write_text("{")
    save_into()


@pytest.mark.parametrize(("name", "says"), table(__file__, "a_pipe_is_not_waited_for"))
def test_a_pipe_is_not_waited_for(name: str, says: str) -> None:
    """In the place of any file of a checkpoint: nobody would ever write into it."""
    save(*trained(1))
    pipe = Path("run") / name
    pipe.unlink()
    os.mkfifo(pipe)
    waited = threading.Timer(10, lambda: pipe.write_bytes(b""))
    waited.start()
    try:
        assert refusal().startswith(says)
        assert waited.is_alive()
    finally:
        waited.cancel()


@pytest.mark.parametrize(
    ("latest", "says"),
    [
        (None, "run has no file latest; step000001 is there"),
        (b"", "run/latest names a checkpoint that is not there; step000001 is there"),
        (b"step000003\n", "run/latest names a checkpoint that is not there; step000001 is there"),
        (b"../run/step000001", "run/latest names a checkpoint that is not there; step000001 is there"),
        (b"step\xff", "run/latest cannot be read: it is damaged"),
    ],
)
def test_latest(latest: bytes | None, says: str) -> None:
    save(*trained(1))
    Path("run/latest").unlink()
    if latest is not None:
        Path("run/latest").write_bytes(latest)
    assert refusal() == says
    assert sound("run/step000001").state["steps"] == 1  # which can be named


def test_of_another_model_or_further_than_asked() -> None:
    save(*trained(3))

    def said(*more: str) -> str:
        with pytest.raises(UsageError) as error:
            find("train").job([*MODEL.split(), "--load", "run", *more], 1)
        return str(error.value)

    assert said("--layers", "2").startswith("--load run is of another model: it has no block1.")
    assert said("--heads", "1") == "--load run is of another model: it has other heads: 2 there, 1 here"
    assert said("--optimizer", "sgd") == "--load run was made by another optimizer: use the same --optimizer"
    assert said("--steps", "2").startswith("--load run has 3 steps done")


# ---- what cannot be written ------------------------------------------------------------------------------------------


def program(*arguments: str, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Serial training as a program, none of whose files may get larger than the limit."""

    def limited() -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done: subprocess.CompletedProcess[str]
    done = run_python("-m", "minidist.train", *MODEL.split(), *arguments, preexec_fn=limited)
    return done


def contents(folder: str) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(Path(folder).rglob("*")) if file.is_file()}


def test_a_full_disk_is_one_line_and_leaves_what_was_there() -> None:
    """The training goes on to its end, where it cannot be saved either."""
    assert program("--steps", "2", "--save", "run").returncode == 0
    before = contents("run")
    done = program("--steps", "6", "--load", "run", "--save", "run", "--save-every", "4", "--keep", "1", limit=9999)
    assert done.returncode == 74
    said = [
        f"minidist: error: cannot write run/step{step:06d}/rank0-of-1.safetensors: File too large" for step in (4, 6)
    ]
    assert done.stderr.splitlines() == said
    assert "validation loss" in done.stdout
    assert contents("run") == before
    assert sorted(os.listdir("run")) == ["latest", "step000002"]


@pytest.mark.parametrize("failing", ["mkdir", "rename", "replace", "fsync"])
def test_a_folder_that_cannot_be_written(
    failing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(*trained(1))
    before, (job, engine) = contents("run"), trained(2)

    def refuse(*arguments: Any) -> None:
        raise OSError(13, "Permission denied", None if failing == "fsync" else arguments[0])

    output.guard()  # what was lost before is forgotten
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, refuse)
        save(job, engine, keep=1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("minidist: error: cannot write run/")
    assert line.endswith(": Permission denied")
    assert ".tmp" not in line
    assert output.verdict(0) == 74
    assert sound().state["steps"] == 1
    assert {name: content for name, content in contents("run").items() if name in before} == before
    output.guard()


def test_a_folder_where_nothing_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(path: str) -> str:
        with pytest.raises(UsageError) as error:
            find("train").job([*MODEL.split(), "--save", path], 1)
        return str(error.value)

    Path("file").touch()
    assert said("file") == "--save file: a checkpoint is a folder; a single file is made by --export file"
    assert said("x.safetensors").endswith("a single file is made by --export x.safetensors")
    assert said("nowhere/run") == "--save nowhere/run: there is no folder nowhere"
    assert said("/proc/run").startswith("--save /proc/run: cannot write there: ")
    assert said("/proc").startswith("--save /proc: cannot write there: ")


def test_a_new_folder_may_end_in_a_slash() -> None:
    options = [*MODEL.split(), "--save", "new/"]
    assert find("train").job(options, 1).files.save == "new/"


# ---- without MPI -----------------------------------------------------------------------------------------------------


def test_to_fp32_and_inspect_need_no_mpi() -> None:
    job, engine = trained(2, "--precision", "fp64")
    save(job, engine)
    code = "import sys, runpy; sys.modules['mpi4py'] = None; runpy.run_module('minidist', run_name='__main__')"
    for arguments in (["to-fp32", "run", "out.safetensors"], ["inspect", "run"]):
        done = run_python("-c", code, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
    assert "step 2, 2 updates" in done.stdout
    assert "saved by train on 1 rank" in done.stdout
    found = load_file("out.safetensors")
    truth = checkpoint.weights(engine, writer=True)
    assert found.keys() == truth.keys()
    for name, array in truth.items():
        np.testing.assert_array_equal(found[name], array.astype(np.float32))


def test_to_fp32_holds_one_tensor_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a model of 19 MB whose largest matrix has 0.26 MB: that, its source, and what Python needs."""
    more = ["--layers", "24", "--width", "128", "--precision", "fp32"]
    job, engine = trained(0, *more)
    save(job, engine)
    largest = max(parameter.size for unit in job.units for parameter in unit.parameters) * 4
    held = sum(parameter.size for unit in job.units for parameter in unit.parameters) * 4
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    assert convert.to_fp32("run", "out.safetensors") == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - before < 3 * largest + 2 * BLOCK < held / 4


def test_an_output_is_no_shard_of_its_input() -> None:
    save(*trained(1))
    shard = "run/step000001/rank0-of-1.safetensors"
    with pytest.raises(UsageError, match="would overwrite"):
        convert.to_fp32("run", f"./{shard}")
    sound()


def test_a_file_and_a_folder_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on from either, to the same bit."""
    job, engine = trained(2)
    save(job, engine)
    checkpoint.export("model.safetensors", engine, train.Alone(), command.about(job, 1))
    assert sorted(os.listdir()) == ["model.safetensors", "run", "text.txt"]
    losses = []
    for path in ("run", "model.safetensors", "run/step000002"):
        assert train_alone(*MODEL.split(), "--steps", "4", "--load", path, "--json", "report") == 0
        losses.append(json.loads(Path("report").read_text())["loss"])
    assert losses[0] == losses[1] == losses[2]
    whole, engine = trained(2)
    assert losses[0] == [train.train_step(engine, whole, step) for step in (2, 3)]


def test_another_seed_or_text_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    save(*trained(1))
    Path("text.txt").write_text("no less and no more " * 50)
    assert train_alone(*MODEL.split(), "--steps", "2", "--load", "run", "--seed", "5") == 0
    seed, text = capsys.readouterr().err.splitlines()
    assert seed == "minidist: --load run was saved with --seed 0: from here on batches and dropout are others"
    assert text.startswith("minidist: --load run was saved while training on another text, text.txt: ")
