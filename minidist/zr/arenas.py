"""--arena-plot: addresses for the arrays that a rank holds, and a picture of them."""

from collections.abc import Iterator
from contextlib import contextmanager

from minidist.cli.paths import write_output
from minidist.memory import plot
from minidist.memory.arena import Arena
from minidist.memory.pool import OutOfMemory, Pool
from minidist.mpi.comm import Comm


@contextmanager
def drawn(device: Pool, comm: Comm, path: str | None, capacity: int | None) -> Iterator[None]:
    """If there is a path, arrays get addresses inside, and rank 0 draws the last step. If a run ends out of memory, the
    picture ends there."""
    if not path:
        yield
        return
    arena, failed = Arena(capacity), ""
    try:
        device.give_addresses(arena)
        yield
    except OutOfMemory as error:  # every rank fails at the same array: all hold arrays of the same sizes
        failed = str(error)
        raise
    finally:
        if comm.rank == 0:
            write_output(path, plot.draw_arena(arena, failed, plot.format_of(path)))
        if failed:
            comm.barrier()  # wait for the picture: the first rank to fail ends the others
