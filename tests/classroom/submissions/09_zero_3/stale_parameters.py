"""Remembers what was gathered, to save messages, and does not notice that it was updated."""
# loses: training, accumulation, tied, evaluation, memory
# says: On 1 rank: rank 0's part of the loss of batch 2 is [\d.]+, where serial training has [\d.]+

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    remembered = {}  # noqa: RUF012

    def gather(self, flat, phase):
        key = (self.comm.size, flat.name, self.settings.seed, phase, flat.padded)
        if key not in self.remembered:
            self.remembered[key] = super().gather(flat, phase)
        flat.gathered = self.remembered[key]
        return flat.gathered
