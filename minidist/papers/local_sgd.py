"""Local SGD: Stich, ICLR 2019. DiLoCo: Douillard et al. 2023, arXiv 2311.08105."""

from minidist.papers.figure import Figure


def volume(psi: float, n: int, steps: int, every: int) -> float:
    """Elements that each of n ranks sends to average psi parameters after `every` steps, and after the last one."""
    return -(-steps // every) * 2 * psi * (n - 1) / n


def outer(psi: int, lr: float, momentum: float, nbytes: int) -> int:
    """Bytes of what DiLoCo's outer optimizer keeps: the parameters of the last averaging, and its momentum."""
    return 2 * nbytes * psi if (lr, momentum) != (1.0, 0.0) else 0


# ---- what they print -------------------------------------------------------------------------------------------------

WORKERS, EVERY = 8, 500  # DiLoCo's, section 3
LESS = Figure("DiLoCo, abstract", "8 workers, less communication", "500", "times", "2ΨH/2Ψ")
ROUNDS = 128  # averagings
STEPS = Figure("DiLoCo §3", "steps of a worker", "64,000", "", "T·H", ROUNDS * EVERY)
FIGURES = [LESS, STEPS]
