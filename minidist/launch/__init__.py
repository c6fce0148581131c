"""Jobs of ranks that are started from Python: by tests, notebooks, the grader and benchmarks. See README.md."""
