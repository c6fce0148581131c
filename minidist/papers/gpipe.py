"""GPipe: Huang et al., NeurIPS 2019, arXiv 1811.06965. K stages and M micro-batches, here p and m."""


def bubble(p: int, m: int) -> float:
    """The part of all time that a worker idles: (K-1)/(M+K-1) (section 2.3, where it is an O()).

    "Negligible when M >= 4K" was found in experiments: the formula gives 15.8 % for K = 4, M = 16.
    """
    return (p - 1) / (m + p - 1)
