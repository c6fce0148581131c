"""Flats whose parameters other ranks share than the data axis: each is summed over its own group, whatever it goes
through."""

from functools import partial

import numpy as np
import pytest

from jobs import engines
from minidist.engine import Engine
from minidist.exchange.one_process import run_ranks
from minidist.mpi.comm import Comm
from minidist.nn.layers import flats_of

SIZES = (None, 100, 1_000, 10**9)  # elements of the buffer; None: a unit's gradient by itself


def updated(comm: Comm, engine: str, bucket_size: int | None) -> list[np.ndarray]:
    """What a rank holds of each Flat after a step in which the second unit is shared by pairs of the four ranks."""
    units, settings = engines.model("gpt untied"), engines.settings("fp64", "sgd", 2, clip=0)
    settings.bucket_size = bucket_size
    pair = comm.split(comm.rank // 2)
    for flat in units[1].flats:
        flat.divide(pair)
    made: Engine = engines.ENGINES[engine](units, settings, comm)
    made.train_batch(*engines.batch(0, 8))
    return [flat.master.copy() for flat in flats_of(units)]


@pytest.mark.parametrize("engine", ["data_parallel", "zero1", "zero2", "zero3"])
def test_a_buffer_sums_each_flat_over_its_own_ranks(engine: str) -> None:
    plain, *buffered = (run_ranks(partial(updated, engine=engine, bucket_size=size), 4) for size in SIZES)
    for ranks in buffered:
        for whole, parts in zip(plain, ranks, strict=True):
            for expected, found in zip(whole, parts, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-12)
    first, other = plain[0][1], plain[2][1]  # of another pair, which has seen other rows
    assert not np.allclose(first, other)
