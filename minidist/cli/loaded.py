"""A model that --load names with its sizes: Hugging Face's folder, whose config.json says them, or a checkpoint of a
training that began with one."""

import json
import os
from collections.abc import Collection
from dataclasses import replace
from glob import escape, glob
from typing import Any

from minidist import UsageError
from minidist.cli.fields import Parsed
from minidist.cli.models import shape_of
from minidist.cli.read import read
from minidist.cli.shared import FileOptions, Line, LoadedModel, LoadedSizes, ModelOptions, Own
from minidist.papers.models import Model
from minidist.system.files import open_regular

SAID = ("name", "layers", "width", "heads", "kv_heads", "untied")  # by the folder
COMPUTED = {  # what a model computes with, and what its layers here compute; a missing key says the same
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "hidden_act": ("silu", "swish"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
}


def line_of(parsed: Parsed, own: type[Own]) -> Line[Own]:
    """What a command line says, with the model that --load names."""
    line, load = Line.of(parsed, own), parsed.of(FileOptions).load
    return replace(line, model=model_in(load, line.model, parsed.given)) if load and os.path.isdir(load) else line


def is_huggingface(path: str) -> bool:
    """Whether a path is a folder with Hugging Face's config.json, and parameters as safetensors."""
    patterns = ("*.safetensors", "*.safetensors.index.json")
    weights = any(glob(os.path.join(escape(path), pattern)) for pattern in patterns)
    return weights and os.path.isfile(os.path.join(path, "config.json"))


def model_in(path: str, asked: ModelOptions, given: Collection[str]) -> ModelOptions:
    """The model that is in a folder, if it says its sizes; else the one that is asked for. given: the options on the
    command line. Raises UsageError for a model that is not here, or for options that say another one."""
    found = _of_huggingface(path, asked) if is_huggingface(path) else _of_checkpoint(path, asked)
    for name in SAID if found is not asked else ():
        if (name if name != "name" else "model") in given and getattr(asked, name) != getattr(found, name):
            option = f"--{'model' if name == 'name' else name.replace('_', '-')}"
            raise UsageError(f"--load {path} has a model of other sizes: leave out {option}")
    if isinstance(found, LoadedModel) and found.name == "gpt" and "context" in given and asked.context != found.context:
        raise UsageError(f"--load {path} has {found.context} positions: leave out --context, or use that")
    return found


def _of_huggingface(path: str, asked: ModelOptions) -> ModelOptions:
    file = os.path.join(path, "config.json")
    config = read(file)
    shape = shape_of(config, file)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    others = [name for name, values in COMPUTED.items() if config.get(name, values[0]) not in values]
    others += ["rope_scaling"] * (rope.get("rope_type", rope.get("type", "default")) != "default")
    if (model := Model.like(shape)).other or model.experts:
        raise UsageError(f"--load {path}: no chapter trains such a model: {config['model_type']} with its config.json")
    if others:
        raise UsageError(
            f"--load {path}: {others[0]} {config.get(others[0], rope)!r:.60} in its config.json is not here"
        )
    gpt = shape.family == "gpt"
    eps = config.get("layer_norm_epsilon" if gpt else "rms_norm_eps", 1e-5 if gpt else 1e-6)
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    sizes = LoadedSizes(vocabulary=shape.v, hidden=shape.f, eps=float(eps), theta=float(theta), tied=shape.tied)
    return LoadedModel(
        name=shape.family, layers=shape.layers, width=shape.h, heads=shape.a, kv_heads=None if gpt else shape.kv,
        untied=gpt and not shape.tied, context=shape.s if gpt else asked.context, dropout=asked.dropout, sizes=sizes,
    )  # fmt: skip


def _of_checkpoint(path: str, asked: ModelOptions) -> ModelOptions:
    """The sizes that a checkpoint records, which only a training that began with another library's model has. Anything
    wrong with it is said later."""
    try:
        with open_regular(os.path.join(path, "latest")) as file:
            name = file.read(100).decode().strip()
        with open_regular(os.path.join(path, name, "manifest.json")) as file:
            said: dict[str, Any] = json.load(file)["identity"]["loaded"]
        options, sizes = dict(said["options"]), LoadedSizes(**said["sizes"])
        return LoadedModel(**options | {"dropout": asked.dropout}, sizes=sizes)
    except (OSError, ValueError, KeyError, TypeError):
        return asked
