"""DeepSpeed's verbs over minidist's engines.

    engine, optimizer, batches, scheduler = deepspeed.initialize(model=units, config=config, comm=comm, ...)
    for x, y in batches:
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()

Two things differ from DeepSpeed. Every rank passes the same micro-batch of all ranks, micro_batch · N sequences, and
the engine takes this rank's share of them; and a communicator is passed in, because there is no global process group.
"""

import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save as serialize

from minidist import UsageError, compression, infinity, offload, parallel3d, zero_r, zeropp
from minidist.checkpoints import checkpoint
from minidist.checkpoints.manifest import LATEST
from minidist.cli.read import read
from minidist.data_parallel import DataParallel
from minidist.deepspeed import plan as planning
from minidist.deepspeed import zero
from minidist.deepspeed.plan import ConfigPlan
from minidist.engine import Loss, Settings
from minidist.mpi import output
from minidist.mpi.comm import Comm
from minidist.nn.layers import Block, Tokens, Unit
from minidist.nn.optim import Optimizer
from minidist.programs.compression import Counting
from minidist.programs.infinity import swap_file
from minidist.programs.zeropp import ZeROppOptions
from minidist.system.files import is_draft, writing
from minidist.zero3 import LADDER
from minidist.zr.limits import limited

Batches = Iterator[tuple[Tokens, Tokens]]


class Scheduler:
    """The learning rate. The engine advances it after each update; an overflow is no update."""

    def __init__(self, engine: DataParallel) -> None:
        self.engine = engine

    def get_last_lr(self) -> list[float]:
        """The next update's learning rate; a list, because DeepSpeed has one entry for each group of parameters."""
        return [self.engine.settings.learning_rate(self.engine.updates)]


class Initialized(NamedTuple):
    """What `initialize` returns, in DeepSpeed's order."""

    engine: "DeepSpeedEngine"
    optimizer: Optimizer
    training_dataloader: Any  # Batches; None without training_data
    lr_scheduler: Scheduler


def initialize(
    model: list[Unit],
    config: str | Path | dict[str, Any],
    comm: Comm,
    optimizer: Optimizer | None = None,
    training_data: tuple[Tokens, Tokens] | None = None,
    lr_scheduler: Callable[[int], float] | None = None,
    seed: int = 0,
) -> Initialized:
    """The engine that a configuration describes, around a model.

    model: its units, from gpt() or llama(). config: a file or a dict. optimizer and lr_scheduler (a function of an
    update's number, from 0) replace the configuration's.

    training_data: sequences x and targets y, integers (n, T). With these, there is an iterator of micro-batches for all
    ranks, drawn anew in every epoch.

    Raises UsageError for a configuration that cannot work. Rank 0 names keys without effect, one line each.
    """
    layers = sum(isinstance(unit, Block) for unit in model)
    plan = planning.make(read(config), comm.size, width=width_of(model), layers=layers)
    settings = plan.settings(seed)
    if optimizer is not None:
        settings.optimizer = optimizer
    if lr_scheduler is not None:
        settings.learning_rate = lr_scheduler
    shards = zero.shards_within(model)
    if shards and plan.limits.persist:
        plan.limits = plan.limits._replace(persist=0)
        plan.notes.append(
            "zero_optimization.param_persistence_threshold has no effect here, because zero.Init divides all"
        )
    if comm.rank == 0:
        for note in plan.notes:
            print(f"minidist: {note}", file=sys.stderr)
    stage = engine_of(plan, model, settings, comm)
    zero.take_over(stage, shards)
    engine = DeepSpeedEngine(stage, plan, comm)
    batches = micro_batches(training_data, plan, seed) if training_data is not None else None
    return Initialized(engine, settings.optimizer, batches, Scheduler(stage))


def engine_of(plan: ConfigPlan, units: list[Unit], settings: Settings, comm: Comm) -> DataParallel:
    """Make the engine that a plan describes."""
    if plan.axes.used:
        layout = plan.axes.layout(plan.ranks, plan.shard, plan.accumulate)
        engine = parallel3d.grid(units, settings, comm, layout, plan.stage, scheme=plan.axes.scheme)
        assert isinstance(engine, DataParallel)  # there are no stages
        return engine
    if plan.second:
        return zeropp.ZeROpp(units, settings, comm, plan.second, ZeROppOptions().block)
    if plan.freeze:
        return Counting(units, settings, comm, compression.sum_signs, plan.freeze)
    if plan.nvme:
        swap = swap_file(units, settings, "nvme_path", plan.nvme_path, comm)
        return infinity.ENGINES[plan.stage](units, settings, comm, swap)
    engines = offload.ENGINES if plan.offload else dict(enumerate(LADDER))
    kind: type[DataParallel] = offload.OffloadAll if plan.below else engines[plan.stage]
    engine = limited(kind, plan.limits)(units, settings, comm)
    if plan.on_host or plan.together:
        blocks = sum(isinstance(unit, Block) for unit in units)
        engine.checkpoints = zero_r.Checkpoints(engine, plan.on_host, together=blocks if plan.together else None)
    return engine


def width_of(model: list[Unit]) -> int:
    """h: the length of a token's vector."""
    return next(parameter.shape[1] for parameter in model[0].parameters if len(parameter.shape) == 2)


def micro_batches(training_data: tuple[Tokens, Tokens], plan: ConfigPlan, seed: int) -> Batches:
    """Micro-batches of all ranks, without end: (micro_batch · N, T), the sequences in a new order in each epoch."""
    x, y = training_data
    size = plan.micro_batch * plan.data_ranks
    if len(x) < size:
        raise UsageError(f"training_data has {len(x)} sequences, and a micro-batch of all ranks {size}")
    for epoch in itertools.count():
        order = np.random.default_rng([seed, epoch]).permutation(len(x))
        for start in range(0, len(x) - size + 1, size):
            rows = order[start : start + size]
            yield x[rows], y[rows]


class DeepSpeedEngine:
    """An engine of minidist, called `stage`, under DeepSpeed's names."""

    def __init__(self, stage: DataParallel, plan: ConfigPlan, comm: Comm) -> None:
        self.stage, self.plan, self.comm = stage, plan, comm
        if plan.loss_scale:
            stage.loss_scale = plan.loss_scale
        self.milliseconds = {"fwd": 0.0, "bwd": 0.0, "step": 0.0}  # since the last line of progress

    # ---- a step -----------------------------------------------------------------------------------------------------

    def forward(self, x: Tokens, y: Tokens) -> Loss:
        """The loss of a micro-batch: tokens x and targets y of all ranks, integers (micro_batch · N, T). Raises
        UsageError for another number of sequences."""
        size = self.plan.micro_batch * self.plan.data_ranks
        if len(x) != size:
            raise UsageError(f"a micro-batch of all {self.plan.ranks} ranks has {size} sequences, not {len(x)}")
        with self.timed("fwd"):
            return self.stage.forward(x, y)

    __call__ = forward

    def backward(self, loss: Loss) -> Loss:
        """Add the loss's gradients. Stages 2 and 3 reduce after every micro-batch, 0 and 1 at the boundary."""
        with self.timed("bwd"):
            self.stage.backward(loss)
        return loss

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether `step` will update after the current micro-batch."""
        return self.stage.last_micro_batch

    def step(self) -> None:
        """Call it after each backward. After the last micro-batch it updates, unless a gradient overflowed."""
        boundary = self.is_gradient_accumulation_boundary()
        with self.timed("step"):
            self.stage.step()
        if boundary:
            self.print_progress()

    def train_batch(self, batches: Batches) -> float:
        """Make a whole update from the next gradient_accumulation_steps micro-batches; returns the mean loss on every
        rank. Raises UsageError if there are fewer."""
        return float(sum(self.comm.all_gather_object(self.part_of_batch(batches))))

    def part_of_batch(self, batches: Batches) -> float:
        """Do the same as `train_batch`, but return this rank's part of the loss."""
        part = 0.0
        a = self.plan.accumulate
        for i in range(a):
            if (batch := next(batches, None)) is None:
                raise UsageError(f"train_batch takes {a} micro-batch{'es' * (a > 1)}, and the iterator ends after {i}")
            loss = self.forward(*batch)
            part += loss.value
            self.backward(loss)
            self.step()
        return part

    # ---- how far it is ----------------------------------------------------------------------------------------------

    @property
    def global_steps(self) -> int:
        """The number of updates, including those that an overflow prevented."""
        return self.stage.steps

    @property
    def skipped_steps(self) -> int:
        return self.stage.steps - self.stage.updates

    @property
    def micro_steps(self) -> int:
        return self.stage.steps * self.plan.accumulate + self.stage.micro_batch

    @property
    def loss_scale(self) -> float:
        """The factor by which the next backward multiplies the loss."""
        return self.stage.loss_scale.scale

    def get_lr(self) -> list[float]:
        return Scheduler(self.stage).get_last_lr()

    def get_mom(self) -> list[Any]:
        """Adam's betas, or SGD's momentum."""
        found = vars(self.plan.optimizer)
        return [found["momentum"] if "momentum" in found else (found["beta1"], found["beta2"])]

    def train_batch_size(self) -> int:
        return self.plan.batch

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.plan.micro_batch

    def gradient_accumulation_steps(self) -> int:
        return self.plan.accumulate

    def zero_optimization_stage(self) -> int:
        return self.plan.stage

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.milliseconds[what] += 1000 * (time.perf_counter() - begin)

    def print_progress(self) -> None:
        """Print rank 0's line of progress, if steps_per_print or wall_clock_breakdown asks for it."""
        timed = self.plan.config["wall_clock_breakdown"]
        every = self.plan.config["steps_per_print"] or (10 if timed else None)
        if not every or self.global_steps % every:
            return
        if self.comm.rank == 0:
            line = f"step={self.global_steps}, skipped={self.skipped_steps}, lr={self.get_lr()}, mom={self.get_mom()}"
            times = " | ".join(f"{what}: {total:.2f}" for what, total in self.milliseconds.items())
            print(f"{line}, time (ms) | {times}" if timed else line, file=sys.stderr, flush=True)
        self.milliseconds = dict.fromkeys(self.milliseconds, 0.0)

    # ---- what is kept -----------------------------------------------------------------------------------------------

    def save_checkpoint(
        self, save_dir: str, tag: str | None = None, client_state: dict[str, Any] | None = None
    ) -> None:
        """Save all that training needs to continue, every rank's shard, in save_dir/tag; `latest` names the tag. All
        ranks must call this.

        tag: global_step{N}, if none is given; an older checkpoint of this tag is replaced. client_state: anything that
        JSON can hold; load_checkpoint returns it. Raises UsageError for an invalid tag, or for state that JSON cannot.
        """
        tag = tag or f"global_step{self.global_steps}"
        if re.fullmatch(r"[^/~.][^/~]*", tag) is None or tag == LATEST or is_draft(tag):
            raise UsageError(f"save_checkpoint: a tag is a name for a folder, without a ~: not {tag!r}")
        try:
            client = json.loads(json.dumps(client_state or {}))  # as it will be read: JSON makes keys texts
        except (TypeError, ValueError) as error:
            raise UsageError(f"save_checkpoint: client_state cannot be written as JSON: {error}") from None
        about = {
            "layout": {"chapter": "deepspeed", "ranks": self.comm.size, "zero": self.plan.stage},
            "identity": {},
            "text": {},
            "client": client,
        }
        checkpoint.save(save_dir, self.stage, self.comm, about, tag=tag)

    def load_checkpoint(self, load_dir: str, tag: str | None = None) -> tuple[str, dict[str, Any]]:
        """Continue from a tag, or from the last one saved if none is given. Returns its folder and its client_state.
        All ranks must call this.

        Any stage, on any number of ranks, can continue from any other's checkpoint. Raises UsageError if there is no
        checkpoint, or if it is another model's.
        """
        path = checkpoint.tagged(load_dir, tag) if tag else load_dir
        moments = self.stage.settings.optimizer.moments
        checkpoint.check(path, self.stage.units, {}, moments, steps=sys.maxsize, option="load_checkpoint")
        checkpoint.load(path, self.stage)
        found = checkpoint.opened(path)
        return found.folder, found.client

    def save_16bit_model(self, save_dir: str, save_filename: str = "model.safetensors") -> bool:
        """Save only the parameters, as they are stored; False if stage 3 has divided them and
        stage3_gather_16bit_weights_on_model_save does not ask to gather them. All ranks must call this. If the file
        cannot be written, a message says so and the work goes on."""
        if self.plan.stage == 3 and not self.plan.config["zero_optimization.gather_16bit_weights_on_model_save"]:
            return False
        found = checkpoint.weights(self.stage, writer=self.comm.rank == 0)
        if self.comm.rank == 0:
            stored = self.stage.precision.stored
            content = serialize({name: np.ascontiguousarray(array.astype(stored)) for name, array in found.items()})
            path = os.path.join(save_dir, save_filename)
            try:
                os.makedirs(save_dir, exist_ok=True)
                with writing(path) as file:
                    file.write(content)
            except OSError as error:
                output.lost(path, error)
        return True
