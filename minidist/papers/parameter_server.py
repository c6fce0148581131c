"""The parameter server: Li et al., OSDI 2014.

S: keys; n: workers; k: servers; r: copies of each server's keys. Elements, in one iteration, of dense gradients.
"""

from minidist.papers.figure import Figure


def worker_traffic(s: int) -> int:
    """Elements that a worker pushes and pulls together: 2S, for any number of servers."""
    return 2 * s


def server_load(s: int, n: int, k: int) -> float:
    """Elements that each of k servers receives, and that it sends: N·S at one server (the bottleneck), N·S/k at k."""
    return n * s / k


def colocated(s: int, n: int, own: float) -> float:
    """Elements that a rank sends if it is a worker and also the server of `own` keys, with n - 1 others like it. It
    sends the parts of its gradient that belong to others, and the weights of its own keys to all others. With a share
    of S/N that is 2(N-1)/N·S, as in a ring all-reduce."""
    return (s - own) + (n - 1) * own


def copies(s: int, n: int, r: int, aggregated: bool) -> int:
    """Elements sent for r copies (section 4.4): r·N·S, or after aggregation r·S, r/N of what the workers push."""
    return r * s * (1 if aggregated else n)


def key_bytes(s: int, lists: int, iterations: int, cached: bool) -> int:
    """Bytes of 8-byte keys that a worker sends in a whole run, in `lists` lists for all S keys (section 4.2).

    Every list goes with each pull and each push. Cached, it goes once, and then an 8-byte signature stands for it: with
    8-byte values, that leaves half of the bytes.
    """
    if not cached:
        return 2 * iterations * 8 * s
    return 8 * s + (2 * iterations - 1) * 8 * lists


# The share of the time in which workers idle, by the iterations that a read may lag: measured on the paper's cluster.
FIGURE_13 = {
    lag: Figure("PS Fig. 13", f"idle at a delay of {lag}", printed, "%", "measured")
    for lag, printed in ((0, "50"), (16, "1.7"))
}

CACHED = Figure("PS Fig. 11", "saved by cached keys", "50", "%", "1 - cached / list")  # of 8 bytes each, as values are
FIGURES = [CACHED, *FIGURE_13.values()]
