"""MPI's rules without MPI: ranks that run without it, and which rank waits for which in a hang. See README.md."""
