"""What the papers say about expert parallelism, next to what a run held, sent and routed."""

from collections.abc import Sequence

import numpy as np

from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import letters_in
from minidist.claims.promises import Promises
from minidist.claims.run import Run, nothing_else
from minidist.claims.zero import states_claims
from minidist.cli.tables import make_table, say, show
from minidist.formulas import experts
from minidist.formulas.activations import all_keep
from minidist.formulas.needs import needs
from minidist.formulas.shares import Share, count_forwards, shares_of, states_of
from minidist.formulas.volumes import data_elements, expert_volumes
from minidist.papers import chen, deepspeed_moe, mixtral, switch


def claims(run: Run) -> list[Claim]:
    shares, states = shares_of(run), [states_of(run, rank) for rank in range(run.ranks)]
    letters = "(Ψd + Ψe)", "(Ψd/N + Ψe/(N/P))"
    return [
        *sizes(run),
        *states_claims(run, states, run.zero, *letters, "DeepSpeed-MoE §4"),
        *activations(run, shares),
        *all_to_alls(run, shares),
        *exchanges(run, shares),
        *data_axis(run),
        *together(run, shares),
        *routing(run),
    ]


# ---- what is held ----------------------------------------------------------------------------------------------------


def sizes(run: Run) -> list[Claim]:
    """All parameters, each once; and those that a token goes through."""
    seen = run.counted
    everything = seen[0]["dense"] + sum(seen[rank]["experts"] for rank in experts.group_of(run, 0))
    active = seen[0]["dense"] + seen[0]["active experts"]
    psi = f"Ψ + l((E-1)ψ{'ₑ'} + Eh)"
    return [
        Claim("Switch §2.1", "parameters", psi, run.model.parameters(), everything, "", "all ranks"),
        Claim("Switch §2.1", "of a token", "all - l(E-k)ψₑ", run.model.active(), active, "", "all ranks"),
    ]


def activations(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """What layers keep after a forward, and at most. Without a capacity, each step keeps as many rows as its routers
    choose: then the last forward's layers are compared, if all of them or none keep everything."""
    made = []
    if run.capacity is not None or chen.after_forward(run.recompute, run.model.layers).layers in (0, run.model.layers):
        expected = [round(nbytes, 6) for nbytes in (kept.after for kept in all_keep(run, shares))]
        counted = [counts["layer_activations"] for counts in run.counted]
        made.append(on_each_rank("Switch §2.2", "layers keep", "l·layer(rows)", expected, counted, "bytes"))
    if run.capacity is not None:
        made.append(peak_of_layers(run))
    return made


# ---- what is sent ----------------------------------------------------------------------------------------------------


def all_to_alls(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """The number of all-to-alls, and what they send."""
    p = run.layout.ep
    messages = [n / max(1, p - 1) / run.passes for n in run.sent_in(*experts.TOKENS, count="messages")]
    number_of = [(4 * share.layers + 2 * share.layers_again) * (p > 1) for share in shares]
    times = "4l" if not any(share.layers_again for share in shares) else "4l+2r" if run.recompute == "log" else "6l"
    elements, formula = experts.rows(run, count_forwards(run, shares))
    expected = [size * run.model.h for size in elements]
    counted = [nbytes / run.bytes.stored for nbytes in run.sent_in(*experts.TOKENS)]
    return [
        on_each_rank("GShard §3", "all-to-alls", times, number_of, messages, ""),
        on_each_rank("GShard §3", "dispatch, combine", formula, expected, counted, "elements"),
    ]


def exchanges(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """Numbers for each expert: how many rows will come, if no capacity says so; and how often each was chosen."""
    counts, chosen = experts.numbers_sent(run, count_forwards(run, shares))
    rows, times = run.sent_in("counts"), run.sent_in("balance")
    return [
        on_each_rank("MegaBlocks", "counts of rows", "8E(P-1)/P a layer", counts, rows, "bytes"),
        on_each_rank("Switch eq. 5", "shares of choices", "8·2E(N-1)/N likewise", chosen, times, "bytes"),
    ]


def bytes_sent(run: Run, shares: Sequence[Share]) -> int:
    """Bytes of `all_to_alls` and `exchanges`, on all ranks together."""
    return sum(volume.width * sum(volume.elements) for volume in expert_volumes(run, shares))


def data_axis(run: Run) -> list[Claim]:
    """Gradients and parameters: the dense ones over N ranks, an expert's over the N/P ranks that have it."""
    of_ranks, made = [data_elements(run, rank) for rank in range(run.ranks)], []
    for phase in of_ranks[0]:
        factor = run.width(phase) * (2 if phase == "all-reduce gradients" else 1)
        formula, sent = f"{factor}(Ψd(N-1)/N + Ψe(N-P)/N)", [run.width(phase) * of[phase] for of in of_ranks]
        made.append(on_each_rank("DeepSpeed-MoE §4", phase, formula, sent, run.sent_in(phase), "bytes"))
    return made


def together(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """The norm, which counts every expert once; and that nothing else was sent."""
    n = run.ranks
    expected = bytes_sent(run, shares) + 8 * (n - 1) * n
    expected += sum(
        round(run.width(phase) * sent) for rank in range(n) for phase, sent in data_elements(run, rank).items()
    )
    norm = on_each_rank("together", "norm of the gradient", "8(N-1)", 8 * (n - 1), run.sent_in("norm"), "bytes")
    return [norm, *nothing_else(run, expected)]


# ---- where tokens go -------------------------------------------------------------------------------------------------


def routing(run: Run) -> list[Claim]:
    seen = run.counted
    full = [sum(switch.dropped(chosen, experts.room(run)) for chosen in of["forwards"]) for of in seen]
    found = [
        on_each_rank("Switch eq. 3", "choices dropped", "Σ max(0, load-C)", full, [of["dropped"] for of in seen], "")
    ]
    if run.balance:
        e, k = run.model.experts, run.model.top
        cases = ("uniform", "α", [1 / e] * e), ("collapsed", "αE/k", [1 / k] * k + [0] * (e - k))
        for name, formula, prob in cases:
            expected = round(switch.balance(run.balance, [1 / k] * k + [0] * (e - k), prob), 12)
            counted = [round(of[name], 12) for of in seen if name in of]  # a stage may have no layer
            found.append(on_each_rank("Switch eq. 4", f"balance, {name}", formula, expected, counted, ""))
    limit = run.host_limit
    if limit and run.layout.ep_hosts > 1:
        beyond = [sum(map(sum, of["forwards"])) // run.model.top - sum(of["hosts"][:limit]) for of in seen]
        found.append(on_each_rank("DeepSeek-V3", "tokens beyond the limit", "0", 0, beyond, ""))
    return found


# ---- below the claims ------------------------------------------------------------------------------------------------


def print_reached(run: Run) -> None:
    """Where the trained routers send tokens, if experts are on several hosts."""
    of_ranks = [of["hosts"] for of in run.counted if of["hosts"]]  # a stage may have no layer
    if of_ranks:
        reached = np.sum(of_ranks, axis=0)
        mean = float(reached @ np.arange(1, len(reached) + 1) / reached.sum())
        most = np.flatnonzero(reached).max() + 1
        say(f"A token goes to {mean:.2f} of {len(reached)} hosts on average, and to {most} at most.")


def print_closing(run: Run) -> None:
    """What the trained routers do, and where they send tokens."""
    e = run.model.experts
    loads = np.sum([chosen for of in run.counted for chosen in of["forwards"]], axis=0)
    dropped = sum(of["dropped"] for of in run.counted) / loads.sum()
    say(
        f"In the last step the busiest expert got {loads.max() / loads.sum():.1%} of all choices (uniform:"
        f" {1 / e:.1%}), and {dropped:.1%} of all choices were dropped."
    )
    print_reached(run)


def print_tables() -> None:
    """Sizes of published mixtures."""
    table = make_table(left=("model",), right=("billions", "as printed", "of a token", "as printed"))
    for name, pair in mixtral.SIZES.items():
        table.add_row(name, *(cell for figure in pair for cell in (figure.shown(), figure.printed)))
    for figure in deepspeed_moe.FIGURES:
        table.add_row(f"DeepSpeed-MoE {figure.cell}", figure.shown(), figure.printed, "", "")
    show("Published mixtures, by the formula that checked this run", table)


PROMISES = Promises(
    claims=claims, letters=letters_in("expert_parallel"), needs=needs, closing=print_closing, published=print_tables
)
