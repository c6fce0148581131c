"""What tests/test_wire.py runs on two ranks."""

from typing import Any

import numpy as np

from minidist.mpi.comm import CommError

LARGE = 1_000_000  # elements: far more than MPI sends before the receiver asks


def requests_left_open(comm: Any) -> list[Any]:
    """A request started in a phase that may leave it open: when it is done, and what the phase counted."""
    seen: list[Any] = []
    if comm.rank == 0:
        with comm.phase("open", leave_open=True):
            request = comm.isend(np.ones(LARGE), 1)
        seen.append(request.done())  # nobody has asked for it yet
        comm.send_object("go", 1)
        request.wait()
        seen += [request.done(), comm.ledger.by_phase()["open"]["bytes"], len(comm.ledger.open_requests)]
        try:
            with comm.phase("closed"):
                late = comm.isend(np.ones(LARGE), 1)
        except CommError:
            seen.append("closed phases still refuse")
        comm._port.wait(late.handle)
    else:
        seen.append(comm.recv_object(0))
        for _ in range(2):
            out = np.empty(LARGE)
            comm.recv(out, 0)
            seen.append(float(out.sum()))
    return seen
