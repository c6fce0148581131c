"""Exercise 15: a planner.

Fill in the five functions; `pytest lessons/15_planning_a_run` says how many points they earn. Python's own library is
all that you need. None needs another one.

Mixed precision with Adam: for each parameter 2 bytes of parameters, 2 of gradients and 12 of optimizer states. All
sizes are in bytes, and no size needs to be rounded: results may be fractions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

# ---- what a configuration says ---------------------------------------------------------------------------------------


def read_sizes(config: Mapping[str, Any], ranks: int) -> tuple[int, int, int]:
    """(batch, micro, accumulate) of a configuration, on so many ranks.

    config   may have train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps, and other keys

    batch = micro · accumulate · ranks. What is not there follows from what is there. Where accumulate and one of the
    others are missing, accumulate is 1. Raise ValueError if the three do not agree, if one of them is not a whole
    number from 1 on, or if neither batch nor micro is there.
    """
    raise NotImplementedError


# ---- memory ----------------------------------------------------------------------------------------------------------


def model_states(psi: int, ranks: int, stage: int, offload: bool) -> tuple[float, float]:
    """(on a device, in a rank's part of the host): bytes of model states, for psi parameters.

    stage     of ZeRO: 0 divides nothing, 1 optimizer states, 2 gradients too, 3 parameters too
    offload   in stages 1 to 3: optimizer states are on the host, and a rank's shard of the gradients is there as well.
              In stage 1 whole gradients are on the device besides, as without offload.
    """
    raise NotImplementedError


def passing_peak(units: Sequence[tuple[int, int, int | None]], stage: int, recompute: bool, micro: int) -> float:
    """The most bytes that a device holds at any moment of a micro-batch, beside its model states.

    units       in the order of the forward, of each (parameters, keeps, given): how many parameters it has; bytes that
                it keeps for its backward, for each sequence; bytes of its input, for each sequence, among those that it
                keeps. given is None for a unit that never runs again
    recompute   units with a `given` keep that alone in the forward. When its backward comes, a unit runs again, and
                keeps all that it keeps
    micro       sequences

    In stage 3 a unit's parameters are gathered while it runs, forward and backward. In stages 2 and 3 its gradient is
    whole at the end of its backward, until it has been reduced; in stage 3 the parameters are still there then. Both
    have 2 bytes for each parameter, and both are gone before the next unit runs. What a unit has kept is there when its
    backward begins, and gone when its gradient is whole.
    """
    raise NotImplementedError


# ---- traffic ---------------------------------------------------------------------------------------------------------


def traffic(psi: int, ranks: int, stage: int, offload: bool, accumulate: int) -> tuple[float, float]:
    """(to other ranks, over the link): bytes that a rank sends in a step, and those between its device and its host.

    Whoever reduce-scatters or all-gathers psi elements of 2 bytes sends (ranks-1)/ranks of them; an all-reduce is both.

    to other ranks    stage 0 all-reduces gradients. Stage 1 reduce-scatters gradients and all-gathers parameters, once
                      a step. Stage 2 reduce-scatters in every micro-batch. Stage 3 does so too, and all-gathers
                      parameters for every forward and every backward, and not at the end
    over the link     with offload a rank's shard of the gradients goes down whenever it has been reduced, and its shard
                      of the parameters comes up once a step
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
    """The plan that takes the least time of all that fit, (stage, offload, recompute, micro); None if none fits.

    Plans are: stage 0, 1, 2 or 3; offload or not (not in stage 0); recompute or not; and micro, sequences of a rank in
    a micro-batch, such that micro · ranks · accumulate is the batch for a whole accumulate.

    device, host   bytes that a device has, and a rank's part of the host
    memory(plan)   called with the four: bytes that the plan needs of both
    seconds(plan)  of a step
    """
    raise NotImplementedError
