"""What layers keep for their backward, by the papers' formulas: Korthikanti's for one layer, Chen's for many."""

from collections.abc import Sequence
from typing import NamedTuple

from minidist.formulas import experts
from minidist.formulas.asked import Asked
from minidist.formulas.shares import Share
from minidist.papers import chen, context, korthikanti
from minidist.papers.collectives import chunk_sizes


class Kept(NamedTuple):
    """Bytes that layers keep: one layer's activations, or its input; all layers after a forward, and at most."""

    layer: float
    given: float
    after: float
    most: float


def keeps(run: Asked, rank: int, share: Share) -> Kept:
    """What a rank's layers keep of a micro-batch. With selective recomputation they hold most after the forward, or
    when the last layer has run its core again, whichever is more."""
    recompute, n = run.recompute, share.layers
    layer = layer_bytes(run, rank, share, "selective" if recompute == "selective" else "none")
    given, of = layer_bytes(run, rank, share, "full"), chen.after_forward(recompute, n)
    most = chen.peak_bytes(recompute, n, given, layer)
    if recompute == "selective" and n and not run.keeps_no_core:
        most += max(0, core_again(run, rank, share))
    return Kept(layer, given, of.inputs * given + of.layers * layer, most)


def all_keep(run: Asked, shares: Sequence[Share]) -> list[Kept]:
    """What every rank's layers keep."""
    return [keeps(run, rank, share) for rank, share in enumerate(shares)]


def core_again(run: Asked, rank: int, share: Share) -> float:
    """Bytes of a core that is recomputed, minus those that its layer has freed before."""
    model, s, t, sequence, p = run.model, run.context, run.layout.tp, run.sequence_parallel, run.bytes.stored
    gpt, dropout = model.name == "gpt", run.dropout > 0
    if gpt:
        gone = korthikanti.bytes_freed_before_core(s, share.b, model.h, t, sequence, p, dropout)
    else:
        sizes = s, share.b, model.h, model.mlp_width, t, sequence, p, dropout
        gone = korthikanti.bytes_freed_before_core_llama(*sizes)[run.places[rank].tensor]
    if model.experts:
        gone += experts.more_than_an_mlp(run, rank, share.b * s)
    gone += (2 if gpt else 1) * run.bytes.computed * s * share.b / (t if sequence else 1)  # of one norm
    return korthikanti.core(s, share.b, model.a, t, p, dropout) - gone


def layer_bytes(run: Asked, rank: int, share: Share, recompute: str) -> float:
    """Bytes that a layer keeps on a rank, by the formulas: its activations, or with "full" its input. The papers
    leave out the norms' statistics, which are kept in full precision: two numbers for each position and layer norm, one
    for each RMSNorm. If ranks divide the sequences, or attention is in tiles, log-sum-exps are kept in place of
    probabilities (`minidist/papers/context.py`). A mixture of experts keeps other arrays than an MLP
    (`minidist/papers/switch.py`)."""
    model, t, sequence, place = run.model, run.layout.tp, run.sequence_parallel, run.places[rank]
    p, wide, gpt = run.bytes.stored, run.bytes.computed, model.name == "gpt"
    if run.keeps_no_core and recompute == "none":
        recompute = "selective"
    s, how = share.length or run.context, (sequence, recompute, p, run.dropout > 0)
    if gpt:
        kept = korthikanti.layer_activations(s, share.b, model.h, model.a, t, *how)
    else:
        sizes = s, share.b, model.h, model.a, model.kv, model.mlp_width, t
        kept = korthikanti.layer_activations_llama(*sizes, *how)[place.tensor]
    numbers = 0 if recompute == "full" else 4 if gpt else 2
    kept += numbers * wide * s * share.b / (t if sequence else 1)
    if run.tiled and not run.scheme and recompute != "full":
        kept += wide * s * share.b * model.a // t
    if run.scheme and recompute != "full":
        own = chunk_sizes(model.kv // t, run.layout.cp)[place.context]
        shape = s, run.context, share.b, model.a // t, model.kv // t, model.h // model.a
        kept += context.kept_for_attention(run.scheme, own, *shape, p, wide)
    if model.experts and recompute != "full":
        kept += experts.more_than_an_mlp(run, rank, share.b * s)
    return kept
