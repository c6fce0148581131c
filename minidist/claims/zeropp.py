"""What is promised of ZeRO++."""

from dataclasses import replace

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import letters_in
from minidist.claims.promises import Promises
from minidist.claims.published import print_zero_closing
from minidist.claims.run import Run, nothing_else
from minidist.claims.zero import memory_claims
from minidist.cli.tables import say
from minidist.papers import chen
from minidist.papers import zeropp as paper


def claims(run: Run) -> list[Claim]:
    """ZeRO-3's memory and the second copy; what is sent in each phase, and what leaves a host."""
    w, g, a, p = run.ranks, run.ranks_per_host or 1, run.accumulate, run.bytes.stored
    h, units = w // g, run.model.units(w)
    shards = [unit // w for unit in units]
    again = chen.count_regathered_layers(run.recompute, run.model.layers) * paper.backward(units[1], g, p)
    copy = p * sum(paper.second_copy(unit, g) for unit in units)
    times = f"{a}" * (a > 1)
    backward = f"{times}{p}(Ψ + Ψ_again)(G-1)/G" if again else f"{times}{p}Ψ(G-1)/G"
    sent = {
        "all-gather forward": ("1", f"{times}Ψ(W-1)/W", sum(paper.forward(c, w) for c in shards)),
        "all-gather backward": ("2", backward, sum(paper.backward(unit, g, p) for unit in units) + again),
        "all-to-all within hosts": ("3", f"{times}Ψ/2·(G-1)/G", sum(paper.within(c, h, g) for c in shards)),
        "all-to-all across hosts": ("3", f"{times}Ψ/2G·(H-1)/H", sum(paper.across(c, h) for c in shards)),
        "scales": ("1", "4 a block", sum(paper.scales(c, w, g, run.block) for c in shards)),
    }
    norm = 8 * (w - 1)
    edges = a * sum(paper.leaving(c, w, g, run.block) for c in shards) + norm * (h > 1)
    left = on_each_rank("ZeRO++ table 1", "leaves a host", "edges between hosts", edges, leaving(run), "bytes")
    return [
        *memory_claims(run, stage=3),
        on_each_rank("ZeRO++ §3.2", "second copy", f"{p}Ψ/G", copy, run.memory_of("secondary"), "bytes"),
        *(
            on_each_rank(f"ZeRO++ §3.{section}", phase, formula, a * expected, run.sent_in(phase), "bytes")
            for phase, (section, formula, expected) in sent.items()
        ),
        on_each_rank("arithmetic", "norms", "8(W-1)", norm, run.sent_in("norm"), "bytes"),
        replace(left, scope="all ranks"),
        *nothing_else(run, w * (norm + a * sum(expected for *_, expected in sent.values()))),
    ]


def leaving(run: Run) -> list[int]:
    """Bytes that left each host."""
    g = run.ranks_per_host or 1
    found = [0] * (run.ranks // g)
    for rank, of_rank in enumerate(run.sent_to):
        found[rank // g] += sum(n for to, n in of_rank.items() if to // g != rank // g)
    return found


def print_closing(run: Run) -> None:
    w, g = run.ranks, run.ranks_per_host or 1
    m = 2 * run.model.parameters(w) * run.accumulate
    print_zero_closing(run)
    if w > g:
        say(
            f"Of M = 2Ψ bytes, {max(leaving(run)) / m:.3f} left a host, and a rank sent {run.sent_by(0) / m:.2f} in all"
            f" (the formulas, without scales: {paper.leaves_a_host(w, g):.3f} and {paper.on_all_links(w, g):.2f})."
            f" ZeRO-3 sends {paper.leaves_a_host_with_zero3(w):.3f} on each edge of its rings. On many hosts of many"
            " ranks that becomes the paper's 0.75 and 3."
        )


PROMISES = Promises(claims=claims, letters=letters_in("zeropp", "zero"), closing=print_closing)
