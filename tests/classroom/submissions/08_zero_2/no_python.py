"""A parenthesis is missing."""
# keeps: nothing
# says: no_python.py is no Python: line \d+: '\(' was never closed

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.ring import all_gather, chunk, reduce_scatter
from minidist.zero1 import ZeRO1

Array = np.ndarray


@dataclass
class Unit:
    param: Array
    grad: Array
    master: Array


def layer(flat: Array, h: Array) -> Array:
    width = h.shape[1]
    w, b = flat[: width * width].reshape(width, width), flat[width * width : width * width + width]
    return np.tanh(h @ w + b)


def layer_backward(flat: Array, h: Array, out: Array, dout: Array) -> tuple[Array, Array]:
    width = h.shape[1]
    dz = dout * (1 - out**2)
    gradient = np.concatenate([(h.T @ dz).reshape(-1), dz.sum(axis=0)])
    return gradient, dz @ flat[: width * width].reshape(width, width).T


def update_shard(comm: Comm, param: Array, master: Array, change: Array) -> None:
    master += change
    mine = param[chunk(param.size, comm.size, comm.rank)]
    mine[...] = master
    with comm.phase("all-gather parameters"):
        all_gather(comm, mine, param.size, out=param)


def reduce_unit(comm: Comm, gradient: Array) -> Array:
    bucket = np.zeros(-(-gradient.size // comm.size) * comm.size)
    bucket[: gradient.size] = gradient
    with comm.phase("reduce-scatter gradients"):
        shard = reduce_scatter(comm, bucket)
    return shard


def backward(comm: Comm, units: Sequence[Unit], h: Sequence[Array], dh: Array) -> None:
    for i in reversed(range(len(units))):
        gradient, dh = layer_backward(units[i].param, h[i], h[i + 1], dh)
        shard = reduce_unit(comm, gradient)
        units[i].grad += shard


def accumulate(comm: Comm, units: Sequence[Unit], parts: Sequence[tuple[Array, Array]], batch: int) -> float:
    loss = 0.0
    for x, y in parts:
        h = [x]
        for unit in units:
            h.append(layer(unit.param, h[-1]))
        wrong = h[-1] - y
        loss += float((wrong**2).sum() / 2 / batch)
        backward(comm, units, h, wrong / batch)
    return loss


def train_step(
    comm: Comm, units: Sequence[Unit], parts: Sequence[tuple[Array, Array]], batch: int, rate: float
) -> float:
    loss = accumulate(comm, units, parts, batch)
    for unit in units:
        update_shard(comm, unit.param, unit.master, -rate * unit.grad)
        unit.grad[:] = 0
    return loss


class ZeRO2(ZeRO1):
    accumulated = 1

    def allocate(self, flat: Flat, start: Array) -> None:
        flat.param = start.astype(self.precision.stored)
        flat.grad = np.zeros(flat.padded // self.comm.size, self.precision.stored)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        return flat.param[self.piece(flat)], flat.grad

    def collect(self, flat: Flat) -> None:
        if flat.bucket is None:
            flat.bucket = np.zeros(flat.padded, self.precision.stored)
        flat.collect(flat.bucket)

    def reduce(self, flat: Flat) -> None:
        with self.comm.phase("reduce-scatter gradients"):
            mine = reduce_scatter(self.comm, flat.bucket
        flat.grad += mine
        flat.bucket = None
