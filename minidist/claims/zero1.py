"""What is promised of ZeRO-1."""

from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim
from minidist.claims.data_parallel import OnDataAxis
from minidist.claims.run import Run
from minidist.claims.zero import buffer_claims, memory_claims, traffic_claims


class ZeRO1Promises(OnDataAxis):
    def claims(self, run: Run) -> list[Claim]:
        held = [*memory_claims(run, stage=1), *buffer_claims(run), peak_of_layers(run)]
        return [*held, *traffic_claims(run)]


PROMISES = ZeRO1Promises()
