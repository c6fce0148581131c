"""Takes in the backward what it gathered in the forward, which was forgotten."""
# loses: parameters_of, training, accumulation, tied, evaluation, large, bytes, messages, memory
# says: On 1 rank, rank 0 failed at head in the backward:\nTypeError: parameters_of returned NoneType where an array \(\d+,\) is wanted: all parameters

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def parameters_of(self, flat):
        return super().parameters_of(flat) if self.direction == "forward" else flat.gathered
