"""What is promised of ZeRO-2."""

from minidist.claims.data_parallel import on_data_axis
from minidist.claims.zero import peak_claim

PROMISES = on_data_axis(lambda run: [peak_claim(run, "arithmetic", "peak of buckets", buckets=1)])
