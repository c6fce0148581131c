"""The chapter's class."""
# keeps: nothing
# says: minidist.zero1 is not here: it has what this lesson asks you to write

from minidist.zero1 import ZeRO1

__all__ = ["ZeRO1"]
