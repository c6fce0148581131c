"""The grade of lesson 05: `pytest lessons/05_data_parallel`, or `make grade` for a table.

Each part asks for one thing of train_step or of one method, and loads exercise.py anew; the lesson's code stands in for
the other methods. Inputs are drawn afresh, and of a batch every rank knows its own rows alone; what was sent is counted
here, for every message passes through here. A part earns its points or not, and one mistake costs one part:

- Gradients count as right up to a factor; some parts ask for the factor.
- Of clipping and the norm it is asked that they are those of the step's own gradient.
- Optimizers are plain SGD, because Adam hides a factor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import an_array, check_trains_alike, factor_of, gaps, things
from minidist.classroom.grading.diagnose import in_a_sum
from minidist.classroom.grading.meaning import check_meaning, check_timing, check_worked
from minidist.classroom.grading.parts import ask, by_case, by_rank, describe, large, named, on, ranks, why
from minidist.classroom.grading.sharded import (
    RANKS,
    check_factor,
    check_sum,
    descend,
    forward,
    slopes,
    small,
    with_numbers,
)
from minidist.classroom.grading.submission import Case, Outcome, Submission, lose
from minidist.classroom.grading.training import Training, share, training
from minidist.papers.collectives import chunk_sizes, ring_all_reduce

Array = np.ndarray
METHODS = ("rows", "send_bucket", "reduce", "sum_over_axes")
ASKED = ("train_step", *(f"DataParallel.{name}" for name in METHODS))
HIDDEN = ("minidist.data_parallel", "answers", "given")  # what ranks cannot import
PHASE = "all-reduce gradients"
SMALL = {"vocabulary": 17, "context": 8, "layers": 2, "heads": 1, "width": 3, "tied": False}


def of(*methods: str) -> list[str]:
    return [f"DataParallel.{method}" for method in methods]


def check_ring(run: Case, rank: int, outcome: Outcome, sizes: Sequence[int], nbytes: int) -> None:
    """For each of these arrays one ring all-reduce, in its phase: bytes and messages of a rank."""
    messages, elements = 2 * (run.n - 1) * len(sizes), sum(ring_all_reduce(size, run.n).sent[rank] for size in sizes)
    largest = max(max(chunk_sizes(size, run.n)) for size in sizes) * nbytes
    for (phase, peer, line), (some, count) in outcome.sent.items():
        here = f"{on(run, rank)} sends {some:,} bytes{line and f' at {line}'}"
        if phase != PHASE:
            lose(f"{here} {'outside of every phase' if phase == 'main' else f'in phase {phase!r}'}; use {PHASE!r}.")
        if peer != (rank + 1) % run.n:
            lose(f"{here} to rank {peer}; a ring all-reduce sends to the right neighbor alone.")
        if some > count * largest:
            lose(f"{here} in {count} messages; {largest:,} bytes are the most that one of them needs.")
    if (outcome.messages, outcome.nbytes) != (messages, elements * nbytes):
        lose(
            f"{on(run, rank)} sends {outcome.messages} messages, {outcome.nbytes:,} bytes; {messages}"
            f" messages, {elements * nbytes:,} bytes, are needed and enough: {len(sizes)} ring all-reduce"
            f"{'s' * (len(sizes) > 1)} of {' + '.join(map(str, sizes))} elements."
        )


# ---- the notebook's layers -------------------------------------------------------------------------------------------

RATE = 0.5


@dataclass
class Layers(Case):
    """Layers h -> tanh(h W + b), the same on every rank, and a batch."""

    flats: list[Array] = field(default_factory=list)
    x: Array = field(default_factory=lambda: np.empty(0))
    y: Array = field(default_factory=lambda: np.empty(0))


def layers(
    submission: Submission, n: int, batch: int, what: str = "", depth: int = 3, width: int = 5, **arguments: Any
) -> Layers:
    draw = submission.random.standard_normal
    flats = [draw(width * width + width) / width**0.5 for _ in range(depth)]
    x, y = draw((batch, width)), np.tanh(draw((batch, width)))
    inputs = []
    for rank in range(n):  # other ranks' rows are others than theirs
        mine = share(batch, rank, n)
        own_x, own_y = draw((batch, width)), np.tanh(draw((batch, width)))
        own_x[mine], own_y[mine] = x[mine], y[mine]
        inputs.append((np.stack(flats), own_x, own_y))
    label = f"{ranks(n)}, {depth} layers, {batch} rows{what}"
    return Layers(n, label, inputs, {"rate": RATE, **arguments}, flats, x, y)


def rows_of(run: Layers, rank: int) -> tuple[Array, Array]:
    mine = share(len(run.x), rank, run.n)
    return run.x[mine], run.y[mine]


def together(arrays: Sequence[Array]) -> Array:
    return np.concatenate(list(arrays))


def updates(run: Layers, outcomes: Sequence[Outcome], which: int) -> list[Array]:
    """Of every rank, by what all parameters have changed over the rate, as a gradient."""
    found = []
    for rank, outcome in enumerate(outcomes):
        for number, flat in enumerate(outcome.value[which]["flats"]):
            if not np.all(np.isfinite(flat)):
                lose(f"{on(run, rank)}'s parameters of layer {number} are not all finite after the step.")
        found.append((together(run.flats) - together(outcome.value[which]["flats"])) / RATE)
    return found


def pairs_of(run: Layers, outcomes: Sequence[Outcome], which: int = 0) -> list[list[list[float]]]:
    """What train_step returned, pairs[rank][step]: (part of the loss, norm)."""
    for rank, outcome in enumerate(outcomes):
        for pair in outcome.value[which]["returned"]:
            things(f"{on(run, rank)}'s train_step", pair, ("loss", "norm"))
    return [outcome.value[which]["returned"] for outcome in outcomes]


def alike(found: Array, expected: Array) -> bool:
    return bool(np.allclose(found, expected, rtol=1e-9, atol=1e-12))


def proportional(found: Array, expected: Array) -> bool:
    """Whether an array is another one times a number other than 0."""
    factor = float(found @ expected) / float(expected @ expected)
    return abs(factor) > 1e-9 and alike(found, factor * expected)


@pytest.mark.points(3, "train_step: one process's training, where shares are even")
def test_train_step(submission: Submission) -> None:
    cases = [layers(submission, n, batch, steps=2, clips=[0.0]) for n, batch in ((4, 8), (3, 6), (2, 4), (1, 3))]
    cases.append(layers(submission, 2, 4, width=large(submission, least=50, most=100), steps=2, clips=[0.0]))
    for run, outcomes in by_case(submission, "train_layers", cases, ["train_step"]):
        check_worked(run, outcomes)
        batch, steps = len(run.x), run.arguments["steps"]
        _, first = slopes(run.flats, run.x, run.y, batch)
        losses, flats = descend(
            run.flats, steps, RATE, lambda of, run=run, batch=batch: slopes(of, run.x, run.y, batch)
        )
        for rank, outcome in enumerate(outcomes):
            _, own = slopes(run.flats, *rows_of(run, rank), batch)
            for layer, expected in enumerate(flats):
                found = outcome.value[0]["flats"][layer]
                if not alike(found, expected):
                    lose(
                        f"{on(run, rank)}'s parameters of layer {layer} are not those of one process after"
                        f" {run.arguments['steps']} steps" + explained(run, found, layer, first, own) + "."
                    )
        parts = pairs_of(run, outcomes)
        for step, loss in enumerate(losses):
            of_step = [of_rank[step][0] for of_rank in parts]
            check_sum(run, of_step if all(isinstance(part, float) for part in of_step) else [float("nan")], loss)


def explained(run: Layers, found: Array, layer: int, gradients: list[Array], own: list[Array]) -> str:
    """Which mistake a wrong buffer looks like. Mistakes of the gradient show after two steps as after one, nearly."""
    if alike(found, run.flats[layer]):
        return ": they are as they were. Update the arrays themselves, in place"
    moved = run.flats[layer] - found
    known = {
        ": it was updated by this rank's own gradient, not summed over the ranks": own[layer],
        ": the gradient was divided by the number of ranks once too often": gradients[layer] / run.n,
        ": the gradient is N times too large. Is each rank's part weighted by its share?": gradients[layer] * run.n,
        ": the gradient was added; go against it": -gradients[layer],
    }
    nearest = min(known, key=lambda words: float(np.linalg.norm(moved - 2 * RATE * known[words])))
    distance = float(np.linalg.norm(moved - 2 * RATE * known[nearest]))
    right = float(np.linalg.norm(moved - 2 * RATE * gradients[layer]))
    return nearest if distance < right else ""


@pytest.mark.points(2, "train_step: shares that are uneven, or empty, weigh what they have")
def test_shares(submission: Submission) -> None:
    cases = [layers(submission, n, batch, steps=1, clips=[0.0]) for n, batch in ((4, 10), (3, 7), (4, 3))]
    for run, outcomes in by_case(submission, "train_layers", cases, ["train_step"]):
        check_worked(run, outcomes)
        loss, gradients = slopes(run.flats, run.x, run.y, len(run.x))
        shares = [rows_of(run, rank) for rank in range(run.n) if len(rows_of(run, rank)[0])]
        means = np.sum([together(slopes(run.flats, x, y, len(x))[1]) for x, y in shares], axis=0)
        for rank, found in enumerate(updates(run, outcomes, 0)):
            _, own = slopes(run.flats, *rows_of(run, rank), len(run.x))
            if not proportional(found, together(gradients)) and not alike(found, together(own)):
                mean = proportional(found, means)
                words = (
                    "it is the mean of the ranks' means, in which a row of a small share weighs more"
                    if mean
                    else ("is every row in some rank's share, and does it weigh 1/B?")
                )
                lose(f"{on(run, rank)} does not update by the gradient of the batch: {words}.")
        check_uneven_loss(run, outcomes, loss, sum(slopes(run.flats, x, y, len(x))[0] for x, y in shares))


def check_uneven_loss(run: Layers, outcomes: Sequence[Outcome], loss: float, of_means: float) -> None:
    """That parts of the loss weigh what they have; that they are not weighted at all is asked where shares are even."""
    parts = [of_rank[0][0] for of_rank in pairs_of(run, outcomes)]
    for rank, part in enumerate(parts):
        if not isinstance(part, float) or not np.isfinite(part):
            lose(f"{on(run, rank)}'s part of the loss is {part}. Of a share without rows it is 0.")
    if not np.isclose(sum(parts), of_means, rtol=1e-9):
        check_sum(run, parts, loss, more=" Does every row weigh 1/B?")


CLIPPED = 50  # the norm is this many times the limit: so is, nearly, that of each rank's own gradient


def clipped(submission: Submission, *limits: float) -> list[Layers]:
    """Runs with these limits of the norm, each times the norm."""
    cases = [layers(submission, n, batch, steps=1) for n, batch in ((2, 4), (1, 3))]
    for run in cases:
        norm = float(np.linalg.norm(together(slopes(run.flats, run.x, run.y, len(run.x))[1])))
        run.arguments["clips"] = [norm * limit for limit in limits]
    return cases


@pytest.mark.points(2, "train_step: clipped as a whole, after the sum")
def test_clip(submission: Submission) -> None:
    cases = clipped(submission, 0.0, 50.0, 1 / CLIPPED)
    for run, outcomes in by_case(submission, "train_layers", cases, ["train_step"]):
        free, wide, tight = (updates(run, outcomes, which) for which in range(3))
        clip, batch = run.arguments["clips"][2], len(run.x)
        norm = clip * CLIPPED
        parts = [together(slopes(run.flats, *rows_of(run, rank), batch)[1]) for rank in range(run.n)]
        early = np.sum([part * min(1, clip / np.linalg.norm(part)) for part in parts], axis=0)
        for rank in range(run.n):
            who = on(run, rank)
            if not np.any(free[rank]):
                lose(f"{who} does not update its parameters.")
            if not alike(wide[rank], free[rank]):
                lose(f"{who} changes a gradient whose norm, {norm:.3g}, is below the limit of {norm * 50:.3g}.")
            length = float(np.linalg.norm(tight[rank]))
            asked = np.isclose(length, clip) or np.isclose(length / np.linalg.norm(free[rank]), clip / norm)
            if proportional(tight[rank], free[rank]) and asked:
                continue
            turned = not proportional(tight[rank], free[rank])
            reasons = {
                "nothing is clipped": alike(tight[rank], free[rank]),
                "each rank clips its own gradient, before the sum. Clip the sum": alike(tight[rank], early),
                "it has another direction. All layers' gradients are multiplied by one number, after the sum": turned,
                f"its norm is {length:.3g}": True,
            }
            said = f"{who} updates by a gradient of norm {norm:.3g}, which is to be clipped to {clip:.3g}"
            lose(f"{said}: {why(reasons)}.")


@pytest.mark.points(1, "train_step: the norm of all gradients together, before clipping")
def test_norm(submission: Submission) -> None:
    for run, outcomes in by_case(submission, "train_layers", clipped(submission, 0.0, 1 / CLIPPED), ["train_step"]):
        check_worked(run, outcomes)
        free, norm = updates(run, outcomes, 0), run.arguments["clips"][1] * CLIPPED
        for which, when in ((0, ""), (1, ", where it is clipped")):
            for rank, [[_, found]] in enumerate(pairs_of(run, outcomes, which)):
                its_own = float(np.linalg.norm(free[rank]))
                if not its_own:
                    lose(f"{on(run, rank)} does not update its parameters.")
                if not isinstance(found, float) or not any(np.isclose(found, right) for right in (norm, its_own)):
                    by_layer = [np.linalg.norm(g) for g in slopes(run.flats, run.x, run.y, len(run.x))[1]]
                    known = {
                        "it is its square; take the root": norm**2,
                        "it is the sum of the layers' norms": float(np.sum(by_layer)),
                        "it is what is left after clipping; the norm before that is wanted": norm / CLIPPED,
                        "it is that of the last backward's layer alone": float(by_layer[0]),
                    }
                    words = named(found, known, np.isclose) if isinstance(found, float) else ""
                    lose(f"On {run.label}{when}: rank {rank} returned the norm {found}, where it is {norm:.6g}{words}.")


@pytest.mark.points(2, "train_step: a ring all-reduce for each layer, the last layer's first")
def test_train_step_wire(submission: Submission) -> None:
    cases = [layers(submission, n, 2 * n) for n in (4, 2)]
    for run, outcomes in by_case(submission, "train_layers_watched", cases, ["train_step"]):
        size = run.flats[0].size
        for rank, outcome in enumerate(outcomes):
            check_ring(run, rank, outcome, [size] * len(run.flats), 8)
            _, own = slopes(run.flats, *rows_of(run, rank), len(run.x))
            sizes = chunk_sizes(size, run.n)
            first = (rank - 1) % run.n  # rank r's chunk r-1 sets out first
            piece = slice(sum(sizes[:first]), sum(sizes[: first + 1]))
            for turn, layer in enumerate(reversed(range(len(run.flats)))):
                sent = outcome.value[turn * 2 * (run.n - 1)]
                if sent.size != sizes[first] or not proportional(sent, own[layer][piece]):
                    others = [
                        i for i, g in enumerate(own) if sent.size == sizes[first] and proportional(sent, g[piece])
                    ]
                    words = (
                        f"layer {others[0]}'s gradient" if others else "no layer's gradient as its backward leaves it"
                    )
                    lose(
                        f"On {run.label}: what rank {rank} sends {('first', 'next', 'last')[turn]} is {words};"
                        f" it should be layer {layer}'s. A gradient can leave as soon as its layer's backward is done."
                    )


# ---- a transformer ---------------------------------------------------------------------------------------------------


def numbered(submission: Submission, n: int, what: str = "", precision: str = "fp64", **more: Any) -> Training:
    """Each rank has a gradient for every Flat, of whole numbers that can be recognized in their sum (fp64)."""
    return with_numbers(small(submission, n, what, precision, SMALL, **more), submission, padded=False)


def names(run: Training, units: Sequence[int]) -> str:
    return " and ".join(run.truth.flats[unit].name for unit in units) or "nothing"


@pytest.mark.points(2, "rows: everyone's consecutive share, every sequence once")
def test_rows(submission: Submission) -> None:
    cases = [numbered(submission, n, batches=[8, 10, 7, 3, 1, 12]) for n in RANKS]
    for run, outcomes in by_case(submission, "rows", cases, of("rows")):
        for number, batch in enumerate(run.arguments["batches"]):
            found = [outcome.value[number] for outcome in outcomes]
            check_shares(f"Of {batch} sequences on {run.label}", batch, run.n, found)


def check_shares(where: str, batch: int, n: int, found: Sequence[Any]) -> None:
    for rank, mine in enumerate(found):
        if not isinstance(mine, list):
            lose(f"{where}, rank {rank} gets {mine}; a range is wanted.")
    expected = [[share(batch, rank, n).start, share(batch, rank, n).stop] for rank in range(n)]
    if [range(*mine) for mine in found] == [range(*mine) for mine in expected]:
        return
    covered = [row for mine in found for row in range(*mine)]
    missing = sorted(set(range(batch)) - set(covered))
    twice = sorted({row for row in covered if covered.count(row) > 1})
    beyond = sorted({row for row in covered if not 0 <= row < batch})
    if missing:
        words = f"nobody gets number {missing[0]}"
    elif twice:
        words = f"number {twice[0]} is in more than one share"
    elif beyond:
        words = f"number {beyond[0]} is in a share, and there is none"
    else:
        rank = next(rank for rank in range(n) if range(*found[rank]) != range(*expected[rank]))
        (a, b), (c, d) = found[rank], expected[rank]
        words = f"rank {rank} gets {a}:{b}, where {c}:{d} is wanted"
    lose(f"{where} (from, to): {', '.join(f'{a}:{b}' for a, b in found)}: {words}.")


Sent = list[tuple[Training, list[Outcome]]]
BUCKETS = [[3, 2], [0]]  # which units wait for the first and the second bucket; unit 1 never does


def buckets_sent(submission: Submission, ranks: Sequence[int] = (3, 1)) -> Sent:
    cases = [numbered(submission, n, buckets=BUCKETS) for n in ranks]
    return list(by_case(submission, "send_buckets", cases, of("send_bucket")))


def sum_of(run: Training, unit: int) -> Array:
    return np.sum([of_rank[unit] for of_rank in run.inputs], axis=0)


def gradient_of(run: Training, rank: int, unit: int, found: Any) -> Array:
    return an_array(run, found, f"rank {rank}'s flat.grad of {names(run, [unit])}", run.inputs[rank][unit].shape)


def check_summed_up(run: Training, rank: int, unit: int, found: Array) -> None:
    """That a Flat that was sent has another gradient now; which, and in what array, is asked for in its own part."""
    if run.n > 1 and (np.array_equal(found, run.inputs[rank][unit]) or not np.any(found)):
        what = "this rank's own, as it was" if np.any(found) else "zero"
        lose(f"On {run.label}: {names(run, [unit])} was sent, and rank {rank}'s flat.grad of it is {what}.")


@pytest.mark.points(2, "send_bucket: sums over the ranks, each in its own Flat")
def test_send_bucket(submission: Submission) -> None:
    for run, outcomes in buckets_sent(submission, RANKS):
        check_worked(run, outcomes)
        for rank, outcome in enumerate(outcomes):
            for unit in range(len(run.truth.flats)):
                found, own = outcome.value[0]["held"][unit], run.inputs[rank][unit]
                expected = sum_of(run, unit) if unit in BUCKETS[0] else own
                gradient_of(run, rank, unit, found)
                whose = f"rank {rank}'s flat.grad of {names(run, [unit])}"
                where = f"On {run.label}, where {names(run, BUCKETS[0])} wait: {whose}"
                if unit not in BUCKETS[0] and not np.array_equal(found, expected):
                    lose(f"{where} has changed, which did not wait.")
                if unit in BUCKETS[0] and factor_of(found, expected) is None:
                    index = int(np.flatnonzero(found != expected)[0])
                    if run.n > 1 and np.array_equal(found, own):
                        words = "it is as it was: copy the sums back into the array itself"
                    else:
                        words = in_a_sum(found[index], [of_rank[unit] for of_rank in run.inputs], index)
                    lose(f"{where} is wrong first at index {index}: {words}.")


@pytest.mark.points(1, "send_bucket: the sum, not divided: losses are weighted already")
def test_factor(submission: Submission) -> None:
    for run, outcomes in buckets_sent(submission):
        check_worked(run, outcomes)
        for rank, outcome in enumerate(outcomes):
            for unit in BUCKETS[0]:
                found, expected = outcome.value[0]["named"][unit], sum_of(run, unit)
                gradient_of(run, rank, unit, found)
                check_summed_up(run, rank, unit, found)
                check_factor(run, rank, factor_of(found, expected))


@pytest.mark.points(1, "send_bucket: nothing is sent twice")
def test_bucket_again(submission: Submission) -> None:
    for run, outcomes in buckets_sent(submission):
        check_worked(run, outcomes)
        for rank, outcome in enumerate(outcomes):
            first, second = (of_bucket["named"] for of_bucket in outcome.value)
            for unit in BUCKETS[0]:
                gradient_of(run, rank, unit, first[unit])
                check_summed_up(run, rank, unit, first[unit])
                if not np.array_equal(first[unit], second[unit]):
                    lose(
                        f"On {run.label}: {names(run, [unit])} was sent, and when {names(run, BUCKETS[1])} is sent"
                        f" later, its gradient changes on rank {rank}. What has been sent does not wait any more."
                    )
            if run.n > 1 and np.array_equal(second[0], run.inputs[rank][0]):
                lose(f"On {run.label}: a second bucket, of {names(run, BUCKETS[1])}, is not summed on rank {rank}.")


@pytest.mark.points(1, "send_bucket: its phase, one ring all-reduce of all that waits, as stored")
def test_bucket_wire(submission: Submission) -> None:
    asked = ((4, "fp64"), (4, "mixed"), (3, "fp64"))
    cases = [numbered(submission, n, f", {precision}", precision, buckets=BUCKETS[:1]) for n, precision in asked]
    for run, outcomes in by_case(submission, "send_buckets", cases, of("send_bucket")):
        size = sum(run.truth.padded(unit) for unit in BUCKETS[0])
        for rank, outcome in enumerate(outcomes):
            check_ring(run, rank, outcome, [size], run.precision.bytes)


@pytest.mark.points(1, "reduce: waits until at least bucket_size elements do")
def test_reduce(submission: Submission) -> None:
    plain = numbered(submission, 2)
    sizes = [plain.truth.padded(unit) for unit in range(len(plain.truth.flats))]
    limits = (0, sizes[-1], sizes[-1] + 1, sizes[-1] + sizes[-2], sum(sizes) + 1)
    cases = [numbered(submission, 2, f", buckets of {limit} elements", bucket_size=limit) for limit in limits]
    for run, outcomes in by_case(submission, "reduce_all", cases, of("reduce")):
        expected, waiting, gone = list[list[int]](), list[int](), list[int]()
        for unit in reversed(range(len(sizes))):
            waiting.append(unit)
            if sum(sizes[one] for one in waiting) >= run.arguments["bucket_size"]:
                gone, waiting = gone + waiting, []
            expected.append(sorted(gone))
        for rank, outcome in enumerate(outcomes):
            for turn, (found, right) in enumerate(zip(outcome.value, expected, strict=True)):
                if found != right:
                    complete = names(run, list(reversed(range(len(sizes))))[: turn + 1]) + (" are" if turn else " is")
                    lose(
                        f"On {run.label}: when {complete} complete ({'; '.join(map(str, sizes[::-1][: turn + 1]))}"
                        f" elements), rank {rank} has sent {names(run, found)}; it should be {names(run, right)}."
                    )


@pytest.mark.points(1, "sum_over_axes: the last bucket leaves, if there is one")
def test_sum_over_axes(submission: Submission) -> None:
    cases = [numbered(submission, 2, f", {len(w)} Flats waiting", waiting=w) for w in ([1, 0], [])]
    for run, rank, outcome in by_rank(submission, "send_last", cases, of("sum_over_axes")):
        if isinstance(outcome.value, int):
            lose(f"{on(run, rank)} sends a bucket of nothing. Perhaps none waits: ask first.")
        for unit, found in enumerate(outcome.value):
            waits = unit in run.arguments["waiting"]
            expected = sum_of(run, unit) if waits else run.inputs[rank][unit]
            if factor_of(found, expected) is None:
                words = "still waits, and its gradient is this rank's own" if waits else "has changed, and did not wait"
                lose(f"On {run.label}: after sum_over_axes {names(run, [unit])} {words}, on rank {rank}.")


# ---- what only shows from between the ranks --------------------------------------------------------------------------


def check_summed(run: Case, outcomes: Sequence[Outcome]) -> None:
    """Of a function that sends, that it has made something of what came: else that is asked for in its own part."""
    check_worked(run, outcomes)
    for rank, outcome in enumerate(outcomes):
        if isinstance(run, Layers):
            _, own = slopes(run.flats, *rows_of(run, rank), len(run.x))
            same = alike((together(run.flats) - together(outcome.value[0])) / RATE, together(own))
        else:
            same = np.array_equal(outcome.value[0]["held"][1], run.inputs[rank][1])
        if same:
            lose(f"On {run.label}: what rank {rank} receives changes nothing.")


@pytest.mark.points(1, "nothing depends on luck, and every message means something")
def test_messages(submission: Submission) -> None:
    def cases(n: int) -> Mapping[str, Case]:
        toy = layers(submission, n, 2 * n, ", train_step", 2, function="train_step", steps=1, clips=[0.0])
        bucket = numbered(submission, n, ", send_bucket", function="send_bucket", buckets=[[2, 1]])
        return {"train_step": toy, "DataParallel.send_bucket": bucket}

    check_timing(submission, "either", {name: [case] for name, case in cases(3).items()}, check_summed)
    check_meaning(submission, "either", dict(cases(2)), check_summed)
    run = training(submission.random, 2, ", all methods the student's", SMALL, steps=3)
    check_trains_alike(submission, run, of(*METHODS))


# ---- the notebook's gaps, which earn no points: check("share") runs these --------------------------------------------


def check_share(submission: Submission) -> None:
    for rows, n in ((8, 4), (10, 4), (7, 3), (3, 4)):
        asked = [[rows, n, rank] for rank in range(n)]
        found = ask(submission, "call_share", "share", asked, f"{n} ranks")
        check_shares(f"Of {rows} rows on {n} ranks", rows, n, found)


def check_my_part(submission: Submission) -> None:
    draw, batch = submission.random.standard_normal, 10
    for rows in (3, 2, 0):
        out, y = draw((rows, 5)), draw((rows, 5))
        run = Case(1, f"{rows} rows of {batch}", [[(out, y, batch)]])
        [[outcome]] = submission.run("call_my_part", [run], ["my_part"])
        loss, dh = things(f"On {run.label}: my_part", outcome.value[0], ("loss", "dh"))
        expected = float(((out - y) ** 2).sum() / 2 / batch)
        if not isinstance(loss, float) or not np.isclose(loss, expected):
            mean = rows and isinstance(loss, float) and np.isclose(loss, expected * batch / rows)
            words = "it is the mean over these rows alone" if mean else f"it should be {expected:.6g}"
            lose(f"On {run.label}: the loss is {loss}; {words}. These rows weigh {rows}/{batch}.")
        right = (out - y) / batch
        if not alike(an_array(run, dh, "dh", right.shape), right):
            mean = alike(dh * rows, right * batch)
            words = "it is the slope of the mean over these rows alone" if mean else "it is wrong"
            lose(
                f"On {run.label}: the second value is not the slope of the loss by out: {words}. The loss is a sum over"
                " rows, / 2 / batch."
            )


def check_backward(submission: Submission) -> None:
    run = layers(submission, 4, 10)
    inputs = []
    for rank in range(run.n):
        x, y = rows_of(run, rank)
        h = forward(run.flats, x)
        inputs.append((list(run.flats), h, (h[-1] - y) / len(run.x)))
    run.inputs, run.arguments = inputs, {}
    [outcomes] = submission.run("call_backward", [run], ["backward"])
    _, gradients = slopes(run.flats, run.x, run.y, len(run.x))
    for rank, outcome in enumerate(outcomes):
        who = on(run, rank)
        if not isinstance(outcome.value, list) or len(outcome.value) != len(gradients):
            lose(f"{who}: backward returned {describe(outcome.value)}; a list of {len(gradients)} gradients is wanted.")
        _, own = slopes(run.flats, *rows_of(run, rank), len(run.x))
        for layer, (found, expected) in enumerate(zip(outcome.value, gradients, strict=True)):
            if not alike(an_array(run, found, f"rank {rank}'s gradient of layer {layer}", expected.shape), expected):
                known = {
                    "it is this rank's own, not the sum over the ranks": own[layer],
                    "it is the sum divided by the number of ranks": expected / run.n,
                }
                words = named(found, known, alike) or ": it is not the sum over the ranks"
                lose(f"{who}: the gradient of layer {layer} is wrong{words}.")
        check_ring(run, rank, outcome, [run.flats[0].size] * len(run.flats), 8)


def check_clip_factor(submission: Submission) -> None:
    gradients = [submission.random.standard_normal(size) for size in (30, 12, 7)]
    norm = float(np.linalg.norm(together(gradients)))
    clips = [0.0, 2 * norm, norm / 2]
    pairs = ask(submission, "call_clip_factor", "clip_factor", [(gradients, clip) for clip in clips], "three gradients")
    for clip, factor, pair in zip(clips, (1.0, 1.0, 0.5), pairs, strict=True):
        found = things("clip_factor", pair, ("norm", "factor"))
        if not isinstance(found[0], float) or not np.isclose(found[0], norm):
            lose(f"The norm is {found[0]}, where it is {norm:.6g}: the root of the sum of all squares, of all units.")
        if not isinstance(found[1], float) or not np.isclose(found[1], factor):
            lose(f"With a norm of {norm:.4g} and clip = {clip:.4g} the factor is {found[1]}; it should be {factor:g}.")


def check_sending(submission: Submission) -> None:
    for ready, takes in (([1.0, 2.0, 3.0], 0.5), ([1.0, 2.0, 3.0], 2.0), ([2.0, 3.0, 9.0, 9.5], 1.5)):
        expected, free = list[float](), 0.0
        for moment in ready:
            expected.append(max(moment, free))
            free = expected[-1] + takes
        [found] = ask(submission, "call_sending", "sending", [(ready, takes)], "one link")
        if not isinstance(found, list) or found != expected:
            said = found if isinstance(found, list) else describe(found)
            lose(
                f"Buckets that are ready at {ready} and take {takes:g} each set out at {said}; it should be"
                f" {expected}: not before they are ready, nor before the one before has arrived."
            )


GAPS = gaps(globals(), "share", "my_part", "backward", "clip_factor", "sending")
