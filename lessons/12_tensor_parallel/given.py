"""What lesson 12's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minidist import ring
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Batch
from minidist.nn.tensor import Store, Tape

Array = np.ndarray


def gelu(z: Array) -> Array:
    return z / (1 + np.exp(-1.702 * z))


def gelu_slope(z: Array) -> Array:
    gate = 1 / (1 + np.exp(-1.702 * z))
    return gate + z * 1.702 * gate * (1 - gate)


def summed(comm: Comm, x: Array) -> Array:
    return ring.all_reduce(comm, x.reshape(-1)).reshape(x.shape)


def flat(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


def same(one: Array, other: Array) -> bool:
    """Equal to twelve digits."""
    return bool(abs(one - other).max() < 1e-12 * abs(other).max())


def draw_mlp(seed: int) -> tuple[Array, Array, Array, Array]:
    """x and dy (32, 16), A (16, 64) and B (64, 16)."""
    random = np.random.default_rng(seed)
    x, dy = random.standard_normal((2, 32, 16))
    return x, dy, random.standard_normal((16, 64)), random.standard_normal((64, 16))


def run_serial_mlp(seed: int) -> tuple[Array, Array, Array, Array]:
    """y, dx, da and db of these in one process."""
    x, dy, a, b = draw_mlp(seed)
    dz = (dy @ b.T) * gelu_slope(x @ a)
    return gelu(x @ a) @ b, dz @ a.T, x.T @ dz, gelu(x @ a).T @ dy


def draw_logits(seed: int) -> tuple[Array, Array]:
    """64 positions with 1,200 logits each, and the targets."""
    random = np.random.default_rng(seed)
    return random.standard_normal((64, 1200)), random.integers(0, 1200, 64)


def find_serial_loss(seed: int) -> float:
    """The loss of these in one process."""
    logits, targets = draw_logits(seed)
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(64), targets]))


def run_one_layer(comm: Comm, s: int, b: int, h: int, a: int, sequence: bool) -> tuple[list[int], dict[str, Any]]:
    """The bytes that this rank keeps of the package's layer, by array, and sends, by phase; dropout is 0.1."""
    from minidist.tensor_parallel import split  # puts cut layers in the place of whole ones
    from minidist.tp.group import Group  # says who shares them

    config = GPTConfig(vocabulary=16, context=s, layers=1, heads=a, width=h, dropout=0.1)
    _, block, _ = split(gpt(config), Group(comm, np.float16, sequence))
    for p in block.parameters:
        p.bind(p.initial(seed=0).astype(np.float32), np.zeros(p.shape, np.float32))
    x = np.random.default_rng(0).standard_normal((b, s, h), dtype=np.float32)
    x = np.split(x, comm.size, axis=1)[comm.rank] if sequence else x
    tape = Tape(Store(np.float16))
    comm.ledger.reset()
    y = block(tape.tensor(x), Batch(tokens=np.zeros((b, s), int), key=(0, 0)))
    kept = [kept.array.nbytes for step in tape.steps for kept in step.kept]
    tape.backward(y.data)
    return kept, comm.ledger.by_phase()


def count_messages(phases: dict[str, Any]) -> int:
    """The messages of a layer's all-reduces, forward and backward."""
    return sum(phases[f"layers: all-reduce {way}"]["messages"] for way in ("forward", "backward"))


def count_bytes(layer: tuple[list[int], dict[str, Any]], small: int) -> tuple[int, int]:
    """Bytes kept, without the norms' means and deviations (`small`); and sent, without the second gather."""
    kept, phases = layer
    sent = sum(counted["bytes"] for phase, counted in phases.items() if phase != "layers: all-gather again")
    return sum(kept) - small, sent


ROWS, WIDTH, HIDDEN, RATE = 32, 16, 64, 0.025  # of the two layers with biases


def draw_start(comm: Comm, cut_both: Callable[..., tuple[Array, Array]]) -> tuple[list[list[Array]], Array, Array]:
    """This rank's A, B and bias of each layer, with biases of zero; x, and the target for the layers' output."""
    random, layers = np.random.default_rng(0), []
    for _ in range(2):
        a = random.standard_normal((WIDTH, HIDDEN)) / WIDTH**0.5
        b = random.standard_normal((HIDDEN, WIDTH)) / HIDDEN**0.5 / 2
        layers.append([*(part.copy() for part in cut_both(a, b, comm.size, comm.rank)), np.zeros(WIDTH)])
    x = random.standard_normal((ROWS, WIDTH))
    return layers, x, np.tanh(x @ random.standard_normal((WIDTH, WIDTH))) + 2


def without_dropout(comm: Comm, step: int) -> tuple[float, float]:
    return 1.0, 1.0


def train_layers(
    comm: Comm,
    cut_both: Callable[..., tuple[Array, Array]],
    loss_and_gradients: Callable[..., tuple[float, list[list[Array]]]],
    times: int = 1,
    draw: Callable[..., Any] = without_dropout,
    steps: int = 20,
) -> tuple[list[float], list[list[Array]]]:
    """Losses, and the layers after the last step. times: how many times y contains a bias; draw: a step's masks."""
    (layers, *task), losses = draw_start(comm, cut_both), []
    for step in range(steps + 1):
        loss, gradients = loss_and_gradients(comm, layers, *task, times, draw(comm, step))
        losses.append(loss)
        if step < steps:  # the last loss is that of the weights that are returned
            for of_layer, of_gradient in zip(layers, gradients, strict=True):
                for parameter, gradient in zip(of_layer, of_gradient, strict=True):
                    parameter -= RATE * gradient
    return losses, layers


def try_slope(
    comm: Comm,
    cut_both: Callable[..., tuple[Array, Array]],
    loss_and_gradients: Callable[..., tuple[float, list[list[Array]]]],
    times: int,
) -> tuple[float, float]:
    """The derivative of the loss for one number of a bias: from the backward, and as a finite difference."""
    layers, *task = draw_start(comm, cut_both)
    bias, around = layers[1][2], []
    slope = loss_and_gradients(comm, layers, *task, times)[1][1][2][0]
    for change in (1e-5, -2e-5):
        bias[0] += change
        around.append(loss_and_gradients(comm, layers, *task, times)[0])
    return float(slope), (around[0] - around[1]) / 2e-5


def compare_biases(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """For each run of train_layers, {name: (losses, layers)} of each rank: how far biases are from those of rank 0."""
    apart = {}
    for name in runs[0]:
        biases = [[of_layer[2] for of_layer in of_rank[name][1]] for of_rank in runs]
        apart[name] = max(abs(np.subtract(of_rank, biases[0])).max() for of_rank in biases)
    return apart


def go_round(comm: Comm, scatter: Callable[..., Array], gather: Callable[..., Array]) -> tuple[bool, Any, int, int]:
    """scatter_sum and then gather_whole of an array: is the result its sum over the ranks? The shape in between; the
    bytes that both send, and those that an all-reduce sends."""
    x = np.random.default_rng(comm.rank).standard_normal((3, 8, 5))
    comm.ledger.reset()
    shard = scatter(comm, x)
    back = gather(comm, shard)
    halves = comm.ledger.total()
    comm.ledger.reset()
    total = ring.all_reduce(comm, x.reshape(-1)).reshape(x.shape)
    return bool(np.allclose(back, total)), shard.shape, halves, comm.ledger.total()
