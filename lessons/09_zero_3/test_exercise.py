"""The grade of lesson 09: `pytest lessons/09_zero_3`, or `make grade` for a table.

Each part lets the ranks train a small transformer with ZeRO3 of exercise.py, on batches that are drawn afresh and of
which a rank knows its own sequences alone. The truth is serial training, which runs here; losses, gradients and
parameters are compared here with what came back. What was sent is counted below the exercise's `comm`, at both ends;
what is held, by NumPy's own account. A part earns its points or not; the methods that it does not ask for are the
chapter's, so none needs a later one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from minidist import papers
from minidist.classroom.submission import Case, Outcome, Submission, lose, secret
from minidist.engine import Engine, Settings
from minidist.nn.flat import Flat
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import SGD, AdamW
from minidist.nn.precision import PRECISIONS

Array = np.ndarray
RANKS = (1, 2, 3, 4)
SEQUENCES = 5  # in a micro-batch: not divisible by 2, 3 or 4 ranks
PRECISE = 1e-12  # relative to a unit's largest element
EVERYTHING = [
    *("allocate", "owned", "gather", "before_forward", "after_forward"),
    *("before_backward", "after_backward", "reduce", "after_update"),
]

# No unit of it is divisible by 2, 3 or 4.
SMALL = {"vocabulary": 17, "context": 8, "layers": 2, "heads": 1, "width": 5, "tied": False}
# Its messages are longer than what MPI puts aside for a receiver who has not come yet.
LARGE = {"vocabulary": 17, "context": 4, "layers": 1, "heads": 4, "width": 60, "tied": False}
# Parameters are most of what is held: activations of one short sequence a rank are nothing beside them.
HEAVY = {"vocabulary": 1000, "context": 2, "layers": 2, "heads": 4, "width": 96, "tied": False}


def case(n: int, what: str, model: dict[str, Any], steps: int = 1, accumulate: int = 1, **more: Any) -> Case:
    """A run on n ranks. Every rank gets all batches (steps, micro-batches, sequences, context + 1), but with tokens of
    its own only in its own rows."""
    precision, optimizer = more.pop("precision", "fp64"), more.pop("optimizer", "sgd")  # Adam hides wrong scales
    sequences = more.pop("sequences", SEQUENCES)
    random = secret()
    shape = (steps, accumulate, sequences, model["context"] + 1)
    batches = random.integers(0, model["vocabulary"], shape)
    inputs = []
    for rank in range(n):
        mine = random.integers(0, model["vocabulary"], shape)
        rows = share(sequences, rank, n)
        mine[:, :, rows] = batches[:, :, rows]
        inputs.append(mine)
    seed = int(random.integers(1000))
    settings = {"precision": precision, "optimizer": optimizer, "accumulate": accumulate, "seed": seed}
    made = Case(n, f"{n} rank{'s' * (n > 1)}{what}", inputs, {"model": model, "settings": settings, **more})
    made.truth = Truth(made, batches)  # type: ignore[attr-defined]
    return made


def share(size: int, rank: int, n: int) -> slice:
    """A rank's part of `size` things."""
    sizes = papers.chunk_sizes(size, n)
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


# ---- the truth: serial training --------------------------------------------------------------------------------------


class Serial(Engine):
    """Serial training; or, for messages about what is wrong, one rank's part of it."""

    ranks, rank = 1, 0

    def rows(self, n: int) -> range:
        rows = share(n, self.rank, self.ranks)
        return range(rows.start, rows.stop)


@dataclass
class Truth:
    """What serial training gives on a case's batches."""

    case: Case
    batches: Array
    losses: list[list[float]] = field(default_factory=list)  # of each micro-batch, each rank's part
    gradients: list[Array] = field(default_factory=list)  # of the first step, a unit each
    parameters: list[list[Array]] = field(default_factory=list)  # before the first step, and after each
    evaluated: list[list[float]] = field(default_factory=list)  # of the first batch, before each step

    def __post_init__(self) -> None:
        engine = self.engine()
        self.flats: list[Flat] = list(engine.flats.values())
        self.parameters.append([flat.param.copy() for flat in self.flats])
        for step in self.batches:
            self.evaluated.append(self.parts(engine, self.batches[0, 0]))
            for tokens in step:
                self.losses.append(self.parts(engine, tokens))
                engine.backward(engine.forward(tokens[:, :-1], tokens[:, 1:]))
                if engine.last_micro_batch and not self.gradients:
                    self.gradients = [flat.grad.copy() for flat in self.flats]
                engine.step()
            self.parameters.append([flat.param.copy() for flat in self.flats])

    def engine(self) -> Serial:
        settings = self.case.arguments["settings"]
        return Serial(
            gpt(GPTConfig(**self.case.arguments["model"])),
            Settings(
                PRECISIONS[settings["precision"]],
                AdamW() if settings["optimizer"] == "adamw" else SGD(momentum=0.9),
                learning_rate=lambda update: 0.1 / (update + 1),
                clip=0.5,
                accumulate=settings["accumulate"],
                seed=settings["seed"],
            ),
        )

    def parts(self, engine: Serial, tokens: Array) -> list[float]:
        """Each rank's part of the loss."""
        engine.ranks, found = self.case.n, []
        for engine.rank in range(self.case.n):
            found.append(engine.forward(tokens[:, :-1], tokens[:, 1:]).value)
        engine.ranks, engine.rank = 1, 0
        return found

    def own_gradients(self, rank: int, micro_batches: Sequence[int], ranks: int) -> list[Array]:
        """What one of some ranks adds to the first step's gradient, in some of its micro-batches."""
        engine = self.engine()
        engine.ranks, engine.rank = ranks, rank
        for number in micro_batches:
            tokens = self.batches[0, number]
            engine.backward(engine.forward(tokens[:, :-1], tokens[:, 1:]))
        return [flat.grad for flat in engine.flats.values()]

    def padded(self, unit: int) -> int:
        """Elements of a unit, rounded up to a multiple of the number of ranks."""
        return -(-self.flats[unit].size // self.case.n) * self.case.n

    def shard(self, whole: Array, unit: int, rank: int) -> Array:
        """A rank's shard of a unit's array (size,), padded with zeros."""
        each = self.padded(unit) // self.case.n
        return np.pad(whole, (0, self.padded(unit) - whole.size))[rank * each : (rank + 1) * each]


def truth_of(case: Case) -> Truth:
    truth: Truth = case.truth  # type: ignore[attr-defined]
    return truth


# ---- what is wrong, and where ----------------------------------------------------------------------------------------


def check_array(place: str, found: Any, expected: Array, truth: Truth, unit: int, start: int) -> int | None:
    """The first index at which an array of a unit, or a shard that starts at `start`, is wrong; None if it is right."""
    if not isinstance(found, np.ndarray):
        lose(f"{place} is {'None' if found == 'NoneType' else found}, not an array of numbers.")
    if found.shape != expected.shape or found.dtype != expected.dtype:
        size, padded, n = truth.flats[unit].size, truth.padded(unit), truth.case.n
        lose(
            f"{place} is {found.dtype} {found.shape} where {expected.dtype} {expected.shape} is wanted: the unit has"
            f" {size} elements, {padded} with padding, of which a shard is one {n}-th."
        )
    largest = float(np.abs(expected).max(initial=0.0)) or 1.0
    wrong = np.flatnonzero(~(np.abs(found - expected) <= PRECISE * largest))
    return int(wrong[0]) if wrong.size else None


def element(truth: Truth, unit: int, index: int) -> str:
    """Which parameter element `index` of a unit's flat buffer belongs to."""
    for parameter, place in truth.flats[unit].places(slice(0, truth.flats[unit].size)):
        if place.start <= index < place.stop:
            return f"of {parameter.name}"
    return "of the padding"


def same(found: Array, other: Array) -> bool:
    return bool(np.allclose(found, other, rtol=1e-9, atol=1e-13) and np.any(other))


def check_shards(case: Case, which: str, found: Sequence[Sequence[Any]], wholes: Sequence[Array], when: str) -> None:
    """Every rank's shards, found[rank][unit] of flat.param or flat.grad (`which`), beside whole arrays by unit."""
    truth = truth_of(case)
    for unit, whole in enumerate(wholes):
        for rank, of_rank in enumerate(found):
            expected = truth.shard(whole, unit, rank).astype(PRECISIONS[case.arguments["settings"]["precision"]].stored)
            place = f"On {case.label}, {when}: rank {rank}'s flat.{which} of {truth.flats[unit].name}"
            start = rank * expected.size
            index = check_array(place, of_rank[unit], expected, truth, unit, start)
            if index is not None:
                explain = explain_gradient if which == "grad" else explain_parameters
                lose(
                    f"{place} is wrong first at index {index}, element {start + index} of the unit"
                    f" ({element(truth, unit, start + index)}): {explain(truth, of_rank[unit], expected, unit, rank)}."
                )


def explain_gradient(truth: Truth, found: Array, expected: Array, unit: int, rank: int) -> str:
    """What a wrong shard of the first step's gradient holds instead."""
    n, micro_batches = truth.case.n, truth.batches.shape[1]
    if not np.any(found):
        return "it is zero, nothing was added"
    if n > 1:
        if same(found * n, expected):
            return (
                f"it is the sum divided by {n}; the losses are weighted by their share of the batch, so the sum is it"
            )
        if same(found * n**2, expected):
            return f"it is the sum divided by {n} twice"
        if same(found, n * expected):
            return f"it is {n} times the sum: what is summed already was summed over the ranks again"
    if same(found, 2 * expected):
        return "it is twice the sum: something was added twice"
    every = range(micro_batches)

    def shard_of(rank: int, micro_batches: Sequence[int], ranks: int) -> Array:
        return truth.shard(truth.own_gradients(rank, micro_batches, ranks)[unit], unit, rank)

    if micro_batches > 1 and same(found, shard_of_sum(truth, unit, rank, [micro_batches - 1])):
        return "it is the last micro-batch's alone; add to what is there"
    if n > 1 and same(found, shard_of(rank, every, n)):
        return "it is this rank's own part, not summed over the ranks"
    for other in range(n):
        if other != rank and same(found, truth.shard(truth.gradients[unit], unit, other)):
            return f"it is rank {other}'s shard of the sum"
    return "it is not the sum over the ranks"


def shard_of_sum(truth: Truth, unit: int, rank: int, micro_batches: Sequence[int]) -> Array:
    """The shard of the gradient of some micro-batches, summed over the ranks."""
    return truth.shard(truth.own_gradients(0, micro_batches, 1)[unit], unit, rank)


def explain_parameters(truth: Truth, found: Array, expected: Array, unit: int, rank: int) -> str:
    """What a wrong shard of parameters holds instead."""
    for number, parameters in enumerate(truth.parameters):
        if same(found, truth.shard(parameters[unit], unit, rank)):
            return "it is as it was at the start" if number == 0 else f"it is as it was after step {number}"
        for other in range(truth.case.n):
            if same(found, truth.shard(parameters[unit], unit, other)):
                return f"it is rank {other}'s shard"
    return "it is not what serial training gives"


def check_losses(case: Case, found: Sequence[Sequence[Any]], expected: Sequence[Sequence[float]], what: str) -> None:
    """Every rank's part of some losses: found[rank][number] beside expected[number][rank]."""
    for number, parts in enumerate(expected):
        for rank, part in enumerate(parts):
            loss = found[rank][number]
            if not isinstance(loss, float) or not abs(loss - part) <= PRECISE * abs(part):
                lose(
                    f"On {case.label}: rank {rank}'s part of {what} {number + 1} is {loss}, where serial training has"
                    f" {part}. Did it compute with the parameters of this very step?"
                )


def check_training(case: Case, outcomes: Sequence[Outcome]) -> None:
    """Losses, the first step's gradients, parameters after every step, and what was evaluated."""
    truth, values = truth_of(case), [outcome.value for outcome in outcomes]
    check_losses(case, [value["losses"] for value in values], truth.losses[:1], "the loss of batch")
    check_shards(case, "grad", [value["gradients"] for value in values], truth.gradients, "after the first backward")
    for number, wholes in enumerate(truth.parameters[1:]):
        found = [value["parameters"][number] for value in values]
        check_shards(case, "param", found, wholes, f"after step {number + 1}")
        through = (number + 2) * truth.batches.shape[1]
        check_losses(case, [value["losses"] for value in values], truth.losses[:through], "the loss of batch")
    if case.arguments["evaluate"]:
        check_losses(case, [value["evaluated"] for value in values], truth.evaluated, "the loss of evaluation")


def check_train(submission: Submission, cases: Sequence[Case]) -> list[list[Outcome]]:
    """Run the cases in one job and check all that they bring back."""
    runs = submission.run("train", cases)
    for each, outcomes in zip(cases, runs, strict=True):
        check_training(each, outcomes)
    return runs


def training(n: int, what: str = "", model: dict[str, Any] = SMALL, evaluate: bool = False, **more: Any) -> Case:
    return case(n, what, model, asked=EVERYTHING, evaluate=evaluate, **more)


# ---- one method after the other --------------------------------------------------------------------------------------


@pytest.mark.points(2, "allocate, owned: one N-th for good")
def test_allocate(submission: Submission) -> None:
    cases = [case(n, f", {p} precision", SMALL, precision=p) for n in RANKS for p in ("fp64", "mixed")]
    for each, outcomes in zip(cases, submission.run("allocate", cases), strict=True):
        truth, values = truth_of(each), [outcome.value for outcome in outcomes]
        start = [whole.astype(np.float64) for whole in truth.parameters[0]]
        zeros = [np.zeros_like(whole) for whole in start]
        check_shards(each, "param", [value["param"] for value in values], start, "after allocate")
        check_shards(each, "grad", [value["grad"] for value in values], zeros, "after allocate")
        for which in ("param", "grad"):
            for rank, value in enumerate(values):
                for unit, (before, after) in enumerate(zip(value[which], value[f"{which} + 1"], strict=True)):
                    if not np.array_equal(after, before + before.dtype.type(1)):
                        lose(
                            f"On {each.label}: 1 was added to the arrays that owned returns for"
                            f" {truth.flats[unit].name}, and rank {rank}'s flat.{which} did not become 1 more. Return the"
                            f" array itself, not a copy."
                        )


@pytest.mark.points(2, "gather: everyone's shards, put together once")
def test_gather(submission: Submission) -> None:
    cases = [case(n, "", SMALL) for n in RANKS]
    for each, outcomes in zip(cases, submission.run("gather", cases), strict=True):
        truth = truth_of(each)
        for unit, whole in enumerate(truth.parameters[0]):
            expected = np.pad(whole, (0, truth.padded(unit) - whole.size))
            for rank, outcome in enumerate(outcomes):
                name = truth.flats[unit].name
                for which, words in (("once", "returned"), ("kept", "put into flat.gathered"), ("again", "returned")):
                    times = "the second time, gather" if which == "again" else "gather"
                    place = f"On {each.label}: what {times} {words} on rank {rank} for {name}"
                    index = check_array(place, outcome.value[which][unit], expected, truth, unit, 0)
                    if index is not None:
                        lose(
                            f"{place} is wrong first at index {index}, in rank {index // (expected.size // each.n)}'s shard."
                        )
        check_shards(each, "param", [o.value["param"] for o in outcomes], truth.parameters[0], "after gather")
        for rank, outcome in enumerate(outcomes):
            once = len(truth.flats) * (each.n - 1)
            if outcome.messages > once:
                lose(
                    f"On {each.label}: rank {rank} sent {outcome.messages} messages to gather {len(truth.flats)} units"
                    f" twice; {once} will do: what is gathered already needs none."
                )


@pytest.mark.points(2, "before and after a forward: serial training's losses")
def test_forward(submission: Submission) -> None:
    cases = [case(n, "", SMALL) for n in RANKS]
    for each, outcomes in zip(cases, submission.run("forward", cases), strict=True):
        check_losses(each, [o.value["losses"] for o in outcomes], truth_of(each).losses, "the loss of batch")


@pytest.mark.points(3, "before and after a backward, reduce: its gradients")
def test_backward(submission: Submission) -> None:
    asked = ["before_backward", "after_backward", "reduce"]
    cases = [case(n, "", SMALL, asked=asked, evaluate=False) for n in RANKS]
    for each, outcomes in zip(cases, submission.run("train", cases), strict=True):
        found = [outcome.value["gradients"] for outcome in outcomes]
        check_shards(each, "grad", found, truth_of(each).gradients, "after the first backward")


# ---- together --------------------------------------------------------------------------------------------------------


@pytest.mark.points(2, "training: parameters as in serial training, step by step")
def test_training(submission: Submission) -> None:
    check_train(submission, [training(n, steps=3) for n in RANKS])


@pytest.mark.points(1, "accumulation: micro-batches add up")
def test_accumulation(submission: Submission) -> None:
    check_train(submission, [training(n, ", 3 micro-batches a step", steps=2, accumulate=3) for n in (1, 3)])


@pytest.mark.points(1, "a head tied to the embedding")
def test_tied(submission: Submission) -> None:
    check_train(submission, [training(n, ", tied", {**SMALL, "tied": True}, steps=2, evaluate=True) for n in RANKS])


@pytest.mark.points(1, "evaluation in between changes nothing")
def test_evaluation(submission: Submission) -> None:
    check_train(submission, [training(n, ", with evaluation", steps=2, evaluate=True) for n in (1, 4)])


@pytest.mark.points(1, "no deadlock when units are large")
def test_large(submission: Submission) -> None:
    check_train(submission, [training(4, ", large units", LARGE)])


# ---- at the paper's cost ---------------------------------------------------------------------------------------------


def allowed(case: Case) -> dict[str, int]:
    """Bytes that each rank sends in a step, by phase: 3Ψ(N-1)/N, and the norm of the gradient."""
    truth = truth_of(case)
    psi, accumulate = sum(map(truth.padded, range(len(truth.flats)))), truth.batches.shape[1]
    volume = papers.zero_volume(psi, case.n, stage=3, accumulate=accumulate)
    return {**{phase: round(8 * elements) for phase, elements in volume.items()}, "norm": 8 * (case.n - 1)}


def measured(model: dict[str, Any] = SMALL) -> list[Case]:
    """One step each: plain, and of two micro-batches."""
    return [
        training(n, f", a step{' of 2 micro-batches' * (accumulate > 1)}", model, accumulate=accumulate)
        for n in (4, 3)
        for accumulate in (1, 2)
    ]


@pytest.mark.points(2, "the paper's bytes: 3Ψ(N-1)/N from each rank")
def test_bytes(submission: Submission) -> None:
    cases = measured()
    for each, outcomes in zip(cases, submission.run("train", cases), strict=True):
        limits = allowed(each)
        for rank, outcome in enumerate(outcomes):
            if outcome.nbytes != sum(limits.values()):
                lose(wrong_bytes(submission, each, rank, outcome, limits))
        check_training(each, outcomes)


def wrong_bytes(submission: Submission, case: Case, rank: int, outcome: Outcome, limits: dict[str, int]) -> str:
    """Which transfers should not be there, or are missing."""
    total = sum(limits.values())
    lines = [f"On {case.label}: rank {rank} sent {outcome.nbytes:,} bytes where ZeRO-3 sends {total:,}."]
    for phase in [*limits, *sorted({phase for phase, _, _ in outcome.sent} - limits.keys())]:
        sent = {line: nbytes for (of, _, line), (nbytes, _) in outcome.sent.items() if of == phase}
        nbytes, limit = sum(sent.values()), limits.get(phase, 0)
        if nbytes == limit:
            continue
        at = "".join(f", at {submission.at(line)}" for line in sent if line)
        remark = "\n    Something is gathered or reduced that is here already, or more of it than needed."
        if nbytes < limit:
            remark = "\n    Something is not gathered or reduced that must be."
        where = "under no name" if phase == "main" else f"in phase {phase!r}"
        lines.append(f"  {where}: {nbytes:,} bytes instead of {limit:,}{at}{remark}")
    return "\n".join(lines)


@pytest.mark.points(1, "the paper's messages: N-1 for a unit, to the right")
def test_messages(submission: Submission) -> None:
    cases = measured()
    for each, outcomes in zip(cases, submission.run("train", cases), strict=True):
        truth = truth_of(each)
        passes = 3 * len(truth.flats) * truth.batches.shape[1]
        for rank, outcome in enumerate(outcomes):
            right = (rank + 1) % each.n
            for phase, peer, line in outcome.sent:
                if peer != right:
                    lose(
                        f"On {each.label}: rank {rank} sends to rank {peer} in phase {phase!r} at {submission.at(line)};"
                        f" around the ring it sends to its right neighbour alone, rank {right}."
                    )
            if outcome.messages != (passes + 1) * (each.n - 1):
                lose(
                    f"On {each.label}: rank {rank} sent {outcome.messages} messages. Two gathers and a reduction of"
                    f" {len(truth.flats)} units, and the norm, are {(passes + 1) * (each.n - 1)}: {each.n - 1} each."
                )
        check_training(each, outcomes)


@pytest.mark.points(2, "memory: 16Ψ/N, and one unit at a time")
def test_memory(submission: Submission) -> None:
    n = 4
    held = [
        case(n, f", {p} precision", HEAVY, steps=2, sequences=n, precision=p, optimizer="adamw")
        for p in ("fp32", "mixed")
    ]
    for each, outcomes in zip(held, submission.run("hold", held), strict=True):
        truth, mixed = truth_of(each), each.arguments["settings"]["precision"] == "mixed"
        sizes = {flat.name: truth.padded(unit) for unit, flat in enumerate(truth.flats)}
        states = round(papers.zero_memory(sum(sizes.values()), n, stage=3).total)  # fp32: 4 + 4 + 8, also 16
        slack = min(sizes.values())  # bytes: an element of the smallest unit each, a fourth of its parameters in fp32
        for rank, outcome in enumerate(outcomes):
            for_good, who = outcome.value["for good"], f"On {each.label}: rank {rank}"
            if not states <= for_good <= states + slack:
                lose(
                    f"{who} holds {for_good:,} bytes of arrays before the first step; 16Ψ/N, two shards and the"
                    f" optimizer's, are {states:,}."
                )
            if outcome.value["evaluated"] > for_good + slack:
                more = outcome.value["evaluated"] - for_good
                lose(f"{who} holds {more:,} bytes more after an evaluation than before it: what was gathered.")
            for place, unit, nbytes in outcome.value["moments"]:
                # Parameters as stored and as computed with, and slopes: in fp32 the first two are one array.
                an_element = {"before_forward": 6 if mixed else 4, "before_backward": 10 if mixed else 8}.get(place, 0)
                limit = an_element * sizes[unit]
                more = nbytes - for_good
                if more > limit + slack:
                    lose(
                        f"{who}, at the end of {place} of {unit}, holds {more:,} bytes of arrays besides its shards and"
                        f" activations, where {limit:,} are needed. Which unit's parameters or gradient are still, or"
                        f" already, here? ({unit} has {sizes[unit]:,} parameters.)"
                    )
