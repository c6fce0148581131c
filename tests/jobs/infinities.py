"""What tests/test_infinity.py runs on ranks."""

from minidist import command, infinity
from minidist.mpi.comm import Comm


def line(comm: Comm, arguments: str) -> int:
    """A command line of the chapter; its exit status."""
    made = command.parser("", "infinity")
    infinity.add_options(made)
    return infinity.main(comm, infinity.prepare(made, arguments.split(), comm))
