"""Tensor and sequence parallelism on 1 to 4 ranks against serial training, and what they send and keep."""

import itertools
import json
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeness import check_close, check_equal, norm
from jobs import engines
from jobs import tensor_parallels as jobs
from minidist.engine import Engine
from minidist.nn.tensor import Parameter
from minidist.tp.group import Sliced, cut_places
from programs import run_chapter
from ranks import launch

RANKS = [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))]
MODELS = ("gpt", "gpt untied", "llama", "llama untied")
SEQUENCE = (False, True)
EXACT: list[list[Any]] = [
    *([model, sequence, False, "fp64", "adamw", 2, "none"] for model in MODELS for sequence in SEQUENCE),
    *(
        [model, sequence, False, "fp64", "sgd", 1, recompute]
        for model, sequence, recompute in itertools.product(("gpt", "llama untied"), SEQUENCE, ("selective", "full"))
    ),
    *([model, sequence, True, "fp64", "sgd", 1, "none"] for model in ("gpt untied", "llama") for sequence in SEQUENCE),
    ["gpt without bias", True, False, "fp64", "sgd", 1, "none"],
]
MIXED: list[list[Any]] = [
    [model, sequence, False, "mixed", "adamw", 1, "none"] for model in ("gpt", "llama untied") for sequence in SEQUENCE
]


@cache
def on_ranks(n: int) -> dict[str, Any]:
    """All cases in one job."""
    return launch("jobs.tensor_parallels:train_all", n, EXACT + MIXED, timeout=240).values[0]


@cache
def serial(name: str, *settings: Any) -> dict[str, Any]:
    return jobs.train(Engine(jobs.model(name), jobs.settings(*settings)))


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("case", EXACT, ids=lambda case: " ".join(map(str, case)))
def test_equals_serial_training(case: list[Any], n: int) -> None:
    """Losses, with and without dropout, norms, gradients and parameters, put together from everyone's parts."""
    name, _, _, *settings = case
    found, truth = on_ranks(n)[repr(case)], serial(name, *settings)
    check_equal(found, truth, "norms", size=norm)


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("case", MIXED, ids=lambda case: " ".join(map(str, case)))
def test_mixed_precision_is_close_to_serial_training(case: list[Any], n: int) -> None:
    """Activations travel in float16, which has 11 bits."""
    name, _, _, *settings = case
    found, truth = on_ranks(n)[repr(case)], serial(name, *settings)
    check_close(found, truth)


# ---- what is sent and held -------------------------------------------------------------------------------------------

B, S, H, A, LAYERS = jobs.BATCH, jobs.CONTEXT, 36, 12, 2
COUNTED: list[list[Any]] = [
    ["gpt", sequence, gather, "mixed", "adamw", 1, recompute]
    for gather, recompute in ((False, "none"), (False, "selective"), (True, "full"))
    for sequence in SEQUENCE
]


@cache
def counted(n: int) -> list[list[dict[str, Any]]]:
    """For each rank, the counts of each case."""
    return launch("jobs.tensor_parallels:count_all", n, COUNTED, timeout=60).values


def sent(counts: dict[str, Any], words: str) -> tuple[int, int]:
    """Bytes and messages in all phases whose name has these words."""
    found = [entry for phase, entry in counts["sent"].items() if words in phase]
    return sum(entry["bytes"] for entry in found), sum(entry["messages"] for entry in found)


@pytest.mark.parametrize("t", [2, 4])
@pytest.mark.parametrize("i", range(len(COUNTED)), ids=lambda i: " ".join(map(str, COUNTED[i][1:])))
def test_bytes_and_messages(i: int, t: int) -> None:
    """By the papers' formulas, in bytes of float16; every size here divides by t."""
    _, sequence, gather, *_, recompute = COUNTED[i]
    one = 2 * B * S * H * (t - 1) // t  # bytes of an all-gather or a reduce-scatter of b·s·h
    forwards = 2 if recompute == "full" else 1
    in_messages = {1: 0, 2: 2, 3: 4, 4: 4}[t]  # of an all-reduce: by halves, or on three ranks around the ring
    for rank in range(t):
        counts = counted(t)[rank][i]
        if sequence:
            assert sent(counts, "layers: all-gather forward") == (
                2 * one * LAYERS * forwards,
                2 * (t - 1) * LAYERS * forwards,
            )
            assert sent(counts, "layers: reduce-scatter forward") == sent(counts, "layers: all-gather forward")
            assert sent(counts, "layers: reduce-scatter backward") == (2 * one * LAYERS, 2 * (t - 1) * LAYERS)
            assert sent(counts, "layers: all-gather backward") == (2 * one * LAYERS, 2 * (t - 1) * LAYERS)
            assert sent(counts, "layers: all-gather again") == (2 * one * LAYERS, 2 * (t - 1) * LAYERS)
            assert sent(counts, "ends: all-gather again") == (one, t - 1)
            assert sent(counts, "ends: all-reduce") == sent(counts, "layers: all-reduce") == (0, 0)
            not_cut = S * H + LAYERS * 6 * H + 2 * H
            assert sent(counts, "shard gradients")[0] == 2 * 2 * not_cut * (t - 1) // t
        else:
            assert sent(counts, "layers: all-reduce forward") == (
                4 * one * LAYERS * forwards,
                2 * in_messages * LAYERS * forwards,
            )
            assert sent(counts, "layers: all-reduce backward") == (4 * one * LAYERS, 2 * in_messages * LAYERS)
            assert sent(counts, "all-gather ") == sent(counts, "reduce-scatter") == (0, 0)
        everything = sent(counts, "layers:")[0] - sent(counts, "layers: all-gather again")[0]
        assert everything == LAYERS * (8 if recompute != "full" else 12) * one  # whether by sequence or not
        assert sent(counts, "ends:")[0] - sent(counts, "ends: all-gather again")[0] == 4 * one
        if gather:
            assert sent(counts, "loss")[0] == 2 * B * S * 24 * (t - 1) // t  # 23 entries padded to 24, in float16
        else:
            assert sent(counts, "loss") == (4 * 3 * 2 * B * S * (t - 1) // t, 3 * in_messages)  # in float32
        assert sent(counts, "tensor norm") == (8 * (t - 1), t - 1)


@pytest.mark.parametrize("t", [1, 2, 3, 4])
def test_bytes_held(t: int) -> None:
    """Korthikanti's table 2, for a layer, and beside it the norms' four statistics in float32; parameters cut by t."""
    sbh, scores, statistics = S * B * H, 5 * A * S * S * B, 16 * S * B
    table = [
        10 * sbh + (24 * sbh + scores) // t + statistics,
        (34 * sbh + scores + statistics) // t,
        10 * sbh + 24 * sbh // t + statistics,
        (34 * sbh + statistics) // t,
        2 * sbh,
        2 * sbh // t,
    ]
    padded = 23 if t == 1 else 24
    parameters = (padded * H + LAYERS * (12 * H * H + 7 * H)) // t + S * H + LAYERS * 6 * H + 2 * H
    for rank in range(t):
        for i, (keeps, counts) in enumerate(zip(table, counted(t)[rank], strict=True)):
            assert counts["memory"]["parameters"] == 2 * parameters
            assert counts["memory"]["gradients"] == 2 * parameters
            assert counts["memory"]["optimizer"] == 12 * parameters
            assert counts["counted"]["layer_activations"] == LAYERS * keeps, COUNTED[i]


# ---- around it -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 5), st.integers(0, 1))
def test_parts_of_a_parameter_make_the_whole(sections: list[int], ranks: int, axis: int) -> None:
    """Each place is on one rank, and joining what the ranks drew gives what serial training draws."""
    size = sum(sections)
    whole = Parameter("w", (size, 3) if axis == 0 else (3, size), std=1.0)
    on_axis = [*sections, 2]  # the last one lies beyond the end: padding
    assert sorted(np.concatenate(cut_places(on_axis, ranks))) == list(range(size + 2))
    group = [SimpleNamespace(rank=rank, size=ranks) for rank in range(ranks)]
    parts = [Sliced(whole, axis, on_axis, comm) for comm in group]  # type: ignore[arg-type]
    assert sum(part.size for part in parts) == 3 * (size + 2)
    np.testing.assert_array_equal(parts[0].join([part.initial(7) for part in parts]), whole.initial(7))


@pytest.mark.parametrize(("t", "options"), [(1, ""), (2, ""), (2, "--sequence-parallel"), (2, "--recompute selective")])
def test_what_a_layer_keeps_without_dropout_and_with_the_papers(t: int, options: str) -> None:
    """sbh(32 + 2as/h) and sbh(34 + 5as/h), cut; the second from a forward of which training knows nothing."""
    s, b, h, a, layers = 8, 4, 16, 4, 2
    line = f"--layers {layers} --width {h} --context {s} --batch {b} --steps 2 --precision mixed --json - {options}"
    report = json.loads(run_chapter(f"tensor_parallel {line}", t).stdout)
    claims = {claim["claim"]: claim for claim in report["claims"]}
    shared = t if "sequence" in options else 1
    for name, (whole, core) in {"a layer keeps": (8, 2), "with dropout 0.1": (10, 5)}.items():
        scores = 0 if "selective" in options else core * a * s * s * b
        keeps = (whole * s * b * h + 16 * s * b) / shared + (24 * s * b * h + scores) / t
        assert claims[name]["counted"] == claims[name]["expected"] == keeps
    assert claims["with dropout 0.1"]["formula"].startswith(
        "sbh(34" if t == 1 or "sequence" in options else "sbh(10+24/t"
    )


def test_a_look_at_another_dropout_changes_nothing() -> None:
    """Losses and parameters stay the same to the last bit, and the model's own dropout is what it was."""
    plain, looked = (Engine(jobs.model("gpt"), jobs.settings("fp64", "adamw", 1, "none")) for _ in range(2))
    x, y = engines.batch(3, jobs.BATCH, jobs.CONTEXT, jobs.VOCABULARY)
    kept = {p: looked.count_layer_bytes(x, y, p) for p in (0.0, 0.1, 0.5)}
    truth, found = jobs.train(plain), jobs.train(looked)
    np.testing.assert_array_equal(found["losses"], truth["losses"])
    assert all(np.array_equal(found["parameters"][name], array) for name, array in truth["parameters"].items())
    assert kept[0.0] < kept[0.1] == kept[0.5] == plain.layer_activations  # the model has dropout 0.1
