"""Rank 1 never comes to start MPI, and the others wait for it inside MPI's Init. Says the process of each. Rank 2 comes
when the file that LATE names is there."""

import os
import signal
import time

from minidist.cli import start
from minidist.mpi.run import run

signal.signal(signal.SIGINT, start.leave)  # as python -m does for a chapter
print(f"process {os.getpid()} ", flush=True)
if os.environ["PMI_RANK"] == "1":
    time.sleep(100)
while os.environ["PMI_RANK"] == "2" and not os.path.exists(os.environ.get("LATE", ".")):
    time.sleep(0.01)
run(prepare=lambda comm: None, main=lambda comm, prepared: 0)
