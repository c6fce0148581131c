"""What the papers say about tensor parallelism, next to what a run held and sent."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from minidist.claims.activations import activation_formula, formula_of_layers, peak_of_layers
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import letters_in
from minidist.claims.promises import Promises
from minidist.claims.published import print_activations_tables
from minidist.claims.run import Run, nothing_else
from minidist.claims.zero import states_claims, whole_states
from minidist.formulas import tensor
from minidist.formulas.activations import all_keep
from minidist.formulas.needs import needs
from minidist.formulas.shares import Share, shares_of
from minidist.formulas.volumes import Left, others
from minidist.papers import chen
from minidist.papers.collectives import all_reduce_messages

PAPERS_DROPOUT = 0.1


def claims(run: Run) -> list[Claim]:
    """The claims of the chapter on tensor parallelism itself."""
    shares = shares_of(run)
    volumes = [*tensor.layer_volumes(run, shares), *tensor.end_volumes(run, shares)]
    letters = {tensor.TENSOR_NORM: "8(t-1)t", tensor.SHARD_GRADIENTS: f"{run.gradient_bytes}·2(t-1)Ψrest"}
    return [
        *states_claims(run, whole_states(run), 0, "(Ψcut/t+Ψrest)", "", "Megatron §3"),
        *activations(run, shares),
        *collectives(run, shares),
        *(volume_claim(run, volume) for volume in volumes),
        *total_claims(run, volumes, lettered(others(run), letters)),
    ]


def lettered(left: Mapping[str, Left], letters: Mapping[str, str]) -> dict[str, Left]:
    """What the papers leave out, in a chapter's own letters."""
    return {phase: left[phase]._replace(formula=formula) for phase, formula in letters.items()}


# ---- what is held ----------------------------------------------------------------------------------------------------


def activations(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """What layers keep for their backward after a forward, in this training and with the papers' dropout; and the most
    that they ever keep in this training."""
    recompute, n, made = run.recompute, run.model.layers, []
    p, t, sequence = run.bytes.stored, run.layout.tp, run.sequence_parallel
    apiece = chen.after_forward(recompute, n) in (chen.Kept(0, n), chen.Kept(n, 0))  # each layer keeps the same
    own = "a layer keeps" if apiece else "layers keep", "layer_activations", run
    papers = f"with dropout {PAPERS_DROPOUT}", "layer_activations_with_dropout", replace(run, dropout=PAPERS_DROPOUT)
    for name, kind, of in (own, papers):
        if kind not in run.counted[0]:
            continue
        expected, counted = [kept.after for kept in all_keep(of, shares)], [counts[kind] for counts in run.counted]
        formula = formula_of_layers(recompute, p, t, sequence)
        if apiece:
            policy = "full" if recompute == "every:1" else recompute
            formula = activation_formula(p, t, sequence, policy, of.dropout > 0, run.tiled)
            expected, counted = [nbytes / n for nbytes in expected], [nbytes / n for nbytes in counted]
        if run.model.name == "llama" and recompute in ("none", "selective"):
            formula = "likewise, SwiGLU"
        if run.scheme:
            formula = "layer(c)"
        made.append(on_each_rank("Korthikanti" if apiece else "Chen", name, formula, expected, counted, "bytes"))
    return [*made, peak_of_layers(run)]


# ---- what is sent ----------------------------------------------------------------------------------------------------


def volume_claim(run: Run, volume: tensor.Volume) -> Claim:
    """What each rank was to send, next to what it sent."""
    counted = [nbytes / volume.width / volume.times for nbytes in run.sent_in(*volume.phases)]
    order = sorted(range(run.ranks), key=lambda rank: -volume.elements[rank])  # so the table shows the most
    expected, counted = [volume.elements[rank] for rank in order], [counted[rank] for rank in order]
    return on_each_rank(volume.source, volume.name, volume.formula, expected, counted, "elements")


def collectives(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """The number of collectives of l layers in a micro-batch, by their messages: half an all-reduce is t-1."""
    t, log = run.layout.tp, run.recompute == "log"
    # Recomputed layers repeat the forward's two: r with log, otherwise all l.
    times = "4l+2r" if log else "6l" if any(share.layers_again for share in shares) else "4l"

    def of_all_reduce(rank: int, width: int) -> int:
        size = shares[rank].tokens(run.context) * width
        return all_reduce_messages(size, t, run.bytes.stored, run.host[rank // t * t :][:t])

    kinds = {"all-reduces": (tensor.WHOLES, [of_all_reduce(rank, run.model.h) for rank in range(run.ranks)])}
    if run.sequence_parallel:
        halves = [t - 1] * run.ranks
        kinds = {"all-gathers": (tensor.GATHERS, halves), "reduce-scatters": (tensor.SCATTERS, halves)}
    source = "Korthikanti §4" if run.sequence_parallel else "Megatron §3"
    gates = run.model.experts > 0 and not run.sequence_parallel  # sequence parallelism gathers logits instead
    times = times.replace("4l", "5l").replace("6l", "7l") if gates else times
    expected = [(4 + gates) * share.layers + 2 * share.layers_again if t > 1 else 0 for share in shares]
    claims = []
    for name, (names, each) in kinds.items():
        counted = []
        for rank, messages in enumerate(run.sent_in(*tensor.phases("layers", *names), count="messages")):
            routed = gates * shares[rank].layers * (t > 1)  # smaller ones: k for each token
            few = routed and of_all_reduce(rank, run.model.top)
            counted.append((messages / run.passes - routed * few) / max(1, each[rank]) + routed)  # one rank sends none
        claims.append(on_each_rank(source, name, times, expected, counted, ""))
    return claims


def total_claims(
    run: Run, volumes: Sequence[tensor.Volume], beside: Mapping[str, Left], stamps: int = 0
) -> list[Claim]:
    """Claims on all ranks together: what the papers leave out (`beside`), and that nothing else was sent.

    `beside`: other phases -> formula, bytes.
    stamps: messages whose time is sent on the control channel, which may carry nothing else."""
    claims = [
        Claim("in addition", phase, formula, promised, sum(run.sent_in(phase)), "bytes", "all ranks")
        for phase, (formula, promised) in beside.items()
        if promised
    ]
    if stamps:
        messages = sum(run.sent_in("control", count="messages"))
        claims.append(Claim("in addition", "clock stamps", "one a message", stamps, messages, "messages", "all ranks"))
    expected = sum(sum(volume.elements) * volume.times * volume.width for volume in volumes)
    expected += sum(promised for _, promised in beside.values())
    return [*claims, *nothing_else(run, expected, sum(run.sent_in("control")) if stamps else 0)]


PROMISES = Promises(
    claims=claims, letters=letters_in("tensor_parallel"), needs=needs, published=print_activations_tables
)
