"""What is promised of Muon under ZeRO-1."""

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import letters_in
from minidist.claims.promises import Promises
from minidist.claims.published import print_zero_closing
from minidist.claims.run import Run
from minidist.papers import muon as paper


def claims(run: Run) -> list[Claim]:
    """ZeRO-1's memory with Muon's state; what is sent, by phase and together."""
    n, model, p, g = run.ranks, run.model, run.bytes.stored, run.gradient_bytes
    k = run.bytes.master + run.bytes.moment  # of Muon's state, the master copy included; AdamW's has a moment more
    matrices, rest = paper.matrices(model), paper.padded_sum(paper.others(model), n)
    whole = run.divide == "matrices"
    psi = sum(matrices) if whole else paper.padded_sum(matrices, n)
    owned = paper.shares(matrices, n) if whole else [psi // n] * n
    states = [k * own + (k + run.bytes.moment) * rest // n for own in owned]
    # A reduce-scatter sends every part but one's own, an all-gather every part but the right neighbor's.
    halves = rest * (n - 1) // n
    wide = 8 if run.precision == "fp64" else paper.GATHERED
    phases = {
        "reduce-scatter gradients": (f"{g}(Ψ - own)", [g * (psi - own + halves) for own in owned]),
        "all-gather momentum": (f"{wide}Ψ_m(N-1)/N", [wide * psi * (n - 1) // n] * n),
        "all-gather parameters": (f"{p}(Ψ - next)", [p * (psi - owned[(r + 1) % n] + halves) for r in range(n)]),
    }
    if whole:
        del phases["all-gather momentum"]
    total = [sum(sent[rank] for _, sent in phases.values()) + 8 * (n - 1) for rank in range(n)]
    formula = f"{k}own + {k + run.bytes.moment}Ψ_a/N"
    return [
        on_each_rank("ZeRO §5.1", "parameters", f"{p}Ψ", p * (psi + rest), run.memory_of("parameters"), "bytes"),
        on_each_rank("ZeRO §5.1", "gradients", f"{g}Ψ", g * (psi + rest), run.memory_of("gradients"), "bytes"),
        on_each_rank("Moonlight §2.3", "optimizer", formula, states, run.memory_of("optimizer"), "bytes"),
        *(
            on_each_rank("Moonlight §2.3", phase, formula, expected, run.sent_in(phase), "bytes")
            for phase, (formula, expected) in phases.items()
        ),
        on_each_rank("arithmetic", "norms", "8(N-1)", 8 * (n - 1), run.sent_in("norm"), "bytes"),
        on_each_rank("arithmetic", "sent", "nothing else", total, [run.sent_by(rank) for rank in range(n)], "bytes"),
        Claim("together", "total received", "nothing else", sum(total), sum(run.received), "bytes", "all ranks"),
    ]


PROMISES = Promises(claims=claims, letters=letters_in("muon", "zero"), closing=print_zero_closing)
