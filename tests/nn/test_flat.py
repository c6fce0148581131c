"""A unit's parameters as one flat buffer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist.nn.flat import Flat
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.tensor import Released

EMBEDDING, BLOCK, HEAD = gpt(GPTConfig(11, 7, layers=1, heads=3, width=15))


def flat_of(unit: Unit, shards: int) -> Flat:
    """The unit's parameters anew, for so many shards."""
    flat = Flat(unit.name, unit.parameters)
    flat.shards = shards
    return flat


@settings(deadline=None, derandomize=True)
@given(shards=st.integers(1, 70))
def test_layout(shards):
    for unit in (EMBEDDING, BLOCK, HEAD):
        flat = flat_of(unit, shards)
        assert flat.padded % shards == 0
        assert flat.size <= flat.padded < flat.size + shards
        buffer = np.arange(flat.padded)
        views = flat.views(buffer)
        assert [parameter for parameter, _ in views] == unit.parameters
        assert [view.shape for _, view in views] == [parameter.shape for parameter in unit.parameters]
        tiles = np.concatenate([view.ravel() for _, view in views])
        np.testing.assert_array_equal(tiles, buffer[: flat.size])  # side by side, without gap or overlap
        assert all(np.shares_memory(view, buffer) for _, view in views)
        decayed = sum(view.size for _, view in views if view.ndim > 1)
        assert all((view.ravel() < decayed).all() == (view.ndim > 1) for _, view in views)
        assert flat.decayed == decayed


def test_starting_values_do_not_depend_on_the_number_of_shards():
    one, many = flat_of(BLOCK, 1).initial(3), flat_of(BLOCK, 64).initial(3)
    np.testing.assert_array_equal(one, many[: one.size])
    assert not many[one.size :].any()
    for parameter, view in flat_of(BLOCK, 64).views(many):
        np.testing.assert_array_equal(view, parameter.initial(3))


def test_bind_collect_release():
    flat = flat_of(BLOCK, 4)
    values, slopes = flat.initial(0).astype(np.float32), np.zeros(flat.padded, np.float32)
    flat.bind(values, slopes)
    used, unused = BLOCK.parameters[0], BLOCK.parameters[1]
    assert np.shares_memory(used.data, values)
    for parameter in BLOCK.parameters:
        if parameter is not unused:
            parameter.accumulate(lambda out: out.fill(1 / 3))
    used.accumulate(lambda out: out.fill(1))  # a second time: added
    grad = np.full(flat.padded, np.float16(1))
    flat.collect(grad)
    assert grad.dtype == np.float16
    for parameter, view in flat.views(grad):
        added = {used.name: 4 / 3, unused.name: 0}.get(parameter.name, 1 / 3)
        np.testing.assert_array_equal(view, np.float16(1 + added))  # rounded once, after the sum
    np.testing.assert_array_equal(grad[flat.size :], 1)
    flat.release()
    assert flat.values is None
    assert flat.raw_grad is None
    for parameter in BLOCK.parameters:
        assert parameter.grad is None
        with pytest.raises(Released, match=parameter.name):
            _ = parameter.data
