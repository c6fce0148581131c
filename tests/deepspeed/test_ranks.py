"""Configurations on ranks: every stage gives data parallelism's losses, files of all kinds give the same run, and the
verbs do what they say. One job."""

import dataclasses
import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from jobs import deepspeeds
from minidist.deepspeed import explain, sizes
from minidist.deepspeed import plan as planning
from minidist.papers import gpt2, korthikanti
from programs import run_python
from ranks import launch
from tables import table

pytest.importorskip("hjson")
pytest.importorskip("yaml")

RANKS = 4
PRECISIONS = {"fp32": {}, "mixed": {"fp16": {"enabled": True}}, "bf16": {"bf16": {"enabled": True}}}
FILES_TOO = "mixed", 2  # the precision and the micro-batches with which states go to files as well
SMALL = ["--steps", "2", "--layers", "2", "--width", "16", "--heads", "2", "--context", "16"]

AUTO = '"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "fp16": {"enabled": "auto"}'
FILES = {name: text.replace("AUTO", AUTO) for name, text in table(__file__, "files").items()}


def configuration(stage: int, accumulate: int, precision: str, where: str = "none") -> dict[str, Any]:
    return {
        "train_batch_size": 16,
        "gradient_accumulation_steps": accumulate,
        "gradient_clipping": 0.5,
        "zero_optimization": {
            "stage": stage,
            "offload_optimizer": {"device": where},
            "offload_param": {"device": where if where == "nvme" and stage == 3 else "none"},
        },
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 9, "warmup_num_steps": 3}},
        **PRECISIONS[precision],
    }


def stages(*kinds: tuple[str, int]) -> dict[str, dict[str, Any]]:
    """Every stage of each kind, which is a precision and a number of micro-batches, and where its states can be."""
    return {
        f"{precision} {accumulate} {stage}": configuration(stage, accumulate, precision)
        for precision, accumulate in kinds
        for stage in range(4)
    } | {
        f"{precision} {accumulate} {stage} {where}": configuration(stage, accumulate, precision, where)
        for precision, accumulate in kinds
        for stage in (1, 2, 3)
        for where in ("cpu", "nvme")
        if where == "cpu" or (precision, accumulate) == FILES_TOO
    }


KINDS = ("fp32", 1), ("fp32", 2), ("mixed", 2), ("bf16", 1)
OTHERS = ("mixed", 1), ("bf16", 2)  # with -m slow
CONFIGS = stages(*KINDS)


def drawn(draw: random.Random) -> dict[str, Any]:
    """A configuration that should run, of any stage, optimizer and schedule, in fp32."""
    optimizer = draw.choice([
        {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.8, 0.99], "weight_decay": draw.choice([0, 0.1])}},
        {"type": "SGD", "params": {"lr": 0.5, "momentum": draw.choice([0, 0.9])}},
    ])  # fmt: skip
    scheduler = draw.choice([
        {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-3, "warmup_max_lr": 1e-2, "warmup_num_steps": 3}},
        {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 1, "total_num_steps": 5, "warmup_min_lr": 1e-3}},
        {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 1, "total_num_steps": 5, "warmup_min_ratio": 0.5}},
        {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 1e-3, "lr_range_test_step_size": 2}},
        {"type": "OneCycle", "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 2,
                                        "cycle_momentum": False}},
    ])  # fmt: skip
    config = {
        "train_micro_batch_size_per_gpu": draw.choice([1, 2, 3]),
        "gradient_accumulation_steps": draw.choice([1, 2, 3]),
        "gradient_clipping": draw.choice([0, 0.1, 1.0]),
        "zero_optimization": {"stage": draw.choice([0, 1, 2, 3]), "overlap_comm": draw.choice([True, False])},
        "optimizer": optimizer,
        "scheduler": scheduler,
        "activation_checkpointing": {"cpu_checkpointing": draw.choice([True, False])},
    }
    return {key: config[key] for key in config if key.startswith("train") or draw.random() < 0.8}


RANDOM = {f"random {i}": drawn(random.Random(i)) for i in range(5)}
MORE = {f"random {i}": drawn(random.Random(i)) for i in range(5, 30)}  # with -m slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    lines = {name: [str(folder / name), *SMALL] for name in FILES}
    return launch("jobs.deepspeeds:everything", RANKS, CONFIGS | RANDOM, lines, str(folder), timeout=280).values[0]


@pytest.mark.parametrize(("precision", "accumulate"), KINDS)
def test_every_stage_gives_the_losses_of_data_parallelism(
    found: dict[str, Any], precision: str, accumulate: int
) -> None:
    check_stages(found, precision, accumulate)


def check_stages(found: dict[str, Any], precision: str, accumulate: int) -> None:
    """To the last bit; with several micro-batches stages 2 and 3 sum over ranks first, 0 and 1 over micro-batches."""
    losses = [found[f"{precision} {accumulate} {stage}"] for stage in range(4)]
    for stage in (1, 2, 3):
        for where in ("cpu", "nvme") if (precision, accumulate) == FILES_TOO else ("cpu",):
            assert found[f"{precision} {accumulate} {stage} {where}"] == losses[stage]
    if accumulate == 1:
        assert losses == [losses[0]] * 4
    else:
        assert losses[:2] == [losses[0]] * 2
        assert losses[2:] == [losses[2]] * 2
        np.testing.assert_allclose(losses[2], losses[0], rtol={"fp32": 1e-6, "mixed": 2e-3, "bf16": 1e-2}[precision])


@pytest.mark.parametrize(
    "name", [*RANDOM, *(f"fp32 {accumulate} {stage}" for accumulate in (1, 2) for stage in (0, 3))]
)
def test_and_those_of_serial_training(found: dict[str, Any], name: str) -> None:
    check_losses((CONFIGS | RANDOM)[name], found[name])


@pytest.mark.slow
def test_more_stages_and_more_random_ones(tmp_path: Path) -> None:
    more = MORE | stages(*OTHERS)
    found = launch("jobs.deepspeeds:everything", RANKS, more, {}, str(tmp_path), timeout=280).values[0]
    for precision, accumulate in OTHERS:
        check_stages(found, precision, accumulate)
    for name, config in MORE.items():
        check_losses(config, found[name])


def check_losses(config: dict[str, Any], found: list[float]) -> None:
    """Serial training is told the batch and the settings, and knows no stages."""
    plan = planning.make(config, RANKS)
    losses = deepspeeds.serially(plan.settings(deepspeeds.SEED), plan.batch)
    np.testing.assert_allclose(found, losses, rtol=2e-5)
    assert losses[0] != losses[-1]


@pytest.mark.parametrize("name", FILES)
def test_a_file_runs_its_chapter_and_every_claim_holds(found: dict[str, Any], name: str) -> None:
    others = {
        **{"checkpointing.json": "zero2", "zero1.json": "zero1", "sgd.json": "zero1", "ddp.json": "data_parallel"},
        **{"timed.json": "zero2", "bucket.json": "zero2", "cpu_checkpointing.json": "zero_r"},
        **dict.fromkeys(("fsdp.yaml", "fsdp2.yaml", "grad_op.yaml", "hybrid.yaml"), "fsdp"),
        **{f"{chapter}{stage}.json": chapter for chapter in ("offload", "infinity") for stage in (1, 2, 3)},
        **dict.fromkeys(("below.json", "host.yaml"), "offload"),
        **dict.fromkeys([name for name in FILES if name.startswith("axes")], "parallel3d"),
        **{"copies.yaml": "fsdp", "zeropp.json": "zeropp", "onebit.json": "compression"},
        "fp32 gradients.json": "zero2",
    }
    chapter = others.get(name, "zero3")
    assert found[name]["chapter"] == chapter
    assert found[name]["status"] == 0
    assert found[name]["holds"]
    assert found[name]["claims"] >= 6
    norms = ["norms"] * (chapter not in ("zeropp", "compression"))  # what is rounded has another norm
    assert found[name]["proved"] == [f"proof: {what}" for what in ("losses", *norms, "parameters", "first loss")]


@pytest.mark.parametrize("name", ["zero3.json", "infinity3.json", "fsdp.yaml", "onebit.json"])
def test_types_of_a_files_chapter(tmp_path: Path, name: str) -> None:
    """With --types nothing is trained, in whatever way the file's engine is made."""
    (tmp_path / name).write_text(FILES[name])
    ranks = RANKS if name.endswith(".yaml") else 2
    done = run_python("-m", "minidist.deepspeed", str(tmp_path / name), "--types", "--ranks", str(ranks), *SMALL)
    assert done.returncode == 0, done.stderr
    assert f"operations of a forward on data {ranks}: 0 alarms" in done.stdout
    assert "training loss" not in done.stdout


def test_one_strategy_said_in_four_ways(found: dict[str, Any]) -> None:
    """DeepSpeed's JSON, strict and by hand, Accelerate's YAML for DeepSpeed and for both FSDPs: the same losses, and,
    but for recomputation and for what FSDP gathers ahead, the same bytes."""
    names = ["hand.json", "deepspeed.yaml", "fsdp.yaml", "fsdp2.yaml", "grad_op.yaml", "zero1.json", "ddp.json"]
    zero3 = found["zero3.json"]
    assert [found[name]["loss"] for name in names] == [zero3["loss"]] * len(names)
    for name in names[:4]:
        assert found[name]["sent"] == zero3["sent"]
    for name in names[:2]:
        assert found[name]["memory"] == zero3["memory"]
    for kind in ("parameters", "gradients", "optimizer", "bucket"):
        assert {found[name]["memory"][0][kind] for name in names[2:5]} == {zero3["memory"][0][kind]}
    assert found["fsdp.yaml"]["memory"][0]["gathered"] > zero3["memory"][0]["gathered"]
    assert found["fsdp2.yaml"]["memory"][0]["activations"] < found["fsdp.yaml"]["memory"][0]["activations"]


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("axes") and "ep" not in name])
def test_other_axes_train_the_same(found: dict[str, Any], name: str) -> None:
    """To float16's roundings. (Experts are another model.)"""
    np.testing.assert_allclose(found[name]["loss"], found["zero3.json"]["loss"], rtol=2e-3)


def test_gradients_in_float32_take_twice_the_bytes(found: dict[str, Any]) -> None:
    run, usual = found["fp32 gradients.json"], found["checkpointing.json"]
    assert [rank["gradients"] for rank in run["memory"]] == [2 * rank["gradients"] for rank in usual["memory"]]


def test_one_axis_said_in_two_ways(found: dict[str, Any]) -> None:
    """Ulysses by DeepSpeed's key, and by Accelerate's: the same losses, bytes and messages."""
    assert all(found["axes sp.json"][what] == found["axes sp.yaml"][what] for what in ("loss", "memory", "sent"))


def test_offloading_moves_what_explain_says(found: dict[str, Any], folder: Path) -> None:
    """The same losses and messages as without; the device is left what is read there, up to the units' padding."""
    for stage in (1, 2, 3):
        name = f"offload{stage}.json"
        run, text = found[name], explain.explain([str(folder / name), "--ranks", str(RANKS), "--model", "gpt2"])
        assert run["loss"] == found["zero3.json"]["loss"]
        psi, padding = run["parameters"], 12 * 5 * RANKS
        for rank, below, moved in zip(run["memory"], run["below"], run["moved"], strict=True):
            assert rank["optimizer"] == 0
            assert 0 <= rank["gradients"] - (2 * psi if stage == 1 else 0) <= padding
            for kind, factor in (("gradients", 2), ("optimizer", 12)):
                assert 0 <= below["host"][kind] - factor * psi / RANKS <= padding
            for way in ("device to host", "host to device"):
                (counts,) = moved[way].values()
                assert 0 <= counts["bytes"] - 2 * psi / RANKS <= padding
        for words in ("on the host: gradients +2Ψ/N", "optimizer states +12Ψ/N", "parameters from the host +2·Ψ/N"):
            assert re.search(words, text), words
        assert f"python -m minidist.offload --zero {stage}" in text


def test_what_persists_and_what_is_gathered_ahead(found: dict[str, Any]) -> None:
    """h = 16: "auto" is 10h = 160 elements, which are the biases and norms, 13h in each of 2 layers and 2h. Of messages
    these save a forward and a backward, less what is gathered after an update. A layer more is held in passing."""
    run, zero3 = found["limits.json"], found["zero3.json"]
    np.testing.assert_allclose(run["loss"], zero3["loss"], rtol=1e-6)
    small, layer = 2 * 13 * 16 + 2 * 16, 12 * 16**2
    for mine, other in zip(run["memory"], zero3["memory"], strict=True):
        assert mine["persistent"] == 2 * small
        assert 2 * (layer - small) < mine["gathered"] - other["gathered"] <= 2 * layer
    for mine, other in zip(run["sent"], zero3["sent"], strict=True):
        saved = sum(phase["bytes"] for phase in other.values()) - sum(phase["bytes"] for phase in mine.values())
        assert saved == 2 * (2 - 1) * small * (RANKS - 1) // RANKS


def test_parameters_on_the_host_go_up_for_each_gather(found: dict[str, Any]) -> None:
    run = found["below.json"]
    assert run["loss"] == found["zero3.json"]["loss"]
    psi, padding = run["parameters"], 12 * 5 * RANKS
    for rank, below, moved in zip(run["memory"], run["below"], run["moved"], strict=True):
        assert rank["parameters"] < psi / RANKS < below["host"]["parameters"] - psi / RANKS + padding
        assert 0 <= moved["host to device"]["parameters"]["bytes"] - 2 * 2 * psi / RANKS <= padding


def test_files_have_and_give_what_explain_says(found: dict[str, Any], folder: Path) -> None:
    for stage in (1, 2, 3):
        name = f"infinity{stage}.json"
        run, text = found[name], explain.explain([str(folder / name), "--ranks", str(RANKS), "--model", "gpt2"])
        assert run["loss"] == found["zero3.json"]["loss"]
        shard, padding = run["parameters"] / RANKS, 12 * 5
        parameters = 2 * shard if stage == 3 else 0
        for below, moved in zip(run["below"], run["moved"], strict=True):
            assert 0 <= below["disk"]["all"] - (12 * shard + parameters) <= 2 * padding
            for way, times in (("disk to host", 2), ("host to disk", 1)):
                nbytes = sum(counts["bytes"] for counts in moved[way].values())
                assert 0 <= nbytes - (12 * shard + times * parameters) <= 3 * padding
        files = ["in files: optimizer states +12Ψ/N", "optimizer states +3·12·max ψ/N", "written to files +12Ψ/N"]
        files += ["in files: parameters +2Ψ/N", r"read from files +12Ψ/N \+ 2·2aΨ/N"] if stage == 3 else []
        for words in files:
            assert re.search(words, text), words
        assert f"python -m minidist.infinity --zero {stage}" in text


@pytest.mark.parametrize(
    "name", ["ddp.json", "zero1.json", "checkpointing.json", "zero3.json", "bucket.json", "cpu_checkpointing.json"]
)
def test_explain_computes_what_is_counted(found: dict[str, Any], folder: Path, name: str) -> None:
    """The formulas know nothing of padding: less than one element for a rank and unit."""
    run, config = found[name], folder / name
    plan = planning.make(explain.accelerate.load(str(config))[0].config, RANKS)
    states = explain.zero.model_states(run["parameters"], RANKS, plan.stage)
    for rank in run["memory"]:
        for kind, expected in dataclasses.asdict(states).items():
            assert expected <= rank[kind] <= expected + 12 * 5
    small = gpt2.gpt(h=16, layers=2, a=2, s=16, v=(run["parameters"] - 2 * (12 * 16**2 + 13 * 16) - 2 * 16) // 16 - 16)
    assert small.parameters == run["parameters"]
    for rank in run["memory"]:
        assert rank["transient"] == pytest.approx(sizes.passing(plan, small), abs=2 * 2 * 2 * RANKS)
    volume = explain.zero.volume(run["parameters"], RANKS, plan.stage)
    for phases in run["sent"]:
        for phase, elements in volume.items():
            assert 2 * elements <= phases[phase]["bytes"] <= 2 * elements + 2 * 2 * RANKS * 5


@pytest.mark.parametrize("name", ["fsdp.yaml", "grad_op.yaml"])
def test_and_of_fsdp(found: dict[str, Any], folder: Path, name: str) -> None:
    """Parameters are divided between steps; SHARD_GRAD_OP has all of them in passing, and sends 2Ψ."""
    run = found[name]
    text = explain.explain([str(folder / name), "--ranks", "4"])
    assert "2Ψ/N" in next(line for line in text.splitlines() if line.startswith("  parameters"))
    psi, sent = run["parameters"], {"fsdp.yaml": 3, "grad_op.yaml": 2}[name]
    for rank, phases in zip(run["memory"], run["sent"], strict=True):
        assert 2 * psi / RANKS <= rank["parameters"] <= 2 * psi / RANKS + 2 * 5
        moved = sum(counts["bytes"] for phase, counts in phases.items() if phase != "norm")
        assert sent * 2 * psi * 3 / 4 <= moved <= sent * (2 * psi * 3 / 4 + 2 * RANKS * 5)
    gpt2 = explain.MODELS["gpt2"]
    (line,) = [line for line in text.splitlines() if line.startswith("  total sent")]
    assert float(line.split()[-1].replace(",", "")) == pytest.approx(sent * 2 * gpt2.parameters * 3 / 4 / 1e9, abs=1e-3)
    (line,) = [line for line in text.splitlines() if line.startswith("  whole units")]
    embedding, *blocks = gpt2.units
    largest = embedding + max(blocks)
    gathered = gpt2.parameters if sent == 2 else embedding + 2 * max(blocks)
    assert float(line.split()[-1].replace(",", "")) == pytest.approx(2 * (gathered + largest) / 1e9, abs=1e-3)


def test_verbs(found: dict[str, Any]) -> None:
    verbs = found["verbs"]
    assert verbs["seen"] == [  # boundary, global, micro and skipped steps, loss scale: the first overflow is forgiven
        [False, 0, 1, 0, 2.0**40],
        [True, 1, 2, 1, 2.0**40],
        [False, 1, 3, 1, 2.0**40],
        [True, 2, 4, 2, 2.0**39],
    ]
    assert verbs["lr"] == [0.0]  # an overflow moves no schedule on
    assert verbs["shape"] == [RANKS, deepspeeds.CONTEXT]
    assert verbs["from the data"]
    assert verbs["steps"] == 3
    assert verbs["optimizer"] == "AdamW"
    assert verbs["mean loss"] == pytest.approx(np.log(deepspeeds.VOCABULARY), rel=0.05)  # of a model that knows nothing


def test_init_never_holds_more_than_its_shards_and_a_unit(found: dict[str, Any]) -> None:
    init = found["init"]
    shards, unit = 4 * init["parameters"] / RANKS, 8 * init["largest"]  # float32 masters; float64 as drawn
    assert shards < init["peak"] <= 1.01 * shards + unit
    assert init["traced"] < 1.2 * shards + 3 * unit + 200_000  # NumPy's own account: temporaries, declarations
    assert init["traced"] < 4 * init["parameters"]  # as if one rank had it all
    assert init["losses"] == init["without"]


def test_a_tiled_layer(found: dict[str, Any]) -> None:
    """The plain layer's results; of all tiles one is whole at a time, and each is gathered twice and reduced once."""
    drawn = set()
    for tiles, ranks in found["tiled"].items():
        weights, gradient = ranks[0]["weights"], ranks[0]["gradient"]
        np.testing.assert_allclose(gradient, sum(rank["dy"].T @ rank["x"] for rank in ranks), rtol=1e-12)
        for rank in ranks:
            np.testing.assert_array_equal(rank["weights"], weights)
            np.testing.assert_allclose(rank["y"], rank["x"] @ weights.T, rtol=1e-12)
            np.testing.assert_allclose(rank["dx"], rank["dy"] @ weights, rtol=1e-12)
            one_way = tiles * 8 * rank["padded"] * (RANKS - 1) // RANKS
            assert rank["sent"] == {"gather tile": 2 * one_way, "reduce tile": one_way}
            assert rank["gathered"] == rank["bucket"] == 8 * rank["padded"]
        assert ranks[0]["padded"] == -(-84 // tiles // RANKS) * RANKS  # 12 outputs of 7 inputs
        drawn |= {float(value) for value in weights.flat}
    assert len(drawn) > 84  # tiles are not all alike


def test_gathered_parameters(found: dict[str, Any]) -> None:
    drawn, initial = found["gathered"]["drawn"]
    assert drawn == pytest.approx(initial, rel=1e-5)
    assert found["gathered"]["means"] == [pytest.approx(drawn), 1.25, 1.25, 3.0, 3.0]
    for held in found["gathered"]["held"].values():  # float32: the master copies, or as drawn
        assert held == [0, 4 * found["gathered"]["padded"], 0, 0]


@pytest.mark.parametrize("case", ["fp32 0", "fp32 3", "mixed 2"])
def test_a_model_that_calls_checkpoint_keeps_its_blocks_inputs(found: dict[str, Any], case: str) -> None:
    """The same losses and gradients, bsh elements of each layer where Korthikanti counts sbh(34 + 5as/h) bytes (their
    table 2, without dropout), and one layer's at a time in the backward. On the host they go down the link and up once.
    """
    layers, b, s, h, heads, p = 2, 2, deepspeeds.CONTEXT, 12, 2, 4 if case.startswith("fp32") else 2
    inputs = layers * korthikanti.layer_activations(s, b, h, heads, recompute="full", p=p)
    one = korthikanti.layer_activations(s, b, h, heads, p=p, dropout=False)
    one += 2 * 2 * 4 * s * b  # a layer norm's statistics, which the paper does not count: two numbers for each token
    runs = {name: found["checkpointed"][f"{case} {name}"] for name in ("without", "by its JSON", *deepspeeds.WAYS)}
    without, as_it_is = runs.pop("without"), runs["as it is"]
    assert without["kept"] == {"device": layers * one, "host": 0}
    assert as_it_is["most"]["device"] == inputs * (layers - 1) / layers + one  # whose input is among what it keeps
    for name, run in runs.items():
        assert run["losses"] == as_it_is["losses"], name
        np.testing.assert_array_equal(run["gradients"], as_it_is["gradients"], err_msg=name)
        on_host = name in ("on the host", "from a file", "both", "by its JSON")
        assert run["kept"] == {"device": 0 if on_host else inputs, "host": inputs if on_host else 0}, name
        once = {"checkpoints": {"bytes": inputs, "moves": layers}}
        assert run["moved"] == ({"device to host": once, "host to device": once} if on_host else {}), name
    if case.startswith("fp32"):
        assert without["losses"] == as_it_is["losses"]
        np.testing.assert_array_equal(without["gradients"], as_it_is["gradients"])
    else:  # a layer's input is rounded to float16 before it runs again
        np.testing.assert_allclose(without["losses"], as_it_is["losses"], rtol=1e-3)
    assert np.abs(without["gradients"]).max() > 0


def test_plain_sgd_goes_on_in_every_stage(found: dict[str, Any]) -> None:
    """From stage 3's checkpoint, with which all is as in one run; momentum has more state, and a line says so."""
    plain = found["plain sgd"]
    for name, losses in plain["losses"].items():
        np.testing.assert_allclose(losses, plain["losses"]["on"], rtol=1e-12, atol=0, err_msg=name)
    assert plain["losses"]["on"][0] != plain["losses"]["on"][1]
    assert plain["statuses"] == [0] * 5  # every claim holds, of no optimizer states among them
    assert "was made by another optimizer: use the same --optimizer" in plain["refused"]


def test_checkpoints_load_in_every_stage(found: dict[str, Any], folder: Path) -> None:
    kept = found["kept"]
    assert len(set(map(tuple, kept["losses"].values()))) == 1
    assert kept["steps"] == 2 * deepspeeds.STEPS
    assert kept["saved"] == [True, False]
    assert kept["lost"] == [str(folder / "kept/latest/below a file/model.safetensors")]
    tag = f"global_step{deepspeeds.STEPS}"
    assert (folder / "kept/latest").read_text() == f"{tag}~2\n"
    assert sorted(os.listdir(folder / "kept")) == [f"{tag}~2", "latest"]
    assert kept["loaded"] == [(str(folder / "kept" / f"{tag}~2"), {"epoch": 2, "by epoch": {"9": "a", "10": "b"}})] * 2
    says = [
        "a micro-batch of all 4 ranks has 8 sequences, not 1",
        "train_batch takes 1 micro-batch, and the iterator ends after 0",
        "the model has no values yet",
        "load_checkpoint",
        *["a tag is a name for a folder, without a ~"] * 3,
        "cannot be written as JSON",
        "no checkpoint with the tag other",
    ]
    assert all(words in line for words, line in zip(says, kept["refused"], strict=True)), kept["refused"]
    weights = load_file(folder / "16bit.safetensors")
    assert {array.dtype for array in weights.values()} == {np.dtype("float16")}
    assert {name: array.shape for name, array in weights.items()} == {
        parameter.name: parameter.shape for unit in deepspeeds.model() for parameter in unit.parameters
    }
