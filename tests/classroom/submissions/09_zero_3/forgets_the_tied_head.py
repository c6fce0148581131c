"""Drops all else when it gathers a unit, also the embedding that the head will read."""
# loses: tied
# says: On 2 ranks, tied: rank 0 sent \d\d,\d\d\d bytes where ZeRO-3 sends \d\d,\d\d\d\.\n  in phase 'all-gather forward'

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def parameters_of(self, flat):
        for other in self.flats:
            if other is not flat:
                other.gathered = None
        return super().parameters_of(flat)
