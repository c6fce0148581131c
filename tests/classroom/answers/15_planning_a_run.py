"""A right answer to exercise 15, written from the skeleton."""

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
    shard = psi / ranks
    parameters = 2 * shard if stage >= 3 else 2 * psi
    gradients = 2 * shard if stage >= 2 else 2 * psi
    optimizer = 12 * shard if stage >= 1 else 12 * psi
    if offload:
        on_device = gradients if stage == 1 else 0
        return parameters + on_device, 2 * shard + optimizer
    return parameters + gradients + optimizer, 0


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
    best, least = None, float("inf")
    for stage in range(4):
        for offload in (False, True) if stage else (False,):
            for recompute in (False, True):
                for micro in range(1, batch // ranks + 1):
                    if batch % (micro * ranks):
                        continue
                    plan = stage, offload, recompute, micro
                    on_device, on_host = memory(*plan)
                    if on_device <= device and on_host <= host and seconds(*plan) < least:
                        best, least = plan, seconds(*plan)
    return best
