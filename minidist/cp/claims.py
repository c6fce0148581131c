"""What the papers say about context parallelism, next to what a run computed, held and sent; which layouts are
possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from minidist import UsageError
from minidist.claims.activations import Share, layer_bytes
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.fsdp import Blocks
from minidist.claims.run import Asked, Run
from minidist.claims.zero import memory_claims
from minidist.cli.tables import say
from minidist.papers import chen, context, zero
from minidist.papers.collectives import chunk_sizes

if TYPE_CHECKING:  # a plan asks the same formulas, without NumPy
    from argparse import Namespace as Options

SCHEMES = ("ring", "all-gather", "ulysses")
POSITIONS = ("zigzag", "striped", "contiguous")
SOURCES = {"ring": "Ring Attention §3", "all-gather": "Llama 3 §3.3.2", "ulysses": "Ulysses §3.2"}
KEYS, GRADIENTS = "keys and values {}", "gradients of keys and values"
ALL_TO_ALL = "all-to-all {}"


def check_context(options: Options, n: int, t: int = 1) -> None:
    """Raise UsageError unless n ranks can divide the positions, where t ranks share every layer."""
    if n == 1:
        return
    kv_heads = kv_heads_of(options) // t
    if options.context < n:
        raise UsageError(f"--context {options.context} has no position for each of {n} ranks: use --context {n}")
    if options.scheme == "ulysses" and kv_heads < n:
        each = f" on each of {t} tensor-parallel ranks" * (t > 1)
        raise UsageError(
            f"--scheme ulysses gives each rank whole key/value heads, and there are {kv_heads}{each}, for {n} ranks:"
            f" use --cp {kv_heads} or --scheme ring"
        )


def claims(run: Run) -> list[Claim]:
    """The claims of the chapter on context parallelism itself."""
    return [
        *memory_claims(run, run.options.zero),
        *held_claims(run),
        *work_claims(run),
        *traffic_claims(run),
    ]


# ---- which rank has what ---------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A rank's part of a micro-batch."""

    b: int  # sequences
    of: Sequence[int]  # the number of positions of each rank of its group
    rank: int  # in this group
    heads: list[int]  # with Ulysses, the key/value heads of each rank in between

    @property
    def c(self) -> int:
        """The number of its positions."""
        return self.of[self.rank]


def kv_heads_of(options: Options) -> int:
    return (options.kv_heads or options.heads) if options.model == "llama" else options.heads


def parts_of(run: Asked, sequences: int) -> list[Part]:
    """Each rank's part of this number of sequences."""
    o, n = run.options, run.layout.cp
    rows = chunk_sizes(sequences, run.layout.dp)
    sizes = context.sizes(o.context, n, o.positions) if n > 1 else [o.context]
    heads = chunk_sizes(kv_heads_of(o) // run.layout.tp, n)
    return [
        Part(rows[share], sizes, place.context, heads) for share, place in zip(run.data_shares, run.places, strict=True)
    ]


def depth_of(run: Asked) -> int:
    return int(run.options.width // run.options.heads)


def group_of(run: Asked) -> int:
    """G: query heads to a key/value head."""
    return int(run.options.heads // kv_heads_of(run.options))


# ---- what is held ----------------------------------------------------------------------------------------------------


def held_claims(run: Run) -> list[Claim]:
    """What layers keep after a forward, and at most; and messages."""
    o = run.options
    recompute = "none" if o.recompute == "selective" else o.recompute
    parts = parts_of(run, o.batch // o.accumulate)
    shares = [Share(part.b, o.layers, length=part.c) for part in parts]
    of, kept = chen.after_forward(recompute, o.layers), layer_bytes(run, 1, shares, "none", o.dropout > 0)
    given = layer_bytes(run, 1, shares, "full", dropout=False)
    after = [of.inputs * x + of.layers * layer for x, layer in zip(given, kept, strict=True)]
    most = [chen.peak_bytes(recompute, o.layers, x, layer) for x, layer in zip(given, kept, strict=True)]
    counted = [counts["layer_activations"] for counts in run.counted]
    formula = "l·layer(c)" if recompute == "none" else "inputs(c)+layers(c)"
    return [
        on_each_rank("Ring Attention §3", "layers keep", formula, after, counted, "bytes"),
        on_each_rank("Chen", "layers' peak", formula, most, run.memory_of("activations"), "bytes"),
        on_each_rank("Ring Attention §3", "blocks, at most", *message_bytes(run), run.memory_of("messages"), "bytes"),
    ]


def message_bytes(run: Asked) -> tuple[str, list[float]]:
    """The most that is on its way, sent or received, at a time: a formula, and its value for each rank. Validation
    takes all sequences of a step at once, but only forward."""
    o, p = run.options, run.bytes.stored
    formula = {"ring": f"4·{2 * p}gbch", "all-gather": f"2·{2 * p}gbsh"}.get(o.scheme, f"2·{p}(1+2g)bch")
    return formula, [max(of) for of in blocks(run)]


def blocks(run: Asked) -> list[Blocks]:
    """On each rank, the most bytes on their way in a backward, and in validation."""
    o = run.options
    forward = [part.b if o.validate else 0 for part in parts_of(run, o.batch)]
    return blocks_of(run, parts_of(run, o.batch // o.accumulate), forward)


def blocks_of(run: Asked, parts: Sequence[Part], forward: Sequence[int], t: int = 1) -> list[Blocks]:
    """The blocks of these parts, if validation takes `forward` sequences on each rank. t ranks share the heads."""
    o, p, kv, d = run.options, run.bytes.stored, kv_heads_of(run.options) // t, depth_of(run)
    wide, found = d * p * (group_of(run) + 2), []
    for part, whole in zip(parts, forward, strict=True):
        if o.scheme == "ring":  # two rooms for keys and values; in the backward two more, for their gradients
            room = 2 * kv * d * p * max(part.of)
            found.append(Blocks(4 * part.b * room, 2 * whole * room))
        elif o.scheme == "all-gather":  # all keys and values; in the backward all gradients, and all sums
            room = 2 * kv * d * p * o.context
            found.append(Blocks(2 * part.b * room, whole * room))
        else:
            room = wide * (kv * part.c + part.heads[part.rank] * o.context)
            found.append(Blocks(part.b * room, whole * room))
    return found


# ---- what is computed ------------------------------------------------------------------------------------------------


def work_claims(run: Run) -> list[Claim]:
    """Pairs of a query and a key that it sees, in a forward of all layers; and when the last rank has computed them."""
    o, n = run.options, run.layout.cp
    parts, of = parts_of(run, o.batch // o.accumulate), context.pairs(o.context, n, o.positions)
    if o.scheme == "ring":
        each = [[part.b * o.heads * number for number in of[part.rank]] for part in parts]
    elif o.scheme == "all-gather":
        each = [[part.b * o.heads * sum(of[part.rank])] for part in parts]
    else:
        every = o.context * (o.context + 1) // 2
        each = [[part.b * group_of(run) * part.heads[part.rank] * every] for part in parts]
    counted = [counts["pairs"] for counts in run.counted]
    steps = len(each[0])
    formula = {"zigzag": "las(s+1)b/2N", "striped": "about the mean"}.get(o.positions, "lacb((2r+1)c+1)/2")
    made = [
        on_each_rank(
            "Striped Attention §3",
            "pairs of a rank",
            formula if o.scheme != "ulysses" else "las(s+1)b/2N",
            [o.layers * sum(work) for work in each],
            [sum(pairs) for pairs in counted],
            "pairs",
        )
    ]
    if o.scheme == "ring":
        promised = [o.layers * work[step] for work in each for step in range(steps)]
        done = [sum(pairs[step::steps]) for pairs in counted for step in range(steps)]
        made.append(on_each_rank("Striped Attention §3", "at each step", "", promised, done, "pairs"))
    groups = [each[first : first + n] for first in range(0, run.ranks, n)]
    ends = [context.end(group, o.layers) if o.scheme == "ring" else o.layers * max(map(sum, group)) for group in groups]
    last = {"contiguous": "lacb((2N-1)c+1)/2", "zigzag": "las(s+1)b/2N"}.get(o.positions, "lasb(c+1)/2")
    times = max(counts["time"] for counts in run.counted)
    formula = last if o.scheme != "ulysses" else "las(s+1)b/2N"
    return [
        *made,
        Claim("Striped Attention §3", "the last rank ends at", formula, max(ends), times, "units", "all ranks"),
    ]


# ---- what is sent ----------------------------------------------------------------------------------------------------


def context_elements(run: Asked, parts: Sequence[Part], t: int = 1) -> dict[str, tuple[str, list[float]]]:
    """For each phase a formula and, by rank, the elements for one layer: forward once, and backward. t ranks share the
    heads."""
    kv, d, g = kv_heads_of(run.options) // t, depth_of(run), group_of(run)

    def each(formula: Sequence[Sequence[float]]) -> list[float]:
        return [part.b * of[part.rank] for part, of in zip(parts, formula, strict=True)]

    if run.options.scheme == "ulysses":
        inward = each([context.positions_for_heads(part.of, part.heads, (g + 2) * d) for part in parts])
        outward = each([context.heads_for_positions(part.of, part.heads, g * d) for part in parts])
        back = each([context.positions_for_heads(part.of, part.heads, g * d) for part in parts])
        home = each([context.heads_for_positions(part.of, part.heads, (g + 2) * d) for part in parts])
        qkv, result = "(1+2g)sh(N-1)/N²", "sh(N-1)/N²"
        return {
            ALL_TO_ALL.format("before, forward"): (qkv, inward),
            ALL_TO_ALL.format("after, forward"): (result, outward),
            ALL_TO_ALL.format("after, backward"): (result, back),
            ALL_TO_ALL.format("before, backward"): (qkv, home),
        }
    passed = each([context.passed_on(part.of, kv * d) for part in parts])
    home = each([context.sent_home(part.of, kv * d) for part in parts])
    volume = "2gsh(N-1)/N"
    return {
        KEYS.format("forward"): (volume, passed),
        KEYS.format("backward"): (volume, passed),
        GRADIENTS: (volume, home),
    }


def attention_bytes(run: Asked) -> list[float]:
    """Bytes that each rank sends for the attention of all layers in a step in which no layer runs again."""
    o, p = run.options, run.bytes.stored
    phases = context_elements(run, parts_of(run, o.batch // o.accumulate)).values()
    each = [sum(elements) for elements in zip(*(of for _, of in phases), strict=True)]
    return [o.accumulate * o.layers * p * elements for elements in each]


def attention_claims(run: Run) -> tuple[list[Claim], float]:
    """Claims on attention's messages, by phase, and all ranks' bytes. Layers that run again repeat their forward."""
    o, p = run.options, run.bytes.stored
    again = chen.runs_again(o.recompute, o.layers)
    made, everything = [], 0.0
    for phase, (formula, elements) in context_elements(run, parts_of(run, o.batch // o.accumulate)).items():
        times = o.layers + again * phase.endswith("forward")
        sent = [o.accumulate * times * p * number for number in elements]
        letters = f"(l+{again})" if times > o.layers else "l"
        made.append(
            on_each_rank(SOURCES[o.scheme], phase, f"{letters}·{p}b·{formula}", sent, run.sent_in(phase), "bytes")
        )
        everything += sum(sent)
    return made, everything


def traffic_claims(run: Run) -> list[Claim]:
    """What is sent, by phase; and that nothing else is."""
    o, p, n = run.options, run.bytes.stored, run.ranks
    made, everything = attention_claims(run)
    regathered = chen.count_regathered_layers(o.recompute, o.layers) * run.model.units(n)[1]
    for phase, number in zero.volume(run.model.parameters(n), n, o.zero, o.accumulate, 0, regathered).items():
        formula = f"{p}·{'2' if 'reduce g' in phase and not o.zero else ''}Ψ(W-1)/W"
        made.append(on_each_rank("ZeRO §7", phase, formula, p * number, run.sent_in(phase), "bytes"))
        everything += n * p * number
    if o.zero:
        norm = 8 * (n - 1)
        made.append(on_each_rank("in addition", "norm of the gradient", "8(W-1)", norm, run.sent_in("norm"), "bytes"))
        everything += n * norm
    payload = sum(run.sent_by(rank) for rank in range(n))
    for name, counted in (("sent in all", payload), ("arrived in all", sum(run.received))):
        made.append(Claim("together", name, "nothing else", everything, counted, "bytes", "all ranks"))
    return made


def print_closing(run: Run) -> None:
    """The letters; the balance; and which scheme would send least."""
    o, n = run.options, run.layout.cp
    say(f"W = {run.layout.dp} data x {n} context ranks, N = {n}. s: positions, c = s/N: those of a rank; r: rank.")
    say("l: layers; b: sequences of a micro-batch; a: heads; h: width; layer(c): activations for c positions.")
    say(f"g = {kv_heads_of(o)}/{o.heads}: key/value heads to a query head.")
    if n == 1:
        say("One rank has all positions: mpirun -n 4 python -m minidist.context_parallel")
        return
    of = context.pairs(o.context, n, o.positions)
    slowest = context.end(of, 1)
    mean = sum(map(sum, of)) / n
    say(
        f"With {o.positions} positions a ring is busy {100 * mean / slowest:.1f} % of the time. Contiguous it would be"
        f" {100 * context.efficiency_contiguous(o.context / n, n):.1f} %. On 8 ranks and long sequences that is 53.3 %;"
        f" ring-flash-attention measured {', '.join(figure.printed for figure in context.MEASURED[::3])} % on 8 GPUs."
    )
    ratio = context.ulysses_over_ring(n, kv_heads_of(o) / o.heads)
    say(f"Ulysses sends {ratio:.3g} of what ring and all-gather send: (1+g)/(gN).")
