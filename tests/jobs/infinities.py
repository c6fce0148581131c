"""What tests/test_infinity.py runs on ranks."""

from minidist.mpi.comm import Comm
from minidist.programs.chapter import find


def line(comm: Comm, arguments: str) -> int:
    """A command line of the chapter; its exit status."""
    chapter = find("infinity")
    job = chapter.job(arguments.split(), comm.size)
    job.taken = chapter.take(job, comm)
    return chapter.work(comm, job)
