"""The grade of lesson 08: `pytest lessons/08_zero_2`, or `make grade` for a table.

Each part asks for one thing of train_step, of one method, or of two that belong together, and loads exercise.py anew;
the chapter's code stands in for the other methods, and for lesson 07's. Inputs are drawn afresh, and only their own
rank knows them; what was sent is counted here, for every message passes through here; what is held, on the rank, by
Python's own account. A part earns its points or not; none needs a later one, and one mistake costs one part:

- What a second micro-batch must add is compared with what the first one gave.
- Of memory, a part asks for what its methods add to what is held already.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import check_trains_alike, gaps
from minidist.classroom.grading.meaning import check_worked
from minidist.classroom.grading.parts import ask, by_case, by_rank, large, on, part, ranks
from minidist.classroom.grading.sharded import (
    GATHER,
    RANKS,
    SCATTER,
    check_array,
    check_collect,
    check_for_good,
    check_loss,
    check_phases,
    check_to_the_right,
    descend,
    forward,
    lose_sum,
    reduced,
    slopes,
    small,
    sums,
    wire_cases,
)
from minidist.classroom.grading.submission import Case, Outcome, Submission, lose
from minidist.classroom.grading.training import (
    HEAVY,
    SMALL,
    Training,
    check_gradient,
    element,
    training,
    unit_sizes,
    wrong_index,
)
from minidist.papers import zero

Array = np.ndarray
METHODS = ("allocate", "owned", "collect", "reduce")
ASKED = ("train_step", *(f"ZeRO2.{name}" for name in METHODS))
HIDDEN = ("minidist.zero2", "minidist.zero3", "answers", "given")  # what ranks cannot import


# ---- the notebook's layers -------------------------------------------------------------------------------------------

RATE = 0.5
UNITS_HELD = 8  # whole units that a step may hold at a time, however many there are: a gradient, its bucket, and copies


@dataclass
class Layers(Case):
    """Layers h -> tanh(h W + b), all parameters on every rank, and each rank's rows of each micro-batch."""

    flats: list[Array] = field(default_factory=list)  # (size,) of each layer
    micro_batches: list[list[tuple[Array, Array]]] = field(default_factory=list)  # [micro-batch][rank]: x, y

    def padded(self, whole: Array) -> Array:
        return np.append(whole, np.zeros(-whole.size % self.n))

    def shard(self, whole: Array, rank: int) -> Array:
        return np.split(self.padded(whole), self.n)[rank]

    def gradients(self, rank: int | None = None, micro_batch: int | None = None) -> list[Array]:
        """Of the loss at the start, from one rank's rows or all, and of one micro-batch or all."""
        chosen = self.micro_batches if micro_batch is None else [self.micro_batches[micro_batch]]
        of_ranks = [pair for parts in chosen for pair in (parts if rank is None else [parts[rank]])]
        x, y = (np.concatenate(arrays) for arrays in zip(*of_ranks, strict=True))
        return slopes(self.flats, x, y, self.arguments["batch"])[1]


def layers(submission: Submission, n: int, width: int, rows: Sequence[int], depth: int = 3, **arguments: Any) -> Layers:
    """rows: how many each micro-batch has."""
    draw = submission.random.standard_normal
    flats = [draw(width * width + width) / width**0.5 for _ in range(depth)]
    micro_batches = []
    for of_part in rows:
        x, y = draw((of_part, width)), np.tanh(draw((of_part, width)))
        micro_batches.append(list(zip(np.array_split(x, n), np.array_split(y, n), strict=True)))
    whole = np.stack([np.append(flat, np.zeros(-flat.size % n)) for flat in flats])
    inputs = [(whole, [parts[rank] for parts in micro_batches]) for rank in range(n)]
    each = f"{len(rows)} micro-batches of {rows[0]} rows" if len(rows) > 1 else f"1 micro-batch of {rows[0]} rows"
    label = f"{ranks(n)}, {depth} layers of {flats[0].size} parameters, {each}"
    return Layers(n, label, inputs, {"batch": sum(rows), **arguments}, flats, micro_batches)


@pytest.mark.points(3, "train_step: one process's training, in micro-batches, on any number of ranks")
def test_train_step(submission: Submission) -> None:
    wide = large(submission, least=50, most=100)
    once = [
        layers(submission, n, width, rows, steps=1, rate=RATE) for n, width, rows in ((4, 15, [8, 8]), (2, 6, [4] * 3))
    ]
    odd = [
        layers(submission, n, width, rows, steps=2, rate=RATE)
        for n, width, rows in ((4, 5, [3, 3]), (3, 4, [7]), (1, 3, [2, 2]), (2, wide, [4]))
    ]
    for cases in (once, odd):
        for run, outcomes in by_case(submission, "train_layers", cases, ["train_step"]):
            check_worked(run, outcomes)
            check_layers(run, outcomes)


def check_layers(run: Layers, outcomes: Sequence[Outcome]) -> None:
    """Losses, and every rank's parameters after the last step, as one process alone has them; gradients of zeros."""
    batch, last = run.arguments["batch"], len(run.micro_batches) - 1
    x, y = (np.concatenate(a) for a in zip(*[pair for parts in run.micro_batches for pair in parts], strict=True))
    losses, flats = descend(run.flats, run.arguments["steps"], RATE, lambda flats: slopes(flats, x, y, batch))
    whole = run.gradients()
    wrong = {
        "it is as it was": [0 * gradient for gradient in whole],
        "the gradient was divided by the number of ranks": [gradient / run.n for gradient in whole],
        "the gradient was divided by the number of micro-batches": [gradient / (last + 1) for gradient in whole],
        "the gradient was added: go against it": [-gradient for gradient in whole],
        "the gradient is the last micro-batch's alone": run.gradients(micro_batch=last),
        "the gradient is the first micro-batch's alone": run.gradients(micro_batch=0),
    }
    own = [run.gradients(rank) for rank in range(run.n)]
    for rank, outcome in enumerate(outcomes):
        who = on(run, rank)
        for number, (start, flat) in enumerate(zip(run.flats, flats, strict=True)):
            mistakes = {words: run.padded(start - RATE * of[number]) for words, of in wrong.items()}
            shards = [run.shard(start - RATE * of_rank[number], r) for r, of_rank in enumerate(own)]
            mistakes["each rank's shard is updated by its own gradient, not by the sum"] = np.concatenate(shards)
            check_array(who, f"param of layer {number}", outcome.value["params"][number], run.padded(flat), mistakes)
            grad, zeros = outcome.value["grads"][number], np.zeros_like(run.shard(flat, rank))
            check_array(who, f"grad of layer {number} after the step", grad, zeros)
    for step, loss in enumerate(losses):
        check_loss(run, [outcome.value["losses"][step] for outcome in outcomes], loss, "train_step")


@pytest.mark.points(2, "train_step: gradients travel once a micro-batch, parameters once a step")
def test_train_step_wire(submission: Submission) -> None:
    cases = [layers(submission, n, 8, rows, steps=1, rate=RATE) for n, rows in ((4, [4] * 3), (2, [4]))]
    for run, rank, outcome in by_rank(submission, "train_layers", cases, ["train_step"]):
        a, units, each = len(run.micro_batches), len(run.flats), run.padded(run.flats[0]).nbytes // run.n
        check_phases(run, rank, outcome, {SCATTER: a * units * (run.n - 1), GATHER: units * (run.n - 1)})
        check_to_the_right(f"{on(run, rank)} sends", run, rank, outcome, each)


@pytest.mark.points(2, "train_step: one layer's gradient at a time is whole")
def test_train_step_memory(submission: Submission) -> None:
    run = layers(submission, 4, 64, [4, 4], depth=20, rate=RATE)
    [outcomes] = submission.run("train_layers_measured", [run], ["train_step"])
    least = 2 * len(run.flats) * (run.n - 1) * (run.flats[0].nbytes // run.n)  # of each layer's gradient, in two steps
    for rank, outcome in enumerate(outcomes):
        if outcome.nbytes < least:
            lose(f"{on(run, rank)} sends {outcome.nbytes:,} bytes in two steps; {least:,} are needed.")
        if not all(outcome.value[1]):
            layer = outcome.value[1].index(False)
            lose(f"{on(run, rank)}'s param of layer {layer} is as it was. This is asked of a whole step.")
    check_held(run, [outcome.value[0] for outcome in outcomes])


def check_held(run: Layers, peaks: Sequence[int]) -> None:
    """That not the gradients of all layers were whole at a time."""
    whole = run.flats[0].nbytes
    limit = (UNITS_HELD + len(run.flats) // run.n) * whole  # and shards of all of them, if they wait for the end
    for rank, peak in enumerate(peaks):
        if peak > limit:
            lose(
                f"{on(run, rank)} held {peak:,} bytes at a time besides its units and rows, as many as"
                f" {peak / whole:.0f} whole gradients have. One layer's, and its bucket, are needed at a time. What"
                " keeps the others?"
            )


# ---- for good --------------------------------------------------------------------------------------------------------


def of(*methods: str) -> list[str]:
    return [f"ZeRO2.{method}" for method in methods]


@pytest.mark.points(2, "allocate: all parameters, an N-th of the gradient, as stored")
def test_allocate(submission: Submission) -> None:
    asked = [(4, "mixed"), *((n, "fp64") for n in RANKS)]
    cases = [small(submission, n, f", {precision} precision", precision) for n, precision in asked]
    for run, outcomes in by_case(submission, "allocate", cases, of("allocate")):
        truth, stored = run.truth, run.precision.stored
        for rank, outcome in enumerate(outcomes):
            for unit, flat in enumerate(truth.flats):
                whole = np.pad(truth.parameters[0][unit], (0, truth.padded(unit) - flat.size)).astype(stored)
                place = f"{on(run, rank)}'s flat.param of {flat.name}"
                index = wrong_index(place, outcome.value["param"][unit], whole, truth, unit)
                if index is not None:
                    lose(f"{place} is wrong first at index {index}, {element(truth, unit, index)}: it is not `start`.")
                zeros = np.zeros(truth.padded(unit) // run.n, stored)
                place = f"{on(run, rank)}'s flat.grad of {flat.name}"
                if wrong_index(place, outcome.value["grad"][unit], zeros, truth, unit) is not None:
                    lose(f"{place} is not zero at the start.")


@pytest.mark.points(1, "memory for good: 2Ψ + 14Ψ/N")
def test_memory_for_good(submission: Submission) -> None:
    words = "2Ψ + 14Ψ/N are {states}. Which array is as large as a whole gradient, or wider than it is stored?"
    check_for_good(submission, [heavy(submission)], of("allocate"), 2, words)


@pytest.mark.points(1, "owned: this rank's shard of both, to be updated in place")
def test_owned(submission: Submission) -> None:
    for run, rank, outcome in by_rank(submission, "owned", [small(submission, n) for n in RANKS], of("owned")):
        for name, theirs, before, after in outcome.value:
            who, each = f"On {run.label}: what owned returned on rank {rank} for {name}", before[1].size
            mine = slice(rank * each, (rank + 1) * each)
            expected = [before[0].copy(), before[1] + 1]
            expected[0][mine] += 1
            for which, found, shard in zip(("param", "grad"), theirs, (before[0][mine], before[1]), strict=True):
                if isinstance(found, str) or found.shape != shard.shape:
                    is_now = found if isinstance(found, str) else f"{found.shape}"
                    lose(f"{who} is, of flat.{which}, {is_now}; this rank's shard {shard.shape} is wanted.")
            for which, found, right, start in zip(("param", "grad"), after, expected, before, strict=True):
                if np.array_equal(found, right):
                    continue
                if np.array_equal(found, start):
                    lose(f"{who}: 1 was added to it, and flat.{which} is as it was. Return a view, not a copy.")
                lose(f"{who} is, of flat.{which}, not this rank's shard: 1 was added elsewhere.")


# ---- gradients -------------------------------------------------------------------------------------------------------


test_collect = part(2, "collect: into a bucket of zeros, or to what is in it", check_collect, of("collect"))


@pytest.mark.points(2, "reduce: the sum over the ranks, each its shard")
def test_reduce(submission: Submission) -> None:
    for run, rank, outcome in reduced(submission, of("reduce")):
        found, expected = outcome.value["first"], sums(run, rank)[1]
        check_gradient(run, rank, found, expected)
        if not np.array_equal(found, expected):
            lose_sum(run, rank, found, "nothing was added to it")


@pytest.mark.points(2, "reduce: micro-batches add up in flat.grad")
def test_accumulation(submission: Submission) -> None:
    for run, rank, outcome in reduced(submission, of("reduce")):
        first, second, both = (outcome.value[which] for which in ("first", "second", "both"))
        for found in (first, second, both):
            check_gradient(run, rank, found, sums(run, rank)[1])
        if not np.any(first):
            lose(f"{on(run, rank)}'s flat.grad is zero after a micro-batch.")
        if not np.allclose(both, first + second, rtol=1e-12):
            alone = np.array_equal(both, second)
            what = "it is the second one's alone" if alone else "it is not the sum of what each of them gives"
            lose(f"{on(run, rank)}'s flat.grad after two micro-batches: {what}. Add to what is there.")


@pytest.mark.points(1, "reduce: its phase, N-1 messages of a shard as stored")
def test_reduce_wire(submission: Submission) -> None:
    for run, rank, outcome in by_rank(submission, "reduce_one", wire_cases(submission), of("reduce")):
        check_phases(run, rank, outcome, {SCATTER: run.n - 1})
        each = run.truth.padded(0) // run.n * run.precision.bytes
        check_to_the_right(f"On {run.label}: in reduce rank {rank} sends", run, rank, outcome, each, as_stored=True)


# ---- memory ----------------------------------------------------------------------------------------------------------


def heavy(submission: Submission) -> Training:
    """Two steps of two micro-batches, of as many sequences as ranks."""
    more: dict[str, Any] = {"steps": 2, "accumulate": 2, "sequences": 4, "optimizer": "adamw", "precision": "mixed"}
    return training(submission.random, 4, ", mixed precision", HEAVY, **more)


@pytest.mark.points(2, "memory, backward: one unit's gradient at a time")
def test_memory_backward(submission: Submission) -> None:
    run = heavy(submission)
    sizes = unit_sizes(run)
    activations = min(sizes.values())  # bytes, more than they are: so no unit is so small that it is not noticed
    [outcomes] = submission.run("hold", [run], of("collect", "reduce"))
    for rank, outcome in enumerate(outcomes):
        for number, held in enumerate(outcome.value):
            who, so_far = f"On {run.label}: in micro-batch {number} rank {rank} holds", held["forward"]
            for (method, unit), nbytes in held["moments"]:
                # Widened parameters and the gradient as it is computed, float32, and the bucket; afterwards nothing.
                limit = (4 + 4 + 2) * sizes[unit] if method == "collect" else 0
                if (more := nbytes - so_far) > limit + activations:
                    lose(
                        f"{who} {more:,} bytes of arrays beyond what it held before the backward after {method} of"
                        f" {unit}, where {limit:,} are needed. Whose gradient is still here? ({unit} has"
                        f" {sizes[unit]:,} parameters.)"
                    )
            if (more := held["backward"] - so_far) > activations:
                lose(f"{who} {more:,} bytes more after the backward than before. What was not given back?")
            if not held["reduced"]:
                lose(f"{who} gradients of zeros alone after the backward: collect and reduce have made nothing.")
    run = training(submission.random, 2, ", all methods the student's", SMALL, steps=3)
    check_trains_alike(submission, run, of(*METHODS))


# ---- the notebook's gaps, which earn no points: check("reduce_unit") runs these --------------------------------------


def check_reduce_unit(submission: Submission) -> None:
    for n, width in ((4, 15), (4, 5), (3, 4), (1, 3)):
        run = layers(submission, n, width, [n])
        own = [submission.random.standard_normal(width * width + width) for _ in range(n)]
        case = Case(n, f"{ranks(n)}, a gradient of {own[0].size} numbers", own)
        [outcomes] = submission.run("toy_reduce", [case], ["reduce_unit"])
        for rank, outcome in enumerate(outcomes):
            who, total = on(case, rank), np.sum(own, axis=0)
            mistakes = {
                "it is this rank's own part, not summed over the ranks": run.shard(own[rank], rank),
                "it is the sum divided by the number of ranks": run.shard(total, rank) / n,
            }
            check_array(who, "the shard", outcome.value["returned"], run.shard(total, rank), mistakes)
            if outcome.value["is a view"]:
                lose(f"{who}'s shard is a view of the bucket, and keeps all of it in memory. Return a copy.")
            check_phases(case, rank, outcome, {SCATTER: n - 1})


def going_back(submission: Submission, n: int, width: int, depth: int) -> Layers:
    """A micro-batch at the end of its forward, and shards of gradients in which something is already."""
    run = layers(submission, n, width, [2 * n], depth)
    run.arguments = {"batch": 2 * n}
    inputs = []
    for rank, (x, y) in enumerate(run.micro_batches[0]):
        h = forward(run.flats, x)
        before = submission.random.standard_normal((depth, run.shard(run.flats[0], rank).size))
        inputs.append((run.inputs[rank][0], h, (h[-1] - y) / run.arguments["batch"], before))
    run.inputs, run.arguments, run.label = inputs, {}, f"{n} ranks, {depth} layers of {run.flats[0].size} parameters"
    return run


def check_backward(submission: Submission) -> None:
    for n, width in ((4, 15), (3, 4)):
        run = going_back(submission, n, width, 3)
        [outcomes] = submission.run("toy_backward", [run], ["backward"])
        run.arguments["batch"] = 2 * n
        for rank, outcome in enumerate(outcomes):
            who = on(run, rank)
            for number, (own, total) in enumerate(zip(run.gradients(rank), run.gradients(), strict=True)):
                before, mine = run.inputs[rank][3][number], run.shard(total, rank)
                mistakes = {
                    "it is as it was: add to it in place": before,
                    "what was there is lost: add to it": mine,
                    "it is this rank's own part that was added, not the sum": before + run.shard(own, rank),
                }
                check_array(who, f"grad of layer {number}", outcome.value[number], before + mine, mistakes)
            check_phases(run, rank, outcome, {SCATTER: 3 * (n - 1)})
    run = going_back(submission, 4, 64, 32)
    [outcomes] = submission.run("toy_backward_measured", [run], ["backward"])
    check_held(run, [outcome.value for outcome in outcomes])


def check_accumulate(submission: Submission) -> None:
    for n, width, rows in ((4, 15, [8] * 3), (3, 4, [7, 7]), (4, 5, [3])):
        run = layers(submission, n, width, rows)
        [outcomes] = submission.run("toy_accumulate", [run], ["accumulate"])
        whole, last = run.gradients(), len(rows) - 1
        for rank, outcome in enumerate(outcomes):
            for number, total in enumerate(whole):
                mistakes = {
                    "it is zero": 0 * total,
                    "it is the last micro-batch's alone": run.gradients(micro_batch=last)[number],
                    "it is the first micro-batch's alone": run.gradients(micro_batch=0)[number],
                    "it is divided by the number of micro-batches": total / (last + 1),
                    "it is the number of micro-batches times what it should be": total * (last + 1),
                }
                of_rank = {words: run.shard(wrong, rank) for words, wrong in mistakes.items()}
                who, found = on(run, rank), outcome.value["grads"][number]
                check_array(who, f"grad of layer {number}", found, run.shard(total, rank), of_rank)
            check_phases(run, rank, outcome, {SCATTER: len(rows) * 3 * (n - 1)})
        x, y = (np.concatenate(a) for a in zip(*[pair for parts in run.micro_batches for pair in parts], strict=True))
        loss, _ = slopes(run.flats, x, y, run.arguments["batch"])
        check_loss(run, [outcome.value["loss"] for outcome in outcomes], loss, "accumulate")


def check_room(submission: Submission) -> None:
    for n in (4, 64):
        sizes = [int(size) for size in submission.random.integers(1000, 9000, 5) * n]
        sizes[-1] -= 1  # which n does not divide
        label, padded = f"{n} ranks, units of {', '.join(map(str, sizes))}", [-(-size // n) * n for size in sizes]
        [found] = ask(submission, "toy_room", "room", [(sizes, n)], label)
        states, bucket = zero.model_states(sum(padded), n, stage=2).total, 2 * max(padded)
        if not isinstance(found, float):
            lose(f"For {label} room returned {found}; a number of bytes is wanted.")
        known = {
            states: "that is without the bucket",
            states + 2 * sum(padded): "that has a bucket for every unit: one is there at a time",
            states + max(padded): "a number in the bucket has two bytes",
            16 * sum(padded) + bucket: "14 of the 16 bytes are divided by n",
            zero.model_states(sum(sizes), n, stage=2).total + 2 * max(sizes): "round each size up to a multiple of n",
            zero.model_states(sum(padded), n, stage=1).total + bucket: "gradients are divided too",
            zero.model_states(sum(padded), n, stage=3).total + bucket: "parameters are whole on every rank",
        }
        if not np.isclose(found, states + bucket, rtol=1e-9):
            hint = next((f": {words}" for wrong, words in known.items() if abs(found - wrong) < 1), "")
            lose(f"For {label} room returned {found:,.0f}; it should be {states + bucket:,.0f}{hint}.")


GAPS = gaps(globals(), "reduce_unit", "backward", "accumulate", "room")
