"""Puts the model together at the first forward, and after every update, as ZeRO-2 does."""
# loses: forget, tied, bytes, messages, memory
# says: in phase 'all-gather backward': 0 bytes instead of 3,552
# says: bytes more after an evaluation than before. What was not released\?

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def parameters_of(self, flat):
        for each in self.flats:
            super().parameters_of(each)
        return flat.gathered

    def forget(self, flat):
        pass

    def after_update(self):
        for flat in self.flats:
            flat.gathered = None
