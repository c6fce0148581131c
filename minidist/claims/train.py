"""What is promised of serial training: what it needs. Nothing is shared, so there are no claims."""

from minidist.claims.claim import Claim
from minidist.claims.promises import Promises
from minidist.claims.run import Run
from minidist.formulas.needs import needs


class SerialPromises(Promises):
    needs = staticmethod(needs)

    def claims(self, run: Run) -> list[Claim]:
        return []


PROMISES = SerialPromises()
