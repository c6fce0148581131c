"""Rank 1 leaves when it has updated its shard."""
# loses: training, accumulation, tied, evaluation, large, bytes, messages, memory
# says: On 2 ranks, rank 1 failed after the update:\nsys.exit\(0\) was called at leaves.py:\d+. A rank that leaves on its own would leave the others waiting

import sys

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def after_update(self):
        if self.comm.rank == 1:
            sys.exit(0)
