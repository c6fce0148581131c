"""How fast minidist is, compared with PyTorch, MPI's own collectives and gloo: `python -m minidist.bench`."""
