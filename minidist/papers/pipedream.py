"""PipeDream: Narayanan et al., SOSP 2019, and Harlap et al., arXiv 1806.03377. No flush; stages count from 1 to n."""


def weight_versions(n: int, stage: int) -> int:
    """Versions of its weights that stage i keeps: n-i+1, one for each minibatch under way (section 3.3)."""
    return n - stage + 1


def delay(n: int, stage: int) -> int:
    """How many updates lie between the weights of which a gradient was taken and those to which it is applied: n-i
    (section 3.3)."""
    return n - stage


def vertical_sync_delay(n: int) -> int:
    """The same with vertical sync: n-1 on all stages (section 3.3)."""
    return n - 1
