"""A layout's numbers of ranks, for any sizes: by Megatron's formula, and by what a group is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minidist import UsageError
from minidist.layout import Layout, Mesh, Place

AXES = Place._fields
SIZES = st.integers(1, 4)
LAYOUTS = st.builds(lambda hosts, shard, pp, cp, tp: Layout(hosts * shard, pp, cp, tp, hosts), *[SIZES] * 5)


@given(LAYOUTS)
def test_tensor_is_innermost_then_context_then_the_pipeline(layout: Layout) -> None:
    for rank in range(layout.ranks):
        at = layout.place(rank)
        data = at.host * layout.shard + at.shard
        assert rank == ((data * layout.pp + at.pipeline) * layout.cp + at.context) * layout.tp + at.tensor
        assert all(here < size for here, size in zip(at, layout.sizes.values(), strict=True))


@given(LAYOUTS, st.sets(st.sampled_from(AXES)))
def test_a_group_differs_along_its_axes_alone(layout: Layout, axes: set[str]) -> None:
    groups = layout.groups(*axes)
    assert sorted(itertools.chain(*groups)) == list(range(layout.ranks))
    for group in groups:
        places = [layout.place(rank)._asdict() for rank in group]
        assert group == sorted(group)
        assert all(len({place[axis] for place in places}) == 1 for axis in AXES if axis not in axes)
        assert len({layout.group(rank, *axes) for rank in group}) == 1
    assert len({layout.group(group[0], *axes) for group in groups}) == len(groups)


def test_servers_and_replicas_are_ranks_too() -> None:
    assert Layout(dp=3, servers=2).ranks == 5
    assert Layout(pp=2, replicas=(3, 1)).ranks == 4


def test_an_axis_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="data"):
        Layout(dp=2).group(0, "data")


def test_a_mesh_of_other_ranks() -> None:
    class Comm:
        rank, size = 0, 4

    with pytest.raises(UsageError, match="host 2 x pipeline 3 is not 4 ranks"):
        Mesh(Comm(), Layout(dp=2, pp=3, hosts=2))
