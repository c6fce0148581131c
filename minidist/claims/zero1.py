"""What is promised of ZeRO-1."""

from minidist.claims.data_parallel import on_data_axis
from minidist.claims.zero import buffer_claims

PROMISES = on_data_axis(buffer_claims)
