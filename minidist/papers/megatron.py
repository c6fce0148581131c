"""Tensor parallelism: Shoeybi et al. 2019, arXiv 1909.08053 (Megatron-LM)."""


def padded_vocabulary(v: int, multiple: int) -> int:
    """The vocabulary with entries that never occur, so that it divides (Megatron-LM: 50,257 to 51,200 for 8 ranks)."""
    return -(-v // multiple) * multiple


# Table 1: {billions of parameters as printed: (width, layers)}, with v = 51,200 and s = 1,024.
TABLE_1 = {"1.2": (1536, 40), "2.5": (1920, 54), "4.2": (2304, 64), "8.3": (3072, 72)}
