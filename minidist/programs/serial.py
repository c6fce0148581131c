"""How one process does what a chapter's ranks do: the truth of its proof (`minidist/claims/proof.py`).

Most chapters are serial training, cut in another way: the plain engine does the same. Not if ranks decide on their own
which choices of experts are dropped, or compute gradients with older weights: then the serial form does that, too. None
of this knows how ranks are numbered, sends a message, or uses a chapter's code.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np

from minidist.cli.shared import mixture_of
from minidist.command import Job
from minidist.engine import Engine, Settings
from minidist.nn.flat import Flat
from minidist.nn.layers import Batch, Block, Tokens, Unit
from minidist.nn.mixture import Mixture, RoutingPlan, make_plan
from minidist.nn.tensor import Array
from minidist.papers.collectives import chunk_sizes
from minidist.papers.context import positions


@dataclass(frozen=True)
class Serial:
    """A chapter's serial form."""

    make: Callable[[Job], Engine] = lambda job: Engine(job.units, job.settings)
    steps: int = 2  # until all that the chapter does has been done
    plain: bool = True  # whether every gradient is that of the newest weights: then gradients are compared, too
    micro_batches: int | None = None  # in a step; None: two, or one if the run has one
    shorter: bool = True  # whether its sequences may be shorter than the run's
    own: Any = None  # own options that bring it to do so in these steps; None: the run's
    positions: str = "zigzag"  # how context ranks divide them
    host_limit: int | None = None  # of the hosts that a token may go to


PLAIN = Serial()
PHASE = "proof"  # what a proof sends: outside the claims about a step


# ---- gradients of older weights --------------------------------------------------------------------------------------


class Delayed(Engine):
    """Serial training whose micro-batch k, from 0, sees older weights: those that version(k, flat) updates made."""

    def __init__(self, units: list[Unit], settings: Settings, version: Callable[[int, Flat], int]) -> None:
        super().__init__(units, settings)
        self.version, self.history, self.first = version, dict[Flat, list[Array]](), 0

    def train_batch(self, x: Tokens, y: Tokens) -> float:
        if not self.history:  # after a checkpoint was loaded
            self.history, self.first = {flat: [flat.param.copy()] for flat in self.flats}, self.steps
        return super().train_batch(x, y)

    def parameters_of(self, flat: Flat) -> Array:
        if not self.history:
            return flat.param
        k = (self.steps - self.first) * self.settings.accumulate + self.micro_batch
        return self.history[flat][self.version(k, flat)]

    def update_all(self, scale: float) -> None:
        super().update_all(scale)
        for flat, versions in self.history.items():
            versions.append(flat.param.copy())


# ---- shares of a batch, one after the other --------------------------------------------------------------------------


def share_of(rows: int, n: int, number: int) -> range:
    """The rows of one of n shares, the longer ones first."""
    sizes = chunk_sizes(rows, n)
    first = sum(sizes[:number])
    return range(first, first + sizes[number])


class Shares(Engine):
    """Serial training that knows the gradient of each of n shares of the batch, to sum them by a rule of its own."""

    def __init__(self, job: Job, n: int) -> None:
        super().__init__(job.units, job.settings)
        self.n = n
        self.share: int | None = None  # whose rows are worked on; None: all rows

    def rows(self, n: int) -> range:
        return range(n) if self.share is None else share_of(n, self.n, self.share)

    def by_share(self, numbered: Iterable[tuple[int, tuple[Tokens, Tokens]]]) -> tuple[float, dict[Flat, list[Array]]]:
        """The loss of some micro-batches, with their numbers in the step; and of each Flat, every share's gradient."""
        loss, found, numbered = 0.0, {flat: list[Array]() for flat in self.flats}, list(numbered)
        for share in range(self.n):
            self.share = share
            for number, part in numbered:
                self.micro_batch = number
                own = self.forward(*part)
                self.backward(own)
                loss += own.value
            for flat, gradients in found.items():
                gradients.append(flat.grad.copy())
                flat.grad.fill(0)
        self.share = None
        return loss, found


# ---- trainings that meet now and then --------------------------------------------------------------------------------


class Own(Engine):
    """One of n trainings, each of the mean loss over its own rows."""

    def __init__(self, job: Job, number: int, n: int) -> None:
        super().__init__(job.declared(), job.settings)
        self.number, self.n = number, n

    def rows(self, n: int) -> range:
        return share_of(n, self.n, self.number)

    def weight(self, share: float) -> float:
        return 1 / self.settings.accumulate


class Averaged(Engine):
    """The parameters θ to which n trainings are set back every H steps: DiLoCo (algorithm 1) with Nesterov momentum,
    Δ = θ - mean, v ← μ v + Δ, θ ← θ - η (Δ + μ v). With η = 1 and μ = 0 θ is the mean."""

    def __init__(self, job: Job, n: int, every: int, lr: float, momentum: float) -> None:
        super().__init__(job.units, job.settings)
        self.own = [Own(job, number, n) for number in range(n)]
        self.every, self.lr, self.momentum = every, lr, momentum
        self.v = [np.zeros(flat.padded) for flat in self.flats]

    def train_batch(self, x: Tokens, y: Tokens) -> float:
        loss = sum(own.train_batch(x, y) for own in self.own)
        self.steps += 1
        if self.steps % self.every == 0:
            self.average()
        return loss

    def average(self) -> None:
        for i, (flat, *copies) in enumerate(zip(self.flats, *(own.flats for own in self.own), strict=True)):
            delta = flat.master - np.mean([copy.master for copy in copies], axis=0)
            self.v[i] = self.momentum * self.v[i] + delta
            flat.master -= self.lr * (delta + self.momentum * self.v[i])
            for copy in copies:
                copy.master[...] = flat.master

    def settle(self) -> None:
        if self.steps % self.every:
            self.average()


# ---- experts that each rank fills on its own -------------------------------------------------------------------------


@dataclass(frozen=True)
class Apart(Mixture):
    """All tokens of a micro-batch. Each rank's tokens fill the experts on their own, up to a common capacity."""

    groups: Callable[[int, int], list[Array]] = field(kw_only=True)  # rows, positions: the tokens of each rank
    hosts: int = field(kw_only=True, default=1)  # of the experts
    limit: int = field(kw_only=True, default=1)  # of hosts that a token may go to

    def plan(self, chosen: Array, batch: Batch) -> RoutingPlan:
        groups, (n, k) = self.groups(*batch.tokens.shape), chosen.shape
        room = self.room(Fraction(n, len(groups)))
        if room is None:
            return super().plan(chosen, batch)
        slots = np.full((self.number, len(groups), room), k * n)
        for group, tokens in enumerate(groups):
            own = make_plan(chosen[tokens], self.number, room).slot
            choice, token = np.divmod(own, len(tokens))
            taken = own < k * len(tokens)
            slots[:, group] = np.where(taken, choice * n + tokens[token % len(tokens)], k * n).reshape(-1, room)
        slot = slots.reshape(-1)
        place = np.full(k * n + 1, len(slot))
        place[slot] = np.arange(len(slot))
        return RoutingPlan(slot.astype(np.int32), place[:-1].astype(np.int32), np.full(self.number, len(groups) * room))

    def choose(self, prob: Array) -> Array:
        """Of the hosts, those whose k/limit best experts are best together."""
        by_host = np.sort(prob.reshape(len(prob), self.hosts, -1))[..., ::-1]
        scores = by_host[..., : max(1, self.routing.top // self.limit)].sum(axis=-1)
        best = np.argsort(-scores, kind="stable")[:, : self.limit]
        allowed = np.zeros((len(prob), self.hosts), bool)
        np.put_along_axis(allowed, best, True, axis=1)
        return super().choose(np.where(np.repeat(allowed, self.number // self.hosts, axis=1), prob, -1))


def units_of(job: Job, serial: Serial) -> list[Unit]:
    """A fresh model for one process."""
    units, at, mixture = job.declared(), job.layout, mixture_of(job.own)
    if not mixture.experts or (mixture.routing.capacity is None and serial.host_limit is None):
        return units

    def groups(rows: int, length: int) -> list[Array]:
        tokens = np.arange(rows * length).reshape(rows, length)
        shares = np.split(tokens, np.cumsum(chunk_sizes(rows, at.dp))[:-1])
        own = positions(length, at.cp, serial.positions) if at.cp > 1 else [list(range(length))]
        return [share[:, each].reshape(-1) for share in shares for each in own]

    how: dict[str, Any] = {"groups": groups, "hosts": at.ep_hosts, "limit": serial.host_limit or at.ep_hosts}
    return [
        replace(unit, mlp=Apart(**{each.name: getattr(unit.mlp, each.name) for each in fields(unit.mlp)}, **how))
        if isinstance(unit, Block) and isinstance(unit.mlp, Mixture)
        else unit
        for unit in units
    ]
