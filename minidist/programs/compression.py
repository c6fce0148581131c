"""Compressed gradients as a program: its options, and what the papers say of its runs."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from minidist import UsageError, compression
from minidist.cli.fields import flag, option, whole
from minidist.cli.options import within
from minidist.cli.shared import Line
from minidist.command import Job
from minidist.compression import Compressed, Compressor, LowRank, OneBitAdam, sum_largest, sum_signs
from minidist.layout import Layout
from minidist.nn.flat import Flat
from minidist.nn.layers import Tokens, micro_batches
from minidist.nn.optim import SGD
from minidist.nn.tensor import Array
from minidist.papers import compression as paper
from minidist.programs.chapter import Chapter
from minidist.programs.serial import Serial, Shares

NAMES = ("sign", "topk", "lowrank")
EPS = 1e-4  # Adam's ε: after few steps of Adam, a variance below ε² says nothing


@dataclass(frozen=True, kw_only=True)
class CompressionOptions:
    compressor: str = option("sign", None, "NAME", "sign, topk or lowrank", ("--with",), choices=NAMES)
    freeze_step: int | None = whole("N", "sign: steps of Adam before; default: 15 in 100")
    density: float = option(0.01, within(1e-6, 1), "X", "topk: the share of all elements that a rank sends")
    rank: int = whole("R", "lowrank: columns of P and Q", 2)
    no_feedback: bool = flag("forget what is not sent")


# ---- the chapter's engine, counted -----------------------------------------------------------------------------------


class Counting(Compressed):
    """The same, which also adds up what is put in, and the sums that come out: numbers whose sums must agree."""

    put = sum = size = 0.0

    def send(self, flat: Flat, x: Array) -> tuple[Array, Array]:
        if not self.put:  # what a checkpoint had left
            self.put += self.left
        self.put += float(x.sum(dtype=np.float64))
        total, sent = super().send(flat, x)
        self.sum += float(total.sum(dtype=np.float64))
        self.size += float(abs(total).sum(dtype=np.float64))
        return total, sent

    @property
    def left(self) -> float:
        return sum(float(flat.own["error"].sum(dtype=np.float64)) for flat in self.flats if self.feedback)


# ---- one process -----------------------------------------------------------------------------------------------------


class Compressing(Shares):
    """Serial training whose shares have a velocity and an error each."""

    def __init__(self, job: Job[CompressionOptions], n: int) -> None:
        super().__init__(job, n)
        self.of, self.momentum = job.own, momentum_of(job)
        self.gradients, self.own = dict[Flat, list[Array]](), dict[tuple[str, Flat], list[Array]]()

    @property
    def dense(self) -> bool:
        return self.steps < (self.of.freeze_step or 0)

    def train_batch(self, x: Tokens, y: Tokens) -> float:
        if self.dense:
            return super().train_batch(x, y)
        loss, self.gradients = self.by_share(enumerate(micro_batches(x, y, self.settings.accumulate)))
        self.apply_gradients()
        return loss

    def squared_norm(self) -> float:
        return super().squared_norm() if self.dense else sum(map(sum, zip(*self.squares_of_shares(), strict=True)))

    def squares_of_shares(self) -> list[list[float]]:
        """By Flat and share."""
        return [[float(g @ g) for g in gradients] for gradients in self.gradients.values()]

    def kept(self, name: str, flat: Flat) -> list[Array]:
        return self.own.setdefault((name, flat), [np.zeros(flat.size) for _ in range(self.n)])

    def update(self, flat: Flat, grad: Array, scale: float) -> None:
        if self.dense:
            return super().update(flat, grad, scale)
        norms = np.sqrt(np.sum(self.squares_of_shares(), axis=0))
        most = self.settings.clip / math.sqrt(self.n) if self.settings.clip else math.inf
        shares = [g * min(1, most / norm) for g, norm in zip(self.gradients[flat], norms, strict=True)]
        optimizer = self.settings.optimizer
        if isinstance(optimizer, OneBitAdam):
            shares = [(1 - optimizer.beta1) * g + optimizer.beta1 * flat.moments[0] / self.n for g in shares]
        if self.momentum:
            shares = [self.momentum * u + g for u, g in zip(self.kept("u", flat), shares, strict=True)]
            self.own["u", flat] = shares
        errors = self.kept("e", flat)
        given = [x + e for x, e in zip(shares, errors, strict=True)]
        total, sent = {"sign": self.signs, "topk": self.largest, "lowrank": self.low_rank}[self.of.compressor](
            flat, given
        )
        if not self.of.no_feedback:
            self.own["e", flat] = [x - s for x, s in zip(given, sent, strict=True)]
        if self.momentum:
            self.own["u", flat] = [np.where(s, 0, u) for u, s in zip(shares, sent, strict=True)]
        if isinstance(optimizer, OneBitAdam):
            lr, (m, v) = self.settings.learning_rate(self.updates), flat.moments
            m[...] = total * (np.sqrt(v) > optimizer.eps)
            flat.master[: flat.decayed] *= 1 - lr * optimizer.weight_decay
            flat.master -= lr * m / (np.sqrt(v) + optimizer.eps)
        else:
            super().update(flat, total, 1.0)

    def signs(self, flat: Flat, given: list[Array]) -> tuple[Array, list[Array]]:
        sent = [one_value(x) for x in given]
        exact, c = np.sum(sent, axis=0), math.ceil(flat.size / self.n)
        chunks = [slice(i * c, (i + 1) * c) for i in range(self.n) if i * c < flat.size]
        total = np.concatenate([one_value(exact[each]) for each in chunks])
        for each, s in zip(chunks, sent, strict=False):
            s[each] += total[each] - exact[each]
        return total, sent

    def largest(self, flat: Flat, given: list[Array]) -> tuple[Array, list[Array]]:
        k = math.ceil(self.of.density * flat.size)
        sent = [np.where(abs(x) >= np.sort(abs(x))[-k], x, 0) for x in given]
        return np.sum(sent, axis=0), sent

    def low_rank(self, flat: Flat, given: list[Array]) -> tuple[Array, list[Array]]:
        sent = [x.copy() for x in given]
        for i, (parameter, whole_of) in enumerate(flat.views(np.sum(given, axis=0))):
            x, r = whole_of.reshape(len(whole_of), -1), self.of.rank
            if whole_of.ndim > 1 and r * sum(x.shape) < x.size:
                start = LowRank(r, self.settings.seed).start(parameter.name, x)
                q = self.own.get((parameter.name, flat), [start])[0]
                p = np.linalg.qr(x @ q)[0]
                self.own[parameter.name, flat] = [x.T @ p]
                for s, g in zip(sent, given, strict=True):
                    of_s, of_g = flat.views(s)[i][1], flat.views(g)[i][1]
                    of_s[...] = (p @ (p.T @ of_g.reshape(x.shape))).reshape(of_s.shape)
        return np.sum(sent, axis=0), sent


def one_value(x: Array) -> Array:
    """Elements of one absolute value, with the signs of x and its norm."""
    value = math.sqrt(float(x @ x) / x.size)
    return np.where(x < -1e-6 * value, -value, value)


# ---- the chapter -----------------------------------------------------------------------------------------------------


def momentum_of(job: Job[CompressionOptions]) -> float:
    """DGC's, which takes the place of the optimizer's."""
    return 0.9 if job.own.compressor == "topk" else 0.0


class CompressionChapter(Chapter[CompressionOptions]):
    name, doc, options = "compression", compression.__doc__, CompressionOptions
    cases = {
        "sign": "--with sign --freeze-step 1",
        "topk": "--with topk --density 0.05 --optimizer sgd --lr 0.1",
        "lowrank": "--with lowrank",
        "no feedback": "--with sign --freeze-step 1 --no-feedback",
    }

    def complete(self, line: Line[CompressionOptions], layout: Layout) -> Line[CompressionOptions]:
        own, steps = line.own, line.training.steps
        if own.compressor == "sign":
            freeze = own.freeze_step or max(1, math.ceil(paper.WARM_UP * steps))
            return replace(line, own=replace(own, freeze_step=freeze))
        if own.freeze_step:
            raise UsageError(f"--freeze-step is of --with sign: leave it out with {own.compressor}")
        return replace(line, own=replace(own, freeze_step=0))

    def job_of(self, line: Line[CompressionOptions], ranks: int, optimizer: Any = None) -> Job[CompressionOptions]:
        training, decay = line.training, line.training.weight_decay
        if line.own.compressor == "sign":
            if training.optimizer != "adamw":
                raise UsageError("--with sign sends Adam's momentum: use --optimizer adamw")
            optimizer = optimizer or OneBitAdam(eps=EPS, weight_decay=decay)
        elif line.own.compressor == "topk":
            if training.optimizer != "sgd":
                raise UsageError("--with topk corrects the momentum of SGD: use --optimizer sgd, such as with --lr 0.1")
            optimizer = optimizer or SGD(weight_decay=decay)
        return super().job_of(line, ranks, optimizer)

    def make(self, job: Job[CompressionOptions], comm: Any) -> Compressed:
        own = job.own
        made: dict[str, Compressor] = {
            "sign": sum_signs,
            "topk": partial(sum_largest, density=own.density),
            "lowrank": LowRank(own.rank, job.settings.seed).sum,
        }
        how = own.freeze_step or 0, momentum_of(job), not own.no_feedback
        return Counting(job.units, job.settings, comm, made[own.compressor], *how)

    def serial(self, job: Job[CompressionOptions]) -> Serial:
        """A training of the ranks' shares, one after the other."""
        own = replace(job.own, freeze_step=min(job.own.freeze_step or 0, 1))
        return Serial(lambda small: Compressing(small, job.layout.dp), steps=3, plain=False, own=own)

    def count(self, job: Job[CompressionOptions], engine: Any) -> dict[str, float]:
        return {name: getattr(engine, name) for name in ("put", "sum", "size", "left")}


CHAPTER = CompressionChapter()
