"""What the papers say about context parallelism, next to what a run computed, held and sent."""

from dataclasses import replace

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import letters_in
from minidist.claims.promises import Promises
from minidist.claims.run import Run, nothing_else
from minidist.claims.zero import memory_claims
from minidist.cli.tables import say
from minidist.formulas.activations import all_keep
from minidist.formulas.asked import Asked
from minidist.formulas.context import blocks, heads_and_depth
from minidist.formulas.needs import needs
from minidist.formulas.shares import parts_of, shares_of
from minidist.formulas.volumes import context_volumes, data_elements
from minidist.papers import chen, context


def claims(run: Run) -> list[Claim]:
    """The claims of the chapter on context parallelism itself."""
    return [*memory_claims(run, run.zero), *held_claims(run), *work_claims(run), *traffic_claims(run)]


# ---- what is held ----------------------------------------------------------------------------------------------------


def held_claims(run: Run) -> list[Claim]:
    """What layers keep after a forward, and at most; and messages."""
    kept, counted = all_keep(run, shares_of(run)), [counts["layer_activations"] for counts in run.counted]
    after, most = [of.after for of in kept], [of.most for of in kept]
    formula = "l·layer(c)" if run.recompute in ("none", "selective") else "inputs(c)+layers(c)"
    p, way = run.bytes.stored, [max(of) for of in blocks(run, validates=run.validate > 0)]
    of_blocks = {"ring": f"4·{2 * p}gbch", "all-gather": f"2·{2 * p}gbsh"}.get(run.attention, f"2·{p}(1+2g)bch")
    return [
        on_each_rank("Ring Attention §3", "layers keep", formula, after, counted, "bytes"),
        on_each_rank("Chen", "layers' peak", formula, most, run.memory_of("activations"), "bytes"),
        on_each_rank("Ring Attention §3", "blocks, at most", of_blocks, way, run.memory_of("messages"), "bytes"),
    ]


# ---- what is computed ------------------------------------------------------------------------------------------------


def work_claims(run: Run) -> list[Claim]:
    """Pairs of a query and a key that it sees, in a forward of all layers; and when the last rank has computed them."""
    n, (_, _, group) = run.layout.cp, heads_and_depth(run)
    parts, of = parts_of(run, run.micro_batch), context.pairs(run.context, n, run.positions)
    if run.attention == "ring":
        each = [[part.b * run.model.a * number for number in of[part.rank]] for part in parts]
    elif run.attention == "all-gather":
        each = [[part.b * run.model.a * sum(of[part.rank])] for part in parts]
    else:
        every = run.context * (run.context + 1) // 2
        each = [[part.b * group * part.heads[part.rank] * every] for part in parts]
    counted = [counts["pairs"] for counts in run.counted]
    steps = len(each[0])
    source, formula = "Striped Attention §3", "las(s+1)b/2N"
    if run.attention != "ulysses":
        formula = {"zigzag": formula, "striped": "about the mean"}.get(run.positions, "lacb((2r+1)c+1)/2")
    promised, done = [run.model.layers * sum(work) for work in each], [sum(pairs) for pairs in counted]
    made = [on_each_rank(source, "pairs of a rank", formula, promised, done, "pairs")]
    if run.attention == "ring":
        promised = [run.model.layers * work[step] for work in each for step in range(steps)]
        done = [sum(pairs[step::steps]) for pairs in counted for step in range(steps)]
        made.append(on_each_rank(source, "at each step", "", promised, done, "pairs"))
    groups = [each[first : first + n] for first in range(0, run.ranks, n)]
    ends = [
        context.end(group, run.model.layers) if run.attention == "ring" else run.model.layers * max(map(sum, group))
        for group in groups
    ]
    last = {"contiguous": "lacb((2N-1)c+1)/2", "zigzag": "las(s+1)b/2N"}.get(run.positions, "lasb(c+1)/2")
    times = max(counts["time"] for counts in run.counted)
    formula = last if run.attention != "ulysses" else "las(s+1)b/2N"
    return [*made, Claim(source, "the last rank ends at", formula, max(ends), times, "units", "all ranks")]


# ---- what is sent ----------------------------------------------------------------------------------------------------


def attention_bytes(run: Asked) -> list[float]:
    """Bytes that each rank sends for the attention of all layers in a step in which no layer is recomputed."""
    alike = replace(run, recompute="none")
    sent: list[float] = [0] * run.ranks
    for volume in context_volumes(alike, shares_of(alike)):
        sent = [n + volume.times * volume.width * more for n, more in zip(sent, volume.elements, strict=True)]
    return sent


def attention_claims(run: Run) -> tuple[list[Claim], float]:
    """Claims on attention's messages, by phase, and all ranks' bytes. Recomputed layers repeat their forward."""
    p, again = run.bytes.stored, chen.runs_again(run.recompute, run.model.layers)
    made, everything = [], 0.0
    for volume in context_volumes(run, shares_of(run)):
        formula = volume.formula.replace("r)", f"{again})").replace("b·", f"·{p}b·", 1)
        sent = [volume.times * p * number for number in volume.elements]
        made.append(on_each_rank(volume.source, volume.name, formula, sent, run.sent_in(volume.name), "bytes"))
        everything += sum(sent)
    return made, everything


def traffic_claims(run: Run) -> list[Claim]:
    """What is sent, by phase; and that nothing else is."""
    n = run.ranks
    made, everything = attention_claims(run)
    for phase, number in data_elements(run, 0).items():
        p = run.width(phase)
        formula = f"{p}·{'2' if 'reduce g' in phase and not run.zero else ''}Ψ(W-1)/W"
        made.append(on_each_rank("ZeRO §7", phase, formula, p * number, run.sent_in(phase), "bytes"))
        everything += n * p * number
    if run.zero:
        norm = 8 * (n - 1)
        made.append(on_each_rank("in addition", "norm of the gradient", "8(W-1)", norm, run.sent_in("norm"), "bytes"))
        everything += n * norm
    return [*made, *nothing_else(run, everything)]


def print_closing(run: Run) -> None:
    """The balance, and which scheme would send least."""
    n = run.layout.cp
    if n == 1:
        say("One rank has all positions: mpirun -n 4 python -m minidist.context_parallel")
        return
    of = context.pairs(run.context, n, run.positions)
    slowest = context.end(of, 1)
    mean = sum(map(sum, of)) / n
    say(
        f"With {run.positions} positions a ring is busy {100 * mean / slowest:.1f} % of the time. Contiguous it would"
        f" be {100 * context.efficiency_contiguous(run.context / n, n):.1f} %. On 8 ranks and long sequences that is"
        " 53.3 %;"
        f" ring-flash-attention measured {', '.join(figure.printed for figure in context.MEASURED[::3])} % on 8 GPUs."
    )
    ratio = context.ulysses_over_ring(n, run.model.kv / run.model.a)
    say(f"Ulysses sends {ratio:.3g} of what ring and all-gather send: (1+g)/(gN).")


PROMISES = Promises(claims=claims, letters=letters_in("context_parallel"), needs=needs, closing=print_closing)
