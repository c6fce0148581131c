"""A rank that has done its work takes its time to leave, as Python does with many modules."""

import atexit
import time

from minidist.mpi.run import run


def leave() -> None:
    print("leaving", flush=True)
    time.sleep(1)


atexit.register(leave)
run(prepare=lambda comm: None, main=lambda comm, prepared: 0)
