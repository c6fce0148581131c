"""What a parameter server's run is held against, and how it is shown."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from minidist import checkpoint, papers, train
from minidist.claims.report import (
    Claim,
    Run,
    on_each_rank,
    print_claims,
    print_summary,
    print_table,
    print_verdict,
    write_json,
)
from minidist.engine import Engine
from minidist.nn.sample import generate
from minidist.nn.tensor import Array
from minidist.ps.consistent_hash import moved, segments
from minidist.ps.gradients import WorkerLog
from minidist.ps.plan import Plan
from minidist.ps.replication import Replica

WINDOW = 10  # losses are printed as the mean of so many steps
SWEEP = (("bsp", 0), ("ssp", 1), ("ssp", 2), ("ssp", 4), ("ssp", 8), ("ssp", 16), ("async", 0))


@dataclass
class Held:
    """A shard as one of its holders has it at the end."""

    shard: int
    serves: int | None  # the rank whose server had it at first, if this one serves it now
    state: dict[int, list[Array]] | None  # of the one that serves it
    digest: str
    clocks: int  # numbers in its vector clocks
    most_pieces: int  # into which a set has split a range
    nbytes: tuple[int, int]  # weights, optimizer state

    @classmethod
    def of(cls, replica: Replica) -> "Held":
        arrays = [array for i in replica.ranges for array in replica.state[i]]
        weights = sum(replica.state[i][0].nbytes for i in replica.ranges)
        return cls(
            replica.shard,
            replica.plan.servers[replica.shard] if replica.serves else None,
            replica.state if replica.serves else None,
            blake2b(b"".join(array.tobytes() for array in arrays)).hexdigest(),
            replica.clocks.numbers,
            replica.clocks.most_pieces,
            (weights, sum(array.nbytes for array in arrays) - weights),
        )


@dataclass
class RankResult:
    """What one rank did."""

    log: WorkerLog | None
    sent: dict[tuple[str, int], list[int]]  # (phase, rank) -> [bytes, messages]
    held: list[Held]


@dataclass
class Outcome:
    """A run, as rank 0 knows it at the end."""

    plan: Plan
    ranks: list[RankResult]

    @property
    def logs(self) -> list[WorkerLog]:
        return [rank.log for rank in self.ranks if rank.log]

    @property
    def losses(self) -> list[float]:
        """Of the global batch at each step, each worker's part with the weights that it had."""
        return [sum(parts) for parts in zip(*(log.losses for log in self.logs), strict=True)]

    @property
    def seconds(self) -> float:
        return max((log.computing + log.wire + log.held for log in self.logs), default=0.0)

    def part(self, kind: str) -> float:
        """The share of all workers' time that they spent computing, on the wire, or held back."""
        total = sum(log.computing + log.wire + log.held for log in self.logs)
        return sum(getattr(log, kind) for log in self.logs) / total if total else 0.0

    def loss_before(self, seconds: float) -> float:
        """The mean loss of the last WINDOW steps of each worker that had ended at a moment of simulated time."""
        parts = []
        for log in self.logs:
            done = sum(end <= seconds for end in log.ended)
            parts.append(np.mean(log.losses[max(0, done - WINDOW) : done]) if done else math.nan)
        return float(sum(parts))

    def sent(self, phase: str, source: int, dest: int | None = None) -> int:
        """Bytes that a rank sent in a phase, to one rank or to all."""
        return sum(
            n for (name, peer), (n, _) in self.ranks[source].sent.items() if name == phase and dest in (None, peer)
        )

    def received(self, phase: str, dest: int) -> int:
        """Bytes that all ranks together sent to one in a phase."""
        return sum(self.sent(phase, source, dest) for source in range(len(self.ranks)))


class Whole(Engine):
    """The model in one place: to start from, and to be validated, saved and sampled from in the end."""

    def __init__(self, job: train.Job, shards: int) -> None:
        self.shards, self.options = shards, job.options
        super().__init__(job.units, job.settings)
        if job.options.load:
            checkpoint.load(job.options.load, self)

    def read(self) -> list[Array]:
        """[weights, *moments], each of all keys."""
        rows = zip(*([flat.master, *flat.moments] for flat in self.flats.values()), strict=True)
        return [np.concatenate(row) for row in rows]

    def write(self, outcome: Outcome) -> None:
        """Put in what the servers hold."""
        arrays = self.read()
        for held in (held for rank in outcome.ranks for held in rank.held):
            for i, state in (held.state or {}).items():
                for whole, part in zip(arrays, state, strict=True):
                    whole[outcome.plan.ranges[i].keys] = part
        offset = 0
        for flat in self.flats.values():
            for array, whole in zip([flat.param, *flat.moments], arrays, strict=True):
                array[...] = whole[offset : offset + flat.padded]
            offset += flat.padded
        done = outcome.plan.options.steps - outcome.plan.first_step
        self.steps, self.updates = outcome.plan.options.steps, outcome.plan.first_update + done


def settings(options: train.Options) -> list[tuple[str, float]]:
    """Which trainings are asked for: consistency and staleness of each."""
    return list(SWEEP) if options.staleness_sweep else [(options.consistency, options.staleness)]


# ---- claims ----------------------------------------------------------------------------------------------------------


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
        promised = [(8 + value) * log.significant for log in outcome.logs]
        claim, formula = "pushed by a worker in the run", f"{8 + value}·passed"
        made.append(on_each_rank("PS §3.6", claim, formula, promised, with_keys, "bytes"))
    elif not options.colocated:
        both = [(a + b) / times for a, b in zip(pushed, pulled, strict=True)]
        dense = value * papers.server_worker(s)
        made.append(on_each_rank("PS §2.1", "pushed and pulled by a worker", f"{value}·2S", dense, both, "bytes"))
        made += load_claims(outcome, value) if not options.stop else []  # the load moves to the copy
    elif not options.stop:
        sent = [(a + outcome.sent("pull values", rank)) / times for rank, a in enumerate(pushed)]
        colocated, ring = papers.server_colocated(s, n), papers.ring_all_reduce(s, n).sent
        made += [
            on_each_rank("PS, co-located", "sent by a rank", f"{value}·2(N-1)/N·S", value * colocated, sent, "bytes"),
            on_each_rank("Horovod §3", "as in a ring", f"{value}·2(N-1)/N·S", [value * n for n in ring], sent, "bytes"),
        ]
    if options.keys != "none" and not (options.colocated or options.filter or options.stop):
        keys = [outcome.sent("push keys", rank) + outcome.sent("pull keys", rank) for rank in plan.workers]
        cached = options.keys == "cached"
        formula = "8S + 8(2T-1)·lists" if cached else "2T·8S"
        listed = papers.server_keys(s, len(plan.ranges), times, cached)
        made.append(on_each_rank("PS §4.2", "keys from a worker in the run", formula, listed, keys, "bytes"))
    if options.replicas and not options.stop:
        copied = sum(outcome.sent("replicate values", rank) for rank in plan.servers) / times
        copies = value * papers.server_copies(s, n, options.replicas, plan.aggregate)
        how, formula = ("after aggregation", f"{value}·r·S") if plan.aggregate else ("push by push", f"{value}·r·W·S")
        made.append(Claim("PS §4.4", f"copied by all servers, {how}", formula, copies, copied, "bytes"))
    return made + state_claims(outcome)


def load_claims(outcome: Outcome, value: int) -> list[Claim]:
    """What goes into and out of each server."""
    plan, n, k = outcome.plan, len(outcome.plan.workers), len(outcome.plan.servers)
    into = [outcome.received("push values", rank) / plan.iterations for rank in plan.servers]
    out = [outcome.sent("pull values", rank) / plan.iterations for rank in plan.servers]
    if plan.options.placement == "even":
        formula, promised = f"{value}·W·S" + "/k" * (k > 1), [value * papers.server_load(plan.size, n, k)] * k
    else:  # the share that the hashes gave it
        sizes = [sum(hi - lo for lo, hi, shard in plan.segments if shard == i) for i in range(k)]
        formula, promised = f"{value}·W·S_i", [value * papers.server_load(size, n, 1) for size in sizes]
    return [
        on_each_rank("PS §2.1", "into each server", formula, promised, into, "bytes"),
        on_each_rank("PS §2.1", "out of each server", formula, promised, out, "bytes"),
    ]


def state_claims(outcome: Outcome) -> list[Claim]:
    """What holds of the clocks, the copies and the placement."""
    plan, options = outcome.plan, outcome.plan.options
    held = [held for rank in outcome.ranks for held in rank.held]
    reads = [read for log in outcome.logs for read in log.reads]
    stale = sum(oldest < clock - plan.staleness or own < clock for clock, oldest, _, own in reads)
    splits = sum(each.most_pieces > 3 for each in held)
    made = [
        Claim("SSP §3", f"of {len(reads)} reads, too stale", "0", 0, stale, "reads"),
        Claim("PS §4.1", "a range split into more than 3", "0", 0, splits, "splits"),
    ]
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


# ---- on the screen ---------------------------------------------------------------------------------------------------


def report(job: train.Job, whole: Whole, outcomes: Sequence[Outcome]) -> int:
    """Validate, print, save: the exit status."""
    runs, checked = [], []
    for outcome in outcomes:
        whole.write(outcome)
        runs.append(as_run(job, whole, outcome, train.validate(whole, job.corpus, job.options)))
        checked.append(claims(outcome) if outcome.losses else [])
    options = job.options
    if options.json != "-":
        with suppress(BrokenPipeError, SystemExit):  # the reader (head, less) has left; rich says so by SystemExit
            if options.staleness_sweep and outcomes[0].losses:
                print_sweep(outcomes, runs)
                print_verdict([claim for made in checked for claim in made])
            else:
                print_summary(runs[0])
                print_one(outcomes[0], checked[0])
    documents = [
        {**run.as_json(made), "consistency": outcome.plan.name, "simulated": simulated(outcome)}
        for run, outcome, made in zip(runs, outcomes, checked, strict=True)
    ]
    if options.json:
        write_json(
            options.json, {"chapter": job.chapter, "runs": documents} if options.staleness_sweep else documents[0]
        )
    if options.save:
        checkpoint.save(options.save, whole, train.identity(options, job.corpus), writer=True)
    if options.sample:
        units = train.declare(options, len(job.corpus.vocabulary))
        weights = checkpoint.weights(whole, writer=True)
        tokens = generate(units, weights, options.sample, options.context, options.seed)
        print("\nThe model writes:\n" + job.corpus.decode(tokens))
    return 0 if all(claim.holds for made in checked for claim in made) else 1


def as_run(job: train.Job, whole: Whole, outcome: Outcome, validation: float) -> Run:
    """As the other chapters report theirs. `sent` is of the whole run: workers are in different iterations."""
    sent: list[dict[str, dict[str, int]]] = []
    for rank in outcome.ranks:
        phases: dict[str, dict[str, int]] = {}
        for (phase, _), (nbytes, messages) in rank.sent.items():
            entry = phases.setdefault(phase, {"bytes": 0, "messages": 0})
            entry["bytes"] += nbytes
            entry["messages"] += messages
        sent.append(phases)
    itemsize = np.dtype(job.settings.precision.stored).itemsize
    memory = []
    for rank in outcome.ranks:
        weights, optimizer = (sum(held.nbytes[i] for held in rank.held) for i in (0, 1))
        own = outcome.plan.size * itemsize if rank.log else 0
        memory.append({"parameters": weights + own, "gradients": 2 * own, "optimizer": optimizer})
    validations = [validation] + [0.0] * (len(outcome.ranks) - 1)  # rank 0 has done it alone
    history = train.History(outcome.losses, outcome.logs[0].milliseconds)
    counted: list[dict[str, Any]] = [{}] * len(outcome.ranks)
    return train.summarise(job, whole, history, list(zip(validations, sent, memory, counted, strict=True)))


def simulated(outcome: Outcome) -> dict[str, Any]:
    """For machines: where the simulated time went, and every read."""
    return {
        "seconds": outcome.seconds,
        "computing": outcome.part("computing"),
        "wire": outcome.part("wire"),
        "idle": outcome.part("held"),
        "ended": [log.ended for log in outcome.logs],
        "reads": [log.reads for log in outcome.logs],
    }


def print_one(outcome: Outcome, made: Sequence[Claim]) -> None:
    plan, options = outcome.plan, outcome.plan.options
    servers = f"{len(plan.servers)} server{'s' * (len(plan.servers) > 1)}"
    print(f"{plan.name}, {len(plan.workers)} workers, {servers}{', co-located' * options.colocated}; ", end="")
    print(f"simulated time {outcome.seconds:.2f} s:")
    print(f"workers computed {outcome.part('computing'):.1%} of it,", end=" ")
    print(f"waited for the wire {outcome.part('wire'):.1%}, for one another {outcome.part('held'):.1%}")
    if options.stop:
        rank, event = options.stop
        serving = next(i for i, each in enumerate(outcome.ranks) for held in each.held if held.serves == rank)
        went_on = "there was no such event" if serving == rank else f"rank {serving} has served its keys since"
        print(f"the server on rank {rank} was to stop after event {event}: {went_on}")
    if options.filter and outcome.losses:
        total = plan.size * plan.iterations * len(plan.workers)
        print(f"the filter let {sum(log.significant for log in outcome.logs) / total:.1%} of the gradients pass")
    if options.keys == "cached" and outcome.losses:
        keys = sum(outcome.sent(phase, rank) for phase in ("push keys", "pull keys") for rank in plan.workers)
        values = sum(outcome.sent("push values", r) + outcome.received("pull values", r) for r in plan.workers)
        itemsize = 8 if options.precision == "fp64" else 4
        print(
            f"key caching left {(keys + values) / (values * (8 + itemsize) / itemsize):.1%} of keys and values to send"
        )
    if options.placement == "hash":
        k = len(plan.servers)
        hands = moved(plan.segments, segments(range(k + 1), options.virtual, plan.size))
        share = sum(hands.values()) / plan.size
        print(f"a server that joined would take {share:.1%} of the keys; a fair share is {1 / (k + 1):.1%}")
    if made:
        print()
        print_claims(made, "In one iteration: what the papers promise, and what was counted")
        print("S: keys; W: workers; k: servers; r: copies; T: iterations. PS: Li et al. 2014;")
        print("SSP: Ho et al. 2013. A message has a header of 96 bytes more, not counted here.")


def print_sweep(outcomes: Sequence[Outcome], runs: Sequence[Run]) -> None:
    """Two tables: where the time goes as the bound is loosened, and what that does to the loss."""
    rows = []
    for outcome, run in zip(outcomes, runs, strict=True):
        shares = [f"{outcome.part(kind):.1%}" for kind in ("computing", "wire", "held")]
        losses = [f"{float(np.mean(run.loss[-WINDOW:])):.3f}", f"{run.validation_loss:.3f}"]
        rows.append([outcome.plan.name, *shares, f"{outcome.seconds:.2f}", *losses])
    headings = ("computing", "wire", "idle", "seconds", "loss", "validation")
    print_table("Simulated time of the workers (Li et al., figure 13: idle 50% at 0, 1.7% at 16)", "", headings, rows)
    options, workers = outcomes[0].plan.options, len(outcomes[0].plan.workers)
    if options.batch % workers:
        print(f"--batch {options.batch} gives {workers} workers unequal shares: those with more rows are always")
        print("behind, and in the long run every bound makes the others wait for them.")
    shown = [outcome for outcome in outcomes if outcome.plan.name in ("bsp", "ssp 4", "async")]
    names = [outcome.plan.name for outcome in shown]
    steps = len(runs[0].loss)
    rows = [
        [str(step), *(f"{float(np.mean(outcome.losses[max(0, step - WINDOW) : step])):.3f}" for outcome in shown)]
        for step in sorted({max(1, round(steps * i / 8)) for i in range(1, 9)})
    ]
    print_table(f"Loss by step (mean of {WINDOW} steps)", "step", names, rows)
    shortest = min(outcome.seconds for outcome in shown)
    rows = [
        [f"{seconds:.2f}", *(f"{outcome.loss_before(seconds):.3f}" for outcome in shown)]
        for seconds in (shortest * i / 8 for i in range(1, 9))
    ]
    print_table(f"Loss by simulated second (mean of each worker's last {WINDOW} steps)", "second", names, rows)
