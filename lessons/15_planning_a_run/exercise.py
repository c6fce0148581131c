"""Exercise 15: a planner.

Fill in the five functions; `pytest lessons/15_planning_a_run` says how many points they earn. You need only Python's
standard library. No function needs another one.

Mixed precision with Adam takes 2 bytes for each parameter, 2 for its gradient and 12 for optimizer states. All sizes
are in bytes, and no size needs to be rounded: results may be fractions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

# ---- what a configuration says ---------------------------------------------------------------------------------------


def read_sizes(config: Mapping[str, Any], ranks: int) -> tuple[int, int, int]:
    """(batch, micro, accumulate) of a configuration, on this number of ranks.

    config   may have train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps, and other keys

    batch = micro · accumulate · ranks. A missing size follows from the others. If accumulate and one of the others are
    missing, accumulate is 1. Raise ValueError if the three do not agree, if one of them is not a whole number from 1
    on, or if both batch and micro are missing.
    """
    raise NotImplementedError


# ---- memory ----------------------------------------------------------------------------------------------------------


def model_states(psi: int, ranks: int, stage: int, offload: bool) -> tuple[float, float]:
    """(on a device, in a rank's part of the host): bytes of model states, for psi parameters.

    stage     of ZeRO: 0 shards nothing, 1 optimizer states, 2 also gradients, 3 also parameters
    offload   in stages 1 to 3: optimizer states are on the host, and so is a rank's shard of the gradients. In stage 1
              the device also holds whole gradients, as without offload.
    """
    raise NotImplementedError


def passing_peak(units: Sequence[tuple[int, int, int | None]], stage: int, recompute: bool, micro: int) -> float:
    """The most bytes that a device holds at any moment of a micro-batch, in addition to its model states.

    units       in the order of the forward, for each unit (parameters, keeps, given).
                `parameters` is their number. `keeps` is the bytes per sequence that it keeps for its backward. `given`
                is the bytes per sequence of its input, which are part of `keeps`. It is None for a unit that is
                never recomputed.
    recompute   in the forward, a unit with a `given` keeps only its input. Before its backward it is recomputed, and
                then keeps all its `keeps` bytes
    micro       sequences in the micro-batch

    In stage 3 a unit's parameters are gathered while it runs, forward and backward. In stages 2 and 3 its whole
    gradient exists from the end of its backward until it has been reduced; in stage 3 the gathered parameters are
    still there then. Both take 2 bytes for each parameter, and both are gone before the next unit runs. The bytes that
    a unit keeps are there when its backward begins, and gone when its gradient is whole.
    """
    raise NotImplementedError


# ---- traffic ---------------------------------------------------------------------------------------------------------


def traffic(psi: int, ranks: int, stage: int, offload: bool, accumulate: int) -> tuple[float, float]:
    """(to other ranks, over the link): bytes that a rank sends in a step, and bytes between its device and its host.

    In a reduce-scatter or an all-gather of psi elements of 2 bytes, a rank sends (ranks-1)/ranks of them; an all-reduce
    is both.

    to other ranks    stage 0 all-reduces gradients. Stage 1 reduce-scatters gradients and all-gathers parameters, once
                      in each step. Stage 2 reduce-scatters in every micro-batch. So does stage 3; it all-gathers
                      parameters for every forward and every backward, but not at the end
    over the link     with offload, a rank's shard of the gradients goes down each time that it has been reduced, and
                      its shard of the parameters comes up once in each step
    """
    raise NotImplementedError


# ---- the choice ------------------------------------------------------------------------------------------------------


def choose(
    ranks: int,
    batch: int,
    device: float,
    host: float,
    memory: Callable[[int, bool, bool, int], tuple[float, float]],
    seconds: Callable[[int, bool, bool, int], float],
) -> tuple[int, bool, bool, int] | None:
    """The fastest plan that fits, (stage, offload, recompute, micro); None if none fits.

    Plans are: stage 0, 1, 2 or 3; offload or not (not in stage 0); recompute or not; and micro, the number of a rank's
    sequences in a micro-batch. Any micro is allowed for which micro · ranks · accumulate is the batch, with a whole
    number accumulate.

    device, host    bytes that a device has, and bytes that a rank's part of the host has
    memory(*plan)   the bytes that the plan needs on both
    seconds(*plan)  the time of a step
    """
    raise NotImplementedError
