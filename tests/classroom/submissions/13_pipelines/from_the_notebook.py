"""The notebook's gaps, and nothing else."""
# loses: clock, clock_latency, clock_deadlock, gpipe, one_f_one_b, one_f_one_b_memory, zb_h1, zb_h1_memory, perform, perform_arrays, perform_early, perform_waits, shorter, shorter_more, interleaved
# says: does not define gpipe

import numpy as np

Array = np.ndarray
Order = list[tuple[str, int]]
Span = tuple[str, int, float, float]


def forwards_first(m):
    return [("F", k) for k in range(m)] + [("BW", k) for k in reversed(range(m))]
