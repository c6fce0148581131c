"""The grade of lesson 09: `pytest lessons/09_zero_3`, or `make grade` for a table.

Each part loads exercise.py anew and lets the ranks train a small transformer with its ZeRO3, on batches that are drawn
afresh and of which a rank knows its own sequences alone; one that fails or hangs takes nothing from the others. The
truth is serial training, which runs here; losses, gradients and parameters are compared here with what came back. What
was sent is counted below the exercise's `comm`, at both ends; what is held, by NumPy's own account. A part earns its
points or not; the methods that it does not ask for are the chapter's, so none needs a later one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from minidist.classroom.submission import Outcome, Submission, lose
from minidist.classroom.training import Training, check_losses, check_shards, training, wrong_index
from minidist.nn.precision import Precision
from minidist.papers import zero

RANKS = (1, 2, 3, 4)
EVERYTHING = ["allocate", "owned", "parameters_of", "forget", "collect", "reduce", "after_update"]

# No unit of it is divisible by 2, 3 or 4; nor are the five sequences of a batch.
SMALL = {"vocabulary": 17, "context": 8, "layers": 1, "heads": 1, "width": 5, "tied": False}
# Its messages are longer than what MPI puts aside for a receiver who has not come yet.
LARGE = {"vocabulary": 17, "context": 4, "layers": 1, "heads": 4, "width": 60, "tied": False}
# Parameters are most of what is held: activations of one token a rank are nothing beside them.
HEAVY = {"vocabulary": 500, "context": 1, "layers": 2, "heads": 4, "width": 64, "tied": False}
SLACK = 4096  # bytes of arrays that are no parameters


def check_training(run: Training, outcomes: Sequence[Outcome]) -> None:
    """Losses, the first step's gradients, parameters after every step, and what was evaluated."""
    truth, values = run.truth, [outcome.value for outcome in outcomes]
    check_losses(run, [value["losses"] for value in values], truth.losses[:1], "the loss of batch")
    check_shards(run, "grad", [value["gradients"] for value in values], truth.gradients, "after the first backward")
    for number, wholes in enumerate(truth.parameters[1:]):
        found = [value["parameters"][number] for value in values]
        check_shards(run, "param", found, wholes, f"after step {number + 1}")
        through = (number + 2) * run.batches.shape[1]
        check_losses(run, [value["losses"] for value in values], truth.losses[:through], "the loss of batch")
    if run.arguments["evaluate"]:
        check_losses(run, [value["evaluated"] for value in values], truth.evaluated, "the loss of evaluation")


def check_train(submission: Submission, cases: Sequence[Training]) -> None:
    for run, outcomes in zip(cases, submission.run("train", cases), strict=True):
        check_training(run, outcomes)


def everything(n: int, what: str = "", model: dict[str, Any] = SMALL, evaluate: bool = False, **more: Any) -> Training:
    """Training with all methods of the submission."""
    return training(n, what, model, asked=EVERYTHING, evaluate=evaluate, **more)


# ---- one method after the other --------------------------------------------------------------------------------------


@pytest.mark.points(2, "allocate, owned: one N-th for good")
def test_allocate(submission: Submission) -> None:
    asked = [*((n, "fp64") for n in RANKS), (4, "mixed")]
    cases = [training(n, f", {precision} precision", SMALL, precision=precision) for n, precision in asked]
    for run, outcomes in zip(cases, submission.run("allocate", cases), strict=True):
        truth, values = run.truth, [outcome.value for outcome in outcomes]
        zeros = [np.zeros_like(whole) for whole in truth.parameters[0]]
        check_shards(run, "param", [value["param"] for value in values], truth.parameters[0], "after allocate")
        check_shards(run, "grad", [value["grad"] for value in values], zeros, "after allocate")
        for rank, value in enumerate(values):
            for which, flat, before, after in value["owned"]:
                if not np.array_equal(after, before + 1):
                    lose(
                        f"On {run.label}: 1 was added to what owned returned on rank {rank} for {flat}, and its"
                        f" flat.{which} has not become 1 more. Return the array itself, not a copy."
                    )


GATHERED = {
    "once": "parameters_of returned",
    "kept": "parameters_of put into flat.gathered",
    "again": "parameters_of returned when it was called again",
    "backward": "parameters_of returned in the backward",
}


@pytest.mark.points(3, "parameters_of: everyone's shards, put together once")
def test_parameters_of(submission: Submission) -> None:
    cases = [training(n, "", SMALL) for n in RANKS]
    for run, outcomes in zip(cases, submission.run("parameters_of", cases), strict=True):
        truth = run.truth
        for unit, start in enumerate(truth.parameters[0]):
            each = truth.padded(unit) // run.n
            shards = [truth.shard(start, rank) + np.resize(mine, each) for rank, mine in enumerate(run.inputs)]
            for rank, outcome in enumerate(outcomes):
                place = f"On {run.label}, {truth.flats[unit].name}"
                kept = outcome.value["param"][unit]
                if wrong_index("flat.param after parameters_of", kept, shards[rank], truth, unit) is not None:
                    lose(f"{place}: parameters_of changed flat.param on rank {rank}.")
                for which, words in GATHERED.items():
                    what = f"{place}: what {words} on rank {rank}"
                    index = wrong_index(what, outcome.value[which][unit], np.concatenate(shards), truth, unit)
                    if index is not None:
                        lose(f"{what} is wrong first at index {index}, in the shard of rank {index // each}.")
        for rank, outcome in enumerate(outcomes):
            once = 2 * len(truth.flats) * (run.n - 1)
            if outcome.messages > once:
                lose(
                    f"On {run.label}: rank {rank} sent {outcome.messages} messages to gather {len(truth.flats)} units"
                    f" for a forward and a backward; {once} will do: what is here already needs none."
                )


@pytest.mark.points(1, "forget: only the shard stays")
def test_forget(submission: Submission) -> None:
    cases = [training(n, "", SMALL) for n in RANKS]
    for run, outcomes in zip(cases, submission.run("forget", cases), strict=True):
        for rank, outcome in enumerate(outcomes):
            for direction, flat in outcome.value["left"]:
                lose(
                    f"On {run.label}, {flat}: flat.gathered is still there after forget in the {direction}, on rank"
                    f" {rank}."
                )
        params = [outcome.value["param"] for outcome in outcomes]
        check_shards(run, "param", params, run.truth.parameters[0], "after forget")


@pytest.mark.points(3, "collect, reduce: serial training's gradients")
def test_reduce(submission: Submission) -> None:
    cases = [training(n, "", SMALL, asked=["collect", "reduce"], evaluate=False) for n in RANKS]
    for run, outcomes in zip(cases, submission.run("train", cases), strict=True):
        found = [outcome.value["gradients"] for outcome in outcomes]
        check_shards(run, "grad", found, run.truth.gradients, "after the first backward")


# ---- together --------------------------------------------------------------------------------------------------------


@pytest.mark.points(2, "training: parameters as in serial training, step by step")
def test_training(submission: Submission) -> None:
    check_train(submission, [everything(n, steps=2) for n in RANKS])


@pytest.mark.points(1, "accumulation: micro-batches add up")
def test_accumulation(submission: Submission) -> None:
    check_train(submission, [everything(n, ", 3 micro-batches a step", steps=2, accumulate=3) for n in (2, 3)])


@pytest.mark.points(1, "a head tied to the embedding")
def test_tied(submission: Submission) -> None:
    cases = [everything(n, ", tied", {**SMALL, "tied": True}, steps=2) for n in (2, 3)]
    for run, outcomes in zip(cases, submission.run("train", cases), strict=True):
        check_training(run, outcomes)
        check_bytes(submission, run, outcomes)


@pytest.mark.points(1, "evaluation in between changes nothing")
def test_evaluation(submission: Submission) -> None:
    check_train(submission, [everything(n, ", with evaluation", steps=2, evaluate=True) for n in (2, 4)])


@pytest.mark.points(1, "no deadlock when units are large")
def test_large(submission: Submission) -> None:
    check_train(submission, [everything(4, ", large units", LARGE)])


# ---- at the paper's cost ---------------------------------------------------------------------------------------------


def allowed(run: Training) -> dict[str, int]:
    """Bytes that each rank sends in the run, by phase: 3Ψ(N-1)/N in a step, and the norm of the gradient."""
    psi = sum(run.truth.padded(unit) for unit in range(len(run.truth.flats)))
    volume = zero.volume(psi, run.n, stage=3)
    a_step = {phase: round(elements * run.precision.bytes) for phase, elements in volume.items()}
    a_step["norm"] = 8 * (run.n - 1)
    return {phase: nbytes * len(run.batches) for phase, nbytes in a_step.items()}


def check_bytes(submission: Submission, run: Training, outcomes: Sequence[Outcome]) -> None:
    limits = allowed(run)
    for rank, outcome in enumerate(outcomes):
        if outcome.nbytes != sum(limits.values()):
            lose(wrong_bytes(submission, run, rank, outcome, limits))


def wrong_bytes(submission: Submission, run: Training, rank: int, outcome: Outcome, limits: dict[str, int]) -> str:
    """Which transfers should not be there, or are missing."""
    total = sum(limits.values())
    lines = [f"On {run.label}: rank {rank} sent {outcome.nbytes:,} bytes where ZeRO-3 sends {total:,}."]
    for phase in [*limits, *sorted({phase for phase, _, _ in outcome.sent} - limits.keys())]:
        sent = {line: nbytes for (of, _, line), (nbytes, _) in outcome.sent.items() if of == phase}
        nbytes, limit = sum(sent.values()), limits.get(phase, 0)
        if nbytes == limit:
            continue
        at = "".join(f", at {submission.at(line)}" for line in sent if line)
        remark = "\n    Something is gathered or reduced that is here already, or more of it than needed."
        if nbytes < limit:
            remark = "\n    Something is not gathered or reduced that must be, or not over comm."
        where = "under no name" if phase == "main" else f"in phase {phase!r}"
        lines.append(f"  {where}: {nbytes:,} bytes instead of {limit:,}{at}{remark}")
    return "\n".join(lines)


@pytest.mark.points(2, "the paper's bytes: 3Ψ(N-1)/N from each rank")
def test_bytes(submission: Submission) -> None:
    asked = [(4, "fp64"), (3, "fp64"), (4, "mixed")]
    cases = [everything(n, f", a step in {precision}", precision=precision) for n, precision in asked]
    for run, outcomes in zip(cases, submission.run("train", cases), strict=True):
        check_bytes(submission, run, outcomes)
        if not run.precision.mixed:  # sums of float16 depend on their order
            check_training(run, outcomes)


@pytest.mark.points(1, "the paper's messages: N-1 for a unit, to the right")
def test_messages(submission: Submission) -> None:
    cases = [everything(n, ", a step") for n in (4, 3)]
    for run, outcomes in zip(cases, submission.run("train", cases), strict=True):
        units = len(run.truth.flats)
        messages = (3 * units + 1) * (run.n - 1)
        for rank, outcome in enumerate(outcomes):
            right = (rank + 1) % run.n
            for phase, peer, line in outcome.sent:
                if peer != right:
                    lose(
                        f"On {run.label}: rank {rank} sends to rank {peer} in phase {phase!r} at"
                        f" {submission.at(line)}; around the ring it sends to its right neighbour alone, rank {right}."
                    )
            if outcome.messages != messages:
                lose(
                    f"On {run.label}: rank {rank} sent {outcome.messages} messages. Two gathers and a reduction of"
                    f" {units} units, and the norm, are {messages}: {run.n - 1} each."
                )
        check_training(run, outcomes)


def needed(direction: str, method: str, precision: Precision) -> int:
    """Bytes an element that a unit needs besides its shard after a method: parameters as they are stored and, where
    that is something else, as they are computed with; the gradient as it is computed, and as it is stored."""
    parameters = precision.bytes + (4 if precision.mixed else 0)
    slopes, bucket = 4, precision.bytes
    return {
        ("forward", "parameters_of"): parameters,
        ("forward", "forget"): 0,
        ("backward", "collect"): parameters + slopes + bucket,
        ("backward", "reduce"): 0,
    }[direction, method]


@pytest.mark.points(2, "memory: 16Ψ/N, and one unit at a time")
def test_memory(submission: Submission) -> None:
    n = 4
    held = [
        training(n, f", {p} precision", HEAVY, steps=2, sequences=n, precision=p, optimizer="adamw")
        for p in ("fp32", "mixed")
    ]
    for run, outcomes in zip(held, submission.run("hold", held), strict=True):
        sizes = {flat.name: run.truth.padded(unit) for unit, flat in enumerate(run.truth.flats)}
        states = round(zero.model_states(sum(sizes.values()), n, stage=3).total)  # in fp32 4 + 4 + 8: 16 as well
        activations = min(sizes.values())  # bytes, more than they are: so no unit is so small that it is not noticed
        for rank, outcome in enumerate(outcomes):
            who, for_good = f"On {run.label}: rank {rank}", outcome.value["for good"]
            if not states <= for_good <= states + SLACK:
                lose(f"{who} holds {for_good:,} bytes of arrays before the first step; 16Ψ/N are {states:,}.")
            if (more := outcome.value["evaluated"] - for_good) > activations:
                lose(f"{who} holds {more:,} bytes more after an evaluation than before. What was not released?")
            for (direction, method, unit), nbytes in outcome.value["moments"]:
                limit = needed(direction, method, run.precision) * sizes[unit]
                if (more := nbytes - for_good) > limit + activations:
                    lose(
                        f"{who} holds {more:,} bytes of arrays beyond its shards after {method} of {unit} in the"
                        f" {direction}, where {limit:,} are needed. Whose parameters or gradients are still here, or"
                        f" already? ({unit} has {sizes[unit]:,} parameters.)"
                    )
