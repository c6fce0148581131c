"""The workshop of 3D parallelism: the grid of ranks, its command line and its claims."""
