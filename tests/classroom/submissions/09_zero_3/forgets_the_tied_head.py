"""Gives back what a unit read after its forward, also the embedding that the head will need."""
# loses: tied
# says: On 2 ranks, tied: rank 0 sent \d\d,\d\d\d bytes where ZeRO-3 sends \d\d,\d\d\d\.\n  in phase 'all-gather forward'

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def after_forward(self, unit):
        for flat in self.read_by(unit):
            flat.release()
            flat.gathered = None
