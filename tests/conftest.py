import minidist  # noqa: F401  (before NumPy: it sets one BLAS thread, also for the serial runs of the tests)
