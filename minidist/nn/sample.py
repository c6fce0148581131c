"""Text from a trained model."""

import numpy as np

from minidist.nn.layers import Batch, Unit
from minidist.nn.tensor import Array, Tensor


def generate(units: list[Unit], weights: dict[str, Array], n: int, context: int, seed: int) -> Array:
    """n token numbers, drawn one after the other from the model's predictions. weights: every parameter by name.

    The first is predicted from token 0, the vocabulary's first character, which stands for the beginning.
    """
    for unit in units:
        for parameter in unit.parameters:
            parameter.bind(weights[parameter.name])
    rng = np.random.default_rng(seed)
    tokens = [0]
    for _ in range(n):
        batch = Batch(np.array([tokens[-context:]]))  # (1, T)
        h = batch.tokens
        for unit in units:
            h = unit(Tensor(h), batch).data
        logits = h[0, -1].astype(np.float64)  # (V,): what follows the last position
        p = np.exp(logits - logits.max())
        tokens.append(int(rng.choice(len(p), p=p / p.sum())))
    return np.array(tokens[1:])
