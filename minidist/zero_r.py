"""ZeRO-R: what is left when model states are divided: activations, buffers, and memory that is free but in pieces.

    mpirun -n 8 python -m minidist.zero_r --tp 2
    mpirun -n 8 python -m minidist.zero_r --tp 2 --activations host
    mpirun -n 8 python -m minidist.zero_r --tp 2 --configurations

Rajbhandari et al., "ZeRO", SC 2020, section 6 (the three optimizations) and 8 (what the first of them sends).

P_a   With full recomputation each layer keeps its input, its checkpoint: b·s·h elements, and the same on each of the t
      ranks that share the layer. With --activations partitioned a rank keeps a t-th, and before the layer runs again
      the ranks gather the whole. Megatron's six all-reduces send 12bsh a layer; this adds an all-gather, bsh: 8.33 %.
      With --activations host (P_a+cpu) a rank's part waits in the host's memory: it goes down the link, and up again.
CB    Gradients are summed through one buffer of constant size, where fusing all of them takes one that grows with Ψ.
      `minidist/memory/buffer.py` has it; every chapter on the data axis takes --bucket-size.
MD    Checkpoints live long, and what comes between them goes at once. Where each takes the first stretch of memory
      that is long enough, the free memory is in pieces between them, and a run can fail with a third of it free. So
      checkpoints are copied into one room for all, and gradients have theirs from the start. --scattered leaves them
      where they were made; --arena-plot FILE gives arrays addresses in --device-memory, and draws them.

Rank i·t + k is the k-th of t that share every layer, with the i-th share of each micro-batch. What tensor parallelism
does within a layer (`minidist/tensor_parallel.py`) and ZeRO's stages do around it (--zero 0 to 3) stays as it is:
checkpoints are all that this chapter adds to a step.

--configurations looks for the largest model that trains in --device-memory with each of the paper's C1 to C5 (table 3).
"""

import sys
import weakref
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from minidist import UsageError, command, ring, train
from minidist.cli.options import at_least
from minidist.data_parallel import Axes, DataParallel
from minidist.engine import Settings
from minidist.memory.pool import OutOfMemory
from minidist.mpi.comm import Comm
from minidist.mpi.run import run
from minidist.nn.layers import Block, Unit
from minidist.nn.optim import Optimizer
from minidist.nn.tensor import Array, Kept, Store
from minidist.tensor_parallel import Group, split, tensor_claims
from minidist.zero1 import ZeRO1
from minidist.zero2 import ZeRO2
from minidist.zero3 import ZeRO3
from minidist.zr import arenas, configurations
from minidist.zr.claims import claims, needs, print_closing

LADDER = (DataParallel, ZeRO1, ZeRO2, ZeRO3)
PLACES = ("device", "partitioned", "host")

# ---- where a checkpoint waits for its layer's backward ---------------------------------------------------------------


class Checkpoint(Kept):
    """A layer's input, or this rank's part of it, and the way back."""

    __slots__ = ("back",)

    def __init__(self, array: Array, dtype: np.dtype, back: Callable[[Array], Array]) -> None:
        super().__init__(array, dtype)
        self.back = back

    def fetch(self) -> Array:
        return self.back(self.array).astype(self.dtype, copy=False)


class Checkpoints(Store):
    """Keeps each layer's input in the memory where it is to wait.

    cut: ranks that keep a part of it each; None: this one keeps all. together: how many inputs a forward keeps, all in
    one room; None: each is for itself.
    """

    def __init__(self, engine: DataParallel, on_host: bool, cut: Comm | None = None, together: int | None = None):
        self.device, self.link, self.dtype = engine.device, engine.link, engine.precision.stored
        self.host = engine.host if on_host else None
        self.cut, self.layers = cut, together
        self.room = np.empty((0, 0), self.dtype)
        self.next = 0  # the layer whose input comes next: every forward goes through them in order
        self.taken: dict[int, weakref.ref[Array]] = {}  # by layer, the last input that was put there

    def keep(self, x: Array, exact: bool = False) -> Kept:
        """x (B, T, C), of which a rank keeps (BTC/t,), rounded to how activations are stored."""
        flat = x.reshape(-1)
        mine = flat[ring.chunk(flat.size, self.cut.size, self.cut.rank)] if self.cut else flat
        place = self.place(mine.size)
        if self.host:
            leaving = self.device.hold("messages", mine.astype(self.dtype))
            self.link.down("checkpoints", leaving, out=place)
        else:
            place[...] = mine
        return Checkpoint(place, x.dtype, partial(self.fetch, x.shape))

    def place(self, size: int) -> Array:
        """Where the next checkpoint (size,) goes: into its part of the room for all (MD, section 6.3), or by itself."""
        pool = self.host or self.device
        if self.layers is None:
            return pool.empty("activations", size, self.dtype)
        if self.room.shape != (self.layers, size):
            self.room = pool.empty("activations", (self.layers, size), self.dtype)
            self.taken = {}
        layer, self.next = self.next, (self.next + 1) % self.layers
        if (taken := self.taken.get(layer)) and taken() is not None:
            raise UsageError(f"a forward keeps more checkpoints than the {self.layers} for which there is room")
        place = self.room[layer]
        self.taken[layer] = weakref.ref(place)
        return place

    def fetch(self, shape: tuple[int, ...], part: Array) -> Array:
        """The way back: up the link, then from all who have a part."""
        if self.host:
            part = self.link.up("checkpoints", part, out=self.device.empty("messages", part.size, part.dtype))
        if self.cut:
            whole = self.device.empty("messages", shape, self.dtype)
            with self.cut.phase("all-gather checkpoints"):
                ring.all_gather(self.cut, part, whole.size, out=whole.reshape(-1))
            return whole
        return part.reshape(shape)


# ---- one place in the grid -------------------------------------------------------------------------------------------


def make_engine(units: list[Unit], settings: Settings, comm: Comm, options: command.Options) -> DataParallel:
    """Tensor parallelism changes what a unit is, ZeRO what happens around it; checkpoints go elsewhere."""
    t = options.tp
    tensor, data = comm.split(comm.rank // t), comm.split(comm.rank % t)
    axes = Axes()
    if t > 1:
        units = split(units, Group(tensor, settings.precision.stored, options.sequence_parallel))
        axes = Axes({"tensor norm": tensor}, speaks=tensor.rank == 0)
    engine = LADDER[options.zero](units, settings, data, axes)
    if options.activations != "device" or not options.scattered:  # otherwise each stays where it was made
        # With sequence parallelism each rank's input is a part of its own already, of its positions.
        cut = tensor if options.activations != "device" and not options.sequence_parallel else None
        layers = sum(isinstance(unit, Block) for unit in units)
        together = None if options.scattered else layers
        engine.checkpoints = Checkpoints(engine, options.activations == "host", cut, together)
    return engine


# ---- the largest model -----------------------------------------------------------------------------------------------


def trains(comm: Comm, job: command.Job, layers: int) -> bool:
    """Whether a model of so many layers takes a step within --device-memory, on every rank."""
    options = Namespace(**{**vars(job.options), "layers": layers})
    units = command.declare(options, len(job.corpus.vocabulary))
    try:
        train.train_step(make_engine(units, job.settings, comm, options), job.corpus, options, step=0)
        fits = True
    except OutOfMemory:  # on every rank at the same array: all hold the same, of the same sizes
        fits = False
    return all(comm.all_gather_object(fits))


# ---- the run ---------------------------------------------------------------------------------------------------------


def add_options(parser: command.Parser) -> None:
    add = parser.add_argument
    add("--tp", type=at_least(1), metavar="N", help="ranks that share each layer; default: 2 if possible")
    add("--zero", type=int, choices=(0, 1, 2, 3), metavar="N", default=2, help="ZeRO's stage on the data axis, or 0")
    add("--sequence-parallel", action="store_true", help="cut norms, dropout and residuals by positions")
    add(
        "--activations",
        choices=PLACES,
        default="partitioned",
        metavar="WHERE",
        help=f"checkpoints: {', '.join(PLACES)}",
    )
    add("--scattered", action="store_true", help="each checkpoint for itself, not all in one room")
    add("--bucket-size", type=at_least(1), metavar="N", default=10_000, help="elements of the buffer for gradients")
    parser.output("--arena-plot", help="give arrays addresses, and draw where they are in a step")
    parser.output("--configurations", nargs="?", const=False, help="how many layers train in C1 to C5; draw it")
    parser.set_defaults(recompute="full", gather_logits=False)


def prepare(
    made: command.Parser, arguments: Sequence[str], ranks: int, optimizer: Optimizer | None = None
) -> command.Job:
    """Parse and check. Raises UsageError for whatever cannot work. optimizer: instead of the options'."""
    options = made.parse_args(arguments)
    t = options.tp or (1 if ranks % 2 else 2)
    if ranks % t:
        works = max(n for n in range(1, min(t, ranks) + 1) if ranks % n == 0)
        raise UsageError(f"--tp {t} does not divide {ranks} ranks: use --tp {works}")
    tensor_claims.check_tensor(options, t)
    if options.recompute != "full":
        raise UsageError(
            f"--recompute {options.recompute}: zero_r is about what full recomputation keeps: leave it away"
        )
    if options.activations == "partitioned" and options.sequence_parallel:
        raise UsageError("--sequence-parallel has cut checkpoints already: use --activations device, or host")
    configurations.check(options, ranks // t)
    if options.configurations is not None and options.device_memory is None:
        arguments = [*arguments, "--device-memory", configurations.USUAL_MEMORY]
    job = command.prepare(made, arguments, ranks, sharing=ranks // t, optimizer=optimizer)
    job.options.dp, job.options.tp = ranks // t, t
    return job


def main(comm: Comm, job: command.Job) -> int:
    """Train and report; or look for the largest model."""
    if job.options.configurations is not None:
        return configurations.search(comm, job, trains)
    train.say_needs(job, comm, needs)
    engine = make_engine(job.units, job.settings, comm, job.options)
    with arenas.drawn(engine.device, comm, job.options):
        return train.run_job(job, engine, comm, claims, print_closing)


if __name__ == "__main__":
    made = command.parser(__doc__ or "", "zero_r")  # python -OO drops docstrings
    add_options(made)
    run(prepare=lambda comm: prepare(made, sys.argv[1:], comm.size), main=main)
