"""Every engine on 1 to 4 ranks against serial training: losses, gradients and final parameters."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest

from jobs import engines
from minidist.engine import Engine
from minidist.mpi.launch import launch

RANKS = (1, 2, 3, 4)
BATCH = 15  # 15 rows, and micro-batches of 5, are not divisible by 2 or 4 ranks
MODELS = ("gpt", "gpt untied", "llama", "llama untied")


def case(engine: str, model: str, precision: str, optimizer: str, accumulate: int, clip: float) -> list[Any]:
    return [engine, model, precision, optimizer, accumulate, clip, BATCH]


EXACT = [
    case(engine, model, "fp64", optimizer, accumulate, clip=0.5)
    for engine, model, optimizer, accumulate in itertools.product(engines.ENGINES, MODELS, ("adamw", "sgd"), (1, 3))
]
MIXED = [
    case(engine, model, "mixed", "adamw", accumulate, clip)
    for engine, model, accumulate, clip in itertools.product(engines.ENGINES, MODELS[:3], (1, 3), (0.0, 0.5))
]


@cache
def on_ranks(n: int) -> dict[str, Any]:
    """All cases in one job."""
    return launch("jobs.engines:train_all", n, EXACT + MIXED, timeout=240).values[0]


@cache
def serial(model: str, precision: str, optimizer: str, accumulate: int, clip: float, batch: int) -> dict[str, Any]:
    return engines.train(Engine(engines.model(model), engines.settings(precision, optimizer, accumulate, clip)), batch)


def largest_difference(found: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> float:
    """Over all parameters, the largest difference relative to the parameter's largest element."""
    assert found.keys() == truth.keys()
    return max(float(np.abs(found[name] - truth[name]).max() / np.abs(truth[name]).max()) for name in truth)


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("case", EXACT, ids=lambda case: " ".join(map(str, case)))
def test_equals_serial_training(case: list[Any], n: int) -> None:
    found, truth = on_ranks(n)[repr(case)], serial(*case[1:])
    np.testing.assert_allclose(found["losses"], truth["losses"], rtol=1e-12, atol=0)
    assert largest_difference(found["gradients"], truth["gradients"]) < 1e-12
    assert largest_difference(found["parameters"], truth["parameters"]) < 1e-12


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("case", MIXED, ids=lambda case: " ".join(map(str, case)))
def test_mixed_precision_is_close_to_serial_training(case: list[Any], n: int) -> None:
    """float16 gradients have 11 bits, and the order of their sums differs from serial training's."""
    found, truth = on_ranks(n)[repr(case)], serial(*case[1:])
    np.testing.assert_allclose(found["losses"], truth["losses"], rtol=2e-3)
    for name, gradient in truth["gradients"].items():
        error = np.linalg.norm(found["gradients"][name] - gradient)
        assert error < 4e-3 * np.linalg.norm(gradient) + 1e-3 * np.sqrt(gradient.size), name


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize(("model", "clip"), list(itertools.product(MODELS[:3], (0.0, 0.5))))
def test_stages_agree_to_the_last_bit_in_mixed_precision(model: str, clip: float, n: int) -> None:
    """The same shards mean the same order of sums. With several micro-batches, stages 2 and 3 sum over ranks before
    they sum over micro-batches, data parallelism and stage 1 the other way round: two groups."""

    def parameters(engine: str, accumulate: int) -> np.ndarray:
        found = on_ranks(n)[repr(case(engine, model, "mixed", "adamw", accumulate, clip))]
        return np.concatenate([array.reshape(-1) for array in found["parameters"].values()])

    for engine in ("zero1", "zero2", "zero3", "zero3 keep_last", "fsdp"):
        np.testing.assert_array_equal(parameters(engine, 1), parameters("data_parallel", 1), err_msg=engine)
    np.testing.assert_array_equal(parameters("zero1", 3), parameters("data_parallel", 3))
    np.testing.assert_array_equal(parameters("zero3", 3), parameters("zero2", 3))
    np.testing.assert_array_equal(parameters("fsdp", 3), parameters("zero2", 3))
