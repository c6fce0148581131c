"""How the schedules of several papers compare: what a stage holds under each, and how old its weights are.

A schedule goes by its usual name in lower case, as on the command line. Stages count from 1; p (K, n, d in some papers)
is their number. m (M) is the number of micro-batches, v that of a stage's chunks.
"""

from collections.abc import Sequence

from minidist.papers import chimera, dualpipe, pipedream, ptd, two_bw, v_shapes, zero_bubble

FOLDED = ("zb-v", "v-half", "v-min", "dualpipe-v")  # a stage i has the parts i and 2p - i + 1 of the model
CROSSED = ("chimera", "dualpipe")  # stage i has the parts i and p - i + 1, and so has stage p - i + 1


def copies(schedule: str) -> int:
    """How many stages have each part of the model: two in a crossed pipeline, each for half of the micro-batches."""
    return 2 if schedule in CROSSED else 1


def parts_of(schedule: str, p: int, stage: int, v: int = 1) -> list[int]:
    """The parts of the model that a stage has, from 0; if the pipeline is a loop, one in each round."""
    if schedule in FOLDED:
        return [stage - 1, 2 * p - stage]
    if schedule in CROSSED:
        return [stage - 1, p - stage]
    return [chunk * p + stage - 1 for chunk in range(v)]


def filled(schedule: str, p: int, m: int) -> bool:
    """Whether there are micro-batches enough for the formulas of a folded or crossed pipeline."""
    return schedule not in ("zb-v", "v-half", "v-min") or m >= v_shapes.fills(schedule, p)


def count_messages(schedule: str, p: int, m: int, stage: int, v: int = 1) -> tuple[int, int]:
    """Messages that stage i sends for m micro-batches: activations, and gradients. If the pipeline is
    folded or crossed, both kinds go to both neighbors: in a V for each micro-batch, twice as many as in 1F1B; in a
    cross for half of them, as many as in 1F1B."""
    if schedule in (*FOLDED, *CROSSED):
        each = m // copies(schedule) * ((stage > 1) + (stage < p))
        return each, each
    return ptd.count_messages(p, m, stage, v)


def in_flight(schedule: str, p: int, m: int, stage: int, v: int = 1, contiguous: int = 0) -> int:
    """The most (chunks of) micro-batches whose forward has run on a stage, and whose backward has not ended.

    GPipe keeps all; the zero-bubble schedules what they say; the others as many as 1F1B. m: all
    micro-batches; without a flush, of all updates. For folded and crossed pipelines this holds if they are `filled`.
    """
    if schedule == "breadth-first":
        return m * v
    if schedule == "chimera":
        return chimera.in_flight(p, m, stage)
    if schedule in ("dualpipe", "dualpipe-v"):
        return dualpipe.in_flight(p if schedule == "dualpipe" else 2 * p)
    if schedule in FOLDED:
        return v_shapes.in_flight(schedule, p, stage)
    if schedule == "naive":
        return 1
    if schedule == "gpipe":
        return m  # GPipe, section 2.3
    if schedule in ("zb-h1", "zb-h2"):
        return min(zero_bubble.in_flight(schedule, p), m)
    return ptd.in_flight(p, m, stage, v, contiguous)


def count_recomputed_in_flight(schedule: str, m: int, stage: int) -> int:
    """With rematerialization, how many micro-batches in flight have their activations: the one whose backward is under
    way (GPipe, section 2.3), and in zero-bubble schedules those that only wait for W."""
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


def version_with_replicas(schedule: str, replicas: Sequence[int], stage: int, k: int, m: int) -> int:
    """Likewise with `replicas` workers of each stage, which take turns, and m minibatches to an update. A worker takes
    in NOAM of them, and then one after each backward (PipeDream, section 3.2)."""
    if schedule == "2bw":
        return two_bw.version(k + 1, m)
    of = 1 if schedule == "vertical-sync" else stage
    workers = replicas[of - 1]
    done = max(k // workers - pipedream.noam(replicas, of) + 1, 0)  # backwards of the worker that takes it
    return done * workers // m


def weight_delay(schedule: str, n: int, stage: int) -> int:
    """Updates between the weights with which a gradient was computed and the weights to which it is applied."""
    return {
        "pipedream": pipedream.delay(n, stage),
        "vertical-sync": pipedream.vertical_sync_delay(n),
        "2bw": two_bw.DELAY,
    }.get(schedule, 0)
