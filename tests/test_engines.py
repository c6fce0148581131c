"""Every engine on 1 to 4 ranks against serial training: losses, gradients and final parameters."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest

from closeness import check_close, check_equal
from jobs import engines
from minidist.engine import Engine
from ranks import launch

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


def slow(case: list[Any], n: int) -> bool:
    """In every run a quarter on three ranks and another on four: together every value of a kind meets every other value
    of any two kinds. The rest, and fewer ranks, with -m slow."""
    _, model, _, optimizer, accumulate, clip, _ = case
    turn = (MODELS.index(model) + (optimizer == "sgd") + (accumulate == 1) + (clip > 0)) % 4
    return (n, turn) not in ((3, 0), (4, 2))


def on_each(cases: list[list[Any]]) -> list[Any]:
    """Each case on each number of ranks."""
    both = itertools.product(cases, RANKS)
    return [
        pytest.param(case, n, marks=[pytest.mark.slow] * slow(case, n), id=f"{' '.join(map(str, case))}-{n}")
        for case, n in both
    ]


@cache
def in_one_job(n: int, later: bool) -> dict[str, Any]:
    """All cases of every run, or all that are slow."""
    cases = [case for case in EXACT + MIXED if slow(case, n) == later]
    return launch("jobs.engines:train_all", n, cases, timeout=240).values[0]


def on_ranks(n: int, case: list[Any]) -> dict[str, Any]:
    return in_one_job(n, slow(case, n))[repr(case)]


@cache
def serial(model: str, precision: str, optimizer: str, accumulate: int, clip: float, batch: int) -> dict[str, Any]:
    return engines.train(Engine(engines.model(model), engines.settings(precision, optimizer, accumulate, clip)), batch)


@pytest.mark.parametrize(("case", "n"), on_each(EXACT))
def test_equals_serial_training(case: list[Any], n: int) -> None:
    check_equal(on_ranks(n, case), serial(*case[1:]))


@pytest.mark.parametrize(("case", "n"), on_each(MIXED))
def test_mixed_precision_is_close_to_serial_training(case: list[Any], n: int) -> None:
    """float16 gradients have 11 bits, and the order of their sums differs from serial training's."""
    check_close(on_ranks(n, case), serial(*case[1:]))


@pytest.mark.parametrize(("case", "n"), on_each([case for case in MIXED if case[0] == "data_parallel"]))
def test_stages_agree_to_the_last_bit_in_mixed_precision(case: list[Any], n: int) -> None:
    """The same shards mean the same order of sums. With several micro-batches, stages 2 and 3 sum over ranks before
    they sum over micro-batches, data parallelism and stage 1 the other way round: two groups."""

    def parameters(engine: str) -> np.ndarray:
        found = on_ranks(n, [engine, *case[1:]])
        return np.concatenate([array.reshape(-1) for array in found["parameters"].values()])

    accumulate = case[4]
    if accumulate == 1:
        shards = "zero1", "zero2", "zero3", "zero3 keep_last", "fsdp", "offload zero1", "offload", "offload zero3"
        for engine in shards:
            np.testing.assert_array_equal(parameters(engine), parameters("data_parallel"), err_msg=engine)
    else:
        for engine in ("zero1", "offload zero1"):
            np.testing.assert_array_equal(parameters(engine), parameters("data_parallel"), err_msg=engine)
        for engine in ("zero3", "fsdp", "offload", "offload zero3"):
            np.testing.assert_array_equal(parameters(engine), parameters("zero2"), err_msg=engine)
