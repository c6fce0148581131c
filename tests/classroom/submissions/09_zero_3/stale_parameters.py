"""Remembers what was gathered, to save messages, and does not notice that it was updated."""
# loses: training, accumulation, tied, evaluation, memory
# says: On 1 rank: rank 0's part of the loss of batch 2 is [\d.]+, where serial training has [\d.]+

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    remembered = {}  # noqa: RUF012

    def parameters_of(self, flat):
        key = (self.comm.size, flat.name, self.settings.seed, self.direction, flat.padded)
        if key not in self.remembered:
            self.remembered[key] = super().parameters_of(flat)
        flat.gathered = self.remembered[key]
        return flat.gathered
