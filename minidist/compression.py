"""Compressed gradients: each rank sends less than its gradient, and remembers what it has not sent.

    mpirun -n 4 python -m minidist.compression --with sign
    mpirun -n 4 python -m minidist.compression --with topk --optimizer sgd --lr 0.1
    mpirun -n 4 python -m minidist.compression --with lowrank --rank 2

Sign: Tang et al., "1-bit Adam", ICML 2021, arXiv 2102.02888, after Seide et al., "1-bit SGD", Interspeech 2014.
Top-k: Lin et al., "Deep Gradient Compression" (DGC), ICLR 2018, arXiv 1712.01887.
Low rank: Vogels et al., "PowerSGD", NeurIPS 2019, arXiv 1905.13727.

Data parallelism sends 2Ψ(N-1)/N elements in every step, whatever the wire can carry. Here a rank sends s, a rough
version of x = g + e: of its gradient g (or its momentum), and of its error e, which is what it has not sent so far. The
rest stays for the next step, e ← x - s. This is error feedback. Nothing is lost: all that a rank has ever sent, plus
its e, is the sum of all its g.

    sign      a bit an element, one scale    Ψ/8 bytes where float16 takes 2Ψ: 16 times fewer, on any number of ranks
    top-k     the share δ with largest |x|   8 bytes each, with its place; ranks gather all of them: (N-1)·8δΨ
    low rank  P and Q of P Qᵀ ≈ X (m, k)     r(m+k) elements in place of mk, summed by all-reduces at any N

In top-k, ranks choose different elements, so a ring cannot add them on their way. It sends Nδ times the bytes of a
float32 ring: at δ = 0.001, 1,000 ranks save nothing. DGC's own ratio (section 4.1) counts what one rank sends, once.

Feedback pays: with --no-feedback, a small GPT's validation loss after 200 steps was worse by 0.62 with signs, by 0.35
with top-k and by 0.21 with low rank, in the mean of 5 seeds on 4 ranks. Standard errors were 0.04, 0.01 and 0.04.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from minidist import contents, ring
from minidist.data_parallel import DataParallel
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit
from minidist.nn.optim import AdamW, clipping_factor, sum_of_squares
from minidist.nn.tensor import Array, Parameter

# Sends a part of x (padded,); returns the sum of what all ranks have sent, and what this rank has: (total, sent).
Compressor = Callable[[Comm, Flat, Array], tuple[Array, Array]]


# ---- one bit ---------------------------------------------------------------------------------------------------------


def sum_signs(comm: Comm, flat: Flat, x: Array) -> tuple[Array, Array]:
    """1-bit Adam's compressed all-reduce: all-to-all of packed signs, a sum, all-gather of the sum's own signs."""
    c = x.size // comm.size  # elements of a chunk
    mine = slice(comm.rank * c, (comm.rank + 1) * c)
    scale, positive = in_one_bit(x, flat.size)
    with comm.phase("signs"):  # a row for each rank: (N, ⌈c/8⌉) bytes
        arrived = ring.all_to_all(comm, np.packbits(positive.reshape(comm.size, c), axis=1))
    with comm.phase("scales"):
        scales = ring.all_gather(comm, np.array([scale], x.dtype), comm.size)
    chunk = np.sum([s * signs(bits, c) for s, bits in zip(scales, arrived, strict=True)], axis=0)
    chunk[max(0, flat.size - mine.start) :] = 0  # padding
    scale_of_sum, positive_sum = in_one_bit(chunk, flat.size - mine.start)
    packed = np.packbits(positive_sum)
    with comm.phase("signs"):
        arrived = ring.all_gather(comm, packed, comm.size * packed.size).reshape(comm.size, -1)
    with comm.phase("scales"):
        scales = ring.all_gather(comm, np.array([scale_of_sum], x.dtype), comm.size)
    total = np.concatenate([s * signs(bits, c) for s, bits in zip(scales, arrived, strict=True)])
    sent = scale * np.where(positive, 1, -1).astype(x.dtype)
    sent[mine] -= chunk - total[mine]  # what the sum loses as signs stays in the error of the rank that added it up
    total[flat.size :] = sent[flat.size :] = 0
    return total, sent


def in_one_bit(x: Array, size: int) -> tuple[float, Array]:
    """The scale with which signs have the norm of x, and which elements are positive. Elements from `size` on are
    padding. Zero within rounding counts as positive: otherwise the order in which ranks were added would decide."""
    scale = math.sqrt(sum_of_squares(x) / max(1, min(x.size, size)))
    return scale, x >= -1e-6 * scale


def signs(bits: Array, size: int) -> Array:
    """+1 and -1 from packed bits."""
    return np.unpackbits(bits, count=size).astype(np.float32) * 2 - 1


@dataclass(frozen=True)
class OneBitAdam(AdamW):
    """Adam without bias corrections, whose variance can be frozen (algorithm 1). Momentum is linear in the gradients:
    a rank can send its part as signs. The variance is not, and the step divides by it: a single value would not do."""

    def update(
        self, param: Array, grad: Array, state: list[Array],
        *, scale: float, lr: float, step: int, decayed: int, room: Array | None = None,
    ) -> None:  # fmt: skip
        m, v = state
        g = grad.astype(param.dtype) * scale
        v *= self.beta2
        v += (1 - self.beta2) * g * g
        self.update_frozen(param, self.beta1 * m + (1 - self.beta1) * g, state, lr, decayed)

    def update_frozen(self, param: Array, momentum: Array, state: list[Array], lr: float, decayed: int) -> None:
        """The same with the variance as it is, and with the momentum that the ranks have summed."""
        m, v = state
        seen = np.sqrt(v) > self.eps  # a sign is never 0: an element without any gradient would move, too
        m[...] = np.where(seen, momentum, 0)
        param[:decayed] *= 1 - lr * self.weight_decay
        param -= lr * m / (np.sqrt(v) + self.eps)


# ---- the largest -----------------------------------------------------------------------------------------------------


def sum_largest(comm: Comm, flat: Flat, x: Array, density: float) -> tuple[Array, Array]:
    """DGC's sparse sum: each rank sends its ⌈density·Ψ⌉ largest elements, with their places."""
    k = math.ceil(density * flat.size)
    chosen = np.argpartition(abs(x[: flat.size]), flat.size - k)[flat.size - k :]
    largest = np.empty(k, [("place", np.int32), ("value", x.dtype)])  # one message has both
    largest["place"], largest["value"] = chosen, x[chosen]
    with comm.phase("largest"):
        arrived = ring.all_gather(comm, largest.view(np.uint8), comm.size * largest.nbytes).view(largest.dtype)
    total, sent = np.zeros((2, x.size), x.dtype)
    np.add.at(total, arrived["place"], arrived["value"])  # a place may have been chosen by several ranks
    sent[chosen] = x[chosen]
    return total, sent


# ---- low rank --------------------------------------------------------------------------------------------------------


class LowRank:
    """PowerSGD's sum (algorithm 1): a step of power iteration on Σ X, without any rank seeing it. P = Σ (X Q), then
    made orthogonal; Q = Σ (Xᵀ P); Σ X ≈ P Qᵀ. Vectors, and matrices that would not shrink, are summed with P."""

    def __init__(self, rank: int, seed: int) -> None:
        self.rank, self.seed = rank, seed
        self.q = dict[str, Array]()  # by parameter: the last step's, a good start for the next

    def sum(self, comm: Comm, flat: Flat, x: Array) -> tuple[Array, Array]:
        total, sent = np.zeros_like(x), x.copy()  # what has no P and Q is sent whole
        (xs, vectors), (totals, sums), (sents, _) = (self.split(flat, array) for array in (x, total, sent))
        with comm.phase("P and vectors"):
            found = all_reduce_together(comm, [*(m @ self.start(name, m) for name, m in xs.items()), *vectors])
        for vector, of in zip(sums, found[len(xs) :], strict=True):
            vector[...] = of
        ps = [np.linalg.qr(p)[0] for p in found[: len(xs)]]
        own = [m.T @ p for m, p in zip(xs.values(), ps, strict=True)]
        with comm.phase("Q"):
            qs = all_reduce_together(comm, own)
        for name, p, q, mine in zip(xs, ps, qs, own, strict=True):
            totals[name][...], sents[name][...], self.q[name] = p @ q.T, p @ mine.T, q
        return total, sent

    def split(self, flat: Flat, array: Array) -> tuple[dict[str, Array], list[Array]]:
        """Views of an array (padded,): the matrices (m, k) that get P and Q, by name; and all other parameters."""
        views = flat.views(array)
        matrices = {parameter.name: of.reshape(len(of), -1) for parameter, of in views if self.reduces(parameter)}
        return matrices, [of for parameter, of in views if not self.reduces(parameter)]

    def reduces(self, parameter: Parameter) -> bool:
        """Whether a parameter's P and Q are smaller than itself."""
        m = parameter.shape[0]
        return len(parameter.shape) > 1 and self.rank * (m + parameter.size // m) < parameter.size

    def start(self, name: str, x: Array) -> Array:
        """Q (k, r): all ranks draw the same."""
        if name not in self.q:
            drawn = np.random.default_rng([self.seed, crc32(name.encode())])
            self.q[name] = drawn.standard_normal((x.shape[1], self.rank)).astype(x.dtype)
        return self.q[name]


def all_reduce_together(comm: Comm, arrays: list[Array]) -> list[Array]:
    """Sum arrays over the ranks, in one message around the ring."""
    if not arrays:
        return []
    sizes = np.cumsum([array.size for array in arrays])
    room = np.zeros(-(-sizes[-1] // comm.size) * comm.size, arrays[0].dtype)
    room[: sizes[-1]] = np.concatenate([array.ravel() for array in arrays])
    ring.all_reduce(comm, room, room)
    return [part.reshape(of.shape) for part, of in zip(np.split(room, sizes)[: len(arrays)], arrays, strict=True)]


# ---- the step --------------------------------------------------------------------------------------------------------


class Compressed(DataParallel):
    """Data parallelism whose gradients are summed by a compressor, one Flat after the other, as part of the update."""

    def __init__(
        self,
        units: list[Unit],
        settings: Settings,
        comm: Comm,
        compressor: Compressor,
        dense: int = 0,
        momentum: float = 0.0,
        feedback: bool = True,
    ) -> None:
        """dense: the number of steps before anything is compressed. momentum: DGC's. feedback: whether to keep e."""
        super().__init__(units, settings, comm)
        self.compressor, self.dense, self.momentum, self.feedback = compressor, dense, momentum, feedback
        for flat in self.flats:
            like = flat.master.size, flat.master.dtype
            if feedback:
                flat.own["error"] = self.device.zeros("error", *like)
            if momentum:
                flat.own["velocity"] = self.device.zeros("optimizer", *like)

    @property
    def compressing(self) -> bool:
        return self.steps >= self.dense

    def reduce(self, flat: Flat) -> None:
        if not self.compressing:
            super().reduce(flat)

    def squares(self) -> float:
        """No rank knows the sum's norm before the update. So each adds up all ranks' own ‖g‖²: that says whether all
        gradients are finite. An overflow that got into an error would stay there."""
        if not self.compressing:
            return super().squares()
        self.own_squares = sum(sum_of_squares(flat.grad) for flat in self.flats)
        return self.sum_of(self.own_squares)

    def update(self, flat: Flat, grad: Array, scale: float) -> None:
        if not self.compressing:
            return super().update(flat, grad, scale)
        # A rank clips its own gradient to 1/√N of the limit: N independent ones add up to √N times that (DGC §3.2).
        limit, unit = self.settings.clip / math.sqrt(self.comm.size), 1 / self.loss_scale.scale
        x = grad.astype(flat.master.dtype) * (unit * clipping_factor(math.sqrt(self.own_squares) * unit, limit))
        optimizer = self.settings.optimizer
        if isinstance(optimizer, OneBitAdam):
            part = (1 - optimizer.beta1) * x + optimizer.beta1 / self.comm.size * flat.moments[0]  # of the momentum
            momentum, _ = self.send(flat, part)
            lr = self.settings.learning_rate(self.updates)
            return optimizer.update_frozen(flat.master, momentum, flat.moments, lr, flat.decayed)
        if not self.momentum:
            total, _ = self.send(flat, x)
            return super().update(flat, total, 1.0)
        velocity = flat.own["velocity"]  # "momentum correction" (DGC, section 3.2): what waits gathers momentum, too
        velocity *= self.momentum
        velocity += x
        total, sent = self.send(flat, velocity)
        velocity[sent != 0] = 0  # "momentum factor masking" (3.3): what has been sent does not push once more
        super().update(flat, total, 1.0)

    def send(self, flat: Flat, x: Array) -> tuple[Array, Array]:
        """Send a part of x and of what was not sent before; returns the ranks' sum, and this rank's part of it."""
        if not self.feedback:
            return self.compressor(flat.comm, flat, x)
        error = flat.own["error"]
        error += x
        total, sent = self.compressor(flat.comm, flat, error)
        error -= sent
        return total, sent


if __name__ == "__main__":
    contents.run("compression")  # its options, and what the papers promise: programs/compression.py
