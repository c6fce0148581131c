"""Tensor parallelism: every matrix is cut, and all ranks work on the same sequences, each with its part.

    mpirun -n 4 python -m minidist.tensor_parallel
    mpirun -n 4 python -m minidist.tensor_parallel --sequence-parallel --recompute selective

Shoeybi et al., "Megatron-LM: Training multi-billion parameter language models using model parallelism", 2019, section 3
(tensor parallelism); Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022, section
4 (sequence parallelism, activations) and 5 (selective recomputation).

Cut the first matrix of the MLP by columns and the second by rows, and nothing need be sent in between:

    GeLU(X [A1 A2]) = [GeLU(X A1), GeLU(X A2)] = [Y1 Y2]        [Y1 Y2] [B1; B2] = Y1 B1 + Y2 B2

Attention is cut by heads, to the same effect. There remains one sum at the end of each half of a layer, and in the
backward one at its beginning, where every rank has used X: the operators g and f, four all-reduces of b·s·h elements a
layer. Norms, dropout and the residual stream are computed on every rank, t times over.

With --sequence-parallel a rank does those for a t-th of the positions. f and g become an all-gather and a
reduce-scatter, the halves of an all-reduce: the same bytes, and no activation is held t times any more.
"""

import copy
from dataclasses import replace
from typing import Any

import numpy as np

from minidist import ring, train
from minidist.claims.published import print_activations_closing
from minidist.engine import Engine, Settings
from minidist.mpi.comm import Comm
from minidist.nn import ops
from minidist.nn.flat import Flat
from minidist.nn.gpt import GPTEmbedding
from minidist.nn.layers import Batch, Block, Embedding, Head, Linear, Unit
from minidist.nn.llama import LlamaEmbedding
from minidist.nn.tensor import Array, Parameter, Tensor, record
from minidist.tp.claims import claims, one_replica
from minidist.tp.group import Group
from minidist.tp.loss import gather_logits, vocabulary_parallel_cross_entropy
from minidist.tp.sliced import Sliced

# ---- communication as operations: over the rings of tp/group.py ------------------------------------------------------


def f(x: Tensor, group: Group) -> Tensor:
    """Before a matrix cut by columns: the identity. Every rank uses all of x, so its gradient is the sum of theirs."""
    return record(x.data, (x,), lambda dy: group.all_reduce(dy, "backward"))


def g(x: Tensor, group: Group) -> Tensor:
    """After a matrix cut by rows: the sum of what the ranks have, and in the backward the identity.

    With sequence parallelism (Korthikanti's ḡ) a rank goes on with its shard of the sum; the backward gathers."""
    if group.sequence:
        return record(group.reduce_scatter(x.data, "forward"), (x,), lambda dy: group.all_gather(dy, "backward"))
    return record(group.all_reduce(x.data, "forward"), (x,), lambda dy: dy)


# ---- the two ways to cut a matrix ------------------------------------------------------------------------------------


class ColumnParallelLinear(Linear):
    """y = x Wᵀ + b cut by outputs: x (B, T, in), or this rank's shard; W (out/t, in); y (B, T, out/t).

    Sections that lie one after another, as Q, K and V do, are each cut evenly.
    """

    def __init__(self, weight: Parameter, bias: Parameter | None, group: Group, *sections: int) -> None:
        self.weight, self.group = group.slice(weight, 0, *sections), group
        self.bias = group.slice(bias, 0, *sections) if bias else None
        self.parameters = [self.weight] + ([self.bias] if self.bias else [])

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias, group = self.weight, self.bias, self.group
        if not group.sequence:
            return ops.linear(f(x, group), weight, bias)
        # Korthikanti's g: an all-gather, and in the backward a reduce-scatter. Being one operation with the product, it
        # keeps no more than the shard; the whole is gathered again for the weight's gradient.
        y = group.all_gather(x.data, "forward") @ weight.data.T  # (B, T, in) x (in, out/t)
        if bias is not None:
            y += bias.data

        def backward(dy: Array, x: Array) -> Array:
            return group.reduce_scatter(dy @ weight.data, "backward")

        def weight_backward(dy: Array, x: Array) -> None:
            rows, dy = group.all_gather(x, "again").reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
            weight.accumulate(lambda out: np.matmul(dy.T, rows, out=out))  # (out/t, n) x (n, in)
            if bias is not None:
                bias.accumulate(lambda out: np.sum(dy, axis=0, out=out))

        return record(y, (x,), backward, keep=(x.data,), weight_backward=weight_backward)


class RowParallelLinear(Linear):
    """y = x Wᵀ + b cut by inputs: x (B, T, in/t), W (out, in/t); y (B, T, out), or this rank's shard of it."""

    def __init__(self, weight: Parameter, bias: Parameter | None, group: Group) -> None:
        self.weight, self.bias, self.group = group.slice(weight, 1, weight.shape[1]), bias, group
        self.parameters = [self.weight] + ([bias] if bias else [])

    def __call__(self, x: Tensor) -> Tensor:
        y = g(ops.linear(x, self.weight), self.group)
        return y if self.bias is None else ops.add_bias(y, self.bias)  # once, not t times


# ---- both ends of the model: a vocabulary cut by entries -------------------------------------------------------------


class VocabularyParallelEmbedding(Embedding):
    """Rows of W (V'/t, C), where V' is the vocabulary padded until it divides. For others' tokens a rank has zeros."""

    def __init__(self, weight: Parameter, group: Group, padded: int) -> None:
        self.weight, self.group = group.slice(weight, 0, padded), group
        self.parameters = [self.weight]

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

    def __init__(self, head: Head, matrix: ColumnParallelLinear, owner: Unit | None, gather: bool) -> None:
        super().__init__(head.norm, matrix, owner)
        self.matrix, self.gather, self.vocabulary = matrix, gather, head.weight.shape[0]

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        logits = self.matrix(self.norm(x))  # (B, T, C) -> (B, T, V'/t)
        if batch.targets is not None and not self.gather:
            return vocabulary_parallel_cross_entropy(logits, batch.targets, self.vocabulary, self.matrix.group)
        logits = gather_logits(logits, self.vocabulary, self.matrix.group)
        return logits if batch.targets is None else ops.cross_entropy(logits, batch.targets)


# ---- the model, cut --------------------------------------------------------------------------------------------------


def split(units: list[Unit], group: Group, gather: bool = False) -> list[Unit]:
    """The same model, cut for the group's ranks; `units` stay as they are.

    Layers are exchanged, and that is all: what a unit does with its layers remains what gpt.py and llama.py say.
    """
    embedding, *blocks, head = copy.deepcopy(units)
    assert isinstance(embedding, GPTEmbedding | LlamaEmbedding)
    assert isinstance(head, Head)
    ends, part = replace(group, where="ends"), (group.comm.rank, group.comm.size)
    padded = -(-head.weight.shape[0] // part[1]) * part[1]  # the vocabulary, with entries that never occur
    owner = embedding if head.weight is embedding.token.weight else None

    embedding.token = VocabularyParallelEmbedding(embedding.token.weight, ends, padded)
    matrix = ColumnParallelLinear(head.weight, None, ends, padded)
    if owner:
        matrix.weight = embedding.token.weight  # one matrix, and not two that start alike
    positions = [embedding.position] if isinstance(embedding, GPTEmbedding) else []
    embedding.own([embedding.token, *positions])
    if group.sequence:
        embedding.dropout.part = part
        for layer in positions:
            layer.part = part
    for block in blocks:
        assert isinstance(block, Block)
        split_block(block, group, part)
    return [embedding, *blocks, ParallelHead(head, matrix, owner, gather)]


def split_block(block: Block, group: Group, part: tuple[int, int]) -> None:
    """Attention is cut by heads, and so each of Q, K and V; the MLP by its hidden width, SwiGLU's gate and up alike."""
    attention, t = block.attention, group.comm.size
    width, hidden = block.projection.weight.shape[1], block.down.weight.shape[1]
    kv = width // attention.heads * attention.kv_heads
    up = [hidden] * (block.up.weight.shape[0] // hidden)
    attention.heads, attention.kv_heads, attention.part = attention.heads // t, attention.kv_heads // t, part
    if group.sequence:
        block.dropout1.part = block.dropout2.part = part
    block.qkv = ColumnParallelLinear(block.qkv.weight, block.qkv.bias, group, width, kv, kv)
    block.projection = RowParallelLinear(block.projection.weight, block.projection.bias, group)
    block.up = ColumnParallelLinear(block.up.weight, block.up.bias, group, *up)
    block.down = RowParallelLinear(block.down.weight, block.down.bias, group)
    block.own([block.norm1, block.qkv, block.projection, block.norm2, block.up, block.down])


class TensorParallel(Engine):
    """Serial training on all of the batch, of a model that is cut. In front of another engine, as parallel3d has it, it
    is that engine's training."""

    def __init__(
        self,
        units: list[Unit],
        settings: Settings,
        tensor: Comm,
        sequence: bool = False,
        gather: bool = False,
        **beside: Any,  # what the engine behind this one takes
    ) -> None:
        self.group = Group(tensor, settings.precision.stored, sequence)
        super().__init__(split(units, self.group, gather), settings, **beside)

    def loss_share(self, loss: float) -> float:
        """All ranks have the same loss, and what they return is added up: rank 0 speaks for all."""
        return loss if self.group.comm.rank == 0 else 0.0

    def reduce(self, flat: Flat) -> None:
        """With sequence parallelism, what is not cut has seen this rank's positions alone: sum those gradients."""
        super().reduce(flat)
        _, grad = self.owned(flat)
        parts = [grad[place] for parameter, place in flat.places(self.piece(flat)) if not isinstance(parameter, Sliced)]
        if self.group.sequence and self.last_micro_batch and parts:
            with self.group.comm.phase("shard gradients"):
                total = ring.all_reduce(self.group.comm, np.concatenate(parts))
            for part in parts:
                part[...], total = total[: part.size], total[part.size :]

    def squares(self, flat: Flat, grad: Array, piece: slice) -> float:
        """Everyone counts its own parts; what all ranks have, rank 0 counts."""
        squares = super().squares
        if self.group.comm.rank == 0:
            return squares(flat, grad, piece)
        own = [place for parameter, place in flat.places(piece) if isinstance(parameter, Sliced)]
        return sum(squares(flat, grad[p], slice(piece.start + p.start, piece.start + p.stop)) for p in own)

    def squared_norm(self) -> float:
        mine = super().squared_norm()
        with self.group.comm.phase("tensor norm"):
            return float(sum(ring.all_gather(self.group.comm, np.array([mine]), self.group.comm.size)))

    def whole_parameters(self, flat: Flat, piece: Array) -> dict[str, Array]:
        """Everyone's parts put together."""
        everyone = self.group.comm.all_gather_object([view for _, view in flat.views(self.whole(flat, piece))])
        joined = zip(flat.parameters, *everyone, strict=True)
        return {p.name: p.join(parts) if isinstance(p, Sliced) else parts[0] for p, *parts in joined}

    def counted(self) -> dict[str, Any]:
        return {**super().counted(), "layer_activations": self.layer_activations}


# ---- the run ---------------------------------------------------------------------------------------------------------


def add_options(parser: train.Parser) -> None:
    parser.add_argument(
        "--sequence-parallel", action="store_true", help="cut norms, dropout and residuals by positions"
    )
    parser.add_argument("--gather-logits", action="store_true", help="for comparison: a loss on every rank's logits")
    parser.set_defaults(dropout=0.1)  # as the papers count activations


def make_engine(units: list[Unit], settings: Settings, comm: Comm, options: train.Options) -> TensorParallel:
    return TensorParallel(units, settings, comm, options.sequence_parallel, options.gather_logits)


if __name__ == "__main__":
    train.main("tensor_parallel", __doc__, make_engine, claims, add_options, one_replica, print_activations_closing)
