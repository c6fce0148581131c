"""What layers keep for their backward, by the papers' formulas: Korthikanti's of one layer, Chen's of many."""

from collections.abc import Sequence
from typing import NamedTuple

from minidist.claims.run import Asked
from minidist.papers import chen, korthikanti, llama


class Share(NamedTuple):
    """What of the work on a micro-batch is a rank's."""

    b: int  # sequences
    layers: int
    embedding: bool = True
    head: bool = True
    layers_again: int = 0  # forwards of layers that run once more before the backward
    ends_again: bool = False  # and those of embedding and head do as well


def keep_after_forward(run: Asked, t: int, shares: Sequence[Share], dropout: bool) -> list[float]:
    """Bytes of activations of each rank's layers that wait for the backward of one micro-batch."""
    recompute = run.options.recompute
    layer, given = (layer_bytes(run, t, shares, what, dropout) for what in (name_recomputation(recompute), "full"))
    kept = [chen.after_forward(recompute, share.layers) for share in shares]
    return [of.inputs * x + of.layers * whole for of, x, whole in zip(kept, given, layer, strict=True)]


def keep_at_most(run: Asked, t: int, shares: Sequence[Share], dropout: bool) -> list[float]:
    """The most bytes that there are in the course of a forward and its backward. With selective recomputation that is
    after the forward, or when the last layer has run its core again, whichever is more."""
    recompute = run.options.recompute
    layer, given = (layer_bytes(run, t, shares, what, dropout) for what in (name_recomputation(recompute), "full"))
    most = [chen.peak_bytes(recompute, share.layers, *of) for share, *of in zip(shares, given, layer, strict=True)]
    if recompute != "selective":
        return most
    options, s, h, wide = run.options, run.options.context, run.options.width, run.bytes.computed
    sequence, p = run.sequence_parallel, run.bytes.stored
    for rank, share in enumerate(shares):
        part = run.places[rank].tensor
        if options.model == "gpt":
            gone = korthikanti.bytes_freed_before_core(s, share.b, h, t, sequence, p, dropout)
        else:
            f = llama.mlp_width(h)
            gone = korthikanti.bytes_freed_before_core_llama(s, share.b, h, f, t, sequence, p, dropout)[part]
        gone += (2 if options.model == "gpt" else 1) * wide * s * share.b / (t if sequence else 1)  # one norm's
        more = korthikanti.core(s, share.b, options.heads, t, p, dropout) - gone
        most[rank] += max(0, more) if share.layers else 0
    return most


def name_recomputation(recompute: str) -> str:
    """How much a layer has where it keeps its activations, or has them again."""
    return "selective" if recompute == "selective" else "none"


def layer_bytes(run: Asked, t: int, shares: Sequence[Share], recompute: str, dropout: bool) -> list[float]:
    """Bytes of a layer, by the formulas: of one that keeps its activations, or with "full" its input. The papers leave
    out the norms' statistics, kept in full precision: two numbers for each position and layer norm, one for each
    RMSNorm."""
    options, sequence = run.options, run.sequence_parallel
    s, h, a = options.context, options.width, options.heads
    p, wide = run.bytes.stored, run.bytes.computed
    expected = []
    for rank, share in enumerate(shares):
        part = run.places[rank].tensor
        if options.model == "gpt":
            kept = korthikanti.layer_activations(s, share.b, h, a, t, sequence, recompute, p, dropout)
        else:
            sizes = (s, share.b, h, a, options.kv_heads or a, llama.mlp_width(h), t)
            kept = korthikanti.layer_activations_llama(*sizes, sequence, recompute, p, dropout)[part]
        numbers = 0 if recompute == "full" else 4 if options.model == "gpt" else 2
        expected.append(kept + numbers * wide * s * share.b / (t if sequence else 1))
    return expected
