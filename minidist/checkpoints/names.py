"""Hugging Face's names, shapes and conventions (transformers: GPT2LMHeadModel, LlamaForCausalLM) for our parameters.

GPT-2's four matrices of a block are stored as Conv1D: (in, out), where a linear layer has (out, in). Llama has Q, K and
V as separate matrices, and SwiGLU's gate and up. Its rotary embedding takes element i of a head's first half and
element i of its second as one point of the plane, and so does ours (`minidist/nn/ops.py`, rotary): rows of Q and K keep
their order. (Llama's own code pairs neighbors, 2i and 2i+1: files in its order must be permuted.) A tied head is the
embedding's matrix, and is not stored twice.
"""

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from minidist.checkpoints.pieces import Shape
from minidist.nn.tensor import Array

LAYERS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))  # by family
CONV1D = ("qkv", "projection", "up", "down")


class Rows(NamedTuple):
    """Rows of one of our parameters, which Hugging Face stores as one; turned: transposed."""

    first: int
    last: int
    turned: bool = False

    def __call__(self, whole: Array) -> Array:
        """The part, as it is stored."""
        rows = whole[self.first : self.last]
        return rows.T if self.turned else rows


def huggingface(name: str, shape: Shape, identity: dict[str, Any]) -> dict[str, Rows]:
    """Hugging Face's name for one of our parameters, or for the several it is split into, each with its part.

    identity: of the model: "model", "heads" and "kv-heads".
    """
    layer, _, kind = name.rpartition(".")  # block3.qkv, weight
    block = re.fullmatch(r"block(\d+)\.(\w+)", layer)
    number, layer = (block[1], block[2]) if block else ("", layer)
    if identity["model"] == "gpt":
        turned = layer in CONV1D and kind == "weight"
        return {f"{LAYERS['gpt'][layer].format(number)}.{kind}": Rows(0, shape[0], turned)}
    parts = {layer: shape[0]}  # rows of each
    if layer == "qkv":
        heads, kv = identity["heads"], identity["kv-heads"]
        depth = shape[0] // (heads + 2 * kv)
        parts = {"q": heads * depth, "k": kv * depth, "v": kv * depth}
    elif layer == "up":
        parts = {"gate": shape[0] // 2, "up": shape[0] // 2}
    found: dict[str, Rows] = {}
    first = 0
    for part, rows in parts.items():
        found[f"{LAYERS['llama'][part].format(number)}.{kind}"] = Rows(first, first + rows)
        first += rows
    return found


def configuration(shapes: dict[str, Shape], identity: dict[str, Any]) -> dict[str, Any]:
    """The content of config.json for transformers: the model's class, sizes, and values that are not the defaults.
    Tokens are characters, so none of them begins or ends a text. shapes: of our parameters, by name."""
    vocabulary, width = shapes["wte.weight"]
    layers = sum(name.endswith(".qkv.weight") for name in shapes)
    both = {
        "tie_word_embeddings": "head.weight" not in shapes,
        "vocab_size": vocabulary,
        "dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
    }
    said = identity.get("loaded", {}).get("sizes", {})
    eps = said.get("eps", 1e-5)
    if identity["model"] == "gpt":
        return both | {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_positions": shapes["wpe.weight"][0],
            "n_embd": width,
            "n_layer": layers,
            "n_head": identity["heads"],
            "activation_function": "gelu_new",
            "layer_norm_epsilon": eps,
        }
    return both | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": shapes["block0.down.weight"][1],
        "num_hidden_layers": layers,
        "num_attention_heads": identity["heads"],
        "num_key_value_heads": identity["kv-heads"],
        "rms_norm_eps": eps,
        "rope_theta": said.get("theta", 10_000.0),
    }
