"""The models of `explain` and `plan`: published sizes by name, Hugging Face's config.json, or a number alone."""

import argparse
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from minidist import UsageError
from minidist.cli.read import read
from minidist.papers import gpt2, llama, llama3

Model = gpt2.GPTShape | llama.LlamaShape
MODELS: dict[str, Model] = {**gpt2.MODELS, **llama.MODELS, **llama3.MODELS}
LIKE_LLAMA = ("llama", "mistral")  # models with the same parameters
LARGEST = 10**9  # the largest size in config.json


@dataclass(frozen=True)
class Count:
    """A model whose units and activations are unknown: only the number of its parameters is known."""

    parameters: int
    family: ClassVar = ""
    units: ClassVar[list[int]] = []


def model_of(name: str, names: Iterable[str] = MODELS) -> Model:
    """The model of a published name, a config.json, or a folder with one. Raises UsageError for any other name."""
    if name in MODELS:
        return MODELS[name]
    path = os.path.join(name, "config.json") if os.path.isdir(name) else name
    if not os.path.exists(path):
        raise UsageError(f"--model {name}: no file, and none of {', '.join(names)}")
    config = read(path)
    if isinstance(quantized := config.get("quantization_config"), dict):
        method = quantized.get("quant_method")
        print(
            f"minidist: {path}: quantization_config ({method!r:.40}) has no effect here: a training has the weights"
            " that --precision or the configuration says",
            file=sys.stderr,
        )
    return shape_of(config, path)


def parameter_count(text: str) -> int:
    """An argument type: 7000000000, or 7.5e9."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 1 <= number <= 1e15:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on, such as 7.5e9, not {text!r}")
    return int(number)


def shape_of(config: dict[str, Any], path: str) -> Model:
    """The GPT-2 or Llama that transformers' config.json describes. Raises UsageError for other models."""
    kind = config.get("model_type")
    if kind == "gpt2":
        h, layers, a, s, v = (
            _size(config, name, path) for name in ("n_embd", "n_layer", "n_head", "n_positions", "vocab_size")
        )
        if config.get("n_inner") not in (None, 4 * h):
            raise UsageError(f"{path}: n_inner {config['n_inner']!r:.40} is not here: it is 4·n_embd")
        return gpt2.GPTShape(h, layers, a, s, v, tied=_tied(config, True))
    if kind not in LIKE_LLAMA:
        named = f"model_type {kind!r:.40}" if kind else "a file without model_type"
        raise UsageError(f"{path}: {named} is not here: gpt2, {', '.join(LIKE_LLAMA)} are; or say --parameters N alone")
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")
    h, layers, a, f, s = (_size(config, name, path) for name in names)
    kv = _size(config, "num_key_value_heads", path) if config.get("num_key_value_heads") else a
    if config.get("head_dim") not in (None, h // a) or h % a or a % kv:
        raise UsageError(f"{path}: heads of another width than hidden_size/num_attention_heads are not here")
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name):
            raise UsageError(f"{path}: {name} is not here: a Llama has no biases")
    return llama.LlamaShape(h, layers, a, kv, f, s, _size(config, "vocab_size", path), tied=_tied(config, False))


def _tied(config: dict[str, Any], usual: bool) -> bool:
    return bool(config.get("tie_word_embeddings", usual))


def _size(config: dict[str, Any], name: str, path: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise UsageError(f"{path}: {name} should be a whole number from 1 on, not {value!r:.40}")
    return value
