"""Exercises that train: serial training as the truth, and what is wrong with a shard that differs from it.

A rank's losses, and its shards of parameters, are compared here, in the process that grades, with those
of serial training on the same batches. A unit's arrays are flat (`minidist.nn.flat`); a shard is an N-th of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from minidist.classroom.grading.diagnose import distinct
from minidist.classroom.grading.engines import settings_of
from minidist.classroom.grading.submission import Case, Outcome, lose
from minidist.engine import Engine
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.precision import PRECISIONS, Precision
from minidist.papers.collectives import chunk_sizes

Array = np.ndarray
PRECISE = 1e-12  # relative to a unit's largest element

# No unit's size is divisible by 2, 3 or 4; nor are the five sequences of a batch.
SMALL = {"vocabulary": 17, "context": 8, "layers": 1, "heads": 1, "width": 5, "tied": False}
# Parameters are most of what is held: activations of one token a rank are nothing compared with them.
HEAVY = {"vocabulary": 1200, "context": 1, "layers": 1, "heads": 4, "width": 96, "tied": False}
SLACK = 1 << 16  # bytes of Python objects, and of arrays other than parameters


def share(size: int, rank: int, n: int) -> slice:
    """A rank's part of `size` things."""
    sizes = chunk_sizes(size, n)
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


@dataclass
class Training(Case):
    """A case in which the ranks train; `training` makes one."""

    batches: Array = field(kw_only=True)  # (steps, micro-batches, sequences, context + 1)

    @cached_property
    def truth(self) -> "Truth":
        """Serial training on the same batches; it runs when it is first asked for."""
        return Truth(self)

    @property
    def precision(self) -> Precision:
        return PRECISIONS[self.arguments["settings"]["precision"]]


def training(
    random: np.random.Generator,
    n: int,
    what: str,
    model: dict[str, Any],
    steps: int = 1,
    accumulate: int = 1,
    sequences: int = 5,
    precision: str = "fp64",
    optimizer: str = "sgd",
    **arguments: Any,
) -> Training:
    """A run on n ranks, of micro-batches of `sequences` sequences; arguments are those of the function of on_ranks.py.

    Every rank gets all batches, but with the right tokens only in its own rows. SGD shows a gradient of the wrong
    scale, which Adam would hide.
    """
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
    label = f"{n} rank{'s' * (n > 1)}{what}"
    return Training(n, label, inputs, {"model": model, "settings": settings, **arguments}, batches=batches)


# ---- the truth -------------------------------------------------------------------------------------------------------


class Serial(Engine):
    """Serial training; or the part of one of several ranks, for its part of the loss."""

    rank, ranks = 0, 1

    def rows(self, n: int) -> range:
        rows = share(n, self.rank, self.ranks)
        return range(rows.start, rows.stop)


class Truth:
    """What serial training gives. Arrays are of whole units, without padding."""

    def __init__(self, run: Training) -> None:
        self.run, self.n = run, run.n
        self.losses: list[list[float]] = []  # of each micro-batch, each rank's part
        engine = self.engine()
        self.flats = engine.flats
        self.parameters = [self.copies("param")]  # before the first step, and after each
        for step in run.batches:
            for tokens in step:
                self.losses.append(self.parts(engine, tokens))
                engine.backward(engine.forward(tokens[:, :-1], tokens[:, 1:]))
                engine.step()
            self.parameters.append(self.copies("param"))

    def engine(self) -> Serial:
        made = self.run.arguments
        return Serial(gpt(GPTConfig(**made["model"])), settings_of(**made["settings"]))

    def copies(self, name: str) -> list[Array]:
        return [getattr(flat, name).copy() for flat in self.flats]

    def parts(self, engine: Serial, tokens: Array) -> list[float]:
        """Each rank's part of the loss."""
        found = []
        for rank in range(self.n):
            engine.rank, engine.ranks = rank, self.n
            found.append(engine.forward(tokens[:, :-1], tokens[:, 1:]).value)
        engine.rank, engine.ranks = 0, 1
        return found

    def padded(self, unit: int) -> int:
        """Elements of a unit, rounded up to a multiple of the number of ranks."""
        return -(-self.flats[unit].size // self.n) * self.n

    def shard(self, whole: Array, rank: int) -> Array:
        """A rank's shard of a unit's array (size,), padded with zeros."""
        each = -(-whole.size // self.n)
        return np.pad(whole, (0, each * self.n - whole.size))[rank * each : (rank + 1) * each]


# ---- results, compared with the truth --------------------------------------------------------------------------------


def whole_numbers(
    random: np.random.Generator, n: int, what: str, precision: str = "fp64", **arguments: Any
) -> Training:
    """Each rank has two buckets of the first Flat, of whole numbers that can be recognized in their sum (fp64)."""
    run = training(random, n, what, SMALL, precision=precision, **arguments)
    size = run.truth.padded(0)
    drawn = [distinct(n, size, random) for _ in range(2)]
    if precision != "fp64":
        drawn = [[random.integers(1, 50, size).astype(float) for _ in range(n)] for _ in range(2)]
    run.inputs = [np.stack([numbers[rank] for numbers in drawn]) for rank in range(n)]
    return run


def unit_sizes(run: Training) -> dict[str, int]:
    return {flat.name: run.truth.padded(unit) for unit, flat in enumerate(run.truth.flats)}


def check_losses(run: Training, found: Sequence[Sequence[Any]], expected: Sequence[Sequence[float]], what: str) -> None:
    """Each rank's part of some losses, found[rank][number], compared with expected[number][rank]."""
    for number, parts in enumerate(expected):
        for rank, part in enumerate(parts):
            loss = found[rank][number]
            if not isinstance(loss, float) or not abs(loss - part) <= PRECISE * abs(part):
                lose(
                    f"On {run.label}: rank {rank}'s part of {what} {number + 1} is {loss}, where serial training has"
                    f" {part}. Did the rank compute with this step's parameters, all of them?"
                )


def check_shards(run: Training, which: str, found: Sequence[Sequence[Any]], wholes: Sequence[Array], when: str) -> None:
    """Every rank's flat.param or flat.grad (`which`), found[rank][unit], against the truth's array for each unit."""
    truth = run.truth
    for unit, whole in enumerate(wholes):
        for rank, of_rank in enumerate(found):
            expected = truth.shard(whole, rank)
            place = f"On {run.label}, {when}: rank {rank}'s flat.{which} of {truth.flats[unit].name}"
            index = wrong_index(place, of_rank[unit], expected, truth, unit)
            if index is not None:
                at = element(truth, unit, rank * expected.size + index)
                words = explain_parameters(truth, of_rank[unit], unit, rank)
                if which == "grad":
                    words = "it is not zero"
                lose(f"{place} is wrong first at index {index}, {at}: {words}.")


def wrong_index(place: str, found: Any, expected: Array, truth: Truth, unit: int) -> int | None:
    """The first index at which `found` differs; None if it does not. Loses the part if its type or shape is wrong."""
    if not isinstance(found, np.ndarray):
        lose(f"{place} is {'None' if found == 'NoneType' else found}, not an array of numbers.")
    if found.shape != expected.shape or found.dtype != expected.dtype:
        lose(
            f"{place} is {found.dtype} {found.shape} where {expected.dtype} {expected.shape} is wanted: the unit has"
            f" {truth.flats[unit].size} elements, {truth.padded(unit)} with padding, and there are {truth.n} shards."
        )
    largest = float(np.abs(expected).max(initial=0.0)) or 1.0
    wrong = np.flatnonzero(~(np.abs(found - expected) <= PRECISE * largest))
    return int(wrong[0]) if wrong.size else None


def check_buckets(run: Training, outcomes: Sequence[Outcome]) -> None:
    """Check, for `whole_numbers`, what `collect` has left after the first and after the second backward."""
    for rank, outcome in enumerate(outcomes):
        slopes = run.inputs[rank].astype(run.precision.stored)
        who = f"On {run.label}: rank {rank}'s flat.bucket"
        for found, expected, when in (
            (outcome.value[0], slopes[0], "after a unit's backward"),
            (outcome.value[1], slopes[0] + slopes[1], "after a second unit's backward"),
        ):
            if isinstance(found, str) or found.shape != expected.shape or found.dtype != expected.dtype:
                is_now = found if isinstance(found, str) else f"{found.dtype} {found.shape}"
                lose(f"{who} is {is_now} {when}, where {expected.dtype} {expected.shape} is wanted.")
            if not np.array_equal(found, expected):
                alone = np.array_equal(found, slopes[1])
                second = "it is the second one's gradient alone; a tied head leaves a part in the bucket"
                lose(f"{who} is wrong {when}: {second if alone else 'it is not the sum of what they wrote'}.")


def check_gradient(run: Training, rank: int, found: Any, expected: Array) -> None:
    """Check the type and shape of a rank's flat.grad, whatever is in it."""
    if isinstance(found, str) or found.shape != expected.shape or found.dtype != expected.dtype:
        is_now = found if isinstance(found, str) else f"{found.dtype} {found.shape}"
        lose(f"On {run.label}: rank {rank}'s flat.grad is {is_now}; {expected.dtype} {expected.shape} is wanted.")


def element(truth: Truth, unit: int, index: int) -> str:
    """What element `index` of a unit's flat buffer is."""
    flat = truth.flats[unit]
    for parameter, view in flat.views(np.arange(flat.size)):
        if index in view:
            return f"element {index} of the unit, of {parameter.name}"
    return f"element {index} of the unit, of its padding"


def explain_parameters(truth: Truth, found: Array, unit: int, rank: int) -> str:
    """What a wrong shard of parameters holds instead."""
    for number, parameters in enumerate(truth.parameters):
        when = f"after step {number}" if number else "at the start"
        if _same(found, truth.shard(parameters[unit], rank)):
            return f"it is as it was {when}"
        for other in range(truth.n):
            if _same(found, truth.shard(parameters[unit], other)):
                return f"it is rank {other}'s shard {when}"
    return "it is not what serial training gives"


def _same(found: Array, other: Array) -> bool:
    return bool(np.any(other) and np.allclose(found, other, rtol=1e-9, atol=1e-13))
