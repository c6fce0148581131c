"""What NumPy's own account of arrays says of the pools from which memory is counted (`minidist/memory/witness.py`)."""

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.run import Run
from minidist.cli.tables import number


def witness_claims(run: Run) -> list[Claim]:
    """At every boundary of the training both accounts agree; nothing, where nobody asked for a witness."""
    found = [counted["witness"] for counted in run.counted if "witness" in counted]
    if not found:
        return []
    boundaries = [seen["boundaries"] for seen in found]
    agreed = [seen["boundaries"] - len(seen["unnamed"]) for seen in found]
    return [on_each_rank("beside it", "agrees with NumPy", "at each boundary", boundaries, agreed, "")]


def print_witness(run: Run) -> None:
    """How much above the pool NumPy's account was at its peak; and where the two do not agree."""
    found = [counted["witness"] for counted in run.counted if "witness" in counted]
    for rank, seen in enumerate(found):
        for where, nbytes in list(seen["unnamed"].items())[:3]:
            print(f"rank {rank}, after {where}: {number(nbytes)} bytes of arrays that nobody named")
    if found:
        most = ", ".join(number(seen["scratch"]) for seen in found)
        print(f"Above the pool's peak, NumPy's own was by an operation's scratch: {most} bytes (by rank).")
