"""Folded and crossed pipelines on real tensors: every schedule, number of stages and of micro-batches that its
definition allows, against serial training. Ranks are threads, so that there can be many cases."""

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from closeness import largest_difference
from jobs import engines
from jobs import pipelines as jobs
from minidist.engine import Engine
from minidist.exchange.one_process import run_ranks
from minidist.layout import Layout
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.llama import LlamaConfig, llama
from minidist.parallel3d import grid
from minidist.pipeline import pipeline_of

MODELS = ("gpt", "gpt untied", "llama tied", "llama untied")
VOCABULARY, CONTEXT, STEPS = 11, 4, 2
Case = tuple[str, int, int, int]  # schedule, p, m, N of Llama 3's groups


def allowed(p: int, most: int) -> Iterator[Case]:
    """What the papers and their code allow of m up to `most`; written down here again."""
    for m in range(1, most + 1):
        yield from ((name, p, m, 0) for name in ("zb-v", "v-half", "v-min"))
        yield "breadth-first", p, m, 0
        if m >= 2 * p:
            yield "dualpipe-v", p, m, 0
        if p % 2 == 0 and m % 2 == 0 and m >= 2 * p:
            yield "dualpipe", p, m, 0
        if p % 2 == 0 and m % p == 0:
            yield "chimera", p, m, 0
        for n in range(p, m + 1):
            if m % n == 0 or m % n >= p:
                yield "llama3", p, m, n


def model(name: str, layers: int) -> list[Unit]:
    tied = "untied" not in name
    if name.startswith("gpt"):
        return gpt(GPTConfig(VOCABULARY, CONTEXT, layers, heads=2, width=8, dropout=0.1, tied=tied))
    return llama(LlamaConfig(VOCABULARY, CONTEXT, layers, 2, 2, 8, 9, dropout=0.1, tied=tied))


def tokens(step: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    return engines.batch(step, rows, CONTEXT, VOCABULARY)


def layers_of(p: int) -> int:
    return max(2 * p - 2, 1)


@cache
def serial(name: str, p: int, m: int, rows: int) -> dict[str, Any]:
    engine = Engine(model(name, layers_of(p)), jobs.settings("fp64", "sgd", m, 0.5))
    return follow(engine, m * rows)


def follow(driver: Any, rows: int) -> dict[str, Any]:
    return engines.follow(driver, [tokens(step, rows) for step in range(STEPS)], tokens(99, 2))


def check(case: Case, name: str, dp: int = 1, tp: int = 1, zero: int = 0, recompute: str = "none") -> None:
    """Losses, norms, the first step's gradients, parameters: as in serial training; copies equal to the last bit."""
    (schedule, p, m, n), rows = case, 1 if dp == 1 else 3  # of three rows dp 2 takes two and one
    chunks = 1 if schedule in ("dualpipe", "chimera") else 2
    parts = jobs.cut(model(name, layers_of(p)), p * chunks)
    layout = Layout(dp, p, 1, tp, schedule=schedule, micro_batches=m, chunks=chunks, contiguous=n, parts=parts)

    def train(comm: Any) -> dict[str, Any]:
        wanted = jobs.settings("fp64", "sgd", m, 0.5, recompute)
        units = model(name, layers_of(p))
        if comm.size == p:
            driver: Any = pipeline_of(units, wanted, comm, parts, schedule, contiguous=n)
        else:
            driver = grid(units, wanted, comm, layout, zero)
        return follow(driver, m * rows)

    ranks, truth = run_ranks(train, dp * p * tp), serial(name, p, m, rows)
    losses = np.sum([found["losses"] for found in ranks], axis=0)
    np.testing.assert_allclose(losses, truth["losses"], rtol=1e-12, atol=0)
    for found in ranks:
        np.testing.assert_allclose(found["norms"], truth["norms"], rtol=1e-12, atol=0)
        for kind in ("gradients", "parameters"):
            mine = found[kind]
            assert largest_difference(mine, {name: truth[kind][name] for name in mine}) < 1e-12
    names = {name for found in ranks for name in found["parameters"]}
    assert names == truth["parameters"].keys()
    for one, other in itertools.combinations(ranks, 2):
        for shared in one["parameters"].keys() & other["parameters"].keys():
            np.testing.assert_array_equal(one["parameters"][shared], other["parameters"][shared], err_msg=shared)


@pytest.mark.parametrize("p", [1, 2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_every_schedule_and_number_of_micro_batches(p: int) -> None:
    """m to 3p; the models go round."""
    for i, case in enumerate(allowed(p, 3 * p)):
        check(case, MODELS[i % 4])


def test_on_three_and_four_stages() -> None:
    """In every run, one number of micro-batches of each schedule."""
    cases = [*allowed(3, 6), *allowed(4, 8)]
    for i, case in enumerate({case[:2]: case for case in cases}.values()):
        check(case, MODELS[i % 4])


@pytest.mark.slow
def test_on_eight_stages() -> None:
    for i, case in enumerate({case[:2]: case for case in allowed(8, 16)}.values()):
        check(case, MODELS[i % 4])


SHAPES = ("zb-v", "v-half", "v-min", "dualpipe", "dualpipe-v", "chimera", "breadth-first", "llama3")


def grids() -> Iterator[dict[str, Any]]:
    """Data parallelism (with dp 1 nothing is reduced, and a wrong count of backwards is not noticed) with each of
    ZeRO's stages, tensor parallelism and recomputation, going round."""
    for i, (schedule, zero) in enumerate(itertools.product(SHAPES, range(4))):
        case = schedule, 2, 4, 3 if schedule == "llama3" else 0
        if schedule == "llama3":
            case = schedule, 2, 5, 3
        yield {"case": case, "name": MODELS[i % 4], "dp": 2, "zero": zero}
        again = ("full", "selective", "every:2")[i % 3]
        name = MODELS[(i + i // 4 + 1) % 4]
        yield {"case": case, "name": name, "dp": 1 + (i + i // 4) % 2, "tp": 2, "zero": zero, "recompute": again}
    for schedule in ("zb-v", "dualpipe", "dualpipe-v", "chimera"):
        yield {"case": (schedule, 4, 8, 0), "name": "gpt", "dp": 2, "zero": 2}


EVERY = list(grids())


@pytest.mark.parametrize(
    "given",
    [pytest.param(given, marks=[pytest.mark.slow] * (i % 3 > 0)) for i, given in enumerate(EVERY)],
    ids=lambda given: " ".join(map(str, given.values())),
)
def test_on_a_grid(given: dict[str, Any]) -> None:
    check(**given)
