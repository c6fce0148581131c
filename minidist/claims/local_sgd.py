"""What is promised of local SGD."""

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import Letters
from minidist.claims.promises import Promises
from minidist.claims.published import print_zero_closing, print_zero_tables, zero_letters
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims
from minidist.papers import local_sgd as paper


class LocalSGDPromises(Promises):
    whole_run = True
    closing, published = staticmethod(print_zero_closing), staticmethod(print_zero_tables)

    def claims(self, run: Run) -> list[Claim]:
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

    def letters(self, run: Run) -> Letters:
        return {"T": "steps", "H": "steps from one averaging to the next (--every)", **zero_letters(run)}


PROMISES = LocalSGDPromises()
