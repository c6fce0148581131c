"""The pool and NumPy's own account: they agree in every chapter, and do not where something is kept in secret."""

import gc
import itertools
import tracemalloc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from cases import TRAINING, unnamed
from jobs import engines
from minidist.engine import Engine
from minidist.launch.launcher import launch
from minidist.memory import witness
from minidist.memory.witness import SLACK, MemoryWitness
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit
from minidist.nn.tensor import Array
from sampling import shard_of_this_run
from tables import table

# ---- every chapter and schedule --------------------------------------------------------------------------------------

# In every run some lines on two ranks; with -m slow all of them, on one to four.
RANKS = pytest.mark.parametrize(
    ("n", "everything"), [(2, False), *(pytest.param(n, True, marks=pytest.mark.slow) for n in range(1, 5))]
)
SHAPE = "--steps 2 --width 24 --heads 12 --context 24 --batch 12"
TWO = f"{SHAPE} --layers 2"
ALIKE = ("data_parallel", "zero1", "zero2", "zero3", "offload")  # the same arithmetic, around which memory differs
WITH_FLUSH = ("naive", "gpipe", "1f1b", "zb-h1", "zb-h2")


def deep(n: int) -> str:
    """What has units and micro-batches enough for n stages."""
    return f"{SHAPE} --layers {max(2, n)} --micro-batches {3 if n == 1 else 6}"


def lines(n: int) -> list[str]:
    """Every chapter and schedule, and what else there is, with some."""
    listed = [line for ranks, line in table(__file__, "lines") if n in ranks]
    made = [line.replace("DEEP", deep(n)).replace("TWO", TWO).replace("SHAPE", SHAPE) for line in listed]
    every = [line for _, line in table(__file__, "lines")]
    return made + [line for ranks, line in unnamed(every) if ranks == n and TRAINING[line.split()[0]].pooled]


def compared(n: int, everything: bool) -> tuple[list[str], list[str]]:
    """The engines, and the schedules, whose scratch at the peak must be the same; or every other one of them."""
    every = 1 if everything else 2
    engines_alike = [f"{name} {TWO} --precision mixed" for name in ALIKE[::every]]
    schedules = WITH_FLUSH[every - 1 :: every]
    return engines_alike, [f"pipeline --schedule {name} {deep(n)} --precision mixed" for name in schedules]


@cache
def reports(n: int, everything: bool) -> dict[str, Any]:
    some = lines(n) if everything else shard_of_this_run(lines(n), 10)
    chosen = [*dict.fromkeys([*itertools.chain(*compared(n, everything)), *some])]
    with TemporaryDirectory() as folder:
        watched = [f"{line} --witness" for line in chosen]
        found = launch("jobs.chapters:command_lines", n, watched, folder, timeout=400).values[0]
    return {line: found[f"{line} --witness"] for line in chosen}


@RANKS
def test_nothing_is_unnamed_at_any_boundary(n: int, everything: bool) -> None:
    for line, report in reports(n, everything).items():
        for rank in report["counted"]:
            seen = rank["witness"]
            assert seen["unnamed"] == {}, line
            assert seen["boundaries"] >= 2 * 3, line  # of 2 steps
            assert seen["scratch"] > 0, line
        assert report["status"] == 0, (line, [claim for claim in report["claims"] if not claim["holds"]])
        assert "agrees with NumPy" in [claim["claim"] for claim in report["claims"]], line


PYTHONS = 16_384  # bytes: by so much Python's own objects, which are of the same trace, may differ within one unit


@RANKS
def test_at_its_peak_one_operations_scratch_is_unnamed_whatever_the_strategy(n: int, everything: bool) -> None:
    """It depends on shapes alone: those of a rank's rows, or of a micro-batch."""
    for lines_alike in compared(n, everything):
        reports_alike = [reports(n, everything)[line] for line in lines_alike]
        for rank in range(n):
            scratch = [report["counted"][rank]["witness"]["scratch"] for report in reports_alike]
            assert max(scratch) - min(scratch) < PYTHONS, scratch


# ---- what is kept in secret ------------------------------------------------------------------------------------------


@pytest.fixture
def traced() -> Iterator[None]:
    """Without the garbage collector: arrays must go when nobody has them, not some time later."""
    steps(Engine(engines.model("gpt"), engines.settings("mixed", "adamw", 1, 1.0)))  # what is made once and for all
    gc.collect()
    gc.disable()
    witness.begin()
    yield
    tracemalloc.stop()
    gc.enable()


def steps(engine: Engine) -> None:
    for step in range(2):
        tokens = np.random.default_rng(step).integers(0, engines.VOCABULARY, (6, engines.CONTEXT + 1))
        engine.backward(engine.forward(tokens[:, :-1], tokens[:, 1:]))
        engine.step()
        del tokens


def watched(make: Any, **options: Any) -> tuple[Engine, dict[str, Any]]:
    settings = engines.settings("mixed", "adamw", 1, 1.0)
    engine = make(engines.model("gpt untied"), settings, **options)
    seen = MemoryWitness(engine.device)
    steps(engine)
    return engine, seen.close()


class KeepsCopies(Engine):
    """Every gradient, once more, where no pool sees it."""

    def collect(self, flat: Flat) -> None:
        super().collect(flat)
        self.private = [*getattr(self, "private", []), flat.grad.copy()]


class KeepsViews(Engine):
    """An element of every unit's gradient as arithmetic has made it."""

    def collect(self, flat: Flat) -> None:
        super().collect(flat)
        assert flat.raw_grad is not None
        self.private = [*getattr(self, "private", []), flat.raw_grad[7:8]]


class KeepsOutputs(Engine):
    """An operation's result, in a cycle that only the collector could take apart."""

    def run_unit(self, unit: Unit, *arguments: Any) -> Array:
        y = super().run_unit(unit, *arguments)
        circle: list[Any] = [y]
        circle.append(circle)
        return y


@pytest.mark.usefixtures("traced")
def test_an_honest_engine_holds_what_it_must_and_nothing_else() -> None:
    engine, seen = watched(Engine)
    assert seen["unnamed"] == {}
    assert seen["boundaries"] == 2 * (2 * 4 + 1)  # 4 units there and back, and the update
    held = engine.device.held
    psi = sum(flat.padded for flat in engine.flats)
    assert {kind: nbytes for kind, nbytes in held.items() if nbytes and " " not in kind and kind != "all"} == {
        "parameters": 2 * psi,
        "gradients": 2 * psi,
        "optimizer": 12 * psi,
    }


@pytest.mark.usefixtures("traced")
def test_a_copy_in_a_private_list_is_found_by_the_witness() -> None:
    engine, seen = watched(KeepsCopies)
    copies = sum(array.nbytes for array in engine.private)  # type: ignore[attr-defined]
    assert abs(max(seen["unnamed"].values()) - copies) < SLACK
    assert len(seen["unnamed"]) == 4 + 9  # from the second backward on: the head's gradient alone is less than SLACK


@pytest.mark.usefixtures("traced")
def test_a_view_in_a_private_list_is_found_by_the_pool() -> None:
    """With all of the array that it is a view of; so the witness agrees."""
    engine, seen = watched(KeepsViews)
    assert seen["unnamed"] == {}
    assert engine.device.held["workspace"] == 2 * 4 * sum(flat.padded for flat in engine.flats)  # float32, of two steps


@pytest.mark.usefixtures("traced")
def test_what_waits_for_the_collector_is_still_held() -> None:
    engine, seen = watched(KeepsOutputs)
    assert seen["unnamed"] == {}
    assert engine.device.held["workspace"] > 2 * 3 * 6 * engines.CONTEXT * 15 * 4  # of 3 units (B, T, C), of two steps
    gc.collect()
    assert engine.device.held["workspace"] == 0


# ---- capacity --------------------------------------------------------------------------------------------------------


def test_zero3_trains_where_data_parallelism_is_out_of_memory() -> None:
    found = launch("jobs.memories:with_capacity", 4, timeout=60).values
    for rank in found:
        assert rank["zero3"] == "trained"
        assert rank["data_parallel"].startswith("out of memory while the model is made: ")
        assert " of optimizer do not fit on the device, which has " in rank["data_parallel"]


def test_the_report_says_where_something_is_unnamed(tmp_path: Path) -> None:
    """The claim falls, the status is 1, and a line names the boundary."""
    (rank,) = launch("jobs.memories:secretive", 1, str(tmp_path), timeout=60).ranks
    assert rank.value == 1
    assert "agrees with NumPy" in rank.stdout
    assert "bytes of arrays that are in no pool" in rank.stdout
