"""Pieces of parameters: whatever two layouts there are, one finds its elements in the other's."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist.checkpoints.pieces import Piece, overlaps, pieces, whole_piece
from minidist.nn.flat import Flat
from minidist.nn.tensor import Parameter
from minidist.tp.group import Sliced, cut_places

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[list[Piece]]]:
    """A shape, and two layouts of it: an axis cut in sections and ranks, padded or not, and each part in shards."""
    shape, found = draw(SHAPES), []
    for _ in range(2):
        axis = draw(st.integers(0, len(shape) - 1))
        ranks, shards = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        first = draw(st.integers(0, shape[axis]))
        sections = [first, shape[axis] - first + draw(st.integers(0, 3))]
        places = cut_places(sections, ranks)
        held = []
        for rank in range(ranks):
            if not len(places[rank]):
                continue
            comm: Any = SimpleNamespace(rank=rank, size=ranks)
            part = Sliced(Parameter("w", shape), axis, sections, comm)
            borders = np.linspace(0, part.size, shards + 1).astype(int)
            held += [Piece(*part.spans(), int(a), int(b)) for a, b in itertools.pairwise(borders)]
        found.append(held)
    return shape, found


def filled(piece: Piece) -> np.ndarray:
    """A piece of 1, 2, 3, … in the whole's shape, by taking it apart as tensor parallelism does; padding is 0."""
    whole = np.arange(1, math.prod(piece.shape) + 1).reshape(piece.shape)
    places = np.concatenate([np.arange(*span) for span in piece.spans])
    padding = [(0, 0)] * whole.ndim
    padding[piece.axis] = (0, max(places) + 1)
    return np.pad(whole, padding).take(places, piece.axis).ravel()[piece.start : piece.stop]


@settings(deadline=None)
@given(layouts())
def test_each_element_is_found_in_the_other_layout(case: tuple[tuple[int, ...], list[list[Piece]]]) -> None:
    _, (mine, theirs) = case
    for piece in mine:
        expected = filled(piece)
        found = np.zeros_like(expected)
        for other in theirs:
            values = filled(other)
            for here, there, length in overlaps(piece.runs(), other.runs()):
                assert not found[here : here + length].any()  # nothing twice
                found[here : here + length] = values[there : there + length]
        np.testing.assert_array_equal(found, expected)


@settings(deadline=None)
@given(SHAPES)
def test_everything_is_one_run(shape: tuple[int, ...]) -> None:
    assert whole_piece(shape).runs().tolist() == [[0, 0, math.prod(shape)]]


@settings(deadline=None)
@given(st.lists(SHAPES, min_size=1, max_size=4), st.integers(1, 5))
def test_the_shards_of_a_flat_are_its_parameters(shapes: list[Any], ranks: int) -> None:
    flat = Flat("unit", [Parameter(f"p{i}", shape) for i, shape in enumerate(shapes)])
    flat.shards = ranks
    buffer = np.arange(flat.padded)
    found: dict[str, list[np.ndarray]] = {}
    for rank in range(ranks):
        which = slice(rank * flat.padded // ranks, (rank + 1) * flat.padded // ranks)
        for name, piece, at in pieces(flat, which):
            assert piece.stop - piece.start == at.stop - at.start
            found.setdefault(name, []).append(buffer[which][at])
    for parameter, view in flat.views(buffer):
        np.testing.assert_array_equal(np.concatenate(found[parameter.name]), view.ravel())
