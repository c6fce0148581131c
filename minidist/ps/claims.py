"""What the papers say of a parameter server's run, beside what was counted."""

from minidist.claims.claim import Claim, on_each_rank
from minidist.papers import parameter_server
from minidist.papers.collectives import ring_all_reduce
from minidist.ps.consistent_hash import moved, segments
from minidist.ps.outcome import Outcome


def claims(outcome: Outcome) -> list[Claim]:
    """What the papers say of this run, beside what was counted, in bytes for one iteration unless it says otherwise."""
    plan, options = outcome.plan, outcome.plan.options
    n, s, times = len(plan.workers), plan.size, plan.iterations
    value = 8 if options.precision == "fp64" else 4
    made: list[Claim] = []
    pushed = [outcome.sent("push values", rank) for rank in plan.workers]  # in the whole run
    pulled = [outcome.received("pull values", rank) for rank in plan.workers]
    if options.filter:
        with_keys = [sent + outcome.sent("push keys", rank) for sent, rank in zip(pushed, plan.workers, strict=True)]
        promised = [(8 + value) * log.pushed for log in outcome.logs]
        claim, formula = "pushed by a worker in the run", f"{8 + value}·passed"
        made.append(on_each_rank("PS §3.6", claim, formula, promised, with_keys, "bytes"))
    elif not options.colocated:
        both = [(a + b) / times for a, b in zip(pushed, pulled, strict=True)]
        dense = value * parameter_server.worker_traffic(s)
        made.append(on_each_rank("PS §2.1", "pushed and pulled by a worker", f"{value}·2S", dense, both, "bytes"))
        made += load_claims(outcome, value) if not options.stop else []  # the load moves to the copy
    elif not options.stop:
        sent = [(a + outcome.sent("pull values", rank)) / times for rank, a in enumerate(pushed)]
        colocated, ring = parameter_server.colocated(s, n), ring_all_reduce(s, n).sent
        made += [
            on_each_rank("PS, co-located", "sent by a rank", f"{value}·2(N-1)/N·S", value * colocated, sent, "bytes"),
            on_each_rank("Horovod §3", "as in a ring", f"{value}·2(N-1)/N·S", [value * n for n in ring], sent, "bytes"),
        ]
    if options.keys != "none" and not (options.colocated or options.filter or options.stop):
        keys = [outcome.sent("push keys", rank) + outcome.sent("pull keys", rank) for rank in plan.workers]
        cached = options.keys == "cached"
        formula = "8S + 8(2T-1)·lists" if cached else "2T·8S"
        listed = parameter_server.key_bytes(s, len(plan.ranges), times, cached)
        made.append(on_each_rank("PS §4.2", "keys from a worker in the run", formula, listed, keys, "bytes"))
    if options.replicas and not options.stop:
        copied = sum(outcome.sent("replicate values", rank) for rank in plan.servers) / times
        copies = value * parameter_server.copies(s, n, options.replicas, plan.aggregate)
        how, formula = ("after aggregation", f"{value}·r·S") if plan.aggregate else ("push by push", f"{value}·r·W·S")
        made.append(Claim("PS §4.4", f"copied by all servers, {how}", formula, copies, copied, "bytes"))
    return made + state_claims(outcome)


def load_claims(outcome: Outcome, value: int) -> list[Claim]:
    """What goes into and out of each server."""
    plan, n, k = outcome.plan, len(outcome.plan.workers), len(outcome.plan.servers)
    into = [outcome.received("push values", rank) / plan.iterations for rank in plan.servers]
    out = [outcome.sent("pull values", rank) / plan.iterations for rank in plan.servers]
    if plan.options.placement == "even":
        formula, promised = f"{value}·W·S" + "/k" * (k > 1), [value * parameter_server.server_load(plan.size, n, k)] * k
    else:  # the share that the hashes gave it
        sizes = [sum(hi - lo for lo, hi, shard in plan.segments if shard == i) for i in range(k)]
        formula, promised = f"{value}·W·S_i", [value * parameter_server.server_load(size, n, 1) for size in sizes]
    return [
        on_each_rank("PS §2.1", "into each server", formula, promised, into, "bytes"),
        on_each_rank("PS §2.1", "out of each server", formula, promised, out, "bytes"),
    ]


def state_claims(outcome: Outcome) -> list[Claim]:
    """What holds of the clocks, the copies and the placement."""
    plan, options = outcome.plan, outcome.plan.options
    held = outcome.held
    reads = [read for log in outcome.logs for read in log.reads]
    stale = sum(oldest < clock - plan.staleness or own < clock for clock, oldest, _, own in reads)
    made = [Claim("SSP §3", f"of {len(reads)} reads, too stale", "0", 0, stale, "reads")]
    if options.placement == "even":
        promised = [len(plan.workers) * len(plan.of(each.shard)) for each in held]
        clocks = [each.clocks for each in held]
        made.append(on_each_rank("PS §4.1", "clocks that a server keeps", "W·ranges", promised, clocks, "numbers"))
    else:
        k = len(plan.servers)
        hands = moved(plan.segments, segments(range(k + 1), options.virtual, plan.size))
        elsewhere = sum(keys for (_, new), keys in hands.items() if new != k)
        made.append(Claim("PS §4.3", "keys moved between old servers", "0", 0, elsewhere, "keys"))
    if options.replicas:
        served = {each.shard: each.digest for each in held if each.state is not None}
        differing = sum(each.digest != served[each.shard] for each in held)
        made.append(Claim("PS §4.4", "copies that differ in any bit", "0", 0, differing, "copies"))
    return made
