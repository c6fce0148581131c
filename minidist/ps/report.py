"""How a parameter server's run, or a sweep of them, is reported: on the screen, for machines, in a checkpoint."""

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from minidist import command, train
from minidist.checkpoints import checkpoint
from minidist.claims.claim import Claim
from minidist.claims.described import described
from minidist.claims.proof import Proof, print_proof, proof_claims
from minidist.claims.run import Run, run_of
from minidist.claims.screen import print_claims, print_summary, verdict
from minidist.cli.paths import say_written, write_json
from minidist.cli.tables import print_table
from minidist.command import Job
from minidist.papers.parameter_server import FIGURE_13
from minidist.ps.claims import claims
from minidist.ps.consistent_hash import count_moved, segments
from minidist.ps.engines import Whole
from minidist.ps.options import ServerOptions
from minidist.ps.outcome import WINDOW, TrainedRun
from minidist.ps.plan import RankPlan

SWEEP = (("bsp", 0), ("ssp", 1), ("ssp", 2), ("ssp", 4), ("ssp", 8), ("ssp", 16), ("async", 0))


def trainings(own: ServerOptions) -> list[tuple[str, float]]:
    """The trainings that the options ask for: consistency and staleness of each."""
    return list(SWEEP) if own.staleness_sweep else [(own.consistency, own.staleness)]


def say_at_start(job: Job, plan: RankPlan) -> None:
    """Print, one per line, what every chapter says at its start, and what no saved run of several workers continues."""
    command.say_at_start(job, rank=0, ranks=len(plan.workers))
    asynchronous = [consistency for consistency, _ in trainings(plan.own) if consistency != "bsp"]
    if asynchronous and job.files.load:
        print(
            f"minidist: {asynchronous[0]} goes on with every worker at step {plan.first_step} and no push under way:"
            " how far ahead each was, and what it had not seen, is not saved, so losses are not those of one long run",
            file=sys.stderr,
        )


# ---- on the screen ---------------------------------------------------------------------------------------------------


def report(job: Job, whole: Whole, outcomes: Sequence[TrainedRun], proofs: Sequence[Proof | None]) -> int:
    """Validate, print, save; returns the exit status. proofs: of each training."""
    runs, checked = [], []
    for outcome, proof in zip(outcomes, proofs, strict=True):
        whole.write(outcome)
        runs.append(make_run(job, whole, outcome, train.validate(whole, job)))
        proved = proof_claims(proof, outcome.losses, job.training.precision)
        checked.append([*claims(outcome), *proved] if outcome.losses else [])
    files, sweep, ranks = job.files, job.own.staleness_sweep, len(outcomes[0].ranks)
    if not files.quiet:
        with suppress(BrokenPipeError):  # the reader (head, less) has left
            if sweep and outcomes[0].losses:
                print_sweep(job, outcomes, runs)
                print_proofs(outcomes, proofs)
            else:
                print_summary(runs[0])
                print_proof(proofs[0])
                print_one(job, outcomes[0])
            print_promises(checked)
    documents = [
        {**run.as_json(made), "consistency": outcome.plan.name, "simulated": outcome.simulated()}
        for run, outcome, made in zip(runs, outcomes, checked, strict=True)
    ]
    if files.json:
        write_json(files.json, {"chapter": job.chapter, "runs": documents} if sweep else documents[0])
    if files.save:
        checkpoint.save(files.save, whole, train.Alone(), command.about(job, ranks), files.keep)
    if files.export:
        checkpoint.export(files.export, whole, train.Alone(), command.about(job, ranks), files.names)
    if not files.quiet:
        say_written(checkpoint=files.save, export=files.export)
    if files.sample:
        train.print_sample(job, checkpoint.weights(whole, writer=True))
    return 0 if all(claim.holds for made in checked for claim in made) else 1


LETTERS = {
    "S": "keys",
    "S_i": "those of one server",
    "W": "workers",
    "k": "servers",
    "N": "ranks",
    "r": "copies",
    "T": "iterations",
    "L": "lists of keys",
}


def print_proofs(outcomes: Sequence[TrainedRun], proofs: Sequence[Proof | None]) -> None:
    """The trainings that were proved, and how; or why none was."""
    names = {outcome.plan.name: proof for outcome, proof in zip(outcomes, proofs, strict=True) if proof}
    agree = [name for name, proof in names.items() if not proof.differs]
    if agree:
        print()
        print_proof(names[agree[0]])
        print(f"                of {', '.join(agree)}")


def make_run(job: Job, whole: Whole, outcome: TrainedRun, validation: float) -> Run:
    """The run, in the form of the other chapters. `sent` covers the whole run: workers are in different iterations."""
    sent: list[dict[str, dict[str, int]]] = []
    sent_to: list[dict[int, int]] = []  # bytes by the receiver
    for rank in outcome.ranks:
        phases: dict[str, dict[str, int]] = {}
        receivers: Counter[int] = Counter()
        for (phase, peer), (nbytes, messages) in rank.sent.items():
            entry = phases.setdefault(phase, {"bytes": 0, "messages": 0})
            entry["bytes"] += nbytes
            entry["messages"] += messages
            receivers[peer] += nbytes
        sent.append(phases)
        sent_to.append(receivers)
    itemsize = np.dtype(job.settings.precision.stored).itemsize
    memory = []
    for rank in outcome.ranks:
        weights, optimizer = (sum(held.nbytes[i] for held in rank.held) for i in (0, 1))
        own = outcome.plan.size * itemsize if rank.log else 0
        memory.append({"parameters": weights + own, "gradients": 2 * own, "optimizer": optimizer})
    nothing: list[dict[str, Any]] = [{}] * len(memory)  # else is counted, held below the devices, or moved there
    return run_of(
        described(job.chapter, job, job.layout, job.vocabulary),
        clip=job.training.clip,
        loss=outcome.losses,
        validation_loss=validation,
        unigram_entropy=job.corpus.unigram_entropy(),
        step_ms=train.step_times(outcome.logs[0].milliseconds),
        sent=sent,
        sent_to=sent_to,
        received=[rank.received for rank in outcome.ranks],
        memory=memory,
        counted=nothing,
        below=nothing,
        moved=nothing,
    )


def print_promises(checked: Sequence[Sequence[Claim]]) -> None:
    """The table of claims, and what its letters mean."""
    made = merge_claims(checked)
    if not made:
        return
    title = "On each rank, in one iteration: what the papers promise, and what was counted"
    if len(checked) > 1:
        title = f"On each rank, in one iteration, in each of these {len(checked)} trainings"
    print(f"\n{verdict(made)}\n")
    print_claims(made, title, LETTERS)
    print("PS: Li et al. 2014; SSP: Ho et al. 2013.")
    print("A message has a header of 96 bytes more, not counted here.")


def merge_claims(checked: Sequence[Sequence[Claim]]) -> list[Claim]:
    """One claim for each promise: from the first training in which it does not hold, or from the first training."""
    found: dict[tuple[str, str], Claim] = {}
    for claim in (claim for made in checked for claim in made):
        name = (claim.source, claim.claim)
        if name not in found or (found[name].holds and not claim.holds):
            found[name] = claim
    return list(found.values())


def print_one(job: Job, outcome: TrainedRun) -> None:
    """Print where the simulated time went, and what the options did."""
    plan, options = outcome.plan, outcome.plan.own
    servers = f"{len(plan.servers)} server{'s' * (len(plan.servers) > 1)}"
    workers = f"{len(plan.workers)} worker{'s' * (len(plan.workers) > 1)}"
    print(f"{plan.name}, {workers}, {servers}{', co-located' * options.colocated}; ", end="")
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
        print(f"the filter let {sum(log.pushed.total() for log in outcome.logs) / total:.1%} of the gradients pass")
    keys = sum(outcome.sent(phase, rank) for phase in ("push keys", "pull keys") for rank in plan.workers)
    values = sum(outcome.sent("push values", r) + outcome.received("pull values", r) for r in plan.workers)
    if options.keys == "cached" and values:
        listed = values * (1 + 8 / job.settings.precision.bytes)  # with a key of 8 bytes for each value
        print(f"key caching left {(keys + values) / listed:.1%} of keys and values to send")
    if options.placement == "hash":
        k = len(plan.servers)
        hands = count_moved(plan.segments, segments(range(k + 1), options.virtual, plan.size))
        share = sum(hands.values()) / plan.size
        print(f"a server that joined would take {share:.1%} of the keys; a fair share is {1 / (k + 1):.1%}")


def print_sweep(job: Job, outcomes: Sequence[TrainedRun], runs: Sequence[Run]) -> None:
    """Print two tables: where the time goes as the bound grows, and what that does to the loss."""
    workers = len(outcomes[0].plan.workers)
    rows = []
    for outcome, run in zip(outcomes, runs, strict=True):
        shares = [f"{outcome.part(kind):.1%}" for kind in ("computing", "wire", "held")]
        losses = [
            f"{float(np.mean(run.loss[-WINDOW:])):.3f}",
            f"{run.validation_loss:.3f}" if job.training.validate else "-",
        ]
        rows.append([outcome.plan.name, *shares, f"{outcome.seconds:.2f}", *losses])
    headings = ("computing", "wire", "idle", "seconds", "loss", "validation")
    idle = ", ".join(f"{figure.printed}% at {lag}" for lag, figure in FIGURE_13.items())
    print_table(f"Simulated time of the workers (Li et al., figure 13: idle {idle})", "", headings, rows)
    if job.training.batch % workers:
        print(f"--batch {job.training.batch} gives {workers} workers unequal shares: those with more rows are always")
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
