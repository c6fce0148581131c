"""Today's models by name and by config.json: their parameters, to the unit, are those that transformers counts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from minidist import UsageError
from minidist.__main__ import main
from minidist.cli import models
from minidist.cli.models import NAMED, TABLES, TYPES, model_of, shape_of
from minidist.papers import megatron, mixtral
from minidist.papers.collectives import chunk_sizes
from minidist.papers.decoder import DENSE, MIXTURE, Decoder
from minidist.papers.models import Model
from minidist.plan import command
from tables import table

CASES: dict[str, dict[str, Any]] = {
    row["case"]: {key: None if value == "null" else value for key, value in row["config"].items()}
    for row in table(__file__, "types")
}
COUNTS = {row["case"]: row["count"] for row in table(__file__, "types")}
SEVEN = {  # keys and values of any model
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 100, "vocab_size": 77,
    "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_configuration_has_the_parameters_that_transformers_counts(case: str) -> None:
    shape = shape_of(CASES[case], "config.json")
    model = Model.like(shape)
    assert shape.parameters == model.parameters() == model.decoder.parameters == COUNTS[case]
    assert [sum(unit) for unit in shape.parameter_sizes] == shape.units == model.units()


def test_every_type_has_a_case_and_every_name_a_count() -> None:
    assert {config["model_type"] for config in CASES.values()} == {*TYPES}
    assert table(__file__, "named") == {name: shape.parameters for name, shape in (mixtral.MODELS | NAMED).items()}


@pytest.mark.slow
def test_transformers_still_counts_so() -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    for config, count in [
        *((CASES[case], COUNTS[case]) for case in CASES),
        *((config, table(__file__, "named")[name]) for name, config in TABLES["models"].items()),
    ]:
        sizes = {key: value for key, value in config.items() if key != "model_type"}
        with torch.device("meta"):
            made = transformers.AutoConfig.for_model(config["model_type"], **sizes)
            model = transformers.AutoModelForCausalLM.from_config(made)
        assert sum(parameter.numel() for parameter in model.parameters()) == count, config


@pytest.mark.parametrize("name", NAMED)
def test_a_name_and_its_file_are_the_same_model(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TABLES["models"][name]))
    assert model_of(str(tmp_path)) == model_of(name)
    by_name, by_file = (command.shape_of(command.PlanOptions(model=each))[1] for each in (name, str(tmp_path)))
    assert by_name == by_file


def test_mixtral_is_a_llama_with_experts() -> None:
    """So `plan --check` runs its own layers."""
    expected = Model("llama", 32_000, 32_768, 4096, 32, 32, 8, False, 8, 2, f=14_336)
    assert Model.like(model_of("mixtral-8x7b")) == expected


@pytest.mark.parametrize("case", CASES)
def test_parts_add_up(case: str) -> None:
    """What is cut is there once, the rest on both ranks."""
    model = Model.like(shape_of(CASES[case] | {"vocab_size": 78}, ""))
    ranks = model.decoder.cut_and_whole(2)
    rest = sum(whole for _, whole in ranks[0])
    assert sum(cut for rank in ranks for cut, _ in rank) + rest == model.parameters()
    experts = model.decoder.kinds.count(MIXTURE) * model.experts * sum(model.mlp()[0])
    [without] = model.without_experts()
    assert sum(map(sum, without)) + experts == model.parameters()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["gpt", "llama"])
@pytest.mark.parametrize("experts", [0, 4])
def test_the_books_own_models_are_cut_as_megatron_cuts_them(name: str, experts: int, tied: bool) -> None:
    """By formulas of v, s, h: 12h² + 13h for a GPT's layer, 2h² + 2hg + 3hf + 2h for a Llama's; and E experts."""
    v, s, h, layers, a, kv, f = 50, 16, 48, 3, 4, 4 if name == "gpt" else 2, 128
    model = Model(name, v, s, h, layers, a, kv, tied, experts, 2 if experts else 1)
    of = model.decoder
    assert Model.like(of) == model if name == "gpt" else Model.like(of).decoder == of
    for t, rank in [(1, 0), (2, 0), (2, 1), (4, 0), (4, 3)]:
        if name == "gpt":
            first, (cut, whole), *_, last = megatron.count_cut_and_whole(v, s, h, layers, t, tied)
            mlp = (8 * h * h + 4 * h) // t, h
        else:
            table = -(-v // t) * h
            first, last = (table, 0), (table * (not tied), h)
            mlp = 3 * h * chunk_sizes(f, t)[rank], 0
            cut, whole = (2 * h * h + 2 * h * (h // a * kv)) // t + mlp[0], 2 * h
        routed = cut + (experts - 1) * mlp[0], whole + (experts - 1) * mlp[1] + experts * h
        router = cut - mlp[0], whole - mlp[1] + experts * h
        dense = cut, whole
        assert of.cut_and_whole(t)[rank] == [first, *[routed if experts else dense] * layers, last]
        assert model.without_experts(t)[rank] == [first, *[router if experts else dense] * layers, last]
        assert model.mlp(t)[rank] == mlp
    idle = layers * max(0, experts - 2) * sum(model.mlp()[0])
    assert of.active == model.parameters() - idle
    assert Model.like(of.with_experts(6, 3)).decoder == model.with_mixture(6, 3).decoder


def windows(kind: str, **more: Any) -> tuple[int, ...]:
    found = shape_of({"model_type": kind, **SEVEN, "num_hidden_layers": 6, "num_key_value_heads": 2, **more}, "")
    assert isinstance(found, Decoder)
    return found.windows


def test_sliding_windows() -> None:
    assert windows("gemma2", sliding_window=16) == (16, 0) * 3
    assert windows("gemma3_text", sliding_window=16, head_dim=12) == (16,) * 5 + (0,)
    assert windows("gemma3_text", sliding_window=16, sliding_window_pattern=2) == (16, 0) * 3
    assert windows("mistral", sliding_window=16) == (16,) * 6
    assert windows("mistral", sliding_window=None, head_dim=20) == ()
    assert windows("qwen2", sliding_window=16) == ()
    assert windows("qwen2", sliding_window=16, use_sliding_window=True, max_window_layers=4) == (0,) * 4 + (16,) * 2
    types = ["full_attention", "sliding_attention"] * 3
    assert windows("gemma2", sliding_window=16, layer_types=types) == (0, 16) * 3
    decoder = shape_of({"model_type": "gemma2", **SEVEN, "num_hidden_layers": 2, "sliding_window": 16}, "")
    assert isinstance(decoder, Decoder)
    assert decoder.keys(64) == (16 + 64) / 2


def test_layers_are_mixtures_by_their_number() -> None:
    more = {"num_key_value_heads": 2, "num_hidden_layers": 6, "num_experts": 4, "decoder_sparse_step": 2}
    found = shape_of({"model_type": "qwen3_moe", **SEVEN, **more, "mlp_only_layers": [3]}, "")
    assert found.kinds == (DENSE, MIXTURE, DENSE, DENSE, DENSE, MIXTURE)


def test_deepseeks_layers() -> None:
    of = model_of("deepseek-v3")
    assert isinstance(of, Decoder)
    assert of.kinds == (DENSE,) * 3 + (MIXTURE,) * 58
    assert of.active == 37_552_282_624  # 37B (DeepSeek-V3, section 1)
    shapes = {name: weight.shape for name, weight in of.matrices(MIXTURE).items()}
    assert shapes["kv down"] == (512 + 64, 7168)
    assert shapes["expert fc1"] == shapes["shared fc1"] == (2 * 2048, 7168)


@pytest.mark.parametrize(("config", "says"), [
    ({"model_type": "falcon", "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 77,
      "alibi": False, "multi_query": True, "rope_theta": 1e4},
     "would need intermediate_size, max_position_embeddings. Of its fields, these are unknown: alibi, multi_query;"),
    ({"model_type": "mamba", **SEVEN, "state_size": 16}, "are. Of its fields, these are unknown: state_size; or say"),
    ({"model_type": "bert", **SEVEN}, "model_type 'bert' is not here: gpt2, gpt_neox, llama,"),
    ({"model_type": "qwen3", **SEVEN, "num_key_value_heads": 3}, "4 heads and 3 of keys do not divide"),
    ({"model_type": "llama", **SEVEN, "hidden_size": 50}, "50 wide, 4 heads and 4 of keys do not divide"),
    ({"model_type": "mixtral", **SEVEN, "num_key_value_heads": 2, "num_local_experts": 0},
     "num_local_experts should be a whole number from 1"),
    ({"model_type": "qwen3_moe", **SEVEN, "num_experts": "8"}, "num_experts should be a whole number from 1 on"),
    ({"model_type": "deepseek_v3", **SEVEN, "q_lora_rank": -1}, "q_lora_rank should be a whole number from 0 on"),
])  # fmt: skip
def test_what_a_file_would_need(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as error:
        shape_of(config, "config.json")
    assert "\n" not in str(error.value)


def test_a_model_with_pictures_is_its_language_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """gemma-3-4b-it's file: what it does not say is Gemma 3's own."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    )
    assert model_of(str(tmp_path)).parameters == 3_880_263_168
    assert "of 'gemma3', only the language model is read (text_config)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["deepseek-v2", "gpt-oss-20b", "gemma2-9b", "gpt-neox-20b", "qwen3-30b-a3b"])
def test_plan_and_explain_take_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 64, "zero_optimization": {"stage": 3}}')
    assert main(["explain", str(tmp_path / "ds.json"), "--model", name, "--ranks", "64", "--sequence", "2048"]) == 0
    assert f"{name}, Ψ = {models.MODELS[name].parameters:,}" in " ".join(capsys.readouterr().out.split())
    line = f"plan --model {name} --ranks 4 --context 2048 --batch 16K --device-memory 3200GB --json -"
    assert main(line.split()) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows
    assert all(0 < row["mfu"] < 100 for row in rows)
