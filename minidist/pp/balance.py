"""Cutting a model into stages that take the same time: PipeDream's dynamic programming.

Harlap et al., "PipeDream: fast and efficient pipeline parallel DNN training", arXiv 1806.03377, section 3.2. A pipeline
runs at the pace of its slowest stage or link, so the best cut makes the slowest as fast as possible. A(j, m), the pace
of the first j units on m workers, is the best over the last cut i and the number m' of workers after it:

    A(j, m) = min over i, m' of  max( A(i, m - m'),  2·a_i / bandwidth,  T(i -> j, m') )

where a_i are the bytes that cross the cut, once forward and once backward, and T is the time that the last stage takes
for a micro-batch when m' workers share the work and all-reduce their gradients meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.nn.layers import Head, Unit


@dataclass(frozen=True)
class Profile:
    """What is known of each unit of a model, in order, for one micro-batch."""

    times: Sequence[float]  # forward and backward
    activations: Sequence[float]  # bytes of the unit's output
    weights: Sequence[float]  # bytes


def profile(units: Sequence[Unit], rows: int, context: int, itemsize: int) -> Profile:
    """A profile in multiplications, for a micro-batch of `rows` sequences. Counted, so that every run cuts alike:
    measured times would differ from run to run, and with them what a schedule without flush computes."""
    head = units[-1]
    assert isinstance(head, Head)
    width, tokens = head.weight.shape[1], rows * context
    times = [0.0]  # an embedding looks up and multiplies nothing
    for unit in units[1:-1]:
        matrices = sum(parameter.size for parameter in unit.parameters if parameter.decays)
        times.append(3.0 * tokens * (matrices + context * width))  # 3: backward is twice the forward
    times.append(3.0 * tokens * head.weight.size)
    activations = [float(tokens * width * itemsize)] * len(units)
    weights = [float(itemsize * sum(parameter.size for parameter in unit.parameters)) for unit in units]
    return Profile(times, activations, weights)


def partition(
    known: Profile, workers: int, bandwidth: float, replicas: Sequence[int] | None = None
) -> tuple[float, list[tuple[range, int]]]:
    """The pace of the best cut, and its stages: which units, on how many workers.

    bandwidth: bytes per unit of the profile's time. replicas: the workers of each stage, if they are given (for a
    plain pipeline, 1 each); otherwise the algorithm chooses the number of stages and the workers of each.
    """
    n = len(known.times)
    allowed = {m: range(1, m + 1) for m in range(1, workers + 1)}  # m workers in all -> those of the last stage
    if replicas is not None:
        ends = {sum(replicas[: s + 1]): count for s, count in enumerate(replicas)}
        allowed = {m: range(ends[m], ends[m] + 1) if m in ends else range(0) for m in allowed}

    times, weights = (np.concatenate([[0.0], np.cumsum(of_each)]) for of_each in (known.times, known.weights))
    links = np.array([0.0, *known.activations[:-1]]) * 2 / bandwidth  # (n,): before unit i
    pace = np.full((workers + 1, n + 1), np.inf)  # A(j, m) stands at [m, j]
    pace[0, 0] = 0.0
    last_of: dict[tuple[int, int], tuple[int, int]] = {}  # (j, m) -> where the last stage begins, and its workers
    for j in range(1, n + 1):
        for m in range(1, workers + 1):
            for last in allowed[m]:
                # T(i -> j, last) for every i < j, units i to j - 1: `last` workers take every last-th micro-batch each,
                # and a ring all-reduce of their gradients sends 2(last-1)/last of the weights in that time.
                reduce = 2 * (last - 1) / last * (weights[j] - weights[:j]) / bandwidth
                stage = np.maximum(times[j] - times[:j], reduce) / last  # (j,)
                every = np.maximum(np.maximum(pace[m - last, :j], links[:j]), stage)
                i = int(every.argmin())
                if every[i] < pace[m, j]:
                    pace[m, j], last_of[j, m] = every[i], (i, last)
    stages: list[tuple[range, int]] = []
    j, m = n, workers
    while m > 0:
        i, last = last_of[j, m]
        stages.insert(0, (range(i, j), last))
        j, m = i, m - last
    return float(pace[workers, n]), stages
