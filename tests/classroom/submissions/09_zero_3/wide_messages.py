"""Widens its shard for arithmetic before it is gathered, not after: twice the bytes in mixed precision."""
# loses: bytes
# says: On 4 ranks, a step in mixed: rank 0 sent
# says: in phase 'all-gather forward': 1,776 bytes instead of 888, at wide_messages.py:13

from minidist import ring, zero3


class ZeRO3(zero3.ZeRO3):
    def parameters_of(self, flat):
        if flat.gathered is None:
            with self.comm.phase(f"all-gather {self.direction}"):
                flat.gathered = ring.all_gather(self.comm, self.widened(flat.param), flat.padded)
        return flat.gathered
