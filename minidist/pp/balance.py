"""Cutting a model into stages that take the same time: PipeDream's dynamic programme.

Harlap et al., "PipeDream: fast and efficient pipeline parallel DNN training", arXiv 1806.03377, section 3.2. A pipeline
runs at the pace of its slowest stage or link, so the best cut makes the slowest as fast as possible. A(j, m), the pace
of the first j units on m workers, is the best over the last cut i and the number m' of workers behind it:

    A(j, m) = min over i, m' of  max( A(i, m - m'),  2·a_i / bandwidth,  T(i -> j, m') )

where a_i are the bytes that cross the cut, once forward and once backward, and T is the time that the last stage takes
for a micro-batch when m' workers share the work and all-reduce their gradients meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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

    bandwidth: bytes to a unit of the profile's time. replicas: the workers of each stage, if that is settled (for a
    plain pipeline, 1 each); otherwise the programme chooses the number of stages and the workers of each.
    """
    n = len(known.times)
    allowed = {m: range(1, m + 1) for m in range(1, workers + 1)}  # workers of the last stage, of m in all
    if replicas is not None:
        ends = {sum(replicas[: s + 1]): count for s, count in enumerate(replicas)}
        allowed = {m: range(ends[m], ends[m] + 1) if m in ends else range(0) for m in allowed}

    def stage(i: int, j: int, m: int) -> float:
        """T(i -> j, m) for units i to j - 1: m workers take every m-th micro-batch each, and a ring all-reduce of
        their gradients sends 2(m-1)/m of the weights in that time."""
        return max(sum(known.times[i:j]), 2 * (m - 1) / m * sum(known.weights[i:j]) / bandwidth) / m

    best: dict[tuple[int, int], tuple[float, list[tuple[range, int]]]] = {(0, 0): (0.0, [])}
    for j in range(1, n + 1):
        for m in range(1, workers + 1):
            for last in allowed[m]:
                for i in range(j):
                    if (i, m - last) not in best:
                        continue
                    before, stages = best[i, m - last]
                    link = 2 * known.activations[i - 1] / bandwidth if i > 0 else 0.0
                    pace = max(before, link, stage(i, j, last))
                    if (j, m) not in best or pace < best[j, m][0]:
                        best[j, m] = pace, [*stages, (range(i, j), last)]
    return best[n, workers]
