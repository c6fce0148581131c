"""The wire: messages between ranks, how a chapter starts and ends under mpirun, and the simulated clock.

Importing this package loads no MPI: the launcher and the tests run in a process that must not become a rank. What is in
this room, and what listens where, is in README.md.
"""

ROOMS = ("mpi", "exchange", "launch")  # that stand between a program and its messages: errors name lines outside them
