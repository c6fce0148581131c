"""The grade of lesson 09: `pytest lessons/09_zero_3`, or `make grade` for a table.

Each part asks for one thing of train_step, of one method, or of two that belong together, and loads exercise.py anew;
the chapter's code stands in for the other methods. Inputs are drawn afresh, and only their own rank knows them; what
was sent is counted here, for every message passes through here; what is held, on the rank, by Python's own account. A
part earns its points or not; none needs a later one, and one mistake costs one part:

- What a second call must add is compared with what the first one gave.
- Of memory, a part asks for what its methods add to what is held already.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading import sharded
from minidist.classroom.grading.checks import check_all_own, factor_of, gaps, run_and_blame, things
from minidist.classroom.grading.meaning import check_meaning, check_timing, check_worked
from minidist.classroom.grading.parts import by_case, by_rank, large, on, part, ranks
from minidist.classroom.grading.sharded import (
    RANKS,
    SCATTER,
    check_array,
    check_collect,
    check_factor,
    check_for_good,
    check_loss,
    check_phases,
    check_to_the_right,
    descend,
    lose_sum,
    reduced,
    small,
    sums,
    wire_cases,
)
from minidist.classroom.grading.submission import Case, Lost, Outcome, Submission, lose
from minidist.classroom.grading.training import (
    HEAVY,
    Training,
    check_gradient,
    check_losses,
    check_shards,
    training,
    unit_sizes,
    whole_numbers,
    wrong_index,
)
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import flats_of
from minidist.nn.precision import Precision

Array = np.ndarray
METHODS = ("allocate", "owned", "parameters_of", "forget", "collect", "reduce", "after_update")
ASKED = ("train_step", *(f"ZeRO3.{name}" for name in METHODS))
HIDDEN = ("minidist.zero3", "minidist.zero2", "answers", "given")  # what ranks cannot import


def of(*methods: str) -> list[str]:
    return [f"ZeRO3.{method}" for method in methods]


# ---- the notebook's layers -------------------------------------------------------------------------------------------

RATE = 0.5
check_toy = partial(check_array, as_it_was=True)
LAYERS_HELD = 8  # whole W that a step may hold at a time, however many there are: W, its gradient, and copies of it


@dataclass
class Layers(Case):
    """Layers h -> tanh(h W), a shard of each on every rank, and each rank's rows of a batch."""

    weights: list[Array] = field(default_factory=list)
    rows: list[tuple[Array, Array]] = field(default_factory=list)  # (x, y) of each rank


def layers(submission: Submission, n: int, width: int, batch: int, depth: int = 3, **arguments: Any) -> Layers:
    draw = submission.random.standard_normal
    weights = [draw((width, width)) / width**0.5 for _ in range(depth)]
    x, y = draw((batch, width)), np.tanh(draw((batch, width)))
    rows = list(zip(np.array_split(x, n), np.array_split(y, n), strict=True))
    inputs = [(np.stack([shards_of(w, n)[rank] for w in weights]), *rows[rank]) for rank in range(n)]
    label = f"{ranks(n)}, {depth} layers (W is {width} x {width}), {batch} rows"
    return Layers(n, label, inputs, {"batch": batch, "rate": RATE, **arguments}, weights, rows)


def slopes(weights: Sequence[Array], x: Array, y: Array, batch: int) -> tuple[float, list[Array]]:
    """What rows contribute to the loss, and to the gradient of each W: no bias is added."""
    flats = [np.append(w, np.zeros(w.shape[1])) for w in weights]
    loss, gradients = sharded.slopes(flats, x, y, batch)
    return loss, [of[: w.size].reshape(w.shape) for of, w in zip(gradients, weights, strict=True)]


@pytest.mark.points(1, "train_step: one process's training, on any number of ranks")
def test_train_step(submission: Submission) -> None:
    cases = [layers(submission, n, width, batch, steps=1) for n, width, batch in ((4, 16, 32), (2, 6, 8))]
    sizes = ((4, 5, 6), (3, 4, 7), (1, 3, 2), (2, large(submission, least=50, most=100), 4))
    odd = [layers(submission, n, width, batch, steps=2) for n, width, batch in sizes]
    for some in (cases, odd):
        for run, outcomes in by_case(submission, "train_layers", some, ["train_step"]):
            check_worked(run, outcomes)
            check_layers(run, outcomes)


def check_layers(run: Layers, outcomes: Sequence[Outcome]) -> None:
    """Losses, and every rank's shards after the last step, as one process alone has them."""
    batch, (x, y) = run.arguments["batch"], (np.concatenate(part) for part in zip(*run.rows, strict=True))
    losses, weights = descend(run.weights, run.arguments["steps"], RATE, lambda of: slopes(of, x, y, batch))
    for rank, outcome in enumerate(outcomes):
        _, own = slopes(run.weights, *run.rows[rank], batch)
        _, both = slopes(run.weights, x, y, batch)
        for layer, w in enumerate(weights):
            start = run.weights[layer]
            wrong = {
                "it is as it was: update the array itself, in place": start,
                "it was updated by this rank's own gradient, not summed over the ranks": start - RATE * own[layer],
                "its gradient was divided by the number of ranks": start - RATE * both[layer] / run.n,
                "the gradient was added: go against it": start + RATE * both[layer],
            }
            mistakes = {words: shards_of(of, run.n)[rank] for words, of in wrong.items()}
            found, what = outcome.value["shards"][layer], f"the shard of layer {layer}"
            check_toy(on(run, rank), what, found, shards_of(w, run.n)[rank], mistakes)
    for step, loss in enumerate(losses):
        check_loss(run, [outcome.value["losses"][step] for outcome in outcomes], loss)


@pytest.mark.points(1, "train_step: three phases, for each layer N-1 messages of a shard")
def test_train_step_wire(submission: Submission) -> None:
    cases = [layers(submission, n, 8, 8, steps=1) for n in (4, 2)]
    for run, rank, outcome in by_rank(submission, "train_layers", cases, ["train_step"]):
        check_messages(run, rank, outcome, ["all-gather forward", "all-gather backward", SCATTER], len(run.weights))
        check_to_the_right(f"{on(run, rank)} sends", run, rank, outcome, 8 * 8 * 8 // run.n)


def check_messages(case: Case, rank: int, outcome: Outcome, phases: Sequence[str], layers: int = 1) -> None:
    """For each layer N-1 messages in each phase, and none elsewhere."""
    check_phases(case, rank, outcome, dict.fromkeys(phases, layers * (case.n - 1)), "needed")


@pytest.mark.points(2, "train_step: one layer at a time is whole")
def test_train_step_memory(submission: Submission) -> None:
    width, depth = 64, 20
    run = layers(submission, 4, width, 4, depth)
    [outcomes] = submission.run("train_layers_measured", [run], ["train_step"])
    whole = width * width * 8
    limit = (LAYERS_HELD + depth // run.n) * whole  # and the gradient's shards, if they wait for the end
    least = 2 * depth * (run.n - 1) * whole // run.n  # of each layer gathered once, in two steps
    for rank, outcome in enumerate(outcomes):
        if outcome.nbytes < least:
            lose(f"{on(run, rank)} sends {outcome.nbytes:,} bytes in two steps; {least:,} are needed.")
        if outcome.value > limit:
            lose(
                f"{on(run, rank)} held {outcome.value:,} bytes at a time besides its shards and rows, as"
                f" many as {outcome.value / whole:.0f} whole layers have. One W and its gradient are needed at a time."
                " What keeps the others?"
            )


# ---- for good --------------------------------------------------------------------------------------------------------


@pytest.mark.points(1, "allocate: an N-th of the parameters, as stored, and zeros")
def test_allocate(submission: Submission) -> None:
    asked = [(4, "mixed"), *((n, "fp64") for n in RANKS)]
    cases = [small(submission, n, f", {precision} precision", precision) for n, precision in asked]
    for run, outcomes in by_case(submission, "allocate", cases, of("allocate")):
        truth, values = run.truth, [outcome.value for outcome in outcomes]
        zeros = [np.zeros_like(whole) for whole in truth.parameters[0]]
        check_shards(run, "param", [value["param"] for value in values], truth.parameters[0], "after allocate")
        check_shards(run, "grad", [value["grad"] for value in values], zeros, "after allocate")


@pytest.mark.points(1, "owned: the arrays themselves, to be updated in place")
def test_owned(submission: Submission) -> None:
    for run, rank, outcome in by_rank(submission, "owned", [small(submission, n) for n in RANKS], of("owned")):
        for which, flat, before, after in outcome.value:
            if not np.array_equal(after, before + 1):
                lose(
                    f"On {run.label}: 1 was added to what owned returned on rank {rank} for {flat}, and its"
                    f" flat.{which} has not become 1 more. Return the array itself, not a copy."
                )


# ---- parameters ------------------------------------------------------------------------------------------------------

GATHERED = {
    "forward": "parameters_of returned",
    "kept in the forward": "parameters_of put into flat.gathered",
    "backward": "parameters_of returned in the backward",
    "kept in the backward": "parameters_of put into flat.gathered in the backward",
}


def everyones(run: Training, unit: int, times: int = 1) -> list[Array]:
    """Each rank's shard of a unit, with its own numbers added `times` times, as stored."""
    truth, stored = run.truth, run.precision.stored
    shards = [truth.shard(truth.parameters[0][unit], rank).astype(stored) for rank in range(run.n)]
    return [
        shard + times * np.resize(mine, shard.size).astype(stored)
        for shard, mine in zip(shards, run.inputs, strict=True)
    ]


@pytest.mark.points(1, "parameters_of: everyone's shards, put together")
def test_parameters_of(submission: Submission) -> None:
    cases = [small(submission, n, times=1) for n in RANKS]
    for run, outcomes in by_case(submission, "gather", cases, of("parameters_of")):
        check_worked(run, outcomes)
        truth = run.truth
        for unit, flat in enumerate(truth.flats):
            shards = everyones(run, unit)
            for rank, outcome in enumerate(outcomes):
                place = f"On {run.label}, {flat.name}"
                kept = outcome.value["param"][unit]
                if wrong_index("flat.param after parameters_of", kept, shards[rank], truth, unit) is not None:
                    lose(f"{place}: parameters_of changed flat.param on rank {rank}.")
                for which, words in GATHERED.items():
                    what = f"{place}: what {words} on rank {rank}"
                    index = wrong_index(what, outcome.value[which][unit], np.concatenate(shards), truth, unit)
                    if index is not None:
                        lose(f"{what} is wrong first at index {index}, in the shard of rank {index // shards[0].size}.")


@pytest.mark.points(1, "parameters_of: what is here is not sent again, what is new is")
def test_parameters_of_again(submission: Submission) -> None:
    once, twice = (small(submission, 4, f", asked for {times} times", times=times) for times in (1, 2))
    new = small(submission, 4, ", after an update")
    first, again = submission.run("gather", [once, twice], of("parameters_of"))
    check_worked(once, first)
    for rank, (a, b) in enumerate(zip(first, again, strict=True)):
        if b.messages > a.messages:
            lose(
                f"On {twice.label}: rank {rank} sent {b.messages} messages, where {a.messages} are sent when it is"
                " asked for once. What is here already needs none: look at flat.gathered first."
            )
        for direction in ("forward", "backward"):
            for unit, flat in enumerate(once.truth.flats):
                if type(b.value[direction][unit]) is not type(a.value[direction][unit]):
                    lose(f"On {twice.label}, {flat.name}: the second time parameters_of returns something else.")
    [outcomes] = submission.run("gather_new", [new], of("parameters_of"))
    for unit, flat in enumerate(new.truth.flats):
        before, after = (np.concatenate(everyones(new, unit, times)) for times in (0, 1))
        for rank, outcome in enumerate(outcomes):
            found = [outcome.value[which][unit] for which in ("before", "after")]
            if np.array_equal(found[0], found[1]) and not np.array_equal(before, after):
                lose(
                    f"On {new.label}, {flat.name}: after flat.gathered was dropped and the shards were updated, rank"
                    f" {rank} still gets the parameters of before. Gather them anew."
                )


@pytest.mark.points(1, "parameters_of: phases, N-1 messages of a shard as stored")
def test_parameters_of_wire(submission: Submission) -> None:
    asked = [(4, "fp64", 0), (4, "fp64", 1), (4, "fp64", 2), (4, "mixed", 1), (3, "fp64", 0)]
    cases = [
        small(submission, n, f", {precision}, {direction}", precision, unit=unit, direction=direction)
        for direction in ("forward", "backward")
        for n, precision, unit in asked
    ]
    for run, outcomes in by_case(submission, "gather_one", cases, of("parameters_of")):
        unit = run.arguments["unit"]
        check_wire(run, outcomes, unit, f"all-gather {run.arguments['direction']}", "parameters_of")


def check_wire(run: Training, outcomes: Sequence[Outcome], unit: int, phase: str, method: str) -> None:
    """N-1 messages of one unit's shard, to the right, in this phase; and nothing else."""
    each = run.truth.padded(unit) // run.n * run.precision.bytes
    for rank, outcome in enumerate(outcomes):
        who = f"On {run.label}: in {method} of {run.truth.flats[unit].name} rank {rank}"
        for (name, peer, line), (nbytes, messages) in outcome.sent.items():
            at = f"at {line}" if line else ""
            if name != phase:
                lose(f"{who} sends {nbytes:,} bytes {at} in phase {name!r}, where phase {phase!r} is asked for.")
            if peer != (rank + 1) % run.n:
                lose(f"{who} sends to rank {peer} {at}; around the ring it sends to its right neighbor alone.")
            if nbytes > messages * each:
                lose(
                    f"{who} sends {nbytes:,} bytes in {messages} messages {at}; a shard as stored has {each:,}. Is it"
                    " widened before it is sent, or more than one unit?"
                )
        if (outcome.messages, outcome.nbytes) != (run.n - 1, (run.n - 1) * each):
            lose(
                f"{who} sends {outcome.messages} messages, {outcome.nbytes:,} bytes; {run.n - 1} of a shard, {each:,}"
                " bytes each, are needed and enough."
            )


# ---- gradients -------------------------------------------------------------------------------------------------------


test_collect = part(1, "collect: into a bucket of zeros, or to what is in it", check_collect, of("collect"))


def check_added(run: Case, rank: int, found: Array) -> None:
    """That something was added to a rank's flat.grad."""
    if run.n > 1 and not np.any(found):
        lose(f"{on(run, rank)}'s flat.grad is zero after a micro-batch.")


@pytest.mark.points(1, "reduce: the sum over the ranks, each its shard, and not divided")
def test_reduce(submission: Submission) -> None:
    for run, rank, outcome in reduced(submission, of("reduce")):
        found, expected = outcome.value["first"], sums(run, rank)[1]
        check_gradient(run, rank, found, expected)
        if (factor := factor_of(found, expected)) is None:
            lose_sum(run, rank, found)
        check_factor(run, rank, factor)


@pytest.mark.points(1, "reduce: micro-batches add up in flat.grad")
def test_accumulation(submission: Submission) -> None:
    for run, rank, outcome in reduced(submission, of("reduce")):
        first, second, both = (outcome.value[which] for which in ("first", "second", "both"))
        for found in (first, second, both):
            check_gradient(run, rank, found, sums(run, rank)[1])
        check_added(run, rank, first)
        if not np.allclose(both, first + second, rtol=1e-12):
            alone = np.array_equal(both, second)
            what = "the second one's alone: add to what is there" if alone else "not the sum of what each of them gives"
            lose(f"{on(run, rank)}'s flat.grad after two micro-batches: it is {what}.")


@pytest.mark.points(1, "reduce: its phase, N-1 messages of a shard as stored")
def test_reduce_wire(submission: Submission) -> None:
    for run, outcomes in by_case(submission, "reduce_one", wire_cases(submission), of("reduce")):
        check_wire(run, outcomes, 0, SCATTER, "reduce")


# ---- memory ----------------------------------------------------------------------------------------------------------

# 66 MB of parameters in units of 2.5 MB: the kernel itself sees whether a rank holds all of them.
LARGE = {"vocabulary": 16, "context": 1, "layers": 27, "heads": 1, "width": 160, "tied": False}
UNITS_HELD = 3  # one on its way in, one that is read, and one that is made at the start
ROOM = 8 << 20  # bytes of everything else


def heavy(submission: Submission, *precisions: str, **arguments: Any) -> list[Training]:
    """With as many sequences as ranks."""
    more: dict[str, Any] = {"steps": 2, "sequences": 4, "optimizer": "adamw", **arguments}
    return [
        training(submission.random, 4, f", {precision} precision", HEAVY, precision=precision, **more)
        for precision in precisions
    ]


def activations(run: Training) -> int:
    """Bytes, more than they are: so no unit is so small that it is not noticed."""
    return min(unit_sizes(run).values())


@pytest.mark.points(1, "memory for good: 16Ψ/N")
def test_memory_for_good(submission: Submission) -> None:
    # In fp32 these are 4 + 4 + 8: 16, too.
    words = "16Ψ/N are {states}. Is there a view of `start`, which keeps all of it?"
    check_for_good(submission, heavy(submission, "fp32", "mixed"), of("allocate"), 3, words)


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


def check_moments(run: Training, outcomes: Sequence[Outcome], way: str, before: str) -> None:
    """On the way forward or backward, one unit at a time, beyond what was held `before`."""
    sizes = unit_sizes(run)
    for rank, outcome in enumerate(outcomes):
        who, so_far = on(run, rank), outcome.value[before]
        for (direction, method, unit), nbytes in outcome.value["moments"]:
            limit = needed(direction, method, run.precision) * sizes[unit]
            if direction == way and (more := nbytes - so_far) > limit + activations(run):
                lose(
                    f"{who} holds {more:,} bytes of arrays beyond what it held before the {direction} after {method} of"
                    f" {unit}, where {limit:,} are needed. Whose parameters or gradients are still here, or already?"
                    f" ({unit} has {sizes[unit]:,} parameters.)"
                )


@pytest.mark.points(3, "memory, forward: parameters of one unit at a time")
def test_memory_forward(submission: Submission) -> None:
    held = heavy(submission, "mixed", back=False)
    for run, outcomes in zip(held, run_and_blame(submission, "hold", held, of("parameters_of", "forget")), strict=True):
        check_moments(run, outcomes, "forward", "for good")
        for rank, outcome in enumerate(outcomes):
            if (more := outcome.value["evaluated"] - outcome.value["for good"]) > activations(run):
                lose(
                    f"{on(run, rank)} holds {more:,} bytes more after an evaluation than before. What was not released?"
                )
    check_confined(submission)


def check_confined(submission: Submission) -> None:
    """The same seen from outside: on ranks to which the kernel gives no memory for the whole model."""
    run = training(submission.random, 5, ", a large model", LARGE, sequences=5)
    sizes = [flat.size * run.precision.bytes for flat in flats_of(gpt(GPTConfig(**LARGE)))]
    whole, largest = sum(sizes), max(sizes)
    assert whole >= 64e6
    assert whole / run.n <= 16e6
    states = 3 * whole // run.n  # parameters, gradient, momentum
    memory = states + UNITS_HELD * largest + ROOM
    run.inputs = [np.zeros(0)] * run.n
    try:
        [outcomes] = submission.attempt("walk", [run], of("parameters_of", "forget"), memory=memory)
    except Lost as lost:
        if "MemoryError" not in str(lost):
            lose(str(lost))
        lose(
            f"On {run.label} of {whole:,} bytes: a rank has memory for its shards, {states:,} bytes, and for"
            f" some units of {largest:,} bytes, and that is not enough. Which units are still gathered?\n{lost}"
        )
    for rank, outcome in enumerate(outcomes):
        if outcome.value != len(sizes) or outcome.nbytes < (whole - largest) * (run.n - 1) // run.n:
            lose(f"{on(run, rank)} did not gather all {len(sizes)} units.")


@pytest.mark.points(1, "memory, backward: one unit's parameters and gradient")
def test_memory_backward(submission: Submission) -> None:
    held, methods = heavy(submission, "mixed"), of("parameters_of", "forget", "collect", "reduce")
    for run, outcomes in zip(held, run_and_blame(submission, "hold", held, methods), strict=True):
        check_moments(run, outcomes, "backward", "forward")
        for rank, outcome in enumerate(outcomes):
            if (more := outcome.value["backward"] - outcome.value["forward"]) > activations(run):
                lose(
                    f"{on(run, rank)} holds {more:,} bytes more after the backward than before. What was not released?"
                )
            if not outcome.value["reduced"]:
                lose(f"On {run.label}: after the backward all that rank {rank} has of gradients is zero.")


@pytest.mark.points(1, "after the update: nothing is sent, nothing more is held")
def test_memory_afterwards(submission: Submission) -> None:
    held = heavy(submission, "mixed")
    for run, rank, outcome in by_rank(submission, "hold", held, of("after_update")):
        if (more := outcome.value["after"] - outcome.value["for good"]) > activations(run):
            lose(
                f"{on(run, rank)} holds {more:,} bytes more after a step than before the first one."
                " Whatever is gathered after the update, the next forward gathers again."
            )
    cases = [small(submission, n, steps=2) for n in (4, 3)]
    for run, outcomes in by_case(submission, "train", cases, of("after_update")):
        known = {"all-gather forward", "all-gather backward", SCATTER, "norm"}
        units = len(run.truth.flats)
        for rank, outcome in enumerate(outcomes):
            usual = 2 * (3 * units + 1) * (run.n - 1)
            found = f"{outcome.messages} messages, where {usual} are needed" if outcome.messages != usual else ""
            for (phase, _, line), (nbytes, _) in outcome.sent.items():
                if phase not in known or line:
                    found = f"{nbytes:,} bytes in phase {phase!r}{line and f' at {line}'}"
            if found:
                lose(
                    f"{on(run, rank)} sends {found}. After the update nothing needs to be sent: the next"
                    " forward gathers."
                )
        check_trained(run, outcomes)


def check_trained(run: Training, outcomes: Sequence[Outcome]) -> None:
    """Losses and parameters of each step are those of serial training."""
    values = [outcome.value for outcome in outcomes]
    check_losses(run, [value["losses"] for value in values], run.truth.losses, "the loss of batch")
    for number, wholes in enumerate(run.truth.parameters[1:]):
        found = [value["parameters"][number] for value in values]
        check_shards(run, "param", found, wholes, f"after step {number + 1}")


# ---- what only shows from between the ranks --------------------------------------------------------------------------


def check_made(run: Case, outcomes: Sequence[Outcome]) -> None:
    """Of a method that sends, that something has come of it."""
    check_worked(run, outcomes)
    for rank, outcome in enumerate(outcomes):
        if run.arguments["function"] == "reduce":
            check_added(run, rank, outcome.value)


@pytest.mark.points(1, "nothing depends on luck, and every message means something")
def test_messages(submission: Submission) -> None:
    def cases(n: int) -> dict[str, Training]:
        names = ("parameters_of", "reduce")
        return {f"ZeRO3.{name}": whole_numbers(submission.random, n, f", {name}", function=name) for name in names}

    check_timing(submission, "either", {name: [case] for name, case in cases(4).items()}, check_made)
    check_meaning(submission, "either", dict(cases(2)), check_made)
    check_all_own(submission, "train", [small(submission, 2)], of(*METHODS), check_trained)


# ---- the notebook's gaps, which earn no points: check("gather") runs these -------------------------------------------

WIDTH, ROWS = 16, 8  # of the notebook's layers, and of each rank's part of the batch


def shards_of(w: Array, n: int) -> list[Array]:
    """Every rank's, padded with zeros."""
    flat = np.zeros(-(-w.size // n) * n)
    flat[: w.size] = w.reshape(-1)
    return np.split(flat, n)


def check_cut_shard(submission: Submission) -> None:
    for n, shape in ((4, (WIDTH, WIDTH)), (4, (5, 3)), (3, (WIDTH, WIDTH)), (1, (3, 3))):
        w = submission.random.standard_normal(shape)
        case = Case(n, f"{ranks(n)}, a matrix {shape}", [w] * n)
        [outcomes] = submission.run("toy_cut", [case], ["cut_shard"])
        for rank, (outcome, shard) in enumerate(zip(outcomes, shards_of(w, n), strict=True)):
            who = on(case, rank)
            every_nth = np.append(w, np.zeros(-w.size % n))[rank::n]
            mistakes = {f"it is every {n}-th number; a shard is cut in one piece": every_nth}
            check_toy(who, "the shard", outcome.value["returned"], shard, mistakes)
            if outcome.value["is a view"]:
                lose(f"{who}'s shard is a view of the whole matrix, and keeps all of it in memory. Return a copy.")


def check_gather(submission: Submission) -> None:
    for n, shape in ((4, (WIDTH, WIDTH)), (4, (5, 3)), (3, (WIDTH, WIDTH))):
        w = submission.random.standard_normal(shape)
        case = Case(n, f"{n} ranks, a matrix {shape}", shards_of(w, n), {"rows": shape[0], "columns": shape[1]})
        [outcomes] = submission.run("toy_gather", [case], ["gather"])
        for rank, outcome in enumerate(outcomes):
            mistakes = {
                f"it is rank {rank}'s shard again and again": np.resize(case.inputs[rank], shape),
                "its numbers are in another order": np.reshape(w.reshape(-1), shape, order="F"),
            }
            check_toy(on(case, rank), "what gather returned", outcome.value["returned"], w, mistakes)


def check_forward_layer(submission: Submission) -> None:
    n, draw = 4, submission.random.standard_normal
    w, rows = draw((WIDTH, WIDTH)) / 4, draw((n, ROWS, WIDTH))
    case = Case(n, f"{n} ranks with {ROWS} rows each", list(zip(shards_of(w, n), rows, strict=True)))
    [outcomes] = submission.run("toy_forward", [case], ["forward_layer"])
    for rank, outcome in enumerate(outcomes):
        mistakes = {"tanh is missing": rows[rank] @ w, "W is transposed": np.tanh(rows[rank] @ w.T)}
        check_toy(on(case, rank), "the output", outcome.value["returned"], np.tanh(rows[rank] @ w), mistakes)
        check_messages(case, rank, outcome, ["all-gather forward"])


def check_backward_layer(submission: Submission) -> None:
    n, draw = 4, submission.random.standard_normal
    w, (rows, douts) = draw((WIDTH, WIDTH)) / 4, draw((2, n, ROWS, WIDTH))
    outs = np.tanh(rows @ w)
    dz = douts * (1 - outs**2)
    own = [h.T @ d for h, d in zip(rows, dz, strict=True)]
    inputs = list(zip(shards_of(w, n), rows, outs, douts, strict=True))
    case = Case(n, f"{n} ranks with {ROWS} rows each", inputs)
    [outcomes] = submission.run("toy_backward", [case], ["backward_layer"])
    for rank, outcome in enumerate(outcomes):
        who = on(case, rank)
        value = things(f"{who}: backward_layer", outcome.value["returned"], ("gradient", "dh"))
        shard = shards_of(np.sum(own, axis=0), n)[rank]
        mistakes = {
            "it is this rank's own part, not summed over the ranks": shards_of(own[rank], n)[rank],
            "it is the sum divided by the number of ranks": shard / n,
            "it is that of the transpose: dz.T @ h in place of h.T @ dz": shards_of(np.sum(own, axis=0).T, n)[rank],
        }
        wrong = {
            "W is not transposed": dz[rank] @ w,
            "it is made of dout; dz is what came through the tanh": douts[rank] @ w.T,
        }
        check_toy(who, "the shard of the gradient", value[0], shard, mistakes)
        check_toy(who, "dh", value[1], dz[rank] @ w.T, wrong)
        check_messages(case, rank, outcome, ["all-gather backward", SCATTER])


GAPS = gaps(globals(), "cut_shard", "gather", "forward_layer", "backward_layer")

# Of the methods without a part of their own, the first one that a mistake loses.
PARTS = {"ZeRO3.forget": test_memory_forward, "ZeRO3.after_update": test_memory_afterwards}
