"""What lesson 02's notebook starts from, runs and counts. The answers to its gaps are in answers.py.

A program that is graded has no minidist.nn.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray


ASKED = (
    *("walk_back", "linear_backward", "cross_entropy_backward", "layer_norm_backward"),
    *("values_backward", "softmax_backward", "adamw"),
)
V, T, B = 16, 12, 24  # tokens of the vocabulary, of a sequence; sequences of a batch
ODDS = np.array([1 / 2, 1 / 4, 1 / 8, 1 / 8])  # of the four tokens that may follow a token
SMALL = {"vocabulary": V, "context": T, "layers": 1, "heads": 2, "width": 16}
FOLLOWERS = np.array([np.random.default_rng([7, token]).permutation(V)[:4] for token in range(V)])


def draw_batch(step: int) -> tuple[Array, Array]:
    """Tokens (B, T) and their targets (B, T): the same tokens, one place later."""
    random = np.random.default_rng(step)
    text = np.empty((B, T + 1), int)
    text[:, 0] = random.integers(0, V, B)
    for place in range(T):
        text[:, place + 1] = FOLLOWERS[text[:, place], random.choice(4, B, p=ODDS)]
    return text[:, :-1], text[:, 1:]


def start_tied() -> dict[str, Array]:
    """The parameters of the smallest tied model."""
    random = np.random.default_rng(1)
    return {"E": random.standard_normal((V, 8)), "W": random.standard_normal((8, 8))}


def try_slopes(
    slope: Callable[..., float], loss: Callable[[Any], float], parameters: Mapping[str, Array], tokens: Array
) -> list[tuple[str, str, tuple[int, int], float]]:
    """Four slopes of the tied model by trial: (description, parameter, place in it, slope)."""
    here, absent = int(tokens[0]), next(token for token in range(V) if token not in tokens)
    places = [
        ("a number of W", "W", (0, 0)),
        ("another one", "W", (3, 5)),
        (f"a number of E, row {here}, of a token here", "E", (here, 0)),
        (f"a number of E, row {absent}, of no token here", "E", (absent, 0)),
    ]
    return [(words, name, place, slope(loss, parameters[name], place)) for words, name, place in places]


def initial_parameters(config: Mapping[str, int], only: str = "", dtype: Any = np.float64) -> dict[str, Array]:
    """{name: array} of the package's GPT, or of the unit of that name."""
    from minidist.nn.gpt import GPTConfig, gpt

    units = gpt(GPTConfig(**config))
    chosen = [p for unit in units for p in unit.parameters if p.name.startswith(only)]
    return {p.name: p.initial(seed=0).astype(dtype) for p in chosen}


def judge(
    loss_and_gradients: Callable[..., Any], slope: Callable[..., float], functions: Mapping[str, Any]
) -> dict[str, tuple[Array, Array]]:
    """For each parameter array, the slopes of three numbers: by trial, and from the tape."""
    random, parameters, batch = np.random.default_rng(3), initial_parameters(SMALL), draw_batch(0)
    for array in parameters.values():  # away from the 0 and 1 from which some start
        array += 0.3 * random.standard_normal(array.shape)
    _, gradients, _ = loss_and_gradients(parameters, batch, functions)
    slopes = {}
    for name, array in parameters.items():
        places = [tuple(place) for place in random.integers(0, array.shape, (3, array.ndim))]
        by_trial = [slope(lambda _: loss_and_gradients(parameters, batch, functions)[0], array, at) for at in places]
        slopes[name] = np.array(by_trial), np.array([gradients[name][at] for at in places])
    return slopes


def list_right(slopes: Mapping[str, tuple[Array, Array]]) -> list[str]:
    """The parameters whose gradient agrees with the slopes by trial."""
    largest = max(np.abs(by_trial).max() for by_trial, _ in slopes.values())
    return [name for name, (a, b) in slopes.items() if np.abs(a - b).max() < 1e-7 * largest]


def count_parameters() -> tuple[dict[str, list[int]], dict[str, Any], dict[str, dict[str, int]]]:
    """For GPT-2 and LLaMA-2-7B in full size: each unit's parameters as declared and by formula, and all by kind."""
    from minidist.nn.gpt import GPTConfig, gpt
    from minidist.nn.llama import LlamaConfig, llama
    from minidist.papers import gpt2
    from minidist.papers import llama as llama_paper

    models = {"GPT-2": gpt(GPTConfig()), "LLaMA-2-7B": llama(LlamaConfig())}
    computed = {"GPT-2": gpt2.MODELS["gpt2"].units, "LLaMA-2-7B": llama_paper.MODELS["llama2-7b"].units}
    counted = {name: [sum(p.size for p in unit.parameters) for unit in units] for name, units in models.items()}
    kinds = {"wte": "rows for tokens", "head": "rows for tokens", "qkv": "attention", "projection": "attention"}
    where = {}
    for name, units in models.items():
        where[name] = dict.fromkeys(("rows for tokens", "attention", "MLP", "the rest"), 0)
        for p in (p for unit in units for p in unit.parameters):
            layer = p.name.split(".")[-2]
            kind = kinds.get(layer, "MLP" if layer in ("up", "down") else "the rest")
            where[name][kind if len(p.shape) > 1 else "the rest"] += p.size
    return counted, computed, where


def list_kept(steps: Sequence[Any], weights: Mapping[str, Array]) -> list[tuple[str, int]]:
    """The bytes that each step of a block keeps; an array that two steps keep counts once, a parameter never."""
    names = ("norm1", "qkv", "attention", "projection", "add", "norm2", "up", "gelu", "down", "add")
    known, kept = {id(array) for array in weights.values()}, []
    for name, step in zip(names, steps, strict=True):
        new = [array.nbytes for array in step.kept if id(array) not in known]
        known |= {id(array) for array in step.kept}
        if name == "attention":
            kept += zip(("q, k and v", "probabilities"), new, strict=True)
        else:
            kept.append((name, sum(new)))
    return kept


def train_package(steps: int) -> list[float]:
    """The losses of the package's own GPT, tape and AdamW, from the same start on the same batches."""
    from minidist.engine import Engine, Settings
    from minidist.nn.gpt import GPTConfig, gpt
    from minidist.nn.optim import AdamW
    from minidist.nn.precision import PRECISIONS

    settings = Settings(PRECISIONS["fp64"], AdamW(weight_decay=0.1), lambda update: 0.02, clip=0.0)
    engine, losses = Engine(gpt(GPTConfig(**SMALL)), settings), []
    for step in range(1, steps + 1):
        loss = engine.forward(*draw_batch(step))
        engine.backward(loss)
        engine.step()
        losses.append(loss.value)
    return losses


def losses_by_position(steps: Sequence[Any]) -> Array:
    """The mean loss at each position of the sequence, from the arrays that the last step of a tape keeps."""
    prob, targets = steps[-1].kept
    return np.asarray(-np.log(np.take_along_axis(prob, targets[..., None], -1)).mean((0, 2)))


def mean_attention(steps: Sequence[Any]) -> Array:
    """The probabilities (T queries, T keys) that attention keeps, averaged over sequences and heads."""
    [prob] = [step.kept[1] for step in steps if len(step.kept) == 2 and step.kept[1].ndim == 4]
    return np.asarray(prob.mean((0, 1)))
