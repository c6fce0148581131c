"""The plan on the screen: 80 columns, without a package beyond the standard library."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from minidist.formulas.profile import Profile, in_words
from minidist.papers.mixed_precision import BYTES
from minidist.plan.choice import Choice, Wanted, ask
from minidist.plan.memory import Held, by_stage
from minidist.plan.orders import BUBBLES, clocked_idle, idle, splits
from minidist.plan.search import SearchResult
from minidist.plan.ties import Row
from minidist.plan.time import CEILING, Cluster
from minidist.plan.traffic import sent, share_across

GB = 10**9
DAY = 24 * 60 * 60
HEAD = " #    dp tp cp  pp  ep  order ZeRO recomp   b    GB idle  wait  tok/s  MFU"
SHORT = {"interleaved": "v{}", "llama3": "v{}*", "dualpipe": "dual", "dualpipe-v": "dual-v"}
AGAIN = {"none": "none", "selective": "core", "every:1": "all"}  # what is recomputed, in a column


def table(found: SearchResult, fit: int, wanted: Wanted, most: int, tokens: float | None) -> Iterator[str]:
    """The first rows, each with its best number of chunks; how many layouts fit, and why others do not."""
    yield HEAD + "  days" * bool(tokens)
    for number, row in enumerate(found.rows[:most], start=1):
        yield line(number, row, wanted, tokens)
    total = fit + sum(found.left_out.values())
    yield f"\n{total:,} layouts are possible; {fit:,} fit: {len(found.rows):,} rows, each with its best chunks."
    for reason, count in found.left_out.most_common():
        yield f"{count:>12,}  {reason}"


def line(number: int, row: Row, wanted: Wanted, tokens: float | None) -> str:
    """A row of the table."""
    at, time = row.choice, row.seconds
    m, order = at.micro_batches(wanted.batch), SHORT.get(at.schedule, at.schedule).format(at.chunks)
    order = order if at.pp > 1 else "-"
    again, zero = AGAIN[at.recompute], f"{at.zero}" + (f"/{at.dp // at.hosts}" if at.hosts > 1 else "")
    waits = time.tensor + time.context + time.experts + time.pipeline + time.data
    sizes = f"{number:2} {at.dp:5} {at.tp:2} {at.cp:2} {at.pp:3} {at.ep:3} {order:>6} {zero:>4} {again:>6}"
    by_clock = at.pp == 1 or math.isclose(clocked_idle(at, m), idle(at.schedule, at.pp, m, at.chunks))
    shares = f"{100 * time.bubble / time.step:4.1f}{' ' if by_clock else '!'} {100 * waits / time.step:4.1f}"
    days = f" {tokens / row.tokens / DAY:5.1f}" if tokens else ""
    held = row.held.total / GB
    return f"{sizes} {at.rows:3} {held:5.1f} {shares} {count(row.tokens):>6} {100 * row.mfu:4.1f}{days}"


def count(value: float) -> str:
    """Three digits and a letter: 2.95M."""
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if value >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


LEGEND = (
    "dp, tp, cp, pp: data, tensor, context ranks and stages. Of dp·cp ranks, ep share the experts. The order is the "
    "pipeline's schedule; vN: interleaved, N chunks to a stage; vN*: the same in Llama 3's groups, where p does not "
    "divide m; dual: DualPipe. ZeRO: its stage; 3/G: sharded over G ranks of a host. recomp: what is recomputed in "
    "the backward; core: attention's. b: sequences of a micro-batch. GB: of the fullest rank. idle: the bubble, by "
    "formula; each row is run on its schedule's clock, and gets a ! if that differs. "
    "wait: messages not hidden behind computation. Both are in % of the step."
)


def assumed(profile: Profile, cluster: Cluster) -> str:
    """What the column of memory assumes, and what is left free."""
    text = f"Memory by the profile {profile.name}: {in_words(profile.values)}. "
    if profile.name == "paper":
        return text + (
            "A pipeline's messages are not in it. With context ranks it is a bound. A run by --check has the same"
            " formulas."
        )
    free = f"{cluster.reserve / GB:g} GB of a device are left for what an allocator keeps, the CUDA context and NCCL"
    return (
        text + f"{free} (--reserve). A run by --check has the profile paper, with these gradients and this attention."
    )


def explain(row: Row, wanted: Wanted, cluster: Cluster, tokens: float | None) -> Iterator[str]:
    """Every term of a row, with its formula and section."""
    at, held, time = row.choice, row.held, row.seconds
    m = at.micro_batches(wanted.batch)
    words = f"dp {at.dp} x tp {at.tp} x cp {at.cp} x pp {at.pp}"
    words += f", {at.schedule}, v {at.chunks}" * (at.pp > 1) + f", ep {at.ep}" * (at.ep > 1)
    yield wrapped(f"{words}, ZeRO-{at.zero}, recompute {at.recompute}, b {at.rows}, m {m}")
    yield "\nMemory of the fullest rank, GB (10⁹ bytes)"
    for kind, told in (memory_words(wanted, at) | system_words(wanted, held)).items():
        if nbytes := getattr(held, kind):
            yield term(told.what, told.formula, nbytes, told.source)
    free = f" - {cluster.reserve / GB:g} in reserve" * bool(cluster.reserve)
    yield term("peak", f"of {cluster.memory / GB:g}{free}", held.total, "")
    yield from stages(wanted, at)
    yield from traffic(row, wanted, cluster)
    yield "\nTime of a step, in seconds: a model"
    useful = f"(6N+12LHQT)/({cluster.ceiling:g} of peak)"
    yield spent("work, slowest stage", useful, time.work, "PaLM App. B")
    if at.recompute != "none":
        again = {"selective": "4bs²h a layer", "every:1": "a forward"}[at.recompute]
        yield spent("recomputation", again, time.again, "Korthikanti §5")
    if at.pp > 1:
        bubble, source = BUBBLES.get(at.schedule, ("(p-1)/(vm)", "PTD §2.2"))
        yield spent("bubble", f"{bubble} = {idle(at.schedule, at.pp, m, at.chunks):.4f}", time.bubble, source)
    for name, ranks, formula, source in (
        ("tensor", at.tp, "α, n/β; not hidden", "PTD §3.2"),
        ("context", at.cp, "not hidden by attention", "Ring Attention §3"),
        ("experts", at.ep, "α, n/β; not hidden", "GShard §3"),
        ("pipeline", at.pp, "while it fills and drains", "PTD §3.2"),
        ("data", at.dp * at.cp, "not hidden by backward", "FSDP §3.3.2"),
    ):
        if ranks > 1:
            yield spent(f"waits: {name}", formula, getattr(time, name), source)
    yield spent("step", "", time.step, "")
    if at.pp > 1:
        by_clock = clocked_idle(at, m)
        yield f"  the bubble by the schedule's own clock: {by_clock:.4f} of the work"
    yield f"\n{row.tokens:,.0f} tokens a second, MFU {100 * row.mfu:.1f} %"
    if tokens:
        yield f"{tokens / row.tokens / DAY:,.1f} days for {count(tokens)} tokens"
    yield "\n" + wrapped(SYMBOLS)


SYMBOLS = (
    "Ψr: parameters of the rank's part of the model. Ψe: of its experts. G: ranks over which states are sharded. W: "
    "all dp·cp ranks. t, N, P: tensor, context, expert ranks. b: sequences of a micro-batch. s: tokens of a sequence. "
    "c: those on one context rank. h: width. V: vocabulary. g: heads of keys, as a part of all heads. k: experts of a "
    "token. cf: their capacity. m: micro-batches."
)


class Words(NamedTuple):
    """What a figure is, its formula, and the formula's source."""

    what: str
    formula: str
    source: str


def memory_words(wanted: Wanted, at: Choice) -> dict[str, Words]:
    """The words for each kind of memory, by its name in `Held`."""
    g = at.dp // at.hosts * at.cp
    asked = ask(wanted, at)
    p, grad, k = asked.bytes.stored, asked.gradient_bytes, asked.optimizer_bytes
    waiting = ("one layer's peak + waiting", "Korthikanti §4")
    if splits(at.schedule):
        waiting = ("those before B, before W", "ZB table 1")
    return {
        "parameters": Words("parameters", f"{p}Ψr{divided(at, 3, g)}", "ZeRO §5.3"),
        "gradients": Words("gradients", f"{grad}Ψr{divided(at, 2, g)}", "ZeRO §5.2"),
        "optimizer": Words("optimizer states", f"{k}Ψr{divided(at, 1, g)}", "ZeRO §5.1"),
        "passing": Words("transient units", "gathered + summed units", "ZeRO §5.3"),
        "activations": Words("activations of layers", *waiting),
        "ends": Words("embedding, head, loss", "2·2bsh + 4bsV/t, likewise", "Korthikanti §4.3"),
        "messages": Words("keys, values sent", "4·2·2gbch", "Ring Attention §3"),
    }


def system_words(wanted: Wanted, held: Held) -> dict[str, Words]:
    """The words for what a system holds in another way."""
    if wanted.profile.name == "paper":
        return {}
    p = BYTES[wanted.precision].stored
    each = p if wanted.profile.loss == "fused" else p + 4
    return {
        "stand_ins": Words("stand-in gradients", f"{p} · one of each shape", "TE module/base.py"),
        "workspaces": Words("workspaces, positions", "32 + 16¼ MiB, 4c·width", "TE gemm.py"),
        "activations": Words("activations of layers", "micro-batches in flight", "Korthikanti §4"),
        "ends": Words("logits, last norm", f"{each}bcV/t + {2 * p}bch/t", "TE cross_entropy.py"),
        "transient": Words("of the moment", MOMENTS.get(held.moment, held.moment), "Megatron layers.py"),
    }


MOMENTS = {  # of `formulas/system_layers.py`, in the table's column
    "head": "head, backward",
    "activation": "SwiGLU or GELU, backward",
    "fc1": "fc1, backward",
    "fc2": "fc2, backward",
    "attention": "attention, backward",
    "embedding": "embedding, backward",
    "experts' activation": "experts' SwiGLU, backward",
}


def stages(wanted: Wanted, at: Choice) -> Iterator[str]:
    """What each stage of a pipeline holds, in GB."""
    if at.pp == 1:
        return
    yield "\n stage states stand-ins layers  head transient   total  fullest moment"
    for stage, of in enumerate(by_stage(ask(wanted, at))):
        kinds = of.states, of.stand_ins, of.activations, of.ends, of.transient
        states, stand_ins, layers, head, transient = (f"{nbytes / GB:.2f}" for nbytes in kinds)
        sizes = f"{stage:6} {states:>6} {stand_ins:>9} {layers:>6} {head:>5} {transient:>9} {of.total / GB:7.2f}"
        yield f"{sizes}  {MOMENTS.get(of.moment, of.moment)}".rstrip()


def divided(at: Choice, stage: int, g: int) -> str:
    return f"/{g}" if at.zero >= stage and g > 1 else ""


def term(what: str, formula: str, nbytes: float, source: str) -> str:
    return f"  {what:21} {formula:27} {nbytes / GB:8.3f} {source}".rstrip()


def spent(what: str, formula: str, seconds: float, source: str) -> str:
    return f"  {what:21} {formula:27} {seconds:8.3f} {source}".rstrip()


DATA = ("2", "2", "(m+1)", "3m")  # by ZeRO's stage


def traffic(row: Row, wanted: Wanted, cluster: Cluster) -> Iterator[str]:
    """What a rank sends along each axis, within its host and across."""
    yield "\nA rank sends in a step, GB               in host   across"
    for words, near, away in sent_along(row.choice, wanted, cluster.per_host):
        yield f"  {words.what:9} {words.formula:27} {near / GB:8.3f} {away / GB:8.3f}  {words.source}".rstrip()


def sent_along(at: Choice, wanted: Wanted, per_host: int) -> Iterator[tuple[Words, float, float]]:
    """Each axis that is used, and the bytes that the busiest rank sends on it in a step: in its host, and across."""
    asked = ask(wanted, at)
    again = at.recompute == "every:1"
    words = {
        "tensor": ("8bsh(t-1)/t a layer", "PTD §3.2"),
        "context": ("3·2gbsh(N-1)/N a layer", "Ring Attention §3"),
        "experts": (f"{6 if again else 4}k·cf·bsh(P-1)/P a layer", "GShard §3"),
        "pipeline": ("bsh a boundary, both ways", "PTD §3.2"),
        "data": (f"{DATA[at.zero]}Ψr(G-1)/G", "ZeRO §7"),
        "copies": (f"{DATA[at.zero]}Ψe(G-P)/G", "DeepSpeed-MoE §4"),
        "hosts": ("2Ψr(W-G)/(GW)", "FSDP §3.2.2"),
        "tied": ("the embedding's gradient", "PTD §3"),
        "rest": ("norms; gradients of norms", ""),
    }
    for axis, of_axis in sent(asked).items():
        if most := max(of_axis.nbytes):
            away = most * share_across(asked.layout, axis, per_host, wanted.scheme)
            yield Words(axis, *words[axis]), most - away, away


def as_json(row: Row, wanted: Wanted, cluster: Cluster) -> dict[str, Any]:
    """A row for machines."""
    asked = ask(wanted, row.choice)
    along = {
        axis: {"bytes": max(of.nbytes), "across": share_across(asked.layout, axis, cluster.per_host, wanted.scheme)}
        for axis, of in sent(asked).items()
        if any(of.nbytes)
    }
    return {
        **vars(row.choice),
        "micro_batches": row.choice.micro_batches(wanted.batch),
        "memory": {**row.held._asdict(), "stages": [of._asdict() for of in by_stage(asked)]},
        "profile": {"name": wanted.profile.name, **wanted.profile.values, "reserve": cluster.reserve},
        "sent": along,
        "seconds": {**row.seconds._asdict(), "step": row.seconds.step},
        "tokens_per_second": row.tokens,
        "mfu": row.mfu,
    }


def wrapped(text: str) -> str:
    return textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)


def compared(rows: Sequence[Any]) -> Iterator[str]:
    """The table of a check: formula, counted, difference."""
    yield f"  {'bytes':24} {'formula':>16} {'counted':>16} {'difference':>12}"
    for row in rows:
        digits = 0 if row.counted == round(row.counted) else 2  # a part of a micro-batch's chunks are in flight
        yield f"  {row.what:24} {row.formula:16,.{digits}f} {row.counted:16,.{digits}f} {row.difference:12,.{digits}f}"


ASSUMED = f"Times are a model's: a device reaches {CEILING:.0%} of its peak (--ceiling); bytes and bubbles are exact."
