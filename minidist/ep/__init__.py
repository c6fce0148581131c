"""The workshop of expert parallelism: what the chapter `minidist/expert_parallel.py` needs and its reader may skip."""
