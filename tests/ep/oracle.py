"""A mixture of experts written token by token, on its own: what minidist's are held against.

They share only parameters (names, shapes, initial values) and the tape's entry. Each choice is taken by itself, in the
order in which experts are filled; forward and backward are loops over tokens.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from minidist.nn.layers import Batch, Block, Unit
from minidist.nn.mixture import Mixture
from minidist.nn.tensor import Array, Parameter, Tensor, record


def gelu(x: Array) -> tuple[Array, Array]:
    """The value, and the derivative's matrix."""
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    t = np.tanh(u)
    slope = 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return 0.5 * x * (1 + t), np.diag(slope)


def swiglu(x: Array) -> tuple[Array, Array]:
    gate, up = np.split(x, 2)
    s = 1 / (1 + np.exp(-gate))
    return gate * s * up, np.hstack([np.diag(up * s * (1 + gate * (1 - s))), np.diag(gate * s)])


class TokenByToken:
    """In place of a Mixture, in serial training: the tokens of `ranks` ranks, each of which fills experts on its own.

    positions: if several ranks divide the sequences, the positions that each of them has.

    hosts: the number of hosts on which experts are, and how many of them a token may go to.

    dropped: by the batch's key, the choices that found their expert full, as (token, which choice).
    """

    def __init__(
        self,
        mixture: Mixture,
        ranks: int,
        llama: bool,
        positions: Sequence[Sequence[int]] = (),
        hosts: tuple[int, int] = (1, 1),
    ) -> None:
        self.mixture, self.ranks, self.parameters = mixture, ranks, mixture.parameters
        self.positions, self.hosts = positions, hosts
        self.act = swiglu if llama else gelu
        self.dropped: dict[tuple[int, ...], list[tuple[int, int]]] = {}

    def expert(self, e: int, x: Array) -> tuple[Array, Array, Array, Array]:
        """Its result for a token x (C,), the hidden values (F,), their derivative, and its up-projection."""
        mlp = self.mixture.experts[e]
        u = mlp.up.weight.data @ x + (mlp.up.bias.data if mlp.up.bias else 0)
        hidden, slope = self.act(u)
        y = mlp.down.weight.data @ hidden + (mlp.down.bias.data if mlp.down.bias else 0)
        return y, hidden, slope, u

    def chosen(self, prob: Array) -> list[int]:
        """A token's k experts, the most probable first, on the hosts whose best experts are best together."""
        k, (hosts, limit) = self.mixture.routing.top, self.hosts
        each = len(prob) // hosts
        scores = [sum(sorted(prob[host * each : (host + 1) * each])[-max(1, k // limit) :]) for host in range(hosts)]
        allowed = sorted(range(hosts), key=lambda host: -scores[host])[:limit]
        return [expert for expert in best(prob) if expert // each in allowed][:k]

    def choices(
        self, x: Array, groups: Sequence[Sequence[int]]
    ) -> tuple[Array, list[tuple[int, int]], list[tuple[int, int]]]:
        """Each token's probabilities; who goes where, as (token, expert); who is dropped, as (token, which choice)."""
        routing, e = self.mixture.routing, self.mixture.number
        logits = np.array([self.mixture.router.weight.data @ token for token in x])
        prob = np.array([np.exp(row - row.max()) / np.exp(row - row.max()).sum() for row in logits])
        capacity = math.inf
        if routing.capacity is not None:
            capacity = math.ceil(Fraction(str(routing.capacity)) * routing.top * Fraction(len(x), len(groups)) / e)
        goes, dropped = [], []
        for group in groups:
            used = [0] * e
            for which in range(routing.top):
                for token in group:
                    expert = self.chosen(prob[token])[which]
                    if used[expert] < capacity:
                        used[expert] += 1
                        goes.append((token, expert))
                    else:
                        dropped.append((token, which))
        return prob, goes, dropped

    def __call__(self, x: Tensor, norm: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        x = norm(x)
        shape, length = x.shape, x.shape[1]
        groups = [
            [row * length + at for row in rows.tolist() for at in positions]
            for rows in np.array_split(np.arange(shape[0]), self.ranks)
            for positions in self.positions or [range(length)]
        ]
        tokens = x.data.reshape(-1, shape[-1])
        prob, goes, dropped = self.choices(tokens, groups)
        y = np.zeros_like(tokens)
        for token, expert in goes:
            y[token] += prob[token, expert] * self.expert(expert, tokens[token])[0]
        if batch.key is not None:
            self.dropped[batch.key] = dropped
            if self.mixture.routing.balance:
                batch.add_loss(self.balance(x, prob))

        def backward(dy: Array, x: Array) -> Array:
            tokens, dy = x.reshape(-1, shape[-1]), dy.reshape(-1, shape[-1])
            prob, goes, _ = self.choices(tokens, groups)
            dx, dprob = np.zeros_like(tokens), np.zeros_like(prob)
            for token, e in goes:
                mlp, (result, hidden, slope, _) = self.mixture.experts[e], self.expert(e, tokens[token])
                dprob[token, e] += dy[token] @ result
                dresult = prob[token, e] * dy[token]
                du = (mlp.down.weight.data.T @ dresult) @ slope
                dx[token] += mlp.up.weight.data.T @ du
                add(mlp.down.weight, np.outer(dresult, hidden))
                add(mlp.up.weight, np.outer(du, tokens[token]))
                if mlp.up.bias and mlp.down.bias:
                    add(mlp.down.bias, dresult)
                    add(mlp.up.bias, du)
            return (dx + self.router_back(tokens, prob, dprob)).reshape(shape)

        return record(y.reshape(shape), (x,), backward, keep=(x.data,))

    def router_back(self, tokens: Array, prob: Array, dprob: Array) -> Array:
        dx = np.zeros_like(tokens)
        for token, (p, dp) in enumerate(zip(prob, dprob, strict=True)):
            dlogits = (np.diag(p) - np.outer(p, p)) @ dp
            dx[token] = self.mixture.router.weight.data.T @ dlogits
            add(self.mixture.router.weight, np.outer(dlogits, tokens[token]))
        return dx

    def balance(self, x: Tensor, prob: Array) -> Tensor:
        """α·E·Σ f P."""
        routing, (n, e), shape = self.mixture.routing, prob.shape, x.shape
        f = np.zeros(e)
        for p in prob:
            for expert in self.chosen(p):
                f[expert] += 1 / (n * routing.top)
        loss = routing.balance * e * sum(f[i] * prob[:, i].mean() for i in range(e))

        def backward(dloss: Array, x: Array) -> Array:
            dprob = np.array([dloss * routing.balance * e * f / n] * n)
            return self.router_back(x.reshape(n, -1), prob, dprob).reshape(shape)

        return record(np.asarray(loss), (x,), backward, keep=(x.data,))


def best(prob: Array) -> list[int]:
    """Experts, the most probable first; of equal ones the first."""
    return sorted(range(len(prob)), key=lambda i: (-prob[i], i))


def add(parameter: Parameter, gradient: Array) -> None:
    parameter.accumulate(lambda out: np.copyto(out, gradient))


def with_oracle(
    units: list[Unit],
    ranks: int,
    llama: bool = False,
    positions: Sequence[Sequence[int]] = (),
    hosts: tuple[int, int] = (1, 1),
) -> list[Unit]:
    """The same model with its mixtures written token by token."""
    return [
        replace(unit, mlp=TokenByToken(unit.mlp, ranks, llama, positions, hosts))
        if isinstance(unit, Block) and isinstance(unit.mlp, Mixture)
        else unit
        for unit in units
    ]


def dropped_by(units: Sequence[Unit]) -> list[dict[tuple[int, ...], list[tuple[int, int]]]]:
    """For each mixture that is written token by token, what it dropped, by the batch's key."""
    return [unit.mlp.dropped for unit in units if isinstance(unit, Block) and isinstance(unit.mlp, TokenByToken)]


def check_same(found: Mapping[str, Any], truth: Mapping[str, Any], tolerance: float = 1e-12) -> None:
    """Losses and norms; gradients and parameters relative to the largest of all, because an expert may get no token."""
    for series in ("losses", "norms"):
        np.testing.assert_allclose(found[series], truth[series], rtol=tolerance, atol=0)
    for arrays in ("gradients", "parameters"):
        assert found[arrays].keys() == truth[arrays].keys()
        largest = max(np.abs(array).max() for array in truth[arrays].values())
        for name, array in truth[arrays].items():
            assert np.abs(found[arrays][name] - array).max() <= tolerance * largest, (arrays, name)
