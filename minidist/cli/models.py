"""The models of `explain` and `plan`: published sizes by name, Hugging Face's config.json, or a number alone."""

import argparse
import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from minidist import UsageError
from minidist.cli.read import read
from minidist.papers import gpt2, llama, llama3, mixtral
from minidist.papers.decoder import DENSE, MIXTURE, Decoder, Latent, Mixture

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TYPES: dict[str, dict[str, Any]] = TABLES["types"]
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
LARGEST = 10**9  # the largest size in config.json


@dataclass(frozen=True)
class Count:
    """A model whose units and activations are unknown: only the number of its parameters is known."""

    parameters: int
    family: ClassVar = ""
    units: ClassVar[list[int]] = []


def model_of(name: str) -> Decoder:
    """The model of a published name, a config.json, or a folder with one. Raises UsageError for any other name."""
    if name in MODELS:
        return MODELS[name]
    path = os.path.join(name, "config.json") if os.path.isdir(name) else name
    if not os.path.exists(path):
        raise UsageError(f"--model {name}: no file, and none of {', '.join(MODELS)}")
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


class _Config:
    """A config.json, its keys read by the rules of its type."""

    def __init__(self, config: dict[str, Any], path: str, reads: dict[str, Any], names: dict[str, str]) -> None:
        self.config, self.path, self.reads, self.names = config, path, reads, names

    def get(self, key: str) -> Any:
        """A key's value, or what a missing one means; None if the type does not read it."""
        name = self.names.get(key, key)
        if key in self.reads or key in (*SIZES, "max_position_embeddings"):
            return self.config.get(name, self.reads.get(key))
        return None

    def size(self, key: str, least: int = 1) -> int:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            name = self.names.get(key, key)
            raise UsageError(f"{self.path}: {name} should be a whole number from {least} on, not {value!r:.40}")
        return value

    def maybe(self, key: str) -> int:
        """A size, or 0 where there is none."""
        return self.size(key, 0) if self.get(key) is not None else 0


def shape_of(config: dict[str, Any], path: str) -> Decoder:
    """The sizes in transformers' config.json. Raises UsageError for sizes that are impossible, and for a type that is
    not here; it says which of its fields are not."""
    kind = config.get("model_type")
    if kind not in TYPES and isinstance(text := config.get("text_config"), dict) and text.get("model_type") in TYPES:
        print(f"minidist: {path}: of {kind!r:.40}, only the language model is read (text_config)", file=sys.stderr)
        return shape_of({"tie_word_embeddings": config.get("tie_word_embeddings", True)} | text, path)
    if kind not in TYPES:
        raise UsageError(f"{path}: {_why_not(config)}; or say --parameters N alone")
    fixed, reads = dict(TYPES[kind].get("is", {})), TYPES[kind].get("reads", {})
    names = dict(TYPES[kind].get("names", {}))
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):  # one thing
        names |= {key: name for key in ("num_local_experts", "n_routed_experts") if key in reads and name in config}
    of = _Config(config, path, reads, names)
    h, layers, a = (of.size(name) for name in SIZES[:3])
    kv, d = of.maybe("num_key_value_heads") or a, of.maybe("head_dim")
    if ("kv_lora_rank" not in reads and not d and h % a) or a % kv:
        raise UsageError(
            f"{path}: {h} wide, {a} heads and {kv} of keys do not divide: head_dim is missing, or one is wrong"
        )
    out_bias = bool(of.get("attention_bias"))
    fixed |= {"qkv_bias": fixed.get("qkv_bias", out_bias), "out_bias": fixed.get("out_bias", out_bias)}
    fixed |= {"mlp_bias": True} if of.get("mlp_bias") else {}
    biases = fixed.pop("mixture_bias", False)  # of its router and its experts
    return Decoder(
        v=of.size("vocab_size"), s=of.size("max_position_embeddings"), h=h, a=a, kv=kv, d=d or h // a,
        f=of.maybe("intermediate_size") or 4 * h if kind == "gpt2" else of.size("intermediate_size"),
        kinds=_kinds(of, layers), windows=_windows(of, layers, TYPES[kind].get("windows", 0)),
        mixture=_mixture(of, biases), latent=_latent(of),
        **fixed | {"tied": bool(config.get("tie_word_embeddings", fixed.get("tied", False)))},
    )  # fmt: skip


def _kinds(of: _Config, layers: int) -> tuple[str, ...]:
    """Which layers are mixtures."""
    if not {"num_local_experts", "n_routed_experts"} & {*of.reads}:
        return (DENSE,) * layers
    first, step = of.maybe("first_k_dense_replace"), of.maybe("decoder_sparse_step") or 1
    dense = {*range(first), *(of.get("mlp_only_layers") or ())}
    return tuple(DENSE if i in dense or (i + 1) % step else MIXTURE for i in range(layers))


def _mixture(of: _Config, biases: bool) -> Mixture | None:
    experts = next((key for key in ("num_local_experts", "n_routed_experts") if key in of.reads), None)
    if not experts:
        return None
    width = of.size("moe_intermediate_size" if "moe_intermediate_size" in of.reads else "intermediate_size")
    shared = width * of.maybe("n_shared_experts")
    return Mixture(of.size(experts), of.size("num_experts_per_tok"), width, shared, biases, biases)


def _latent(of: _Config) -> Latent | None:
    if "kv_lora_rank" not in of.reads:
        return None
    kv, rope, nope, v = map(of.size, ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    return Latent(kv, rope, nope, v, of.maybe("q_lora_rank"))


def _windows(of: _Config, layers: int, period: int) -> tuple[int, ...]:
    """For each layer, the keys that a query sees; 0: all."""
    size = of.maybe("sliding_window")
    if not size or ("use_sliding_window" in of.reads and not of.get("use_sliding_window")):
        return ()
    period = of.maybe("sliding_window_pattern") or period
    first = of.maybe("max_window_layers")
    types = of.config.get("layer_types")
    if isinstance(types, list) and len(types) == layers:
        return tuple(size * (name == "sliding_attention") for name in types)
    return tuple(size * (i >= first and (not period or (i + 1) % period > 0)) for i in range(layers))


def _why_not(config: dict[str, Any]) -> str:
    """Why a file's type is not here, and which fields it would need."""
    kind = config.get("model_type")
    if not kind:
        return f"a file without model_type is not here: {', '.join(TYPES)} are"
    missing = [name for name in (*SIZES, "max_position_embeddings") if name not in config]
    known = {*SIZES, "max_position_embeddings", "model_type", "tie_word_embeddings"}
    known |= {key for of in TYPES.values() for key in of.get("reads", {})}
    own = [name for name in config if name not in known and not any(part in name for part in TABLES["silent"])]
    said = f"model_type {kind!r:.40} is not here: {', '.join(TYPES)} are"
    said += f". It would need {', '.join(missing)}" * bool(missing)
    return said + f". Of its fields, these are unknown: {', '.join(own[:12])}" * bool(own)


NAMED: dict[str, Decoder] = {name: shape_of(config, name) for name, config in TABLES["models"].items()}
MODELS: dict[str, Decoder] = {**gpt2.MODELS, **llama.MODELS, **llama3.MODELS, **mixtral.MODELS, **NAMED}
