"""NumPy's own account of arrays, compared with the pools that count memory (`minidist/memory/witness.py`)."""

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.run import Run
from minidist.cli.tables import number, say


def witness_claims(run: Run) -> list[Claim]:
    """At every boundary of the training, both accounts agree. No claim without --witness."""
    found = [counted["witness"] for counted in run.counted if "witness" in counted]
    if not found:
        return []
    boundaries = [seen["boundaries"] for seen in found]
    agreed = [seen["boundaries"] - len(seen["unnamed"]) for seen in found]
    return [on_each_rank("in addition", "agrees with NumPy", "at each boundary", boundaries, agreed, "")]


def print_witness(run: Run) -> None:
    """By how much NumPy's peak was above the pool's, and where the two accounts disagree."""
    found = [counted["witness"] for counted in run.counted if "witness" in counted]
    for rank, seen in enumerate(found):
        for where, nbytes in list(seen["unnamed"].items())[:3]:
            say(f"rank {rank}, after {where}: {number(nbytes)} bytes of arrays that are in no pool")
    if found:
        most = ", ".join(number(seen["scratch"]) for seen in found)
        say(f"NumPy's peak was above the pool's by one operation's scratch: {most} bytes (by rank).")
