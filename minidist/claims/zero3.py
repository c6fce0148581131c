"""What is promised of ZeRO-3."""

from minidist.claims.claim import Claim
from minidist.claims.data_parallel import on_data_axis
from minidist.claims.run import Run
from minidist.claims.zero import peak_claim, persistent_claims
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


def transient(run: Run) -> list[Claim]:
    """Whole units for a moment: parameters and their gradients."""
    return [*persistent_claims(run), peak_claim(run, "FSDP §3.2.1", "peak gathered", buckets=2)]


PROMISES = on_data_axis(transient, estimate=needs)
