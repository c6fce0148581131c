"""What one micro-batch takes on a rank of a system such as Megatron-LM: the arrays that layers and the head keep for
their backward, and what their fullest moments allocate in addition. Each array has its line, and nothing is fitted.

T: tokens of the micro-batch on a rank. Tensor-parallel ranks cut heads and widths by t. What is as wide as the model
they cut by positions, if they do at all (Korthikanti, section 4.2.2). `formulas/profile.py` names the assumptions.
"""

from minidist.formulas import experts
from minidist.formulas.asked import Asked
from minidist.formulas.context import blocks
from minidist.papers.decoder import DENSE, Weights

Arrays = dict[str, float]  # bytes, by what they are

FULL_PRECISION = 4  # bytes of a statistic, in every precision that a system mixes


def tokens(run: Asked) -> float:
    """T."""
    return run.rows * run.context / run.layout.cp


def residual(run: Asked) -> float:
    """Bytes of an array as wide as the model: a layer's input."""
    return whole_residual(run) / (run.layout.tp if run.sequence_parallel else 1)


def whole_residual(run: Asked) -> float:
    """The same, with all positions of the tensor-parallel ranks."""
    return run.bytes.stored * tokens(run) * run.model.h


def gathers(run: Asked) -> bool:
    """Whether tensor-parallel ranks cut by positions, and gather these before a matrix that is cut by columns."""
    return run.sequence_parallel and run.layout.tp > 1


# ---- what is kept for the backward -----------------------------------------------------------------------------------


def norm(run: Asked) -> Arrays:
    """A norm's input, its result, which is the input of the next matrix, and its statistics."""
    return {
        "input of norm": residual(run),
        "result of norm": residual(run),
        "statistics of norm": statistics(run, run.model.decoder.norm_bias + 1),
    }


def statistics(run: Asked, numbers: int) -> float:
    """Bytes of this number of statistics for each token: a LayerNorm has two, an RMSNorm one."""
    return FULL_PRECISION * numbers * residual(run) / (run.bytes.stored * run.model.h)


def attention(run: Asked) -> Arrays:
    """Attention's part of a layer. Q, K and V are copies, because positions rotate Q and K. In tiles, the log-sum-exp
    of a row is kept in the place of its scores, and selective recomputation has nothing left to save."""
    of, at = run.model.decoder, run.layout
    cut = run.bytes.stored * tokens(run) / at.tp  # bytes of one number for each token, heads cut
    (wide, value), keys = head_widths(run)
    found = norm(run) | {"queries": cut * of.a * wide, "keys": cut * keys * wide, "values": cut * keys * value}
    found["result of attention"] = cut * of.a * value
    if run.tiled or at.cp > 1:
        found["log-sum-exp"] = FULL_PRECISION * tokens(run) * of.a / at.tp
    elif run.recompute != "selective":
        found["scores"] = scores(run)
    if at.cp > 1 and run.attention == "ulysses":  # before the all-to-all for its backward, after it for the projection
        found["result of attention, sent back"] = found["result of attention"]
    if of.qk_norm:
        found["queries and keys before their norms"] = found["queries"] + found["keys"]
    if latent := of.latent:  # what heads share is whole on each rank, before its norm and after
        each = residual(run) / run.model.h
        ranks = latent.q_rank + latent.kv_rank
        found["latents"] = each * (ranks + latent.rope)
        found["results of latents' norms"] = each * ranks
        found["statistics of latents' norms"] = statistics(run, 1 + (latent.q_rank > 0))
    return found


def head_widths(run: Asked) -> tuple[tuple[int, int], int]:
    """The width of a head's queries and keys, that of its values, and the heads of keys. Latent attention expands keys
    and values for every head."""
    of = run.model.decoder
    return ((of.latent.qk, of.latent.v), of.a) if of.latent else ((of.d, of.d), of.kv)


def scores(run: Asked) -> float:
    """Bytes of attention's probabilities: a number for each head, query and key."""
    return run.bytes.stored * run.model.decoder.a / run.layout.tp * tokens(run) * run.context


def hidden(run: Asked, weights: Weights, rows: float) -> Arrays:
    """What an MLP keeps of this number of rows: the input of SwiGLU or GELU, two numbers for each of its result if
    there is a gate, and this result, which is the input of the second matrix."""
    each = run.bytes.stored * rows
    return {
        "input of activation": each * weights["fc1"].shape[0],
        "result of activation": each * weights["fc2"].shape[1],
    }


def mlp(run: Asked, kind: str) -> Arrays:
    """The MLP's part of a layer, or the mixture's. Norms beyond two follow attention and MLP, and keep their input."""
    of, t = run.model.decoder, run.layout.tp
    found = norm(run)
    if of.norms > 2:
        found["inputs of more norms"] = (of.norms - 2) * (residual(run) + found["statistics of norm"])
    if kind == DENSE or not (mixture := of.mixture):
        return found | hidden(run, of.mlp(of.f, bias=False, t=t), tokens(run))
    made, arrived = rows_of(run)
    found |= {f"experts' {name}": size for name, size in hidden(run, of.expert(t), arrived).items()}
    found["experts' input"] = run.bytes.stored * arrived * of.h
    found["weights of results"] = FULL_PRECISION * made
    found["router"] = ROUTER * residual(run) / (run.bytes.stored * of.h) * mixture.experts
    if mixture.shared:
        shared = of.mlp(mixture.shared, bias=False, t=t)
        found |= {f"shared {name}": n for name, n in hidden(run, shared, tokens(run)).items()}
    return found


ROUTER = 21  # bytes for each token and expert: logits, probabilities, maps; an estimate, 0.2 % of a peak at most


def rows_of(run: Asked) -> tuple[float, float]:
    """Rows that a rank's mixture makes of its tokens, and those that reach its experts."""
    made, arrived = experts.rows_of_mixture(run, 0, run.rows * run.context // run.layout.cp)
    return float(made), arrived


def head(run: Asked, columns: int) -> Arrays:
    """The head's part: logits, in whose place their gradient comes, and the last norm. columns: of logits on a rank.
    Without a fused loss, logits are kept in full precision in addition."""
    logits = tokens(run) * columns
    found = {"logits": run.bytes.stored * logits, "input of norm": residual(run), "result of norm": residual(run)}
    if run.profile.loss == "whole":
        found["logits in float32"] = FULL_PRECISION * logits
    return found


# ---- what the fullest moments have in addition -----------------------------------------------------------------------


def in_head(run: Asked) -> float:
    """The head's backward: the gradient of its input, whole, and this rank's part of the sum over tensor ranks."""
    return whole_residual(run) + residual(run) * gathers(run)


def in_layer(run: Asked, kind: str) -> Arrays:
    """By moment, what a backward of a layer allocates, minus what it has released by then. The gradient of the layer's
    result is always there."""
    return {**(in_mlp(run) if kind == DENSE else in_mixture(run)), "attention": in_attention(run, kind)}


def in_mlp(run: Asked) -> Arrays:
    """SwiGLU: the gradient of its result, just used up, and that of its input. The result itself is gone. fc2, before
    it: its gradient, gathered, and that of SwiGLU's result. fc1, after it: its input, gathered, and that one's
    gradient, whole and summed; SwiGLU's input is gone, too."""
    x, whole = residual(run), whole_residual(run)
    of = run.model.decoder
    made, result = hidden(run, of.mlp(of.f, bias=False, t=run.layout.tp), tokens(run)).values()
    return {
        "activation": x + made,
        "fc2": x + whole * gathers(run) + result,
        "fc1": x + (2 * whole * gathers(run) + x) - result,
    }


def in_mixture(run: Asked) -> Arrays:
    """The forward of the last mixture: variables still refer to rows that were sent, rows that came, results of experts
    and results in the tokens' order, when they are summed for the tokens. And the experts' SwiGLU, in the backward."""
    of, x = run.model.decoder, residual(run)
    _, arrived = rows_of(run)
    rows = run.bytes.stored * arrived * of.h
    made, _ = hidden(run, of.expert(run.layout.tp), arrived).values()
    return {"mixture, forward": 4 * rows + 2 * x, "experts' activation": x + rows + made}


def in_attention(run: Asked, kind: str) -> float:
    """Attention's backward, when the MLP's arrays are gone: gradients of its result, queries, keys and values; whole
    scores again and their gradient; and keys and values of other ranks on their way."""
    of, at = run.model.decoder, run.layout
    (wide, value), keys = head_widths(run)
    cut = run.bytes.stored * tokens(run) / at.tp
    gradients = cut * (of.a * (wide + value) + keys * (wide + value))
    whole = 0.0 if run.tiled or at.cp > 1 else scores(run) * (1 + (run.recompute == "selective"))
    messages = blocks(run, validates=False)[0].backward if at.cp > 1 else 0.0
    return residual(run) + gradients + whole + messages - sum(mlp(run, kind).values())
