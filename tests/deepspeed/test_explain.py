"""What explain computes, and what it makes of Accelerate's YAML; figures worked out by hand."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from minidist import UsageError
from minidist.__main__ import main
from minidist.deepspeed import accelerate, explain
from minidist.papers import deepspeed, gpt2
from minidist.papers.decoder import Decoder
from tables import table

pytest.importorskip("hjson")
pytest.importorskip("yaml")

PSI = 6_738_415_616  # Llama 2 7B
UNITS = (32_000 * 4096, 4 * 4096**2 + 3 * 4096 * 11_008 + 2 * 4096)  # embedding, layer


def explained(folder: Path, config: str, *options: str, name: str = "ds_config.json") -> str:
    (folder / name).write_text(config)
    return explain.explain([str(folder / name), *options])


def figures(text: str, row: str) -> str:
    """The last number of a row."""
    [found] = re.findall(rf"^  {re.escape(row)} .* ([\d.,]+)$", text, re.MULTILINE)
    return str(found)


def test_llama_on_64_ranks(tmp_path: Path) -> None:
    text = explained(
        tmp_path,
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3, "fp16": {"enabled": true},'
        ' "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": "auto", "overlap_comm": true}}',
        *("--model", "llama2-7b", "--ranks", "64"),
    )
    assert "llama2-7b, Ψ = 6,738,415,616 parameters, N = 64 ranks" in " ".join(text.split())  # wherever it wraps
    assert 'param_persistence_threshold = 40,960 ("auto")' in text
    assert "has no effect here, because a rank waits for each of its messages" in text
    assert figures(text, "parameters") == f"{2 * PSI / 64 / 1e9:.3f}"
    assert figures(text, "optimizer states") == f"{12 * PSI / 64 / 1e9:.3f}"
    assert figures(text, "model states") == f"{PSI / 4 / 1e9:.3f}"
    assert figures(text, "whole units") == f"{4 * max(UNITS) / 1e9:.3f}"
    norms = 65 * 4096  # the only parameters that have no more than 40,960 elements
    assert figures(text, "persistent parameters") == f"{2 * norms / 1e9:.3f}"
    assert figures(text, "all-gather forward") == f"{3 * 2 * (PSI - norms) * 63 / 64 / 1e9:.3f}"
    assert figures(text, "all-gather persistent") == f"{2 * norms * 63 / 64 / 1e9:.3f}"
    assert figures(text, "total sent") == f"{2 * (9 * PSI - 5 * norms) * 63 / 64 / 1e9:.3f}"
    gpu = 4 * 32_000 * 4096 + int(18 * PSI / 64)
    assert f"GPU {gpu / 2**30:.2f}, host {32_000 * 4096 * 4 * 8 * 1.5 / 2**30:.2f}, nothing offloaded" in text
    line = "mpirun -n 64 python -m minidist.zero3 --batch 384 --accumulate 3 --persist 40960 --min-lr 0.003 --warmup 0"
    assert f"{line} --model llama" in text


def test_what_runs_again_is_gathered_and_read_again(tmp_path: Path) -> None:
    """Of each four of GPT-2's 12 layers three, in each of 3 micro-batches: (12h² + 13h) parameters, divided by 4."""
    nvme = '{"device": "nvme", "nvme_path": "/disk"}'
    config = (
        '{"train_batch_size": 12, "gradient_accumulation_steps": 3, "fp16": {"enabled": true}, "zero_optimization":'
        ' {"stage": 3, "offload_optimizer": NVME, "offload_param": NVME}}'
    )
    once, again = (
        explained(tmp_path, config.replace("NVME", nvme), "--model", "gpt2", "--ranks", "4", "--recompute", recompute)
        for recompute in ("none", "every:4")
    )
    layers = 3 * 2 * 9 * (12 * 768**2 + 13 * 768)
    assert "all-gather again" not in once
    assert figures(again, "all-gather again") == f"{layers * 3 / 4 / 1e9:.3f}"
    for row, more in (("total sent", layers * 3 / 4), ("parameters from the host", layers / 4)):
        one, other = (float(figures(text, row).replace(",", "")) for text in (once, again))
        assert other - one == pytest.approx(more / 1e9, abs=1e-3), row


def test_zeropp_adds_a_copy_and_sends_less(tmp_path: Path) -> None:
    """On 8 hosts of 8."""
    keys = '"zero_quantized_weights": true, "zero_hpz_partition_size": 8, "zero_quantized_gradients": true'
    config = '{"train_batch_size": 128, "fp16": {"enabled": true}, "zero_optimization": {"stage": 3KEYS}}'
    less, zero3 = (
        explained(tmp_path, config.replace("KEYS", more), "--model", "llama2-7b", "--ranks", "64")
        for more in (f", {keys}", "")
    )
    assert figures(less, "second copy") == f"{2 * PSI / 8 / 1e9:.3f}"
    held = [float(figures(text, "at the fullest moment")) for text in (less, zero3)]
    assert held[0] - held[1] == pytest.approx(2 * PSI / 8 / 1e9, abs=2e-3)
    assert figures(less, "all-gather forward") == f"{PSI * 63 / 64 / 1e9:.3f}"
    assert figures(less, "all-gather backward") == f"{2 * PSI * 7 / 8 / 1e9:.3f}"
    assert figures(less, "all-to-all within hosts") == f"{PSI / 2 * 7 / 8 / 1e9:.3f}"
    assert figures(less, "all-to-all across hosts") == f"{PSI / 16 * 7 / 8 / 1e9:.3f}"
    sent, before = (float(figures(text, "total sent")) / (2 * PSI / 1e9) for text in (less, zero3))
    assert (f"{sent:.2f}", f"{before:.2f}") == ("1.63", "2.95")  # 1.61 without scales
    leaves, rings = (
        float(figures(less, row)) / (2 * PSI / 1e9) for row in ("leaves a host, of G ranks", "  with ZeRO-3's rings")
    )
    assert (f"{leaves:.2f}", f"{rings:.2f}") == ("0.73", "2.95")  # 0.71 without
    assert "python -m minidist.zeropp --ranks-per-host 8 --batch 128" in less


def test_one_bit_adam_sends_a_sixteenth_after_its_freeze_step(tmp_path: Path) -> None:
    optimizer = '"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 23000}}'
    text = explained(
        tmp_path, f'{{"train_batch_size": 64, "fp16": {{"enabled": true}}, {optimizer}}}', "--model", "llama2-7b"
    )
    ring = 2 * 2 * PSI * 7 / 8
    assert figures(text, "errors of what is sent") == f"{4 * PSI / 1e9:.3f}"
    assert figures(text, "all-reduce gradients") == f"{ring / 1e9:.3f}"
    assert "23,000 updates" in text
    assert figures(text, "signs of the momentum") == f"{ring / 16 / 1e9:.3f}"
    assert "--with sign --freeze-step 23000" in text


def test_the_command_line_is_one_for_a_shell(tmp_path: Path) -> None:
    disk = tmp_path / "my disk; echo $HOME"
    offload = json.dumps({"device": "nvme", "nvme_path": str(disk)})
    text = explained(
        tmp_path, f'{{"train_batch_size": 8, "zero_optimization": {{"stage": 2, "offload_optimizer": {offload}}}}}'
    )
    [line] = re.findall(r"mpirun -n 8 python -m (.*)", text)
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert words.splitlines()[words.splitlines().index("--disk") + 1] == str(disk)


@pytest.mark.parametrize(("config", "says"), table(__file__, "estimates_are_deepspeeds"))
def test_estimates_are_deepspeeds(tmp_path: Path, config: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of its documentation, and 11.28, which its code computes where they still say 15.93. The other rows
    of papers/deepspeed.py are of models made without zero.Init, which no configuration says."""

    class Documented(Decoder):
        parameters, largest_layer = deepspeed.PSI, deepspeed.LARGEST

    monkeypatch.setitem(explain.MODELS, "gpt2", Documented(**vars(gpt2.gpt(768, 12, 12))))
    assert says in explained(tmp_path, f'{{"train_batch_size": 8, "zero_optimization": {{{config}}}}}')


def test_data_parallelism_of_gpt3(tmp_path: Path) -> None:
    text = explained(tmp_path, '{"train_batch_size": 8}', "--model", "gpt3-175b")
    psi = 174_604_259_328
    assert figures(text, "model states") == f"{16 * psi / 1e9:,.3f}"  # float32: 4 + 4 + 8
    assert figures(text, "all-reduce gradients") == f"{4 * 2 * psi * 7 / 8 / 1e9:,.3f}"
    assert "it has none for stage 0" in text


HYBRID = """
distributed_type: FSDP
mixed_precision: bf16
num_machines: 4
num_processes: 32
fsdp_config:
  fsdp_sharding_strategy: 4
  fsdp_activation_checkpointing: true
"""


def test_hybrid_sharding(tmp_path: Path) -> None:
    text = explained(tmp_path, HYBRID, "--model", "llama2-7b", name="fsdp.yaml")
    assert figures(text, "model states") == f"{16 * PSI / 8 / 1e9:.3f}"
    assert figures(text, "all-reduce across hosts") == f"{2 * 2 * PSI / 8 * 3 / 4 / 1e9:.3f}"
    assert (
        "mpirun -n 32 python -m minidist.fsdp --strategy hybrid_shard --ranks-per-host 8 --backward-prefetch none"
        in text
    )
    assert "--recompute full" in text


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "1", "2", "3"])
def test_strategies_are_stages(tmp_path: Path, strategy: str) -> None:
    stage = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "1": 3, "2": 2, "3": 0}[strategy]
    file = tmp_path / "a.yml"
    file.write_text(f"distributed_type: FSDP\nfsdp_config: {{fsdp_sharding_strategy: {strategy}}}")
    assert accelerate.load(str(file))[0].config["zero_optimization"] == {"stage": stage}
    file.write_text("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}")
    assert accelerate.load(str(file))[0].config["zero_optimization"] == {"stage": 2}


@pytest.mark.parametrize(("said", "words"), table(__file__, "fsdp_has_a_chapter_of_its_own"))
def test_fsdp_has_a_chapter_of_its_own(tmp_path: Path, said: str, words: str) -> None:
    text = explained(tmp_path, f"distributed_type: FSDP\nfsdp_config: {{{said}}}", name="a.yaml")
    assert "The chapter: minidist/fsdp.py" in text
    assert f"python -m minidist.fsdp {words} --" in text


def test_a_file_of_deepspeeds_own_within(tmp_path: Path) -> None:
    """OfRanks the YAML, with "auto" where mixed_precision decides."""
    (tmp_path / "inner.json").write_text('{"train_batch_size": 8, "bf16": {"enabled": "auto"}, # comment\n}')
    outer = "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config: {deepspeed_config_file: inner.json}"
    assert "bf16.enabled = true" in explained(tmp_path, outer, name="outer.yaml")


@pytest.mark.parametrize(("text", "says"), table(__file__, "broken_yaml"))
def test_broken_yaml(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as refused:
        explained(tmp_path, text, name="a.yaml")
    assert "\n" not in str(refused.value)


def test_yaml_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(UsageError, match=r"pip install --editable '.*\[deepspeed\]'"):
        explained(tmp_path, HYBRID, name="a.yaml")


def test_from_the_front_door(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "c.json").write_text('{"train_batch_size": 64}')
    assert main(["explain", str(tmp_path / "c.json"), "--ranks", "4"]) == 0
    assert "python -m minidist.data_parallel --batch 64 --precision fp32" in capsys.readouterr().out
    with pytest.raises(UsageError, match="Micro batch size per gpu: 0"):
        main(["explain", str(tmp_path / "c.json"), "--ranks", "100"])


@pytest.mark.parametrize(("said", "ranks", "says"), table(__file__, "what_makes_a_batch_too_small_is_named"))
def test_what_makes_a_batch_too_small_is_named(tmp_path: Path, said: dict[str, int], ranks: int, says: str) -> None:
    (tmp_path / "c.json").write_text(json.dumps(said))
    with pytest.raises(UsageError) as error:
        main(["explain", str(tmp_path / "c.json"), "--ranks", str(ranks)])
    assert ": 0 has to be greater than 0: train_batch_size " in str(error.value)
    assert str(error.value).endswith(says)


def test_a_model_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"train_batch_size": 64}')
    with pytest.raises(UsageError, match="--model llama4: no file, and none of gpt2, "):
        main(["explain", str(tmp_path / "c.json"), "--model", "llama4"])


def test_empty_sections_mean_nothing_and_others_have_a_line(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    empty = "".join(f"{name}: {{}}\n" for name in ("megatron_lm_config", "fp8_config", "mpirun_config", "tpu_env"))
    file.write_text(f"distributed_type: MULTI_XPU\n{empty}parallelism_config: {{parallelism_config_tp_size: 1}}\n")
    assert accelerate.load(str(file))[0].notes == []
    file.write_text(
        "distributed_type: FSDP\nmpirun_config: {mpirun_hostfile: /etc/hosts}\nfsdp_config: {fsdp_ignored_modules:"
        " null, fsdp_activation_checkpointing_offload: true, fsdp_min_num_param: 7, whatever: 1}"
    )
    unknown = "has no effect here, and none in Accelerate, which does not know it"
    assert sorted(accelerate.load(str(file))[0].notes) == [
        "fsdp_config.fsdp_activation_checkpointing_offload has no effect here, because inputs that wait for a backward"
        " stay on the device",
        f"fsdp_config.fsdp_min_num_param {unknown}: do you mean fsdp_min_num_params?",
        f"fsdp_config.whatever {unknown}",
        "mpirun_config.mpirun_hostfile has no effect here, because you say mpirun yourself",
    ]


# ---- any model: config.json, or a number -----------------------------------------------------------------------------

LLAMA_3_2_1B = {  # as published
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131_072,
    "vocab_size": 128_256, "tie_word_embeddings": True, "attention_bias": False,
}  # fmt: skip
GPT_2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50_257}
ZERO_3 = '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}'


@pytest.mark.parametrize(
    ("config", "changed", "psi"),
    [
        (LLAMA_3_2_1B, {}, 1_235_814_400),
        (LLAMA_3_2_1B, {"tie_word_embeddings": False}, 1_498_482_688),
        (LLAMA_3_2_1B, {"model_type": "mistral"}, 1_235_814_400),
        (LLAMA_3_2_1B, {"head_dim": 128, "attention_bias": True}, 1_403_717_632),
        (GPT_2, {}, 124_439_808),
        (GPT_2, {"tie_word_embeddings": False}, 163_037_184),
    ],
)
def test_a_model_by_its_configuration(tmp_path: Path, config: Any, changed: Any, psi: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    for name in (tmp_path, tmp_path / "config.json"):
        assert f"Ψ = {psi:,} parameters" in " ".join(explained(tmp_path, ZERO_3, "--model", str(name)).split())


@pytest.mark.parametrize("command", ["explain", "plan"])
def test_a_quantized_model_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Its stored weights are smaller than those that a training has."""
    model, file = str(tmp_path), tmp_path / "ds_config.json"
    file.write_text(ZERO_3)
    line = (
        ["explain", str(file), "--model", model] if command == "explain" else ["plan", "--model", model, "--json", "-"]
    )
    (tmp_path / "config.json").write_text(
        json.dumps(GPT_2 | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    )
    assert main(line) == 0
    assert capsys.readouterr().err == (
        f"minidist: {model}/config.json: quantization_config ('gptq') has no effect here: a training has the weights"
        " that --precision or the configuration says\n"
    )
    (tmp_path / "config.json").write_text(json.dumps(GPT_2 | {"quantization_config": None}))
    assert main(line) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("config", "changed", "says"),
    [
        (GPT_2, {"model_type": "bert"}, "model_type 'bert' is not here: gpt2, gpt_neox, llama, "),
        (GPT_2, {"model_type": None}, "a file without model_type is not here"),
        (GPT_2, {"n_embd": "768"}, "n_embd should be a whole number from 1 on, not '768'"),
        (GPT_2, {"n_inner": -5}, "n_inner should be a whole number from 0 on, not -5"),
        (LLAMA_3_2_1B, {"num_key_value_heads": 5}, "32 heads and 5 of keys do not divide"),
        (LLAMA_3_2_1B, {"vocab_size": None}, "vocab_size should be a whole number"),
    ],
)
def test_a_configuration_of_another_model(tmp_path: Path, config: Any, changed: Any, says: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(UsageError, match=re.escape(says)):
        explained(tmp_path, ZERO_3, "--model", str(tmp_path))


def test_a_sequence_and_whether_it_fits(tmp_path: Path) -> None:
    """The fullest of two moments: in the backward pass the sum of its rows; in the optimizer's step parameters,
    optimizer states, and the gradients of a shard, in 2 bytes and in 4, with two arrays of PyTorch's Adam."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_2_1B))
    options = "--model", str(tmp_path), "--ranks", "4", "--sequence", "512"
    text = explained(tmp_path, ZERO_3, *options, "--device-memory", "24GB")
    assert "s = 512, recompute none" in text
    rows = {row: float(figures(text, row).replace(",", "")) for row in ROWS}
    psi = 1_235_814_400
    assert rows["at the fullest moment"] == pytest.approx((2 + 12 + 2 + 4 + 2 * 4) * psi / 4 / 1e9, abs=2e-3)
    needed, reserve = rows["at the fullest moment"], 0.08 * 24
    assert f"{needed:.1f} GB are needed at the optimizer's step, and {reserve:.1f} in reserve: yes," in text
    assert f"{24 - needed - reserve:.1f} are left" in " ".join(text.split())
    assert "too many" in " ".join(explained(tmp_path, ZERO_3, *options, "--device-memory", "8GB").split())
    named = ZERO_3[:-1] + ', "optimizer": {"type": "AdamW"}}'  # DeepSpeed's own Adam allocates no such arrays
    text = explained(tmp_path, named, "--model", str(tmp_path), "--ranks", "4", "--sequence", "8192")
    rows = {row: float(figures(text, row).replace(",", "")) for row in ROWS}
    assert rows.pop("at the fullest moment") == pytest.approx(sum(rows.values()), abs=4e-3)
    assert "and roots" not in text
    whole = explained(tmp_path, ZERO_3, *options[:4])
    assert "s = 131072" in whole
    with pytest.raises(UsageError, match="--sequence 2048: gpt2 has 1,024 positions"):
        explained(tmp_path, ZERO_3, "--sequence", "2048")


ROWS = (
    *("model states", "whole units", "activations of the layers", "head and loss", "transient", "workspaces"),
    "at the fullest moment",
)


def test_activations_of_a_system_are_not_those_of_whole_attention(tmp_path: Path) -> None:
    """An everyday ZeRO-2 file, without recomputation: by the papers' whole attention 1,391 GB, in tiles 64 layers'
    arrays as MEASURED: T(8h + 4h + 4g + 6f + 4a + 8) bytes a layer."""
    file = '{"train_batch_size": 16, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}'
    text = explained(tmp_path, file, "--model", "llama3-8b", "--ranks", "8")
    h, g, f, a, tokens = 4096, 1024, 14_336, 32, 2 * 8192
    assert (
        figures(text, "activations of the layers") == f"{32 * tokens * (12 * h + 4 * g + 6 * f + 4 * a + 8) / 1e9:.3f}"
    )
    whole = explained(tmp_path, file.replace('"bf16": {"enabled": true}, ', ""), "--model", "llama3-8b", "--ranks", "8")
    assert float(figures(whole, "activations of the layers").replace(",", "")) > 600  # fp32 has the papers' profile


def test_inputs_on_the_host_are_not_on_the_device(tmp_path: Path) -> None:
    """Of 32 layers' inputs, only that of the layer at work."""
    file = '{"train_batch_size": 4, "bf16": {"enabled": true}, "activation_checkpointing": {"KEY": true}}'
    device, host = (
        float(figures(explained(tmp_path, file.replace("KEY", key), "--model", "llama2-7b", "--ranks", "4"), LAYERS))
        for key in ("partition_activations", "cpu_checkpointing")
    )
    assert device - host == pytest.approx(31 * 2 * 4096 * 4096 / 1e9, abs=2e-3)


LAYERS = "activations of the layers"


@pytest.mark.parametrize("more", ["", ', "sequence_parallel_size": 2'])
def test_a_step_holds_a_sub_group_in_float32(tmp_path: Path, more: str) -> None:
    """In stage 3, 10⁸ parameters at a time, with the two arrays of PyTorch's Adam; context ranks divide states, too."""
    file = '{"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "sub_group_size": 1e8}'
    options = "--parameters", "7.5e9", "--ranks", "4", "--device-memory", "80GB"
    needed = (2 + 12 + 2) * 7.5 / 4 + (4 + 8) * 0.1
    assert f"{needed:.1f} GB are needed at the optimizer's step" in explained(tmp_path, file + more + "}", *options)


def test_an_optimizer_without_states_next_to_other_axes(tmp_path: Path) -> None:
    """In fp32, SGD without momentum keeps nothing."""
    sgd = '"optimizer": {"type": "SGD", "params": {"momentum": 0}}'
    file = f'{{"train_batch_size": 4, "tensor_parallel": {{"autotp_size": 2}}, {sgd}}}'
    assert float(figures(explained(tmp_path, file, "--ranks", "4"), "optimizer states")) == 0


def test_gradients_that_add_up_in_float32(tmp_path: Path) -> None:
    """4Ψ/N in stage 2, as the run has them; what DeepSpeed refuses is refused."""
    file = '{"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": STAGE}, DTYPE}'
    said = file.replace("DTYPE", '"data_types": {"grad_accum_dtype": "fp32"}')
    text = explained(tmp_path, said.replace("STAGE", "2"), "--model", "llama2-7b", "--ranks", "8")
    assert figures(text, "gradients") == f"{4 * PSI / 8 / 1e9:.3f}"
    assert "--grad-dtype fp32" in text
    with pytest.raises(UsageError, match="grad_accum_dtype fp32 with bf16 in stage 0 is refused by DeepSpeed, too"):
        explained(tmp_path, said.replace("STAGE", "0"))
    with pytest.raises(UsageError, match="grad_accum_dtype fp16 with bf16 in stage 2 is refused by DeepSpeed, too"):
        explained(tmp_path, said.replace("STAGE", "2").replace('"fp32"', '"fp16"'))


def test_axes_divide_what_they_should(tmp_path: Path) -> None:
    """Tensor ranks halve all matrices; context ranks divide states as data ranks do, and the tokens."""
    file = '{"train_batch_size": 4, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}, AXIS}'
    alone = explained(tmp_path, file.replace(", AXIS", ""), "--model", "llama2-7b", "--ranks", "4")
    context, tensor = (
        explained(tmp_path, file.replace("AXIS", axis), "--model", "llama2-7b", "--ranks", "4")
        for axis in ('"sequence_parallel_size": 4', '"tensor_parallel": {"autotp_size": 2}')
    )
    states = "model states", "parameters", "gradients", "optimizer states"
    assert [figures(context, row) for row in states] == [figures(alone, row) for row in states]
    sgd = file.replace("AXIS", '"sequence_parallel_size": 4, "optimizer": {"type": "SGD", "params": {"momentum": 0.9}}')
    text = explained(tmp_path, sgd, "--model", "llama2-7b", "--ranks", "4")
    assert figures(text, "optimizer states") == f"{8 * PSI / 4 / 1e9:.3f}"  # a copy of the parameters, one moment
    whole = 65 * 4096 / 2 * 16 / 2  # norms are on both tensor ranks
    assert float(figures(tensor, "model states")) == pytest.approx(
        float(figures(alone, "model states")), abs=whole / 1e9 + 1e-3
    )
    assert re.search(r"^  context +.*ulysses|^  context .* [\d.]+", context, re.MULTILINE)
    assert re.search(r"^  tensor .* [\d.]+", tensor, re.MULTILINE)
    with pytest.raises(UsageError, match="3 tensor ranks cannot divide 32 heads"):
        explained(
            tmp_path,
            file.replace("AXIS", '"tensor_parallel": {"autotp_size": 3}').replace("4,", "3,", 1),
            "--model",
            "llama2-7b",
            "--ranks",
            "3",
        )


def test_what_depends_on_a_width_that_parameters_do_not_say(tmp_path: Path) -> None:
    """Not the width of minidist's own small model."""
    file = '{"train_batch_size": 64, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": "auto"}}'
    key = "zero_optimization.param_persistence_threshold ="
    counted = " ".join(explained(tmp_path, file, "--parameters", "7.5e9").split())
    assert f'{key} "auto", of h, which --parameters does not say' in counted
    assert f'{key} 40,960 ("auto")' in " ".join(explained(tmp_path, file, "--model", "llama2-7b").split())


def test_a_number_of_parameters(tmp_path: Path) -> None:
    """The ZeRO paper's 7.5B on 64 ranks: 1.9 GB in stage 3, 120 GB without ZeRO."""
    options = "--parameters", "7.5e9", "--ranks", "64", "--device-memory", "32GB"
    text = explained(tmp_path, ZERO_3, *options)
    assert figures(text, "model states") == "1.875"
    assert (
        f"{(2 + 12 + 2 + 4 + 8) * 7.5 / 64:.1f} GB are needed at the optimizer's step, and 2.6 in reserve: yes," in text
    )
    assert "--parameters does not say" in text
    text = explained(tmp_path, ZERO_3.replace("3}", "0}"), *options)
    assert f"{(2 + 12 + 2 + 4 + 8) * 7.5:.1f} GB are needed at the optimizer's step, and 2.6 in reserve: no," in text
    for offload in ("cpu", "nvme"):
        room = (
            f'"offload_param": {{"device": "{offload}"}}, "offload_optimizer": {{"device": "{offload}"}}, "stage": 3}}'
        )
        assert "in files" in explained(tmp_path, ZERO_3.replace('"stage": 3}', room), *options) or offload == "cpu"
    for more in (("--model", "gpt2"), ("--sequence", "9")):
        with pytest.raises(UsageError, match="--parameters is all that is known of a model"):
            explained(tmp_path, ZERO_3, *options, *more)
    for number in ("many", "0", "nan", "1e99"):
        with pytest.raises(UsageError, match=r"must be a number from 1 on, such as 7\.5e9"):
            explained(tmp_path, ZERO_3, "--parameters", number)


def test_a_model_s_configuration_in_place_of_deepspeed_s(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a model's configuration: give it with --model"):
        explained(tmp_path, json.dumps(GPT_2))


def test_parameters_on_the_host(tmp_path: Path) -> None:
    room = '"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}, "stage": 3}'
    text = explained(tmp_path, ZERO_3.replace('"stage": 3}', room), "--model", "llama2-7b", "--ranks", "64")
    assert re.search(rf"^  parameters +2·max ψ/N +{2 * max(UNITS) / 64 / 1e9:.3f}$", text, re.MULTILINE)
    assert figures(text, "  and parameters") == f"{2 * PSI / 64 / 1e9:.3f}"
    assert figures(text, "parameters from the host") == f"{2 * 2 * PSI / 64 / 1e9:.3f}"
    assert "minidist.offload --zero 3 --parameters host" in " ".join(text.split())
