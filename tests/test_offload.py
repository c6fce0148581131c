"""ZeRO-Offload on 1 to 4 ranks, to host memory and (ZeRO-Infinity) on to a disk: the numbers of training without it,
late updates, and what goes over the link."""

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import engines, offloads
from minidist import offload
from minidist.engine import Engine
from minidist.memory.pool import Pool
from minidist.nn.flat import Flat
from minidist.nn.optim import SGD, AdamW, InThreads
from ranks import launch

RANKS = (1, 2, 3, 4)
SHAPE = "--layers 1 --width 16 --heads 2 --context 8 --batch 8"

# ---- the same numbers ------------------------------------------------------------------------------------------------


MODES = ("none", "selective", "full")
ACCUMULATE = (1, 3)


@cache
def matrix(n: int, chapter: str, *ways: tuple[str, int]) -> dict[str, Any]:
    return launch("jobs.offloads:matrix", n, chapter, ways, timeout=280).values[0]


@cache
def serial(model: str, mode: str, accumulate: int) -> dict[str, Any]:
    return offloads.train(Engine, model, "fp64", mode, accumulate)


SOME = (("none", 3), ("selective", 1))  # the others, and other numbers of ranks, with -m slow


@pytest.mark.parametrize(("mode", "accumulate"), SOME)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_it_trains_as_without_offloading(stage: int, mode: str, accumulate: int) -> None:
    check_numbers(matrix(4, "offload", *SOME), "offload", stage, mode, accumulate)


@pytest.mark.slow
@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("accumulate", ACCUMULATE)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_it_trains_as_without_offloading_in_every_mode(stage: int, mode: str, accumulate: int, n: int) -> None:
    check_numbers(matrix(n, "offload", *itertools.product(MODES, ACCUMULATE)), "offload", stage, mode, accumulate)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_it_trains_as_without_files(stage: int) -> None:
    check_numbers(matrix(2, "infinity", ("full", 3)), "infinity", stage, "full", 3)


@pytest.mark.slow
@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("accumulate", ACCUMULATE)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_files_change_no_number(stage: int, mode: str, accumulate: int, n: int) -> None:
    check_numbers(matrix(n, "infinity", *itertools.product(MODES, ACCUMULATE)), "infinity", stage, mode, accumulate)


def check_numbers(found: dict[str, Any], chapter: str, stage: int, mode: str, accumulate: int) -> None:
    """Bit for bit in mixed precision, where sums have one order: with several micro-batches stages 2 and 3 sum over
    ranks first, as ZeRO-2 does, data parallelism and stage 1 over micro-batches. And serial training's in float64."""
    alike = "zero2" if stage > 1 and accumulate > 1 else "data_parallel"
    for model in ("gpt", "gpt untied"):
        mine, other = (found[f"{name}, {model}, mixed, {mode}, {accumulate}"] for name in (f"{chapter} {stage}", alike))
        assert mine["losses"] == other["losses"]
        for name, array in other["parameters"].items():
            np.testing.assert_array_equal(mine["parameters"][name], array, err_msg=name)
        exact, truth = found[f"{chapter} {stage}, {model}, fp64, {mode}, {accumulate}"], serial(model, mode, accumulate)
        np.testing.assert_allclose(exact["losses"], truth["losses"], rtol=1e-12, atol=0)
        for name, array in truth["parameters"].items():
            np.testing.assert_allclose(exact["parameters"][name], array, rtol=1e-9, atol=1e-12, err_msg=name)


# ---- late updates ----------------------------------------------------------------------------------------------------

DELAYED = [
    *((stage, "fp64", after, 1.0) for stage in (1, 2, 3) for after in (0, 3, offloads.STEPS)),
    (2, "mixed", 2, 65536.0),
    (3, "mixed", 0, 65536.0),
    (2, "mixed", 0, 2.0**22),  # the first steps overflow
    (2, "mixed", 1, 2.0**22),
    (1, "fp32", 1, 1.0),
]


@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4))])
def test_late_updates_are_those_of_a_serial_loop(n: int) -> None:
    for case, found in zip(DELAYED, launch("jobs.offloads:delayed", n, DELAYED, timeout=120).values[0], strict=True):
        truth = offloads.serial_delayed(*case[1:])
        others = [key for key in truth if key != "losses"]
        assert [found[key] for key in others] == [truth[key] for key in others], case
        assert truth["late"] is (case[2] < offloads.STEPS)
        if n == 1:
            assert found["losses"] == truth["losses"], case
        else:
            rtol = {"fp64": 1e-11, "fp32": 1e-5, "mixed": 5e-3}[case[1]]
            np.testing.assert_allclose(found["losses"], truth["losses"], rtol=rtol, err_msg=str(case))


def test_a_late_update_is_late() -> None:
    """One step behind, and only from where it is asked for: else the test above compares nothing with nothing."""
    on_time = offloads.serial_delayed("fp64", offloads.STEPS, 1.0)["losses"]
    late = offloads.serial_delayed("fp64", 3, 1.0)["losses"]
    assert late[:4] == on_time[:4]  # the fourth step's gradient is the first that waits
    assert all(one != other for one, other in zip(late[4:-1], on_time[4:-1], strict=True))


def test_what_fails_beside_the_passes_ends_the_step() -> None:
    assert launch("jobs.offloads:breaks", 2).values == ["step 2: out of memory in a thread"] * 2


def test_overlap_on_the_clock(tmp_path: Path) -> None:
    """Passes of 3 units of time a micro-batch for each unit of the model, an update of 4: what is longer counts."""
    line = f"offload {SHAPE} --steps 4 --precision fp32 --accumulate"
    times = {f"{line} {a}": 3 * (3 * a + 4) for a in (1, 2)}
    times |= {f"{line} {a} --delayed-update 1": 3 * max(3 * a, 4) for a in (1, 2)}
    reports = launch("jobs.chapters:command_lines", 1, list(times), str(tmp_path)).values[0]
    for line, expected in times.items():
        (claim,) = [claim for claim in reports[line]["claims"] if claim["claim"] == "time of a step"]
        assert claim["expected"] == claim["counted"] == expected


# ---- the link --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
def test_a_step_that_overflows_brings_nothing_up(n: int) -> None:
    for steps in launch("jobs.offloads:overflow", n).values:
        assert [updated for updated, _ in steps] == sorted(updated for updated, _ in steps)
        assert steps[0][0] is False
        assert steps[-1][0] is True
        for updated, moved in steps:
            assert list(moved) == ["device to host", "host to device"][: 1 + updated]
            assert moved == steps[-1][1] if updated else moved["device to host"] == steps[-1][1]["device to host"]


# ---- the update, in threads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.1), SGD(), SGD(momentum=0.9, weight_decay=0.1)])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 1000, 32_768, 32_769, 150_001])
def test_threads_change_no_bit(size: int, threads: int, optimizer: Any) -> None:
    draw = np.random.default_rng(size)
    rooms = [np.empty(32_768, np.float32) for _ in range(threads)]
    start = draw.standard_normal(size).astype(np.float32)
    mine, other = start.copy(), start.copy()
    states = [[np.zeros(size, np.float32) for _ in range(optimizer.moments)] for _ in range(2)]
    several = InThreads(optimizer, rooms)
    assert several.moments == optimizer.moments
    for step in range(1, 4):
        grad = draw.standard_normal(size).astype(np.float16)
        how: dict[str, Any] = {"scale": 0.5, "lr": 1e-2, "step": step, "decayed": size // 2}
        several.update(mine, grad, states[0], **how)
        optimizer.update(other, grad, states[1], **how)
    np.testing.assert_array_equal(mine, other)
    np.testing.assert_array_equal(states[0], states[1])
    assert size == 0 or (mine != start).any()


def test_a_failure_in_a_thread_is_raised() -> None:
    class Fails:
        moments = 0

        def update(self, param: Any, *_: Any, **__: Any) -> None:
            if param[0] == 1:
                raise LookupError("the second part")

    parts = np.repeat(np.arange(2, dtype=np.float32), 32_768)
    several = InThreads(Fails(), [np.empty(32_768, np.float32)] * 2)
    with pytest.raises(LookupError, match="the second part"):
        several.update(parts, parts, [], scale=1, lr=1, step=1, decayed=0)


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_an_engine_that_is_dropped_leaves_nothing() -> None:
    """Neither threads nor a late update keep its arrays."""

    class Alone:
        rank, size = 0, 1

    pools: list[Pool] = []

    def once() -> None:
        engine = offload.Offload(engines.model("gpt"), engines.settings("fp32", "adamw", 1, 0.5), Alone(), threads=2)  # type: ignore[arg-type]
        pools.extend(engine.pools)
        assert all(isinstance(flat, Flat) for flat in engine.flats)
        assert engine.host.held["optimizer"] > 0

    once()
    assert [pool.held["all"] for pool in pools] == [0, 0]


# ---- the command line ------------------------------------------------------------------------------------------------


def test_a_run_with_late_updates_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """A checkpoint waits for the update that is under way; from there both runs are the same."""
    base = f"offload {SHAPE} --precision fp64 --warmup 0 --min-lr 0.003 --delayed-update 1"
    save = tmp_path / "run"
    lines = [f"{base} --steps 8 --save {save} --save-every 4", f"{base} --steps 8 --load {save}/step000004"]
    whole, rest = launch("jobs.chapters:command_lines", 2, lines, str(tmp_path)).values[0].values()
    assert rest["loss"] == whole["loss"][4:]
    assert rest["validation_loss"] == whole["validation_loss"]
