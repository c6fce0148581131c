"""ZeRO++'s blocks, and its sums of gradients, against plain sums and the paper's bounds."""

import numpy as np
import pytest

from minidist import ring
from minidist.engine import Settings
from minidist.exchange.one_process import run_ranks
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.precision import PRECISIONS
from minidist.papers import zeropp as paper
from minidist.zeropp import ZeROpp, packed, quantized, restored, unpacked


@pytest.mark.parametrize("most", [7, 127])
@pytest.mark.parametrize("c", [1, 8, 13])
def test_no_element_is_off_by_more_than_half_a_step(c: int, most: int) -> None:
    x = np.random.default_rng(c).standard_normal((3, c)) * 10.0 ** np.arange(3)[:, None]
    numbers, scales = quantized(x, 4, most)
    assert abs(numbers).max() <= most
    found = restored(numbers, scales, 4, x.dtype)
    for row, of, scale in zip(x, found, scales, strict=True):
        for i in range(0, c, 4):
            assert abs(row[i : i + 4] - of[i : i + 4]).max() <= 0.5001 * scale[i // 4]
            assert scale[i // 4] == pytest.approx(abs(row[i : i + 4]).max() / most)


def test_an_outlier_costs_its_own_block_alone() -> None:
    x = np.full((1, 8), 0.1)
    x[0, 0] = 1000
    found = restored(*quantized(x, 4, 7), 4, x.dtype)
    assert found[0, 1:4].tolist() == [0, 0, 0]
    np.testing.assert_allclose(found[0, 4:], 0.1, rtol=1e-6)


@pytest.mark.parametrize("c", [1, 2, 7])
def test_two_numbers_fit_into_a_byte(c: int) -> None:
    numbers = np.random.default_rng(c).integers(-7, 8, (3, c)).astype(np.int8)
    pairs = packed(numbers)
    assert pairs.dtype == np.uint8
    assert pairs.shape == (3, -(-c // 2))
    assert np.array_equal(unpacked(pairs, c), numbers)


def gradient(rank: int, size: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(size)


def two_hops(comm: Comm, g: int, size: int, block: int) -> np.ndarray:
    """This rank's shard of the sum of all ranks' gradients, by ZeRO++."""
    units = gpt(GPTConfig(5, 4, layers=1, heads=1, width=4))
    engine = ZeROpp(units, Settings(PRECISIONS["fp64"]), comm, g, block)
    return engine.summed(comm, gradient(comm.rank, size))


def ring_of_int4(comm: Comm, size: int, block: int) -> np.ndarray:
    """The same around a ring, which rounds the partial sum before each of its N-1 messages."""

    def rounded(x: np.ndarray) -> np.ndarray:
        return restored(*quantized(x[None], block, 7), block, x.dtype)[0]

    parts = ring.cut(gradient(comm.rank, size), comm.size)
    partial = parts[comm.rank - 1]
    for step in range(2, comm.size + 1):
        arrived = np.empty_like(partial)
        comm.sendrecv(rounded(partial), (comm.rank + 1) % comm.size, arrived, (comm.rank - 1) % comm.size)
        partial = arrived + parts[comm.rank - step]
    return partial


def error(found: list[np.ndarray], n: int, size: int) -> float:
    """Of the whole sum, relative to it."""
    exact = sum(gradient(rank, size) for rank in range(n))
    return float(np.linalg.norm(np.concatenate(found) - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize(("n", "g"), [(1, 1), (2, 2), (6, 3), (6, 2), (8, 4), (4, 1)])
def test_a_rank_gets_its_own_shard_of_the_sum(n: int, g: int) -> None:
    found = run_ranks(lambda comm: two_hops(comm, g, 24 * n, 6), n)
    assert 0 < error(found, n, 24 * n) < 0.2


def test_the_error_of_two_hops_does_not_grow_and_that_of_a_ring_does() -> None:
    """From 2 to 64 ranks. A ring rounds sums that grow, as often as there are ranks."""
    hops, rings = {}, {}
    for n in (2, 16, 64):
        size = 64 * n
        hops[n] = error(run_ranks(lambda comm: two_hops(comm, 2, size, 32), n), n, size)  # noqa: B023
        rings[n] = error(run_ranks(lambda comm: ring_of_int4(comm, size, 32), n), n, size)  # noqa: B023
    assert hops[64] < 1.2 * hops[2]
    assert rings[64] > 3 * rings[2]
    assert rings[16] > hops[16]


@pytest.mark.parametrize(("w", "g"), [(8, 4), (8, 2), (6, 3)])
def test_one_hop_sends_as_many_times_more_across_as_a_host_has_ranks(w: int, g: int) -> None:
    """An all-to-all among all ranks, in int4, against what ZeRO++ sends."""
    c = 16

    def across(comm: Comm) -> tuple[float, float]:
        with comm.phase("one hop"):
            ring.all_to_all(comm, np.zeros((w, c // 2), np.uint8))
        two_hops(comm, g, w * c, c)
        left = {"one hop": 0.0, "all-to-all across hosts": 0.0}
        for (_, phase, to, unit), nbytes in comm.ledger.ever().items():
            if phase in left and unit == "bytes" and to // g != comm.rank // g:
                left[phase] += nbytes
        return left["one hop"], left["all-to-all across hosts"]

    for one, two in run_ranks(across, w):
        assert one == g * two == c / 2 * (w - g)


def test_both_counts_of_the_paper() -> None:
    """Per host and in the limit: 0.75 in place of 3. On all links of 8 hosts of 8: 1.61 in place of 2.95, 1.8 times."""
    assert paper.leaves_a_host(8, 4) == 0.5625
    assert paper.leaves_a_host_with_zero3(8) == 2.625
    assert paper.leaves_a_host(8 * 10**6, 8) == pytest.approx(0.75, abs=1e-5)
    assert round(paper.on_all_links(64, 8), 2) == 1.61
    assert round(3 * 63 / 64 / paper.on_all_links(64, 8), 1) == 1.8
