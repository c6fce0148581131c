"""What is promised of data parallelism; and what all chapters on the data axis say."""

from collections.abc import Callable

from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import letters_in
from minidist.claims.promises import Promises
from minidist.claims.published import print_zero_closing, print_zero_tables
from minidist.claims.run import Run
from minidist.claims.zero import buffer_claims, memory_claims, traffic_claims
from minidist.formulas.needs import Estimate, needs


def on_data_axis(
    transient: Callable[[Run], list[Claim]],
    sent: Callable[[Run], list[Claim]] = traffic_claims,
    estimate: Estimate = needs,
) -> Promises:
    """The promises of a chapter on the data axis, by ZeRO's formulas for its stage. transient: the claims about memory
    that is held only for a moment."""

    def claims(run: Run) -> list[Claim]:
        return [*memory_claims(run, run.zero), *transient(run), peak_of_layers(run), *sent(run)]

    return Promises(
        claims=claims,
        letters=letters_in("zero"),
        needs=estimate,
        closing=print_zero_closing,
        published=print_zero_tables,
    )


def sent_claims(run: Run) -> list[Claim]:
    """With the ring, ZeRO's formulas for stage 0; with a master, the load of the master and of the workers."""
    return hot_spot(run) if run.reduce == "server" else traffic_claims(run)


def hot_spot(run: Run) -> list[Claim]:
    """What a master and its workers send and receive."""
    all_gradients, n = run.model.parameters(run.ranks) * run.gradient_bytes, run.ranks
    master, *workers = run.sent_in("all-reduce gradients")
    found = [Claim("arithmetic", "sent by the master", "2·(N-1)Ψ", (n - 1) * all_gradients, master, "bytes")]
    if workers:
        found.append(on_each_rank("arithmetic", "sent by a worker", "2·Ψ", all_gradients, workers, "bytes"))
    everything = [run.sent_by(rank) for rank in range(n)]
    promised = [(n - 1) * all_gradients] + [all_gradients] * (n - 1)
    found.append(on_each_rank("arithmetic", "total sent", "", promised, everything, "bytes"))
    found.append(on_each_rank("arithmetic", "total received", "", promised, run.received, "bytes"))
    return found


PROMISES = on_data_axis(buffer_claims, sent_claims)
