"""From options to the description that formulas read: the only place that knows both."""

from typing import Any

from minidist.formulas.asked import Asked, Averaging, Sharding
from minidist.layout import Layout
from minidist.papers.models import Model

STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}
SAME = (  # options that the description calls the same; not all chapters have all of them
    *("context", "batch", "accumulate", "validate", "precision", "optimizer", "dropout", "recompute", "zero"),
    *("reduce", "bucket_size", "keep_last", "ahead", "live", "sequence_parallel", "gather_logits", "positions"),
    *("capacity", "balance", "host_limit", "activations", "scattered", "parameters", "delayed_update", "save_every"),
)


def described(chapter: str, options: Any, layout: Layout, vocabulary: int) -> Asked:
    """The run that these options ask for. vocabulary: V, of the text."""
    o = {"zero": STAGES.get(chapter, 0), **vars(options)}
    same = {name: o[name] for name in SAME if name in o}
    parts: dict[str, Any] = {"attention": o["scheme"]} if "scheme" in o else {}
    if "strategy" in o:
        prefetch = o["backward_prefetch"], o["forward_prefetch"], o["prefetch"]
        parts["sharding"] = Sharding(o["strategy"], *prefetch, o["no_sync"])
        same["zero"] = 0 if o["strategy"] == "no_shard" else 3
    if "every" in o:
        parts["averaging"] = Averaging(o["every"], o["outer_lr"], o["outer_momentum"])
    if o.get("placement") == "hash":
        parts["virtual"] = o["virtual"]
    return Asked(chapter=chapter, model=model_of(options, vocabulary), layout=layout, **same, **parts)


def model_of(options: Any, vocabulary: int) -> Model:
    """The model that a command line and a text ask for."""
    o = vars(options)
    tied, kv = o["model"] == "gpt" and not o["untied"], o["kv_heads"] or o["heads"]
    shape = o["model"], vocabulary, o["context"], o["width"], o["layers"], o["heads"], kv, tied
    experts = o.get("experts") or 0, o.get("top") or 1  # not all chapters have these options
    return Model(*shape, *experts, apart=o.get("persist", 0))
