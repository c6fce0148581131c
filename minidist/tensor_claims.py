"""What the papers say of a tensor-parallel run, beside what it held and sent; and which layouts there can be."""

import math

import numpy as np

from minidist import UsageError, papers
from minidist.nn.llama import hidden_width
from minidist.report import Claim, Run, on_each_rank
from minidist.train import Options

WHOLES = ("all-reduce forward", "all-reduce backward")
GATHERS = ("all-gather forward", "all-gather backward")
SCATTERS = ("reduce-scatter forward", "reduce-scatter backward")


def one_replica(options: Options, ranks: int) -> int:
    """Ranks do not share out the batch: all work on all of it. Raises UsageError for a layout that cannot work."""
    kv_heads = (options.kv_heads or options.heads) if options.model == "llama" else options.heads
    divisible = {"--heads": options.heads, "--kv-heads": kv_heads}
    if options.sequence_parallel:
        divisible["--context"] = options.context
    works = max(t for t in range(1, ranks + 1) if math.gcd(t, *divisible.values()) == t)
    for option, size in divisible.items():
        if size % ranks:
            raise UsageError(
                f"{option} {size} cannot be shared by {ranks} ranks: use mpirun -n {works}, or a multiple of {ranks}"
            )
    return 1


def claims(run: Run) -> list[Claim]:
    """Everything that the papers promise of a step, by section."""
    return [*memory(run), activations(run), *traffic_of_layers(run), *traffic_of_ends(run), *traffic_beside(run)]


def memory(run: Run) -> list[Claim]:
    """Model states: what is cut is divided by t."""
    options, t = run.options, run.ranks
    if options.model == "gpt":
        sizes = (run.vocabulary, options.context, options.width, options.layers)
        psi = [papers.gpt_parameters(*sizes, t, run.tied)] * t
    else:
        sizes = (run.vocabulary, options.width, options.layers, options.heads)
        kv_heads = options.kv_heads or options.heads
        psi = papers.llama_parameters(*sizes, kv_heads, hidden_width(options.width), t, run.tied)
    p, k = run.precision.bytes, run.precision.optimizer_bytes(run.moments)
    return [
        on_each_rank(
            "Megatron §3", kind, f"{factor}(Ψcut/t+Ψrest)", [factor * n for n in psi], run.memory_of(kind), "bytes"
        )
        for kind, factor in {"parameters": p, "gradients": p, "optimizer": k}.items()
    ]


def activations(run: Run) -> Claim:
    """What a layer keeps for its backward. The papers leave out the norms' statistics, kept in full precision: two
    numbers for each position and layer norm, one for each RMSNorm."""
    options, t = run.options, run.ranks
    sequence, recompute, dropout = options.sequence_parallel, options.recompute, options.dropout > 0
    s, b, h, a = options.context, options.batch // options.accumulate, options.width, options.heads
    p, wide = run.precision.bytes, np.dtype(run.precision.computed).itemsize
    if options.model == "gpt":
        kept = [papers.layer_activations(s, b, h, a, t, sequence, recompute, p, dropout)] * t
    else:
        kv, hidden = options.kv_heads or a, hidden_width(h)
        kept = papers.layer_activations_llama(s, b, h, a, kv, hidden, t, sequence, recompute, p, dropout)
    statistics = 0.0
    if recompute != "full":
        statistics = (4 if options.model == "gpt" else 2) * wide * s * b / (t if sequence else 1)
    counted = [held / options.layers for held in run.memory_of("layer_activations")]
    formula = activation_formula(p, sequence, recompute, dropout) if options.model == "gpt" else "likewise, SwiGLU"
    name = "a layer keeps"
    return on_each_rank("Korthikanti T2", name, formula, [n + statistics for n in kept], counted, "bytes")


def activation_formula(p: int, sequence: bool, recompute: str, dropout: bool) -> str:
    """As table 2 writes it, for elements of p bytes, and with the statistics."""
    shared, core = 4 * p + 2 * dropout, 2 * p + 1 if dropout else p
    statistics = f"{4 * max(p, 4)}sb"
    if recompute == "full":
        return f"{p}sbh/t" if sequence else f"{p}sbh"
    attention = "" if recompute == "selective" else f"+{core}as/ht"
    if sequence:
        return f"sbh({shared + 12 * p}/t{attention}) +{statistics}/t"
    return f"sbh({shared}+{12 * p}/t{attention}) +{statistics}"


def phases(where: str, names: tuple[str, ...]) -> list[str]:
    return [f"{where}: {name}" for name in names]


def traffic_of_layers(run: Run) -> list[Claim]:
    """Of one layer and one micro-batch. Bytes would be twice the elements in float16."""
    options, t = run.options, run.ranks
    bsh = options.batch // options.accumulate * options.context * options.width
    passes = options.layers * options.accumulate
    times = 6 if options.recompute == "full" else 4  # the forward's two run again

    def elements(names: list[str]) -> list[float]:
        return [nbytes / run.precision.bytes / passes for nbytes in run.sent_in(*names)]

    def calls(messages: int, names: list[str]) -> list[float]:
        """How many collectives of so many messages there were."""
        return [sent / max(1, messages) / passes for sent in run.sent_in(*names, count="messages")]

    if not options.sequence_parallel:
        both = phases("layers", WHOLES)
        sent = [times * one for one in papers.ring_all_reduce(bsh, t).sent]
        number = times if t > 1 else 0
        return [
            on_each_rank("Megatron §3", "all-reduces", f"{times} in a layer", number, calls(2 * (t - 1), both), ""),
            on_each_rank("PTD §3.2", "in elements", f"{2 * times}bsh(t-1)/t", sent, elements(both), "elements"),
        ]
    gathers, scatters = phases("layers", GATHERS), phases("layers", SCATTERS)
    once = bsh * (t - 1) // t
    return [
        on_each_rank("Korthikanti §4", name, f"{times} in a layer", times if t > 1 else 0, calls(t - 1, names), "")
        for name, names in {"all-gathers": gathers, "reduce-scatters": scatters}.items()
    ] + [
        on_each_rank(source, name, f"{factor}bsh(t-1)/t", factor * once, elements(names), "elements")
        for source, name, factor, names in (
            ("PTD §3.2", "in elements", 2 * times, gathers + scatters),
            ("Korthikanti §4", "gathered again", 2, ["layers: all-gather again"]),
        )
    ]


def traffic_of_ends(run: Run) -> list[Claim]:
    """Of the embedding, the head and the loss, for one micro-batch."""
    options, t, a = run.options, run.ranks, run.options.accumulate
    bs = options.batch // a * options.context
    ends = phases("ends", GATHERS + SCATTERS if options.sequence_parallel else WHOLES)
    at_ends = [nbytes / run.precision.bytes / a for nbytes in run.sent_in(*ends)]
    bsh = [2 * sent for sent in papers.ring_all_reduce(bs * options.width, t).sent]
    claims = [on_each_rank("Megatron §3", "embedding, head", "4bsh(t-1)/t", bsh, at_ends, "elements")]
    if options.sequence_parallel:
        again = [nbytes / run.precision.bytes / a for nbytes in run.sent_in("ends: all-gather again")]
        once = bs * options.width * (t - 1) // t
        claims.append(on_each_rank("Korthikanti §4", "head, again", "bsh(t-1)/t", once, again, "elements"))
    if options.gather_logits:
        logits = bs * papers.padded_vocabulary(run.vocabulary, t) * (t - 1) // t
        sent = [nbytes / run.precision.bytes / a for nbytes in run.sent_in("loss: all-gather")]
        return [*claims, on_each_rank("Megatron §3", "logits, gathered", "bsv(t-1)/t", logits, sent, "elements")]
    fused = [3 * sent for sent in papers.ring_all_reduce(bs, t).sent]
    sent = [nbytes / np.dtype(run.precision.computed).itemsize / a for nbytes in run.sent_in("loss: all-reduce")]
    return [*claims, on_each_rank("Megatron §3", "fused loss", "3·2bs(t-1)/t", fused, sent, "elements")]


def traffic_beside(run: Run) -> list[Claim]:
    """What the papers leave out, of a step."""
    options, t = run.options, run.ranks
    claims = []
    if options.sequence_parallel:
        h, gpt = options.width, options.model == "gpt"
        units = [options.context * h if gpt else 0, *[6 * h if gpt else 2 * h] * options.layers, 2 * h if gpt else h]
        by_unit = [papers.ring_all_reduce(size, t).sent for size in units]
        promised = [sum(sent) * run.precision.bytes for sent in zip(*by_unit, strict=True)]
        counted = run.sent_in("all-reduce gradients")
        claims = [on_each_rank("beside it", "Ψrest's gradients", "2·2Ψrest(t-1)/t", promised, counted, "bytes")]
    return [
        *claims,
        on_each_rank("beside it", "gradient's norm", "8(t-1)", 8 * (t - 1), run.sent_in("norm"), "bytes"),
    ]
