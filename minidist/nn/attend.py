"""Attention of some queries over some keys, wherever both stand in the sequence: whole, or put together from parts.

Dao, "FlashAttention-2", 2023, arXiv 2307.08691, sections 2.3 and 3.1. A part, over some of the keys, is a result y and,
for each query, the logarithm of the sum of its exponentials (lse). Two parts over different keys merge, in any order.
With the lse of all keys, the backward of a part computes its probabilities again instead of keeping them.

    q, y, dq      (B, Hkv, G, Tq, D)   G query heads share a key/value head (Ainslie et al. 2023)
    k, v, dk, dv  (B, Hkv, 1, Tk, D)
    lse, dot      (B, Hkv, G, Tq)
    at_q, at_k    (Tq,), (Tk,)         positions in the sequence, rising: a query sees the keys up to its own position

Queries are taken in blocks of positions, a few heads at a time, so that their scores stay in the cache, and a block
looks only at the keys up to its last position. Scores have the keys first, and those of a tile lie together: the
softmax then runs down long columns, and NumPy does that many times faster than along short rows.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from minidist.nn.product import product
from minidist.nn.tensor import Array

# ---- where queries and keys stand ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """One rank's positions of a sequence: `ranks` ranks divide its `length` positions. It holds no array, so a backward
    may hold on to it.

    contiguous   rank r has the r-th of N chunks
    zigzag       of 2N chunks, the r-th and the r-th from the end (Llama 3, section 3.3.2): as many keys before its
                 queries as any other rank
    striped      position i is on rank i mod N (Striped Attention, section 3)
    """

    length: int
    ranks: int = 1
    rank: int = 0
    how: str = "contiguous"
    part: tuple[int, int] = (0, 1)  # (i, n): the i-th of n equal pieces of the rank's positions

    def of(self, rank: int) -> Array:
        """All positions of a rank, rising."""
        n = self.ranks
        if self.how == "striped":
            return np.arange(rank, self.length, n)
        if self.how == "contiguous":
            return self.chunk(n, rank)
        return np.concatenate([self.chunk(2 * n, rank), self.chunk(2 * n, 2 * n - 1 - rank)])

    def chunk(self, n: int, i: int) -> Array:
        """The i-th of n chunks of the sequence: the first `length` mod n chunks are one position longer."""
        short, longer = divmod(self.length, n)
        start = i * short + min(i, longer)
        return np.arange(start, start + short + (i < longer))

    @property
    def here(self) -> Array:
        """The positions of this rank's part."""
        piece, pieces = self.part
        return np.array_split(self.of(self.rank), pieces)[piece]

    @property
    def sizes(self) -> list[int]:
        """The number of each rank's positions."""
        return [len(self.of(rank)) for rank in range(self.ranks)]

    @property
    def whole(self) -> "Span":
        """The sequence, uncut."""
        return Span(self.length)

    def cut(self, part: tuple[int, int]) -> "Span":
        """The i-th of n equal pieces of this rank's positions."""
        return replace(self, part=part)


# ---- tiles -----------------------------------------------------------------------------------------------------------

SCORES = 65_536  # in a tile: they stay in the L2 cache of one core
WIDTH, NARROW = 64, 8  # queries in a tile: at most, and at least


class Tile(NamedTuple):
    """A tile of attention: some heads of some sequences, t queries, and the keys that these may see."""

    keys: tuple[slice, ...]  # where they are in (B, Hkv, 1, Tk, D)
    queries: tuple[slice, ...]  # in (B, Hkv, G, Tq, D)
    both: tuple[slice, ...]  # in (Tk, B, Hkv, G, Tq)
    place: slice  # of its scores among all that are kept
    rest: slice  # of the room for later keys, which its queries do not see
    shape: tuple[int, ...]  # of its scores: (seen, b, h, G, t)
    all_see: int  # the number of keys that each of the queries sees
    first: bool  # whether it is the first for its heads: it sees all keys that the others see


def tiles(q: Array, at_q: Array, at_k: Array, narrow: int) -> list[Tile]:
    """All tiles, the last queries first. A tile has as many heads as stay in the cache or, if all heads of a sequence
    do, as many sequences."""
    batch, heads, group, _, _ = q.shape
    return _tiles(batch, heads, group, at_q.tobytes(), at_k.tobytes(), narrow)


@lru_cache(maxsize=32)  # every layer asks for the same, in its forward and in its backward
def _tiles(batch: int, heads: int, group: int, queries: bytes, keys: bytes, narrow: int) -> list[Tile]:
    at_q, at_k = np.frombuffer(queries, np.intp), np.frombuffer(keys, np.intp)
    some = max(1, SCORES // (max(len(at_k), 1) * min(len(at_q), WIDTH) * group))  # key/value heads
    sequences, end, every, found = max(1, some // heads), 0, slice(None), []
    for at, least, seen in blocks_of_queries(at_q, at_k, narrow):
        for b in range(0, batch, sequences):
            for h in range(0, heads, some):
                of = slice(b, min(b + sequences, batch)), slice(h, min(h + some, heads)), every
                shape = (seen, of[0].stop - b, of[1].stop - h, group, at.stop - at.start)
                start, rest = end, end + math.prod(shape)
                end += math.prod(shape[1:]) * len(at_k)
                seen_keys, place, first = slice(seen), slice(start, rest), at.stop == len(at_q)
                where = (*of, seen_keys), (*of, at), (seen_keys, *of, at)
                found.append(Tile(*where, place, slice(rest, end), shape, least, first))
    return found


def blocks_of_queries(at_q: Array, at_k: Array, narrow: int) -> Iterator[tuple[slice, int, int]]:
    """Blocks of queries, the last first, each with the number of keys that its first and its last query see.

    A block is halved, down to `narrow`, while its queries share too few keys: while more than an eighth of the work
    would be for keys that a query does not see.
    """
    seen = np.searchsorted(at_k, at_q, "right")  # the number of keys that each query sees
    blocks = [slice(max(0, stop - WIDTH), stop) for stop in range(len(at_q), 0, -WIDTH)][::-1]
    while blocks:
        at = blocks.pop()
        least, most, needed = int(seen[at.start]), int(seen[at.stop - 1]), int(seen[at].sum())
        if at.stop - at.start > narrow and 8 * ((at.stop - at.start) * most - needed) > needed:
            middle = (at.start + at.stop) // 2
            blocks += [slice(at.start, middle), slice(middle, at.stop)]
        else:
            yield at, least, most


class Hidden:
    """Which keys are later than a tile's queries. Tiles of the same queries follow each other and share a mask."""

    def __init__(self, at_q: Array, at_k: Array, dtype: np.dtype) -> None:
        self.at_q, self.at_k, self.minus, self.zero = at_q, at_k, dtype.type(-np.inf), dtype.type(0)
        self.queries: slice | None = None

    def of(self, tile: Tile) -> Array:
        """The mask of the last keys (some, 1, 1, 1, t): -inf where the key is later than the query, otherwise 0."""
        if self.queries is not tile.queries[-1]:
            self.queries = tile.queries[-1]
            later = self.at_k[tile.all_see : tile.shape[0], None] > self.at_q[self.queries]
            self.array = np.where(later, self.minus, self.zero)[:, None, None, None]
        return self.array

    def pairs(self, tile: Tile) -> int:
        """The number of pairs of a query and a key that it sees."""
        return math.prod(tile.shape[1:4]) * (tile.shape[0] * tile.shape[4] - int(np.count_nonzero(self.of(tile))))


# ---- what the backward knows of the probabilities --------------------------------------------------------------------


class ProbabilityDropout(NamedTuple):
    """Dropout of probabilities: one stays, divided by 1-p, if the mask (Tk, B, Hkv, G, Tq) is true."""

    mask: Array
    p: float

    def __call__(self, tile: Tile, prob: Array, out: Array | None = None) -> Array:
        """A tile's probabilities after dropout; or, from the gradient after dropout, the gradient before it."""
        left = np.multiply(prob, self.mask[tile.both], out=out)
        left *= 1 / (1 - self.p)
        return left

    def of(self, keys: Array) -> "ProbabilityDropout":
        """The dropout for some of these keys."""
        return ProbabilityDropout(self.mask[keys], self.p)


class SavedProbabilities:
    """Keeps all probabilities, tile after tile; with dropout also its mask and result: Korthikanti's 5as²b bytes."""

    def __init__(self, prob: Array, dropped: Array, mask: Array | None, p: float) -> None:
        """prob, dropped (B·H·T²,): before and after dropout; one array without it. mask: (T keys, B, Hkv, G, T)."""
        self.prob, self.dropped = prob, dropped
        self.dropout = None if mask is None else ProbabilityDropout(mask, p)

    def room(self, tile: Tile) -> Array:
        """The room for a tile's probabilities."""
        self.prob[tile.rest] = 0
        return self.prob[tile.place].reshape(tile.shape)

    def drop(self, tile: Tile, prob: Array) -> Array:
        """A tile's probabilities after dropout."""
        if self.dropout is None:
            return prob
        self.dropped[tile.rest] = 0
        return self.dropout(tile, prob, out=self.dropped[tile.place].reshape(tile.shape))

    def find(self, tile: Tile, hidden: Hidden, q: Array, k: Array) -> tuple[Array, Array]:
        """A tile's probabilities, before and after dropout."""
        prob = self.prob[tile.place].reshape(tile.shape)
        return prob, prob if self.dropout is None else self.dropped[tile.place].reshape(tile.shape)

    def center(self, tile: Tile, dp: Array, prob: Array) -> None:
        """Turn the gradient after dropout into the one before it, less Σ dp p of each query, in place."""
        if self.dropout:
            self.dropout(tile, dp, out=dp)
        dp -= np.einsum("kbhgq,kbhgq->bhgq", dp, prob)


class SavedStatistics:
    """Computes probabilities again. It keeps only, over all keys, lse and dot = Σ dy·y, which is Σ dp p, also with
    dropout (FlashAttention-2, section 3.1)."""

    def __init__(self, lse: Array, dot: Array, drop: ProbabilityDropout | None = None) -> None:
        self.lse, self.dot, self.dropout = lse, dot, drop

    def find(self, tile: Tile, hidden: Hidden, q: Array, k: Array) -> tuple[Array, Array]:
        prob = scores(q, k, tile, hidden)
        prob -= self.lse[tile.queries]
        np.exp(prob, out=prob)
        return prob, self.dropout(tile, prob) if self.dropout else prob

    def center(self, tile: Tile, dp: Array, prob: Array) -> None:
        if self.dropout:
            self.dropout(tile, dp, out=dp)
        dp -= self.dot[tile.queries]


# ---- forward, merge, backward ----------------------------------------------------------------------------------------


def attend(
    q: Array, k: Array, v: Array, at_q: Array, at_k: Array, y: Array,
    kept: SavedProbabilities | None = None, on_tile: Callable[[int], None] | None = None,
    drop: ProbabilityDropout | None = None,
) -> Array:  # fmt: skip
    """Write softmax(q kᵀ/√D) v into y. A query that sees none of these keys gets zeros. Returns lse, -inf for such a
    query, if the probabilities are not kept.

    on_tile: called with the number of pairs of query and key in each tile that has been computed.
    drop: dropout of probabilities that are not kept.
    """
    lse = np.empty(q.shape[:-1], q.dtype)
    finite = np.finfo(q.dtype)  # its least number, because -inf - -inf is not a number
    hidden = Hidden(at_q, at_k, q.dtype)
    with np.errstate(divide="ignore"):  # the logarithm of 0
        for tile in tiles(q, at_q, at_k, WIDTH if kept else NARROW):
            prob = scores(q, k, tile, hidden, kept.room(tile) if kept else None)  # (seen, b, h, G, t)
            top = prob.max(axis=0, initial=finite.min)
            prob -= top
            np.exp(prob, out=prob)
            total = prob.sum(axis=0)
            prob *= 1 / np.maximum(total, finite.tiny)
            if kept:
                prob = kept.drop(tile, prob)
            else:
                lse[tile.queries] = top + np.log(total)
            if drop:
                drop(tile, prob, out=prob)
            product(prob.transpose(1, 2, 3, 4, 0), v[tile.keys], y[tile.queries])  # (.., t, seen) x (.., seen, D)
            if on_tile:
                on_tile(hidden.pairs(tile))
    return lse


def merge(y: Array, lse: Array, other: Array, other_lse: Array) -> Array:
    """Add to y the part of the same queries over other keys; returns the lse of both. Each query has seen a key."""
    both = np.logaddexp(lse, other_lse)
    y *= np.exp(lse - both)[..., None]
    other *= np.exp(other_lse - both)[..., None]
    y += other
    return both


def attend_back(
    dy: Array, q: Array, k: Array, v: Array, at_q: Array, at_k: Array, known: SavedProbabilities | SavedStatistics,
    dq: Array, dk: Array, dv: Array,
) -> None:  # fmt: skip
    """Write into dq, dk and dv what these keys contribute. `known` covers all keys that the queries see."""
    hidden = Hidden(at_q, at_k, q.dtype)
    for tile in tiles(q, at_q, at_k, WIDTH if isinstance(known, SavedProbabilities) else NARROW):
        prob, dropped = known.find(tile, hidden, q, k)  # (seen, b, h, G, t)
        _add(dv, tile, dropped, dy)
        ds = np.empty_like(prob)
        product(v[tile.keys], turned(dy[tile.queries]), ds.transpose(1, 2, 3, 0, 4))  # (.., seen, D) x (.., D, t)
        known.center(tile, ds, prob)
        # softmax: ds = p (dp - Σ dp p); p is zero for later keys, so ds is too
        ds *= prob
        _add(dk, tile, ds, q)
        product(ds.transpose(1, 2, 3, 4, 0), k[tile.keys], dq[tile.queries])  # (.., t, seen) x (.., seen, D)


def _add(total: Array, tile: Tile, a: Array, x: Array) -> None:
    """Add to total (B, Hkv, 1, Tk, D) the product (seen, b, h, G, t) x (b, h, G, t, D), summed over the group."""
    seen, b, h, group, t = a.shape
    a = a.reshape(seen, b, h, 1, group * t).transpose(1, 2, 3, 0, 4)
    x = x[tile.queries].reshape(b, h, 1, group * t, -1)
    if tile.first:  # nothing is there yet
        product(a, x, total[tile.keys])
        if seen < total.shape[3]:
            total[(*tile.keys[:3], slice(seen, None))] = 0
    else:
        total[tile.keys] += product(a, x)


# ---- helpers ---------------------------------------------------------------------------------------------------------


def scores(q: Array, k: Array, tile: Tile, hidden: Hidden, out: Array | None = None) -> Array:
    """q·k/√D of a tile (seen, b, h, G, t), and -inf where the key is later than the query."""
    out = np.empty(tile.shape, q.dtype) if out is None else out
    product(k[tile.keys], turned(q[tile.queries]), out.transpose(1, 2, 3, 0, 4))  # (.., seen, D) x (.., D, t)
    out[tile.all_see :] += hidden.of(tile)
    return out


def turned(x: Array) -> Array:
    """(b, h, G, t, D) -> (b, h, G, D, t), over √D: a copy, with which a product is faster than with the view."""
    return np.multiply(x.swapaxes(3, 4), 1 / math.sqrt(x.shape[-1]), order="C")


def by_head(x: Array, heads: int, depth: int) -> Array:
    """(B, T, n·D) -> (B, Hkv, n/Hkv, T, D), a view: BLAS does not mind how far apart the rows are."""
    return x.reshape(*x.shape[:2], heads, -1, depth).transpose(0, 2, 3, 1, 4)


def split_heads(qkv: Array, heads: int, kv_heads: int) -> tuple[Array, Array, Array]:
    """q, k and v, views of [Q | K | V] (B, T, (H + 2·Hkv)·D)."""
    depth = qkv.shape[-1] // (heads + 2 * kv_heads)
    q, k, v = np.split(qkv, (heads * depth, (heads + kv_heads) * depth), axis=-1)
    return by_head(q, kv_heads, depth), by_head(k, kv_heads, depth), by_head(v, kv_heads, depth)


def keys_first(mask: Array, kv_heads: int) -> Array:
    """(B, H, Tq, Tk) -> (Tk, B, Hkv, G, Tq), a view."""
    batch, _, queries, keys = mask.shape
    return mask.transpose(3, 0, 1, 2).reshape(keys, batch, kv_heads, -1, queries)


def dot(dy: Array, y: Array) -> Array:
    """Σ dy·y / √D of each query: with the factor that scores have, as dy has it in the backward."""
    return np.einsum("bhgtd,bhgtd->bhgt", dy, y) / math.sqrt(y.shape[-1])
