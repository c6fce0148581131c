"""Addresses by first fit, against a memory that is a list of bytes; and in a pool, where a run can fail with a third of
its memory free."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minidist.memory import plot
from minidist.memory.arena import AddressRange, Arena
from minidist.memory.pool import OutOfMemory, Pool

CAPACITY = 40


def runs_of_free(memory: list[int]) -> list[tuple[int, int]]:
    """The stretches of zeros, as long as they can be."""
    ends = [0, *(i for i in range(1, len(memory)) if bool(memory[i]) != bool(memory[i - 1])), len(memory)]
    return [(start, end) for start, end in itertools.pairwise(ends) if not memory[start]]


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 100)), max_size=60))
def test_against_a_list_of_bytes(requests: list[tuple[int, int]]) -> None:
    """Of each request the first number is a size; where it is a multiple of 3 somebody leaves instead."""
    arena, memory, here = Arena(CAPACITY), [0] * CAPACITY, list[AddressRange]()
    for number, (size, chosen) in enumerate(requests, start=1):
        if size % 3 == 0 and here:
            block = here.pop(chosen % len(here))
            arena.free(block)
            memory[block.start : block.start + block.nbytes] = [0] * block.nbytes
        else:
            fits = [start for start in range(CAPACITY - size + 1) if not any(memory[start : start + size])]
            placed = arena.place(size, "workspace")
            assert (placed is None) == (not fits)
            if placed is None:
                continue
            if size:
                assert placed.start == fits[0]  # the first that fits; and so nobody else is there
            memory[placed.start : placed.start + size] = [number] * size
            here.append(placed)
        assert arena.holes == runs_of_free(memory)  # in order, and merged
        assert arena.vacant_bytes == memory.count(0)
        assert arena.largest_hole == max((end - start for start, end in runs_of_free(memory)), default=0)
        assert set(arena.here) == set(here)
    for block in here:
        arena.free(block)
    assert arena.holes == [(0, CAPACITY)]


def test_a_pool_gives_addresses_and_takes_them_back() -> None:
    pool = Pool("device")
    first, second = (pool.zeros("parameters", 10, np.uint8) for _ in range(2))
    arena = Arena(100)
    pool.give_addresses(arena)
    third = pool.zeros("workspace", 5, np.uint8)
    pool.hold("activations", third)  # another name, in the same place
    assert [(block.kind, block.start, block.nbytes) for block in arena.here] == [
        ("parameters", 0, 10),
        ("parameters", 10, 10),
        ("activations", 20, 5),
    ]
    view = first[3:]
    del first
    assert pool.held["parameters"] == 20
    del view
    fourth = pool.zeros("bucket", 7, np.uint8)
    assert [block.start for block in arena.here] == [10, 20, 0]
    assert arena.top == 25
    del second, third, fourth
    assert pool.held["all"] == 0
    assert arena.holes == [(0, 100)]


def test_what_is_free_in_pieces_is_out_of_memory() -> None:
    pool = Pool("device", capacity=100)
    arena = Arena(100)
    pool.give_addresses(arena)
    kept = [pool.zeros("activations", 20, np.uint8) for _ in range(5)]
    del kept[3], kept[1]
    before = pool.held
    with pytest.raises(OutOfMemory) as raised:
        pool.zeros("gathered", 30, np.uint8)
    assert str(raised.value) == (
        "out of memory while the model is made: 30 bytes of gathered do not fit into a hole of the device, though 40 of"
        " its 100 are free (40%): the largest hole has 20"
    )
    assert pool.held == before  # it was not taken
    assert pool.zeros("gathered", 20, np.uint8) is not None


def test_the_picture_has_a_patch_for_each_block() -> None:
    pool, arena = Pool("device"), Arena(1000)
    pool.give_addresses(arena)
    states = pool.zeros("parameters", 300, np.uint8)
    for _ in range(2):
        kept = [pool.zeros("activations", 50, np.uint8) for _ in range(4)]
        pool.mark("unit", "block0 forward")
        del kept
        pool.mark("step", "update")
    assert [block.kind for block in arena.before.blocks] == ["parameters", *["activations"] * 4]
    assert [name for _, name in arena.before.boundaries] == ["block0 forward", "update"]
    picture = plot.draw_arena(arena, "", "svg").decode()
    for text in ("parameters", "activations", "block0 forward", "Addresses of what a rank holds in a step"):
        assert f"<!-- {text}" in picture
    assert len(re.findall(r'id="\w*PolyCollection', picture)) == 5
    failed = plot.draw_arena(arena, "out of memory in block0", "svg").decode()
    assert "<!-- out of memory in block0 -->" in failed
    del states
