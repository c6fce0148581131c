"""The model in Hugging Face's folder: what its config.json says, if a chapter trains such a model."""

import os

from minidist import UsageError
from minidist.cli.models import shape_of
from minidist.cli.read import read
from minidist.cli.shared import LoadedModel, LoadedSizes, ModelOptions
from minidist.papers.models import Model

COMPUTED = {  # what a model computes with, and what its layers here compute; a missing key says the same
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "hidden_act": ("silu", "swish"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
}


def model_of(path: str, asked: ModelOptions) -> LoadedModel:
    """The model, with what the file does not say as it is asked for. Raises UsageError for one that is not here."""
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
