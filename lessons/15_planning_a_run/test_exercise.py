"""The grade of lesson 15: `pytest lessons/15_planning_a_run`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew. Sizes, units and machines are drawn afresh.
What is right is worked out here by formulas, for the largest moment by the lesson's own function, and for the choice by
looking at every plan. A part earns its points or not, and none needs a later one.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import gaps, lessons_own, parts_by_function
from minidist.classroom.grading.parts import ask, describe
from minidist.classroom.grading.submission import Submission, lose

ASKED = ("read_sizes", "model_states", "passing_peak", "traffic", "choose")
HIDDEN = (  # what a submission cannot import
    "answers",
    "given",
    "minidist.papers.zero",
    "minidist.papers.zero_offload",
    "minidist.formulas.needs",
    "minidist.deepspeed.agree",
    "minidist.deepspeed.explain",
)
BATCH, MICRO, ACCUMULATE = SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")

Unit = tuple[int, int, int | None]


own = partial(lessons_own, __file__)  # the lesson's own functions


def asked_for(submission: Submission, function: str, calls: Sequence[Sequence[Any]]) -> Any:
    """What a function returns for each call."""
    return ask(submission, "numbers", function, list(calls), function=function)


def same(found: Any, expected: float) -> bool:
    return isinstance(found, float | int) and bool(np.isclose(found, expected, rtol=1e-9, atol=1e-9))


def said(value: Any) -> str:
    if not isinstance(value, float | int):
        return f"{value}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def pair(found: Any, label: str) -> list[float]:
    """Two numbers. Loses the part otherwise."""
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(each, float) for each in found):
        lose(f"On {label}: return two numbers; it was {found}.")
    return found


# ---- what a configuration says ---------------------------------------------------------------------------------------


def sizes_of(submission: Submission, configs: list[dict[str, Any]], ranks: int) -> list[Any]:
    return list(ask(submission, "sizes", "read_sizes", [(config, ranks) for config in configs]))


@pytest.mark.points(2, "read_sizes: what is missing follows")
def test_read_sizes(submission: Submission) -> None:
    ranks, micro, accumulate = (int(each) for each in submission.random.integers(2, 7, 3))
    batch = ranks * micro * accumulate
    whole, rest = dict(zip(SIZES, (batch, micro, accumulate), strict=True)), {"zero_optimization": {"stage": 2}}
    cases = [
        (whole | rest, (batch, micro, accumulate)),
        ({BATCH: batch, MICRO: micro}, (batch, micro, accumulate)),
        ({BATCH: batch, ACCUMULATE: accumulate}, (batch, micro, accumulate)),
        ({MICRO: micro, ACCUMULATE: accumulate}, (batch, micro, accumulate)),
        ({BATCH: ranks * micro} | rest, (ranks * micro, micro, 1)),
        ({MICRO: micro} | rest, (ranks * micro, micro, 1)),
    ]
    found = sizes_of(submission, [config for config, _ in cases], ranks)
    for (config, expected), sizes in zip(cases, found, strict=True):
        if not isinstance(sizes, list) or sizes != list(expected):
            said = sizes if isinstance(sizes, list) else describe(sizes)
            instead = "a ValueError" if said == "ValueError" else said
            lose(f"On {shown(config)}, {ranks} ranks: {expected} is wanted; it was {instead}.")


def shown(config: dict[str, Any]) -> str:
    """A configuration without what has nothing to do with sizes."""
    return "{" + ", ".join(f"{name}: {value!r}" for name, value in config.items() if name in SIZES) + "}"


@pytest.mark.points(1, "read_sizes: what cannot be is refused")
def test_read_sizes_refuses(submission: Submission) -> None:
    ranks = int(submission.random.integers(3, 6))
    cases = [
        ({BATCH: 8 * ranks, MICRO: 2, ACCUMULATE: 3}, f"{8 * ranks} is not 2 · 3 · {ranks}"),
        ({BATCH: 2 * ranks + 1}, f"{ranks} ranks cannot share it out"),
        ({BATCH: ranks - 1}, "that is less than one sequence for a rank"),
        ({BATCH: 5 * ranks, MICRO: 2}, "no whole number of micro-batches"),
        ({ACCUMULATE: 2}, "neither the batch nor the micro-batch is there"),
        ({MICRO: 0, ACCUMULATE: 2}, "a micro-batch of 0"),
        ({MICRO: 2, ACCUMULATE: 0}, "0 micro-batches"),
        ({BATCH: "auto", MICRO: 2}, '"auto" is no number'),
    ]
    for (config, why), sizes in zip(cases, sizes_of(submission, [config for config, _ in cases], ranks), strict=True):
        if not isinstance(sizes, str) or sizes != "ValueError":
            lose(f"On {shown(config)}, {ranks} ranks: raise ValueError, for {why}; it was {sizes}.")


# ---- memory ----------------------------------------------------------------------------------------------------------


def psi_and_ranks(submission: Submission) -> tuple[int, int]:
    ranks = int(submission.random.integers(3, 9))
    return ranks * int(submission.random.integers(10**6, 10**7)), ranks


@pytest.mark.points(2, "model_states: what each stage divides")
def test_model_states(submission: Submission) -> None:
    psi, ranks = psi_and_ranks(submission)
    found = asked_for(submission, "model_states", [(psi, ranks, stage, False) for stage in range(4)])
    for stage, value in enumerate(found):
        label = f"{psi:,} parameters, {ranks} ranks, stage {stage}"
        device, host = pair(value, label)
        whole = (16, 4, 2, 0)[stage]  # bytes a parameter that are not divided
        expected = whole * psi + (16 - whole) * psi / ranks
        if not same(device, expected):
            lose(f"On {label}: {said(expected)} bytes are on a device; it was {said(device)}.")
        if host:
            lose(f"On {label}, no offload: nothing is on the host; it was {said(host)}.")


@pytest.mark.points(2, "model_states: what offload moves")
def test_model_states_offload(submission: Submission) -> None:
    psi, ranks = psi_and_ranks(submission)
    calls = [(psi, ranks, stage, offload) for stage in (1, 2, 3) for offload in (False, True)]
    found = asked_for(submission, "model_states", calls)
    for stage, without, moved in zip((1, 2, 3), found[::2], found[1::2], strict=True):
        label = f"{psi:,} parameters, {ranks} ranks, stage {stage} with offload"
        device, host = pair(moved, label)
        if not same(host, 14 * psi / ranks):
            lose(
                f"On {label}: the host has {said(14 * psi / ranks)} bytes, a rank's shards of states and gradients; it"
                f" was {said(host)}."
            )
        less = (12 if stage == 1 else 14) * psi / ranks
        if not same(pair(without, label)[0] - device, less):
            lose(
                f"On {label}: the device has {said(less)} bytes less than without; it was"
                f" {said(pair(without, label)[0] - device)}."
            )


def drawn_units(submission: Submission, blocks: int, parameters: bool = True, keeps: bool = True) -> list[Unit]:
    """An embedding, blocks and a head."""
    random = submission.random
    size, kept = (int(each) for each in random.integers(1000, 2000, 2))
    given = kept // 10
    units: list[Unit] = [(3 * size, kept // 5, None), *[(size, kept, given)] * blocks, (2 * size, kept // 2, None)]
    return [
        (of if parameters else 0, own if keeps else 0, None if alone is None else alone if keeps else 0)
        for of, own, alone in units
    ]


def check_peaks(submission: Submission, calls: Sequence[tuple[list[Unit], int, bool, int]]) -> None:
    for call, found in zip(calls, asked_for(submission, "passing_peak", calls), strict=True):
        units, *how = call
        stage, recompute, micro = how
        expected, kept, whole = (
            own("passing_peak")(some, *how)
            for some in (
                units,
                [(0, keeps, given) for _, keeps, given in units],
                [(parameters, 0, None if given is None else 0) for parameters, _, given in units],
            )
        )
        if not same(found, expected):
            short = f"{units[:2]}, ... {len(units)} units" if len(units) > 3 else f"{units}"
            sums = " That is the sum of both, and they are not largest at the same moment."
            lose(
                f"On units {short}, stage {stage}, recompute {recompute}, micro {micro}: at one moment"
                f" {said(expected)} bytes are held. At most {said(kept)} are what units keep, and at most {said(whole)}"
                f" parameters and gradients. It was {said(found)}.{sums * (same(found, kept + whole))}"
            )


@pytest.mark.points(2, "passing_peak: what is kept, and what is recomputed")
def test_passing_peak_kept(submission: Submission) -> None:
    cases = itertools.product((3, 1), (False, True), (1, 3))
    check_peaks(
        submission,
        [(drawn_units(submission, blocks, parameters=False), 0, again, micro) for blocks, again, micro in cases],
    )


@pytest.mark.points(2, "passing_peak: whole units, parameters and gradients")
def test_passing_peak_units(submission: Submission) -> None:
    units = [drawn_units(submission, blocks, keeps=False) for blocks in (3, 1)]
    check_peaks(submission, [(of, stage, False, 2) for of in units for stage in (0, 1, 2, 3)])


@pytest.mark.points(2, "passing_peak: of one moment, not of several")
def test_passing_peak_moment(submission: Submission) -> None:
    """What is kept is most when the backward begins, and gradients come when a part of it has gone."""
    calls = []
    for micro in (1, 2):
        units = drawn_units(submission, 4)
        units = [(size // 40, keeps, given) for size, keeps, given in units]
        calls += [(units, 2, False, micro), (units, 1, False, micro)]
    check_peaks(submission, calls)


# ---- traffic ---------------------------------------------------------------------------------------------------------


@pytest.mark.points(2, "traffic: what each stage sends")
def test_traffic(submission: Submission) -> None:
    psi, ranks = psi_and_ranks(submission)
    found = asked_for(submission, "traffic", [(psi, ranks, stage, False, 1) for stage in range(4)])
    for stage, value in enumerate(found):
        label = f"{psi:,} parameters, {ranks} ranks, stage {stage}, one micro-batch"
        times = 3 if stage == 3 else 2
        expected = times * 2 * psi * (ranks - 1) / ranks
        sent, link = pair(value, label)
        if not same(sent, expected):
            lose(f"On {label}: a rank sends {said(expected)} bytes; it was {said(sent)}.")
        if link:
            lose(f"On {label}, no offload: nothing goes over the link; it was {said(link)}.")


@pytest.mark.points(1, "traffic: of several micro-batches")
def test_traffic_accumulate(submission: Submission) -> None:
    psi, ranks = psi_and_ranks(submission)
    a = int(submission.random.integers(3, 8))
    calls = [(psi, ranks, stage, False, times) for stage in range(4) for times in (1, a)]
    found = asked_for(submission, "traffic", calls)
    for stage, one, several in zip(range(4), found[::2], found[1::2], strict=True):
        label = f"stage {stage}, {a} micro-batches"
        times = (1, 1, (a + 1) / 2, a)[stage]
        if not same(pair(several, label)[0], times * pair(one, label)[0]):
            lose(
                f"On {label}: {times:g} times what one micro-batch sends is wanted,"
                f" {said(times * pair(one, label)[0])}; it was {said(pair(several, label)[0])}."
            )


@pytest.mark.points(1, "traffic: over the link")
def test_traffic_link(submission: Submission) -> None:
    psi, ranks = psi_and_ranks(submission)
    calls = [(psi, ranks, stage, True, a) for stage in (1, 2, 3) for a in (1, 4)]
    for (*_, stage, _, a), value in zip(calls, asked_for(submission, "traffic", calls), strict=True):
        label = f"{psi:,} parameters, {ranks} ranks, stage {stage} with offload, {a} micro-batches"
        expected = 2 * psi / ranks * ((a if stage > 1 else 1) + 1)
        link = pair(value, label)[1]
        if not same(link, expected):
            lose(f"On {label}: {said(expected)} bytes go over the link; it was {said(link)}.")


# ---- the choice ------------------------------------------------------------------------------------------------------

Row = list[float]


KINDS = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]  # (stage, offload)


def a_table(submission: Submission, ranks: int, batch: int) -> list[Row]:
    """All plans of these ranks, with what each needs and takes, which are random."""
    micros = [micro for micro in range(1, batch // ranks + 1) if batch % (micro * ranks) == 0]
    plans = list(itertools.product(KINDS, (0, 1), micros))
    numbers = submission.random.uniform(1, 9, (len(plans), 3)).round(3)
    rows = zip(plans, numbers, strict=True)
    return [[*kind, again, micro, *map(float, row)] for (kind, again, micro), row in rows]


def choice(submission: Submission, table: list[Row], ranks: int, batch: int, device: float, host: float) -> Any:
    return ask(submission, "chosen", "choose", table, ranks=ranks, batch=batch, device=device, host=host)


def fits(row: Row, device: float, host: float) -> bool:
    return row[4] <= device and row[5] <= host


def drawn(submission: Submission) -> tuple[list[Row], int, int]:
    ranks = int(submission.random.integers(2, 5))
    batch = ranks * int(submission.random.choice([8, 12, 18]))
    return a_table(submission, ranks, batch), ranks, batch


def in_words(plan: Sequence[float]) -> str:
    stage, offload, again, micro = (int(each) for each in plan[:4])
    return f"({stage}, {bool(offload)}, {bool(again)}, {micro})"


@pytest.mark.points(1, "choose: a plan that fits")
def test_choose_fits(submission: Submission) -> None:
    for device, host in ((4.0, 99.0), (99.0, 4.0), (5.0, 5.0)):
        table, ranks, batch = drawn(submission)
        for row in table:  # what is fast does not fit
            row[6] = 100 - row[4] - row[5]
        found = choice(submission, table, ranks, batch, device, host)
        label = f"{len(table)} plans of {ranks} ranks, batch {batch}, a device of {device:g} and a host of {host:g}"
        if not isinstance(found, list):
            lose(f"On {label}: return a plan, (stage, offload, recompute, micro); it was {found}.")
        for row in table:
            if row[:4] == found and not fits(row, device, host):
                lose(f"On {label}: {in_words(found)} needs {row[4]:g} of the device and {row[5]:g} of the host.")


@pytest.mark.points(1, "choose: the fastest of all")
def test_choose_fastest(submission: Submission) -> None:
    """Where everything fits. Each stage has its turn, with and without offload, and the smallest and the largest
    micro-batch: else the plan that is fastest is drawn."""
    for number, kind in enumerate(KINDS):
        table, ranks, batch = drawn(submission)
        rows = [row for row in table if (row[0], row[1]) == kind]
        rows[number - 1 if number < 2 else int(submission.random.integers(len(rows)))][6] = 0.5
        found = choice(submission, table, ranks, batch, 10.0, 10.0)
        label = f"{len(table)} plans of {ranks} ranks, batch {batch}, all of which fit"
        best = min(table, key=lambda row: row[6])
        row = next((row for row in table if row[:4] == found), None)
        if row is None:
            plan = in_words(found) if isinstance(found, list) and all(isinstance(x, int) for x in found) else found
            lose(f"On {label}: {plan} is none of them; {in_words(best)} takes {best[6]:g}.")
        if row[6] > best[6]:
            lose(f"On {label}: {in_words(row)} takes {row[6]:g}; {in_words(best)} takes {best[6]:g}.")


@pytest.mark.points(1, "choose: one that fits, or none")
def test_choose_none(submission: Submission) -> None:
    table, ranks, batch = drawn(submission)
    if (found := choice(submission, table, ranks, batch, 0.5, 0.5)) != "None":
        lose(f"Nothing fits: return None; it was {found}.")
    # Whether the first and the last stage and micro-batch are tried is asked in the part above.
    inner = [row for row in table if row[0] in (1, 2) and 1 < row[3] < batch // ranks]
    for row in (inner[0], inner[-1], inner[len(inner) // 2]):
        alone = [[*each[:4], *((0.5, 0.5) if each is row else each[4:6]), each[6]] for each in table]
        found = choice(submission, alone, ranks, batch, 0.5, 0.5)
        if found == "None":
            lose(f"{in_words(row)} fits, of {ranks} ranks with a batch of {batch}: None was returned.")


# ---- the notebook's gaps, which earn no points -----------------------------------------------------------------------


def check_batch_of(submission: Submission) -> None:
    calls = [(2, 3, 4), (1, 1, 1), (5, 1, 8)]
    for call, found in zip(calls, asked_for(submission, "batch_of", calls), strict=True):
        if not same(found, np.prod(call)):
            lose(f"With micro {call[0]}, accumulate {call[1]} and {call[2]} ranks: {found} was returned.")


def check_states(submission: Submission) -> None:
    psi, ranks = psi_and_ranks(submission)
    found = asked_for(submission, "states", [(psi, ranks, stage) for stage in range(4)])
    for stage, value in enumerate(found):
        whole = (16, 4, 2, 0)[stage]
        expected = whole * psi + (16 - whole) * psi / ranks
        if not same(value, expected):
            lose(f"{psi:,} parameters, {ranks} ranks, stage {stage}: {said(expected)} is wanted; it was {said(value)}.")


def check_kept(submission: Submission) -> None:
    units = drawn_units(submission, 3)
    calls = [(units, again, micro) for again in (False, True) for micro in (1, 4)]
    for (_, again, micro), found in zip(calls, asked_for(submission, "kept", calls), strict=True):
        expected = micro * sum(keeps if given is None or not again else given for _, keeps, given in units)
        if not same(found, expected):
            lose(
                f"units = {units}, recompute {again}, micro {micro}: {said(expected)} is wanted; it was {said(found)}."
            )


def check_plans(submission: Submission) -> None:
    for ranks, batch in ((4, 16), (3, 18), (2, 2)):
        expected = {tuple(map(int, row[:4])) for row in a_table(submission, ranks, batch)}
        found = ask(submission, "all_plans", "plans", None, ranks=ranks, batch=batch)
        if not isinstance(found, list) or not all(isinstance(plan, list) for plan in found):
            lose(f"plans({ranks}, {batch}): return a list of (stage, offload, recompute, micro); it was {found}.")
        got = [tuple(plan) for plan in found]
        for plan in sorted(expected - set(got))[:1]:
            lose(f"plans({ranks}, {batch}): {in_words(plan)} is missing; there are {len(expected)}.")
        for plan in sorted(set(got) - expected)[:1]:
            lose(f"plans({ranks}, {batch}): {plan} is no plan; there are {len(expected)}.")
        if len(got) != len(expected):
            lose(f"plans({ranks}, {batch}): some are there twice.")


GAPS = gaps(globals(), "batch_of", "states", "kept", "plans")
PARTS = parts_by_function(globals())
