"""ZeRO-Infinity: Rajbhandari et al., SC 2021, arXiv 2104.07857. Volumes in elements, sizes in bytes."""


def moved(psi: float, n: int, stage: int = 3, accumulate: int = 1, again: float = 0) -> dict[str, float]:
    """Elements that each of n ranks moves in a step (section 4.1). again: of units that run again apart from their
    backward, and are read once more; the paper lets all of them.

    Stage 3 reads each shard for a forward and for a backward, and writes it once. Below it, parameters are on the
    devices, and go up once updated.
    """
    shard, divided = psi / n, stage == 3
    return {
        "parameters read": accumulate * (2 * psi + again) / n * divided,
        "parameters written": shard * divided,
        "parameters up": shard,
        "gradients": shard * (accumulate if stage >= 2 else 1),
        "states": shard,
    }
