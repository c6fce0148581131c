"""What ZeRO says of a run of any chapter: model states, what is transient, what is sent."""

from collections.abc import Sequence

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.run import Run
from minidist.formulas.shares import states_of
from minidist.formulas.volumes import data_elements
from minidist.formulas.zero import constant_buffer_size, in_passing
from minidist.papers import zero


def memory_claims(run: Run, stage: int) -> list[Claim]:
    """ZeRO's formulas for what a rank holds between steps."""
    p, g, k = run.bytes.stored, run.gradient_bytes, run.optimizer_bytes
    states = zero.model_states(run.model.parameters(run.ranks), run.ranks, stage, p, g, k)
    factors = {"parameters": (p, 3), "gradients": (g, 2), "optimizer": (k, 1)}  # from which stage on it is divided
    whole = sum(factor for factor, divides in factors.values() if stage < divides)
    terms = f"{whole}Ψ" * (whole > 0), f"{p + g + k - whole}Ψ/N" * (stage > 0)
    held = [sum(rank[kind] for kind in factors) for rank in run.memory]
    source = f"ZeRO §5.{stage}" if stage else "ZeRO §3.1"
    return [
        *states_claims(run, [states] * len(held), stage, "Ψ", "Ψ/N", source),
        on_each_rank("ZeRO Fig. 1", "together", " + ".join(filter(None, terms)), states.total, held, "bytes"),
    ]


def states_claims(
    run: Run, states: Sequence[zero.ModelStates], stage: int, whole: str, divided: str, source: str = ""
) -> list[Claim]:
    """ZeRO's formulas for the part of the model that other axes leave to each rank.

    whole, divided: the letters of the formulas, before and after the stage divides it."""
    p, g, k = run.bytes.stored, run.gradient_bytes, run.optimizer_bytes
    source, made = source or f"ZeRO §5.{max(stage, 1)}", []
    for kind, factor, divides in (("parameters", p, 3), ("gradients", g, 2), ("optimizer", k, 1)):
        formula, held = f"{factor}{divided if stage >= divides else whole}", [getattr(of, kind) for of in states]
        made.append(on_each_rank(source, kind, formula, held, run.memory_of(kind), "bytes"))
    return made


def whole_states(run: Run) -> list[zero.ModelStates]:
    """Each rank's model states, in whole bytes."""
    return [zero.ModelStates(*map(round, vars(states_of(run, rank)).values())) for rank in range(run.ranks)]


def peak_claim(run: Run, source: str, claim: str, buckets: int) -> Claim:
    """The most that is held of whole, transient units: `buckets` buffers of the largest one, the last of them for its
    gradient. A tied embedding, which the head also reads, is held together with each other unit. With a buffer of
    constant size, that buffer replaces the last of the buckets, and a tied embedding's gradient is held along with it,
    until its second part is there."""
    embedding, *others = run.model.units(run.ranks)
    largest = embedding + max(others) if run.model.tied else max(embedding, *others)
    p, g = run.bytes.stored, run.gradient_bytes
    if run.model.apart or run.ahead:
        expected = p * in_passing(run)
        return on_each_rank(source, claim, f"{p}·(gathered + summed)", expected, run.memory_of("transient"), "bytes")
    each = p * (buckets - 1) + g
    formula, expected = f"{each}(max ψ + ψ_emb)" if run.model.tied else f"{each}·max ψ", each * largest
    if constant_buffer_size(run):
        gathered = "(max ψ + ψ_emb) + " if run.model.tied else "max ψ + "
        summed = f"{'ψ_emb + ' * run.model.tied}B"
        formula = f"{p}({gathered * (buckets - 1)}{summed})"
        if g != p:
            formula = f"{f'{p}·{gathered}' * (buckets - 1)}{g}({summed})"
        expected = p * (buckets - 1) * largest + g * (embedding * run.model.tied + constant_buffer_size(run))
    return on_each_rank(source, claim, formula, expected, run.memory_of("transient"), "bytes")


def persistent_claims(run: Run) -> list[Claim]:
    """DeepSpeed's persistent parameters: whole on every rank, in addition to its shard of them."""
    if not run.model.apart:
        return []
    p = run.bytes.stored
    held = run.memory_of("persistent")
    return [on_each_rank("DeepSpeed", "persistent", f"{p}Ψ_p", p * run.model.persistent(run.ranks), held, "bytes")]


def buffer_claims(run: Run) -> list[Claim]:
    """What is held in addition to permanent gradients: the buffer of constant size, if there is one."""
    p, elements = run.gradient_bytes, constant_buffer_size(run)
    made = on_each_rank("ZeRO §6.2", "buffer", f"{p}B", p * elements, run.memory_of("transient"), "bytes")
    return [made] if elements else []


def traffic_claims(run: Run) -> list[Claim]:
    """ZeRO's formulas for what a rank sends in a step: by phase, and in total."""
    a, stage, kept = run.accumulate, run.zero, run.keep_last
    times = f"{a}" if a > 1 else ""
    persistent, sent = run.model.persistent(run.ranks), data_elements(run, 0)
    other = "ψ_kept" if kept else "Ψ_p" if persistent else ""
    formulas = {
        "all-reduce gradients": "2Ψ(N-1)/N",
        "all-gather parameters": "Ψ(N-1)/N",
        "all-gather forward": f"{times}(Ψ-Ψ_p)(N-1)/N" if persistent else f"{times}Ψ(N-1)/N",
        "all-gather backward": f"{times}(Ψ-{other})(N-1)/N" if other else f"{times}Ψ(N-1)/N",
        "all-gather persistent": "Ψ_p(N-1)/N",
        "all-gather again": f"{times}Ψ_again(N-1)/N",
        "reduce-scatter gradients": f"{times if stage >= 2 else ''}Ψ(N-1)/N",
    }
    p, g = run.bytes.stored, run.gradient_bytes
    wire = {phase: run.width(phase) for phase in sent}  # bytes of an element: the papers count elements
    claims = [
        on_each_rank("ZeRO §7", phase, f"{of}·{formulas[phase]}", sent[phase] * of, run.sent_in(phase), "bytes")
        for phase, of in wire.items()
    ]
    norms = run.sent_in("norm")  # a float64 from every rank; the papers leave it out
    norm = 8 * (run.ranks - 1) if stage > 0 else 0
    rest = [run.sent_by(rank) - norms[rank] for rank in range(run.ranks)]  # all else that was sent, in any phase
    arrived = [nbytes - norm for nbytes in run.received]  # whatever the senders counted
    sums, gathers = {0: (2, 0), 1: (1, 1), 2: (a, 1), 3: (a, 2 * a)}[stage]  # of Ψ gradients, and of Ψ parameters
    others = f"-{times}ψ_kept" * kept + f"+{times}Ψ_again" * ("all-gather again" in sent)
    others += f"-{2 * a - 1}Ψ_p".replace("-1Ψ", "-Ψ") * (persistent > 0)
    formula = f"{p}·({sums + gathers}Ψ{others})(N-1)/N" if others else f"{p}·{sums + gathers}Ψ(N-1)/N"
    if g != p:
        formula = f"({g}·{sums}Ψ{f'+{p}({gathers}Ψ{others})' * (gathers > 0)})(N-1)/N"
    everything = sum(elements * wire[phase] for phase, elements in sent.items())
    for name, counted in (("total sent", rest), ("total received", arrived)):
        claims.append(on_each_rank("ZeRO §7", name, formula, everything, counted, "bytes"))
    if stage > 0:
        claims.append(on_each_rank("in addition", "norm of the gradient", "8(N-1)", norm, norms, "bytes"))
    return claims
