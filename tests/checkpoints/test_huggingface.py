"""Hugging Face's folders: --load reads them on any number of ranks, and the logits are those that transformers
computes."""

import json
import re
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from safetensors.numpy import save_file

from cases import status_of
from minidist import UsageError
from minidist.checkpoints import checkpoint
from minidist.checkpoints.pieces import Piece, whole_piece
from minidist.nn.layers import Batch
from minidist.nn.tensor import Tensor
from minidist.programs.chapter import find
from tables import table

TEXT = "no more and no less " * 50
V, H, S, LAYERS, F = 17, 24, 12, 4, 44
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2", "n_embd": H, "n_layer": LAYERS, "n_head": 4, "n_positions": S, "vocab_size": V,
        "layer_norm_epsilon": 1e-4, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    },
    "llama": {
        "model_type": "llama", "hidden_size": H, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": F, "max_position_embeddings": 64, "vocab_size": V,
        "rms_norm_eps": 1e-4, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "tie_word_embeddings": False,
    },
}  # fmt: skip
MODELS["gpt2 untied"] = MODELS["gpt2"] | {"tie_word_embeddings": False}
MODELS["llama tied"] = MODELS["llama"] | {"tie_word_embeddings": True}
CONTEXT = {name: f"--context {S}" if name.startswith("llama") else "" for name in MODELS}
ONE_STEP = "--steps 1 --batch 8 --validate 0 --data text.txt"


def tensors(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes, as transformers has them."""
    found: dict[str, tuple[int, ...]] = {}
    if config["model_type"] == "gpt2":
        found = {"transformer.wte.weight": (V, H), "transformer.wpe.weight": (S, H)}
        for i in range(LAYERS):
            for name, shape in {
                "ln_1.weight": (H,), "ln_1.bias": (H,), "attn.c_attn.weight": (H, 3 * H), "attn.c_attn.bias": (3 * H,),
                "attn.c_proj.weight": (H, H), "attn.c_proj.bias": (H,), "ln_2.weight": (H,), "ln_2.bias": (H,),
                "mlp.c_fc.weight": (H, 4 * H), "mlp.c_fc.bias": (4 * H,), "mlp.c_proj.weight": (4 * H, H),
                "mlp.c_proj.bias": (H,),
            }.items():  # fmt: skip
                found[f"transformer.h.{i}.{name}"] = shape
        found |= {"transformer.ln_f.weight": (H,), "transformer.ln_f.bias": (H,)}
    else:
        found = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,)}
        for i in range(LAYERS):
            for name, shape in {
                "input_layernorm": (H,), "post_attention_layernorm": (H,), "self_attn.q_proj": (H, H),
                "self_attn.k_proj": (H // 2, H), "self_attn.v_proj": (H // 2, H), "self_attn.o_proj": (H, H),
                "mlp.gate_proj": (F, H), "mlp.up_proj": (F, H), "mlp.down_proj": (H, F),
            }.items():  # fmt: skip
                found[f"model.layers.{i}.{name}.weight"] = shape
    if config.get("tie_word_embeddings") is False:
        found["lm_head.weight"] = (V, H)
    return found


def values(name: str, shape: tuple[int, ...]) -> Any:
    """Random, but always the same."""
    drawn = np.random.default_rng(crc32(name.encode())).normal(0, 0.1, shape)
    return drawn + 1 if re.search(r"(norm|ln_.)\.weight$", name) else drawn


def write(folder: Path, name: str, dtype: str = "f8", shards: int = 3, strip: str = "") -> Path:
    """A folder with random weights, in shards with an index, or in one file. strip: left out of each name's head."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(MODELS[name]))
    shapes = tensors(MODELS[name])
    arrays = {key.removeprefix(strip): values(key, shape).astype(dtype) for key, shape in shapes.items()}
    if shards == 1:
        save_file(arrays, folder / "model.safetensors")
        return folder
    where = {key: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, key in enumerate(arrays)}
    for file in {*where.values()}:
        save_file({key: array for key, array in arrays.items() if where[key] == file}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)


def logits(folder: Path, name: str, precision: str) -> tuple[Any, Any]:
    """Token numbers (B, T), and what our model makes of them (B, T, V)."""
    job = find("train").job(f"--load {folder} --precision {precision} {ONE_STEP} {CONTEXT[name]}".split(), 1)
    found, tokens = checkpoint.opened(str(folder)), np.asarray(job.batch(0)[0])
    units: Any = job.declared()
    for parameter in (parameter for unit in units for parameter in unit.parameters):
        array = np.empty(parameter.size, "f8" if precision == "fp64" else "f4")
        found.read(parameter.name, whole_piece(parameter.shape), {"": array})
        parameter.bind(array.reshape(parameter.shape))
    h: Any = tokens
    for unit in units:
        h = unit(Tensor(h), Batch(tokens)).data
    return tokens, h


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_that_transformers_computed(name: str) -> None:
    """A few of them, and the loss of the first batch; `test_logits_are_those_of_transformers` has made them."""
    expected = table(__file__, "transformers")[name]
    tokens, found = logits(write(Path("face"), name), name, "fp64")
    assert tokens[0].tolist() == expected["tokens"]
    np.testing.assert_allclose(found[0, -1], expected["logits"], rtol=0, atol=1e-12 * np.abs(found).max())
    _, single = logits(write(Path("single"), name, "f4", shards=1), name, "fp32")
    np.testing.assert_allclose(single[0, -1], expected["logits"], rtol=0, atol=1e-6 * np.abs(found).max())


RANKS = [
    *[f"{n} {chapter}" for chapter in ("data_parallel", "zero1", "zero2", "zero3") for n in (1, 3)],
    "1 train", "4 fsdp", "2 zero_r", "2 offload", "2 tensor_parallel", "2 context_parallel",
    "4 pipeline", "2 pipeline --schedule zb-v --micro-batches 4", "8 parallel3d --dp 2 --pp 2 --tp 2 --zero 1",
    "4 parallel3d --dp 2 --pp 2 --zero 3",
]  # fmt: skip


CASES = [(name, line) for name in ("gpt2", "llama") for line in RANKS]
CASES += [(name, line) for name in MODELS if "tied" in name for line in RANKS[-2:]]


@pytest.mark.parametrize(("name", "line"), CASES)
def test_the_first_loss_is_that_of_transformers(name: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On any number of ranks, at any stage, in any layout; and all claims hold."""
    folder = write(Path("face"), name)
    n, _, words = line.partition(" ")
    words = f"{words} --load {folder} --precision fp64 --json report.json {ONE_STEP} {CONTEXT[name]}"
    assert status_of(words, int(n)) == 0
    capsys.readouterr()
    first = json.loads(Path("report.json").read_text())["loss"][0]
    assert first == pytest.approx(table(__file__, "transformers")[name]["loss"], rel=1e-12)


class Double:
    """torch, for transformers' Llama in float64: its norms and its rotations are float32 whatever the weights are."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.float32, self.float = torch, torch.float64, torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(self.torch, name)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own random weights, in shards as it saves them."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    dtype, closest = (torch.float64, 1e-12) if precision == "fp64" else (torch.float32, 1e-6)
    sizes = {key: value for key, value in MODELS[name].items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(MODELS[name]["model_type"], **sizes, attn_implementation="eager")
    theirs = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    theirs.save_pretrained("face", max_shard_size="20KB")
    assert len(list(Path("face").glob("*.safetensors"))) > 1
    if precision == "fp64" and name.startswith("llama"):
        monkeypatch.setattr(transformers.models.llama.modeling_llama, "torch", Double(torch))
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        rotary, depth = theirs.model.rotary_emb, config.head_dim
        rotary.inv_freq = 500.0 ** (-torch.arange(0, depth, 2, dtype=torch.float64) / depth)
    tokens, ours = logits(Path("face"), name, precision)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens.astype(np.int64))).logits.numpy()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=closest * np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
def test_any_piece_is_read(name: str) -> None:
    """Rows, columns, and shards that end anywhere: as cut from the whole."""
    folder = write(Path("face"), name)
    job = find("train").job(f"--load {folder} {ONE_STEP} {CONTEXT[name]}".split(), 1)
    found = checkpoint.opened(str(folder))
    for parameter in (parameter for unit in job.declared() for parameter in unit.parameters):
        shape, whole = parameter.shape, np.empty(parameter.size)
        found.read(parameter.name, whole_piece(shape), {"": whole})
        for axis in range(len(shape)):
            n = shape[axis]
            spans = ((0, n // 3), (n // 2, n + 2))  # the last two are padding
            part = np.concatenate([whole.reshape(shape), np.zeros((2,) + shape[1:])], 0) if axis == 0 else None
            if part is None:
                part = np.concatenate([whole.reshape(shape), np.zeros((*shape[:1], 2))], 1)
            part = np.concatenate([part.take(range(*span), axis) for span in spans], axis).reshape(-1)
            start, stop = part.size // 5, part.size - part.size // 7
            got = {"": np.full(stop - start, np.nan), "moment1/": np.full(stop - start, np.nan)}
            found.read(parameter.name, Piece(shape, axis, spans, start, stop), got)
            np.testing.assert_array_equal(got[""], part[start:stop])
            assert not got["moment1/"].any()


def test_other_dtypes_and_names_without_a_head() -> None:
    """bfloat16 and float16 are widened exactly; GPT2Model's own file has no prefix, and buffers of its masks."""
    _, expected = logits(write(Path("whole"), "gpt2"), "gpt2", "fp64")
    folder = write(Path("bare"), "gpt2", shards=1, strip="transformer.")
    arrays = {name.removeprefix("transformer."): values(name, of) for name, of in tensors(MODELS["gpt2"]).items()}
    save_file(arrays | {"h.0.attn.bias": np.zeros((1, 1, S, S))}, folder / "model.safetensors")
    np.testing.assert_array_equal(logits(folder, "gpt2", "fp64")[1], expected)
    half = checkpoint.opened(str(write(Path("half"), "gpt2", "f2")))
    got = np.empty(V * H, "f4")
    half.read("wte.weight", whole_piece((V, H)), {"": got})
    np.testing.assert_array_equal(got, values("transformer.wte.weight", (V, H)).astype("f2").reshape(-1))
    header = json.dumps({"transformer.wte.weight": {"dtype": "BF16", "shape": [V, H], "data_offsets": [0, 2 * V * H]}})
    bits = values("transformer.wte.weight", (V, H)).astype("<f4").view("<u4") >> 16
    content = len(header).to_bytes(8, "little") + header.encode() + bits.astype("<u2").tobytes()
    (Path("bare") / "model.safetensors").write_bytes(content)
    checkpoint.opened("bare").read("wte.weight", whole_piece((V, H)), {"": got})
    np.testing.assert_array_equal(got, (bits << 16).view("<f4").reshape(-1))


@pytest.mark.parametrize("name", MODELS)
def test_training_goes_on_from_a_checkpoint_and_exports_what_it_loaded(name: str) -> None:
    """The checkpoint records what only config.json said; --names huggingface writes the same tensors back."""
    folder = write(Path("face"), name, "f4", shards=1)
    line = f"--precision fp32 --batch 8 --validate 0 --data text.txt {CONTEXT[name]} --json r.json"
    Path("back").mkdir()
    loaded = f"zero2 --load {folder} {line}"
    assert status_of(f"{loaded} --steps 0 --export back/model.safetensors --names huggingface", 2) == 0
    for file in ("face", "back"):
        job = find("train").job(f"--load {file} {ONE_STEP} {CONTEXT[name]}".split(), 1)
        assert job.model.sizes == find("train").job(f"--load face {ONE_STEP} {CONTEXT[name]}".split(), 1).model.sizes
    back, there = (checkpoint.opened(each) for each in ("back", str(folder)))
    for theirs in tensors(MODELS[name]):
        assert back.tensors[theirs].shape == there.tensors[theirs].shape  # type: ignore[attr-defined]
        both = [of.tensors[theirs].rows(0, 1000, False) for of in (back, there)]  # type: ignore[attr-defined]
        np.testing.assert_array_equal(*both)
    assert status_of(f"{loaded} --steps 2", 2) == 0
    expected = json.loads(Path("r.json").read_text())["loss"]
    assert status_of(f"{loaded} --steps 1 --save run", 2) == 0
    assert status_of(f"zero3 --load run {line} --steps 2", 3) == 0
    assert json.loads(Path("r.json").read_text())["loss"] == pytest.approx(expected[1:], rel=1e-5)


def refused(words: str) -> str:
    with pytest.raises(UsageError) as error:
        find("train").job(f"--load face --data text.txt --steps 1 --batch 8 {words}".split(), 1)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_refusals() -> None:
    folder = write(Path("face"), "llama")
    config, index = folder / "config.json", folder / "model.safetensors.index.json"
    assert "--load face has a model of other sizes: leave out --layers" in refused("--layers 3")
    assert "--load face has a model of other sizes: leave out --model" in refused("--model gpt")
    with pytest.raises(UsageError, match="is of another model: it has no block0"):
        find("expert_parallel").job(f"--load face {ONE_STEP} {CONTEXT['llama']} --experts 2".split(), 1)
    Path("text.txt").write_text("".join(map(chr, range(97, 122))) * 20)
    assert "text.txt has 25 different characters, and the model 17 tokens" in refused("--context 12")
    Path("text.txt").write_text(TEXT)
    for key, value, says in table(__file__, "what_no_chapter_reads"):
        config.write_text(json.dumps(MODELS["llama"] | {key: value}))
        assert says in refused("--context 12"), key
    config.write_text(json.dumps(MODELS["llama"]))
    whole = index.read_text()
    index.write_text("{}")
    assert "has no weight_map" in refused("--context 12")
    index.write_text(whole)
    shard = folder / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-8])
    assert "cannot read --load face: not a safetensors file, or a damaged one" in refused("--context 12")
    shard.unlink()
    assert "model-00002-of-00003.safetensors is missing, which model.safetensors.index.json names" in refused("")
