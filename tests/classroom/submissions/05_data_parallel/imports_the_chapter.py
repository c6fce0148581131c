"""Has the chapter do it."""
# keeps: nothing
# says: minidist.data_parallel is not here: it has what this lesson asks you to write

from minidist.data_parallel import DataParallel

__all__ = ["DataParallel"]
