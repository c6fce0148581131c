"""A mixture of experts in place of a block's MLP (Shazeer et al. 2017): E MLPs, and each token goes through k of them.

A router chooses. Its softmax over all experts gives each token a probability for each: the token goes to the k experts
with the largest ones, and their results, times these probabilities, are summed. So a model has E times the parameters
of its MLPs, and a token costs k times their arithmetic.

Between router and experts, tokens become rows. A row is a copy of a token, for one of its k choices, and rows are
sorted by expert. A `Plan` says which choice each row is, and, as the inverse, which row each choice became.

With a capacity, each expert has room for C rows, and each rank always makes E·C of them: an empty place is a row of
zeros, and a choice that finds its expert full is dropped. The token then passes by the residual connection (GShard,
Lepikhin et al. 2020; Switch Transformer, Fedus et al. 2021). Without one, no choice is dropped, and the number of rows
for an expert is known only after the router has run (MegaBlocks, Gale et al. 2022).

n: the tokens of a batch, B·T; R: rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np

from minidist.nn.layers import MLP, Batch, Block, Linear, Unit
from minidist.nn.product import product
from minidist.nn.tensor import Array, Parameter, Tensor, record

EXPERTS = "experts"  # the group of their parameters


@dataclass(frozen=True)
class Routing:
    """How tokens find their experts."""

    top: int = 1  # k
    capacity: float | None = None  # room for this many times the mean of rows; None: for all
    balance: float = 1e-2  # α, the weight of the balance loss


class Tally(NamedTuple):
    """What a router has decided in one forward."""

    chosen: tuple[int, ...]  # choices of each expert
    dropped: int  # choices
    hosts: tuple[int, ...] = ()  # if the experts are on several hosts: tokens that go to 1, 2, ... of them
    leave: tuple[int, ...] = ()  # then also: copies of tokens to other hosts, for each expert there, and for each host


# ---- from tokens to rows ---------------------------------------------------------------------------------------------


class RoutingPlan(NamedTuple):
    """Which choice each row is, and the inverse. Choice j of token t has the number j·n + t."""

    slot: Array  # (R,) the choice in this row; k·n: none
    place: Array  # (k·n,) the row of this choice; R: none, it was dropped
    counts: Array  # (E,) rows of each expert


def choose(prob: Array, k: int) -> Array:
    """The k experts of each token, the most probable first; of equal ones the first: (n, E) -> (n, k)."""
    return np.argsort(-prob, axis=-1, kind="stable")[:, :k].astype(np.int32)


def make_plan(chosen: Array, experts: int, capacity: int | None) -> RoutingPlan:
    """Rows for the choices (n, k). An expert is filled by all tokens' first choices before any second one."""
    n, k = chosen.shape
    expert = chosen.T.reshape(-1)  # (k·n,)
    slot = np.argsort(expert, kind="stable")  # by expert, and each expert's in order of arrival
    counts = np.bincount(expert, minlength=experts)
    if capacity is not None:
        queue = np.arange(k * n) - np.repeat(np.cumsum(counts) - counts, counts)  # from 0, at each expert
        fits = queue < capacity
        filled = slot[fits]
        slot = np.full(experts * capacity, k * n)
        slot[expert[filled] * capacity + queue[fits]] = filled
        counts = np.full(experts, capacity)
    place = np.full(k * n + 1, len(slot))
    place[slot] = np.arange(len(slot))
    return RoutingPlan(slot.astype(np.int32), place[:-1].astype(np.int32), counts)


def padded(x: Array) -> Array:
    """x with a row of zeros at the end, for which number n, or R, stands."""
    return np.concatenate([x, np.zeros((1, *x.shape[1:]), x.dtype)])


def token_of(slot: Array, n: int, k: int) -> Array:
    """The token of each row; n if it has none."""
    return np.where(slot < k * n, slot % n, n)


def copy_tokens(x: Tensor, plan: RoutingPlan, k: int) -> Tensor:
    """x (B, T, C) -> rows (R, C). A token's gradient is the sum of its copies'."""
    shape, n = x.shape, math.prod(x.shape[:-1])

    def backward(drows: Array, place: Array) -> Array:
        return padded(drows)[place].reshape(k, n, -1).sum(axis=0).reshape(shape)

    rows = padded(x.data.reshape(n, -1))[token_of(plan.slot, n, k)]
    return record(rows, (x,), backward, keep_exact=(plan.place,))


def add_up(rows: Tensor, gates: Tensor, plan: RoutingPlan, shape: tuple[int, ...]) -> Tensor:
    """Sum each token's results, times their gates (k, n): rows (R, C) -> y (B, T, C). A dropped choice adds nothing."""
    k, n = gates.shape

    def backward(dy: Array, rows: Array, gates: Array, slot: Array, place: Array) -> tuple[Array, Array]:
        dy = dy.reshape(n, -1)
        dgates = np.einsum("nc,knc->kn", dy, padded(rows)[place].reshape(k, n, -1))
        drows = padded(dy)[token_of(slot, n, k)]
        drows *= padded(gates.reshape(-1))[slot][:, None]
        return drows, dgates

    of_choice = padded(rows.data)[plan.place].reshape(k, n, -1)
    y = np.einsum("kn,knc->nc", gates.data, of_choice).reshape(shape)
    return record(y, (rows, gates), backward, keep=(rows.data,), keep_exact=(gates.data, plan.slot, plan.place))


# ---- the router: in full precision, whatever is stored ---------------------------------------------------------------


def softmax(logits: Array) -> Array:
    """Softmax over the last axis, as (n, E)."""
    prob = logits.reshape(-1, logits.shape[-1])
    prob = np.exp(prob - prob.max(axis=-1, keepdims=True))
    prob /= prob.sum(axis=-1, keepdims=True)
    return prob


def softmax_back(dprob: Array, prob: Array) -> Array:
    dprob -= np.einsum("ne,ne->n", dprob, prob)[:, None]
    dprob *= prob
    return dprob


def gates(logits: Tensor, prob: Array, chosen: Array) -> Tensor:
    """The probabilities of the chosen experts: (B, T, E) -> (k, n). Through them the router learns."""
    shape = logits.shape

    def backward(dgates: Array, prob: Array, chosen: Array) -> Array:
        dprob = np.zeros_like(prob)
        np.put_along_axis(dprob, chosen, dgates.T, axis=1)
        return softmax_back(dprob, prob).reshape(shape)

    of_choice = np.ascontiguousarray(np.take_along_axis(prob, chosen, axis=1).T)
    return record(of_choice, (logits,), backward, keep_exact=(prob, chosen))


def balance(logits: Tensor, prob: Array, share: Array, alpha: float, whole: Array | None = None) -> Tensor:
    """α·E·Σ f P (Switch Transformer, equations 4 to 6): f (E,), the experts' shares of all choices, has no gradient; P
    is their mean probability. It is α if either is the same for all experts, and αE if one gets everything.

    whole: the probabilities of all tokens, if logits are those of some."""
    shape, scale, share = logits.shape, alpha * prob.shape[1], share.astype(prob.dtype)
    of_all = prob if whole is None else whole
    n = len(of_all)

    def backward(dloss: Array, prob: Array, share: Array) -> Array:
        dprob = np.broadcast_to(dloss * scale / n * share, prob.shape).copy()
        return softmax_back(dprob, prob).reshape(shape)

    loss = np.asarray(scale * (share @ of_all.mean(axis=0)), prob.dtype)
    return record(loss, (logits,), backward, keep_exact=(prob, share))


# ---- the layer -------------------------------------------------------------------------------------------------------


def grouped_linear(rows: Tensor, layers: Sequence[Linear], counts: Sequence[int]) -> Tensor:
    """ops.linear with a matrix for each expert, over its own rows: (R, in) -> (R, out)."""
    ends = np.cumsum(counts)[:-1].tolist()
    parts = zip(np.split(rows.data, ends), layers, strict=True)
    y = np.concatenate([product(part, layer.weight.data.T) for part, layer in parts])
    for part, layer in zip(np.split(y, ends), layers, strict=True):
        if layer.bias:
            part += layer.bias.data

    def backward(dy: Array, rows: Array) -> Array:
        parts = zip(np.split(dy, ends), layers, strict=True)
        return np.concatenate([product(part, layer.weight.data) for part, layer in parts])

    def weight_backward(dy: Array, rows: Array) -> None:
        for dpart, part, layer in zip(np.split(dy, ends), np.split(rows, ends), layers, strict=True):
            layer.weight.accumulate(partial(product, dpart.T, part))
            if layer.bias:
                layer.bias.accumulate(partial(np.sum, dpart, 0, None))

    return record(y, (rows,), backward, keep=(rows.data,), weight_backward=weight_backward)


@dataclass(frozen=True)
class Mixture:
    """A router and its experts, which are all here."""

    router: Linear
    experts: Sequence[MLP]
    routing: Routing
    f: Callable[[Tensor], Tensor] = lambda x: x  # what tensor parallelism does before its parts of the experts
    g: Callable[[Tensor], Tensor] = lambda y: y  # and after them
    gather: Callable[[Tensor], Tensor] | None = None  # with sequence parallelism: the logits of all positions
    tallies: dict[tuple[int, ...], list[Tally]] = field(default_factory=dict)  # by a batch's key: one for each forward

    @property
    def parameters(self) -> list[Parameter]:
        return [*self.router.parameters, *(parameter for mlp in self.experts for parameter in mlp.parameters)]

    @property
    def number(self) -> int:
        """E: the number of experts, here or elsewhere."""
        return self.router.weight.shape[0]

    def __call__(self, x: Tensor, norm: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        x = norm(x)
        own = self.router(x)  # (B, T, C) -> (B, T, E)
        logits = self.gather(own) if self.gather else own
        prob = softmax(logits.data)  # (n, E)
        chosen = self.choose(prob)  # (n, k)
        plan = self.plan(chosen, batch)
        if batch.key is not None:  # in training
            self.note(batch.key, self.tally(chosen, plan))
            if self.routing.balance:
                mine = softmax(own.data) if self.gather else prob
                batch.add_loss(balance(own, mine, self.shares(chosen, batch), self.routing.balance, prob))
        rows = self.compute(copy_tokens(self.f(x), plan, self.routing.top), plan.counts.tolist())  # (R, C)
        gate = gates(logits, prob, chosen)
        return self.g(add_up(rows, gate if self.gather else self.f(gate), plan, (*logits.shape[:2], x.shape[-1])))

    def choose(self, prob: Array) -> Array:
        """The k experts of each token: (n, E) -> (n, k)."""
        return choose(prob, self.routing.top)

    def plan(self, chosen: Array, batch: Batch) -> RoutingPlan:
        """Rows for the choices (n, k)."""
        return make_plan(chosen, self.number, self.capacity(batch))

    def capacity(self, batch: Batch) -> int | None:
        """C: rows of a batch that an expert has room for."""
        return self.room(batch.tokens.size)

    def room(self, tokens: Fraction | int) -> int | None:
        """⌈k·cf·T/E⌉ for T tokens (Switch Transformer, equation 3)."""
        if self.routing.capacity is None:
            return None
        exact = Fraction(str(self.routing.capacity))  # 1.1 is not quite 11/10
        return math.ceil(self.routing.top * exact * tokens / self.number)

    def shares(self, chosen: Array, batch: Batch) -> Array:
        """f: each expert's share of all choices in the whole batch (E,). Here this rank has the whole batch."""
        return np.bincount(chosen.reshape(-1), minlength=self.number) / chosen.size

    def compute(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Run each row through its expert: (R, C) -> (R, C)."""
        h = grouped_linear(rows, [mlp.up for mlp in self.experts], counts)  # (R, C) -> (R, F)
        h = self.experts[0].activation(h)
        return grouped_linear(h, [mlp.down for mlp in self.experts], counts)  # (R, F) -> (R, C)

    def tally(self, chosen: Array, plan: RoutingPlan) -> Tally:
        dropped = np.count_nonzero(plan.place == len(plan.slot))
        return Tally(tuple(np.bincount(chosen.reshape(-1), minlength=self.number).tolist()), int(dropped))

    def note(self, key: tuple[int, ...], tally: Tally) -> None:
        """Keep a tally for this step and the next, so that reports can see it. A recomputed forward adds one."""
        for old in [other for other in self.tallies if other[1] < key[1] - 1]:
            del self.tallies[old]
        self.tallies.setdefault(key, []).append(tally)


def with_experts(units: Sequence[Unit], number: int, routing: Routing) -> list[Unit]:
    """The same model, with `number` experts in place of each block's MLP, each as large as that MLP."""
    return [mix(unit, number, routing) if isinstance(unit, Block) else unit for unit in units]


def mix(block: Block, number: int, routing: Routing) -> Block:
    whole = block.mlp
    assert isinstance(whole, MLP)

    def alike(layer: Linear, name: str) -> Linear:
        outputs, inputs = layer.weight.shape
        return Linear(name, inputs, outputs, layer.bias is not None, layer.weight.std or 0.0)

    experts = [
        replace(
            whole,
            up=alike(whole.up, f"{block.name}.expert{i}.up"),
            down=alike(whole.down, f"{block.name}.expert{i}.down"),
        )
        for i in range(number)
    ]
    for parameter in (parameter for mlp in experts for parameter in mlp.parameters):
        parameter.group = EXPERTS
    router = Linear(f"{block.name}.router", block.norm2.weight.shape[0], number, bias=False)
    return replace(block, mlp=Mixture(router, experts, routing))
