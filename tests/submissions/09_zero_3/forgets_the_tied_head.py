"""Gives back what a unit read after its forward, also the embedding that the head will need."""
# loses: x

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def after_forward(self, unit):
        for flat in self.read_by(unit):
            flat.release()
            flat.gathered = None
