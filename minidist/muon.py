"""Muon under ZeRO-1: an update that needs whole matrices, and an optimizer state that is divided among the ranks.

    mpirun -n 4 python -m minidist.muon --divide matrices
    mpirun -n 4 python -m minidist.muon --divide elements

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, kellerjordan.github.io/posts/muon.
Liu et al., "Muon is scalable for LLM training" (Moonlight), 2025, arXiv 2502.16982, section 2.3: distributed Muon.

Adam updates each element on its own, so ZeRO-1 may cut anywhere. Muon replaces the momentum M of a matrix by the
nearest matrix whose singular values are all alike, U Vᵀ for M = U S Vᵀ. Five Newton-Schulz steps come close to it, and
each multiplies whole matrices. There are two ways to divide the work:

    elements   Rank r has shard r of every matrix, and momentum for it. Shards of momentum are gathered, in two bytes an
               element, and every rank orthogonalizes every matrix: 4 + 2 + 4 bytes where Adam sends 4 + 4 (Moonlight).
    matrices   A rank has whole matrices, and momentum for them. It receives the sums of their gradients, and sends the
               updated matrices: 4 + 4, nothing else. But ranks may not get equally many. nanochat's optimizer does
               this. It calls itself "ZeRO-2 style", but each rank holds all gradients: that is ZeRO-1.

The embedding, the head, norms and biases keep AdamW and ZeRO-1's shards. Muon's state is M alone: 4 bytes a parameter,
where Adam has 8. Gradients are summed over the micro-batches and the ranks before anything is orthogonalized: an
orthogonalized part of a gradient is no part of the orthogonalized gradient.
"""

import numpy as np

from minidist import contents, ring
from minidist.nn.flat import Flat
from minidist.nn.layers import Block, Unit
from minidist.nn.optim import AdamW
from minidist.nn.precision import PRECISIONS
from minidist.nn.tensor import Array
from minidist.zero1 import ZeRO1

A, B, C = 3.4445, -4.7750, 2.0315  # aX + b(XXᵀ)X + c(XXᵀ)²X brings singular values from (0, 1] near 1 (Jordan)
STEPS = 5
MOMENTUM = 0.95
SHIFT = 4096  # float16 has few bits for numbers below 6e-5


def orthogonalized(m: Array) -> Array:
    """Near U Vᵀ of a matrix M = U S Vᵀ: singular values between 0.7 and 1.2."""
    if len(m) > m.shape[1]:
        return orthogonalized(m.T).T
    x = m / (np.linalg.norm(m) + 1e-7)
    for _ in range(STEPS):
        squared = x @ x.T
        x = A * x + (B * squared + C * squared @ squared) @ x
    return x


def take_step(param: Array, m: Array, at: slice, lr: float, weight_decay: float) -> None:
    """Move param, the elements `at` of a matrix, by Muon's update. m: the whole matrix's momentum. The factor makes the
    update as large as Adam's, so that both can have one learning rate (Moonlight, equation 4)."""
    update = 0.2 * max(m.shape) ** 0.5 * orthogonalized(m)
    param *= 1 - lr * weight_decay
    param -= lr * update.ravel()[at]


def placed(sizes: list[int], n: int) -> list[int]:
    """The rank of each matrix: the largest first, each to the rank that has least."""
    load, owner = [0] * n, [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owner[i] = load.index(min(load))
        load[owner[i]] += sizes[i]
    return owner


class Muon(ZeRO1):
    """ZeRO-1 whose blocks' matrices are Flats of their own, with Muon's update. Each rank has a shard of each."""

    def divide(self, units: list[Unit]) -> None:
        """Give each matrix of a block a Flat of its own."""
        self.matrices: list[Flat] = []
        for unit in units:
            if isinstance(unit, Block):
                own = [Flat(each.name, [each]) for each in unit.parameters if each.decays]
                rest = Flat(unit.name, [each for each in unit.parameters if not each.decays])
                unit.flats = unit.reads = [*own, rest]
                self.matrices += own
        super().divide(units)

    def moments_of(self, flat: Flat) -> int:
        """Muon keeps the momentum alone."""
        return 1 if flat in self.matrices else super().moments_of(flat)

    def update(self, flat: Flat, grad: Array, scale: float) -> None:
        if flat not in self.matrices:
            return super().update(flat, grad, scale)
        [m], mine = flat.moments, self.piece(flat)
        m *= MOMENTUM
        m += grad.astype(m.dtype) * scale
        whole = self.whole_momentum(flat, m)
        if whole.size:
            [parameter] = flat.parameters
            own = slice(mine.start, min(mine.stop, flat.size))
            assert isinstance(self.settings.optimizer, AdamW)  # of all other parameters
            lr, decay = self.settings.learning_rate(self.updates), self.settings.optimizer.weight_decay
            take_step(flat.master[: own.stop - own.start], whole[: flat.size].reshape(parameter.shape), own, lr, decay)

    def whole_momentum(self, flat: Flat, m: Array) -> Array:
        """A matrix's whole momentum (padded,), from every rank's shard. Two bytes an element are enough: next, the norm
        is divided out (Moonlight: bfloat16, here float16)."""
        sent = m if m.dtype == np.float64 else (m * SHIFT).astype(PRECISIONS["mixed"].stored)
        with self.comm.phase("all-gather momentum"):
            whole = ring.all_gather(flat.comm, sent, flat.padded)
        return whole if sent is m else whole.astype(m.dtype) / SHIFT


class WholeMatrices(Muon):
    """The same, where each matrix has an owner."""

    def divide(self, units: list[Unit]) -> None:
        super().divide(units)
        owners = placed([flat.size for flat in self.matrices], self.comm.size)
        self.owner = dict(zip(self.matrices, owners, strict=True))
        for flat in self.matrices:
            flat.shards = 1

    def piece(self, flat: Flat) -> slice:
        """Of a matrix, the owner has the optimizer state of all elements, the other ranks that of none."""
        owner = self.owner.get(flat)
        return super().piece(flat) if owner is None else slice(0, flat.size * (owner == self.comm.rank))

    def whole_momentum(self, flat: Flat, m: Array) -> Array:
        return m

    def reduce(self, flat: Flat) -> None:
        if flat not in self.owner:
            super().reduce(flat)

    def sum_over_axes(self) -> None:
        """Each owner gets the sums of its matrices' gradients: a reduce-scatter of parts of any sizes."""
        super().sum_over_axes()
        parts = self.by_owner("grad")
        sums = [np.empty_like(part) for part in parts]
        with self.comm.phase("reduce-scatter gradients"):
            ring.sum_around(self.comm, parts, sums, None, np.add)
        parts[self.comm.rank] = sums[self.comm.rank]
        self.fill("grad", parts)

    def gather(self, flat: Flat) -> None:
        if flat not in self.owner:
            super().gather(flat)

    def after_update(self) -> None:
        super().after_update()
        parts = self.by_owner("param")
        with self.comm.phase("all-gather parameters"):
            ring.circulate(self.comm, parts)
        self.fill("param", parts)

    def by_owner(self, name: str) -> list[Array]:
        """The matrices' gradients ("grad") or parameters ("param"), one after the other, for each owner."""
        arrays: list[list[Array]] = [[] for _ in range(self.comm.size)]
        for flat, owner in self.owner.items():
            arrays[owner].append(getattr(flat, name))
        none = np.empty(0, getattr(self.matrices[0], name).dtype)
        return [np.concatenate([none, *of]) for of in arrays]

    def fill(self, name: str, parts: list[Array]) -> None:
        """The inverse of `by_owner`."""
        begin = [0] * self.comm.size
        for flat, owner in self.owner.items():
            getattr(flat, name)[...] = parts[owner][begin[owner] : begin[owner] + flat.size]
            begin[owner] += flat.size

    def whole(self, flat: Flat, piece: Array) -> Array:
        if flat not in self.owner:
            return super().whole(flat, piece)
        mine = self.owner[flat] == self.comm.rank
        room = piece.copy() if mine else np.empty(flat.size, piece.dtype)
        with self.comm.phase("checkpoint"):
            return ring.broadcast(self.comm, room, self.owner[flat])


if __name__ == "__main__":
    contents.run("muon")  # its options, and what the papers promise: programs/muon.py
