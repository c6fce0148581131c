"""What tests/test_infinity.py runs on ranks."""

from typing import Any

from minidist import command, infinity
from minidist.claims import infinity as claims
from minidist.mpi.comm import Comm


def line(comm: Comm, arguments: str) -> int:
    """A command line of the chapter; its exit status."""
    made = command.parser("", "infinity")
    infinity.add_options(made)
    return infinity.main(comm, infinity.prepare(made, arguments.split(), comm))


def bandwidth(comm: Comm) -> list[Any]:
    """What the table of bandwidths is made of, from clocks; and whether it has been found as promised."""
    seen: list[Any] = []
    table = claims.print_bandwidth

    def look(rows: Any) -> int:
        seen.extend((row.n, row.shards.clock, row.owner.clock) for row in rows)
        return table(rows)

    claims.print_bandwidth = look
    try:
        return [line(comm, "--bandwidth-table"), seen]
    finally:
        claims.print_bandwidth = table
