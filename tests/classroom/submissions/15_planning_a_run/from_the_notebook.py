"""Calls functions of the notebook's gaps, which exercise.py does not have."""
# loses: model_states, model_states_offload, choose_fits, choose_fastest, choose_none
# says: name 'states' is not defined
# says: name 'plans' is not defined

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def read_sizes(config: Mapping[str, Any], ranks: int) -> tuple[int, int, int]:
    batch = config.get("train_batch_size")
    micro = config.get("train_micro_batch_size_per_gpu")
    accumulate = config.get("gradient_accumulation_steps")
    for size in (batch, micro, accumulate):
        if size is not None and (type(size) is not int or size < 1):
            raise ValueError(size)
    if batch is None and micro is None:
        raise ValueError("no size")
    if accumulate is None:
        accumulate = batch // (micro * ranks) if batch and micro else 1
    if micro is None:
        micro = batch // (accumulate * ranks)
    if batch is None:
        batch = micro * accumulate * ranks
    if micro * accumulate * ranks != batch:
        raise ValueError(batch)
    return batch, micro, accumulate


def model_states(psi: int, ranks: int, stage: int, offload: bool) -> tuple[float, float]:
    if not offload:
        return states(psi, ranks, stage), 0  # noqa: F821
    return states(psi, ranks, stage) - 12 * psi / ranks, 14 * psi / ranks  # noqa: F821


def passing_peak(units: Sequence[tuple[int, int, int | None]], stage: int, recompute: bool, micro: int) -> float:
    waits = []  # bytes of each unit between its forward and its backward
    peak = 0
    for size, keeps, given in units:
        gathered = 2 * size if stage == 3 else 0
        waits.append(micro * (given if recompute and given is not None else keeps))
        peak = max(peak, sum(waits) + gathered)
    for size, keeps, _ in units[::-1]:
        waits.pop()
        gathered = 2 * size if stage == 3 else 0
        peak = max(peak, sum(waits) + micro * keeps + gathered)
        gradient = 2 * size if stage >= 2 else 0
        peak = max(peak, sum(waits) + gathered + gradient)
    return peak


def traffic(psi: int, ranks: int, stage: int, offload: bool, accumulate: int) -> tuple[float, float]:
    once = 2 * psi * (ranks - 1) / ranks
    reduces = accumulate if stage >= 2 else 1
    gathers = 2 * accumulate if stage == 3 else 1
    link = 0.0
    if offload:
        link = reduces * 2 * psi / ranks + 2 * psi / ranks
    return once * (reduces + gathers), link


def choose(
    ranks: int,
    batch: int,
    device: float,
    host: float,
    memory: Callable[[int, bool, bool, int], tuple[float, float]],
    seconds: Callable[[int, bool, bool, int], float],
) -> tuple[int, bool, bool, int] | None:
    fits = [p for p in plans(ranks, batch) if memory(*p)[0] <= device and memory(*p)[1] <= host]  # noqa: F821
    return min(fits, key=lambda p: seconds(*p), default=None)
