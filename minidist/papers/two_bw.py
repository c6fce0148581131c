"""PipeDream-2BW, double-buffered weights: Narayanan et al., ICML 2021, arXiv 2006.09503."""

WEIGHT_VERSIONS = 2  # that a stage keeps (section 3.1); with a flush 1 (section 3.2)
DELAY = 1  # updates between the weights with which a gradient was computed and those that it updates (section 3.1)


def version(k: int, m: int) -> int:
    """The version of the weights that micro-batch k, counted from 1, uses: max(⌊(k-1)/m⌋ - 1, 0) (section 3.1)."""
    return max((k - 1) // m - 1, 0)
