"""What is promised of local SGD."""

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import letters_in
from minidist.claims.promises import Promises
from minidist.claims.published import print_zero_closing, print_zero_tables
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims
from minidist.papers import local_sgd as paper


def claims(run: Run) -> list[Claim]:
    """The optimizer around the ranks' own, and what all steps together send."""
    o, wide = run.averaging, 8 if run.precision == "fp64" else 4  # the optimizer's copy is averaged
    psi, sent = run.model.parameters(run.ranks), [counted["sent"] for counted in run.counted]
    volume = wide * paper.volume(psi, run.ranks, len(run.loss), o.every)
    outer = paper.outer(psi, o.lr, o.momentum, wide)
    formula = f"{2 * wide}Ψ" if outer else "0"
    return [
        *memory_claims(run, stage=0),
        on_each_rank("DiLoCo §2", "outer optimizer", formula, outer, run.memory_of("outer"), "bytes"),
        on_each_rank("Stich §1", "sent, in T steps", f"⌈T/H⌉·{wide}·2Ψ(N-1)/N", volume, sent, "bytes"),
    ]


PROMISES = Promises(
    claims=claims,
    letters=letters_in("local_sgd", "zero"),
    closing=print_zero_closing,
    published=print_zero_tables,
    whole_run=True,
)
