"""Which check notices a bug: the runs that a check needs, and what it compares.

Every run is small: 2 layers of width 16, sequences of 8 characters, 20 steps or 6. A check compares with serial
training of the healthy program, or with another run of the same program. Bytes and memory are those of the first step.
They are compared with what the healthy program sends and holds on the same ranks; its claims check that against the
papers.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple

from minidist import Stopped
from minidist.bugs.probe import Cost, ProbedRun
from minidist.bugs.record import Bug, Edit
from minidist.claims.mutants import changed_copy, python_in
from minidist.system import processes

STEPS, FEW = 20, 6  # steps of the runs that are compared with serial training, and of the others
MODEL = "--layers 2 --width 16 --heads 2 --context 8 --batch 8 --warmup 0 --lr 1e-2 --min-lr 1e-2"
SGD = "--optimizer sgd --clip 0 --lr 0.3 --min-lr 0.3"
EXACT = 1e-9  # relative, in float64
SEEN = {"fp32": 1e-3, "bf16": 2e-2, "mixed": 2e-2}  # relative: differences above this are no rounding, by precision
WITH_SGD = {"fp32": 1e-5, "bf16": 2e-2, "mixed": 1e-3}  # SGD does not divide by the root of a tiny gradient
FINE = dict.fromkeys(SEEN, EXACT)  # the runs in float64 of a bug of any precision
TIMEOUT = 300.0  # seconds for one bug's runs; they usually take a few

Counted = dict[str, Any]  # what a run counted: `minidist/bugs/probe.py`


class Noticed(NamedTuple):
    """What a check found. step: the first at which it differs, or 0 if the check sees nothing."""

    step: int
    found: str  # in a few words


NOTHING = Noticed(0, "")


# ---- the runs of a bug -----------------------------------------------------------------------------------------------


def runs_of(bug: Bug) -> dict[str, ProbedRun]:
    """By name, all runs on ranks that the checks need."""

    def run(
        *options: str, steps: int = STEPS, layout: str = bug.layout, ranks: int = bug.ranks, **how: Any
    ) -> ProbedRun:
        return ProbedRun(
            bug.chapter, " ".join((MODEL, f"--steps {steps}", bug.options, layout, *options)), ranks, **how
        )

    exact = "--precision fp64"
    other_layout = bug.layout.replace(f"--ep {bug.ranks}", f"--ep {bug.other}")
    runs = {
        "as trained": run(f"--precision {bug.precision}"),
        "exact": run(exact),
        "other": run(exact, steps=FEW, layout=other_layout, ranks=bug.other),
        "own rows": run(f"--precision {bug.precision}", steps=FEW, own_rows=True),
        "resumed": run(exact, steps=FEW, resume_at=FEW // 2),
        "proved": run(f"--precision {bug.precision}", steps=FEW, prove=True),
        "typed": run(exact, steps=1, types=True),
    }
    if bug.adam:
        runs["sgd"] = run(f"--precision {bug.precision}", SGD)
    if bug.micro:
        runs["micro"] = run(exact, f"{micro_option(bug)} {bug.micro}", steps=FEW)
    return runs


def serial_runs_of(bug: Bug) -> dict[str, ProbedRun]:
    """By name, the runs of serial training that a bug's runs are compared with."""
    chosen = micro_batches(bug)

    def run(*options: str) -> ProbedRun:
        return ProbedRun("train", " ".join((MODEL, f"--steps {STEPS}", bug.options, chosen, *options)))

    return {
        "serial": run(f"--precision {bug.precision}"),
        "serial exact": run("--precision fp64"),
        "serial sgd": run(f"--precision {bug.precision}", SGD),
    }


def micro_option(bug: Bug) -> str:
    """The option for the number of micro-batches: a pipeline has another name for it."""
    return "--micro-batches" if bug.chapter == "pipeline" else "--accumulate"


def micro_batches(bug: Bug) -> str:
    """The option that gives serial training as many micro-batches as the bug's runs have."""
    words = bug.layout.split()
    return f"--accumulate {words[words.index('--micro-batches') + 1]}" if "--micro-batches" in words else ""


def perform(edits: Iterable[Edit], runs: dict[str, ProbedRun]) -> dict[str, Counted]:
    """Perform runs in a copy of the package with these changes."""
    with changed_copy(edits) as folder:
        try:
            done = processes.run(
                [sys.executable, "-m", "minidist.bugs.probe"],
                TIMEOUT,
                json.dumps([asdict(run) for run in runs.values()]),
                cwd=folder,
                env={**os.environ, **python_in(folder)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            done.check_returncode()
        except subprocess.SubprocessError as error:
            raise Stopped(f"runs in a copy of the package did not come to their end: {error}") from None
    return dict(zip(runs, json.loads(done.stdout), strict=True))


@cache
def broken(bug: Bug) -> dict[str, Counted]:
    """All runs on ranks of the broken program."""
    return perform([*bug.given, *bug.change], runs_of(bug))


@cache
def healthy(bug: Bug) -> dict[str, Counted]:
    """All runs of the healthy program with which the broken one is compared."""
    runs = runs_of(bug)
    return perform(bug.given, {name: runs[name] for name in ("as trained", "exact")} | serial_runs_of(bug))


# ---- the checks ------------------------------------------------------------------------------------------------------


def compare_losses(name: str, truth: str, tolerance: Mapping[str, float]) -> "Judge":
    """A judge that compares a run's loss after its last step with another run's, which may be longer, at that step.
    tolerance: by precision."""

    def judge(bug: Bug, found: dict[str, Counted], right: dict[str, Counted]) -> Noticed:
        other = {**right, **found}[truth]
        if "error" in other:
            return Noticed(1, other["error"])
        losses, true = found[name]["losses"], other["losses"]
        off = [abs(x / y - 1) for x, y in zip(losses, true, strict=False)]
        if within(off[-1], tolerance[bug.precision]):
            return NOTHING
        step = next(i for i, each in enumerate(off, start=1) if not within(each, tolerance[bug.precision]))
        return Noticed(step, f"{losses[-1]:.6g}, not {true[len(losses) - 1]:.6g}")

    return judge


def within(difference: float, tolerance: float) -> bool:
    """Whether a difference is within the tolerance: no, if it is not a number."""
    return difference <= tolerance


def compare_gradients(bug: Bug, found: dict[str, Counted], right: dict[str, Counted]) -> Noticed:
    gradients, true = found["exact"]["gradients"], right["serial exact"]["gradients"]
    wrong = [name for name in true if not within(distance(gradients[name], true[name]), EXACT)]
    return Noticed(1, f"{len(wrong)} of {len(true)} parameters") if wrong else NOTHING


def distance(x: Sequence[float], y: Sequence[float]) -> float:
    """The distance between two arrays, relative to the norm of the second one."""
    return math.dist(x, y) / (math.hypot(*y) or 1.0)


def compare_norms(bug: Bug, found: dict[str, Counted], right: dict[str, Counted]) -> Noticed:
    norms, [true] = found["exact"]["norms"], right["serial exact"]["norms"]
    wrong = [norm for norm in norms if not within(abs(norm / true - 1), EXACT)]
    return Noticed(1, f"{wrong[0]:.4g}, not {true:.4g}") if wrong else NOTHING


def compare_bytes(bug: Bug, found: dict[str, Counted], right: dict[str, Counted]) -> Noticed:
    """In float64 and, because a type may be wrong in other precisions alone, as trained."""
    both = [compare_counts(found[name]["bytes"], right[name]["bytes"]) for name in ("exact", "as trained")]
    return next(filter(any, both), NOTHING)


def compare_memory(bug: Bug, found: dict[str, Counted], right: dict[str, Counted]) -> Noticed:
    return compare_counts(found["exact"]["memory"], right["exact"]["memory"])


def compare_counts(found: list[dict[str, int]], right: list[dict[str, int]]) -> Noticed:
    """Compare the bytes of each rank, by phase or by kind."""
    for counted, true in zip(found, right, strict=True):
        for name in {**true, **counted}:
            if counted.get(name, 0) != true.get(name, 0):
                return Noticed(1, f"{name}: {counted.get(name, 0):,}, not {true.get(name, 0):,}")
    return NOTHING


def prove(bug: Bug, found: dict[str, Counted], right: dict[str, Counted]) -> Noticed:
    """What of the run's numbers is not what one process of the same program finds."""
    unproved = found["proved"]["unproved"]
    return Noticed(1, ", ".join(name.removeprefix("proof: ") for name in unproved)) if unproved else NOTHING


def look_at_types(bug: Bug, found: dict[str, Counted], right: dict[str, Counted]) -> Noticed:
    alarms = found["typed"]["alarms"]
    return Noticed(1, alarms[0]) if alarms else NOTHING


def compare_copies(bug: Bug, found: dict[str, Counted], right: dict[str, Counted]) -> Noticed:
    off, name = found["own rows"]["copies"]
    return NOTHING if off == 0 else Noticed(FEW, f"{name}: {off:.2g}")


Judge = Callable[[Bug, dict[str, Counted], dict[str, Counted]], Noticed]


@dataclass(frozen=True)
class Check:
    """A column of the table."""

    short: str  # its heading
    title: str
    run: str  # the run that it judges
    judge: Judge
    truth: str = ""  # the run that it compares this one with
    steps: str = "all"  # as far as it needs them: "a step"


def of_losses(short: str, title: str, run: str, truth: str, tolerance: Mapping[str, float]) -> Check:
    return Check(short, title, run, compare_losses(run, truth, tolerance), truth)


STEP = "a step"
CHECKS = (
    of_losses("loss", "loss after 20 steps, as trained", "as trained", "serial", SEEN),
    of_losses("f64", "the same, in float64", "exact", "serial exact", FINE),
    Check("grad", "gradients, against serial training", "exact", compare_gradients, "serial exact", STEP),
    Check("norm", "norm of the gradient", "exact", compare_norms, "serial exact", STEP),
    Check("sent", "bytes sent, by phase", "exact", compare_bytes, "", STEP),
    Check("mem", "memory held, by kind", "exact", compare_memory, "", STEP),
    of_losses("sgd", "loss as trained, but with SGD and no clipping", "sgd", "serial sgd", WITH_SGD),
    of_losses("N", "same losses, other rank counts", "other", "exact", FINE),
    of_losses("m", "same losses, other micro-batches", "micro", "exact", FINE),
    Check("copy", "equal copies, rows by a seed each", "own rows", compare_copies),
    of_losses("load", "same losses, after a checkpoint", "resumed", "exact", FINE),
    Check("proof", "the proof that a run begins with", "proved", prove, "", STEP),
    Check("types", "types of distribution, in one forward", "typed", look_at_types),
)


def judge(bug: Bug, found: dict[str, Counted], right: dict[str, Counted]) -> dict[str, Noticed]:
    """Each check's verdict on a program's runs; right: the healthy program's runs. A run that fails is noticed."""
    verdicts = {}
    for check in CHECKS:
        if check.run not in found:
            verdicts[check.short] = NOTHING
        elif "error" in found[check.run]:
            verdicts[check.short] = Noticed(1, found[check.run]["error"])
        else:
            verdicts[check.short] = check.judge(bug, found, right)
    return verdicts


def costs(bug: Bug) -> dict[str, Cost]:
    """What each check costs: the runs that it needs."""
    runs, found = {**healthy(bug), **broken(bug)}, {}
    for check in CHECKS:
        of: list[Any] = [runs.get(name, {}).get("cost") for name in (check.run, check.truth) if name]
        if all(of):  # it was asked, and no run failed
            parts = [Cost(*each[check.steps]) for each in of]
            parts += [Cost(*of[0]["to collect"])] if check.short == "grad" else []
            found[check.short] = Cost(sum(part.seconds for part in parts), sum(part.bytes for part in parts))
    return found


def mean(costs: Sequence[Cost]) -> Cost:
    return Cost(round(sum(c.seconds for c in costs) / len(costs), 3), sum(c.bytes for c in costs) // len(costs))


def noticed(bug: Bug) -> dict[str, Noticed]:
    """Each check's verdict on the bug."""
    return judge(bug, broken(bug), healthy(bug))


def false_alarms(bug: Bug) -> dict[str, Noticed]:
    """The checks that alarm on the healthy program: there should be none."""
    right = healthy(bug)
    found = perform(bug.given, {name: run for name, run in runs_of(bug).items() if name not in right}) | right
    return {name: verdict for name, verdict in judge(bug, found, right).items() if verdict != NOTHING}
