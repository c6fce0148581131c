"""What lesson 10's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray


Chain = tuple[list["Sine"], Array, list[int]]
Draw = Callable[[int, tuple[int, ...]], Array]  # a layer's number, a shape: which numbers stay


class Sine:
    """y = x + sin x. After each call it appends to `held` how many of the values in `seen` still exist."""

    def __init__(self, seen: list[Any], held: list[int]) -> None:
        self.seen, self.held = seen, held

    def note(self) -> None:
        self.held.append(sum(reference() is not None for reference in self.seen))

    def forward(self, x: Array) -> tuple[Array, list[Array]]:
        y = x + np.sin(x)
        self.seen.append(weakref.ref(y))
        self.note()
        return y, [x]

    def backward(self, dy: Array, kept: list[Array]) -> Array:
        self.note()
        [x] = kept
        return dy * (1 + np.cos(x))


def chain(n: int) -> Chain:
    """n layers, their input, and the list of how many values were held after each call."""
    seen: list[Any] = []
    held: list[int] = []
    x = np.linspace(-1, 1, 8)
    seen.append(weakref.ref(x))
    return [Sine(seen, held) for _ in range(n)], x, held


def task(layers: int, width: int) -> tuple[Array, Array, Callable[[], list[Array]]]:
    """The inputs of a model with dropout, the outputs it should learn, and a function that makes its first matrices."""
    random = np.random.default_rng(0)
    x = random.standard_normal((64, width))
    wanted = x
    for _ in range(3):
        wanted = wanted + np.tanh(wanted @ (random.standard_normal((width, width)) / 2))

    def start() -> list[Array]:
        random = np.random.default_rng(1)
        return [0.3 * random.standard_normal((width, width)) for _ in range(layers)]

    return x, wanted, start


def judge(
    loss_and_gradients: Callable[[list[Array], Draw], tuple[float, list[Array]]],
    matrices: list[Array],
    draw: Draw,
    draw_again: Callable[[], Draw],
) -> tuple[Array, Array]:
    """60 derivatives: by finite differences, each of which draws with draw_again(), and from the backward."""
    random = np.random.default_rng(2)
    _, gradients = loss_and_gradients(matrices, draw)
    differences, found = [], []
    for _ in range(60):
        place = tuple(random.integers(0, (len(matrices), *matrices[0].shape)))
        w, index, around = matrices[place[0]], place[1:], []
        for change in (1e-5, -2e-5):
            w[index] += change
            around.append(loss_and_gradients(matrices, draw_again())[0])
        w[index] += 1e-5
        differences.append((around[0] - around[1]) / 2e-5)
        found.append(gradients[place[0]][index])
    return np.array(differences), np.array(found)


def per_cent_off(differences: Array, found: Array) -> float:
    """The length of the difference, as a percentage of the length of the derivatives by finite differences."""
    return float(100 * np.linalg.norm(found - differences) / np.linalg.norm(differences))
