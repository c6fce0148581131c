"""Context parallelism: every rank has some positions of each sequence, and keys and values come to it.

    mpirun -n 4 python -m minidist.context_parallel --cp 4 --scheme ring
    mpirun -n 4 python -m minidist.context_parallel --cp 4 --scheme ulysses
    mpirun -n 4 python -m minidist.context_parallel --cp 2 --positions contiguous --zero 3
    mpirun -n 4 python -m minidist.context_parallel --compare

Liu, Zaharia & Abbeel, "Ring Attention with blockwise transformers for near-infinite context", 2023, arXiv 2310.01889.
Brandon et al., "Striped Attention", 2023, arXiv 2311.09431. Jacobs et al., "DeepSpeed Ulysses", 2023, arXiv 2309.14509.
Grattafiori et al., "The Llama 3 herd of models", 2024, arXiv 2407.21783, section 3.3.2 (all-gather, zigzag).

A sequence of s positions is cut over N ranks: each works on c = s/N of them, and keeps activations for c. Norms,
matrices and the loss look at each position alone, so they send nothing. Only attention looks at other positions. Three
schemes differ in how queries meet the keys and values of other ranks:

    ring         blocks of keys and values travel around the ring. Each step adds a part of the result, merged by the
                 log-sum-exp. In the backward the blocks travel again, and their gradients travel home.
    all-gather   every rank gathers all keys and values, and drops them afterwards. Any mask is easy. Gradients are
                 reduce-scattered. The bytes are those of the ring.
    ulysses      an all-to-all exchanges positions for heads, and back: in between each rank has all positions of some
                 heads, and no attention is cut.

With a causal mask, late positions cost more than early ones. If positions are contiguous, the last rank has 2 - 1/N of
the mean work, and the others wait for it. Zigzag and striped positions (`minidist/nn/attend.py`) balance the work.

Every rank has the gradient of all parameters, from its own positions. So the data axis, along which gradients are
summed and ZeRO divides model states, has dp x cp ranks.

An evaluation is cut in the same way, and rank 0 prints the sum of the ranks' parts. For `--sample` rank 0 puts the
model together, writes on its own, and prints. This chapter is long because it has three schemes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from minidist import contents, ring
from minidist.cp.group import ContextGroup, Masks, no_mask
from minidist.data_parallel import Axes, DataParallel
from minidist.engine import Settings
from minidist.layout import Layout, Mesh
from minidist.mpi.comm import Comm
from minidist.nn.attend import SavedStatistics, Span, attend, attend_back, by_head, dot, merge, split_heads
from minidist.nn.layers import Attention, Batch, Block, Unit
from minidist.nn.tensor import Array, Tensor, record
from minidist.zero3 import LADDER

# ---- ring: keys and values travel, the queries stay ------------------------------------------------------------------


def ring_blocks(group: ContextGroup, k: Array, v: Array, at: Span, when: str) -> Iterator[tuple[int, Array]]:
    """Each rank's block of keys and values (2, B, Hkv, 1, c, D) and whose it is, this rank's own first. While a block
    is in use, it is already on its way to the next rank."""
    comm, n, rank, sizes = group.comm, group.comm.size, group.rank, at.sizes
    rooms = group.rooms(k, sizes)
    block = rooms.take(sizes[rank])
    block[...] = k, v
    for step in range(n):
        owner, requests = (rank - step) % n, []
        if step < n - 1:
            coming = rooms.take(sizes[owner - 1])
            with comm.phase(f"keys and values {when}", leave_open=True):
                requests = [comm.isend(block, (rank + 1) % n), comm.irecv(coming, (rank - 1) % n)]
            group.watch.sent()
        yield owner, block.astype(k.dtype, copy=False)
        group.watch.computed()
        for request in requests:
            request.wait()
        if requests:
            block = coming
            group.watch.arrived()


def ring_attention(
    qkv: Tensor, heads: int, kv_heads: int, at: Span, group: ContextGroup, mask: Masks = no_mask
) -> Tensor:
    """Attention of this rank's queries, block after block. In the backward, a block's gradients go around with it:
    every rank adds its part, and the last one sends them home."""
    q, k, v = split_heads(qkv.data, heads, kv_heads)  # (B, Hkv, G, c, D), (B, Hkv, 1, c, D) and once more
    depth = q.shape[-1]
    out = np.empty((*qkv.shape[:2], heads * depth), q.dtype)  # (B, c, H·D)
    y, part, kept_mask = by_head(out, kv_heads, depth), np.empty(q.shape, q.dtype), mask(at.here)
    for owner, (keys, values) in ring_blocks(group, k, v, at, "forward"):
        at_k, on_tile, block_mask = at.of(owner), group.watch.see, kept_mask and kept_mask.of(at.of(owner))
        if owner == group.rank:  # first: from here on, each query has seen a key
            lse = attend(q, keys, values, at.here, at_k, y, on_tile=on_tile, drop=block_mask)
        else:
            lse = merge(y, lse, part, attend(q, keys, values, at.here, at_k, part, on_tile=on_tile, drop=block_mask))

    def backward(dy: Array, qkv: Array, out: Array, lse: Array) -> Array:
        dqkv = np.zeros_like(qkv)
        (q, k, v), (dq, dk, dv) = split_heads(qkv, heads, kv_heads), split_heads(dqkv, heads, kv_heads)
        dy = by_head(dy, kv_heads, depth)
        kept_mask, row_dot = mask(at.here), dot(dy, by_head(out, kv_heads, depth))  # of all keys, in every block
        comm, sizes, part = group.comm, at.sizes, np.empty(q.shape, q.dtype)
        rooms = group.rooms(k, sizes)
        others: Array | float = 0.0  # what other ranks have added to the gradients of the block in use
        for owner, (keys, values) in ring_blocks(group, k, v, at, "backward"):
            dkv = np.empty((2, *keys.shape), keys.dtype)
            known = SavedStatistics(lse, row_dot, kept_mask and kept_mask.of(at.of(owner)))
            attend_back(dy, q, keys, values, at.here, at.of(owner), known, part, *dkv)
            dq += part
            if owner == group.rank:
                home = dkv  # stays here, until the other ranks' part comes
                continue
            going = rooms.take(sizes[owner])
            going[...] = dkv + others
            others = rooms.take(sizes[owner - 1])
            with comm.phase("gradients of keys and values"):
                comm.sendrecv(going, (comm.rank + 1) % comm.size, others, (comm.rank - 1) % comm.size)
        dk[...], dv[...] = home + others
        return dqkv

    return record(out, (qkv,), backward, keep=(qkv.data, out), keep_exact=(lse,))


# ---- all-gather: all keys and values on every rank -------------------------------------------------------------------


def gather(group: ContextGroup, k: Array, v: Array, at: Span, when: str) -> Array:
    """The keys and values of all positions (2, B, Hkv, 1, s, D), from those of each rank."""
    blocks = [group.room((2, *k.shape[:-2], size, k.shape[-1])) for size in at.sizes]
    blocks[group.rank][...] = k, v
    with group.comm.phase(f"keys and values {when}"):
        ring.circulate(group.comm, blocks)
    everything = np.empty((2, *k.shape[:-2], at.length, k.shape[-1]), k.dtype)
    for owner, block in enumerate(blocks):
        everything[..., at.of(owner), :] = block
    return everything


def scatter(group: ContextGroup, dkv: Array, at: Span) -> Array:
    """The gradients of this rank's keys and values, summed over the ranks: (2, B, Hkv, 1, s, D) -> (…, c, D)."""
    parts = [group.pack(dkv[..., at.of(owner), :]) for owner in range(group.comm.size)]
    sums = [group.room(part.shape) for part in parts]
    with group.comm.phase("gradients of keys and values"):
        ring.sum_around(group.comm, parts, sums, None, np.add)
    return sums[group.rank]


def gathered_attention(
    qkv: Tensor, heads: int, kv_heads: int, at: Span, group: ContextGroup, mask: Masks = no_mask
) -> Tensor:
    """Attention of this rank's queries over all keys at once. The gathered keys are not kept for the backward."""
    q, k, v = split_heads(qkv.data, heads, kv_heads)
    depth = q.shape[-1]
    out = np.empty((*qkv.shape[:2], heads * depth), q.dtype)  # (B, c, H·D)
    k, v = gather(group, k, v, at, "forward")
    y, kept_mask = by_head(out, kv_heads, depth), mask(at.here)
    lse = attend(q, k, v, at.here, at.whole.here, y, on_tile=group.watch.see, drop=kept_mask)
    group.watch.computed()

    def backward(dy: Array, qkv: Array, out: Array, lse: Array) -> Array:
        dqkv = np.empty_like(qkv)
        (q, k, v), (dq, dk, dv) = split_heads(qkv, heads, kv_heads), split_heads(dqkv, heads, kv_heads)
        dy = by_head(dy, kv_heads, depth)
        k, v = gather(group, k, v, at, "backward")
        dkv = np.empty((2, *k.shape), k.dtype)
        known = SavedStatistics(lse, dot(dy, by_head(out, kv_heads, depth)), mask(at.here))
        attend_back(dy, q, k, v, at.here, at.whole.here, known, dq, *dkv)
        dk[...], dv[...] = scatter(group, dkv, at)
        return dqkv

    return record(out, (qkv,), backward, keep=(qkv.data, out), keep_exact=(lse,))


# ---- ulysses: heads in exchange for positions ------------------------------------------------------------------------


def to_heads(group: ContextGroup, x: Array, at: Span, when: str) -> Array:
    """(B, Hkv, n, c, D) -> (B, this rank's share of Hkv, n, s, D): positions come in, heads go out."""
    comm, shares = group.comm, group.head_shares(x.shape[1])
    mine = len(shares[group.rank])
    rooms = [group.room((len(x), mine, x.shape[2], size, x.shape[-1])) for size in at.sizes]
    with comm.phase(f"all-to-all {when}"):
        ring.all_to_all_v(comm, [group.pack(x[:, share]) for share in shares], rooms)
    y = np.empty((len(x), mine, x.shape[2], at.length, x.shape[-1]), x.dtype)
    for owner, room in enumerate(rooms):
        y[..., at.of(owner), :] = room
    return y


def to_positions(group: ContextGroup, x: Array, kv_heads: int, at: Span, when: str) -> Array:
    """The way back: (B, this rank's share of Hkv, n, s, D) -> (B, Hkv, n, c, D)."""
    comm, shares = group.comm, group.head_shares(kv_heads)
    c = len(at.here)
    rooms = [group.room((len(x), len(share), x.shape[2], c, x.shape[-1])) for share in shares]
    with comm.phase(f"all-to-all {when}"):
        ring.all_to_all_v(comm, [group.pack(x[..., at.of(owner), :]) for owner in range(comm.size)], rooms)
    return np.concatenate(rooms, axis=1, dtype=x.dtype)


def ulysses_attention(
    qkv: Tensor, heads: int, kv_heads: int, at: Span, group: ContextGroup, mask: Masks = no_mask
) -> Tensor:
    """Attention of some heads, over all positions. Keeps what these heads need: as much as the positions would."""
    cuts = heads // kv_heads, heads // kv_heads + 1  # of the third axis: G queries, a key, a value
    x = to_heads(group, np.concatenate(split_heads(qkv.data, heads, kv_heads), axis=2), at, "before, forward")
    y = np.empty((*x.shape[:2], cuts[0], *x.shape[3:]), x.dtype)
    q, k, v = np.split(x, cuts, axis=2)
    mine = group.head_shares(kv_heads)[group.rank]
    lse = attend(q, k, v, at.whole.here, at.whole.here, y, on_tile=group.watch.see, drop=mask(at.whole.here, mine))
    group.watch.computed()
    depth = x.shape[-1]
    out = np.empty((*qkv.shape[:2], heads * depth), x.dtype)  # (B, c, H·D)
    by_head(out, kv_heads, depth)[...] = to_positions(group, y, kv_heads, at, "after, forward")

    def backward(dy: Array, x: Array, y: Array, lse: Array) -> Array:
        dy, dx = to_heads(group, by_head(dy, kv_heads, depth), at, "after, backward"), np.empty_like(x)
        known = SavedStatistics(lse, dot(dy, y), mask(at.whole.here, mine))
        (q, k, v), parts = np.split(x, cuts, axis=2), np.split(dx, cuts, axis=2)
        attend_back(dy, q, k, v, at.whole.here, at.whole.here, known, *parts)
        dx = to_positions(group, dx, kv_heads, at, "before, backward")  # (B, Hkv, G + 2, c, D)
        dqkv = np.empty((len(dx), dx.shape[3], (heads + 2 * kv_heads) * depth), dx.dtype)
        for whole, part in zip(split_heads(dqkv, heads, kv_heads), np.split(dx, cuts, axis=2), strict=True):
            whole[...] = part
        return dqkv

    return record(out, (qkv,), backward, keep=(x, y), keep_exact=(lse,))


SCHEMES = {"ring": ring_attention, "all-gather": gathered_attention, "ulysses": ulysses_attention}


# ---- the model, with another attention -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContextAttention(Attention):
    """Attention over positions that several ranks have. It keeps no probabilities, so selective recomputation has
    nothing to do. It keeps no dropout mask either: the backward draws it again."""

    scheme: Callable[..., Tensor] = field(kw_only=True)
    group: ContextGroup = field(kw_only=True)

    def __call__(self, qkv: Tensor, batch: Batch) -> Tensor:
        return self.scheme(qkv, self.heads, self.kv_heads, batch.at, self.group, partial(self.drop, batch))


def split(units: list[Unit], group: ContextGroup, scheme: str) -> list[Unit]:
    """The same model for a rank that has some of the positions: only attention differs."""

    def split_block(block: Block) -> Block:
        return replace(block, attention=ContextAttention(**vars(block.attention), scheme=SCHEMES[scheme], group=group))

    return [split_block(unit) if isinstance(unit, Block) else unit for unit in units]


def context_parallel(
    units: list[Unit], settings: Settings, comm: Comm, layout: Layout, scheme: str, positions: str, zero: int = 0
) -> DataParallel:
    """dp x cp ranks: cp of them have the same sequences, and all of them share the parameters."""
    mesh = Mesh(comm, layout)
    group = ContextGroup(mesh.along("context"), settings.precision.stored)
    axes = Axes(rows=mesh.along("host", "shard"), span=Span(0, layout.cp, group.rank, positions))
    engine = LADDER[zero](split(units, group, scheme), settings, comm, axes)
    group.pool = engine.device
    return engine


if __name__ == "__main__":
    contents.run("context_parallel")  # its options, and what the papers promise: programs/context_parallel.py
