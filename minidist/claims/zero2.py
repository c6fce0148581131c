"""What is promised of ZeRO-2."""

from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim
from minidist.claims.data_parallel import OnDataAxis
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims, peak_claim, traffic_claims


class ZeRO2Promises(OnDataAxis):
    def claims(self, run: Run) -> list[Claim]:
        peak = peak_claim(run, "arithmetic", "peak of buckets", buckets=1)
        return [*memory_claims(run, stage=2), peak, peak_of_layers(run), *traffic_claims(run)]


PROMISES = ZeRO2Promises()
