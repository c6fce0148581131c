"""Pipelines on ranks, against serial training and against the papers' equations for delayed gradients."""

import itertools
import json
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from closeness import check_close, check_equal, largest_difference
from jobs import engines, pipelines
from minidist.engine import Engine
from minidist.nn.layers import Batch, Unit
from minidist.nn.tensor import Array, Tape
from minidist.pp.schedules import SCHEDULES
from minidist.pp.watch import simulate
from programs import run_module
from ranks import launch
from tables import table

RANKS = (1, 2, 3, 4)
MODELS = ("gpt", "gpt untied", "llama tied", "llama untied")
STEPS = 2
LAYERS = 6  # 8 units: enough for 4 stages of 2 chunks
WITH_FLUSH = [name for name, schedule in SCHEDULES.items() if schedule.flushes]


def case(schedule: str, model: str, m: int, **more: Any) -> dict[str, Any]:
    usual = {"precision": "fp64", "optimizer": "sgd", "clip": 0.5, "steps": STEPS, "layers": LAYERS}
    return {"schedule": schedule, "model": model, "m": m, **usual, **more}


def synchronous(n: int) -> dict[str, dict[str, Any]]:
    """Every schedule with every model, and what else there is, with some; on many ranks less of it."""
    if n > 4:
        return {
            "1f1b": case("1f1b", "gpt", 6, optimizer="adamw"),
            "gpipe": case("gpipe", "gpt untied", 4, recompute="full"),
            "zb-h2": case("zb-h2", "llama tied", 12),
        }
    cases: dict[str, dict[str, Any]] = {}
    for schedule, model in itertools.product(WITH_FLUSH, MODELS):
        if n % 2 and schedule in ("chimera", "dualpipe"):
            continue
        m = {"interleaved": 12 // n * n if n != 1 else 4, "chimera": n, "dualpipe": 12, "dualpipe-v": 12}.get(
            schedule, 6
        )
        chunks = {"chunks": 2} if SCHEDULES[schedule].chunks == 2 else {}
        recompute = "full" if (len(cases) + len(cases) // 4) % 2 else "none"
        optimizer = "adamw" if len(cases) % 3 == 0 else "sgd"
        name = f"{schedule}, {model}, {recompute}"
        cases[name] = case(schedule, model, m, recompute=recompute, optimizer=optimizer, **chunks)
    if n <= 2:
        cases["interleaved, 4 chunks"] = case("interleaved", "gpt", 4, chunks=4)
    cases["selective"] = case("zb-h1", "gpt", 6, recompute="selective")
    cases["mixed"] = case("1f1b", "gpt", 6, precision="mixed", optimizer="adamw")
    return cases


def slow(n: int, name: str) -> bool:
    """In every run each schedule meets another model on two, three and four ranks; with -m slow every model, and on one
    rank."""
    if n == 1:
        return name != "mixed"
    if n > 4 or name in ("interleaved, 4 chunks", "selective", "mixed"):
        return n == 8
    schedule, model = (synchronous(n)[name][kind] for kind in ("schedule", "model"))
    return (WITH_FLUSH.index(schedule) + MODELS.index(model) + n) % 4 > 0


@cache
def in_one_job(n: int, later: bool) -> list[dict[str, Any]]:
    cases = {name: case for name, case in synchronous(n).items() if slow(n, name) == later}
    if n == 3 and not later:
        cases |= ASYNCHRONOUS | {"one buffer": case("gpipe", "gpt", 6, **{"one buffer": True})}
    return launch("jobs.pipelines:train_all", n, cases, timeout=240).values


def on_ranks(n: int, name: str) -> list[Any]:
    """What each rank found in a case."""
    later = name in synchronous(n) and slow(n, name)
    return [found[name] for found in in_one_job(n, later)]


@cache
def serial(model: str, precision: str, optimizer: str, m: int, clip: float) -> dict[str, Any]:
    engine = Engine(pipelines.model(model, LAYERS), pipelines.settings(precision, optimizer, m, clip))
    found = engines.follow(engine, map(pipelines.tokens, range(STEPS)))
    return {**found, "validation": engine.evaluate(*pipelines.tokens(99))}


def truth_of(case: dict[str, Any]) -> dict[str, Any]:
    return serial(case["model"], case["precision"], case["optimizer"], case["m"], case["clip"])


EXACT = [
    pytest.param(n, name, marks=[pytest.mark.slow] * slow(n, name), id=f"{n}-{name}")
    for n in (*RANKS, 6, 8)
    for name in synchronous(n)
    if name != "mixed"
]


@pytest.mark.parametrize(("n", "name"), EXACT)
def test_equals_serial_training(n, name):
    found, truth = on_ranks(n, name)[0], truth_of(synchronous(n)[name])
    check_equal(found, truth, "validation")


@pytest.mark.parametrize("n", RANKS)
def test_mixed_precision_is_close_to_serial_training(n):
    found, truth = on_ranks(n, "mixed")[0], truth_of(synchronous(n)["mixed"])
    check_close(found, truth, gradients=1e-2)


def test_one_receive_buffer_for_all_micro_batches_is_noticed():
    """With it losses are right, and the weights' gradients of a stage all use the last micro-batch's input."""
    found, truth = on_ranks(3, "one buffer")[0], truth_of(case("gpipe", "gpt", 6))
    assert found["losses"][0] == pytest.approx(truth["losses"][0], rel=1e-12)
    assert largest_difference(found["gradients"], truth["gradients"]) > 1e-2


@pytest.mark.parametrize(("n", "name"), EXACT)
def test_clocks_of_ranks_and_of_one_process_agree(n, name):
    given = synchronous(n)[name]
    costs = {"F": 1.0, "B": 1.0, "W": 1.0} | ({"R": 1.0} if given.get("recompute") == "full" else {})
    schedule = SCHEDULES[given["schedule"]]
    at = schedule.places(n, given["m"], given.get("chunks", 1))
    timelines = simulate([(place, schedule.instructions(place)) for place in at], costs)
    for rank, timeline in enumerate(timelines):
        spans = [(s.letter, s.start, s.end, s.micro_batch, s.chunk) for s in timeline.spans]
        assert [tuple(span) for span in on_ranks(n, name)[rank]["spans"]] == spans


# ---- delayed gradients -----------------------------------------------------------------------------------------------

UPDATES = 7
DELAYED: dict[str, Any] = {"clip": 0.0, "steps": UPDATES, "layers": 3}  # 5 units
ASYNCHRONOUS = {
    "pipedream": case("pipedream", "gpt untied", 1, **DELAYED),
    "pipedream llama": case("pipedream", "llama untied", 1, **DELAYED, recompute="full"),
    "pipedream 2,1": case("pipedream", "gpt untied", 2, **DELAYED, replicas=[2, 1]),
    "pipedream 1,2": case("pipedream", "gpt untied", 4, **DELAYED, replicas=[1, 2]),
    "vertical-sync": case("vertical-sync", "gpt untied", 1, **DELAYED),
    "2bw": case("2bw", "gpt untied", 4, **DELAYED),
    "2bw llama": case("2bw", "llama untied", 3, **DELAYED, recompute="full"),
}
Weights = dict[str, Array]


def gradient(units: list[Unit], weights: Weights, batch: Batch, share: float) -> tuple[float, Weights]:
    """f and ∇f for one micro-batch, of the weights given by name."""
    parameters = [parameter for unit in units for parameter in unit.parameters]
    slopes = {parameter.name: np.zeros(parameter.shape) for parameter in parameters}
    for parameter in parameters:
        parameter.bind(weights[parameter.name], slopes[parameter.name])
    tapes, h = [Tape() for _ in units], batch.tokens
    for unit, tape in zip(units, tapes, strict=True):
        h = unit(tape.tensor(h), batch).data
    dh: Any = np.asarray(share)
    for tape in reversed(tapes):
        dh = tape.backward(dh)
    return float(h) * share, slopes


def version_used(given: dict[str, Any], stage: int, k: int, stages: int) -> int:
    """The t of W^(t) that stage (from 0) of n uses for micro-batch k (from 0), by the papers.

    PipeDream: w_i^(t-n+i) for the t-th minibatch, i from 1; with vertical sync w^(t-n+1) on all stages; not below 0.
    2BW: max(⌊(k-1)/m⌋ - 1, 0) for k from 1. Replicas: by going through 1F1B-RR one micro-batch after the other.
    """
    if given["schedule"] == "2bw":
        return max(k // given["m"] - 1, 0)
    if "replicas" not in given:
        return max(k - (stages - 1) + (stage if given["schedule"] == "pipedream" else 0), 0)
    replicas = given["replicas"]
    mine = range(k % replicas[stage], k + 1, replicas[stage])
    finished, room = 0, -(-sum(replicas[stage:]) // replicas[stage])
    for taken_in in range(len(mine)):
        if taken_in - finished == room:
            finished += 1
    return finished * replicas[stage] // given["m"]


def delayed(given: dict[str, Any], stages: int) -> dict[str, Any]:
    """The serial loop: W^(t+1) = W^(t) - ν v, with v the momentum of ∇f at each stage's own, older weights."""
    units = pipelines.model(given["model"], given["layers"])
    parts = [[units[i] for i in part] for part in pipelines.cut(units, stages)]
    stage_of = {p.name: i for i, part in enumerate(parts) for unit in part for p in unit.parameters}
    start = {p.name: p.initial(5) for unit in units for p in unit.parameters}
    history, velocity = [start], {name: np.zeros_like(w) for name, w in start.items()}
    m, losses = given["m"], []
    for t in range(given["steps"]):
        x, y = pipelines.tokens(t)
        workers = {name: given.get("replicas", [1] * stages)[s] for name, s in stage_of.items()}
        sums = {name: np.zeros((workers[name], *w.shape)) for name, w in start.items()}  # of each worker of the stage
        loss = 0.0
        for i, rows in enumerate(np.split(np.arange(len(x)), m)):
            seen = {name: history[version_used(given, s, t * m + i, stages)][name] for name, s in stage_of.items()}
            value, slopes = gradient(units, seen, Batch(x[rows], y[rows], key=(5, t, i)), 1 / m)
            loss += value
            for name, r in workers.items():
                sums[name][(t * m + i) % r] += slopes[name]
        lr = 1e-1 / (t + 1)
        velocity = {name: v * 0.9 + sum(sums[name]) for name, v in velocity.items()}
        history.append({name: w - lr * velocity[name] for name, w in history[-1].items()})
        losses.append(loss)
    return {"losses": losses, "parameters": history[-1]}


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_equals_the_delayed_gradient_equation_to_the_last_bit(name):
    given = ASYNCHRONOUS[name]
    found, truth = on_ranks(3, name)[0], delayed(given, len(given.get("replicas", (1, 1, 1))))
    for parameter, values in truth["parameters"].items():
        np.testing.assert_array_equal(found["parameters"][parameter], values, err_msg=parameter)
    np.testing.assert_allclose(found["losses"], truth["losses"], rtol=1e-14)


def test_delays_matter():
    """Otherwise the test above would say nothing."""
    given = ASYNCHRONOUS["pipedream"]
    undelayed = delayed({**given, "schedule": "pipedream"}, stages=1)
    assert largest_difference(on_ranks(3, "pipedream")[0]["parameters"], undelayed["parameters"]) > 1e-3


# ---- the chapter -----------------------------------------------------------------------------------------------------

SMALL = "--layers 3 --width 16 --heads 2 --context 8"
LINES = table(__file__, "lines")  # what is counted by hand: ranks, options. All claims of each hold in test_lines.py


@cache
def report(name: str) -> dict[str, Any]:
    ranks, options = LINES[name]
    line = f"pipeline {options} {SMALL.replace('--layers 3 ', '') if '--layers' in options else SMALL}"
    with TemporaryDirectory() as folder:
        found: dict[str, Any] = launch("jobs.chapters:command_lines", ranks, [line], folder).values[0][line]
    assert found["status"] == 0
    return found


def counted(name: str, claim: str) -> float:
    (found,) = [c["counted"] for c in report(name)["claims"] if c["claim"] == claim]
    return found


def test_counts_by_hand():
    """3 stages, 16 sequences of 8 tokens of width 16, 8 micro-batches."""
    assert counted("1f1b", "idle / all time") == 2 / 10
    assert counted("1f1b", "idle / work") == 2 / 8
    assert counted("interleaved", "idle / work") == 2 / 6 / 2
    assert counted("1f1b", "activations sent") == 16 * 8 * 16 * 2  # two bytes in mixed precision
    assert counted("interleaved", "activations sent") == 2 * 12 * 8 * 16 * 2
    assert counted("1f1b", "in flight") == 3
    assert counted("gpipe", "in flight") == 8
    assert counted("gpipe-again", "with activations") == 1
    last = report("zb-h2-again")["counted"][2]
    assert last["with_activations"] == 5  # the one whose backward is under way, and four that wait for W
    assert counted("pipedream", "weight versions") == 3
    assert counted("2bw", "weight versions") == 2
    assert counted("1f1b", "weight versions") == 1
    assert counted("2bw", "version, every k") == 4  # the sixth and last update's


def test_counts_of_folds_and_crosses_by_hand():
    """3 stages in a V, 4 in a cross, 8 micro-batches of 2 sequences; of Chimera 4 of 4."""
    message = 2 * 8 * 16 * 2
    assert all_sent("zb-v", "activations") == [8 * message, 2 * 8 * message, 8 * message]
    assert sum(all_sent("zb-v", "activations")) == 2 * sum(all_sent("1f1b", "activations")) == 2 * 2 * 8 * message
    assert sum(all_sent("dualpipe", "gradients")) == 3 * 8 * message  # as much as with 1F1B
    assert counted("zb-v", "idle, in T_F") == 0
    assert counted("v-half", "idle, in T_F") == 6
    assert counted("v-min", "idle, in T_F") == 8
    assert counted("dualpipe", "idle, in T_F") == 2
    assert counted("dualpipe-v", "idle, in T_F") == 4
    assert counted("chimera", "idle, N = D") == 4
    assert counted("chimera-more", "idle, N > D") == 5
    assert [rank["in_flight"] for rank in report("chimera-more")["counted"]] == [4, 4, 4, 4]
    assert [rank["in_flight"] for rank in report("chimera")["counted"]] == [3, 4, 4, 3]
    assert [rank["in_flight"] for rank in report("dualpipe")["counted"]] == [5, 5, 5, 5]
    assert [rank["in_flight"] for rank in report("zb-v")["counted"]] == [6, 6, 6]
    psi = report("1f1b")["parameters"]
    assert sum(rank["parameters"] for rank in report("dualpipe")["memory"]) == 2 * 2 * psi
    assert sum(rank["parameters"] for rank in report("v-half")["memory"]) == 2 * report("v-half")["parameters"]


def all_sent(name: str, phase: str) -> list[int]:
    return [sent.get(phase, {"bytes": 0})["bytes"] for sent in report(name)["sent"]]


@pytest.mark.parametrize(("before", "after"), table(__file__, "goes_on_from_a_checkpoint"))
def test_goes_on_from_a_checkpoint(before, after, tmp_path):
    """Two steps on 3 stages, saved, and two more on 2 stages: as four steps at once."""
    line = f"{SMALL} --precision fp64 --lr 1e-3 --min-lr 1e-3 --warmup 0"
    first = f"pipeline {line} --steps 2 --save {tmp_path}/run --schedule {before}"
    assert launch("jobs.chapters:command_lines", 3, [first], str(tmp_path)).status == "ok"
    rest = f"pipeline {line} --steps 4 --load {tmp_path}/run --schedule {after}"
    whole = f"pipeline {line} --steps 4 --layers {4 if 'layers' in after else 3}"
    found = launch("jobs.chapters:command_lines", 2, [rest, whole], str(tmp_path)).values[0]
    np.testing.assert_allclose(found[rest]["loss"], found[whole]["loss"][2:], rtol=1e-12)


# ---- training that diverges ------------------------------------------------------------------------------------------

TOO_FAST = "--optimizer sgd --lr 1000 --warmup 0 --clip 0 --steps 50 --layers 6 --width 16 --heads 2 --context 8"


DIVERGING = [f"pipeline --schedule {name} --precision fp32" for name in WITH_FLUSH]
DIVERGING += [f"parallel3d {axes} --precision fp32" for axes in ("--pp 2 --tp 2", "--dp 2 --pp 2 --zero 3", "--tp 4")]
DIVERGING += ["pipeline --precision mixed"]  # at the smallest loss scale


@pytest.mark.parametrize("programs", [DIVERGING[1::2], pytest.param(DIVERGING[::2], marks=pytest.mark.slow)])
def test_divergence_is_one_line_on_every_schedule_with_a_flush_and_every_grid(programs):
    """All ranks have the same norm, and stop together; no message is left on its way."""
    lines = [f"{program} {TOO_FAST}" + " --heads 4" * ("--tp 4" in program) for program in programs]
    job = launch("jobs.pipelines:diverge", 4, lines, timeout=240)
    assert job.values == [[1] * len(lines)] * 4
    first, *others = [rank.stderr for rank in job.ranks]
    assert others == ["", "", ""]
    said = first.splitlines()
    assert len(said) == len(lines)
    assert all(line.startswith("minidist: error: ") and line.endswith(": lower --lr") for line in said)


@pytest.mark.parametrize("name", [name for name, schedule in SCHEDULES.items() if not schedule.flushes])
def test_divergence_of_a_stage_on_its_own_ends_the_job_in_one_line(name):
    done = run_module(f"minidist.pipeline --schedule {name} {TOO_FAST}", 4)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("minidist: error: the gradient of step ")]
    assert lines == done.stderr.splitlines()[:1]
    assert lines[0].endswith(" is not finite: lower --lr")
    assert "Traceback" not in done.stderr
    assert "failed" not in done.stderr


def test_zero_bubble_table_from_ranks():
    rows = launch("jobs.pipelines:table", 8, timeout=120).values[0]
    assert len(rows) == 18
    for row in rows:
        assert set(row) == {"model", "p", "m", "schedule", "bubble", "printed", "holds"}
        assert round(row["bubble"], 4) == row["printed"], row
        assert row["holds"]
    assert json.loads(json.dumps(rows)) == rows
