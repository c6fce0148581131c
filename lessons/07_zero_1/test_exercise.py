"""The grade of lesson 07: `pytest lessons/07_zero_1`, or `make grade` for a table.

Each part asks for one thing of train_step or of one method, and loads exercise.py anew; the lesson's code stands in for
the other methods. Inputs are drawn afresh, and every rank knows its own alone; what was sent is counted here, for every
message passes through here. A part earns its points or not, and one mistake costs one part:

- Gradients are looked at where nothing is to be clipped, and in the way that is right; clipping is asked for apart.
- The norm counts as right if it is that of the gradient that the ranks have, be that right or wrong.
- Of updates the changes are given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import an_array, check_trains_alike, gaps, things
from minidist.classroom.grading.diagnose import in_a_sum
from minidist.classroom.grading.meaning import check_meaning, check_timing, check_worked
from minidist.classroom.grading.parts import ask, by_case, by_rank, large, named, on, ranks
from minidist.classroom.grading.sharded import GATHER, RANKS, SCATTER, check_sum, slopes, small, with_numbers
from minidist.classroom.grading.submission import Case, Outcome, Submission, lose
from minidist.classroom.grading.training import SMALL, Training, share, training

Array = np.ndarray
METHODS = ("piece", "owned", "reduce", "squared_norm", "after_update")
ASKED = ("train_step", *(f"ZeRO1.{name}" for name in METHODS))
HIDDEN = ("minidist.zero1", "answers", "given")  # what ranks cannot import
NORM = "norm"
PHASES = {"reduce": SCATTER, "squared_norm": NORM, "after_update": GATHER}
ROUNDED = 4e-3  # of the largest part: what float16 leaves of a sum of four is half of that


def of(*methods: str) -> list[str]:
    return [f"ZeRO1.{method}" for method in methods]


def check_sent(run: Case, rank: int, outcome: Outcome, most: Mapping[str, int]) -> list[str]:
    """To the right neighbor alone, in these phases, no more bytes than needed: of the norm two messages for each rank,
    of the others N-1 shards. Returns the phases in which less is sent: nothing, for the norm."""
    sent = dict.fromkeys(most, 0)
    for (phase, peer, line), (nbytes, messages) in outcome.sent.items():
        here = f"{on(run, rank)} sends {nbytes:,} bytes{line and f' at {line}'}"
        if phase not in most:
            where = "outside of every comm.phase" if phase == "main" else f"in phase {phase!r}"
            lose(f"{here} {where}; what is sent here belongs into phase {' or '.join(map(repr, most))}.")
        if peer != (rank + 1) % run.n:
            lose(f"{here} to rank {peer}; around the ring it sends to its right neighbor alone.")
        sent[phase] += nbytes
        if phase == NORM and messages > 2 * (run.n - 1):
            lose(f"{here} in {messages} messages for the norm; {2 * (run.n - 1)} are enough: one number for all Flats.")
    for phase, nbytes in sent.items():
        if nbytes > most[phase]:
            lose(f"{on(run, rank)} sends {nbytes:,} bytes in phase {phase!r}; {most[phase]:,} are enough.")
    return [phase for phase in most if sent[phase] < (1 if phase == NORM else most[phase])]


def check_enough(label: str, short: Sequence[str]) -> None:
    """That not in two phases less is sent than what is needed. In one it may be: what is missing then is asked for in
    the part on what it does."""
    if len(phases := sorted(set(short))) > 1:
        lose(f"On {label}: in the phases {' and '.join(map(repr, phases))} less is sent than what is needed.")


# ---- the notebook's layers -------------------------------------------------------------------------------------------

WIDE = 1e6  # a limit of the norm that no gradient reaches
CLIPPED = 50  # the norm is this many times a limit that it does reach


@dataclass
class Layers(Case):
    """Layers h -> tanh(h W + b), parameters on every rank, masters of a shard, and each rank's rows of a batch."""

    params: list[Array] = field(default_factory=list)  # float16 (padded,)
    masters: list[Array] = field(default_factory=list)  # float32 (padded,): everyone's
    changes: list[Array] = field(default_factory=list)  # float32 (padded,): everyone's
    rows: list[tuple[Array, Array]] = field(default_factory=list)  # (x, y) of each rank
    width: int = 0

    @property
    def batch(self) -> int:
        return sum(len(x) for x, _ in self.rows)

    def shard(self, whole: Array, rank: int) -> Array:
        return np.split(whole, self.n)[rank]


def layers(
    submission: Submission, n: int, width: int, batch: int, change: float | None = None, **arguments: Any
) -> Layers:
    """change: how large the optimizer's changes are, if they do not depend on the gradient; 0: none."""
    draw, size, depth = submission.random.standard_normal, width * width + width, 3
    padding = np.zeros(-size % n)
    masters = [np.append(draw(size) / width**0.5, padding).astype(np.float32) for _ in range(depth)]
    params = [master.astype(np.float16) for master in masters]
    changes = [np.append((change or 0.0) * draw(size), padding).astype(np.float32) for _ in range(depth)]
    x, y = draw((batch, width)).astype(np.float32), np.tanh(draw((batch, width))).astype(np.float32)
    rows = [(x[share(batch, rank, n)], y[share(batch, rank, n)]) for rank in range(n)]
    label = f"{ranks(n)}, {depth} layers of {size} parameters, {batch} rows"
    run = Layers(n, label, [], {"batch": batch, **arguments}, params, masters, changes, rows, width)
    for rank in range(n):
        shards, own = ([run.shard(whole, rank) for whole in wholes] for wholes in (masters, changes))
        run.inputs.append((params, shards, *rows[rank], None if change is None else own))  # type: ignore[attr-defined]
    return run


def wide(submission: Submission) -> int:
    """The width of layers with up to 10,100 parameters."""
    return large(submission, least=50, most=100)


def of_rows(run: Layers, x: Array, y: Array) -> tuple[float, list[Array]]:
    """What rows contribute to the loss, and to the gradient of each layer (padded,)."""
    return slopes([param.astype(float) for param in run.params], x, y, run.batch)


def together(run: Layers) -> tuple[float, list[Array]]:
    """Likewise of the whole batch."""
    return of_rows(run, *(np.concatenate(part) for part in zip(*run.rows, strict=True)))


def numbered(
    submission: Submission, n: int, what: str = "", precision: str = "fp64", tied: bool = False, **more: Any
) -> Training:
    """Each rank has numbers for every Flat (padded,), in fp64 such as can be recognized in their sum."""
    run = small(submission, n, what + ", a tied head" * tied, precision, SMALL | {"tied": tied}, **more)
    return with_numbers(run, submission, padded=True)


def norm_of(gradients: Sequence[Array]) -> float:
    return float(np.linalg.norm(np.concatenate(list(gradients))))


def close(found: Any, expected: float) -> bool:
    """Whether it is a number, and this one."""
    return isinstance(found, float) and bool(np.isclose(found, expected))


def near(found: Array, expected: Array, of: float = 0.0) -> bool:
    """Whether both are equal, up to what float16 leaves of numbers as large as `of`, or as the largest expected one."""
    return bool(np.abs(found - expected).max(initial=0) <= ROUNDED * (of or np.abs(expected).max(initial=0) or 1))


def handed(run: Layers, rank: int, outcome: Outcome, which: int) -> list[Array]:
    """The gradients that a rank's optimizer was handed, in order."""
    calls, units = outcome.value[which]["handed"], len(run.params)
    arrays = [gradient for _, gradient in calls if not isinstance(gradient, str)]
    if not calls or len(calls) % units or len(arrays) < len(calls):
        lose(
            f"{on(run, rank)} calls optimizer {len(calls)} times, with {len(arrays)} arrays; it is to be"
            f" called with the gradient's shard of each of the {units} units, once in a step."
        )
    return arrays


A_FACTOR = " (A float32 array times a NumPy float64 is float64; times a Python float it stays float32.)"


def in_order(run: Layers, rank: int, outcome: Outcome, which: int) -> list[list[Array]]:
    """Those of each step in order of layers, as they are wanted: float32 shards."""
    who, units = on(run, rank), len(run.params)
    arrays, calls = handed(run, rank, outcome, which), outcome.value[which]["handed"]
    for (i, _), gradient in zip(calls, arrays, strict=True):
        shape = (run.params[0].size // run.n,)
        if gradient.shape != shape or gradient.dtype != np.float32:
            lose(
                f"{who} hands the optimizer {gradient.dtype} {gradient.shape} for layer {i:g}; its shard, float32"
                f" {shape}, is wanted.{A_FACTOR * (gradient.dtype == np.float64)}"
            )
    steps = [calls[start : start + units] for start in range(0, len(calls), units)]
    for of_step in steps:
        if sorted(i for i, _ in of_step) != list(range(units)):
            lose(f"{who} calls optimizer for units {', '.join(f'{i:g}' for i, _ in of_step)} in a step; for each once.")
    return [[gradient for _, gradient in sorted(of_step, key=lambda call: call[0])] for of_step in steps]


def returned(run: Layers, rank: int, outcome: Outcome, which: int) -> list[float]:
    """(part of the loss, norm) of the first step."""
    [pair, *_] = outcome.value[which]["returned"]
    if not all(isinstance(part, float) for part in things(f"{on(run, rank)}'s train_step", pair, ("loss", "norm"))):
        lose(f"{on(run, rank)}'s train_step returned {pair}; two numbers are wanted: loss, norm.")
    return pair


@pytest.mark.points(3, "train_step: the loss, and this rank's shard of the summed gradient")
def test_train_step(submission: Submission) -> None:
    cases = []
    for n, width, batch in ((4, 3, 8), (4, 5, 10), (3, 4, 7), (2, 5, 4), (1, 3, 3), (2, wide(submission), 4)):
        run = layers(submission, n, width, batch, change=0.0, steps=2)
        run.arguments["clips"] = [WIDE, 0.0, norm_of(together(run)[1]) * 1.001]  # nothing is to be clipped
        cases.append(run)
    for run, outcomes in by_case(submission, "step", cases, ["train_step"]):
        check_worked(run, outcomes)
        wrong = [wrong_gradient(run, outcomes, which) for which in range(3)]
        if all(wrong):
            lose(wrong[0])
        loss, _ = together(run)
        parts = [returned(run, rank, outcome, 0)[0] for rank, outcome in enumerate(outcomes)]
        check_sum(run, parts, loss, rtol=1e-3)


def wrong_gradient(run: Layers, outcomes: Sequence[Outcome], which: int) -> str:
    """What is wrong with the gradients that optimizers were handed; "" if nothing is."""
    _, gradients = together(run)
    owns = [of_rows(run, *rows)[1] for rows in run.rows]
    largest = [max(float(np.abs(own[layer]).max()) for own in owns) for layer in range(len(gradients))]
    for rank, outcome in enumerate(outcomes):
        own = owns[rank]
        first, second = in_order(run, rank, outcome, which)
        for layer, whole in enumerate(gradients):
            shard, who = run.shard(whole, rank), f"On {run.label}: the gradient that rank {rank} hands the optimizer"
            if not near(first[layer], shard, largest[layer]):
                known = {
                    "it is that of this rank's rows alone, not summed over the ranks": run.shard(own[layer], rank),
                    "it is the sum divided by the number of ranks": shard / run.n,
                    **{f"it is rank {r}'s shard": run.shard(whole, r) for r in range(run.n) if r != rank},
                }
                return f"{who} for layer {layer} is wrong{named(first[layer], known, near)}."
            if not near(second[layer], shard, largest[layer]):
                return (
                    f"{who} for layer {layer} is right in the first step, but not in the second, where nothing has"
                    " changed. Is unit.grad zero when a step ends?"
                )
    return ""


@pytest.mark.points(2, "train_step: master += change; the rounded shards, put together on every rank")
def test_update(submission: Submission) -> None:
    sizes = ((4, 3, 8), (4, 5, 10), (3, 4, 7), (2, 5, 4), (1, 3, 3), (2, wide(submission), 4))
    cases = [layers(submission, n, width, batch, change=1e-4, clips=[WIDE]) for n, width, batch in sizes]
    for run, outcomes in by_case(submission, "step", cases, ["train_step"]):
        check_worked(run, outcomes)
        for layer, (start, change) in enumerate(zip(run.masters, run.changes, strict=True)):
            master = start + change
            for rank, outcome in enumerate(outcomes):
                who = f"On {run.label}: after a step rank {rank}'s"
                found = outcome.value[0]["master"][layer]
                mine = run.shard(master, rank)
                if isinstance(found, str) or not np.allclose(found, mine, rtol=1e-6, atol=1e-9):
                    same = not isinstance(found, str) and np.array_equal(found, run.shard(start, rank))
                    words = "as it was" if same else "not what it was plus the change"
                    lose(
                        f"{who} master copy of layer {layer} is {words}. Add the change to the array itself, in place."
                    )
                found = outcome.value[0]["param"][layer]
                if isinstance(found, str) or not np.array_equal(found, master.astype(np.float16)):
                    lose(f"{who} param of layer {layer} " + wrong_param(run, rank, found, layer))


def wrong_param(run: Layers, rank: int, found: Any, layer: int) -> str:
    expected, start = (run.masters[layer] + run.changes[layer]).astype(np.float16), run.params[layer]
    if isinstance(found, str):
        return f"is {found}."
    if np.array_equal(found, start):
        return "is as it was: write into the array itself, in place."
    if np.array_equal(found, start + run.changes[layer].astype(np.float16)) or np.array_equal(
        found, (start + run.changes[layer]).astype(np.float16)
    ):
        return "was changed in float16; it is the master copy, rounded."
    index = int(np.flatnonzero(found != expected)[0])
    owner = index // (expected.size // run.n)
    words = f"is wrong first at index {index}, in rank {owner}'s shard"
    return words + (": it is as it was there. Who has the new values?" if found[index] == start[index] else ".")


@pytest.mark.points(3, "train_step: clipped by the norm over all layers and all ranks")
def test_clip(submission: Submission) -> None:
    cases = []
    for n, width, batch in ((4, 3, 8), (2, 5, 4), (1, 3, 3)):
        run = layers(submission, n, width, batch, change=0.0)
        run.arguments["clips"] = [0.0, WIDE, norm_of(together(run)[1]) / CLIPPED]
        cases.append(run)
    for run, outcomes in by_case(submission, "step", cases, ["train_step"]):
        clip = run.arguments["clips"][2]
        free, wide, tight = (
            [np.concatenate(handed(run, rank, outcome, which)) for rank, outcome in enumerate(outcomes)]
            for which in range(3)
        )
        norms = clip * CLIPPED, norm_of(free)  # the right one, and that of what the ranks have
        for rank, outcome in enumerate(outcomes):
            who = on(run, rank)
            if not np.any(free[rank]) or not near(wide[rank], free[rank]):
                lose(f"{who} changes a gradient that is shorter than the limit, or whose limit is 0: none.")
            if not any(near(tight[rank], free[rank] * clip / norm) for norm in norms):
                lose(
                    f"{who} is to clip a gradient of norm {norms[0]:.4g} to {clip:.4g}"
                    + wrong_factor(run, rank, free, tight, clip)
                )
            for which, when in ((0, ""), (2, ", where it is clipped")):
                said = returned(run, rank, outcome, which)[1]
                if not any(np.isclose(said, norm, rtol=ROUNDED) for norm in norms):
                    known = {
                        "it is its square: take the root": norms[0] ** 2,
                        "it is that of this rank's own shards": norm_of([free[rank]]),
                        "it is what is left after clipping; the norm before that is wanted": clip,
                    }
                    words = named(said, known, partial(np.isclose, rtol=ROUNDED))
                    lose(f"{who} returned the norm {said:.6g}{when}, where it is {norms[0]:.6g}{words}.")


def wrong_factor(run: Layers, rank: int, free: list[Array], tight: list[Array], clip: float) -> str:
    if near(tight[rank], free[rank]):
        return ": it does not."
    if near(tight[rank], free[rank] * clip / norm_of([free[rank]])) and run.n > 1:
        return ", and clips its own shards by their own norm. It is one number for all ranks: the norm of the whole."
    factor = float(tight[rank] @ free[rank]) / float(free[rank] @ free[rank])
    if near(tight[rank], factor * free[rank]):
        return f": it multiplies by {factor:.4g} instead of clip / norm = {1 / CLIPPED:.4g}."
    return ", and gets another direction: all layers are multiplied by one number."


@pytest.mark.points(2, "train_step: 2Ψ(N-1)/N as stored, and one number for the norm")
def test_train_step_wire(submission: Submission) -> None:
    cases = [layers(submission, n, 3, 8, change=0.0, clips=[1.0]) for n in (4, 2)]
    for run, outcomes in by_case(submission, "step", cases, ["train_step"]):
        check_worked(run, outcomes)
        check_train_step_sent(run, outcomes)


def check_train_step_sent(run: Layers, outcomes: Sequence[Outcome]) -> None:
    half = sum(param.nbytes for param in run.params) // run.n * (run.n - 1)
    for rank, outcome in enumerate(outcomes):
        check_enough(
            run.label, check_sent(run, rank, outcome, {SCATTER: half, GATHER: half, NORM: 2 * 8 * (run.n - 1)})
        )


# ---- a transformer ---------------------------------------------------------------------------------------------------


def shard_of(run: Training, unit: int, rank: int) -> slice:
    each = run.truth.padded(unit) // run.n
    return slice(rank * each, (rank + 1) * each)


@pytest.mark.points(1, "piece: the rank-th of N equal parts of a Flat")
def test_piece(submission: Submission) -> None:
    for run, outcomes in by_case(submission, "pieces", [numbered(submission, n) for n in RANKS], of("piece")):
        for unit, flat in enumerate(run.truth.flats):
            found = [tuple(outcome.value[unit]) for outcome in outcomes]
            expected = [shard_of(run, unit, rank).indices(run.truth.padded(unit)) for rank in range(run.n)]
            check_pieces(f"{flat.name} on {run.label}", flat.size, found, expected)


def check_pieces(what: str, size: int, found: Sequence[Any], expected: Sequence[Any]) -> None:
    for rank, (mine, right) in enumerate(zip(found, expected, strict=True)):
        if mine != right:
            said = f"{mine[0]}:{mine[1]}" + (f":{mine[2]}" if mine[2:] not in ((), (1,)) else "")
            n = len(found)
            lose(
                f"Of {what}, rank {rank}'s piece is {said}, where {right[0]}:{right[1]} is wanted: of {size} elements,"
                f" {-(-size // n) * n} with padding, each of {n} ranks has {-(-size // n)}."
            )


@pytest.mark.points(1, "owned: views of the shard's parameters and gradient")
def test_owned(submission: Submission) -> None:
    for run, rank, outcome in by_rank(submission, "owned", [numbered(submission, n) for n in RANKS], of("owned")):
        for unit, flat in enumerate(run.truth.flats):
            mine = shard_of(run, unit, rank)
            for which, found in zip(("param", "grad"), outcome.value[unit], strict=True):
                if not np.array_equal(found, np.arange(mine.start, mine.stop)):
                    where = f"at {found.size} places of it" if found.size else "nowhere: return a view, not a copy"
                    lose(
                        f"On {run.label}: 1 was added to what owned returned on rank {rank} for {flat.name}, and"
                        f" its flat.{which} has become 1 more {where}. It should be at {mine.start}:{mine.stop}."
                    )


@pytest.mark.points(2, "reduce: the sum over the ranks, in this rank's shard of flat.grad")
def test_reduce(submission: Submission) -> None:
    cases = [numbered(submission, n, ", reduce") for n in RANKS]
    for run, rank, outcome in by_rank(submission, "reduce", cases, of("reduce"), check_worked):
        for unit, flat in enumerate(run.truth.flats):
            found, mine = outcome.value[unit], shard_of(run, unit, rank)
            parts = [of_rank[unit] for of_rank in run.inputs]
            total, who = np.sum(parts, axis=0), f"{on(run, rank)}'s flat.grad of {flat.name}"
            if isinstance(found, str) or found.shape != total.shape:
                is_now = found if isinstance(found, str) else f"{found.dtype} {found.shape}"
                lose(f"{who} is {is_now}; it stays an array {total.shape}.")
            if not np.array_equal(found[mine], total[mine]):
                index = mine.start + int(np.flatnonzero(found[mine] != total[mine])[0])
                own = run.n > 1 and np.array_equal(found[mine], parts[rank][mine])
                words = "it is as it was" if own else in_a_sum(found[index], parts, index)
                where = f"in this rank's shard {mine.start}:{mine.stop}"
                lose(f"{who} is wrong first at index {index}, {where}: {words}.")


@pytest.mark.points(2, "squared_norm: Σ g² over everyone's shards, the same on every rank")
def test_squared_norm(submission: Submission) -> None:
    plain = [numbered(submission, n, ", squared_norm", tied=n == 3) for n in RANKS]
    mixed = numbered(submission, 4, ", squared_norm, gradients of several hundred in float16", "mixed")
    infinite = numbered(submission, 4, ", squared_norm, an infinite number in rank 2's shard", "mixed")
    for run in plain:
        draw = submission.random.standard_normal
        run.inputs = [tuple(draw(part.size) for part in of_rank) for of_rank in run.inputs]
    mixed.inputs = [tuple(part * 20 for part in of_rank) for of_rank in mixed.inputs]
    infinite.inputs[2][1][shard_of(infinite, 1, 2).start] = np.inf
    for run, outcomes in by_case(submission, "norm", [*plain, mixed, infinite], of("squared_norm")):
        units = range(len(run.truth.flats))
        shards = [
            [of_rank[unit][shard_of(run, unit, rank)] for unit in units] for rank, of_rank in enumerate(run.inputs)
        ]
        sums = [sum(float(shard @ shard) for shard in of_rank) for of_rank in shards]
        for rank, outcome in enumerate(outcomes):
            found, who = outcome.value, f"{on(run, rank)}'s squared_norm"
            if not isinstance(found, float):
                lose(f"{who} is {found}; a number is wanted.")
            if run is infinite:
                if np.isfinite(found):
                    lose(f"{who} is {found:.6g}. It must not be finite, or this rank does not skip the step.")
                continue
            if not np.isclose(found, sum(sums), rtol=1e-9):
                everything = sum(float(part @ part) for part in run.inputs[rank])
                known = {
                    "it is the sum of this rank's own shards": sums[rank],
                    "it is the norm; the square of it is wanted": sum(sums) ** 0.5,
                    "it is that of all of flat.grad; the shard alone holds a sum": everything,
                    "the whole flat.grad of every rank is in it; only a rank's shard holds a sum": sum(
                        float(part @ part) for of_rank in run.inputs for part in of_rank
                    ),
                }
                words = named(found, known, partial(np.isclose, rtol=1e-9))
                lose(f"{who} is {found:.8g}, where it is {sum(sums):.8g}{words}.")
            if found != outcomes[0].value:
                lose(f"{who} is {found!r}, and rank 0's {outcomes[0].value!r}: they must be the same to the last bit.")


@pytest.mark.points(2, "after_update: everyone's shard of the parameters, in place")
def test_after_update(submission: Submission) -> None:
    cases = [numbered(submission, n, ", after_update") for n in RANKS]
    for run, rank, outcome in by_rank(submission, "after_update", cases, of("after_update"), check_worked):
        for unit, flat in enumerate(run.truth.flats):
            who = f"{on(run, rank)}'s flat.param of {flat.name}"
            expected = np.concatenate([run.inputs[r][unit][shard_of(run, unit, r)] for r in range(run.n)])
            named, held = outcome.value["named"][unit], outcome.value["held"][unit]
            an_array(run, named, f"rank {rank}'s flat.param of {flat.name}", expected.shape)
            if not np.array_equal(named, expected):
                index = int(np.flatnonzero(named != expected)[0])
                owner = index // (expected.size // run.n)
                own = ": there it is as it was" if named[index] == run.inputs[rank][unit][index] else ""
                lose(f"{who} is wrong first at index {index}, in rank {owner}'s shard{own}.")
            if not np.array_equal(held, expected):
                lose(f"{who} is another array now. Put the shards together in the array itself: others have views.")


@pytest.mark.points(1, "reduce, squared_norm, after_update: phases, and no more bytes than needed, as stored")
def test_wire(submission: Submission) -> None:
    asked = ((4, "fp64", False), (4, "mixed", False), (3, "fp64", True))
    cases = [
        numbered(submission, n, f", {method}, {precision}", precision, tied, function=method)
        for method in PHASES
        for n, precision, tied in asked
    ]
    runs = submission.run("either", cases, of(*PHASES))
    short = [phase for run, outcomes in zip(cases, runs, strict=True) for phase in check_method_sent(run, outcomes)]
    check_enough("4 and 3 ranks", short)


def check_method_sent(run: Training, outcomes: Sequence[Outcome]) -> list[str]:
    """check_sent for the phase of one method."""
    phase = PHASES[run.arguments["function"]]
    elements = sum(run.truth.padded(unit) for unit in range(len(run.truth.flats)))
    half = elements // run.n * (run.n - 1) * run.precision.bytes
    most = {phase: 2 * 8 * (run.n - 1) if phase == NORM else half}
    return [short for rank, outcome in enumerate(outcomes) for short in check_sent(run, rank, outcome, most)]


# ---- what only shows from between the ranks --------------------------------------------------------------------------


def check_meant(run: Case, outcomes: Sequence[Outcome]) -> None:
    """What sends too much has messages that mean nothing, and so has what makes nothing of them. Both are asked for in
    their own parts."""
    check_worked(run, outcomes)
    value = outcomes[0].value
    if isinstance(run, Layers):
        check_train_step_sent(run, outcomes)
        check_changed(run, value[1], run.params)
    if isinstance(run, Training):
        check_method_sent(run, outcomes)
        if run.arguments["function"] == "squared_norm" and not value:
            lose(f"On {run.label}: rank 0's squared_norm is {value}; its gradients are not zero.")
        if run.arguments["function"] != "squared_norm":
            check_changed(run, value["held"] if isinstance(value, dict) else value, run.inputs[0])


def check_changed(run: Case, found: Sequence[Any], before: Sequence[Array]) -> None:
    if all(np.array_equal(now, then) for now, then in zip(found, before, strict=True)):
        lose(f"On {run.label}: what rank 0 receives changes nothing.")


@pytest.mark.points(1, "nothing depends on luck, and every message means something")
def test_messages(submission: Submission) -> None:
    def cases(n: int) -> dict[str, Case]:
        toy = layers(submission, n, 3, 2 * n, clips=[0.01], rate=0.5, function="train_step")
        toy.label += ", train_step"
        methods = {f"ZeRO1.{name}": numbered(submission, n, f", {name}", function=name) for name in PHASES}
        return {"train_step": toy, **methods}

    check_timing(submission, "either", {name: [case] for name, case in cases(4).items()}, check_worked)
    check_meaning(submission, "either", cases(2), check_meant)
    run = training(submission.random, 2, ", all methods the student's", SMALL, steps=3)
    check_trains_alike(submission, run, of(*METHODS))


# ---- the notebook's gaps, which earn no points: check("shard_slice") runs these --------------------------------------


def check_shard_slice(submission: Submission) -> None:
    for size, n in ((272, 4), (272, 3), (30, 4), (5, 4), (8, 1)):
        asked = [[size, n, rank] for rank in range(n)]
        found = ask(submission, "call_shard_slice", "shard_slice", asked, f"{n} ranks")
        each = -(-size // n)
        for rank, mine in enumerate(found):
            if not isinstance(mine, list):
                lose(f"shard_slice({size}, {n}, {rank}) returned {mine}; a slice is wanted.")
        expected = [(rank * each, (rank + 1) * each) for rank in range(n)]
        check_pieces(f"a Flat on {n} ranks", size, [tuple(mine) for mine in found], expected)


def halves(submission: Submission, n: int, size: int) -> list[Array]:
    """For each rank an array float16 (size,), of numbers whose sums float16 has exactly."""
    return [submission.random.integers(1, 200, size).astype(np.float16) for _ in range(n)]


def check_reduce_shard(submission: Submission) -> None:
    for n, size in ((4, 32), (3, 21)):
        run = Case(n, f"{n} ranks, a gradient of {size} numbers", halves(submission, n, size))
        [outcomes] = submission.run("call_reduce_shard", [run], ["reduce_shard"])
        total = np.sum([grad.astype(float) for grad in run.inputs], axis=0)
        for rank, outcome in enumerate(outcomes):
            who, found = on(run, rank), outcome.value["returned"]
            mine = slice(rank * size // n, (rank + 1) * size // n)
            an_array(run, found, f"what reduce_shard returned on rank {rank}", total[mine].astype(np.float16))
            if not np.array_equal(found, total[mine]):
                known = {
                    "it is this rank's own part, not summed over the ranks": run.inputs[rank][mine],
                    "it is the sum divided by the number of ranks": total[mine] / n,
                }
                words = named(found, known, partial(np.allclose, rtol=1e-3))
                lose(f"{who}: the shard is not the sum over the ranks{words}.")
            if not np.array_equal(outcome.value["handed"][0][mine], total[mine]):
                lose(
                    f"{who}: the sum is not in this rank's part of grad. reduce_scatter has out=, which may be a view."
                )
            check_sent(run, rank, outcome, {SCATTER: 2 * size // n * (n - 1)})


def check_update_shard(submission: Submission) -> None:
    for n, size in ((4, 32), (3, 21)):
        draw = submission.random.standard_normal
        master, change = draw(size).astype(np.float32), (1e-4 * draw(size)).astype(np.float32)
        param, each = master.astype(np.float16), size // n
        cut = [slice(rank * each, (rank + 1) * each) for rank in range(n)]
        run = Case(n, f"{n} ranks, {size} parameters", [(param, master[mine], change[mine]) for mine in cut])
        [outcomes] = submission.run("call_update_shard", [run], ["update_shard"])
        expected = (master + change).astype(np.float16)
        for rank, outcome in enumerate(outcomes):
            who, (found, own, _) = f"{on(run, rank)}'s", outcome.value["handed"]
            if not np.array_equal(own, (master + change)[cut[rank]]):
                lose(f"{who} master copy is not what it was plus the change. Add in place: master += ...")
            if not np.array_equal(found, expected):
                index = int(np.flatnonzero(found != expected)[0])
                same = found[index] == param[index]
                words = "it is as it was there" if same else "it should be that rank's master copy, rounded"
                lose(f"{who} param is wrong first at index {index}, in rank {index // each}'s shard: {words}.")
            check_sent(run, rank, outcome, {GATHER: 2 * each * (n - 1)})


def check_norm_of(submission: Submission) -> None:
    for n, scale in ((4, 1.0), (3, 400.0)):
        draw = submission.random.standard_normal
        inputs = [[(scale * draw(size)).astype(np.float16) for size in (9, 5)] for _ in range(n)]
        run = Case(n, f"{n} ranks, two shards each", inputs)
        [outcomes] = submission.run("call_norm_of", [run], ["norm_of"])
        sums = [sum(float(np.sum(shard.astype(float) ** 2)) for shard in shards) for shards in inputs]
        for rank, outcome in enumerate(outcomes):
            if not isinstance(outcome.value, float) or not np.isclose(outcome.value, sum(sums) ** 0.5, rtol=1e-6):
                known = {
                    "it is that of this rank's own shards": sums[rank] ** 0.5,
                    "it is its square: take the root": sum(sums),
                    "it is the sum of the ranks' norms: add up squares": sum(total**0.5 for total in sums),
                    "squares are infinite in float16: make them in float64": float("inf"),
                }
                words = named(outcome.value, known, close)
                lose(f"{on(run, rank)} has the norm {outcome.value}, where it is {sum(sums) ** 0.5:.6g}{words}.")
            check_sent(run, rank, outcome, {NORM: 2 * 8 * (n - 1)})


GAPS = gaps(globals(), "shard_slice", "reduce_shard", "update_shard", "norm_of")
