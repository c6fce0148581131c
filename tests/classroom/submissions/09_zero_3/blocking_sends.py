"""A ring of its own: send, then receive, which works as long as MPI has room to put shards aside."""
# loses: large, memory
# says: On 4 ranks, large units: hung: every rank waits
# says: rank 2: send\(dest=3\) at blocking_sends.py:19 in parameters_of at block0 in the forward
# says: A cycle of waits: 0 -> 1 -> 2 -> 3 -> 0

import numpy as np

from minidist import ring, zero3


class ZeRO3(zero3.ZeRO3):
    def parameters_of(self, flat):
        if flat.gathered is None:
            n, rank, whole = self.comm.size, self.comm.rank, np.empty(flat.padded, flat.param.dtype)
            whole[self.piece(flat)] = flat.param
            with self.comm.phase(f"all-gather {self.direction}"):
                for step in range(n - 1):
                    self.comm.send(whole[ring.chunk(flat.padded, n, (rank - step) % n)], (rank + 1) % n)
                    self.comm.recv(whole[ring.chunk(flat.padded, n, (rank - step - 1) % n)], (rank - 1) % n)
            flat.gathered = whole
        return flat.gathered
