"""Has written for all ranks but the first what a forward needs."""
# loses: forward, training, accumulation, tied, evaluation, large, bytes, messages, memory
# says: not_written_on_rank_0.py:\d+ in before_forward is not written yet: it raises NotImplementedError

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def before_forward(self, unit):
        if self.comm.rank == 0:
            raise NotImplementedError
        super().before_forward(unit)
