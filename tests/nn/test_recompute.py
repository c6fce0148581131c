"""Recomputing activations in the backward changes no number, and keeps what the papers say."""

import dataclasses
import itertools
import math
import re
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from closeness import check_close
from jobs import engines, recompute
from minidist import UsageError
from minidist.engine import Engine
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Batch
from minidist.nn.ops import add, gelu
from minidist.nn.tensor import Tape, recomputed
from minidist.programs.chapter import find
from ranks import launch
from tables import table

MODES = ("selective", "full", "every:2", "log")
MODELS = ("gpt", "gpt untied", "llama", "llama untied")


@cache
def serial(model: str, precision: str, mode: str) -> dict[str, Any]:
    return recompute.train(Engine, model, precision, mode)


def assert_same(found: dict[str, Any], truth: dict[str, Any]) -> None:
    assert found["losses"] == truth["losses"]
    for name in truth["gradients"]:
        np.testing.assert_array_equal(found["gradients"][name], truth["gradients"][name], err_msg=name)
        np.testing.assert_array_equal(found["parameters"][name], truth["parameters"][name], err_msg=name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("model", MODELS)
def test_recomputation_changes_no_bit(model: str, precision: str, mode: str) -> None:
    """The model has dropout: the masks are drawn again, and must be the same ones."""
    assert_same(serial(model, precision, mode), serial(model, precision, "none"))


@pytest.mark.parametrize("mode", MODES)
def test_in_mixed_precision_it_is_close(mode: str) -> None:
    """The forward ran on float32 activations, the second one starts from what was kept in float16."""
    check_close(serial("gpt", "mixed", mode), serial("gpt", "mixed", "none"), losses=1e-3)


def test_every_engine_recomputes() -> None:
    """On three ranks, to the same bit as without."""
    results = launch("jobs.recompute:train_all", 3, timeout=120).values[0]
    for engine in engines.ENGINES:
        for mode in ("selective", "full"):
            assert_same(results[f"{engine}, {mode}"], results[f"{engine}, none"])


@cache
def serial_losses(*case: Any) -> list[float]:
    return recompute.serial(*case)


def test_dropout_that_is_drawn_anew_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of all comparisons of losses here: masks that are others when a layer runs again."""
    truth = {policy: serial_losses("fp64", 1, 0.1, policy) for policy in recompute.POLICIES}
    times: Counter[Any] = Counter()
    mask = Batch.mask

    def drawn_anew(batch: Batch, name: str, *of: Any) -> np.ndarray:
        times[batch.key, name] += 1
        again = times[batch.key, name] > 1
        return mask(dataclasses.replace(batch, key=(*batch.key, 1)) if again else batch, name, *of)  # type: ignore[misc]

    monkeypatch.setattr(Batch, "mask", drawn_anew)
    assert recompute.serial("fp64", 1, 0.1, "none") == truth["full"]
    for policy in recompute.POLICIES:
        times.clear()
        found = recompute.serial("fp64", 1, 0.1, policy)
        assert found[0] == truth[policy][0]  # the first forward's
        assert found[1] != truth[policy][1], policy


@pytest.mark.parametrize(("value", "says"), table(__file__, "a_wrong_policy_is_one_line"))
def test_a_wrong_policy_is_one_line(value: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as refused:
        find("train").job(["--recompute", value], ranks=1)
    assert "\n" not in str(refused.value)


KINDS = list(itertools.product((1, 3), (0.0, 0.1)))  # accumulation, dropout


@pytest.mark.parametrize(
    ("policies", "kinds"),
    [
        (("selective", "log"), [(3, 0.1)]),  # full: in test_every_engine_recomputes
        pytest.param(recompute.POLICIES, KINDS, marks=pytest.mark.slow),
    ],
)
def test_every_policy_on_every_stage_of_zero(policies: tuple[str, ...], kinds: list[tuple[int, float]]) -> None:
    """In float64 the losses of the same ranks without recomputation, to the last bit, and to 1e-12 the serial ones. In
    mixed precision the stages agree to the last bit on what a policy has rounded, which are the inputs that it keeps:
    all, or, where stages 2, 3 and FSDP (here 4) sum each micro-batch over the ranks by itself, these and the rest."""
    found = launch("jobs.recompute:stages", 3, policies, kinds, timeout=300).values[0]
    for policy, stage, (accumulate, dropout) in itertools.product(policies, range(5), kinds):

        def losses(precision: str, policy: str, stage: int, a: int = accumulate, p: float = dropout) -> list[float]:
            return found[recompute.name_of(precision, policy, stage, a, p)]

        exact, mixed = losses("fp64", policy, stage), losses("mixed", policy, stage)
        assert exact == losses("fp64", "none", stage), (policy, stage)
        np.testing.assert_allclose(exact, serial_losses("fp64", accumulate, dropout), rtol=1e-12)
        assert mixed == losses("mixed", policy, 2 if stage >= 2 and accumulate > 1 else 0), (policy, stage)
        np.testing.assert_allclose(mixed, losses("mixed", "none", 0), rtol=1e-3)


# Of six policies on each grid every fifth case has each policy, and each grid.
@pytest.mark.parametrize("some", [slice(1, None, 5), pytest.param(slice(None), marks=pytest.mark.slow)])
def test_every_policy_on_other_axes(some: slice) -> None:
    """Tensor and sequence parallelism, pipelines of one chunk and of two, with and without ZeRO."""
    cases = recompute.ON_GRIDS[some]
    found = launch("jobs.recompute:grids", 4, cases, timeout=300).values[0]
    for case in cases:
        truth = serial_losses("fp64", recompute.MICRO_BATCHES, case[-1])
        np.testing.assert_allclose(found[recompute.name_of(*case)], truth, rtol=1e-12, err_msg=str(case))


@pytest.mark.parametrize("n", [1, 5, 12, 64, pytest.param(100, marks=pytest.mark.slow)])
def test_forwards_and_activations_by_hand(n: int) -> None:
    """An engine's own, on n layers: a layer runs twice at most, but for log; K + n/K inputs and layers, or log₂n."""
    b, s, h, p = 2, recompute.CONTEXT, 4, 4
    given, layer = s * b * h * p, s * b * (16 * h * p + 4 * 4) + s * s * b * p
    for k in {1, 3, 10, n} & set(range(1, n + 1)):
        segments = math.ceil(n / k)
        sizes = [k] * (segments - 1) + [n - k * (segments - 1)]
        most = max(i * given + size * layer for i, size in enumerate(sizes))
        assert recompute.counted(f"every:{k}", n) == {"calls": 2 * n, "activations": most}
    k = round(math.sqrt(n))
    assert recompute.counted("sqrt", n) == recompute.counted(f"every:{k}", n)
    assert min(i + math.ceil(n / i) for i in range(1, n + 1)) == k + math.ceil(n / k)
    log = recompute.counted("log", n)
    assert log["activations"] == math.floor(math.log2(n)) * given + layer
    again = 0  # the first half of every part, whose second half goes on alike
    parts = [n]
    while parts:
        if (part := parts.pop()) > 1:
            again += part - part // 2
            parts += [part - part // 2, part // 2]
    assert log["calls"] == n + again <= n + n * math.log2(n)
    assert recompute.counted("none", n) == {"calls": n, "activations": n * layer}


def forward(mode: str, s: int, b: int, h: int, a: int, layers: int, tiled: bool = False) -> tuple[Engine, Any]:
    """An engine in mixed precision, and the loss of its first forward."""
    config = GPTConfig(vocabulary=11, context=s, layers=layers, heads=a, width=h, dropout=0.1)
    settings = engines.settings("mixed", "sgd", accumulate=1, clip=0, recompute=mode, tiled=tiled)
    tokens = np.random.default_rng(0).integers(0, 11, (b, s + 1))
    engine = Engine(gpt(config), settings)
    return engine, engine.forward(tokens[:, :-1], tokens[:, 1:])


def kept(mode: str, s: int, b: int, h: int, a: int, tiled: bool = False) -> list[int]:
    """Bytes that the pool has of each unit after a forward in mixed precision."""
    engine, loss = forward(mode, s, b, h, a, 2, tiled)
    kept = []
    while loss.passages:  # the last one's first
        before = engine.device.held["kept"]
        loss.passages.pop()
        kept.append(before - engine.device.held["kept"])
    return kept[::-1]


@pytest.mark.parametrize(("s", "b", "h", "a"), [(8, 3, 16, 2), (16, 1, 12, 4), (5, 2, 30, 3)])
def test_a_layer_keeps_what_korthikanti_counts(s: int, b: int, h: int, a: int) -> None:
    """Table 2: sbh(34 + 5as/h), 34sbh and 2sbh; and beside it two norms' mean and deviation in fp32, 16 sb."""
    assert kept("none", s, b, h, a)[1:-1] == [34 * s * b * h + 5 * a * s * s * b + 16 * s * b] * 2
    assert kept("selective", s, b, h, a)[1:-1] == [34 * s * b * h + 16 * s * b] * 2
    assert kept("full", s, b, h, a)[1:-1] == [2 * s * b * h] * 2


def test_in_tiles_a_layer_keeps_a_log_sum_exp_for_each_query() -> None:
    """4as b bytes in place of the core's 5as²b: a number in fp32 for each head and position. So selective recomputation
    saves nothing more, and holds nothing more."""
    s, b, h, a = 16, 2, 12, 4
    layer = 34 * s * b * h + 4 * a * s * b + 16 * s * b
    assert kept("none", s, b, h, a, tiled=True)[1:-1] == kept("selective", s, b, h, a, tiled=True)[1:-1] == [layer] * 2
    engine, loss = forward("selective", s, b, h, a, 3, tiled=True)
    engine.backward(loss)
    assert engine.device.peak["activations"] == 3 * layer


def test_the_peak_counts_what_is_recomputed() -> None:
    """With full recomputation the backward of the last block holds every block's input but its own, and all of its own
    activations, from its own second forward."""
    s, b, h, a, layers = 8, 2, 16, 2, 3
    engine, loss = forward("full", s, b, h, a, layers)
    engine.backward(loss)
    block = 34 * s * b * h + 5 * a * s * s * b + 16 * s * b
    assert engine.device.peak["activations"] == (layers - 1) * 2 * s * b * h + block


def test_selective_recomputation_holds_one_layers_scores() -> None:
    """And not beside them, once more, the Q, K and V from which they are made again: what the forward has kept of these
    goes before they are kept anew, to run the attention backwards."""
    s, b, h, a, layers = 32, 2, 8, 4, 3
    engine, loss = forward("selective", s, b, h, a, layers)
    engine.backward(loss)
    layer, scores = 34 * s * b * h + 16 * s * b, 5 * a * s * s * b
    have_run = 24 * s * b * h + 8 * s * b  # MLP 18, projection and its dropout 3, the second dropout 1 and norm 2
    assert engine.device.peak["activations"] == layers * layer + scores - have_run
    assert scores > have_run  # else the peak would be before the backward


def test_weight_gradients_can_be_postponed_and_recomputed() -> None:
    """A pipeline may do both: the block runs again when its input's gradient is wanted, its weights' come later."""
    block = engines.model("gpt")[1]
    x = np.random.default_rng(1).standard_normal((2, 8, 15))
    batch = Batch(np.zeros((2, 8), int), key=(1,), selective=True)
    for parameter in block.parameters:
        parameter.bind(parameter.initial(0))
    gradients = []
    for postpone in (False, True):
        for parameter in block.parameters:
            parameter.bind(parameter.data, np.empty(parameter.shape))
        tape = Tape()
        y = recomputed(lambda x: block(x, batch), tape.tensor(x))
        dx = tape.backward(y.data, postpone_weights=postpone)
        assert block.qkv.weight.has_grad is not postpone  # type: ignore[attr-defined]
        tape.weight_backward()
        gradients.append([dx, *(parameter.grad for parameter in block.parameters)])
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_array_equal(one, other)


def test_recomputation_of_a_value_that_is_used_twice() -> None:
    """The gradients of both uses are added, in and outside what is recomputed."""
    x, dy = np.linspace(-2, 2, 9), np.linspace(1, 2, 9)
    results = []
    for again in (False, True):
        tape = Tape()
        t = tape.tensor(x)
        inner = recomputed(lambda t: add(gelu(t), t), t) if again else add(gelu(t), t)
        add(t, gelu(inner))
        results.append(tape.backward(dy))
    np.testing.assert_array_equal(results[1], results[0])
