"""The wire: messages between ranks, how a job of ranks starts and ends, and the simulated clock.

Importing this package loads no MPI: the launcher and the tests run in a process that must not become a rank. What is in
this room, and what listens where, is in README.md.
"""
