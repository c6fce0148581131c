"""MPI's rules without MPI: ranks that run without it, and who waits for whom when they hang. See README.md."""
