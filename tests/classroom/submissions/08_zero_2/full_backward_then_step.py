"""Has shards at the end of a step, and until then every gradient: the losses are right, and the memory is not."""
# loses: train_step_wire, train_step_memory, reduce, accumulation, reduce_wire, memory_backward
# says: nothing was sent, and without messages it cannot be done
# says: Whose gradient is still here\?
# says: as many as \d\d whole gradients have

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


def train_step(comm, units, parts, batch, rate):
    loss, gradients = 0.0, [None] * len(units)
    for x, y in parts:
        h = [x]
        for unit in units:
            h.append(layer(unit.param, h[-1]))
        loss += float(((h[-1] - y) ** 2).sum() / 2 / batch)
        dh = (h[-1] - y) / batch
        for i in reversed(range(len(units))):
            gradient, dh = layer_backward(units[i].param, h[i], h[i + 1], dh)
            gradients[i] = gradient if gradients[i] is None else gradients[i] + gradient
    for unit, gradient in zip(units, gradients, strict=True):
        update_shard(comm, unit.param, unit.master, -rate * reduce_unit(comm, gradient))
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

    def reduce(self, flat):
        pass

    def sum_over_axes(self):
        for flat in self.flats:
            with self.comm.phase("reduce-scatter gradients"):
                flat.grad += reduce_scatter(self.comm, flat.bucket)
            flat.bucket = None
