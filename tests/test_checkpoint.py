"""Checkpoints: training that stops and goes on, on other ranks and laid out otherwise, against training that does not.

Every run is a real command line; those of one number of ranks run in one job. What is in the shards is put together
here from the manifest alone, element by element.
"""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from alone import train_alone
from cases import job_of, unnamed
from minidist import command, train
from minidist.checkpoints import checkpoint, manifest
from minidist.launch import launcher
from minidist.nn.precision import LossScale
from minidist.programs.chapter import find
from minidist.programs.serial import PLAIN, Serial
from programs import run_chapter, run_python
from ranks import launch
from tables import table

ROOT = Path(__file__).parent.parent
LETTERS = "абвгдежзиклмнопрстуфхцч"  # 23: no number of ranks above 1 divides them
# Dropout and batches depend on the number of the step, Adam on that of the update and on its moments: training goes on
# as it would have only if all of them are restored. The learning rate is the same for any --steps.
TRAINING = "--lr 0.01 --min-lr 0.01 --warmup 0 --dropout 0.1 --batch 16 --data text.txt"
GPT = f"--layers 3 --width 16 --heads 4 --context 8 {TRAINING}"
LLAMA = f"--model llama --kv-heads 2 {GPT}"
# Dropout depends on the micro-batch as well: all have two. A pipeline calls them -m.
EXACT = f"--precision fp64 --accumulate 2 {GPT}"
PIPED = f"--precision fp64 -m 2 {GPT}"


def sized(line: str) -> str:
    for name, options in (("EXACT", EXACT), ("PIPED", PIPED), ("LLAMA", LLAMA)):
        line = line.replace(name, options)
    return line


def is_plain(serial: Serial | None) -> bool:
    """Whether serial training, as it is, goes on where a chapter has ended."""
    return serial is None or serial.make is PLAIN.make


SAVED = {name: sized(line) for name, line in table(__file__, "saved").items()}
LOADED = [(n, source, sized(line)) for n, source, line in table(__file__, "loaded")]
# And chapters that save, and that no line of these names.
SAVED |= {
    name: f"{name} {EXACT}"
    for name in (line.split()[0] for _, line in unnamed([*SAVED.values(), *(line for *_, line in LOADED)]))
    if (job := job_of(f"{name} --save new", 4)) and is_plain(getattr(find(name), "serial", lambda _: None)(job))
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder, with a text."""
    made = tmp_path_factory.mktemp("checkpoints")
    text = "".join(np.random.default_rng(0).choice(list(LETTERS), 3000)) + LETTERS
    (made / "text.txt").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        yield made


def run(folder: Path, n: int, lines: list[str]) -> list[dict[str, Any]]:
    """The reports of some command lines, one after the other on n ranks; and the last one's stderr."""
    (folder / "reports").mkdir(exist_ok=True)
    job = launch("jobs.chapters:command_lines", n, lines, "reports", timeout=200)
    assert job.status == "ok", job.output
    reports = [job.values[0][line] for line in lines]
    assert [report["status"] for report in reports] == [0] * len(lines)
    reports[-1]["stderr"] = job.ranks[0].stderr
    assert [rank.stderr for rank in job.ranks[1:]] == [""] * (n - 1)
    return reports


def serial(line: str) -> dict[str, Any]:
    """The report of a command line of serial training, in this process."""
    assert train_alone(*line.split(), "--json", "report.json") == 0
    report: dict[str, Any] = json.loads(Path("report.json").read_text())
    return report


def name_of(n: int, source: str, line: str) -> str:
    """Where a run that went on was saved."""
    return f"after-{n}-{source}-{line.split()[0]}"


@cache
def saved(folder: Path) -> dict[str, dict[str, Any]]:
    """SAVED; and mixed precisions, in which zero3 goes on with itself."""
    lines = {name: f"{line} --steps 3 --save {name}" for name, line in SAVED.items()}
    for precision in ("mixed", "bf16"):
        zero3 = f"zero3 --precision {precision} {GPT}"
        lines[f"{precision} whole"] = f"{zero3} --steps 5 --save {precision}-whole"
        lines[f"{precision} half"] = f"{zero3} --steps 3 --save {precision}"
        lines[f"{precision} rest"] = f"{zero3} --steps 5 --load {precision} --save {precision}"
    return dict(zip(lines, run(folder, 4, list(lines.values())), strict=True))


SERIAL = {  # options of serial training, for what is in SAVED and for the rest of it
    "llama": f"--precision fp64 --accumulate 2 {LLAMA}",
    "experts": f"--experts 8 {EXACT}",
    "sgd": f"--optimizer sgd --clip 0.5 {EXACT}",
    "routed": f"--experts 8 {EXACT}",
}


@cache
def truth(options: str) -> dict[str, Any]:
    """Five steps in serial training: its report, and all arrays in the end."""
    report = serial(f"{options} --steps 5 --export truth.safetensors")
    return {**report, "arrays": load_file("truth.safetensors")}


def truth_of(source: str) -> dict[str, Any]:
    return truth(SERIAL.get(source, EXACT))


LATER = [case for i, case in enumerate(LOADED) if case[0] == 8 or i % 2]  # with -m slow


@cache
def loaded(folder: Path, n: int, later: bool) -> dict[tuple[int, str, str], dict[str, Any]]:
    """LOADED, of so many ranks: those of every run, or the slow ones."""
    saved(folder)
    cases = [case for case in LOADED if case[0] == n and (case in LATER) == later]
    lines = [f"{line} --steps 5 --load {source} --save {name_of(n, source, line)}" for _, source, line in cases]
    return dict(zip(cases, run(folder, n, lines), strict=True))


def arrays(path: str) -> dict[str, np.ndarray]:
    """All arrays of the newest checkpoint in a folder, put together from its shards: each element is in one of them."""
    step = Path(path) / (Path(path) / "latest").read_text().strip()
    document = json.loads((step / "manifest.json").read_text())
    prefixes = ["", "moment1/", "moment2/"][: 1 + document["moments"]]
    shapes = {prefix + name: shape for prefix in prefixes for name, shape in document["parameters"].items()}
    found = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
    for shard in document["shards"]:
        content = load_file(step / shard["file"])
        assert content.keys() == {prefix + name for prefix in prefixes for name in shard["holds"]}
        for name, (axis, spans, start, stop) in shard["holds"].items():
            shape = document["parameters"][name]
            places = np.concatenate([np.arange(*span) for span in spans])
            numbers = np.full(
                [*shape[:axis], max(shape[axis], places.max() + 1), *shape[axis + 1 :]], -1
            )  # of elements
            numbers[tuple(slice(size) for size in shape)] = np.arange(np.prod(shape)).reshape(shape)
            held = numbers.take(places, axis).ravel()[start:stop]
            for prefix in prefixes:
                values = content[prefix + name]
                assert values.shape == held.shape
                assert np.isnan(found[prefix + name].flat[held[held >= 0]]).all()  # nobody else has written it
                found[prefix + name].flat[held[held >= 0]] = values[held >= 0]
    assert not any(np.isnan(array).any() for array in found.values())
    return found


@pytest.mark.parametrize(
    ("n", "source", "line"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (case in LATER), id=f"{case[0]} {case[1]} {case[2].split()[0]}")
        for case in LOADED
    ],
)
def test_any_layout_goes_on_from_any_other(n: int, source: str, line: str, folder: Path) -> None:
    """In float64 as serial training that never stopped: losses, parameters and moments."""
    case = n, source, line
    uninterrupted, before, after = truth_of(source), saved(folder)[source], loaded(folder, n, case in LATER)[case]
    np.testing.assert_allclose(before["loss"] + after["loss"], uninterrupted["loss"], rtol=1e-12, atol=0)
    np.testing.assert_allclose(after["validation_loss"], uninterrupted["validation_loss"], rtol=1e-12, atol=0)
    found = arrays(name_of(n, source, line))
    assert found.keys() == uninterrupted["arrays"].keys()
    for name, array in uninterrupted["arrays"].items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-12 * np.abs(array).max(), err_msg=name)
    assert after.get("stderr", "") == ""


@pytest.mark.parametrize("source", SAVED)
def test_serial_training_goes_on_from_any_layout(source: str, folder: Path) -> None:
    saved(folder)
    after = serial(f"{SERIAL.get(source, EXACT)} --steps 5 --load {source}")
    np.testing.assert_allclose(after["loss"], truth_of(source)["loss"][3:], rtol=1e-12, atol=0)


@pytest.mark.parametrize("precision", ["mixed", "bf16"])
def test_the_same_layout_goes_on_to_the_same_bit(precision: str, folder: Path) -> None:
    reports = saved(folder)
    whole, half, rest = (reports[f"{precision} {part}"] for part in ("whole", "half", "rest"))
    assert half["loss"] + rest["loss"] == whole["loss"]
    assert rest["validation_loss"] == whole["validation_loss"]
    found, expected = arrays(precision), arrays(f"{precision}-whole")
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    kept = [manifest.read(path) for path in (precision, f"{precision}-whole")]
    assert kept[0].state == kept[1].state
    assert kept[0].dtype == "F32"


def test_every_rank_writes_a_shard_of_about_the_same_size(folder: Path) -> None:
    """Of ZeRO-3's, and where all have everything; a checkpoint of Adam is three times the model."""
    saved(folder)
    for name in ("shards", "copies", "hosts"):
        found = manifest.read(name)
        sizes = [sum(piece.stop - piece.start for piece in shard.holds.values()) for shard in found.shards]
        parameters = sum(array.size for array in truth(EXACT)["arrays"].values()) // 3
        assert sum(sizes) == parameters
        busy = [size for size in sizes if size]  # of two hosts that have the same, one writes
        assert len(busy) == (2 if name == "hosts" else 4)
        assert max(busy) - min(busy) < 4 * 5  # the padding of five units
        stored = sum(os.path.getsize(f"{found.folder}/{shard.file}") for shard in found.shards)
        assert 3 * parameters * 8 < stored < 3 * parameters * 8 + 20_000


def test_the_manifest_says_who_saved_and_how_far_it_was(folder: Path) -> None:
    saved(folder)
    found = manifest.read("grid")
    assert found.layout == {"chapter": "parallel3d", "ranks": 4, "dp": 1, "pp": 2, "tp": 2, "cp": 1, "ep": 1, "zero": 1}
    assert found.state["steps"] == found.state["updates"] == found.text["position"] == 3
    assert found.random == {"seed": 0, "step": 3}
    assert found.text["name"] == "text.txt"
    assert found.identity == {"model": "gpt", "heads": 4, "kv-heads": 4, "characters": "".join(sorted(LETTERS))}
    holds = {name for shard in found.shards for name in shard.holds}
    assert holds == set(found.parameters)


def test_what_cannot_be_the_same_is_said(folder: Path) -> None:
    """A pipeline without a flush is drained when it is saved, and goes on from there as a run that is drained there; a
    parameter server that does not wait says what is not saved. (Three ranks, whose other runs say nothing.)"""
    saved(folder)
    stream = f"pipeline --schedule pipedream {GPT} --precision fp32 --steps 6"
    double = f"pipeline --schedule 2bw -m 4 {GPT} --precision fp32 --steps 6"
    lines = [
        f"{stream} --save stream --save-every 2 --keep 2",
        f"{stream} --load stream/step000004 --save-every 2 --save again",
        f"{double} --save double --save-every 3",
        f"{double} --load double/step000003",
        f"parameter_server --consistency ssp --load shards --steps 5 {EXACT}",
    ]
    whole, rest, twice, after, server = run(folder, 3, lines)
    assert sorted(os.listdir("stream")) == ["latest", "step000004", "step000006"]
    assert rest["loss"] == whole["loss"][4:]
    assert after["loss"] == twice["loss"][3:]
    assert {claim["claim"].partition(":")[0] for claim in whole["claims"]} == {"proof"}
    assert after["claims"]  # of a stream that was not interrupted
    assert len(server["loss"]) == 2
    (line,) = server["stderr"].splitlines()
    assert line.startswith("minidist: ssp goes on with every worker at step 3 and no push under way: ")


def test_a_rank_holds_its_shard_and_a_piece_of_one_unit(folder: Path) -> None:
    """While it saves and loads, beside the engine that it has anyway; from shards that fit and from others."""
    for counted in launcher.launch("jobs.checkpoints:held", 4, "held", timeout=100).values:
        for moment in ("save", "load", "load another"):
            assert counted[moment] < counted["unit"], moment
        assert 3 * counted["unit"] < counted["model"]


def test_a_rank_that_cannot_write_its_shard_is_heard(folder: Path) -> None:
    """One line, on rank 0; nobody waits for ever, and what was there is as it was."""
    job = launcher.launch("jobs.checkpoints:one_cannot_write", 3, "refused", timeout=100)
    assert job.status == "ok", job.output
    assert job.ranks[0].stderr == (
        "minidist: error: cannot write refused/step000001/rank2-of-3.safetensors: No space left on device\n"
        "minidist: error: cannot write refused.safetensors: No space left on device\n"
        "minidist: error: cannot write refused/step000002/rank1-of-3.safetensors: all ranks must see the same folder\n"
    )
    assert sorted(os.listdir("refused")) == ["latest", "step000000"]
    assert sorted(name for name in os.listdir() if name.startswith("refused")) == ["refused", "refused-elsewhere"]
    assert job.values == [0, 0, 0]  # the step that they load


def test_one_precision_goes_on_in_another(folder: Path) -> None:
    expected = saved(folder)["mixed whole"]["loss"][3]
    for precision in ("bf16", "fp32", "fp64"):
        after = serial(f"{GPT} --steps 4 --precision {precision} --load mixed/step000003")
        assert after["precision"] == precision
        np.testing.assert_allclose(after["loss"], [expected], rtol=2e-3)


def test_the_loss_scale_is_restored_and_a_run_of_overflows_makes_no_claims(folder: Path) -> None:
    """At a scale at which every step overflows nothing is updated; a step that was not finished sends less."""
    saved(folder)
    job = find("train").job([*GPT.split(), "--steps", "3"], 1)
    engine = train.Engine(job.units, job.settings)
    checkpoint.load("mixed/step000003", engine)
    vars(engine.loss_scale).update(scale=2.0**60, forgiven_left=0)
    checkpoint.save("scale", engine, train.Alone(), command.about(job, 1))
    engine.loss_scale = LossScale(window=7)  # a configuration's: where it stands is restored, and not by which rule
    checkpoint.load("scale", engine)
    assert (engine.loss_scale.scale, engine.loss_scale.window) == (2.0**60, 7)

    done = run_chapter(f"zero2 --steps 5 --load scale --save overflows {GPT}", 2)
    assert done.returncode == 1
    assert done.stderr.startswith("minidist: error: no step updated the parameters")
    assert done.stderr.count("\n") == 1
    assert [line.split()[-1] for line in done.stdout.splitlines()[:2]] == [f"{2.0**59:g}", f"{2.0**58:g}"]
    assert "does not hold" not in done.stdout
    after = manifest.read("overflows").state
    assert (after["steps"], after["updates"], after["loss_scale"]["scale"]) == (5, 3, 2.0**58)
    before = arrays("scale")
    for name, array in arrays("overflows").items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_a_run_with_a_skipped_step_goes_on_to_the_same_bit(folder: Path) -> None:
    """A step that overflows makes no update: Adam's corrections go by updates, batches and masks by steps."""
    line = f"{GPT} --precision mixed --steps"
    job = find("train").job(f"{line} 0".split(), 1)
    engine = train.Engine(job.units, job.settings)
    engine.loss_scale = LossScale(2.0**30)
    checkpoint.save("large-scale", engine, train.Alone(), command.about(job, 1))

    whole = serial(f"{line} 20 --load large-scale --save skipped-whole")
    half = serial(f"{line} 17 --load large-scale --save skipped")
    rest = serial(f"{line} 20 --load skipped --save skipped-rest")
    state = manifest.read("skipped").state
    assert 0 < state["updates"] < state["steps"] == 17
    assert half["loss"] + rest["loss"] == whole["loss"]
    assert manifest.read("skipped-rest").state == manifest.read("skipped-whole").state
    expected = arrays("skipped-whole")
    for name, array in arrays("skipped-rest").items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


# ---- a single file ---------------------------------------------------------------------------------------------------


def test_an_exported_file_holds_the_parameters_in_their_shapes_and_both_moments(folder: Path) -> None:
    """Nothing of ranks, shards or padding: what is in the shards of a grid. And --load takes it."""
    saved(folder)
    line = f"zero3 {EXACT} --steps 3 --load grid --export grid.safetensors --sample 30"
    done = run_chapter(line, 3)
    assert (done.returncode, done.stderr) == (0, "")
    _, _, written = done.stdout.partition("The model writes:\n")
    sample = written.splitlines()[0]
    assert len(sample) == 30
    assert set(sample) <= set(LETTERS)
    found, expected = load_file("grid.safetensors"), arrays("grid")
    assert found.keys() == expected.keys()
    assert found["wte.weight"].shape == (23, 16)
    assert found["moment2/block0.qkv.weight"].shape == (48, 16)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    after = serial(f"{EXACT} --steps 5 --load grid.safetensors")
    np.testing.assert_allclose(after["loss"], truth(EXACT)["loss"][3:], rtol=1e-12, atol=0)


# ---- killed ----------------------------------------------------------------------------------------------------------


# The last rank writes half of its shard, and is killed.
KILLED_WHILE_SAVING = """
import io, os, signal, sys
from minidist import contents
from minidist.system import files

class Half(io.FileIO):
    def write(self, content):
        super().write(bytes(content)[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

files.open = lambda path, mode: Half(path, mode) if "rank1-of" in path and mode == "xb" else io.open(path, mode)
contents.run("zero3")
"""


def test_a_job_that_is_killed_while_it_saves_leaves_no_half_checkpoint(folder: Path) -> None:
    """Neither a first one, nor in place of an older one; and it can be saved there again, which clears up."""
    (folder / "killed.py").write_text(KILLED_WHILE_SAVING)
    for before in ([], ["latest", "step000001"]):
        assert run_python("killed.py", *f"--steps 2 --save killed {GPT}".split(), ranks=2).returncode != 0
        (draft,) = [name for name in os.listdir("killed") if name not in before]
        assert draft.endswith(".tmp")
        (half,) = Path(f"killed/{draft}").glob("rank1-of-2.safetensors.*.tmp")
        assert half.stat().st_size > 0  # it was killed while it wrote
        serial(f"{GPT} --steps 1 --save killed" if not before else f"{GPT} --steps 2 --load killed --save killed")
    assert sorted(os.listdir("killed")) == ["latest", "step000001", "step000002"]
