"""What tests/test_infinity.py runs on ranks."""

from minidist.mpi.comm import Comm
from minidist.programs.chapter import find


def line(comm: Comm, arguments: str) -> int:
    """A command line of the chapter; its exit status."""
    chapter = find("infinity")
    status: int = chapter.work(comm, chapter.prepared(arguments.split(), comm))
    return status
