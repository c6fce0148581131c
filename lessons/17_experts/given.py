"""What lesson 17's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import SGD, AdamW
from minidist.nn.precision import PRECISIONS

Array = np.ndarray
ASKED = (
    *("arrange", "copy_rows", "copy_rows_backward", "add_rows", "add_rows_backward"),
    *("count_shares", "balance_loss", "balance_backward", "dispatch", "combine", "sum_gradients"),
)


def padded(x: Array) -> Array:
    """With a row of zeros at the end, which -1 stands for."""
    return np.concatenate([x, np.zeros((1, *x.shape[1:]), x.dtype)])


# ---- the notebook's mixture in one process ---------------------------------------------------------------------------

EXPERTS, WIDTH, HIDDEN, TOPICS = 8, 16, 32, 8


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def zipf(experts: int) -> Array:
    """Zipf's law: shares that are in the ratio 1, 1/2, 1/3, ..."""
    shares = 1 / np.arange(1, experts + 1)
    return shares / shares.sum()


def draw_choices(tokens: int, experts: int, k: int = 1, seed: int = 0) -> Array:
    """k different experts of each token, drawn by Zipf's law one after the other: (k·n,), all first choices first."""
    noise = np.random.default_rng(seed).gumbel(size=(tokens, experts))  # the largest of log p + noise is drawn by p
    return np.argsort(-(np.log(zipf(experts)) + noise), axis=1)[:, :k].T.reshape(-1)


def draw_tokens(random: np.random.Generator, n: int) -> tuple[Array, Array]:
    """x (n, h), and the targets. Each token is about a topic, drawn by Zipf's law, and each topic has a matrix."""
    centers, matrices = draw_topics()
    topic = random.choice(TOPICS, size=n, p=zipf(TOPICS))
    x = centers[topic] + 0.5 * random.standard_normal((n, WIDTH))
    return x, np.einsum("nh,nhi->ni", x, matrices[topic])


def draw_topics() -> tuple[Array, Array]:
    """The topics' centers (8, h), and their matrices (8, h, h)."""
    random = np.random.default_rng(0)
    centers = random.standard_normal((TOPICS, WIDTH))
    centers *= 3 / np.linalg.norm(centers, axis=1, keepdims=True)
    return centers, random.standard_normal((TOPICS, WIDTH, WIDTH)) / WIDTH**0.5


def draw_model(by_topic: bool = True) -> SimpleNamespace:
    """router (h, E), up (E, h, m) and down (E, m, h). by_topic: at first, the router sends each topic to its own
    expert; else the router is drawn."""
    random = np.random.default_rng(1)
    return SimpleNamespace(
        router=draw_topics()[0].T.copy() if by_topic else 0.02 * random.standard_normal((WIDTH, EXPERTS)),
        up=random.standard_normal((EXPERTS, WIDTH, HIDDEN)) / WIDTH**0.5,
        down=random.standard_normal((EXPERTS, HIDDEN, WIDTH)) / HIDDEN**0.5 / 2,
    )


class Adam:
    """Adam over the arrays of a model."""

    def __init__(self, rate: float = 0.01) -> None:
        self.rate, self.steps, self.state = rate, 0, dict[str, Array]()

    def update(self, model: SimpleNamespace, gradients: SimpleNamespace) -> None:
        self.steps += 1
        for name, gradient in vars(gradients).items():
            m, v = self.state.setdefault(name, np.zeros((2, *gradient.shape)))
            m += 0.1 * (gradient - m)
            v += 0.01 * (gradient**2 - v)
            mean, square = m / (1 - 0.9**self.steps), v / (1 - 0.99**self.steps)
            vars(model)[name] -= self.rate * mean / (np.sqrt(square) + 1e-8)


def error(found: Array, wanted: Array) -> float:
    """The length of the difference, in percent of the length of what is wanted."""
    return float(100 * np.linalg.norm(found - wanted) / max(float(np.linalg.norm(wanted)), 1e-12))


def try_slopes(loss: Callable[[], float], array: Array, change: float = 1e-6) -> Array:
    """The gradient of the loss by an array that it reads, by finite differences."""
    slopes = np.empty_like(array)
    for index in np.ndindex(array.shape):
        kept, around = array[index], []
        for moved in (kept + change, kept - change):
            array[index] = moved
            around.append(loss())
        array[index] = kept
        slopes[index] = (around[0] - around[1]) / (2 * change)
    return slopes


def show_slopes(
    programs: Mapping[str, Mapping[str, Any]],
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    x: Array,
    target: Array,
    on_ranks: Sequence[Mapping[str, tuple[Array, Array]]],
) -> dict[str, list[float]]:
    """Print by how much the gradients of x and of the router differ: on four ranks and one, and from finite
    differences. on_ranks: of each rank and program dx of its own tokens, and the router's gradient."""
    model, found, k = draw_model(), {}, 2

    def loss() -> float:
        y, _ = forward(x, model, k, k * len(x))
        return float(((y - target) ** 2).mean())

    tried = [try_slopes(loss, array) for array in (x, model.router)]
    print("difference in %      four ranks and one      finite differences")
    print(" " * 16 + 2 * "          dx      router")
    for name, mistake in programs.items():
        y, kept = forward(x, model, k, k * len(x))
        dx, gradients = backward(2 * (y - target) / y.size, kept, model, **mistake)
        one = dx, gradients.router
        four = np.concatenate([of[name][0] for of in on_ranks]), on_ranks[0][name][1]
        found[name] = [error(a, b) for a, b in zip((*four, *one), (*one, *tried), strict=True)]
        print(f"{name:16}" + "".join(f"{each:12.1f}" for each in found[name]))
    return found


def show_ends(runs: Mapping[str, tuple[list[float], list[float]]], last: int) -> dict[str, tuple[float, float]]:
    """Print, and return, each run's percentage of dropped choices and its loss: means over the last steps."""
    ends = {name: (float(np.mean(run[0][-last:])), float(np.mean(run[1][-last:]))) for name, run in runs.items()}
    for name, (dropped, loss) in ends.items():
        print(f"{name:9} in the last {last} steps {dropped:3.0f}% dropped, loss {loss:.2f}")
    return ends


# ---- the notebook's mixture on ranks ---------------------------------------------------------------------------------


def follow(comm: Comm, to_experts: Callable[..., Array]) -> tuple[Array, Array]:
    """A row for each expert, on this rank before dispatch and after it: from which rank it is, and for which expert."""
    rows = np.stack([np.full(EXPERTS, float(comm.rank)), np.arange(float(EXPERTS))], axis=1)  # (E, 2)
    return rows, to_experts(comm, rows[:, None]).reshape(-1, 2)


def sent_by_phase(comm: Comm) -> dict[str, int]:
    """The bytes that this rank has sent, by phase."""
    return {phase: counted["bytes"] for phase, counted in comm.ledger.by_phase().items()}


def draw_part(comm: Comm, peers: Comm) -> tuple[Array, Array, SimpleNamespace]:
    """This rank's tokens, what is wanted of them, and the model with the experts of this rank."""
    x, target = (np.split(whole, comm.size)[comm.rank] for whole in draw_tokens(np.random.default_rng(9), 64))
    model = draw_model(by_topic=False)
    model.up, model.down = (np.split(whole, peers.size)[peers.rank].copy() for whole in (model.up, model.down))
    return x, target, model


def forward_on_ranks(own: Any, peers: Comm, x: Array, model: Any, k: int) -> tuple[Array, SimpleNamespace]:
    """y (n, h) and what the backward needs; `own` has the functions of the exercise. Nothing is dropped."""
    n, experts, h = len(x), model.router.shape[1], x.shape[1]
    prob = softmax(x @ model.router)
    chosen = np.argsort(-prob, axis=1)[:, :k].T
    expert, gates = chosen.reshape(-1), prob[np.arange(n), chosen]
    slot, place = own.arrange(expert, experts, k * n)  # room for all
    counts = np.full(experts, k * n)
    arrived, coming = own.dispatch(peers, own.copy_rows(x, slot), counts)
    arrived = arrived.reshape(len(model.up), -1, h)  # (experts here, rows, h)
    hidden = np.maximum(arrived @ model.up, 0)
    rows = own.combine(peers, (hidden @ model.down).reshape(-1, h), coming, counts)
    return own.add_rows(rows, gates, place), SimpleNamespace(**locals())


def backward_on_ranks(own: Any, dy: Array, at: Any, model: Any, slopes: Array) -> list[Array]:
    """This rank's gradients of router, up and down, flat. slopes (n, E): of the balance loss by the router's logits."""
    drows, dgates = own.add_rows_backward(dy, at.rows, at.gates, at.place)
    dresults = own.dispatch(at.peers, drows, at.counts)[0].reshape(at.arrived.shape)
    dhidden = (dresults @ model.down.transpose(0, 2, 1)) * (at.hidden > 0)
    dprob = np.zeros_like(at.prob)
    dprob[np.arange(at.n), at.chosen] = dgates
    dlogits = at.prob * (dprob - (dprob * at.prob).sum(axis=1, keepdims=True)) + slopes
    up, down = at.arrived.transpose(0, 2, 1) @ dhidden, at.hidden.transpose(0, 2, 1) @ dresults
    return [(at.x.T @ dlogits).reshape(-1), up.reshape(-1), down.reshape(-1)]


def train_in_one_process(forward: Callable[..., Any], backward: Callable[..., Any], balance_slope: Any) -> list[float]:
    """The losses of the same training: all tokens and all experts are here."""
    (x, target), model, losses = draw_tokens(np.random.default_rng(9), 64), draw_model(by_topic=False), []
    for _ in range(20):
        y, kept = forward(x, model, 2, 2 * len(x))
        share = np.bincount(kept.chosen.reshape(-1), minlength=EXPERTS) / (2 * len(x))
        losses.append(float(((y - target) ** 2).mean() + 0.1 * EXPERTS * share @ kept.prob.mean(axis=0)))
        _, gradients = backward(2 * (y - target) / y.size, kept, model)
        gradients.router += x.T @ balance_slope(kept.prob, share, 0.1)
        for name, gradient in vars(gradients).items():
            vars(model)[name] -= 2.0 * gradient
    return losses


# ---- the chapter, with one of the four experts on each of four ranks -------------------------------------------------

SHAPE = {"vocabulary": 32, "context": 16, "layers": 2, "heads": 4, "width": 32, "tied": True}
TOKENS = np.random.default_rng(0).integers(0, 24, (8, 17))
OPTIMIZERS = {"SGD": (SGD(), 0.1), "AdamW": (AdamW(), 1e-3)}


def declare(optimizer: str) -> tuple[Any, Settings]:
    """A GPT with four experts in each of its two layers, k = 2; and how it is trained."""
    from minidist.nn.mixture import Routing, with_experts  # not above: it answers the exercise, and is hidden there

    rule, rate = OPTIMIZERS[optimizer]
    settings = Settings(PRECISIONS["fp64"], rule, learning_rate=lambda update: rate, clip=0.0)
    return with_experts(gpt(GPTConfig(**SHAPE)), 4, Routing(top=2)), settings


def make_engine(comm: Comm, optimizer: str) -> Any:
    """The package's engine for it, with one expert of each layer on this rank."""
    from minidist.expert_parallel import expert_parallel
    from minidist.layout import Layout

    return expert_parallel(*declare(optimizer), comm, Layout(dp=comm.size, ep=comm.size), zero=0)


def train(engine: Any, steps: int = 20) -> tuple[list[float], float]:
    """This rank's part of the loss in each step, always on the same batch. And the norm of its experts' gradient in the
    first step."""
    losses, first = list[float](), 0.0
    for step in range(steps):
        loss = engine.forward(TOKENS[:, :-1], TOKENS[:, 1:])
        losses.append(loss.value)
        engine.backward(loss)
        if not step:
            first = float(np.sqrt(sum((flat.grad**2).sum() for flat in experts_of(engine))))
        engine.step()
    return losses, first


def train_serially(optimizer: str) -> tuple[list[float], float]:
    """The same in one process, which has all experts."""
    from minidist.engine import Engine

    return train(Engine(*declare(optimizer)))


def experts_of(engine: Any) -> list[Any]:
    """The Flats of its experts: one for each layer."""
    return [flat for flat in engine.flats if flat.parameters[0].group == "experts"]


def change_experts_gradients(engine: Any, change: Callable[[Array], Any]) -> None:
    """Call `change` with each gradient of an expert, as soon as the engine has summed it."""
    reduce, experts = engine.reduce, experts_of(engine)

    def reduce_and_change(flat: Any) -> None:
        reduce(flat)
        if flat in experts:
            change(flat.grad)

    engine.reduce = reduce_and_change


def copy_experts(engine: Any) -> Array:
    """A copy of the parameters of the experts that are here."""
    return np.concatenate([flat.param for flat in experts_of(engine)])


def add_up(runs: Sequence[tuple[list[float], float]]) -> tuple[Array, float]:
    """Losses, added up over the ranks, and the norm of all experts' first gradient."""
    return np.sum([losses for losses, _ in runs], axis=0), float(np.sqrt(sum(norm**2 for _, norm in runs)))


def show_factors(
    summed: Mapping[tuple[str, float], tuple[Array, float]],
    serial: Mapping[str, tuple[list[float], float]],
    names: Mapping[float, str],
) -> dict[tuple[str, float], float]:
    """Print, for each optimizer and factor, what differs from serial training. Returns the losses' largest
    difference."""
    print(f"{'compared with serial training':32}largest difference of a loss   first gradient of experts")
    off = {}
    for (optimizer, times), (losses, norm) in summed.items():
        wanted, first = serial[optimizer]
        off[optimizer, times] = float(max(abs(losses / wanted - 1)))
        shown = "none" if off[optimizer, times] < 1e-9 else f"{off[optimizer, times]:.0e}"
        print(f"{optimizer:8}{names[times]:24}{shown:>28}{norm / first:>21.2f} times")
    return off
