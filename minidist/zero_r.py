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
from minidist.tensor_parallel import Group, split
from minidist.zero3 import LADDER

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
        self.memory = engine.host if on_host else engine.device
        super().__init__(engine.precision.stored, self.memory)
        self.device, self.link, self.dtype = engine.device, engine.link, engine.precision.stored
        self.on_host, self.cut, self.layers = on_host, cut, together
        self.room = np.empty((0, 0), self.dtype)
        self.next = 0  # the layer whose input comes next: every forward goes through them in order
        self.taken: dict[int, weakref.ref[Array]] = {}  # by layer, the last input that was put there

    def keep(self, x: Array, exact: bool = False) -> Kept:
        """x (B, T, C), of which a rank keeps (BTC/t,), rounded to how activations are stored."""
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
        """Where the next checkpoint (size,) goes: into its part of the room for all (MD, section 6.3), or by itself."""
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
        """The way back: up the link, then from all who have a part."""
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
    """Tensor parallelism changes what a unit is, ZeRO what happens around it; checkpoints go elsewhere."""
    mesh = Mesh(comm, layout)
    tensor, data = mesh.along("tensor"), mesh.along("shard")
    axes = Axes()
    if layout.tp > 1:
        units = split(units, Group(tensor, settings.precision.stored, sequence))
        axes = Axes({"tensor norm": tensor}, speaks=tensor.rank == 0)
    engine = LADDER[zero](units, settings, data, axes)
    if activations != "device" or not scattered:  # otherwise each stays where it was made
        # With sequence parallelism each rank's input is a part of its own already, of its positions.
        cut = tensor if layout.tp > 1 and activations != "device" and not sequence else None
        layers = sum(isinstance(unit, Block) for unit in units)
        engine.checkpoints = Checkpoints(engine, activations == "host", cut, None if scattered else layers)
    return engine


if __name__ == "__main__":
    contents.run("zero_r")  # its options, and what the paper promises: programs/zero_r.py
