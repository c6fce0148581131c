"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from collections import namedtuple
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from minidist import ring
from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import answers, number, returned, told
from minidist.mpi.comm import Comm

Array = np.ndarray
given = functions("answers", ("memory", "sent", "place"))  # the lesson's own take the place of what a function calls
STANDS_ON = {
    **dict.fromkeys(("memory", "sent", "place", "shard_gradient", "sum_gradients", "gradient_norm"), ()),
    "choose": ("memory", "sent"),
    "along": ("place",),
}


# As the skeleton has them.
Model = namedtuple("Model", "layers width heads length batch parameters")
Layout = namedtuple("Layout", "data pipeline tensor")
Cluster = namedtuple("Cluster", "ranks per_host memory speed inside between")


@dataclass
class Piece:
    grad: Array
    cut: bool = True
    tied: bool = False


# ---- a layout in bytes -----------------------------------------------------------------------------------------------


def on_layout(model: list[Any], layout: list[int]) -> tuple[Model, Layout]:
    return Model(*model), Layout(*layout)


def on_cluster(model: list[Any], cluster: list[float]) -> tuple[Model, Cluster]:
    return Model(*model), Cluster(*cluster)


memories = answers("memory", make=on_layout)
all_sent = answers("sent", make=on_layout)
choices = answers("choose", lambda layout: layout if layout is None else told(layout), on_cluster)


# ---- the mesh --------------------------------------------------------------------------------------------------------


def places(comm: Comm, exercise: ModuleType, mine: list[Any]) -> list[Any]:
    """Of each (names, sizes) every rank's place, as two lists of names and of numbers; or the name of a type."""
    found: list[Any] = []
    for names, sizes in mine:
        of_ranks: list[Any] = []
        for rank in range(int(np.prod(sizes))):
            value = exercise.place(rank, dict(zip(names, sizes, strict=True)))
            is_dict = isinstance(value, dict)
            of_ranks.append(
                [[str(k) for k in value], [number(v) for v in value.values()]] if is_dict else type(value).__name__
            )
        found.append(of_ranks)
    return found


def groups(
    comm: Comm, exercise: ModuleType, mine: None, names: list[str], sizes: list[int], asked: list[list[str]]
) -> list[Any]:
    """Of each set of axes the members of this rank's group in order, as they tell it over that group."""
    found: list[Any] = []
    for axes in asked:
        group = exercise.along(comm, dict(zip(names, sizes, strict=True)), tuple(axes))
        if type(group).__name__ != type(comm).__name__:
            found.append(type(group).__name__)
            continue
        told = ring.all_gather(group, np.array([comm.rank]), group.size)
        found.append([int(rank) for rank in told])
    return found


# ---- who sums what ---------------------------------------------------------------------------------------------------


def of_axis(comm: Comm, sizes: list[int], axes: list[int]) -> Comm:
    """The ranks that differ from this one on these axes alone; axes by number, the last is the innermost."""
    at = np.unravel_index(comm.rank, tuple(sizes))
    color = 0
    for axis, (index, size) in enumerate(zip(at, sizes, strict=True)):
        if axis not in axes:
            color = color * size + int(index)
    return comm.split(color)


def shard(comm: Comm, exercise: ModuleType, mine: Array, per_host: int, function: str) -> dict[str, Any]:
    """This rank's shard of the sum, and its own gradient afterwards."""
    sizes = [comm.size // per_host, per_host]
    host, across = of_axis(comm, sizes, [1]), of_axis(comm, sizes, [0])
    handed = mine.copy()
    value = getattr(exercise, function)(host, across, handed)
    return {"returned": returned(value), "gradient": handed}


def sums(comm: Comm, exercise: ModuleType, mine: list[Array], stages: int, tied: int) -> dict[str, Any]:
    """Ranks are data x stages: the gradients afterwards. Piece number `tied` is tied at both ends."""
    sizes = [comm.size // stages, stages]
    data, pipeline = of_axis(comm, sizes, [0]), of_axis(comm, sizes, [1])
    is_end = pipeline.rank in (0, stages - 1)
    ends = pipeline.split(int(is_end))
    handed = [grad.copy() for grad in mine]
    pieces = [Piece(grad, tied=is_end and number == tied) for number, grad in enumerate(handed)]
    exercise.sum_gradients(pieces, data, ends)
    return {"grad": [returned(piece.grad) for piece in pieces], "handed": handed}


def norm(
    comm: Comm, exercise: ModuleType, mine: list[Array], stages: int, cut: list[bool], tied: list[bool]
) -> dict[str, Any]:
    """Ranks are stages x tensor. As an array, because results over a wire are compared bit by bit."""
    sizes = [stages, comm.size // stages]
    pipeline, tensor = of_axis(comm, sizes, [0]), of_axis(comm, sizes, [1])
    pieces = [Piece(grad.copy(), *how) for grad, *how in zip(mine, cut, tied, strict=True) if grad.size]
    value = number(exercise.gradient_norm(pieces, tensor, pipeline))
    return {"returned": np.array([value]) if isinstance(value, float) else value}


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


places_of = answers("place_of")


def colors_of(comm: Comm, exercise: ModuleType, mine: list[Any]) -> list[Any]:
    """Of each (names, sizes, axis) the color of every rank."""
    found = []
    for names, sizes, axis in mine:
        mesh, ranks = dict(zip(names, sizes, strict=True)), range(int(np.prod(sizes)))
        found.append([number(exercise.color_of(rank, mesh, axis)) for rank in ranks])
    return found


def squares(comm: Comm, exercise: ModuleType, mine: list[Array]) -> list[float | str]:
    """What each of some tensor ranks counts: mine = [what is whole, the first one's part, the second one's, ...]."""
    whole, *parts = mine
    return [number(exercise.my_squares(part, whole, tensor)) for tensor, part in enumerate(parts)]
