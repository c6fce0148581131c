"""A row scaled down and run: what ranks hold and send, next to the formulas. The difference must be zero.

The model becomes tiny: its width, heads, vocabulary and context are the smallest that the row's axes divide. The layout
stays as it is, if as many ranks can run here. Otherwise the longest axis is halved until they can. Ranks take turns in
one process (`minidist/exchange/one_process.py`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from minidist.engine import Settings
from minidist.exchange.one_process import run_ranks
from minidist.formulas.profile import PAPER
from minidist.memory.pool import NEEDED
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.llama import LlamaConfig, llama
from minidist.nn.mixture import Routing, with_experts
from minidist.nn.precision import precision
from minidist.papers import pipelines
from minidist.parallel3d import grid
from minidist.pipeline import Pipeline
from minidist.plan import show
from minidist.plan.choice import Choice, Wanted, ask, divides
from minidist.plan.memory import held
from minidist.plan.orders import splits
from minidist.plan.ties import Row
from minidist.plan.traffic import sent, share_across
from minidist.pp.schedules import SCHEDULES
from minidist.text.data import Sequences

MOST = 32  # ranks that run here: up to 128 are tested
KINDS = {  # of memory: the formulas' names, and the pools'
    **{kind: kind for kind in ("parameters", "gradients", "optimizer", "activations", "ends", "messages")},
    "passing": "transient",
}


class Compared(NamedTuple):
    """A quantity by formula, and as ranks have counted it."""

    what: str
    formula: float
    counted: float

    @property
    def difference(self) -> float:
        return self.counted - self.formula


class RankCounts(NamedTuple):
    """What one rank has held at most, by kind, and what it has sent in a step: by phase and peer."""

    memory: Mapping[str, int]
    sent: Mapping[tuple[str, int], int]
    flying: int = 0  # in a pipeline: (chunks of) micro-batches in flight


def run(wanted: Wanted, choice: Choice) -> list[RankCounts]:
    """Train two steps on ranks of one process; returns what each rank has counted in the second."""

    def be_rank(comm: Comm) -> RankCounts:
        return train(comm, wanted, choice)

    return run_ranks(be_rank, choice.ranks)


def train(comm: Comm, wanted: Wanted, choice: Choice) -> RankCounts:
    """Train two steps on one rank, of MPI or of this process. Tokens are random: bytes do not depend on them."""
    layout = choice.layout(wanted)
    stored = precision("mixed" if wanted.precision == "bf16" else wanted.precision)  # float16 has as many bytes
    if wanted.profile.grad_dtype == "fp32":
        stored = replace(stored, gradient=np.float32)
    tiled = wanted.profile.attention == "tiled"
    settings = Settings(precision=stored, accumulate=layout.micro_batches, recompute=choice.recompute, tiled=tiled)
    sequence = wanted.sequence and choice.tp > 1
    driver = grid(declare(wanted), settings, comm, layout, choice.zero, sequence, wanted.scheme)
    for step in range(2):
        comm.ledger.reset()
        starts, size = (wanted.context + 1) * np.arange(wanted.batch), wanted.batch * (wanted.context + 1)
        text = np.random.default_rng(step).integers(0, wanted.model.v, size, np.int32)
        driver.train_batch(*(Sequences(text, starts + shift, wanted.context) for shift in (0, 1)))
    flying = driver.in_flight.most["in_flight"] if isinstance(driver, Pipeline) else 0
    return RankCounts(
        driver.engine.peak_bytes(), {key: nbytes for key, (nbytes, _) in comm.ledger.sent.items()}, flying
    )


def declare(wanted: Wanted) -> list[Unit]:
    """The model's units."""
    of = wanted.model
    if of.name == "gpt":
        units = gpt(GPTConfig(of.v, wanted.context, of.layers, of.a, of.h, tied=of.tied))
    else:
        units = llama(LlamaConfig(of.v, wanted.context, of.layers, of.a, of.kv, of.h, of.mlp_width, tied=of.tied))
    return with_experts(units, of.experts, Routing(of.top, wanted.capacity, 0.0)) if of.experts else units


def compare(wanted: Wanted, choice: Choice, ranks: list[RankCounts], per_host: int = 0) -> list[Compared]:
    """Memory by kind, on the rank that differs most from its formula; then the bytes that all ranks send, by axis, and
    those of no axis. per_host: ranks of a host; if given, also the bytes that leave one."""
    asked = ask(wanted, choice, every_rank=True)
    formulas, words, found = held(asked), show.memory_words(wanted, choice), []
    for kind, name in KINDS.items():
        if kind == "messages" and choice.pp > 1:  # no formula says when MPI lets a buffer go
            continue
        pairs = [(getattr(of, kind), rank.memory[name]) for of, rank in zip(formulas, ranks, strict=True)]
        found.append(farthest(words[kind].what, pairs))
    if choice.pp == choice.cp == 1:  # otherwise messages have their own peak, and the sum is only a bound
        pairs = [(of.total, rank.memory[NEEDED]) for of, rank in zip(formulas, ranks, strict=True)]
        found.append(farthest("peak", pairs))
    if choice.pp > 1:
        sizes, v = (choice.schedule, choice.pp, asked.layout.micro_batches), choice.chunks
        promised = [pipelines.in_flight(*sizes, stage, v, asked.layout.contiguous) for stage in asked.stages]
        flying = [(n / v, rank.flying / v) for n, rank in zip(promised, ranks, strict=True)]
        found.append(farthest("micro-batches in flight", flying))
    left, across = Counter[str](), Counter[str]()
    for number, rank in enumerate(ranks):
        for (phase, peer), nbytes in rank.sent.items():
            left[phase] += nbytes
            across[phase] += nbytes * (per_host > 0 and number // per_host != peer // per_host)
    along = sent(asked)
    for axis, of_axis in along.items():
        if axis == "copies":  # in the phases of "data"
            continue
        everything = {one: sum(along[one].nbytes) for one in ("data", "copies") if axis == "data"}
        everything = everything or {axis: sum(of_axis.nbytes)}
        found.append(Compared(axis, sum(everything.values()), sum(left.pop(phase, 0) for phase in {*of_axis.phases})))
        if per_host and axis in ("tensor", "context", "experts", "pipeline", "data", "hosts"):
            leaves = sum(n * share_across(asked.layout, one, per_host, wanted.scheme) for one, n in everything.items())
            found.append(Compared(f"{axis}, to other hosts", leaves, sum(across[phase] for phase in {*of_axis.phases})))
    return [*found, Compared("of no axis", 0, sum(left.values()))]


def farthest(what: str, pairs: Iterable[tuple[float, float]]) -> Compared:
    """The formula and the count of the rank on which they differ most; if none do, the largest."""
    return Compared(what, *max(pairs, key=lambda pair: (abs(pair[1] - pair[0]), pair[0])))


def scaled(wanted: Wanted, choice: Choice, most: int = MOST) -> tuple[Wanted, Choice]:
    """The row for a tiny model, on at most `most` ranks: the longest axis is halved until that fits. With hybrid
    sharding, the data axis keeps its hosts as long as it can."""
    parts, ends = choice.pp * choice.chunks, (choice.first, choice.last)
    usual, uneven = wanted.model.layers / parts, ends == (None, None) and not divides(wanted.model.layers, parts)
    more = [None if n is None else (n > usual) - (n < usual) for n in ends]
    while choice.ranks > most:
        axis = max(("dp", "pp", "cp", "tp"), key=lambda name: getattr(choice, name))
        size = getattr(choice, axis)
        fewer = -(-size // 2)
        choice = replace(choice, **{axis: fewer})
        if axis == "dp" and choice.hosts > 1:
            choice = replace(choice, hosts=max(n for n in range(1, choice.hosts + 1) if fewer % n == 0))
    if choice.hosts == choice.dp > 1:  # a copy on each rank is data parallelism
        choice = replace(choice, hosts=choice.dp // min(n for n in range(2, choice.dp + 1) if choice.dp % n == 0))
    if choice.pp == 1:
        choice = replace(choice, schedule="1f1b", chunks=1)
    elif choice.pp % SCHEDULES[choice.schedule].stages_in:  # for example 3 stages, from 6
        choice = replace(choice, pp=choice.pp + 1)
    ep = max(n for n in range(1, choice.ep + 1) if math.gcd(choice.ep, choice.dp // choice.hosts * choice.cp) % n == 0)
    chunks = min(choice.chunks, 3)  # a first chunk, one between, a last one
    each = layers_of_chunk(choice.pp * chunks)
    first, last = (None if n is None or choice.pp == 1 else each + n for n in more)
    choice = replace(choice, chunks=chunks, rows=1, ep=ep, first=first, last=last)
    return tiny(wanted, choice, uneven), choice


def layers_of_chunk(chunks: int) -> int:
    """One or two: for each of this many chunks of a tiny model."""
    return 2 if chunks <= 8 else 1


def tiny(wanted: Wanted, choice: Choice, uneven: bool = False) -> Wanted:
    """A tiny model that the row's axes divide, with micro-batches for each stage. uneven: with one layer more."""
    of, chunks = wanted.model, choice.pp * choice.chunks
    group = of.a // of.kv
    kv = choice.tp * (choice.cp if wanted.scheme == "ulysses" else 1)
    heads = kv * min(group, 4)
    context = 2 * choice.cp * choice.tp
    given = [end for end in (choice.first, choice.last) if end is not None]
    layers = (chunks - len(given)) * layers_of_chunk(chunks) + sum(given) + uneven
    shared, f = kv if group > 1 else heads, 6 * choice.tp * (of.name == "llama")
    experts, top = (2 * choice.ep, min(of.top, 2)) if of.experts else (0, 1)
    model = replace(
        of, v=11, s=context, h=4 * heads, layers=layers, a=heads, kv=shared, f=f, experts=experts, top=top, other=None
    )
    m = choice.pp * (2 if choice.pp <= 4 or splits(choice.schedule) else 1) if choice.pp > 1 else 2
    m += choice.schedule == "llama3"
    return replace(wanted, model=model, batch=choice.dp * m, context=context)


def on_ranks(wanted: Wanted) -> Wanted:
    """The same with what the chapters hold: of a system's assumptions, they know two."""
    of = wanted.profile
    return replace(wanted, profile=replace(PAPER, grad_dtype=of.grad_dtype, attention=of.attention))


def report(wanted: Wanted, row: Row, quiet: bool = False) -> int:
    """Run a row, and print what was counted; 1 if anything differs from its formula."""
    of = wanted.profile
    small, choice = scaled(on_ranks(wanted), row.choice)
    per_host = 2 if choice.ranks % 2 == 0 else 0
    rows = compare(small, choice, run(small, choice), per_host)
    if not quiet:
        hosts = f", {per_host} to a host" if per_host else ""
        words = f"dp {choice.dp} x tp {choice.tp} x cp {choice.cp} x pp {choice.pp}, ep {choice.ep}, {choice.schedule}"
        model = small.model
        sizes = [len({*part} - {0, model.layers + 1}) for part in choice.parts(model.layers)]
        layers = f"{model.layers}" if len({*sizes}) == 1 else "+".join(map(str, sizes))
        text = (
            f"Run on {choice.ranks} ranks, in one process{hosts}: {words}, v {choice.chunks}, ZeRO-{choice.zero},"
            f" recompute {choice.recompute}, gradients {of.grad_dtype}, attention {of.attention}; {layers} layers,"
            f" {model.h} wide, {small.batch} sequences of {small.context}."
        ) + " Its layers are not this model's own, but a Llama's or a GPT's." * (wanted.model.other is not None)
        print(show.wrapped(text) + "\n")
        print("\n".join(show.compared([row for row in rows if row.formula or row.counted])))
        wrong = sum(bool(one.difference) for one in rows)
        print(f"\n{len(rows) - wrong} of {len(rows)} agree to the byte.")
    return 1 if any(one.difference for one in rows) else 0
