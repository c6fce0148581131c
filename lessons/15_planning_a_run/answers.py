"""Lesson 15's own functions, which the notebook uses where a gap is open: look here after you have tried."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from given import SIZES, Plan, Unit

# ---- the gaps --------------------------------------------------------------------------------------------------------


def batch_of(micro: int, accumulate: int, ranks: int) -> int:
    return micro * accumulate * ranks


def states(psi: int, ranks: int, stage: int) -> float:
    divided = [ranks if stage >= needed else 1 for needed in (3, 2, 1)]
    return sum(nbytes * psi / by for nbytes, by in zip((2, 2, 12), divided, strict=True))


def kept(units: Sequence[Unit], recompute: bool, micro: int) -> int:
    return micro * sum(keeps if given is None or not recompute else given for _, keeps, given in units)


def plans(ranks: int, batch: int) -> list[Plan]:
    found = []
    for stage in range(4):
        for offload in (False, True) if stage else (False,):
            for again in (False, True):
                micros = [micro for micro in range(1, batch // ranks + 1) if batch % (micro * ranks) == 0]
                found += [(stage, offload, again, micro) for micro in micros]
    return found


# ---- the exercise ----------------------------------------------------------------------------------------------------


def read_sizes(config: Mapping[str, Any], ranks: int) -> tuple[int, int, int]:
    said = [config.get(name) for name in SIZES]
    for name, size in zip(SIZES, said, strict=True):
        if size is not None and (not isinstance(size, int) or size < 1):
            raise ValueError(f"{name} {size} is no whole number from 1 on")
    batch, micro, accumulate = said
    if batch is None and micro is None:
        raise ValueError(f"neither {SIZES[0]} nor {SIZES[1]} is there")
    if batch is None or micro is None:
        accumulate = accumulate or 1
    if batch is None:
        batch = batch_of(micro, accumulate, ranks)
    elif micro is None:
        micro = batch // (accumulate * ranks)
    elif accumulate is None:
        accumulate = batch // (micro * ranks)
    if batch != batch_of(micro, accumulate, ranks):
        raise ValueError(f"a batch of {batch} is not {micro} · {accumulate} · {ranks} ranks")
    return batch, micro, accumulate


def model_states(psi: int, ranks: int, stage: int, offload: bool) -> tuple[float, float]:
    if not offload:
        return states(psi, ranks, stage), 0
    device = 2 * psi / (ranks if stage == 3 else 1) + (2 * psi if stage == 1 else 0)
    return device, 14 * psi / ranks


def passing_peak(units: Sequence[Unit], stage: int, recompute: bool, micro: int) -> float:
    most = now = 0.0
    for parameters, keeps, given in units:
        now += kept([(parameters, keeps, given)], recompute, micro)
        most = max(most, now + 2 * parameters * (stage == 3))
    for parameters, keeps, given in reversed(units):
        if recompute and given is not None:
            now += micro * (keeps - given)
        gathered = 2 * parameters * (stage == 3)
        most = max(most, now + gathered)
        now -= micro * keeps
        most = max(most, now + gathered + 2 * parameters * (stage >= 2))
    return most


def traffic(psi: int, ranks: int, stage: int, offload: bool, accumulate: int) -> tuple[float, float]:
    reduced = accumulate if stage >= 2 else 1
    gathered = 2 * accumulate if stage == 3 else 1
    sent = 2 * psi * (ranks - 1) / ranks * (reduced + gathered)
    return sent, 2 * psi / ranks * (reduced + 1) if offload else 0


def choose(
    ranks: int,
    batch: int,
    device: float,
    host: float,
    memory: Callable[[int, bool, bool, int], tuple[float, float]],
    seconds: Callable[[int, bool, bool, int], float],
) -> Plan | None:
    fitting = []
    for plan in plans(ranks, batch):
        needs_device, needs_host = memory(*plan)
        if needs_device <= device and needs_host <= host:
            fitting.append(plan)
    return min(fitting, key=lambda plan: seconds(*plan), default=None)
