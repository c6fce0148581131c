"""Hugging Face's names: against a table made with transformers, and, where that is installed, against its logits."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from alone import train_alone
from minidist import UsageError
from minidist.checkpoints.names import huggingface
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Batch
from minidist.nn.llama import LlamaConfig, llama
from minidist.nn.tensor import Tensor
from minidist.programs.chapter import find

TABLE = (Path(__file__).parent / "huggingface.txt").read_text()
SMALL = "--steps 3 --lr 0.1 --warmup 0 --layers 2 --width 12 --heads 2 --context 8 --batch 4 --precision fp64"


def table(heading: str) -> Counter[tuple[str, tuple[int, ...]]]:
    """(name, shape): how many. Layers go by the same name."""
    lines = next(part for part in TABLE.split("\n\n") if part.startswith(heading)).splitlines()[1:]
    return Counter({(name, tuple(map(int, shape))): int(n) for n, name, *shape in map(str.split, lines)})


@pytest.mark.parametrize(
    ("heading", "units", "identity"),
    [
        ("GPT2", gpt(GPTConfig(tied=False)), {"model": "gpt", "heads": 12, "kv-heads": 12}),
        ("Llama", llama(LlamaConfig()), {"model": "llama", "heads": 32, "kv-heads": 32}),
    ],
    ids=["GPT-2", "Llama"],
)
def test_names_and_shapes_of_published_models(heading: str, units: Any, identity: dict[str, Any]) -> None:
    found: Counter[tuple[str, tuple[int, ...]]] = Counter()
    names = set()
    for parameter in (parameter for unit in units for parameter in unit.parameters):
        nothing = np.broadcast_to(np.float32(0), parameter.shape)
        for name, turned in huggingface(parameter.name, parameter.shape, identity).items():
            names.add(name)
            parts = ["{}" if part.isdecimal() else part for part in name.split(".")]
            found[".".join(parts), turned(nothing).shape] += 1
    assert found == table(heading)
    assert len(names) == sum(found.values())  # each layer has its own


MODELS = {"gpt": "", "gpt untied": "--untied", "llama": "--model llama --kv-heads 1 --heads 2"}


@pytest.fixture(params=MODELS)
def exported(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A model that has been trained a little, as ours.safetensors and, for transformers, as model.safetensors."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("no more and no less " * 50)
    for names, file in (("minidist", "ours.safetensors"), ("huggingface", "model.safetensors")):
        line = f"{SMALL} {MODELS[request.param]} --data text.txt --export {file} --names {names} --json report"
        assert train_alone(*line.split()) == 0
    return request.param, tmp_path


def test_a_tied_head_is_not_stored_twice(exported: tuple[str, Path]) -> None:
    name, folder = exported
    arrays = load_file(folder / "model.safetensors")
    assert ("lm_head.weight" in arrays) == (name != "gpt")
    assert all(array.dtype == np.float32 for array in arrays.values())
    ours = load_file(folder / "ours.safetensors")
    assert sum(array.size for array in arrays.values()) == sum(a.size for n, a in ours.items() if "/" not in n)


def test_the_configuration_is_beside_the_file(exported: tuple[str, Path]) -> None:
    name, folder = exported
    found = json.loads((folder / "config.json").read_text())
    llama_s = {
        "hidden_size": 12, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
        "num_hidden_layers": 2, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    gpt_s = {"n_embd": 12, "n_head": 2, "n_layer": 2, "n_positions": 8, "activation_function": "gelu_new"}
    expected = llama_s if name == "llama" else gpt_s
    assert {key: found[key] for key in expected} == expected
    assert found["tie_word_embeddings"] == (name == "gpt")
    assert found["architectures"] == ["LlamaForCausalLM" if name == "llama" else "GPT2LMHeadModel"]


def test_a_configuration_of_something_else_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("no more and no less " * 50)
    Path("config.json").write_text('{"mine": 1}')
    line = f"{SMALL} --data text.txt --export model.safetensors --names huggingface"
    with pytest.raises(UsageError, match=r"would overwrite config\.json, which is no model's"):
        find("train").job(line.split(), 1)
    Path("config.json").write_text('{"model_type": "gpt2"}')
    find("train").job(line.split(), 1)


def test_transformers_computes_the_same_logits(exported: tuple[str, Path]) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    name, folder = exported
    ours = {n: a for n, a in load_file(folder / "ours.safetensors").items() if "/" not in n}
    vocabulary = ours["wte.weight"].shape[0]
    if name == "llama":
        hidden = ours["block0.down.weight"].shape[1]
        units = llama(LlamaConfig(vocabulary, 8, 2, heads=2, kv_heads=1, width=12, hidden=hidden))
    else:
        units = gpt(GPTConfig(vocabulary, 8, 2, heads=2, width=12, tied=name == "gpt"))
    theirs, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))

    tokens = np.random.default_rng(0).integers(0, vocabulary, (3, 8))
    for parameter in (parameter for unit in units for parameter in unit.parameters):
        parameter.bind(ours[parameter.name])
    h: Any = tokens
    for unit in units:
        h = unit(Tensor(h), Batch(tokens)).data  # (B, T) -> (B, T, V), float64
    with torch.no_grad():
        logits = theirs.eval()(torch.from_numpy(tokens)).logits.numpy()
    assert np.ptp(h) > 1  # something has been learned
    np.testing.assert_allclose(logits, h, rtol=0, atol=1e-5 * np.abs(h).max())
