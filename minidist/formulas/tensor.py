"""What tensor-parallel ranks send, by formula."""

from collections.abc import Sequence
from typing import NamedTuple

from minidist.formulas.asked import Asked
from minidist.formulas.shares import Share
from minidist.papers import megatron
from minidist.papers.collectives import ring_all_reduce


class Volume(NamedTuple):
    """How many elements of `width` bytes each rank is to send in some phases, each of `times` times in a step."""

    source: str
    name: str
    formula: str
    phases: list[str]
    elements: list[int]
    times: int
    width: int


WHOLES = ("all-reduce forward", "all-reduce backward")
GATHERS = ("all-gather forward", "all-gather backward")
SCATTERS = ("reduce-scatter forward", "reduce-scatter backward")
TENSOR_NORM = "tensor norm"
SHARD_GRADIENTS = "shard gradients"  # of parameters that are not cut: a rank has those from its positions


def phases(where: str, *names: str) -> list[str]:
    return [f"{where}: {name}" for name in names]


def all_reduces(run: Asked, times: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Elements that each rank sends for a number of all-reduces (`times`) in its group."""
    each = zip(run.places, times, sizes, strict=True)
    return [number * ring_all_reduce(size, run.layout.tp).sent[at.tensor] for at, number, size in each]


def layer_volumes(run: Asked, shares: Sequence[Share]) -> list[Volume]:
    """What a rank's l layers send for one micro-batch, in elements."""
    p, t = run.bytes.stored, run.layout.tp
    passes, layers, bsh = run.passes, [share.layers for share in shares], elements(run, shares)
    number = [4 * share.layers + 2 * share.layers_again for share in shares]
    every = "12" if any(share.layers_again for share in shares) else "8"
    formula = f"{'(8l+4r)' if run.recompute == 'log' else f'l·{every}'}bsh(t-1)/t"
    if not run.sequence_parallel:
        both, sent = phases("layers", *WHOLES), all_reduces(run, number, bsh)
        if run.model.experts:  # f sums the gradients of gates, too: k for each token
            gates = [share.tokens(run.context) * run.model.top for share in shares]
            sent = [a + b for a, b in zip(sent, all_reduces(run, layers, gates), strict=True)]
            formula = f"{formula}+l·2bsk(t-1)/t"
        return [Volume("PTD §3.2", "in layers", formula, both, sent, passes, p)]
    names, once_more = phases("layers", *GATHERS, *SCATTERS), phases("layers", "all-gather again")
    once = [size * (t - 1) // t for size in bsh]
    in_layers, weights = ([n * size for n, size in zip(of, once, strict=True)] for of in (number, layers))
    routed = run.model.experts > 0
    again, twice = [(2 - routed) * n for n in weights], f"l·{'2' * (not routed)}bsh(t-1)/t"
    volumes = [
        Volume("PTD §3.2", "in layers", formula, names, [2 * n for n in in_layers], passes, p),
        Volume("Korthikanti §4", "gathered again", twice, once_more, again, passes, p),
    ]
    if routed:  # forward, again, and in the backward
        logits = [
            (2 * share.layers + share.layers_again) * share.tokens(run.context) * run.model.experts * (t - 1) // t
            for share in shares
        ]
        names, wide = phases("router", *GATHERS, *SCATTERS), run.bytes.computed
        volumes.append(Volume("Korthikanti §4", "routers' logits", "l·2bsE(t-1)/t", names, logits, passes, wide))
    return volumes


def end_volumes(run: Asked, shares: Sequence[Share]) -> list[Volume]:
    """What the embedding, the head and the loss send for one micro-batch, in elements."""
    p, times, t = run.bytes.stored, run.passes, run.layout.tp
    bsh, bs = elements(run, shares), [share.tokens(run.context) for share in shares]
    names = phases("ends", *WHOLES, *GATHERS, *SCATTERS)
    # Without sequence parallelism, g's all-reduce after the embedding and f's in the head's backward; with it, for
    # each end the two halves of one. Only forwards are recomputed.
    if run.sequence_parallel:
        halves = [(share.embedding + share.head) * (2 + share.ends_again) for share in shares]
        sent = [n * size * (t - 1) // t for n, size in zip(halves, bsh, strict=True)]
    else:
        halves = [2 * (share.embedding * (1 + share.ends_again) + share.head) for share in shares]
        sent = all_reduces(run, [n // 2 for n in halves], bsh)
    volumes = [Volume("Megatron §3", "outside layers", f"{max(halves)}bsh(t-1)/t", names, sent, times, p)]
    heads = [int(share.head) for share in shares]
    if run.sequence_parallel:
        again = [n * size * (t - 1) // t for n, size in zip(heads, bsh, strict=True)]
        once_more = phases("ends", "all-gather again")
        volumes.append(Volume("Korthikanti §4", "head, again", "bsh(t-1)/t", once_more, again, times, p))
    if run.gather_logits:
        v = megatron.padded_vocabulary(run.model.v, t)
        logits, phase = [size * v * (t - 1) // t for size in bs], ["loss: all-gather"]
        return [*volumes, Volume("Megatron §3", "gathered logits", "bsv(t-1)/t", phase, logits, times, p)]
    wide, phase = run.bytes.computed, ["loss: all-reduce"]
    fused = all_reduces(run, [3 * share.head * (1 + share.ends_again) for share in shares], bs)
    return [*volumes, Volume("Megatron §3", "fused loss", "3·2bs(t-1)/t", phase, fused, times, wide)]


def elements(run: Asked, shares: Sequence[Share]) -> list[int]:
    """b·s·h: the elements between two units, for the sequences of each rank."""
    return [share.tokens(run.context) * run.model.h for share in shares]
