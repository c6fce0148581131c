"""The mixture layer, whole on one rank: against one written token by token, and against finite differences."""

import numpy as np
import pytest

from ep.oracle import check_same, dropped_by, with_oracle
from jobs import engines
from minidist.engine import Engine, Settings
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.llama import LlamaConfig, llama
from minidist.nn.mixture import Routing, balance, choose, make_plan, softmax, with_experts
from minidist.nn.precision import PRECISIONS
from minidist.nn.tensor import Tensor

VOCABULARY, CONTEXT = 11, 5
MODELS = {
    "gpt": lambda: gpt(GPTConfig(VOCABULARY, CONTEXT, layers=2, heads=1, width=6)),
    "llama": lambda: llama(LlamaConfig(VOCABULARY, CONTEXT, layers=2, heads=1, kv_heads=1, width=6, hidden=7)),
}
ROUTINGS = [Routing(top, capacity, balance=0.3) for top in (1, 2, 3) for capacity in (None, 0.5, 1.0)]
CASES = [*((routing, "none") for routing in ROUTINGS), *((ROUTINGS[4], again) for again in ("full", "selective"))]


def build(name: str, routing: Routing, recompute: str = "none", experts: int = 4) -> tuple[list[Unit], Settings]:
    return with_experts(MODELS[name](), experts, routing), engines.settings("fp64", "sgd", 1, 0.5, recompute=recompute)


def train(engine: Engine) -> dict[str, object]:
    """Two steps on 3 sequences, from weights large enough for every gradient to be felt."""
    for flat in engine.flats:
        for parameter, view in flat.views(flat.master):
            view += 0.3 * np.random.default_rng([*parameter.name.encode()]).standard_normal(view.shape)
    return engines.follow(engine, [engines.batch(step, 3, CONTEXT, VOCABULARY) for step in range(2)])


@pytest.mark.parametrize(("routing", "recompute"), CASES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_equals_a_mixture_written_token_by_token(name: str, routing: Routing, recompute: str) -> None:
    """Losses, with the balance loss, norms, gradients, parameters; and which choices are dropped."""
    units, settings = build(name, routing, recompute)
    found = train(Engine(units, settings))
    units, settings = build(name, routing)
    oracle = with_oracle(units, 1, name == "llama")
    truth = train(Engine(oracle, settings))
    check_same(found, truth)
    dropped = [choice for of_mixture in dropped_by(oracle) for choices in of_mixture.values() for choice in choices]
    assert bool(dropped) == (routing.capacity is not None)


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_finite_differences(name: str, top: int) -> None:
    """Of the whole loss. Choices must not change within a step of 1e-6; f has no gradient, so α·E·Σ f P is checked with
    f as it is."""
    units, settings = build(name, Routing(top, 1.0, 0.3))
    settings.clip = 0
    engine = Engine(units, settings)
    rng = np.random.default_rng(0)
    for flat in engine.flats:
        flat.param += 0.3 * rng.standard_normal(flat.padded)
    x, y = rng.integers(0, VOCABULARY, (2, 3, CONTEXT))
    engine.backward(engine.forward(x, y))
    for flat in engine.flats:
        for parameter, grad in flat.views(flat.grad):
            [value] = [view for other, view in flat.views(flat.param) if other is parameter]
            direction = rng.standard_normal(value.shape)
            losses = []
            for sign in (1, -1):
                value += sign * 1e-6 * direction
                losses.append(engine.forward(x, y).value)
                value -= sign * 1e-6 * direction
            slope = (losses[0] - losses[1]) / 2e-6
            assert np.sum(grad * direction) == pytest.approx(slope, rel=1e-6, abs=1e-8), parameter.name


def test_the_balance_loss_is_alpha_at_uniform_and_alpha_times_experts_at_collapse() -> None:
    n, e, alpha = 24, 8, 0.01
    uniform, collapsed = np.zeros((1, n, e)), np.where(np.arange(e) == 3, 1e3, 0.0) * np.ones((1, n, 1))
    for logits, expected in ((uniform, alpha), (collapsed, alpha * e)):
        prob = softmax(logits)
        f = np.bincount(choose(prob, 1)[:, 0], minlength=e) / n
        assert balance(Tensor(logits), prob, f, alpha).data == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("capacity", [None, 1, 2, 7])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_places_are_the_inverse_of_slots(k: int, capacity: int | None) -> None:
    """And every expert keeps the first choices that came to it, in order."""
    rng = np.random.default_rng(k)
    n, e = 13, 4
    chosen = np.argsort(rng.random((n, e)), axis=1)[:, :k]
    plan = make_plan(chosen, e, capacity)
    rows = len(plan.slot)
    assert rows == plan.counts.sum() == (k * n if capacity is None else e * capacity)
    starts = np.cumsum(plan.counts) - plan.counts
    queues: dict[int, list[int]] = {i: [] for i in range(e)}
    for choice in range(k * n):
        queues[chosen[choice % n, choice // n]].append(choice)
    for i, queue in queues.items():
        kept = queue[:capacity]
        here = plan.slot[starts[i] : starts[i] + plan.counts[i]].tolist()
        assert here == kept + [k * n] * (len(here) - len(kept))
        assert plan.place[kept].tolist() == list(range(starts[i], starts[i] + len(kept)))
        assert all(plan.place[dropped] == rows for dropped in queue[len(kept) :])


def test_mixed_precision_scales_the_balance_loss_like_the_loss() -> None:
    """In float64 the loss scale is 1, and a balance loss without it goes unnoticed: here the router's gradient is that
    of float32 to the precision of float16."""
    gradients = []
    for precision in ("fp32", "mixed"):
        settings = engines.settings(precision, "sgd", 1, clip=0)
        engine = Engine(with_experts(MODELS["gpt"](), 4, Routing(2, None, balance=3.0)), settings)
        found = engines.follow(engine, [engines.batch(0, 3, CONTEXT, VOCABULARY)])
        scale = PRECISIONS[precision].loss_scale
        gradients.append(found["gradients"]["block0.router.weight"] / scale)
    assert np.linalg.norm(gradients[1] - gradients[0]) < 1e-2 * np.linalg.norm(gradients[0])
