"""How fast minidist is beside PyTorch, MPI's own collectives and gloo: `python -m minidist.bench`."""
