"""ZeRO-R: the memory that remains when model states are divided: activations, buffers, and fragmented free memory.

    mpirun -n 8 python -m minidist.zero_r --tp 2
    mpirun -n 8 python -m minidist.zero_r --tp 2 --activations host
    mpirun -n 8 python -m minidist.zero_r --tp 2 --configurations

Rajbhandari et al., "ZeRO", SC 2020, arXiv 1910.02054, section 6 (the three optimizations) and 8 (how much the first
of them sends).

P_a   With full recomputation each layer keeps its input, its checkpoint: b·s·h elements, the same on each of the t
      ranks that share the layer. With --activations partitioned a rank keeps 1/t of it, and the ranks gather the whole
      before the layer is recomputed. Megatron's six all-reduces send 12bsh per layer; this adds an all-gather of bsh:
      8.33 %. With --activations host (P_a+cpu) a rank's part waits in host memory: it goes down the link, and up again.
CB    Gradients are summed through one buffer of constant size; a buffer that fuses all of them would grow with Ψ. The
      buffer is in `minidist/memory/buffer.py`; every chapter on the data axis takes --bucket-size.
MD    Checkpoints live long; the arrays made between them are freed at once. If each array takes the first stretch of
      memory that is long enough, checkpoints split the free memory into pieces, and a run can fail with a third of
      memory free. So checkpoints are copied into one room for all, and gradients have their room from the start.
      --scattered leaves checkpoints where they were made. --arena-plot FILE gives arrays addresses in --device-memory,
      and draws them.

Rank i·t + k is the k-th of the t ranks that share every layer, and has the i-th share of each micro-batch. Tensor
parallelism works within a layer (`minidist/tensor_parallel.py`), and ZeRO's stages around it (--zero 0 to 3); both stay
unchanged. This chapter adds only checkpoints to a step.

--configurations finds the largest model that trains in --device-memory with each of the paper's C1 to C5 (table 3).
"""

import weakref
from collections.abc import Callable
from functools import partial

import numpy as np

from minidist import UsageError, contents, ring
from minidist.data_parallel import Axes, DataParallel
from minidist.engine import Settings
from minidist.layout import Layout, Mesh
from minidist.mpi.comm import Comm
from minidist.nn.layers import Block, Unit
from minidist.nn.tensor import Array, Kept, Store
from minidist.tensor_parallel import TensorGroup, split
from minidist.zero3 import LADDER

# ---- where a checkpoint waits for its layer's backward ---------------------------------------------------------------


class Checkpoint(Kept):
    """A layer's input, or this rank's part of it, and the function that restores it."""

    __slots__ = ("back",)

    def __init__(self, array: Array, dtype: np.dtype, back: Callable[[Array], Array]) -> None:
        super().__init__(array, dtype)
        self.back = back

    def fetch(self) -> Array:
        return self.back(self.array).astype(self.dtype, copy=False)


class Checkpoints(Store):
    """Keeps each layer's input in the memory where it waits for the backward.

    cut: ranks that each keep a part of it; None: this rank keeps all of it. together: the number of inputs that a
    forward keeps, in one room for all; None: each has an array of its own.
    """

    def __init__(self, engine: DataParallel, on_host: bool, cut: Comm | None = None, together: int | None = None):
        self.memory = engine.host if on_host else engine.device
        super().__init__(engine.precision.stored, self.memory)
        self.device, self.link, self.dtype = engine.device, engine.link, engine.precision.stored
        self.on_host, self.cut, self.layers = on_host, cut, together
        self.room = np.empty((0, 0), self.dtype)
        self.next = 0  # the layer whose input comes next: every forward runs the layers in order
        self.taken: dict[int, weakref.ref[Array]] = {}  # by layer, the last input stored there

    def keep(self, x: Array, exact: bool = False) -> Kept:
        """Keep x (B, T, C), or this rank's part of it (BTC/t,), rounded to the dtype of stored activations."""
        flat = x.reshape(-1)
        mine = flat[ring.chunk(flat.size, self.cut.size, self.cut.rank)] if self.cut else flat
        place = self.place(mine.size)
        if self.on_host:
            leaving = self.device.hold("messages", mine.astype(self.dtype))
            self.link.down("checkpoints", leaving, out=place)
        else:
            place[...] = mine
        return Checkpoint(place, x.dtype, partial(self.fetch, x.shape))

    def place(self, size: int) -> Array:
        """An array for the next checkpoint (size,): a part of the room for all (MD, section 6.3), or one of its own."""
        if self.layers is None:
            return self.memory.empty(self.kind, size, self.dtype)
        if self.room.shape != (self.layers, size):
            self.room = self.memory.empty(self.kind, (self.layers, size), self.dtype)
            self.taken = {}
        layer, self.next = self.next, (self.next + 1) % self.layers
        if (taken := self.taken.get(layer)) and taken() is not None:
            raise UsageError(f"a forward keeps more checkpoints than the {self.layers} for which there is room")
        place = self.room[layer]
        self.taken[layer] = weakref.ref(place)
        return place

    def fetch(self, shape: tuple[int, ...], part: Array) -> Array:
        """Restore an input: up the link, then gathered from the ranks that keep a part of it."""
        if self.on_host:
            part = self.link.up("checkpoints", part, out=self.device.empty("messages", part.size, part.dtype))
        if self.cut:
            whole = self.device.empty("messages", shape, self.dtype)
            with self.cut.phase("all-gather checkpoints"):
                ring.all_gather(self.cut, part, whole.size, out=whole.reshape(-1))
            return whole
        return part.reshape(shape)


# ---- one place in the grid -------------------------------------------------------------------------------------------


def zero_r(
    units: list[Unit],
    settings: Settings,
    comm: Comm,
    layout: Layout,
    zero: int = 2,
    activations: str = "partitioned",  # where checkpoints wait: "device", "partitioned", or on the "host"
    scattered: bool = False,
    sequence: bool = False,
) -> DataParallel:
    """Tensor parallelism changes what a unit is, ZeRO what happens around it, Checkpoints where its input waits."""
    mesh = Mesh(comm, layout)
    tensor, data = mesh.along("tensor"), mesh.along("shard")
    axes = Axes()
    if layout.tp > 1:
        units = split(units, TensorGroup(tensor, settings.precision.stored, sequence))
        axes = Axes({"tensor norm": tensor}, counts_loss=tensor.rank == 0)
    engine = LADDER[zero](units, settings, data, axes)
    if activations != "device" or not scattered:  # otherwise each stays where it was made
        # With sequence parallelism each rank's input already covers its own positions only.
        cut = tensor if layout.tp > 1 and activations != "device" and not sequence else None
        layers = sum(isinstance(unit, Block) for unit in units)
        engine.checkpoints = Checkpoints(engine, activations == "host", cut, None if scattered else layers)
    return engine


if __name__ == "__main__":
    contents.run("zero_r")  # its options, and what the paper promises: programs/zero_r.py
