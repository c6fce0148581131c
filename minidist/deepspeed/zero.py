"""zero.Init and zero.GatheredParameters: a model made already divided, and put together for a moment.

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
from minidist.data_parallel import DataParallel
from minidist.deepspeed import plan as planning
from minidist.deepspeed.read import read
from minidist.memory.pool import ALL, Pool
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Layer, Unit, flats_of
from minidist.nn.tensor import Array


class Init:
    """Units that are made within are divided at once, in stage 3: their values are drawn, this rank keeps its shard.

    module: a model that is there already, to be divided as if it had been made within. enabled: False leaves all to
    initialize.
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
            start = self.device.hold("workspace", flat.initial(self.seed))  # float64 (padded,)
            flat.param = self.device.hold("parameters", start[shard_of(flat)].astype(self.dtype))  # (padded/N,)
            del start

    @property
    def peak(self) -> int:
        """The most bytes that were held at any moment: the shards so far, and one Flat as it is drawn."""
        return self.device.peak[ALL]

    def __enter__(self) -> "Init":
        """Until the end of the context, a unit that declares its parameters is divided. DeepSpeed steps into
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
    """What this rank keeps of an array (padded,)."""
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
    """Within it some units are here as a whole, on every rank: the `data` of each of their parameters is an array.

    modifier_rank: what this rank has changed is what all keep, master copies included; None: changes are forgotten. All
    ranks must enter and leave. (DeepSpeed is given single parameters; here a unit is what is gathered.)
    """

    def __init__(self, units: Unit | Sequence[Unit], modifier_rank: int | None = None) -> None:
        self.flats = [flat for unit in ([units] if isinstance(units, Unit) else units) for flat in unit.flats]
        self.modifier_rank = modifier_rank
        self.wholes: dict[Flat, Array] = {}

    def __enter__(self) -> None:
        for flat in self.flats:
            values = flat.master if hasattr(flat, "master") else flat.param
            with flat.comm.phase("gather parameters"):
                divided = values.size < flat.padded
                self.wholes[flat] = ring.all_gather(flat.comm, values, flat.padded) if divided else values.copy()
            flat.bind(self.wholes[flat])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for flat, whole in self.wholes.items():
            flat.release()
            if self.modifier_rank is None or error is not None:
                continue
            with flat.comm.phase("gather parameters"):
                ring.broadcast(flat.comm, whole, self.modifier_rank)
            for array in (flat.param, *([flat.master] if hasattr(flat, "master") else [])):
                array[...] = whole if array.size == flat.padded else whole[shard_of(flat)]
        self.wholes = {}
