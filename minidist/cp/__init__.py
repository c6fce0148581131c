"""The workshop of `context_parallel.py`: what its ranks share, what watches them, what its papers promise."""
