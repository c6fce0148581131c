"""What is promised of serial training: what it needs. Nothing is shared, so there are no claims."""

from minidist.claims.promises import Promises
from minidist.formulas.needs import needs

PROMISES = Promises(claims=lambda run: [], needs=needs)
