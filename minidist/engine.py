"""The engine: one training step as a loop over the model's units, on one rank.

Every strategy is this engine with a few methods changed. Each method concerns one Flat: where its parameters come from,
when they are forgotten, where its gradient is collected, how it is reduced, and how the Flat is updated. The caller
sees three verbs, made familiar by DeepSpeed:

    loss = engine.forward(x, y)
    engine.backward(loss)
    engine.step()

The caller passes the same global batch on every rank; the engine takes its share of the rows. Here it takes all rows.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minidist.memory.link import Link
from minidist.memory.pool import Pool
from minidist.nn.attend import Span
from minidist.nn.flat import Flat
from minidist.nn.layers import Batch, Tokens, Unit, flats_of, micro_batches
from minidist.nn.optim import AdamW, Optimizer, clipping_factor, sum_of_squares
from minidist.nn.precision import PRECISIONS, LossScale, Precision
from minidist.nn.tensor import Array
from minidist.passes import Passage, Passes, count_reads, segments

# Kinds whose joint peak is measured, too:
PEAKS_TOGETHER = {"transient": ("gathered", "bucket"), "kept": ("activations", "ends")}


@dataclass
class Settings:
    """What a step needs to know in addition to the model and the data."""

    precision: Precision = PRECISIONS["mixed"]
    optimizer: Optimizer = field(default_factory=AdamW)
    learning_rate: Callable[[int], float] = lambda update: 1e-3  # a function of the update's number, from 0
    clip: float = 1.0  # the largest norm that all gradients together may have; 0: no clipping
    accumulate: int = 1  # micro-batches per update
    bucket_size: int | None = None  # gradient elements summed over the ranks at once; None: those of one unit
    recompute: str = "none"  # what the backward computes again instead of storing: `minidist/memory/recompute.py`
    tiled: bool = False  # attention in tiles, which keeps no probabilities
    seed: int = 0
    capacity: int | None = None  # bytes that a rank's device can hold, without workspace; more raises OutOfMemory
    host_capacity: int | None = None  # the same for its part of the host's memory
    disk_capacity: int | None = None  # the same for its part of a disk, if one is used
    swap: Any = None  # the file of model states that are on a disk: a SwapFile of `minidist/memory/files.py`


@dataclass
class Loss:
    """The result of a forward: this rank's part of the mean loss, and what the backward needs."""

    value: float  # its sum over a step's ranks and micro-batches is the global batch's mean loss
    weight: float  # its gradient is multiplied by this
    passages: list[Passage]


class Engine(Passes):
    """Serial training, the reference for every other engine."""

    comm: Any = None  # the ranks that share the batch, if there are others
    sums_gradients = True  # over the ranks that share the batch; False: these average parameters instead
    holds_a_stage = False  # whether other ranks hold other units
    accumulated: int | None = None  # micro-batches added up here before a gradient is reduced; None: all of a step
    updates_on = "device"  # the memory in which the optimizer works; or "host"

    def __init__(self, units: list[Unit], settings: Settings, comm: Any = None) -> None:
        if comm is not None:
            self.comm = comm
        self.units, self.settings, self.precision = units, settings, settings.precision
        self.segments = segments(units, settings.recompute)
        self.loss_scale = LossScale(self.precision.loss_scale)
        self.training = True  # whether a backward will follow: False in evaluate
        self.micro_batch = 0  # within the step
        self.steps = self.updates = 0  # a step whose gradients overflow makes no update
        self.norm = 0.0  # of the last step's gradient, before it is clipped
        self.passed = Counter()
        self.make_memories()
        self.states = self.host if self.updates_on == "host" else self.device  # holds what only the update needs
        self.layer_activations = 0  # bytes that the layers keep between forward and backward
        self.divide(units)
        self.flats = flats_of(units)
        for flat, readers in count_reads(units).items():
            flat.readers, flat.backwards_done, flat.device = readers, 0, self.device
            self.make_arrays(flat)

    # ---- what a rank holds, and which piece its optimizer updates ---------------------------------------------------
    # The constructor calls these three, before a subclass's own fields are set.

    def make_memories(self) -> None:
        """This rank's memories, the fastest first, and the links between them."""
        self.device = Pool("device", self.settings.capacity, PEAKS_TOGETHER)
        self.host = Pool("host", self.settings.host_capacity, PEAKS_TOGETHER, beside=self.device)
        self.link = Link(self.device, self.host)
        self.pools, self.links = [self.device, self.host], [self.link]

    def divide(self, units: list[Unit]) -> None:
        """Say which ranks share each Flat. Here: none do."""

    def make_arrays(self, flat: Flat) -> None:
        """Make the arrays that a Flat holds during the whole training."""
        start = self.device.hold("workspace", flat.initial(self.settings.seed))  # float64 (padded,)
        self.allocate(flat, start)
        flat.master, _ = self.owned(flat)
        if self.precision.mixed or self.states is not self.device:
            kind = "optimizer" if self.precision.mixed else "parameters"
            flat.master = self.states.hold(kind, start[self.piece(flat)].astype(self.precision.updated))
        like = flat.master.size, flat.master.dtype
        flat.moments = [self.states.zeros("optimizer", *like) for _ in range(self.settings.optimizer.moments)]

    def allocate(self, flat: Flat, start: Array) -> None:
        """Make the arrays for a Flat's parameters and gradients. Here: whole ones."""
        flat.param = self.device.hold("parameters", start.astype(self.precision.stored))  # (padded,)
        flat.grad = self.device.zeros("gradients", flat.padded, self.precision.summed)  # (padded,)

    def piece(self, flat: Flat) -> slice:
        """The elements of a Flat that this rank updates. Here: all."""
        return slice(0, flat.padded)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        """The parameters and gradients of that piece."""
        return flat.param, flat.grad

    def rows(self, n: int) -> range:
        """The sequences of a global micro-batch, of n, that this rank works on. Here: all."""
        return range(n)

    def span(self, length: int) -> Span | None:
        """The positions of a sequence that this rank works on. Here: all."""
        return None

    # ---- what happens to a Flat on the way through the units --------------------------------------------------------

    def parameters_of(self, flat: Flat) -> Array:
        """All parameters of a Flat (padded,); a unit that reads it is about to run. Here this rank holds them."""
        return flat.param

    def forget(self, flat: Flat) -> None:
        """Drop its parameters: no later unit of this pass reads it. Here they stay."""

    def collect(self, flat: Flat) -> None:
        """Add the gradient that a unit's backward has just written to the stored one."""
        flat.collect(flat.grad)

    def backwards(self, flat: Flat) -> int:
        return flat.readers * (self.accumulated or self.settings.accumulate)

    def reduce(self, flat: Flat) -> None:
        """Sum its gradient, now complete on this rank, over the ranks that share the batch. Here: there are none."""

    # ---- forward ----------------------------------------------------------------------------------------------------

    def train_batch(self, x: Tokens, y: Tokens) -> float:
        """Run a whole step over a global batch; returns this rank's part of its loss."""
        loss = 0.0
        for part in micro_batches(x, y, self.settings.accumulate):
            micro_batch = self.forward(*part)
            self.backward(micro_batch)
            self.step()
            loss += micro_batch.value
            del micro_batch  # its tokens
        return loss

    def forward(self, x: Tokens, y: Tokens) -> Loss:
        """The loss of a global micro-batch: tokens x and targets y, integers (B, T)."""
        self.training = True
        batch = self.share_of(x, y, key=(self.settings.seed, self.steps, self.micro_batch))
        loss, passages = self.run(self.segments, batch.tokens, batch)
        self.layer_activations = self.device.held["activations"]
        share = batch.tokens.size / x.size / self.settings.accumulate
        return Loss(self.loss_share((float(loss) + sum(batch.losses)) * share), self.weight(share), passages)

    def evaluate(self, x: Tokens, y: Tokens) -> float:
        """This rank's part of the mean loss of sequences x with targets y, without dropout. Stores nothing."""
        self.training = False
        batch = self.share_of(x, y)
        loss, _ = self.run(self.segments, batch.tokens, batch, keep=False)
        return self.loss_share(float(loss) * batch.tokens.size / x.size)

    def count_layer_bytes(self, x: Tokens, y: Tokens, dropout: float) -> int:
        """Bytes that the layers would store for a micro-batch with this dropout: runs a forward and drops its tapes."""
        self.training = False
        batch = replace(self.share_of(x, y, key=(self.settings.seed, self.steps, 0)), dropout=dropout)
        _kept = self.run(self.segments, batch.tokens, batch)
        return self.device.held["activations"]

    def share_of(self, x: Tokens, y: Tokens, key: tuple[int, ...] | None = None) -> Batch:
        """This rank's rows of a global micro-batch, or its positions of these. key: the dropout masks depend on it;
        None: no dropout."""
        whole = x.size
        rows = self.rows(len(x))
        span = self.span(x.shape[1])
        here = span.here if span else slice(None)
        own = (np.asarray(ids[rows.start : rows.stop])[:, here] for ids in (x, y))  # only now are they read
        tokens, targets = map(self.as_workspace, own)
        selective = self.settings.recompute == "selective"
        kind = selective, self.settings.tiled
        return Batch(tokens, targets, rows.start, key, *kind, span=span, whole=whole)

    def weight(self, share: float) -> float:
        """The weight in the gradient of a micro-batch's mean loss, whose tokens are this share of the step's. Here: the
        share, so that the ranks' gradients add up to the gradient of the mean over all tokens."""
        return share

    def loss_share(self, loss: float) -> float:
        """What this rank contributes to the sum of the ranks' losses. Here: the loss of its sequences."""
        return loss

    # ---- backward ---------------------------------------------------------------------------------------------------

    def backward(self, loss: Loss) -> None:
        """Add the gradients of a forward's loss, times the loss scale, to those that the step has so far."""
        self.run_back(loss.passages, np.asarray(loss.weight * self.loss_scale.scale, self.precision.computed))

    # ---- step -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Call it after each backward. After the last micro-batch it updates the parameters, unless a gradient
        overflowed."""
        if self.last_micro_batch:
            self.apply_gradients()
        else:
            self.micro_batch += 1

    @property
    def last_micro_batch(self) -> bool:
        """Whether this micro-batch's backward completes the step's gradients."""
        return self.micro_batch == self.settings.accumulate - 1

    @np.errstate(over="ignore", invalid="ignore")  # the next norm shows parameters that have grown too large
    def apply_gradients(self) -> None:
        """End a step: its gradients are summed over the ranks that share the batch."""
        self.device.doing = "in the update"
        self.sum_over_axes()
        self.norm = norm = math.sqrt(self.squared_norm()) / self.loss_scale.scale
        overflow = not math.isfinite(norm)  # the same on every rank, because the norm is
        if overflow and not self.scaled:
            raise OverflowError(f"the gradient of step {self.steps} is not finite: lower --lr")
        if not overflow:
            scale = clipping_factor(norm, self.settings.clip) / self.loss_scale.scale
            self.update_all(scale)
        if self.scaled:
            self.loss_scale.update(overflow)
        for flat in self.flats:
            flat.grad.fill(0)
        self.steps += 1
        self.micro_batch = 0
        self.device.mark("step", "update")

    @property
    def scaled(self) -> bool:
        """Whether losses are scaled, so that an overflow skips one step instead of ending the training."""
        return self.precision.loss_scale > 1

    def sum_over_axes(self) -> None:
        """Sum gradients over ranks on other axes, which hold a part of them. Here: there are no others."""

    def squared_norm(self) -> float:
        """Σ g² over all gradients of the model. Not finite if one of them overflowed."""
        return sum(sum_of_squares(self.owned(flat)[1]) for flat in self.flats if flat.counted)

    def update_all(self, scale: float) -> None:
        """Update all that this rank owns, with gradients multiplied by `scale`, and give other ranks the result."""
        for flat in self.with_states(self.flats):
            self.update(flat, self.owned(flat)[1], scale)
            self.refresh(flat)
        self.after_update()
        self.updates += 1

    def with_states(self, flats: Sequence[Flat]) -> Iterable[Flat]:
        """The Flats, each with its optimizer states in the memory where the update works. Here: they are there."""
        return flats

    def update(self, flat: Flat, grad: Array, scale: float) -> None:
        """Let the optimizer update this rank's piece of a Flat, from the gradient of that piece."""
        lr = self.settings.learning_rate(self.updates)
        decayed = min(max(flat.decayed - self.piece(flat).start, 0), flat.master.size)
        self.settings.optimizer.update(
            flat.master, grad, flat.moments, scale=scale, lr=lr, step=self.updates + 1, decayed=decayed
        )

    def refresh(self, flat: Flat) -> None:
        """Write the updated master copy of this rank's piece to its stored parameters."""
        if self.precision.mixed:
            param, _ = self.owned(flat)
            param[...] = flat.master  # rounded

    def after_update(self) -> None:
        """Send the updated parameters to the ranks that need them. Here: there are no others."""

    def settle(self) -> None:
        """Finish work that runs in parallel with the steps, before parameters are read. Here: there is none."""

    # ---- helpers ----------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> "Engine":
        """The engine that is driven through a step: an engine drives itself."""
        return self

    def whole(self, flat: Flat, piece: Array) -> Array:
        """A whole Flat (padded,), from the pieces that the ranks hold. Here: the piece is the whole."""
        return piece

    def whole_parameters(self, flat: Flat, piece: Array) -> dict[str, Array]:
        """A whole Flat by its parameters' names, each in the shape that the model declares. The pieces that the ranks
        hold may be of values, gradients or optimizer state. All ranks must call this."""
        return {parameter.name: parameter.whole(view) for parameter, view in flat.views(self.whole(flat, piece))}

    def collect_on_rank_0(self, named: dict[str, Array]) -> dict[str, Array]:
        """On rank 0, the arrays of all units by name, from the ranks that hold them. Here: rank 0 holds them all."""
        return named

    def tokens_per_unit(self) -> dict[int, float]:
        """By a batch's first sequence: the tokens that ran forward through each unit since `passed` was cleared."""
        return {first: tokens / len(self.units) for first, tokens in self.passed.items()}

    def other_counts(self) -> dict[str, Any]:
        """Other figures that this rank has counted, for its chapter's claims."""
        return {"layer_activations": self.layer_activations}

    def peak_bytes(self) -> dict[str, int]:
        """The most bytes that this rank has held at any moment, by kind (`minidist/memory/pool.py`). Some kinds also
        have a joint peak: gathered parameters and buckets ("transient"), and what waits for a backward ("kept")."""
        return self.device.peak

    def memory(self) -> dict[str, int]:
        """The former name of `peak_bytes`."""
        return self.peak_bytes()
