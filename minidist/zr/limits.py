"""DeepSpeed's stage 3 trades memory for messages in three ways. All limits are numbers of elements.

    mpirun -n 4 python -m minidist.zero3 --persist 1000 --ahead 20000 --live 100000

    --persist N parameters with at most N elements (biases, norms) stay on every rank: 2Ψ_p bytes more, but they
                are gathered once, after the update, and not in each pass
    --ahead N   as long as fewer than N elements are under way, the next unit is gathered before this one computes
    --live N    but not if more than N elements would then be gathered

DeepSpeed hides messages by gathering ahead. Here nothing is hidden (`minidist/fsdp.py` shows that), and the price in
memory is counted. In DeepSpeed's JSON: stage3_param_persistence_threshold, stage3_prefetch_bucket_size and
stage3_max_live_parameters.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from minidist import ring
from minidist.data_parallel import DataParallel
from minidist.memory.recompute import Turn
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, set_small_apart
from minidist.nn.tensor import Array
from minidist.zero3 import ZeRO3

E = TypeVar("E", bound=DataParallel)


class Limits(NamedTuple):
    """Numbers of elements."""

    persist: int = 0  # parameters with at most this many stay on every rank
    ahead: int = 0  # gathered ahead of the unit in use, in whole units
    live: int | None = None  # gathered at a time, if the unit in use has no more; None: no limit


def limited(engine: type[E], limits: Limits) -> type[E]:
    """The engine's class; if there are limits, a kind of ZeRO-3 that keeps within them."""
    if not (limits.persist or limits.ahead):
        return engine
    return type(f"Limited{engine.__name__}", (Limited, engine), {"limits": limits})


class Limited(ZeRO3):
    """ZeRO-3 within limits."""

    limits: ClassVar[Limits]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.turns: deque[Turn] = deque()  # still to come in this pass

    def divide(self, units: list[Unit]) -> None:
        self.staying = {*set_small_apart(units, self.limits.persist)} if self.limits.persist else set()
        super().divide(units)

    def allocate(self, flat: Flat, start: Array) -> None:
        super().allocate(flat, start)
        if flat in self.staying:
            flat.gathered = self.device.hold("persistent", start.astype(self.precision.stored))  # (padded,)

    def forget(self, flat: Flat) -> None:
        if flat not in self.staying:
            super().forget(flat)

    def after_update(self) -> None:
        """Gather what is not divided; the next forward gathers the other updated shards."""
        super().after_update()
        for flat in self.flats:
            if (whole := flat.gathered) is not None and flat in self.staying:
                with self.comm.phase("all-gather persistent"):
                    ring.all_gather(flat.comm, flat.param, flat.padded, out=whole)

    def expect(self, turns: Sequence[Turn]) -> None:
        self.turns = deque(turns if self.limits.ahead else [])

    def parameters_of(self, flat: Flat) -> Array:
        whole = super().parameters_of(flat)
        if self.turns and flat is self.turns[0].unit.reads[-1]:  # the unit has all that it reads
            self.turns.popleft()
            self.gather_ahead()
        return whole

    def gather_ahead(self) -> None:
        """Gather what the next units read and is not here, within the limits."""
        live = sum(flat.padded for flat in self.flats if flat.gathered is not None and flat not in self.staying)
        most = math.inf if self.limits.live is None else self.limits.live
        under_way = 0
        for flat in (flat for turn in self.turns for flat in turn.unit.reads if flat.gathered is None):
            if under_way >= self.limits.ahead or live + flat.padded > most:
                return
            super().parameters_of(flat)
            under_way, live = under_way + flat.padded, live + flat.padded
