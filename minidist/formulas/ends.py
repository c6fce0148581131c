"""What embedding, head and loss keep of a micro-batch, and the tokens of a micro-batch."""

from minidist.formulas.asked import Asked
from minidist.formulas.shares import Share
from minidist.papers import megatron


def end_bytes(run: Asked, share: Share) -> tuple[float, float]:
    """Bytes that embedding and head keep of a micro-batch, without its tokens: a dropout mask; the inputs of the last
    norm and of the matrix; in full precision, the norm's statistics and the probabilities."""
    p, wide, h = run.bytes.stored, run.bytes.computed, run.model.h
    bs, apart = share.tokens(run.context), run.layout.tp if run.sequence_parallel else 1
    statistics = 2 if run.model.name == "gpt" else 1
    first = bs * h * (run.dropout > 0) / apart
    last = bs * (2 * p * h + wide * statistics) / apart + bs * wide * logit_columns(run)
    return first * share.embedding, last * share.head


def logit_columns(run: Asked) -> int:
    """Entries of the vocabulary for which one of t ranks has logits."""
    cut = 1 if run.gather_logits else run.layout.tp
    return megatron.padded_vocabulary(run.model.v, cut) // cut


def token_bytes(run: Asked, share: Share) -> int:
    """Bytes of a micro-batch's tokens, which the embedding keeps, and targets, which the head keeps: 4 each."""
    return 4 * share.tokens(run.context) * (share.embedding + share.head)
