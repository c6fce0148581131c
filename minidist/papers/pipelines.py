"""How the schedules of several papers compare: what a stage holds under each, and how old its weights are.

A schedule goes by its usual name in lower case, as on the command line. Stages count from 1; p (K, n, d in some papers)
is their number. m (M) is the number of micro-batches, v that of a stage's chunks.
"""

from minidist.papers import pipedream, ptd, two_bw, zero_bubble


def in_flight(schedule: str, p: int, m: int, stage: int, v: int = 1) -> int:
    """The most (chunks of) micro-batches whose forward has run on a stage, and whose backward has not ended.

    GPipe keeps all; the zero-bubble schedules what they say; the others as many as 1F1B. m: what there is at all;
    without a flush, of all updates.
    """
    if schedule == "naive":
        return 1
    if schedule == "gpipe":
        return m  # GPipe, section 2.3
    if schedule in ("zb-h1", "zb-h2"):
        return min(zero_bubble.in_flight(schedule, p), m)
    return ptd.in_flight(p, m, stage, v)


def count_recomputed_in_flight(schedule: str, m: int, stage: int) -> int:
    """With rematerialization, how many of them have their activations: the one whose backward is under way (GPipe,
    section 2.3), and in zero-bubble schedules those that only wait for W."""
    waiting = zero_bubble.waiting_for_w(schedule, stage) if schedule in ("zb-h1", "zb-h2") else 0
    return min(1 + waiting, m)


def weight_versions(schedule: str, n: int, stage: int) -> int:
    """Versions of its weights that a stage keeps; with a flush 1 (2BW, section 3.2)."""
    return {
        "pipedream": pipedream.weight_versions(n, stage),
        "vertical-sync": pipedream.vertical_sync_weight_versions(n),
        "2bw": two_bw.WEIGHT_VERSIONS,
    }.get(schedule, 1)


def version_used(schedule: str, n: int, stage: int, k: int, m: int) -> int:
    """Without a flush, the version of its weights that a stage uses for micro-batch k, from 0. Each of PipeDream's is a
    minibatch, with an update of its own."""
    return {
        "pipedream": pipedream.version(k, n, stage),
        "vertical-sync": pipedream.vertical_sync_version(k, n),
        "2bw": two_bw.version(k + 1, m),
    }[schedule]


def weight_delay(schedule: str, n: int, stage: int) -> int:
    """How many updates lie between the weights of which a gradient was taken and those to which it is applied."""
    return {
        "pipedream": pipedream.delay(n, stage),
        "vertical-sync": pipedream.vertical_sync_delay(n),
        "2bw": two_bw.DELAY,
    }.get(schedule, 0)
