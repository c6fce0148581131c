"""The wire: messages between ranks, how a chapter starts and ends under mpirun, and the simulated clock.

Importing this package loads no MPI: the launcher and the tests run in a process that must not become a rank. README.md
lists what is in this room, and which ports are open.
"""

ROOMS = ("mpi", "exchange", "launch")  # these are between a program and its messages: errors name lines outside of them
