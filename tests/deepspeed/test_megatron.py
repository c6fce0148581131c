"""Megatron-LM's launch scripts: what is read, what is explained, and that measured peaks are planned."""

import re
from pathlib import Path
from typing import Any

import pytest

from minidist import UsageError
from minidist.deepspeed import explain, megatron
from minidist.formulas.profile import MEGATRON
from tables import table

PUBLISHED = Path(__file__).with_name("published")
MEASURED = PUBLISHED / "llama3_70b_l12.sh"


def script(folder: Path, text: str, *options: str) -> str:
    (folder / "run.sh").write_text(text)
    return explain.explain([str(folder / "run.sh"), *options])


@pytest.mark.parametrize(("tp", "pp", "gib"), [(8, 1, 28.29), (4, 1, 39.07), (2, 1, 60.68), (1, 2, 66.55)])
def test_a_measured_run_s_script_is_planned_as_it_was_measured(tmp_path: Path, tp: int, pp: int, gib: float) -> None:
    """Allocated peaks of that source, to 0.5 %. Every rank has one micro-batch of 4 sequences or more in a step."""
    micro_batches = 8 // tp // pp * 4
    text = MEASURED.read_text().replace("--global-batch-size 4", f"--global-batch-size {micro_batches}")
    found = script(tmp_path, text.replace("${TP:-8}", f"{tp}").replace('${PP:-"1"}', f'"{pp}"'))
    (memory,) = re.findall(r"^  peak .* ([\d.]+)$", found, re.MULTILINE)
    assert float(memory) * 1e9 / 2**30 == pytest.approx(gib, rel=0.005)


def test_each_flag_has_its_line(tmp_path: Path) -> None:
    """Those of the table with their meaning, unknown ones by name, the others together; a comment is none."""
    text = " ".join(explain.explain([str(MEASURED)]).split())
    assert "Ψ = 12," in text
    assert "--num-layers 12: layers" in text
    assert "--tensor-model-parallel-size 8: t: ranks that share each layer" in text
    assert "--pipeline-model-parallel-size 1: p: stages" in text
    assert "--sequence-parallel: tensor ranks cut" in text
    assert "--some-new-flag 7 is not known here, and so not planned" in text
    assert re.search(r"ending a run: --tokenizer-type, --save\.", text)
    assert "experts" not in text.partition("Planned")[0]
    assert "dp 1 x tp 8 x cp 1 x pp 1, ZeRO-0, recompute none, b 1, m 4" in text
    assert "python -m minidist.parallel3d --dp 1 --pp 1 --tp 8 --zero 0 --batch 4 -m 4 --sequence-parallel" in text
    assert "--layout tp=8,zero=0,recompute=none --micro-batch 1" in text


@pytest.mark.parametrize(("text", "found"), table(__file__, "words"))
def test_the_shell_s_words(text: str, found: dict[str, str]) -> None:
    assert megatron.flags_in(text) == {name: value or None for name, value in found.items()}


@pytest.mark.parametrize(("more", "choice"), table(__file__, "choices"))
def test_what_flags_ask_for(tmp_path: Path, more: str, choice: dict[str, Any]) -> None:
    (tmp_path / "run.sh").write_text(f"{SMALL} {more}")
    read = megatron.read(str(tmp_path / "run.sh"))
    wanted, at = megatron.question(read, 64)
    everything = {**vars(at), **vars(wanted), **wanted.profile.values, "m": at.micro_batches(wanted.batch)}
    everything |= {name: getattr(wanted.model.decoder, name) for name in ("f", "kv", "d", "gated", "tied", "qkv_bias")}
    assert {name: everything[name] for name in choice} == choice


SMALL = (
    "torchrun pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --bf16"
    " --global-batch-size 256"
)


def test_latent_attention_and_experts(tmp_path: Path) -> None:
    more = (
        " --swiglu --disable-bias-linear --normalization RMSNorm --num-experts 16 --moe-router-topk 4"
        " --moe-ffn-hidden-size 256 --moe-shared-expert-intermediate-size 512 --multi-latent-attention"
        " --kv-lora-rank 64 --qk-head-dim 48 --qk-pos-emb-head-dim 16 --v-head-dim 48 --expert-model-parallel-size 8"
    )
    (tmp_path / "run.sh").write_text(SMALL + more)
    wanted, at = megatron.question(megatron.read(str(tmp_path / "run.sh")), 64)
    of = wanted.model.decoder
    assert (at.ep, of.mixture.experts, of.mixture.top, of.mixture.shared) == (8, 16, 4, 512)  # type: ignore[union-attr]
    assert (of.latent.kv_rank, of.latent.qk, of.latent.v) == (64, 64, 48)  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "says"), table(__file__, "broken"))
def test_what_cannot_be_planned_has_a_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        script(tmp_path, text.replace("SMALL", SMALL))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_options_that_a_script_says_itself(tmp_path: Path) -> None:
    for option in (("--model", "gpt2"), ("--sequence", "9"), ("--parameters", "7e9")):
        with pytest.raises(UsageError, match=f"is a launch script, which says its model: leave out {option[0]}"):
            script(tmp_path, SMALL, *option)


def test_the_table_is_whole() -> None:
    """No flag stands in it twice, and every assumption that flags change is one of the profile's."""
    assert not {*megatron.FLAGS} & {*megatron.OTHERS}
    assert len({*megatron.OTHERS}) == len(megatron.OTHERS)
    assert all(of.means for of in megatron.FLAGS.values())
    assert MEGATRON.values["grad_dtype"] == "fp32"
