"""The workshop of tensor parallelism: what the chapter `minidist/tensor_parallel.py` needs and its reader may skip."""
