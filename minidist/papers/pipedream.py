"""PipeDream: Narayanan et al., SOSP 2019, and Harlap et al., arXiv 1806.03377. No flush; stages count from 1 to n."""

from collections.abc import Sequence


def weight_versions(n: int, stage: int) -> int:
    """Versions of its weights that stage i keeps: n-i+1, one for each minibatch under way (section 3.3)."""
    return n - stage + 1


def delay(n: int, stage: int) -> int:
    """Updates between the weights with which a gradient was computed and the weights to which it is applied: n-i
    (section 3.3)."""
    return n - stage


def vertical_sync_delay(n: int) -> int:
    """The delay with vertical sync: n-1 on all stages (section 3.3)."""
    return n - 1


def version(t: int, n: int, stage: int) -> int:
    """The version of its weights that stage i uses for minibatch t, from 0, which makes version t+1: t-n+i, and at the
    beginning version 0 (section 3.3)."""
    return max(t - delay(n, stage), 0)


def vertical_sync_version(t: int, n: int) -> int:
    """The version used with vertical sync: t-n+1 on all stages (section 3.3)."""
    return max(t - vertical_sync_delay(n), 0)


def vertical_sync_weight_versions(n: int) -> int:
    """Versions that a stage keeps with vertical sync: n on all. Stage i has made t-n+i when minibatch t+1 comes, and
    minibatch t-n+i, whose backward is next, uses t-2n+i+1."""
    return n


def noam(replicas: Sequence[int], stage: int) -> int:
    """NUM_OPT_ACTIVE_MINIBATCHES, for any stage: minibatches that a worker takes in before its first backward, so that
    all workers from its stage on have work (section 3.2: for the input stage). With one worker to a stage: n-i+1."""
    return -(-sum(replicas[stage - 1 :]) // replicas[stage - 1])


def backwards_left(replicas: Sequence[int], stage: int, m: int, updates: int) -> int:
    """1F1B without a flush: the backwards that a worker still has to run when the last update's first micro-batch
    comes. m: micro-batches to an update; they and `updates` are as many on all workers of the stage."""
    each = m // replicas[stage - 1]
    return min(each + noam(replicas, stage) - 1, updates * each)
