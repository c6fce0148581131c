"""What is promised of compressed gradients."""

import math

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import letters_in
from minidist.claims.promises import Promises
from minidist.claims.published import print_zero_closing
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims, traffic_claims
from minidist.papers import compression as paper

FEEDBACK = "1-bit SGD"  # Seide et al. 2014, who introduced it
PHASES = ("signs", "scales", "largest", "P and vectors", "Q")


def claims(run: Run) -> list[Claim]:
    """Data parallelism's memory and the error; what is sent instead of gradients."""
    of, n, model, w = run.compression, run.ranks, run.model, run.bytes.computed
    error = w * model.parameters(n) * of.feedback
    made = [
        *memory_claims(run, stage=0),
        on_each_rank(FEEDBACK, "error", f"{w}Ψ" * of.feedback or "0", error, run.memory_of("error"), "bytes"),
    ]
    if not of.begun:
        return [*made, *traffic_claims(run)]
    sizes, flats = model.units(), len(model.units())

    def sent(source: str, phase: str, formula: str, expected: float) -> Claim:
        return on_each_rank(source, phase, formula, expected, run.sent_in(phase), "bytes")

    if of.compressor == "sign":
        made += [
            sent("1-bit Adam", "signs", "2(N-1)⌈⌈ψ/N⌉/8⌉", sum(paper.sign_bytes(size, n) for size in sizes)),
            sent("1-bit Adam", "scales", f"{2 * w}(N-1)U", 2 * w * (n - 1) * flats),
        ]
    elif of.compressor == "topk":
        expected = sum(paper.largest_bytes(size, of.density, n, w) for size in sizes)
        made.append(sent("DGC alg. 1", "largest", f"{4 + w}(N-1)⌈δψ⌉", expected))
    else:
        for i, (phase, formula) in enumerate((("P and vectors", "r·m + v"), ("Q", "r·k"))):
            parts = [paper.low_rank_elements(unit, of.rank)[i] for unit in model.shapes]
            around = sum(2 * (n - 1) * math.ceil(elements / n) for elements in parts)
            made.append(sent("PowerSGD alg. 1", phase, f"{2 * w}(N-1)⌈({formula})/N⌉", w * around))
    rest = [run.sent_by(rank) for rank in range(n)]
    together = sum(claim.expected for claim in made if claim.claim in PHASES) + 8 * (n - 1)
    return [
        *made,
        on_each_rank("arithmetic", "norms", "8(N-1)", 8 * (n - 1), run.sent_in("norm"), "bytes"),
        on_each_rank("arithmetic", "total sent", "nothing else", together, rest, "bytes"),
        on_each_rank("arithmetic", "total received", "nothing else", together, run.received, "bytes"),
        *[kept_claim(run)] * of.feedback,
    ]


def kept_claim(run: Run) -> Claim:
    """That nothing is lost: what all ranks put in, in all steps, is what was sent and what is left. Counted is the
    difference, in hundred-thousandths of what was sent: rounding is less than half of one."""
    put = sum(counted["put"] for counted in run.counted)
    out = run.counted[0]["sum"] + sum(counted["left"] for counted in run.counted)
    off = 1e5 * abs(put - out) / (run.counted[0]["size"] or 1.0)
    lost = round(off) if math.isfinite(off) else -1
    return Claim(FEEDBACK, "neither sent nor left", "0", 0, lost, "", "all ranks")


PROMISES = Promises(claims=claims, letters=letters_in("compression", "zero"), closing=print_zero_closing)
