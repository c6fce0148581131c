"""Checkpoints of other systems, given to --load, inspect or to-fp32: each is named as what it is, in one line."""

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from minidist import UsageError
from minidist.__main__ import main
from minidist.programs.chapter import find

SMALL = "--layers 1 --width 8 --heads 2 --context 8 --batch 2 --steps 1"
DEEPSPEED, DCP = "DeepSpeed's checkpoint", "PyTorch's distributed checkpoint"
MEGATRON, FACE = "Megatron's checkpoint", "Hugging Face's model"
FOLDERS = {  # what is in the folder, and what it is
    "deepspeed": (["latest", "zero_to_fp32.py", "global_step10/mp_rank_00_model_states.pt"], DEEPSPEED),
    "deepspeed step": (["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"], DEEPSPEED),
    "deepspeed bf16": (["latest", "global_step10/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"], DEEPSPEED),
    "dcp": ([".metadata", "__0_0.distcp", "__1_0.distcp"], DCP),
    "torchtitan": (["step-100/.metadata", "step-100/__0_0.distcp"], DCP),
    "megatron": (["latest_checkpointed_iteration.txt", "iter_0000100/mp_rank_00/model_optim_rng.pt"], MEGATRON),
    "megatron iteration": (["mp_rank_00_000/model_optim_rng.pt"], MEGATRON),
    "megatron distributed": (["common.pt", "metadata.json", ".metadata", "__0_0.distcp"], MEGATRON),
    "face": (["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"], FACE),
    "face alone": (["config.json", "model.safetensors"], FACE),
    "face older": (["config.json", "pytorch_model.bin"], FACE),
    "trainer": (["checkpoint-500/config.json", "checkpoint-500/trainer_state.json"], FACE),
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusals(name: str) -> list[str]:
    """What each command says that reads a checkpoint."""
    said = []
    for ask in (
        lambda: find("train").job([*SMALL.split(), "--load", name], 1),
        lambda: main(["inspect", name]),
        lambda: main(["to-fp32", name, "out.safetensors"]),
    ):
        with pytest.raises(UsageError) as error:
            ask()
        said.append(str(error.value))
    assert not Path("out.safetensors").exists()
    return said


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_another_system_is_named(name: str) -> None:
    files, what = FOLDERS[name]
    for file in files:
        path = Path(name) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("global_step10" if file == "latest" else "{}")
    loads = any(file.endswith("safetensors") for file in files)  # its config.json says nothing: test_huggingface.py
    for said in refusals(name)[loads:]:
        assert f"{name} is {what}: only what minidist's --save or --export wrote can be read" in said
        assert "\n" not in said


def test_a_file_of_another_system_is_named() -> None:
    with zipfile.ZipFile("model.pt", "w") as file:
        file.writestr("archive/data.pkl", b"")
    Path("old.pth").write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2))
    Path("model.safetensors.index.json").write_text("{}")
    Path("__0_0.distcp").write_bytes(b"PK\x03\x04")
    for name, what in (
        ("model.pt", "a file of torch.save"),
        ("old.pth", "a file of torch.save"),
        ("model.safetensors.index.json", FACE),
        ("__0_0.distcp", DCP),
    ):
        for said in refusals(name):
            assert f"{name} is {what}: only what minidist" in said


def test_a_safetensors_file_may_begin_as_a_pickle_does() -> None:
    """Its first bytes are the length of its header: here 640."""
    save_file({"x": np.zeros(2)}, "model", {"note": "a" * 556})
    assert Path("model").read_bytes()[:2] == b"\x80\x02"
    with pytest.raises(UsageError, match="was not written by minidist's --export"):
        find("train").job([*SMALL.split(), "--load", "model"], 1)


def test_a_folder_of_minidist_stays_one() -> None:
    """Whatever else is in it; a damaged one is not taken for another system's, though DeepSpeed's verbs name it so."""
    Path("run/global_step10").mkdir(parents=True)
    Path("run/latest").write_text("global_step10")
    assert all("names a checkpoint that is not there" in said for said in refusals("run"))
    Path("empty").mkdir()
    assert all("there is no file latest in it" in said for said in refusals("empty"))
