"""Memory, audited by something in which the engines have no part: NumPy reports every array to Python's tracemalloc."""

import json
from functools import cache
from typing import Any

import pytest

from jobs import memories
from jobs.engines import ENGINES
from minidist.launch.launcher import launch
from minidist.nn.layers import count_parameters
from programs import run_module

PRECISIONS = ("mixed", "fp32")
SLACK = 1024  # bytes: a handful of small arrays, such as a random generator's state


@cache
def audits(n: int, precision: str) -> list[dict[str, Any]]:
    """What `jobs.memories.audit` finds on each rank."""
    done = run_module(f"jobs.memories {precision}", n, env={"OPENBLAS_NUM_THREADS": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    everyone: list[dict[str, Any]] = json.loads(done.stdout)
    return everyone


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_an_engine_holds_what_it_says_and_nothing_else(n: int, precision: str) -> None:
    """Between steps: no gathered parameters, no activations, no buckets, and no array that was forgotten."""
    for rank in audits(n, precision):
        assert rank.keys() == {"serial", *ENGINES}
        for name, found in rank.items():
            said = sum(found["said"][kind] for kind in ("parameters", "gradients", "optimizer", "room"))
            assert abs(found["held"] - said) < SLACK, name


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_each_stage_divides_is_missing_from_the_peak_of_a_step(precision: str) -> None:
    """ZeRO's formulas, against the most that Python and NumPy held at any moment of a step, beside data parallelism."""
    n = 4
    psi = count_parameters(memories.model(layers=4, width=48))
    assert psi % n == 0  # so is each unit, of multiples of 48; else there would be padding
    stored, optimizer = (2, 12) if precision == "mixed" else (4, 8)
    # Embedding (tied to the head, which keeps it gathered) and the largest of the others, a block.
    whole_units = (memories.VOCABULARY + memories.CONTEXT) * 48 + 12 * 48 * 48 + 13 * 48
    saved = {
        "zero1": optimizer * psi * (n - 1) // n,
        "zero2": (optimizer + stored) * psi * (n - 1) // n - stored * whole_units,  # but for buckets
        "zero3": (optimizer + 2 * stored) * psi * (n - 1) // n - 2 * stored * whole_units,  # and gathered parameters
    }
    for rank in audits(n, precision):
        for name, expected in saved.items():
            found = rank["data_parallel"]["peak"] - rank[name]["peak"]
            # What a single operation needs in passing, and Python's own objects, are not in the formulas.
            assert abs(found - expected) < 0.1 * expected, name


EMBEDDING = ["embedding gathered", "embedding values"]  # in fp32 both are one array
# What of whole units is alive after each unit of a step's forward and backward, and of an evaluation's forward.
ALIVE: dict[tuple[str, bool, bool], list[list[str]]] = {
    # (precision, tied, keep_last)
    ("fp32", False, False): [[], [], [], *([], [], []), *([], [], [])],
    ("fp32", False, True): [[], [], ["head gathered", "head values"], *([], [], []), *([], [], [])],
    ("mixed", False, True): [[], [], ["head gathered"], *([], [], []), *([], [], [])],
    ("mixed", True, False): [
        *(["embedding gathered"], ["embedding gathered"], []),
        # The head's part of the embedding's gradient waits in the bucket for the embedding's own.
        *(["embedding bucket", "embedding gathered"], ["embedding bucket", "embedding gathered"], []),
        *(["embedding gathered"], ["embedding gathered"], []),
    ],
    ("fp32", True, True): [
        *(EMBEDDING, EMBEDDING, [*EMBEDDING, "head gathered", "head values"]),
        *(["embedding bucket", *EMBEDDING], ["embedding bucket", *EMBEDDING], []),
        *(EMBEDDING, EMBEDDING, []),
    ],
}


def test_zero3_frees_what_it_gathers() -> None:
    """Not only is it forgotten by the engine: no tape, view or closure keeps it alive."""
    units = ("embedding", "block0", "head")
    moments = [
        *(f"after forward of {unit}" for unit in units),
        *(f"after backward of {unit}" for unit in reversed(units)),
        *(f"after forward of {unit}" for unit in units),
    ]
    for rank in launch("jobs.memories:watch", 2, list(ALIVE)).values:
        for case, seen in zip(ALIVE, rank, strict=True):
            assert seen == list(zip(moments, ALIVE[case], strict=True)), case


def test_a_released_parameter_names_itself() -> None:
    for said in launch("jobs.memories:touch", 2).values:
        assert said.pop("updates") == "1"
        assert len(said) == 2 + 12 + 2
        for name, words in said.items():
            assert words == f"parameter {name!r} is released: gather its unit before you use it"
