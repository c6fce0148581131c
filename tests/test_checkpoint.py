"""Checkpoints: training that stops and goes on, on other ranks and in other chapters, against training that does not.

Every run is a real command line; what is in the files is read with the safetensors library.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from minidist.mpi.launch import find_mpiexec

ROOT = Path(__file__).parent.parent
LETTERS = "абвгдежзиклмнопрстуфхцч"
# Dropout and batches depend on the number of the step, Adam on that of the update and on its moments: training goes on
# as it would have only if all of them are restored. The learning rate is the same for any --steps.
MODEL = ["--layers", "1", "--width", "10", "--heads", "2", "--context", "8", "--batch", "12"]
TRAINING = ["--lr", "0.01", "--min-lr", "0.01", "--warmup", "0", "--dropout", "0.1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("checkpoints")
    text = "".join(np.random.default_rng(0).choice(list(LETTERS), 3000)) + LETTERS
    (made / "text.txt").write_text(text, encoding="utf-8")
    return made


def run(folder: Path, n: int, *program: str) -> subprocess.CompletedProcess[str]:
    """`mpirun -n N python PROGRAM`, without mpirun if n is 0, in `folder`."""
    mpirun = [str(Path(find_mpiexec()).with_name("mpirun")), "-n", str(n)] if n else []
    return subprocess.run(
        [*mpirun, sys.executable, *program, "--data", "text.txt", *MODEL, *TRAINING],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        start_new_session=True,
    )


@cache
def train(folder: Path, n: int, chapter: str, options: str) -> dict[str, Any]:
    """The report of a run that must end well."""
    done = run(folder, n, "-m", f"minidist.{chapter}", *options.split(), "--json", "-")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def state(path: Path) -> dict[str, Any]:
    """What the file says besides its arrays."""
    with safe_open(path, framework="numpy") as file:
        found: dict[str, Any] = json.loads(file.metadata()["state"])
    return found


def whole(folder: Path, precision: str) -> dict[str, Any]:
    """5 steps without a stop, of zero3 on 4 ranks, saved as whole-PRECISION.st."""
    return train(folder, 4, "zero3", f"--steps 5 --precision {precision} --save whole-{precision}.st")


def half(folder: Path, precision: str) -> dict[str, Any]:
    """The first 3 of them, saved as half-PRECISION.st."""
    return train(folder, 4, "zero3", f"--steps 3 --precision {precision} --save half-{precision}.st")


@pytest.mark.parametrize(
    ("n", "chapter"), [(0, "train"), (3, "data_parallel"), (2, "zero1"), (2, "zero2"), (5, "zero3"), (4, "zero3")]
)
def test_training_goes_on_in_any_chapter_on_any_number_of_ranks(n: int, chapter: str, folder: Path) -> None:
    """In float64 as if it had never stopped: losses, parameters and moments."""
    uninterrupted, before = whole(folder, "fp64"), half(folder, "fp64")
    assert before["loss"] == uninterrupted["loss"][:3]
    after = train(folder, n, chapter, f"--steps 5 --precision fp64 --load half-fp64.st --save {chapter}{n}.st")
    np.testing.assert_allclose(after["loss"], uninterrupted["loss"][3:], rtol=1e-12, atol=0)
    np.testing.assert_allclose(after["validation_loss"], uninterrupted["validation_loss"], rtol=1e-12, atol=0)
    found, truth = load_file(folder / f"{chapter}{n}.st"), load_file(folder / "whole-fp64.st")
    assert found.keys() == truth.keys()
    for name, array in truth.items():
        assert found[name].dtype == array.dtype == np.float64
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-12 * np.abs(array).max(), err_msg=name)
    assert state(folder / f"{chapter}{n}.st") == state(folder / "whole-fp64.st")


@pytest.mark.parametrize("precision", ["mixed", "bf16"])
def test_mixed_precision_goes_on_to_the_same_bit(precision: str, folder: Path) -> None:
    """On as many ranks in the same chapter."""
    uninterrupted, before = whole(folder, precision), half(folder, precision)
    after = train(
        folder, 4, "zero3", f"--steps 5 --precision {precision} --load half-{precision}.st --save again-{precision}.st"
    )
    assert before["loss"] + after["loss"] == uninterrupted["loss"]
    assert after["validation_loss"] == uninterrupted["validation_loss"]
    found, truth = load_file(folder / f"again-{precision}.st"), load_file(folder / f"whole-{precision}.st")
    assert found.keys() == truth.keys()
    for name, array in truth.items():
        assert found[name].dtype == array.dtype == np.float32
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert state(folder / f"again-{precision}.st") == state(folder / f"whole-{precision}.st")


def test_a_file_holds_the_parameters_in_their_shapes_and_both_moments(folder: Path) -> None:
    """Nothing of ranks, shards or padding; a file of Adam is three times the model."""
    half(folder, "mixed")
    arrays = load_file(folder / "half-mixed.st")
    shapes = {name: array.shape for name, array in arrays.items() if "/" not in name}
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 23 * 10 + 8 * 10 + (12 * 100 + 130) + 20
    assert shapes["wte.weight"] == (23, 10)
    assert shapes["block0.qkv.weight"] == (30, 10)
    assert shapes["head.norm.bias"] == (10,)
    for moment in ("moment1", "moment2"):
        assert {name: arrays[f"{moment}/{name}"].shape for name in shapes} == shapes
        assert all(np.abs(arrays[f"{moment}/{name}"]).max() > 0 for name in shapes)
    assert len(arrays) == 3 * len(shapes)
    assert (state(folder / "half-mixed.st")["steps"], state(folder / "half-mixed.st")["updates"]) == (3, 3)


def test_one_precision_goes_on_in_another(folder: Path) -> None:
    half(folder, "mixed")
    for precision in ("bf16", "fp32", "fp64"):
        after = train(folder, 2, "zero2", f"--steps 4 --precision {precision} --load half-mixed.st")
        assert after["precision"] == precision
        np.testing.assert_allclose(after["loss"], whole(folder, "mixed")["loss"][3:4], rtol=2e-3)


def test_the_loss_scale_is_restored_and_a_run_of_overflows_makes_no_claims(folder: Path) -> None:
    """At a scale at which every step overflows nothing is updated; a step that was not finished sends less."""
    half(folder, "mixed")
    arrays = load_file(folder / "half-mixed.st")
    with safe_open(folder / "half-mixed.st", framework="numpy") as file:
        metadata = file.metadata()
    changed = json.loads(metadata["state"])
    changed["loss_scale"] |= {"scale": 2.0**60, "forgiven_left": 0}
    save_file(arrays, folder / "scale.st", {**metadata, "state": json.dumps(changed)})

    done = run(folder, 3, *"-m minidist.zero2 --steps 5 --load scale.st --save overflows.st".split())  # noqa: SIM905
    assert done.returncode == 1
    assert done.stderr.startswith("minidist: error: no step updated the parameters")
    assert done.stderr.count("\n") == 1
    assert [line.split()[-1] for line in done.stdout.splitlines()[:2]] == [f"{2.0**59:g}", f"{2.0**58:g}"]
    assert "does not hold" not in done.stdout
    after = state(folder / "overflows.st")
    assert (after["steps"], after["updates"], after["loss_scale"]["scale"]) == (5, 3, 2.0**58)
    for name, array in load_file(folder / "overflows.st").items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)


def test_a_model_that_was_loaded_writes_text(folder: Path) -> None:
    half(folder, "mixed")
    done = run(folder, 2, *"-m minidist.zero3 --steps 4 --load half-mixed.st --sample 30".split())  # noqa: SIM905
    assert (done.returncode, done.stderr) == (0, "")
    sample = done.stdout.splitlines()[-1]
    assert len(sample) == 30
    assert set(sample) <= set(LETTERS)


# Half of the file is written, and then the rank that writes it is killed.
KILLED_WHILE_SAVING = """
import io, os, signal
from minidist import train, zero3
from minidist.claims import files

class Half(io.FileIO):
    def write(self, content):
        super().write(content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

files.open = Half
train.main("killed", "", zero3.make_engine, zero3.claims, zero3.add_options)
"""


def test_a_job_that_is_killed_while_it_saves_leaves_no_half_file(folder: Path) -> None:
    """Neither a new one, nor in place of an older one."""
    (folder / "killed.py").write_text(KILLED_WHILE_SAVING)
    assert run(folder, 2, "killed.py", "--steps", "1", "--save", "killed.st").returncode != 0
    (left,) = folder.glob("killed.st.*")
    assert left.stat().st_size > 0  # it was killed while it wrote
    assert not (folder / "killed.st").exists()

    half(folder, "mixed")
    older = (folder / "half-mixed.st").read_bytes()
    (folder / "older.st").write_bytes(older)
    assert run(folder, 2, "killed.py", "--steps", "1", "--save", "older.st").returncode != 0
    assert (folder / "older.st").read_bytes() == older
    # And it can be saved to again.
    train(folder, 2, "zero3", "--steps 1 --save killed.st")
    assert state(folder / "killed.st")["steps"] == 1
    assert list(folder.glob("killed.st.*")) == [left]
