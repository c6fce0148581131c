"""What the papers say about tensor parallelism, next to what a run held and sent; and which layouts are possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from minidist import UsageError
from minidist.claims.activations import (
    Share,
    activation_formula,
    formula_of_layers,
    keep_after_forward,
    peak_of_layers,
)
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.run import Asked, Run
from minidist.papers import chen, megatron, models
from minidist.papers.collectives import ring_all_reduce

if TYPE_CHECKING:  # a plan asks the same formulas, without NumPy
    from argparse import Namespace as Options

    from minidist.command import Job
    from minidist.engine import Engine


def check_tensor(options: Options, t: int) -> None:
    """Raise UsageError unless t ranks can share every layer."""
    kv_heads = (options.kv_heads or options.heads) if options.model == "llama" else options.heads
    sizes = {"--heads": options.heads, "--kv-heads": kv_heads}
    if options.sequence_parallel:
        sizes["--context"] = options.context
    works = max(n for n in range(1, t + 1) if math.gcd(n, *sizes.values()) == n)
    for option, size in sizes.items():
        if size % t:
            raise UsageError(f"{option} {size} cannot be cut for {t} ranks: cut for {works}, or use a multiple of {t}")


def claims(run: Run) -> list[Claim]:
    """The claims of the chapter on tensor parallelism itself."""
    options, t = run.options, run.ranks
    again = chen.runs_again(options.recompute, options.layers)
    shares = [Share(options.batch // options.accumulate, options.layers, layers_again=again)] * t
    volumes = [*layer_volumes(run, t, shares), *end_volumes(run, t, shares)]
    beside = {
        TENSOR_NORM: ("8(t-1)t", 8 * (t - 1) * t),
        SHARD_GRADIENTS: (f"{run.bytes.stored}·2(t-1)Ψrest", replicated_bytes(run, t)),
    }
    return [
        *memory(run, t),
        *activations(run, t, shares),
        *collectives(run, t, shares),
        *(volume.claim(run) for volume in volumes),
        *total_claims(run, volumes, beside),
    ]


# ---- what is held ----------------------------------------------------------------------------------------------------


def memory(run: Run, t: int) -> list[Claim]:
    """Model states: what is cut is divided by t."""
    psi = [sum(map(sum, units)) for units in run.model.cut_and_whole(t)]
    p, k = run.bytes.stored, run.optimizer_bytes
    return [
        on_each_rank(
            "Megatron §3", kind, f"{factor}(Ψcut/t+Ψrest)", [factor * n for n in psi], run.memory_of(kind), "bytes"
        )
        for kind, factor in {"parameters": p, "gradients": p, "optimizer": k}.items()
    ]


PAPERS_DROPOUT = 0.1


def count_with_dropout(job: Job, engine: Engine) -> dict[str, int]:
    """Chapters train without dropout, the papers with it: one more forward on this rank counts what the papers keep."""
    options = job.options
    if (
        options.dropout > 0 or job.layout.cp > 1 or options.device_memory is not None
    ):  # a limited device may have no room for one more forward
        return {}
    x, y = job.corpus.batch(options.batch // options.accumulate, options.context, key=(options.seed, options.steps))
    return {"layer_activations_with_dropout": engine.count_layer_bytes(x, y, PAPERS_DROPOUT)}


def activations(run: Run, t: int, shares: Sequence[Share]) -> list[Claim]:
    """What layers keep for their backward after a forward, in this training and with the papers' dropout; and the most
    that they ever keep in this training."""
    options, recompute, n, made = run.options, run.options.recompute, run.options.layers, []
    p, sequence, dropout = run.bytes.stored, run.options.sequence_parallel, run.options.dropout > 0
    apiece = chen.after_forward(recompute, n) in (chen.Kept(0, n), chen.Kept(n, 0))  # each layer keeps the same
    own = "a layer keeps" if apiece else "layers keep", "layer_activations", dropout
    papers = f"with dropout {PAPERS_DROPOUT}", "layer_activations_with_dropout", True
    for name, kind, masks in (own, papers):
        if kind not in run.counted[0]:
            continue
        expected, counted = keep_after_forward(run, t, shares, masks), [counts[kind] for counts in run.counted]
        formula = formula_of_layers(recompute, p, t, sequence)
        if apiece:
            formula = activation_formula(p, t, sequence, "full" if recompute == "every:1" else recompute, masks)
            expected, counted = [nbytes / n for nbytes in expected], [nbytes / n for nbytes in counted]
        if options.model == "llama" and recompute in ("none", "selective"):
            formula = "likewise, SwiGLU"
        if run.scheme:
            formula = "layer(c)"
        made.append(on_each_rank("Korthikanti" if apiece else "Chen", name, formula, expected, counted, "bytes"))
    return [*made, peak_of_layers(run, t, shares)]


# ---- what is sent ----------------------------------------------------------------------------------------------------


class Volume(NamedTuple):
    """How many elements of `width` bytes each rank is to send in some phases, each of `times` times in a step."""

    source: str
    name: str
    formula: str
    phases: list[str]
    elements: list[int]
    times: int
    width: int

    def claim(self, run: Run) -> Claim:
        counted = [nbytes / self.width / self.times for nbytes in run.sent_in(*self.phases)]
        order = sorted(range(run.ranks), key=lambda rank: -self.elements[rank])  # so the table shows the most
        expected, counted = [self.elements[rank] for rank in order], [counted[rank] for rank in order]
        return on_each_rank(self.source, self.name, self.formula, expected, counted, "elements")


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


def collectives(run: Run, t: int, shares: Sequence[Share]) -> list[Claim]:
    """The number of collectives of l layers in a micro-batch: an all-reduce is 2(t-1) messages, half of one t-1."""
    options = run.options
    log = options.recompute == "log"  # layers that run again repeat the forward's two: r with log, otherwise all l
    times = "4l+2r" if log else "6l" if any(share.layers_again for share in shares) else "4l"
    kinds = {"all-reduces": (WHOLES, 2)}
    if options.sequence_parallel:
        kinds = {"all-gathers": (GATHERS, 1), "reduce-scatters": (SCATTERS, 1)}
    source = "Korthikanti §4" if options.sequence_parallel else "Megatron §3"
    gates = run.model.experts > 0 and not options.sequence_parallel  # sequence parallelism gathers logits instead
    times = times.replace("4l", "5l").replace("6l", "7l") if gates else times
    expected = [(4 + gates) * share.layers + 2 * share.layers_again if t > 1 else 0 for share in shares]
    claims = []
    for name, (names, halves) in kinds.items():
        each = max(1, halves * (t - 1)) * run.passes  # a single rank sends none
        counted = [messages / each for messages in run.sent_in(*phases("layers", *names), count="messages")]
        claims.append(on_each_rank(source, name, times, expected, counted, ""))
    return claims


def layer_volumes(run: Asked, t: int, shares: Sequence[Share]) -> list[Volume]:
    """What a rank's l layers send for one micro-batch, in elements."""
    options, p = run.options, run.bytes.stored
    passes, layers, bsh = run.passes, [share.layers for share in shares], elements(run, shares)
    number = [4 * share.layers + 2 * share.layers_again for share in shares]
    every = "12" if any(share.layers_again for share in shares) else "8"
    formula = f"{'(8l+4r)' if options.recompute == 'log' else f'l·{every}'}bsh(t-1)/t"
    if not options.sequence_parallel:
        both, sent = phases("layers", *WHOLES), all_reduces(run, number, bsh)
        if run.model.experts:  # f sums the gradients of gates, too: k for each token
            gates = [share.tokens(options.context) * run.model.top for share in shares]
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
            (2 * share.layers + share.layers_again) * share.tokens(options.context) * run.model.experts * (t - 1) // t
            for share in shares
        ]
        names, wide = phases("router", *GATHERS, *SCATTERS), run.bytes.computed
        volumes.append(Volume("Korthikanti §4", "routers' logits", "l·2bsE(t-1)/t", names, logits, passes, wide))
    return volumes


def end_volumes(run: Asked, t: int, shares: Sequence[Share]) -> list[Volume]:
    """What the embedding, the head and the loss send for one micro-batch, in elements."""
    options, p, times = run.options, run.bytes.stored, run.passes
    bsh, bs = elements(run, shares), [share.tokens(options.context) for share in shares]
    names = phases("ends", *WHOLES, *GATHERS, *SCATTERS)
    # Without sequence parallelism, g's all-reduce after the embedding and f's in the head's backward; with it, for
    # each end the two halves of one. Only forwards run again.
    if options.sequence_parallel:
        halves = [(share.embedding + share.head) * (2 + share.ends_again) for share in shares]
        sent = [n * size * (t - 1) // t for n, size in zip(halves, bsh, strict=True)]
    else:
        halves = [2 * (share.embedding * (1 + share.ends_again) + share.head) for share in shares]
        sent = all_reduces(run, [n // 2 for n in halves], bsh)
    volumes = [Volume("Megatron §3", "outside layers", f"{max(halves)}bsh(t-1)/t", names, sent, times, p)]
    heads = [int(share.head) for share in shares]
    if options.sequence_parallel:
        again = [n * size * (t - 1) // t for n, size in zip(heads, bsh, strict=True)]
        once_more = phases("ends", "all-gather again")
        volumes.append(Volume("Korthikanti §4", "head, again", "bsh(t-1)/t", once_more, again, times, p))
    if run.gather_logits:
        v = megatron.padded_vocabulary(run.vocabulary, t)
        logits, phase = [size * v * (t - 1) // t for size in bs], ["loss: all-gather"]
        return [*volumes, Volume("Megatron §3", "gathered logits", "bsv(t-1)/t", phase, logits, times, p)]
    wide, phase = run.bytes.computed, ["loss: all-reduce"]
    fused = all_reduces(run, [3 * share.head * (1 + share.ends_again) for share in shares], bs)
    return [*volumes, Volume("Megatron §3", "fused loss", "3·2bs(t-1)/t", phase, fused, times, wide)]


def elements(run: Asked, shares: Sequence[Share]) -> list[int]:
    """b·s·h: the elements between two units, for the sequences of each rank."""
    return [share.tokens(run.options.context) * run.options.width for share in shares]


def replicated_bytes(run: Asked, t: int, copies: int = 1, shards: int = 1) -> int:
    """Bytes that all ranks send to sum the gradients of what every rank has, with sequence parallelism. It is padded so
    that `shards` ranks can divide it. copies: the number of groups of t ranks that each do this."""
    if not run.options.sequence_parallel:
        return 0
    padded = [models.padded(whole, shards) for _, whole in run.model.without_experts(t)[0]]
    return copies * 2 * (t - 1) * sum(padded) * run.bytes.stored


def total_claims(
    run: Run, volumes: Sequence[Volume], beside: dict[str, tuple[str, int]], stamps: int = 0
) -> list[Claim]:
    """Claims on all ranks together: what the papers leave out (`beside`), and that nothing else was sent.

    `beside`: other phases -> formula, bytes.
    stamps: messages whose time is sent on the control channel, which may carry nothing else."""
    claims = [
        Claim("in addition", phase, formula, promised, sum(run.sent_in(phase)), "bytes", "all ranks")
        for phase, (formula, promised) in beside.items()
        if promised
    ]
    if stamps:
        messages = sum(run.sent_in("control", count="messages"))
        claims.append(Claim("in addition", "clock stamps", "one a message", stamps, messages, "messages", "all ranks"))
    expected = sum(sum(volume.elements) * volume.times * volume.width for volume in volumes)
    expected += sum(promised for _, promised in beside.values())
    payload = sum(run.sent_by(rank) for rank in range(run.ranks)) - (sum(run.sent_in("control")) if stamps else 0)
    for name, counted in (("sent in all", payload), ("arrived in all", sum(run.received))):
        claims.append(Claim("together", name, "nothing else", expected, counted, "bytes", "all ranks"))
    return claims
