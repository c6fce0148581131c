"""Lets MPI's own all-gather do it, where nobody counts."""
# loses: tied, bytes, messages
# says: in phase 'all-gather forward': 0 bytes instead of 3,552\n    Something is not gathered or reduced that must be, or not over comm

import numpy as np

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def parameters_of(self, flat):
        if flat.gathered is None:
            whole = np.empty(flat.padded, flat.param.dtype)
            self.comm._port.port.mpi.Allgather(flat.param.view(np.uint8), whole.view(np.uint8))
            flat.gathered = whole
        return flat.gathered
