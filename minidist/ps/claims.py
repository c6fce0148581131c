"""What the papers say about a parameter server's run, next to what was counted: in one iteration, or, if a claim says
so, in the whole run."""

from itertools import accumulate, pairwise

from minidist.claims.batch import share_claim
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.described import described, model_of
from minidist.layout import Layout
from minidist.papers import parameter_server
from minidist.papers.collectives import ring_all_reduce
from minidist.papers.mixed_precision import BYTES
from minidist.ps.consistent_hash import count_moved, segments
from minidist.ps.outcome import TrainedRun


def claims(outcome: TrainedRun) -> list[Claim]:
    """All claims about this run. If a server stops, its load moves to another rank; no claim covers that."""
    options = outcome.plan.options
    made: list[Claim] = []
    if options.filter:
        made += filter_claims(outcome) if not (options.colocated and options.stop) else []
    elif not options.colocated:
        made += worker_claims(outcome)
        made += server_claims(outcome) if not options.stop else []
    elif not options.stop:
        made += colocated_claims(outcome)
    if options.keys != "none" and not (options.colocated or options.filter or options.stop):
        made.append(key_claim(outcome))
    made += clock_claims(outcome)
    if options.placement == "hash":
        made.append(hash_claim(outcome))
    if options.replicas:
        made += copy_claims(outcome)
    plan = outcome.plan
    asked = described("parameter_server", plan.options, Layout(dp=len(plan.workers)), plan.vocabulary)
    return [*made, share_claim(asked, [log.tokens for log in outcome.logs])]


# ---- what is sent ----------------------------------------------------------------------------------------------------


def value_bytes(outcome: TrainedRun) -> int:
    """The bytes of a weight, and of an element of a gradient."""
    return BYTES[outcome.plan.options.precision].stored


def units_of(outcome: TrainedRun) -> list[int]:
    """The keys of each unit of the model, padded so that the servers can share them evenly."""
    plan = outcome.plan
    return model_of(plan.options, plan.vocabulary).units(len(plan.servers))


def keys_of(outcome: TrainedRun) -> int:
    """S, the number of keys."""
    return sum(units_of(outcome))


def ranges_of(outcome: TrainedRun) -> list[tuple[int, int, int]]:
    """The keys lo to hi that one server has of one unit, with the server's number, in order of keys."""
    segments = outcome.plan.segments
    borders = sorted({0, *accumulate(units_of(outcome)), *(lo for lo, _, _ in segments)})
    holders = (next((shard for first, last, shard in segments if first <= lo < last), -1) for lo in borders)
    return [(lo, hi, shard) for (lo, hi), shard in zip(pairwise(borders), holders, strict=False)]


def shard_sizes(outcome: TrainedRun) -> list[int]:
    """S_i, the keys of each server."""
    plan = outcome.plan
    return [sum(hi - lo for lo, hi, shard in plan.segments if shard == i) for i in range(len(plan.servers))]


def worker_claims(outcome: TrainedRun) -> list[Claim]:
    """What a worker sends and receives."""
    plan, value = outcome.plan, value_bytes(outcome)
    both = [outcome.sent("push values", rank) + outcome.received("pull values", rank) for rank in plan.workers]
    counted = [nbytes / plan.iterations for nbytes in both]
    promised = value * parameter_server.worker_traffic(keys_of(outcome))
    return [on_each_rank("PS §2.1", "pushed and pulled by a worker", f"{value}·2S", promised, counted, "bytes")]


def server_claims(outcome: TrainedRun) -> list[Claim]:
    """What goes into and out of each server."""
    plan, n, k, value = outcome.plan, len(outcome.plan.workers), len(outcome.plan.servers), value_bytes(outcome)
    into = [outcome.received("push values", rank) / plan.iterations for rank in plan.servers]
    out = [outcome.sent("pull values", rank) / plan.iterations for rank in plan.servers]
    if plan.options.placement == "even":
        formula = f"{value}·W·S" + "/k" * (k > 1)
        promised = [value * parameter_server.server_load(keys_of(outcome), n, k)] * k
    else:  # the share that the hashes gave it
        promised = [value * parameter_server.server_load(size, n, 1) for size in shard_sizes(outcome)]
        formula = f"{value}·W·S_i"
    return [
        on_each_rank("PS §2.1", "into each server", formula, promised, into, "bytes"),
        on_each_rank("PS §2.1", "out of each server", formula, promised, out, "bytes"),
    ]


def colocated_claims(outcome: TrainedRun) -> list[Claim]:
    """What is sent if every rank is a worker and a server: as much as in a ring all-reduce. If keys are shared evenly,
    that holds for each rank; in any case it holds for all ranks together."""
    plan, n, value = outcome.plan, len(outcome.plan.workers), value_bytes(outcome)
    both = [outcome.sent("push values", rank) + outcome.sent("pull values", rank) for rank in plan.workers]
    sent = [nbytes / plan.iterations for nbytes in both]
    promised = [value * parameter_server.colocated(keys_of(outcome), n, size) for size in shard_sizes(outcome)]
    ring = [value * elements for elements in ring_all_reduce(keys_of(outcome), n).sent]
    formula = f"{value}·2(N-1)/N·S"
    if plan.options.placement == "even":
        return [
            on_each_rank("PS, co-located", "sent by a rank", formula, promised, sent, "bytes"),
            on_each_rank("Horovod §3", "as in a ring", formula, ring, sent, "bytes"),
        ]
    return [
        on_each_rank("PS, co-located", "sent by a rank", f"{value}·(S+(N-2)S_i)", promised, sent, "bytes"),
        Claim("Horovod §3", "sent, as in a ring", f"{value}·2(N-1)S", sum(ring), sum(sent), "bytes", "all ranks"),
    ]


def filter_claims(outcome: TrainedRun) -> list[Claim]:
    """Only values that pass the filter are pushed, each with its key; to other ranks, over the wire."""
    plan, pair = outcome.plan, 8 + value_bytes(outcome)
    pushed = [outcome.sent("push values", rank) + outcome.sent("push keys", rank) for rank in plan.workers]
    promised = [
        pair * sum(passed for shard, passed in log.pushed.items() if plan.servers[shard] != rank)
        for log, rank in zip(outcome.logs, plan.workers, strict=True)
    ]
    return [on_each_rank("PS §3.6", "pushed by a worker in the run", f"{pair}·passed", promised, pushed, "bytes")]


def key_claim(outcome: TrainedRun) -> Claim:
    """Keys are sent with the values, each time or only once."""
    plan, cached = outcome.plan, outcome.plan.options.keys == "cached"
    keys = [outcome.sent("push keys", rank) + outcome.sent("pull keys", rank) for rank in plan.workers]
    formula = "8S+8(2T-1)·L" if cached else "2T·8S"
    promised = parameter_server.key_bytes(keys_of(outcome), len(ranges_of(outcome)), plan.iterations, cached)
    return on_each_rank("PS §4.2", "keys from a worker in the run", formula, promised, keys, "bytes")


# ---- what is held ----------------------------------------------------------------------------------------------------


def clock_claims(outcome: TrainedRun) -> list[Claim]:
    """What the vector clocks say, and how many there are."""
    plan, n, k = outcome.plan, len(outcome.plan.workers), len(outcome.plan.servers)
    reads = [read for log in outcome.logs for read in log.reads]
    stale = sum(oldest < clock - plan.staleness or own < clock for clock, oldest, _, own in reads)
    # A server's keys are one range at the beginning. Each pushed range is cut out of it. The gaps in between, which
    # consistent hashing has given to other servers, keep a clock, too.
    ranges = [[(lo, hi) for lo, hi, at in ranges_of(outcome) if at == shard] for shard in range(k)]
    gaps = [sum(hi < lo for (_, hi), (lo, _) in pairwise(held)) for held in ranges]
    promised = [n * (len(ranges[each.shard]) + gaps[each.shard]) for each in outcome.held]
    counted = [each.clocks for each in outcome.held]
    formula = "W·(ranges+gaps)" if any(gaps) else "W·ranges"
    return [
        on_each_rank("PS §4.1", "clocks of each server", formula, promised, counted, "numbers"),
        Claim("SSP §3", f"of {len(reads)} reads, too stale", "0", 0, stale, "reads", "all ranks"),
    ]


def hash_claim(outcome: TrainedRun) -> Claim:
    """A server that joins takes keys from the others; no key moves between the others."""
    plan, k = outcome.plan, len(outcome.plan.servers)
    hands = count_moved(plan.segments, segments(range(k + 1), plan.options.virtual, plan.size))
    elsewhere = sum(keys for (_, new), keys in hands.items() if new != k)
    return Claim("PS §4.3", "keys moved between old servers", "0", 0, elsewhere, "keys", "all ranks")


def copy_claims(outcome: TrainedRun) -> list[Claim]:
    """What is sent for the copies, and whether they are copies."""
    plan, n, value, r = outcome.plan, len(outcome.plan.workers), value_bytes(outcome), outcome.plan.options.replicas
    made = []
    if not plan.options.stop:
        copied = sum(outcome.sent("replicate values", rank) for rank in plan.servers) / plan.iterations
        promised = value * parameter_server.copies(keys_of(outcome), n, r, plan.aggregate)
        how, formula = ("after aggregation", f"{value}·r·S") if plan.aggregate else ("push by push", f"{value}·r·W·S")
        made.append(Claim("PS §4.4", f"copied, {how}", formula, promised, copied, "bytes", "all ranks"))
    served = {each.shard: each.digest for each in outcome.held if each.state is not None}
    differing = sum(each.digest != served[each.shard] for each in outcome.held)
    return [*made, Claim("PS §4.4", "copies that differ in any bit", "0", 0, differing, "copies", "all ranks")]
