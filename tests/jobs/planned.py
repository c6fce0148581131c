"""What tests/plan runs on ranks: rows of a plan."""

from typing import Any

from minidist.formulas.profile import Profile
from minidist.papers.models import Model
from minidist.plan.check import train
from minidist.plan.choice import Choice, Wanted


def train_rows(comm: Any, rows: list[list[dict[str, Any]]]) -> list[Any]:
    """What this rank has counted in each row: (memory, sent)."""
    found = []
    for wanted, choice in rows:
        asked = Wanted(**{**wanted, "model": Model(**wanted["model"]), "profile": Profile(**wanted["profile"])})
        found.append(tuple(train(comm, asked, Choice(**choice))))
    return found
