"""What layers keep for their backward, by the papers' formulas: Korthikanti's for one layer, Chen's for many."""

from collections.abc import Sequence
from typing import NamedTuple

from minidist.claims import experts
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.run import Asked, Run
from minidist.papers import chen, context, korthikanti
from minidist.papers.collectives import chunk_sizes


class Share(NamedTuple):
    """A rank's share of the work on a micro-batch."""

    b: int  # sequences
    layers: int
    embedding: bool = True
    head: bool = True
    layers_again: int = 0  # forwards of layers that run once more before the backward
    ends_again: bool = False  # whether embedding and head run once more, too
    length: int | None = None  # positions of each sequence, if ranks divide the sequences

    def tokens(self, context: int) -> int:
        """The tokens of the share, if a whole sequence has `context` of them."""
        return self.b * (self.length or context)


def count_forwards(run: Asked, shares: Sequence[Share]) -> list[tuple[int, int]]:
    """For each rank, the forwards of its mixtures in a step, and how many of these run a layer again."""
    return [(run.passes * (of.layers + of.layers_again), run.passes * of.layers_again) for of in shares]


def keep_after_forward(run: Asked, t: int, shares: Sequence[Share], dropout: bool) -> list[float]:
    """Bytes of activations that each rank's layers keep until the backward of one micro-batch."""
    recompute = run.options.recompute
    layer, given = (layer_bytes(run, t, shares, what, dropout) for what in (name_recomputation(recompute), "full"))
    kept = [chen.after_forward(recompute, share.layers) for share in shares]
    return [of.inputs * x + of.layers * whole for of, x, whole in zip(kept, given, layer, strict=True)]


def keep_at_most(run: Asked, t: int, shares: Sequence[Share], dropout: bool) -> list[float]:
    """The most bytes that each rank's layers hold at any moment of a forward and its backward. With selective
    recomputation that is after the forward, or when the last layer has run its core again, whichever is more."""
    recompute = run.options.recompute
    layer, given = (layer_bytes(run, t, shares, what, dropout) for what in (name_recomputation(recompute), "full"))
    most = [chen.peak_bytes(recompute, share.layers, *of) for share, *of in zip(shares, given, layer, strict=True)]
    if recompute != "selective" or run.scheme:  # context ranks keep no core
        return most
    options, s, h, wide = run.options, run.options.context, run.options.width, run.bytes.computed
    sequence, p = run.sequence_parallel, run.bytes.stored
    for rank, share in enumerate(shares):
        part = run.places[rank].tensor
        if options.model == "gpt":
            gone = korthikanti.bytes_freed_before_core(s, share.b, h, t, sequence, p, dropout)
        else:
            f = run.model.mlp_width
            gone = korthikanti.bytes_freed_before_core_llama(s, share.b, h, f, t, sequence, p, dropout)[part]
        if run.model.experts:
            gone += experts.more_than_an_mlp(run, rank, share.b * s)
        gone += (2 if options.model == "gpt" else 1) * wide * s * share.b / (t if sequence else 1)  # of one norm
        more = korthikanti.core(s, share.b, options.heads, t, p, dropout) - gone
        most[rank] += max(0, more) if share.layers else 0
    return most


def name_recomputation(recompute: str) -> str:
    """For a layer that holds its activations: "selective" if without those of the core, otherwise "none"."""
    return "selective" if recompute == "selective" else "none"


def layer_bytes(run: Asked, t: int, shares: Sequence[Share], recompute: str, dropout: bool) -> list[float]:
    """Bytes that a layer keeps on each rank, by the formulas: its activations, or with "full" its input. The papers
    leave out the norms' statistics, which are kept in full precision: two numbers for each position and layer norm, one
    for each RMSNorm. If ranks divide the sequences, no probabilities are kept (`minidist/papers/context.py`). A mixture
    of experts keeps other arrays than an MLP (`minidist/papers/switch.py`)."""
    options, sequence = run.options, run.sequence_parallel
    h, a = options.width, options.heads
    p, wide = run.bytes.stored, run.bytes.computed
    expected = []
    if run.scheme and recompute == "none":
        recompute = "selective"
    for rank, share in enumerate(shares):
        part, s = run.places[rank].tensor, share.length or options.context
        if options.model == "gpt":
            kept = korthikanti.layer_activations(s, share.b, h, a, t, sequence, recompute, p, dropout)
        else:
            sizes = (s, share.b, h, a, options.kv_heads or a, run.model.mlp_width, t)
            kept = korthikanti.layer_activations_llama(*sizes, sequence, recompute, p, dropout)[part]
        numbers = 0 if recompute == "full" else 4 if options.model == "gpt" else 2
        kept += numbers * wide * s * share.b / (t if sequence else 1)
        if run.scheme and recompute != "full":
            kv = (options.kv_heads or a) if options.model == "llama" else a
            own = chunk_sizes(kv // t, run.layout.cp)[run.places[rank].context]
            shape = s, options.context, share.b, a // t, kv // t, h // a
            kept += context.kept_for_attention(run.scheme, own, *shape, p, wide)
        if run.model.experts and recompute != "full":
            kept += experts.more_than_an_mlp(run, rank, share.b * s)
        expected.append(kept)
    return expected


# ---- claims ----------------------------------------------------------------------------------------------------------


def whole_layers_peak(run: Run) -> Claim:
    """`peak_of_layers` for chapters on the data axis: each rank holds all layers, and has a share of the batch."""
    rows = chunk_sizes(run.options.batch // run.options.accumulate, run.layout.dp)
    return peak_of_layers(run, 1, [Share(rows[share], run.options.layers) for share in run.data_shares])


def peak_of_layers(run: Run, t: int, shares: Sequence[Share]) -> Claim:
    """The most that layers keep for their backward at any moment of the training, over all micro-batches."""
    o = run.options
    most = keep_at_most(run, t, shares, o.dropout > 0)
    formula = peak_formula(o.recompute, run.bytes.stored, t, run.sequence_parallel)
    return on_each_rank("Chen", "layers' peak", formula, most, run.memory_of("activations"), "bytes")


def formula_of_layers(recompute: str, p: int, t: int, sequence: bool) -> str:
    """The formula for what all layers keep together, if some keep only their inputs."""
    given = activation_formula(p, t, sequence, "full", False)
    return f"⌊log₂l⌋{given} + layer" if recompute == "log" else f"⌈l/{letter(recompute)}⌉{given}"


def peak_formula(recompute: str, p: int, t: int, sequence: bool) -> str:
    """The formula for the most that all layers hold together."""
    given = activation_formula(p, t, sequence, "full", False)
    if recompute == "log":
        return formula_of_layers(recompute, p, t, sequence)
    k = letter(recompute)
    others = {"none": "l·layer", "selective": "l·layer+max(0, core-gone)", "full": f"(l-1){given} + layer"}
    return others.get(recompute, f"(⌈l/{k}⌉-1){given} + {k}·layer")


def letter(recompute: str) -> str:
    """The number of layers that run again together, as formulas write it."""
    return "⌊√l⌉" if recompute == "sqrt" else recompute.removeprefix("every:")


def activation_formula(p: int, t: int, sequence: bool, recompute: str, dropout: bool) -> str:
    """The formula for one layer, as Korthikanti's table 2 writes it, for elements of p bytes, plus the statistics."""
    shared, core = 4 * p + 2 * dropout, 2 * p + 1 if dropout else p
    statistics = f"{4 * max(p, 4)}sb"
    attention = "" if recompute == "selective" else f"+{core}as/ht"
    if recompute == "full":
        formula = f"{p}sbh/t" if sequence else f"{p}sbh"
    elif sequence or t == 1:
        formula = f"sbh({shared + 12 * p}/t{attention}) +{statistics}/t"
    else:
        formula = f"sbh({shared}+{12 * p}/t{attention})+{statistics}"
    return formula if t > 1 else formula.replace("/ht", "/h").replace("/t", "")
