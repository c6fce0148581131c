"""From options to the description that formulas read: the only place that knows both."""

from dataclasses import fields
from typing import Any

from minidist.cli.fields import all_fields
from minidist.cli.shared import Line, ModelOptions, mixture_of
from minidist.formulas.asked import Asked, Averaging, Compression, Sharding
from minidist.layout import Layout
from minidist.papers.models import Model

SAME = {each.name for each in fields(Asked)}  # options of chapters that the description calls the same


def described(chapter: str, line: Line[Any], layout: Layout, vocabulary: int) -> Asked:
    """The run that these options ask for. vocabulary: V, of the text."""
    own = {each.name: value for each, value in all_fields(line.own)}
    training, mixture = line.training, mixture_of(line.own)
    experts, top = mixture.experts, mixture.top if mixture.experts else 1
    model = model_of(line.model, vocabulary, experts, top, own.get("persist", 0))
    parts: dict[str, Any] = {"zero": getattr(line.own, "stage", 0)}  # where it is no option
    parts |= {name: value for name, value in own.items() if name in SAME and name != "virtual"}
    if "scheme" in own:
        parts["attention"] = own["scheme"]
    if "strategy" in own:
        prefetch = own["backward_prefetch"], own["forward_prefetch"], own["prefetch"]
        parts["sharding"] = Sharding(own["strategy"], *prefetch, own["no_sync"])
        parts["zero"] = 0 if own["strategy"] == "no_shard" else 3
    if "every" in own:
        parts["averaging"] = Averaging(own["every"], own["outer_lr"], own["outer_momentum"])
    if "compressor" in own:
        begun = training.steps > own["freeze_step"]
        how = own["compressor"], own["density"], own["rank"], not own["no_feedback"]
        parts["compression"] = Compression(*how, begun=begun)
    if own.get("placement") == "hash":
        parts["virtual"] = own["virtual"]
    return Asked(
        chapter=chapter,
        model=model,
        layout=layout,
        context=line.model.context,
        dropout=line.model.dropout,
        batch=training.batch,
        accumulate=training.accumulate,
        validate=training.validate,
        precision=training.precision,
        grad_dtype=training.grad_dtype,
        tiled=training.attention == "tiled",
        optimizer=training.optimizer,
        recompute=training.recompute,
        save_every=line.files.save_every,
        **parts,
    )


def model_of(model: ModelOptions, vocabulary: int, experts: int = 0, top: int = 1, apart: int = 0) -> Model:
    """The model that options and a text ask for. apart: the most elements of a parameter that persists."""
    sizes = model.context, model.width, model.layers, model.heads, model.kv_heads or model.heads
    f = model.sizes.hidden if model.sizes and model.name == "llama" else 0
    return Model(model.name, vocabulary, *sizes, model.tied, experts, top, apart=apart, f=f)
