"""Accelerate's YAML: each key is explained, what is offloaded is counted, and files of other systems are named."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from minidist import UsageError
from minidist.__main__ import main
from minidist.deepspeed import accelerate, explain
from minidist.papers.gpt2 import MODELS

pytest.importorskip("hjson")
yaml = pytest.importorskip("yaml")

KEYS = yaml.safe_load(Path(__file__).with_name("accelerate.yaml").read_text())
TOP, FSDP, DEEPSPEED, OTHERS = (KEYS[name] for name in ("top", "fsdp", "deepspeed", "others"))


def explained(folder: Path, said: Any, *options: str) -> str:
    """The explanation of a file, on one line."""
    (folder / "a.yaml").write_text(said if isinstance(said, str) else yaml.safe_dump(said))
    return " ".join(explain.explain([str(folder / "a.yaml"), *options]).split())


@pytest.mark.parametrize(
    ("kind", "name", "section"), [("FSDP", "fsdp_config", FSDP), ("DEEPSPEED", "deepspeed_config", DEEPSPEED)]
)
def test_each_key_is_explained(tmp_path: Path, kind: str, name: str, section: dict[str, Any]) -> None:
    """Its value, and what it means or why it has no effect; those about starting processes together."""
    sections = {name: section, **OTHERS}
    text = explained(tmp_path, {"distributed_type": kind, **TOP, **sections})
    says = text.partition("What it says")[2].partition("Memory of a rank")[0]
    paths = ["distributed_type", *TOP, *(f"{outer}.{inner}" for outer, of in sections.items() for inner in of)]
    starting = re.search(r"About starting processes, which mpirun does here: (.*?)\.(?= [A-Za-z_.0-9]+ =| In|$)", says)
    assert starting
    together = starting[1].split(", ")
    for path in paths:
        alone = re.search(rf"(?:^| ){re.escape(path)} = \S+.*?: \S", says)
        assert bool(alone) != (path in together), path
    assert len(paths) == len({*paths})
    assert "does not know" not in says


@pytest.mark.parametrize("key", [*(f"fsdp_config.{key}" for key in FSDP), *TOP])
def test_no_key_is_taken_for_an_unknown_one(tmp_path: Path, key: str) -> None:
    outer, _, inner = key.rpartition(".")
    one = {outer: {inner: FSDP[inner]}} if outer else {key: TOP[key]}
    text = explained(tmp_path, {"distributed_type": "FSDP", **one})
    assert f"{key} = " in text or f"mpirun does here: {key}." in text
    assert "does not know" not in text


@pytest.mark.parametrize(
    "section", ["fsdp_config", "dynamo_config", "fp8_config", "parallelism_config", "mpirun_config"]
)
def test_whatever_a_file_says_is_printable(tmp_path: Path, section: str) -> None:
    strange: dict[Any, Any] = {"a.b": 1, "": 2, ".": 3, "\x1b[31m": 4, "x\ny": 5, 7: 6, "z" * 300: 7}
    strange |= {"list": [[1]], "text": "\x1b[0m" * 99}
    said = {"distributed_type": "FSDP", "gpu_ids": "\x1b[31m", "main_process_ip": ["\n"], section: strange}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(said))
    text = explain.explain([str(tmp_path / "a.yaml")])
    assert text.replace("\n", "").isprintable()
    for key in ("a.b = 1", ". = 3", "7 = 6", "list = [[1]]", r"x\ny' = 5"):
        assert key in text


def test_a_section_of_fsdp_may_leave_out_the_prefix(tmp_path: Path) -> None:
    """As in `accelerate launch`, which adds it."""
    text = explained(tmp_path, {"distributed_type": "FSDP", "fsdp_config": {"sharding_strategy": "NO_SHARD"}})
    assert "--strategy no_shard" in text
    assert "fsdp_config.fsdp_sharding_strategy = NO_SHARD: " in text


def test_an_older_files_fp16_is_mixed_precision(tmp_path: Path) -> None:
    assert "fp16.enabled = true" in explained(tmp_path, {"distributed_type": "MULTI_GPU", "fp16": True})
    both = {"distributed_type": "MULTI_GPU", "fp16": True, "mixed_precision": "no"}
    assert "fp16.enabled = false" in explained(tmp_path, both)


# ---- what is offloaded -----------------------------------------------------------------------------------------------


def figure(text: str, row: str) -> float:
    [found] = re.findall(rf" {re.escape(row)} \S*Ψ\S* ([\d.,]+)", text)
    return float(found.replace(",", ""))


@pytest.mark.parametrize("version", [{"fsdp_sharding_strategy": "FULL_SHARD"}, {"fsdp_version": 2}])
def test_offloaded_parameters_are_on_the_host(tmp_path: Path, version: dict[str, Any]) -> None:
    """Shards of parameters, gradients and optimizer states, 16Ψ/N: the device has only what passes through."""
    section = {"fsdp_offload_params": True, **version}
    said = {"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": section}
    text, psi = explained(tmp_path, said, "--model", "gpt2", "--ranks", "4"), MODELS["gpt2"].parameters
    assert figure(text, "on the host: gradients") == pytest.approx(2 * psi / 4 / 1e9, abs=1e-3)
    assert figure(text, "and parameters") == pytest.approx(2 * psi / 4 / 1e9, abs=1e-3)
    assert figure(text, "optimizer states") == pytest.approx(12 * psi / 4 / 1e9, abs=1e-3)
    assert "model states together" not in text
    assert "python -m minidist.offload --zero 3 --parameters host" in text
    assert ("--ahead 1" in text) == ("fsdp_version" in version)  # FSDP2 gathers the next unit ahead in the backward
    assert "fsdp_offload_params = true: " in text
    assert "fsdp_offload_params = true: has no effect" not in text


@pytest.mark.parametrize(
    ("key", "value"), [("fsdp_forward_prefetch", True), ("fsdp_backward_prefetch", "BACKWARD_POST")]
)
def test_prefetching_that_offloaded_parameters_lack_has_a_line(tmp_path: Path, key: str, value: Any) -> None:
    section = {"fsdp_offload_params": True, key: value}
    text = explained(tmp_path, {"distributed_type": "FSDP", "fsdp_config": section})
    assert "has no effect here with fsdp_offload_params: use BACKWARD_PRE" in text
    section["fsdp_backward_prefetch"] = "BACKWARD_PRE"
    assert "with fsdp_offload_params: use" not in explained(
        tmp_path, {"distributed_type": "FSDP", "fsdp_config": section}
    )


@pytest.mark.parametrize("strategy", ["NO_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"])
def test_what_no_chapter_offloads_is_refused(tmp_path: Path, strategy: str) -> None:
    said = {"fsdp_offload_params": True, "fsdp_sharding_strategy": strategy}
    with pytest.raises(UsageError, match=f"fsdp_offload_params true with {strategy} is not here: use FULL_SHARD, or"):
        explained(tmp_path, {"distributed_type": "FSDP", "fsdp_config": said})


# ---- a key that stands twice -----------------------------------------------------------------------------------------


def test_a_key_that_stands_twice_is_taken_as_yaml_takes_it(tmp_path: Path) -> None:
    """The last one counts, in Accelerate, too, and a line says so; keys of a merged mapping do not count twice."""
    text = explained(tmp_path, "num_machines: 1\nnum_processes: 2\nfsdp_config: {fsdp_version: 1,\n fsdp_version: 2}\n"
                     "num_processes: 4\ndistributed_type: FSDP\n")  # fmt: skip
    assert "N = 4 ranks" in text
    assert "fsdp_config.fsdp_version = 2: " in text
    assert "line 4 has the key fsdp_version a second time: the last one counts, as in Accelerate" in text
    assert "line 5 has the key num_processes a second time" in text
    file = tmp_path / "b.yaml"
    file.write_text("x: &x {k: 2}\ny: &y\n  <<: *x\n  k: 1\nz:\n  <<: *y\n  <<: *x\n  k: 3\nw: {k: 1, k: 2}\n")
    found, notes = accelerate.parse(str(file))
    assert (found["y"], found["z"], found["w"]) == ({"k": 1}, {"k": 3}, {"k": 2})
    assert notes == ["line 9 has the key k a second time: the last one counts, as in Accelerate"]


# ---- files of other systems ------------------------------------------------------------------------------------------

TORCHTITAN = '[job]\ndump_folder = "x"\n[training]\nlocal_batch_size = 8\n[parallelism]\ntensor_parallel_degree = 2\n'
OLDER = '[model]\nname = "llama3"\n[training]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 1\n'
MEGATRON = "model_parallel:\n  tensor_model_parallel_size: 1\n  pipeline_model_parallel_size: 1\n"
NANOTRON = "general:\n  project: debug\nparallelism:\n  dp: 2\n  pp: 2\n  tp: 2\ntokens:\n  micro_batch_size: 2\n"
PICOTRON = json.dumps({"distributed": {"tp_size": 1, "cp_size": 1, "pp_size": 1, "dp_size": 1, "pp_engine": "1f1b"}})


@pytest.mark.parametrize(
    ("file", "content", "whose"),
    [
        ("debug.toml", TORCHTITAN, "torchtitan's"),
        ("older.toml", OLDER, "torchtitan's"),
        ("megatron.yaml", MEGATRON, "Megatron's"),
        ("nanotron.yaml", NANOTRON, "nanotron's"),
        ("config.json", PICOTRON, "picotron's"),
        ("config.json", json.dumps(json.loads(PICOTRON), indent=4), "picotron's"),
        ("pyproject.toml", "[project]\nname = 'x'\n", "TOML"),
    ],
)
def test_files_of_other_systems_are_named(tmp_path: Path, file: str, content: str, whose: str) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(UsageError) as error:
        main(["explain", str(tmp_path / file)])
    assert f"{file} is {whose}" in str(error.value)
    assert "DeepSpeed's JSON and Accelerate's YAML" in str(error.value)
    assert "\n" not in str(error.value)


def test_accelerates_own_json(tmp_path: Path) -> None:
    """`accelerate config` may write JSON, too."""
    (tmp_path / "default_config.json").write_text(json.dumps({"distributed_type": "FSDP", "num_processes": 4}))
    text = explain.explain([str(tmp_path / "default_config.json")])
    assert "python -m minidist.fsdp --strategy full_shard" in text
