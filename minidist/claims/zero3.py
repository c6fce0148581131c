"""What is promised of ZeRO-3."""

from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim
from minidist.claims.data_parallel import OnDataAxis
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims, peak_claim, persistent_claims, traffic_claims
from minidist.formulas import needs as formulas
from minidist.formulas.asked import Asked
from minidist.formulas.needs import Needs


def needs(run: Asked) -> list[Needs]:
    """What every layout needs, and in addition the parameters that stay on every rank."""
    more = run.bytes.stored * run.model.persistent(run.ranks)
    without = ("what is gathered ahead",) if run.ahead else ()
    return [
        need.but(parameters=need.kinds["parameters"] + more)._replace(without=without) for need in formulas.needs(run)
    ]


class ZeRO3Promises(OnDataAxis):
    needs = staticmethod(needs)

    def claims(self, run: Run) -> list[Claim]:
        return [
            *memory_claims(run, stage=3),
            *persistent_claims(run),
            peak_claim(run, "FSDP §3.2.1", "peak gathered", buckets=2),  # parameters and their gradients
            peak_of_layers(run),
            *traffic_claims(run),
        ]


PROMISES = ZeRO3Promises()
