"""What the papers say about expert parallelism, next to what a run held, sent and routed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist.claims import experts
from minidist.claims.activations import Share, count_forwards, keep_after_forward, peak_of_layers
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.run import Asked, Run
from minidist.cli.tables import make_table, say, show
from minidist.command import Job
from minidist.engine import Engine
from minidist.nn.layers import Batch, Block
from minidist.nn.mixture import Mixture, balance, choose, softmax
from minidist.nn.tensor import Tensor
from minidist.papers import chen, context, deepspeed_moe, mixtral, models, switch, zero
from minidist.papers.collectives import chunk_sizes

STATES = ("parameters", "gradients", "optimizer")


def claims(run: Run) -> list[Claim]:
    shares = shares_of(run)
    return [
        *sizes(run),
        *memory(run),
        *activations(run, shares),
        *all_to_alls(run, shares),
        *exchanges(run, shares),
        *data_axis(run),
        *together(run),
        *routing(run),
    ]


# ---- what is held ----------------------------------------------------------------------------------------------------


def one_expert(run: Asked) -> int:
    """Parameters of an expert."""
    [mlp] = run.model.mlp()
    return sum(mlp)


def dense_units(run: Asked) -> list[int]:
    """Parameters of each unit without its experts, padded: all N ranks share them."""
    first, *layers, last = run.model.units()
    dense = [first, *(size - run.options.experts * one_expert(run) for size in layers), last]
    return [models.padded(size, run.ranks) for size in dense]


def expert_units(run: Asked, rank: int) -> list[int]:
    """Parameters of the experts that a rank has in each layer, padded: N/P ranks share them."""
    return [experts.stored(run)[rank].size] * run.options.layers


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


def memory(run: Run) -> list[Claim]:
    """Model states of both groups: N ranks share the dense parameters, and N/P ranks the same experts."""
    o, n, copies = run.options, run.ranks, run.ranks // run.layout.ep
    p, k = run.bytes.stored, run.optimizer_bytes
    dense = zero.model_states(sum(dense_units(run)), n, o.zero, p, p, k)
    routed = [zero.model_states(sum(expert_units(run, rank)), copies, o.zero, p, p, k) for rank in range(n)]
    found = []
    for kind, factor, divided in (("parameters", p, 3), ("gradients", p, 2), ("optimizer", k, 1)):
        expected = [getattr(dense, kind) + getattr(of, kind) for of in routed]
        formula = f"{factor}(Ψd/N + Ψe/(N/P))" if o.zero >= divided else f"{factor}(Ψd + Ψe)"
        found.append(on_each_rank("DeepSpeed-MoE §4", kind, formula, expected, run.memory_of(kind), "bytes"))
    return found


def activations(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """What layers keep after a forward, and at most. Without a capacity, each step keeps as many rows as its routers
    choose: then the last forward's layers are compared, if all of them or none keep everything."""
    o, t, dropout = run.options, run.layout.tp, run.options.dropout > 0
    made = []
    if o.capacity is not None or chen.after_forward(o.recompute, o.layers).layers in (0, o.layers):
        expected = [round(nbytes, 6) for nbytes in keep_after_forward(run, t, shares, dropout)]
        counted = [counts["layer_activations"] for counts in run.counted]
        made.append(on_each_rank("Switch §2.2", "layers keep", "l·layer(rows)", expected, counted, "bytes"))
    if o.capacity is not None:
        made.append(peak_of_layers(run, t, shares))
    return made


# ---- what is sent ----------------------------------------------------------------------------------------------------


def shares_of(run: Asked) -> list[Share]:
    """The share of a micro-batch that each rank works on, if all ranks have all layers."""
    o, cp = run.options, run.layout.cp
    again = chen.runs_again(o.recompute, o.layers)
    rows = chunk_sizes(o.batch // o.accumulate, run.layout.dp)
    lengths = context.sizes(o.context, cp, o.positions) if cp > 1 else [None]
    return [
        Share(rows[share], o.layers, layers_again=again, length=lengths[place.context])
        for share, place in zip(run.data_shares, run.places, strict=True)
    ]


def all_to_alls(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """The number of all-to-alls, and what they send."""
    o, p = run.options, run.layout.ep
    messages = [n / max(1, p - 1) / run.passes for n in run.sent_in(*experts.TOKENS, count="messages")]
    number_of = [(4 * share.layers + 2 * share.layers_again) * (p > 1) for share in shares]
    times = "4l" if not any(share.layers_again for share in shares) else "4l+2r" if o.recompute == "log" else "6l"
    elements, formula = experts.rows(run, count_forwards(run, shares))
    expected = [size * o.width for size in elements]
    counted = [nbytes / run.bytes.stored for nbytes in run.sent_in(*experts.TOKENS)]
    return [
        on_each_rank("GShard §3", "all-to-alls", times, number_of, messages, ""),
        on_each_rank("GShard §3", "dispatch, combine", formula, expected, counted, "elements"),
    ]


def exchanges(run: Run, shares: Sequence[Share]) -> list[Claim]:
    """Numbers for each expert: how many rows will come, if no capacity says so; and how often each was chosen."""
    counts, chosen = experts.numbers_sent(run, count_forwards(run, shares))
    return [
        on_each_rank("MegaBlocks", "counts of rows", "8E(P-1)/P a layer", counts, run.sent_in("counts"), "bytes"),
        on_each_rank(
            "Switch eq. 5", "shares of choices", "8·2E(N-1)/N likewise", chosen, run.sent_in("balance"), "bytes"
        ),
    ]


def bytes_sent(run: Run, shares: Sequence[Share]) -> int:
    """Bytes of `all_to_alls` and `exchanges`, on all ranks together."""
    rows, _ = experts.rows(run, count_forwards(run, shares))
    numbers = experts.numbers_sent(run, count_forwards(run, shares))
    return sum(rows) * run.options.width * run.bytes.stored + sum(map(sum, numbers))


def volumes(run: Run, rank: int) -> dict[str, float]:
    """Elements that a rank sends on the data axis in a step, by phase, for both groups of parameters."""
    o, copies = run.options, run.ranks // run.layout.ep
    found: dict[str, float] = {}
    for units, layer, n in (
        (dense_units(run), dense_units(run)[1], run.ranks),
        (expert_units(run, rank), expert_units(run, rank)[0], copies),
    ):
        again = chen.count_regathered_layers(o.recompute, o.layers) * layer
        for phase, elements in zero.volume(sum(units), n, o.zero, o.accumulate, 0, again).items():
            found[phase] = found.get(phase, 0) + elements
    return found


def data_axis(run: Run) -> list[Claim]:
    """Gradients and parameters: the dense ones over N ranks, an expert's over the N/P ranks that have it."""
    p, of_ranks = run.bytes.stored, [volumes(run, rank) for rank in range(run.ranks)]
    factors = {"all-reduce gradients": 2}
    return [
        on_each_rank(
            "DeepSpeed-MoE §4",
            phase,
            f"{p * factors.get(phase, 1)}(Ψd(N-1)/N + Ψe(N-P)/N)",
            [p * sent[phase] for sent in of_ranks],
            run.sent_in(phase),
            "bytes",
        )
        for phase in of_ranks[0]
    ]


def together(run: Run) -> list[Claim]:
    """The norm, which counts every expert once; and that nothing else was sent."""
    n, p = run.ranks, run.bytes.stored
    expected = bytes_sent(run, shares_of(run)) + 8 * (n - 1) * n
    expected += sum(round(p * sent) for rank in range(n) for sent in volumes(run, rank).values())
    payload = sum(run.sent_by(rank) for rank in range(n))
    return [
        on_each_rank("together", "norm of the gradient", "8(N-1)", 8 * (n - 1), run.sent_in("norm"), "bytes"),
        Claim("together", "sent in all", "nothing else", expected, payload, "bytes", "all ranks"),
        Claim("together", "arrived in all", "nothing else", expected, sum(run.received), "bytes", "all ranks"),
    ]


# ---- where tokens go -------------------------------------------------------------------------------------------------


def routing(run: Run) -> list[Claim]:
    o, seen = run.options, run.counted
    full = [sum(switch.dropped(chosen, experts.room(run)) for chosen in of["forwards"]) for of in seen]
    found = [
        on_each_rank("Switch eq. 3", "choices dropped", "Σ max(0, load-C)", full, [of["dropped"] for of in seen], "")
    ]
    if o.balance:
        e, k = o.experts, o.top
        cases = ("uniform", "α", [1 / e] * e), ("collapsed", "αE/k", [1 / k] * k + [0] * (e - k))
        for name, formula, prob in cases:
            expected = round(switch.balance(o.balance, [1 / k] * k + [0] * (e - k), prob), 12)
            counted = [round(of[name], 12) for of in seen if name in of]  # a stage may have no layer
            found.append(on_each_rank("Switch eq. 4", f"balance, {name}", formula, expected, counted, ""))
    limit = vars(o).get("host_limit")  # FSDP has no such option
    if limit and run.layout.ep_hosts > 1:
        beyond = [sum(map(sum, of["forwards"])) // o.top - sum(of["hosts"][:limit]) for of in seen]
        found.append(on_each_rank("DeepSeek-V3", "tokens beyond the limit", "0", 0, beyond, ""))
    return found


def count(job: Job, engine: Engine) -> dict[str, Any]:
    """After training, on each rank: its parameters by group, and what its routers decided in the last update's step."""
    mixtures = [unit.mlp for unit in engine.units if isinstance(unit, Block) and isinstance(unit.mlp, Mixture)]
    scale, step = engine.loss_scale, engine.steps - 1
    if engine.scaled and scale.last_overflow == scale.step - 1:  # the last step has made no update
        step -= 1
    tallies = [of for mixture in mixtures for key, of in sorted(mixture.tallies.items()) if key[1] == step]
    every = [tally for of in tallies for tally in of]
    routed = [sum(parameter.size for mlp in each.experts for parameter in mlp.parameters) for each in mixtures]
    one = [sum(parameter.size for parameter in each.experts[0].parameters) for each in mixtures]
    hosts = np.sum([tally.hosts for tally in every], axis=0).tolist() if every and every[0].hosts else []
    return {
        "dense": sum(parameter.size for unit in engine.units for flat in unit.flats for parameter in flat.parameters)
        - sum(routed),
        "experts": sum(routed),
        "active experts": sum(job.options.top * size for size in one),
        "forwards": [tally.chosen for tally in every],
        "last": [of[-1].chosen for of in tallies],  # the backward follows it
        "latest": [of.tallies[max(of.tallies)][-1].chosen for of in mixtures if of.tallies],  # in any step
        "dropped": sum(tally.dropped for tally in every),
        "hosts": hosts,
        **({"leave": np.sum([tally.leave for tally in every], axis=0).tolist()} if hosts else {}),
        **(balance_losses(mixtures[0], engine) if mixtures else {}),
    }


def balance_losses(mixture: Mixture, engine: Engine) -> dict[str, float]:
    """The balance loss of a router that gives all experts the same probability, and of one that gives all of it to the
    same k."""
    e, k, tokens = mixture.number, mixture.routing.top, 6
    batch = Batch(np.zeros((1, tokens), np.int32), whole=tokens)
    even = np.zeros((1, tokens, e))
    few = np.where(np.arange(e) < k, 0.0, -1e3) * np.ones((1, tokens, 1))
    found = {}
    for name, logits in (("uniform", even), ("collapsed", few)):
        prob = softmax(logits)
        shares = mixture.shares(choose(prob, k), batch)
        found[name] = float(balance(Tensor(logits), prob, shares, mixture.routing.balance).data)
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
    """The letters; what the trained routers do; sizes of published mixtures."""
    o, p = run.options, run.layout.ep
    say(
        f"N = {run.ranks} ranks share the batch, and P = {p} of them the E = {o.experts} experts; k = {o.top}. T:"
        " tokens of a rank; C: an expert's room; out, in: rows that leave and arrive. Ψe: a rank's experts; Ψd: all"
        " other parameters; ψₑ: one expert; h: width; l: layers."
    )
    loads = np.sum([chosen for of in run.counted for chosen in of["forwards"]], axis=0)
    dropped = sum(of["dropped"] for of in run.counted) / loads.sum()
    say(
        f"In the last step the busiest expert got {loads.max() / loads.sum():.1%} of all choices (uniform:"
        f" {1 / o.experts:.1%}), and {dropped:.1%} of all choices were dropped."
    )
    print()
    table = make_table(left=("model",), right=("billions", "as printed", "of a token", "as printed"))
    for name, pair in mixtral.SIZES.items():
        table.add_row(name, *(cell for figure in pair for cell in (figure.shown(), figure.printed)))
    for figure in deepspeed_moe.FIGURES:
        table.add_row(f"DeepSpeed-MoE {figure.cell}", figure.shown(), figure.printed, "", "")
    show("Published mixtures, by the formula that checked this run", table)
