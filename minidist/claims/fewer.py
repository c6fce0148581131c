"""Figures of fewer bytes on a slow wire: what ranks send of compressed gradients, in ZeRO++, and of Muon's matrices."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from minidist import ring
from minidist.claims.declared import Job, report_on, sent
from minidist.exchange.one_process import run_ranks
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.tensor import Parameter
from minidist.papers import compression, muon, zeropp

SMALL = "--layers 1 --width 64 --heads 2 --context 4 --validate 0"  # no unit of this is padded on up to 64 ranks
ALL_REDUCE = "all-reduce gradients"
ACROSS = "all-to-all across hosts"


# ---- compressed gradients --------------------------------------------------------------------------------------------


def one_bit(n: int = 4) -> Job:
    """Signs, relative to a float16 ring; and a training of which 15 % are Adam's steps: one of each kind is counted."""

    def ring_of_float16() -> float:
        return sent(report_on(n, f"data_parallel --batch {n} --steps 1 {SMALL}"), ALL_REDUCE)

    def whole(report: Any) -> float:
        dense, share = ring_of_float16(), compression.WARM_UP
        return dense / (share * dense + (1 - share) * sent(report, "signs"))

    gives = [(compression.BITS, lambda report: ring_of_float16() / sent(report, "signs")), (compression.WHOLE, whole)]
    return Job(n, f"compression --with sign --freeze-step 1 --batch {n} --steps 2 {SMALL}", gives)


def top_k(density: float, n: int, small: str = SMALL) -> str:
    shared = f"--precision fp32 --optimizer sgd --lr 0.1 --batch {n} --steps 1 {small}"
    return f"compression --with topk --density {density!r} {shared}"


def warming(epoch: int) -> Job:
    """Of all elements, those that a rank does not send with DGC's warm-up: each takes 8 bytes."""

    def spared(report: Any) -> float:
        return 100 * (1 - sent(report, "largest") / 8 / report["parameters"])

    return Job(2, top_k(4.0**-epoch, 2), [(compression.WARMING[epoch], spared)])


def gone(n: int) -> Job:
    """A dense float32 ring, relative to top-k's all-gather. Each unit sends at least one element: a little more than
    the share that is asked for."""
    small = SMALL.replace("64", "32")

    def advantage(report: Any) -> float:
        dense = report_on(n, f"data_parallel --precision fp32 --batch {n} --steps 1 {small}")
        return sent(dense, ALL_REDUCE) / sent(report, "largest")

    return Job(n, top_k(compression.DENSITY, n, small), [(compression.GONE[n], advantage)])


def reduce_resnet(comm: Comm, rank: int | None) -> int:
    """Bytes that this rank sends to sum ResNet-18's gradients: as a whole, or with P and Q of this rank."""
    flat = Flat("resnet18", [Parameter(f"p{i}", shape) for i, shape in enumerate(compression.resnet18())])
    flat.divide(comm)
    x = np.ones(flat.padded, np.float32)
    if rank is None:
        ring.all_reduce(comm, x, x)
    else:
        importlib.import_module("minidist.compression").LowRank(rank, 0).sum(comm, flat, x)
    return sum(phase["bytes"] for phase in comm.ledger.by_phase().values())


@functools.cache
def resnet_sent(rank: int | None) -> float:
    """Elements of float32. Two ranks send as many as there are."""
    return run_ranks(lambda comm: reduce_resnet(comm, rank), 2)[0] / 4


def power_sgd() -> Job:
    """ResNet-18's gradients on two ranks: what an epoch sends, and how many times less."""

    def epoch(rank: int | None) -> Callable[[Any], float]:
        return lambda _: compression.mebibytes(resnet_sent(rank))

    def less(rank: int) -> Callable[[Any], float]:
        return lambda _: resnet_sent(None) / resnet_sent(rank)

    gives = [(compression.DENSE, epoch(None))]
    gives += [(figure, epoch(rank)) for rank, figure in compression.EPOCH.items()]
    gives += [(figure, less(rank)) for rank, figure in compression.LESS.items()]
    return Job(2, "", gives)


# ---- ZeRO++ ----------------------------------------------------------------------------------------------------------


def between_hosts(w: int = 16, g: int = 8) -> Job:
    """What leaves a host of G ranks, in M = 2Ψ. Ranks are numbered host by host: a ring's edge between hosts carries
    what a rank sends, and of an all-to-all across hosts each rank's part leaves. For any number of hosts: times
    W/(W-1), or H/(H-1). A block is a whole shard here, and scales are next to nothing."""
    h, line = w // g, f"--batch {w} --steps 1 {SMALL}"
    zero3 = functools.cache(lambda: report_on(w, f"zero3 {line}"))
    one_hop = functools.cache(lambda: report_on(w, f"zeropp --ranks-per-host 1 --block 4096 {line}"))

    def leaving(report: Any) -> float:
        """Bytes from the first host, without norms."""
        away = (n for of_rank in report["sent_to"][:g] for to, n in of_rank.items() if int(to) >= g)
        return float(sum(away) - sent(report, "norm")) / (2 * report["parameters"])

    def forward(report: Any) -> float:
        return sent(report, "all-gather forward") / (2 * report["parameters"])

    def gradients(report: Any) -> float:
        return g * sent(report, ACROSS) / (2 * report["parameters"])

    def backward(report: Any) -> float:
        return leaving(report) - forward(report) - gradients(report)

    def together(report: Any) -> float:
        return (forward(report) + backward(report)) * w / (w - 1) + gradients(report) * h / (h - 1)

    def with_zero3(_: Any) -> float:
        return leaving(zero3()) * w / (w - 1)

    gives = [
        (zeropp.FORWARD, lambda report: forward(report) * w / (w - 1)),
        (zeropp.BACKWARD, backward),
        (zeropp.GRADIENTS, lambda report: gradients(report) * h / (h - 1)),
        (zeropp.ZERO3, with_zero3),
        (zeropp.TOGETHER, together),
        (zeropp.LESS, lambda report: with_zero3(report) / together(report)),
        (zeropp.ONE_HOP, lambda report: sent(one_hop(), ACROSS) * (w - g) / (w - 1) / sent(report, ACROSS)),
    ]
    return Job(w, f"zeropp --ranks-per-host {g} --block 4096 {line}", gives)


# ---- Muon ------------------------------------------------------------------------------------------------------------


def moonlight(n: int = 4) -> Job:
    """A model nearly all of whose parameters are matrices of blocks: what a rank sends and keeps, relative to AdamW."""
    line = f"--precision fp32 --batch {n} --steps 1 --layers 8 --width 128 --heads 2 --context 4 --validate 0"
    adamw = functools.cache(lambda: report_on(n, f"zero1 {line}"))

    def all_sent(report: Any) -> float:
        return float(sum(of["bytes"] for phase, of in report["sent"][0].items() if phase != "norm"))

    def state(report: Any) -> float:
        return float(report["memory"][0]["optimizer"])

    gives = [
        (muon.WORK, lambda report: all_sent(report) / all_sent(adamw())),
        (muon.HALF, lambda report: state(report) / state(adamw())),
    ]
    return Job(n, f"muon --divide elements {line}", gives)


JOBS = [
    one_bit(),
    *map(warming, compression.WARMING),
    power_sgd(),
    *map(gone, compression.GONE),
    between_hosts(),
    moonlight(),
]
