"""Tensor parallelism: every matrix is cut, and all ranks work on the same sequences, each with its part of each matrix.

    mpirun -n 4 python -m minidist.tensor_parallel
    mpirun -n 4 python -m minidist.tensor_parallel --sequence-parallel --recompute selective

Shoeybi et al., "Megatron-LM: Training multi-billion parameter language models using model parallelism", 2019,
arXiv 1909.08053, section 3 (tensor parallelism). Korthikanti et al., "Reducing activation recomputation in large
transformer models", 2022, arXiv 2205.05198, section 4 (sequence parallelism, activations) and 5 (selective
recomputation).

Cut the first matrix of the MLP by columns and the second by rows, and nothing has to be sent in between:

    GeLU(X [A1 A2]) = [GeLU(X A1), GeLU(X A2)] = [Y1 Y2]        [Y1 Y2] [B1; B2] = Y1 B1 + Y2 B2

Attention is cut by heads, with the same effect. What remains is one sum at the end of each half of a layer, and, in the
backward, one sum at its beginning, because every rank has used X. These are the operators g and f: four all-reduces of
b·s·h elements per layer. Norms, dropout and the residual stream are computed on every rank, t times in total.

With --sequence-parallel a rank computes these for 1/t of the positions. f and g become an all-gather and a
reduce-scatter, the halves of an all-reduce: the same bytes, and no activation is replicated any more.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from minidist import contents
from minidist.data_parallel import Axes, DataParallel
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn import ops
from minidist.nn.gpt import GPTEmbedding
from minidist.nn.layers import MLP, Batch, Block, Embedding, Head, Linear, Unit, flats_of
from minidist.nn.llama import LlamaEmbedding
from minidist.nn.product import product
from minidist.nn.tensor import Array, Parameter, Tensor, record
from minidist.tp.group import Sliced, TensorGroup
from minidist.tp.loss import gather_logits, vocabulary_parallel_cross_entropy

# ---- communication as operations: over the rings of tp/group.py ------------------------------------------------------


def f(x: Tensor, group: TensorGroup) -> Tensor:
    """Before a matrix cut by columns: the identity. Every rank uses all of x, so x's gradient is the sum over ranks."""
    return record(x.data, (x,), lambda dy: group.all_reduce(dy, "backward"))


def g(x: Tensor, group: TensorGroup) -> Tensor:
    """After a matrix cut by rows: the sum of the ranks' partial results; in the backward, the identity.

    With sequence parallelism (Korthikanti's ḡ) each rank gets only its shard of the sum; the backward gathers."""
    if group.sequence:
        return record(group.reduce_scatter(x.data, "forward"), (x,), lambda dy: group.all_gather(dy, "backward"))
    return record(group.all_reduce(x.data, "forward"), (x,), lambda dy: dy)


def gather(x: Tensor, group: TensorGroup) -> Tensor:
    """Korthikanti's g: this rank's positions, and the others'. Its gradient is a shard of the ranks' sum."""
    return record(group.all_gather(x.data, "forward"), (x,), lambda dy: group.reduce_scatter(dy, "backward"))


# ---- the two ways to cut a matrix ------------------------------------------------------------------------------------


class ColumnParallelLinear(Linear):
    """y = x Wᵀ + b cut by outputs: x (B, T, in), or this rank's shard; W (out/t, in); y (B, T, out/t)."""

    def __init__(self, weight: Parameter, bias: Parameter | None, group: TensorGroup) -> None:
        self.weight, self.bias, self.group = weight, bias, group  # this rank's rows
        self.parameters = [weight] + ([bias] if bias else [])

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias, group = self.weight, self.bias, self.group
        if not group.sequence:
            return ops.linear(f(x, group), weight, bias)
        # Korthikanti's g: an all-gather, and in the backward a reduce-scatter. As one operation with the product, it
        # keeps only the shard of x; all of x is gathered again for the weight's gradient.
        y = product(group.all_gather(x.data, "forward"), weight.data.T)  # (B, T, in) x (in, out/t)
        if bias is not None:
            y += bias.data

        def backward(dy: Array, x: Array) -> Array:
            return group.reduce_scatter(product(dy, weight.data), "backward")

        def weight_backward(dy: Array, x: Array) -> None:
            rows, dy = group.all_gather(x, "again").reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
            weight.accumulate(lambda out: product(dy.T, rows, out))  # (out/t, n) x (n, in)
            if bias is not None:
                bias.accumulate(lambda out: np.sum(dy, axis=0, out=out))

        return record(y, (x,), backward, keep=(x.data,), weight_backward=weight_backward)


class RowParallelLinear(Linear):
    """y = x Wᵀ + b cut by inputs: x (B, T, in/t), W (out, in/t); y (B, T, out), or this rank's shard of it."""

    def __init__(self, weight: Parameter, bias: Parameter | None, group: TensorGroup) -> None:
        self.weight, self.bias, self.group = weight, bias, group  # this rank's columns; all of the bias
        self.parameters = [weight] + ([bias] if bias else [])

    def __call__(self, x: Tensor) -> Tensor:
        y = g(ops.linear(x, self.weight), self.group)
        return y if self.bias is None else ops.add_bias(y, self.bias)  # once, not t times


# ---- embedding and head: a vocabulary cut by entries -----------------------------------------------------------------


class VocabularyParallelEmbedding(Embedding):
    """Rows of W (V'/t, C); V' is the vocabulary padded to a multiple of t. Tokens of other ranks give zeros here."""

    def __init__(self, weight: Parameter, group: TensorGroup) -> None:
        self.weight, self.group = weight, group  # this rank's rows
        self.parameters = [weight]

    def __call__(self, tokens: Tensor) -> Tensor:
        rows, width = self.weight.shape
        first = rows * self.group.comm.rank

        def weight_backward(dy: Array, tokens: Array) -> None:
            here = (first <= tokens) & (tokens < first + rows)  # (B, T)

            def write(out: Array) -> None:
                out.fill(0)
                np.add.at(out, tokens[here] - first, dy[here])

            self.weight.accumulate(write)

        here = (first <= tokens.data) & (tokens.data < first + rows)
        y = np.zeros((*tokens.shape, width), self.weight.data.dtype)  # (B, T, C)
        y[here] = self.weight.data[tokens.data[here] - first]
        keep = (tokens.data,)
        part = record(y, (tokens,), lambda dy, tokens: None, keep=keep, weight_backward=weight_backward)
        return g(part, self.group)


class ParallelHead(Head):
    """The last norm, this rank's logits, and the loss."""

    def __init__(
        self, whole: Head, matrix: ColumnParallelLinear, owner: Unit | None = None, gather: bool = False
    ) -> None:
        super().__init__(whole.norm, matrix, owner)
        self.matrix, self.gather, self.vocabulary = matrix, gather, whole.weight.shape[0]

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        logits = self.matrix(self.norm(x))  # (B, T, C) -> (B, T, V'/t)
        if batch.targets is not None and not self.gather:
            return vocabulary_parallel_cross_entropy(logits, batch.targets, self.vocabulary, self.matrix.group)
        logits = gather_logits(logits, self.vocabulary, self.matrix.group)
        return logits if batch.targets is None else ops.cross_entropy(logits, batch.targets)


# ---- the model, cut --------------------------------------------------------------------------------------------------


def split(units: list[Unit], group: TensorGroup, gather: bool = False) -> list[Unit]:
    """The same model, cut: each rank of the group gets its part. `units` stay unchanged.

    Only the layers are replaced: gpt.py and llama.py still say what a unit does with its layers.
    """
    embedding, *blocks, head = units
    assert isinstance(embedding, GPTEmbedding | LlamaEmbedding)
    assert isinstance(head, Head)
    ends = replace(group, where="ends")
    # The vocabulary is padded with entries that never occur, so that every rank has the same number.
    padded = -(-head.weight.shape[0] // group.comm.size) * group.comm.size
    entries = VocabularyParallelEmbedding(ends.slice(embedding.token.weight, 0, padded), ends)
    first = split_embedding(embedding, entries, group)
    if head.weight is embedding.token.weight:
        last = ParallelHead(head, ColumnParallelLinear(entries.weight, None, ends), owner=first, gather=gather)
    else:
        rows = ColumnParallelLinear(ends.slice(head.weight, 0, padded), None, ends)
        last = ParallelHead(head, rows, gather=gather)
    cut = [first, *(split_block(block, group) for block in blocks), last]

    for flat in flats_of(cut):
        if not isinstance(flat.parameters[0], Sliced):  # the same on every rank, with the same gradient:
            flat.counted = group.comm.rank == 0
            if group.sequence:  # or with its part from this rank's positions
                flat.sum_over["shard gradients"] = group.comm
    return cut


def split_embedding(
    embedding: GPTEmbedding | LlamaEmbedding, entries: VocabularyParallelEmbedding, group: TensorGroup
) -> Unit:
    """Cut the embedding by vocabulary entries. With sequence parallelism a rank continues with its positions only."""
    dropout = replace(embedding.dropout, part=group.positions)
    if isinstance(embedding, LlamaEmbedding):
        return replace(embedding, token=entries, dropout=dropout)
    return replace(
        embedding, token=entries, position=replace(embedding.position, part=group.positions), dropout=dropout
    )


def split_block(block: Unit, group: TensorGroup) -> Block:
    """Attention, with Q, K and V, is cut by heads; the MLP is cut by its hidden width, SwiGLU's gate and up alike."""
    assert isinstance(block, Block)
    attention, t = block.attention, group.comm.size
    width = block.projection.weight.shape[1]
    kv = width // attention.heads * attention.kv_heads

    def column(whole: Linear, *sections: int) -> ColumnParallelLinear:
        bias = group.slice(whole.bias, 0, *sections) if whole.bias else None
        return ColumnParallelLinear(group.slice(whole.weight, 0, *sections), bias, group)

    def row(whole: Linear) -> RowParallelLinear:
        return RowParallelLinear(group.slice(whole.weight, 1, whole.weight.shape[1]), whole.bias, group)

    def mlp(whole: MLP) -> MLP:
        hidden = whole.down.weight.shape[1]
        up = column(whole.up, *[hidden] * (whole.up.weight.shape[0] // hidden))
        return replace(whole, up=up, down=row(whole.down))

    def mixture(whole: Any) -> Any:
        """The router is on every rank, and decides alike. Experts are cut; one rank adds the last bias. With sequence
        parallelism, a rank routes its positions, and gathers all ranks' logits in full precision."""
        cut = [mlp(expert) for expert in whole.experts]
        if group.comm.rank > 0:
            cut = [replace(each, down=RowParallelLinear(each.down.weight, None, group)) for each in cut]
        before, after = partial(gather if group.sequence else f, group=group), partial(g, group=group)
        exact = replace(group, wire=np.result_type(group.wire, np.float32).type, where="router")
        logits = partial(gather, group=exact) if group.sequence else None
        return replace(whole, experts=cut, f=before, g=after, gather=logits)

    return replace(
        block,
        qkv=column(block.qkv, width, kv, kv),
        attention=replace(
            attention, heads=attention.heads // t, kv_heads=attention.kv_heads // t, part=(group.comm.rank, t)
        ),
        projection=row(block.projection),
        mlp=mlp(block.mlp) if isinstance(block.mlp, MLP) else mixture(block.mlp),
        dropout1=replace(block.dropout1, part=group.positions),
        dropout2=replace(block.dropout2, part=group.positions),
    )


def tensor_parallel(
    units: list[Unit], settings: Settings, comm: Comm, sequence: bool = False, gather_logits: bool = False
) -> DataParallel:
    """All ranks work on the whole batch: each is alone on the data axis."""
    group = TensorGroup(comm, settings.precision.stored, sequence)
    axes = Axes(norm_over={"tensor norm": comm}, counts_loss=comm.rank == 0)
    return DataParallel(split(units, group, gather_logits), settings, comm.split(comm.rank), axes)


if __name__ == "__main__":
    contents.run("tensor_parallel")  # its options, and what the papers promise: programs/tensor_parallel.py
