"""What is held while a backward is split in two (Zero Bubble, section 2): after B, each matrix keeps its input and the
gradient of its output until W. For a layer of GPT that is 7 + 9 numbers of sbh: 32sbh in two bytes each (table 1).

Every other operation frees what it kept as soon as its part of B has run. So B may need more than what was there when
it began, and a walk through a layer's operations says how much.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from minidist.formulas import experts
from minidist.formulas.asked import Asked
from minidist.formulas.ends import logit_columns
from minidist.formulas.shares import Share
from minidist.papers.collectives import chunk_sizes


class Split(NamedTuple):
    """Bytes that a rank's layers hold: the most while B runs, and what then waits for W."""

    most: float
    waiting: float


def layers_split(run: Asked, rank: int, share: Share, layer: float) -> Split:
    """What all layers of a share hold. layer: the bytes of one before B, which goes from the last one to the first."""
    if not share.layers:
        return Split(0, 0)
    changes = [*layer_changes(run, rank, share, layer)]
    more, peak = sum(changes), max(accumulate(changes))
    passed = (share.layers - 1) * max(0.0, more)  # if a layer holds more after B, the peak is in the first one
    return Split(share.layers * layer + passed + peak, share.layers * (layer + more))


def layer_changes(run: Asked, rank: int, share: Share, layer: float) -> Iterator[float]:
    """The bytes that each operation of a layer adds in B, or frees (negative), from the last to the first. Norms and
    attention free all that they kept."""
    p, h, t = run.bytes.stored, run.model.h, run.layout.tp
    n, apart = share.tokens(run.context), run.layout.tp if run.sequence_parallel else 1
    whole, own = p * n * h, p * n * h / apart  # a matrix cut by rows needs the gradient of all positions
    norm = own + (2 if run.model.name == "gpt" else 1) * run.bytes.computed * n / apart
    qkv = p * n * (h + 2 * (h // run.model.a * run.model.kv)) / t
    mlp = [*mlp_changes(run, rank, n, apart, whole)]
    attention = layer - 2 * norm - 2 * own - whole / t - mlp_bytes(run, rank, n)
    yield from mlp
    yield -norm
    yield whole  # the gradient of the projection's output
    yield -attention
    yield qkv
    yield -norm


def mlp_widths(run: Asked, rank: int) -> tuple[float, float]:
    """The width of the first matrix's output and of the second one's input, on a rank."""
    t = run.layout.tp
    if run.model.name == "gpt":
        return 4 * run.model.h / t, 4 * run.model.h / t
    f = chunk_sizes(run.model.mlp_width, t)[run.places[rank].tensor]
    return 2 * f, f


def mlp_bytes(run: Asked, rank: int, n: int) -> float:
    """Bytes that an MLP, or a mixture, keeps of n tokens before B, in addition to its normed input."""
    dense = run.bytes.stored * n * sum(mlp_widths(run, rank))
    return dense + (experts.more_than_an_mlp(run, rank, n) if run.model.experts else 0)


def mlp_changes(run: Asked, rank: int, n: int, apart: int, whole: float) -> Iterator[float]:
    """The changes of an MLP; or of a mixture: sum of results, gates, experts, copies of tokens, router."""
    p, wide = run.bytes.stored, run.bytes.computed
    given, _ = mlp_widths(run, rank)
    if not run.model.experts:
        yield from (whole, -p * n * given, p * n * given)
        return
    made, arrived = experts.rows_of_mixture(run, rank, n)
    yield -(p * made * run.model.h + 4 * made + wide * run.model.top * n)
    yield -(wide * n * run.model.experts + 4 * run.model.top * n)
    yield from (p * arrived * run.model.h, -p * arrived * given, p * arrived * given)
    yield -4 * run.model.top * n
    yield p * n * run.model.experts / apart


def ends_split(run: Asked, share: Share) -> tuple[float, float]:
    """Bytes of the embedding and of the head that wait for W: the gradient of tokens, and, for the last matrix, its
    input and the gradient of the logits."""
    n, p, h = share.tokens(run.context), run.bytes.stored, run.model.h
    last = h / (run.layout.tp if run.sequence_parallel else 1) + logit_columns(run)
    return p * n * h * share.embedding, p * n * last * share.head
