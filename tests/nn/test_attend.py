"""Attention put together from parts, compared with attention as a whole; and the work that is done for it."""

import itertools

import numpy as np
import pytest

from minidist.nn.attend import SavedStatistics, Span, attend, attend_back, by_head, dot, merge, split_heads
from minidist.nn.product import flops
from nn.test_ops import true_attention

WAYS = ("contiguous", "zigzag", "striped")


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(("length", "ranks"), [(1, 1), (7, 2), (7, 3), (13, 4), (16, 8), (5, 8), (64, 64), (200, 3)])
def test_a_span_gives_each_position_to_one_rank(how: str, length: int, ranks: int) -> None:
    of = [Span(length, ranks, rank, how).here for rank in range(ranks)]
    assert sorted(np.concatenate(of)) == list(range(length))
    for rank, here in enumerate(of):
        assert (np.diff(here) > 0).all()  # as tiles need them
        assert np.array_equal(Span(length, ranks, 0, how).of(rank), here)
        parts = [Span(length, ranks, rank, how).cut((i, 3)).here for i in range(3)]
        assert np.array_equal(np.concatenate(parts), here)
    assert Span(length, ranks, 0, how).sizes == [len(here) for here in of]
    if length >= 2 * ranks:
        assert max(map(len, of)) - min(map(len, of)) <= (2 if how == "zigzag" else 1)


def test_zigzag_has_the_first_and_the_last_chunk_on_the_first_rank() -> None:
    assert [list(Span(12, 3, rank, "zigzag").here) for rank in range(3)] == [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]


CASES = list(itertools.product(WAYS, [(7, 2), (13, 4), (9, 1), (131, 2), (5, 5)], [(4, 4), (4, 2), (3, 1)]))


@pytest.mark.parametrize(("how", "sizes", "heads"), CASES, ids=lambda case: str(case))
def test_parts_merge_to_the_whole_in_any_order(how: str, sizes: tuple[int, int], heads: tuple[int, int]) -> None:
    """Forward against the definition; backward against that of all keys at once, whose sum over parts it is."""
    (length, ranks), (h, kv), depth = sizes, heads, 3
    rng = np.random.default_rng(length)
    qkv = rng.standard_normal((2, length, (h + 2 * kv) * depth))
    truth = by_head(true_attention(qkv, h, kv), kv, depth)
    q, k, v = split_heads(qkv, h, kv)
    dy, dqkv = rng.standard_normal(truth.shape), np.zeros_like(qkv)
    found = split_heads(dqkv, h, kv)
    at = [Span(length, ranks, rank, how).here for rank in range(ranks)]
    for here in at:
        y = np.empty((2, kv, h // kv, len(here), depth))
        lse = attend(q[..., here, :], k[..., here, :], v[..., here, :], here, here, y)  # its own keys: it sees one
        others = [keys for keys in at if keys is not here]
        for keys in rng.permutation(len(others)):
            k_at, part = others[keys], np.empty_like(y)
            lse = merge(y, lse, part, attend(q[..., here, :], k[..., k_at, :], v[..., k_at, :], here, k_at, part))
        np.testing.assert_allclose(y, truth[..., here, :], rtol=1e-12, atol=1e-13)
        known = SavedStatistics(lse, dot(dy[..., here, :], y))
        for keys in at:
            parts = [np.full_like(x[..., where, :], np.nan) for x, where in ((q, here), (k, keys), (v, keys))]
            attend_back(dy[..., here, :], q[..., here, :], k[..., keys, :], v[..., keys, :], here, keys, known, *parts)
            for x, where, part in zip(found, (here, keys, keys), parts, strict=True):
                x[..., where, :] += part
    everything, wanted = np.arange(length), np.empty_like(qkv)
    y = np.empty(truth.shape)
    lse = attend(q, k, v, everything, everything, y)
    known = SavedStatistics(lse, dot(dy, y))
    attend_back(dy, q, k, v, everything, everything, known, *split_heads(wanted, h, kv))
    np.testing.assert_allclose(dqkv, wanted, rtol=1e-10, atol=1e-12)


def test_the_backward_from_the_lse_is_the_derivative() -> None:
    """By central differences, of a part whose queries see some, all and none of the keys."""
    rng, at_q, at_k = np.random.default_rng(1), np.array([0, 3, 4, 9]), np.array([1, 2, 5])
    q, k, v = (rng.standard_normal((1, 2, group, len(at), 3)) for group, at in ((2, at_q), (1, at_k), (1, at_k)))
    dy, y = rng.standard_normal(q.shape), np.empty_like(q)
    dy[..., 0, :] = 0  # it sees no key
    lse = attend(q, k, v, at_q, at_k, y)
    assert np.isneginf(lse[..., 0]).all()
    assert np.isfinite(lse[..., 1:]).all()
    assert (y[..., 0, :] == 0).all()
    found = [np.empty_like(x) for x in (q, k, v)]
    lse[..., 0] = 0  # of other keys, which the part does not have
    attend_back(dy, q, k, v, at_q, at_k, SavedStatistics(lse, dot(dy, y)), *found)
    for x, dx in zip((q, k, v), found, strict=True):
        for i in np.ndindex(x.shape):
            x[i], before, ends = x[i] + 1e-6, x[i], []
            for step in (0.0, -2e-6):
                x[i] += step
                attend(q, k, v, at_q, at_k, y)
                ends.append((y * dy).sum())
            x[i] = before
            assert abs((ends[0] - ends[1]) / 2e-6 - dx[i]) < 1e-7


@pytest.mark.parametrize("how", WAYS)
def test_the_work_is_that_of_the_pairs(how: str) -> None:
    """At context 256 on 4 ranks: at most 1.15 times the work of the pairs whose query sees the key. A pair takes 2D
    operations in each of 2 products forward and 5 backward."""
    length, ranks, depth = 256, 4, 16
    q = k = v = np.ones((1, 1, 1, length, depth), np.float32)
    pairs, at = list[int](), [Span(length, ranks, rank, how).here for rank in range(ranks)]
    with flops() as counted:
        for here, keys in itertools.product(at, at):
            part = q[..., here, :]
            known = SavedStatistics(np.zeros(part.shape[:-1], q.dtype), np.zeros(part.shape[:-1], q.dtype))
            others = k[..., keys, :], v[..., keys, :]
            attend(part, *others, here, keys, np.empty_like(part), on_tile=pairs.append)
            attend_back(part, part, *others, here, keys, known, np.empty_like(part), *map(np.empty_like, others))
    assert sum(pairs) == length * (length + 1) // 2
    assert counted.count <= 1.15 * 7 * 2 * depth * sum(pairs)
