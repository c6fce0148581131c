"""zero.Init, zero.GatheredParameters and zero.TiledLinear: units divided when they are made, or gathered for a moment.

    with zero.Init(config=config, comm=comm):
        model = gpt(GPTConfig(...))
    with zero.GatheredParameters(model[0], modifier_rank=0):
        if comm.rank == 0:
            model[0].parameters[0].data[...] = 0

Rajbhandari et al., "ZeRO-Infinity", SC 2021, section 7.2: each layer is divided as soon as it is made, so that no rank
ever holds more than its share of the model and one unit.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from minidist import UsageError, ring
from minidist.cli.read import read
from minidist.data_parallel import DataParallel
from minidist.deepspeed import plan as planning
from minidist.memory import tiles
from minidist.memory.pool import ALL, Pool
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Layer, Unit, flats_of
from minidist.nn.tensor import Array


class Init:
    """In stage 3, divides units that are made within: draws their values, and keeps this rank's shard.
    One rank to a process: ranks that are threads would divide one another's units.

    module: a model that was made earlier, to be divided as if it had been made within. enabled: False leaves everything
    to `initialize`.
    """

    def __init__(
        self,
        module: list[Unit] | None = None,
        *,
        comm: Comm,
        config: str | Path | dict[str, Any],
        seed: int = 0,
        enabled: bool = True,
    ) -> None:
        plan = planning.make(read(config), comm.size)
        self.comm, self.seed, self.enabled = comm, seed, enabled and plan.stage == 3
        self.dtype = plan.settings(seed).precision.updated  # a master copy is made of it: nothing is rounded yet
        self.device = Pool("device")
        for unit in module or []:
            self.divide(unit)

    def divide(self, unit: Unit) -> None:
        """Draw a unit's values, one Flat after the other, and keep this rank's shard of each."""
        for flat in unit.flats if self.enabled else []:
            flat.divide(self.comm)
            flat.device = self.device
            start = self.device.hold("workspace", flat.initial(self.seed))  # float64 (padded,)
            flat.param = self.device.hold("parameters", start[shard_of(flat)].astype(self.dtype))  # (padded/N,)
            del start

    @property
    def peak(self) -> int:
        """The most bytes that were held at any moment: the shards so far, and one Flat as it is drawn."""
        return self.device.peak[ALL]

    def __enter__(self) -> "Init":
        """Until the end of the context, a unit that declares its parameters is divided. DeepSpeed hooks into
        torch.nn.Module's constructor in the same way."""
        self.own = declare = Unit.own

        def own(unit: Unit, layers: Sequence[Layer]) -> None:
            declare(unit, layers)
            self.divide(unit)

        Unit.own = own  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        Unit.own = self.own  # type: ignore[method-assign]


def shard_of(flat: Flat) -> slice:
    """The part of an array (padded,) that this rank keeps."""
    return ring.chunk(flat.padded, flat.comm.size, flat.comm.rank)


def shards_within(model: list[Unit]) -> dict[Flat, Array]:
    """The shards that zero.Init has made, before an engine draws its own."""
    return {flat: flat.param for flat in flats_of(model) if hasattr(flat, "param") and not hasattr(flat, "master")}


def take_over(engine: DataParallel, shards: dict[Flat, Array]) -> None:
    """Let an engine train the values that zero.Init made, and that may have been modified since. Raises UsageError for
    an engine of another stage."""
    for flat, shard in shards.items():
        if flat.param.shape != shard.shape:
            raise UsageError("zero.Init and initialize were given different configurations: give both the same")
        if not np.array_equal(flat.master, shard):  # else what was drawn is stored already, rounded once
            flat.master[...] = shard
            flat.param[...] = shard


class GatheredParameters:
    """Gathers whole units on every rank while it is open: the `data` of each of their parameters is an array. The
    device holds them next to the shards: OutOfMemory, if they do not fit.

    modifier_rank: all ranks keep this rank's changes, also in master copies; None: changes are forgotten. All ranks
    must enter and leave. (DeepSpeed takes single parameters; this class takes units.)
    """

    def __init__(self, units: Unit | Sequence[Unit], modifier_rank: int | None = None) -> None:
        self.flats = [flat for unit in ([units] if isinstance(units, Unit) else units) for flat in unit.flats]
        self.modifier_rank = modifier_rank
        self.wholes: dict[Flat, Array] = {}

    def __enter__(self) -> None:
        if not all(hasattr(flat, "param") for flat in self.flats):
            raise UsageError(
                "GatheredParameters: the model has no values yet: call initialize first, or make it in zero.Init"
            )
        held = {flat: flat.master if hasattr(flat, "master") else flat.param for flat in self.flats}
        self.wholes = {flat: flat.device.empty("gathered", flat.padded, held[flat].dtype) for flat in self.flats}
        for flat, whole in self.wholes.items():  # (padded,)
            if held[flat].size < flat.padded:
                with flat.comm.phase("gather parameters"):
                    ring.all_gather(flat.comm, held[flat], flat.padded, out=whole)
            else:
                whole[...] = held[flat]
            flat.bind(whole)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for flat, whole in self.wholes.items():
            flat.release()
            if self.modifier_rank is None or error is not None:
                continue
            with flat.comm.phase("gather parameters"):
                ring.broadcast(flat.comm, whole, self.modifier_rank)
            for array in (flat.param, *([flat.master] if hasattr(flat, "master") else [])):
                array[...] = whole if array.size == flat.padded else whole[shard_of(flat)]
            if flat.gathered is not None:  # it stays so
                flat.gathered[...] = whole
        self.wholes = {}


class TiledLinear:
    """A linear layer that is never whole: its outputs are cut into out_splits tiles, gathered one after the other, and
    each rank keeps its shard of every tile (ZeRO-Infinity, section 5.1.3).

    Each rank has its own rows x. `gradient` is this rank's shard of the weights' gradient, summed over all ranks' rows.
    (DeepSpeed's class also splits inputs, and is a module of a model; here you call forward and backward.)

    Raises UsageError if out_splits does not divide out_features.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        out_splits: int = 1,
        *,
        comm: Comm,
        seed: int = 0,
        dtype: np.typing.DTypeLike = np.float32,
    ) -> None:
        if out_splits < 1 or out_features % out_splits:
            raise UsageError(f"TiledLinear: {out_features} outputs cannot be cut into {out_splits} tiles")
        self.comm, self.out_splits = comm, out_splits
        self.shape = out_features // out_splits, in_features  # of a tile
        n = comm.size
        self.padded = -(-self.shape[0] * self.shape[1] // n) * n
        self.device = Pool("device")
        self.shards = self.device.empty("parameters", (out_splits, self.padded // n), dtype)
        self.gradient = self.device.zeros("gradients", self.shards.shape, dtype)
        for tile, shard in enumerate(self.shards):
            drawn = np.random.default_rng([seed, tile]).normal(0, 0.02, self.shape)
            shard[...] = self.lay_out("workspace", drawn)[ring.chunk(self.padded, n, comm.rank)]

    def forward(self, x: Array) -> Array:
        """y = x Wᵀ (n, out), from this rank's rows x (n, in)."""
        return tiles.forward(x, self.fetch, self.out_splits)

    def backward(self, dy: Array, x: Array) -> Array:
        """dx (n, in), from dy (n, out); adds the weights' gradient to `gradient`."""
        return tiles.backward(dy, x, self.fetch, self.give, self.out_splits)

    def fetch(self, tile: int) -> Array:
        """A tile's weights (out/t, in), from all ranks' shards."""
        with self.comm.phase("gather tile"):
            whole = self.device.empty("gathered", self.padded, self.shards.dtype)
            ring.all_gather(self.comm, self.shards[tile], self.padded, out=whole)
        return whole[: self.shape[0] * self.shape[1]].reshape(self.shape)

    def give(self, tile: int, gradient: Array) -> None:
        """Sum a tile's gradient (out/t, in) over the ranks, and keep this rank's shard."""
        with self.comm.phase("reduce tile"):
            self.gradient[tile] += ring.reduce_scatter(self.comm, self.lay_out("bucket", gradient))

    def lay_out(self, kind: str, values: Array) -> Array:
        """A tile's values (out/t, in), made flat and padded to a multiple of the number of ranks."""
        flat = self.device.zeros(kind, self.padded, self.shards.dtype)
        flat[: values.size] = values.reshape(-1)
        return flat
