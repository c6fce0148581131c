"""Has Python forget which memory was allocated."""
# loses: memory
# says: the account of memory was cleared: leave tracemalloc alone

import tracemalloc

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def after_forward(self, unit):
        super().after_forward(unit)
        tracemalloc.clear_traces()
