"""lessons/03_parameter_server"""

from classroom.mutants.mutant import Mutant

HIGHER = "        hi = lo + short + (i >= k - longer)\n"
OWN_FIRST = "    if clocks[worker] < clock:\n        return False\n"
OTHERS = "    return all(others >= clock - staleness for others in clocks)\n"
TOLD = "        tell(comm, workers + i, PUSH, clock)\n"
SENT = "        comm.send(gradient[keys], workers + i)\n"
ASKED = "    for i in range(len(cuts)):\n        tell(comm, workers + i, PULL, clock)\n"
SEEN = "    return np.min(seen, axis=0)\n"
IN_PLACE = "        comm.recv(weights[keys], workers + i)\n"
NOW = "        shard.update(gradient)\n        shard.clocks[worker] += 1\n        return\n"
ALL_HERE = "    if len(shard.kept) < shard.clocks.size:\n        return\n"
IN_ORDER = "    for w in range(shard.clocks.size):\n"
EMPTIED = "    shard.kept.clear()\n"
ROOM = "            gradient = np.empty_like(shard.weights)\n"
READY = "            if fresh(shard.clocks, worker, asked[worker], shard.staleness):\n"
GATED = "        for worker in sorted(asked):\n" + READY

MUTANTS = [
    Mutant(
        "leaves_the_rest",
        "ranges: all keys",
        ("ranges",),
        [(HIGHER, "        hi = lo + short\n")],
        r"ranges\(13, 4\) is 0:3, 3:6, 6:9, 9:12: each range begins where .* the last ends at 13",
    ),
    Mutant(
        "last_takes_the_rest",
        "ranges: as equal as can be",
        ("ranges",),
        [(HIGHER, "        hi = lo + short + (longer if i == k - 1 else 0)\n")],
        r"ranges\(7, 3\) is 0:2, 2:4, 4:7: .*|ranges\(3, 5\) is .*: their lengths are \[0, 0, 0, 0, 3\], and no two",
    ),
    Mutant(
        "the_next_servers_range",
        "push: range i to server i",
        ("push",),
        [
            (
                TOLD + SENT,
                TOLD.replace("workers + i", "workers + (i + 1) % len(cuts)")
                + SENT.replace("workers + i", "workers + (i + 1) % len(cuts)"),
            )
        ],
        r"On 2 workers and 3 servers, push of 12 float32: server 0, on rank 2, got \[[\d.]+, .* the keys 0 to 3 is",
    ),
    Mutant(
        "pushes_minus",
        "push: the gradient",
        ("push",),
        [(SENT, SENT.replace("gradient[keys]", "-gradient[keys]"))],
        r"On 1 worker and 1 server, push of 12 float32: server 0, on rank 1, got \[-[\d.]+, .* whose gradient of",
    ),
    Mutant(
        "clock_of_the_next",
        "push: the clock in the header",
        ("push_bytes",),
        [(TOLD, TOLD.replace("clock)", "clock + 1)"))],
        r"rank 0 pushed at clock \d; the header that rank 1 got says \(kind, clock\) = \(0, \d\), and",
    ),
    Mutant(
        "announces_a_pull",
        "push: the kind in the header",
        ("push_bytes",),
        [(TOLD, TOLD.replace("PUSH", "PULL"))],
        r"says \(kind, clock\) = \(1, (\d)\), and \(PUSH, clock\) is \(0, \1\)",
    ),
    Mutant(
        "weights_at_the_front",
        "pull: each range in its place",
        ("pull",),
        [(IN_PLACE, "        comm.recv(weights[: keys.stop - keys.start], workers + i)\n")],
        r"On 2 workers and 3 servers, pull of 12 float64: on rank 0 the weights of the keys 0 to 3 are",
    ),
    Mutant(
        "into_a_copy",
        "pull: in `weights` itself",
        ("pull",),
        [(IN_PLACE, "        weights = weights.copy()\n" + IN_PLACE)],
        r"server 0 sent \[.*\]\. -1 is what was there before",
    ),
    Mutant(
        "clocks_of_the_last",
        "pull: the oldest of all servers",
        ("pull_clocks",),
        [(SEEN, "    return seen[-1]\n")],
        r"the servers' clocks are \[\d+, \d+\], .*, and pull returned \[\d+, \d+\]\. How many",
    ),
    Mutant(
        "returns_weights",
        "pull: clocks",
        ("pull_clocks",),
        [(SEEN, "    return weights\n")],
        r"the servers' clocks are \[\d+\], and pull returned \[[\d., ]+\]\. How many updates",
    ),
    Mutant(
        "one_server_after_the_other",
        "pull: asks all first",
        ("pull_asks_first",),
        [
            (ASKED, ""),
            (
                "        clocks = np.empty(workers, np.int64)\n",
                "        tell(comm, workers + i, PULL, clock)\n        clocks = np.empty(workers, np.int64)\n",
            ),
        ],
        r"(?s)no server answers before all of them have been asked.*rank 0: recv\(source=2\) at \w+\.py:\d+",
    ),
    Mutant(
        "counts_pushes",
        "fresh: of every worker, not of all together",
        ("fresh",),
        [(OTHERS, "    return clocks.sum() >= clocks.size * (clock - staleness)\n")],
        r"With clocks \[3, 1, 3\], worker 0 at clock 3 and staleness 1, fresh says True: but of some worker not even",
    ),
    Mutant(
        "one_too_stale",
        "fresh: clock - staleness, no less",
        ("fresh",),
        [(OTHERS, "    return all(others >= clock - staleness - 1 for others in clocks)\n")],
        r"With clocks \[3, 1, 3\], worker 0 at clock 3 and staleness 1, fresh says True",
    ),
    Mutant(
        "on_average",
        "fresh: of the slowest",
        ("fresh",),
        [(OTHERS, "    return sorted(clocks)[clocks.size // 2] >= clock - staleness\n")],
        r"fresh says True: but of some worker not even the first clock - staleness updates are there",
    ),
    Mutant(
        "forgets_its_own",
        "fresh: one's own updates",
        ("fresh_own",),
        [(OWN_FIRST, "")],
        r"With clocks \[4, 5, 5\], worker 0 at clock 5 and staleness 2, fresh says True: but not all of",
    ),
    Mutant(
        "waits_for_one_more",
        "fresh: as soon as that is so",
        ("fresh_soon",),
        [(OTHERS, "    return all(others > clock - staleness or others >= clock for others in clocks)\n")],
        r"With clocks \[3, 2, 3\], worker 0 at clock 3 and staleness 1, fresh says False: but all that must be",
    ),
    Mutant(
        "whoever_is_ahead_counts",
        "fresh: others may be ahead",
        ("fresh_soon",),
        [(OTHERS, "    return all(abs(int(others) - clock) <= staleness for others in clocks)\n")],
        r"With clocks \[2, 9, 9\], worker 0 at clock 2 and staleness 0, fresh says False",
    ),
    Mutant(
        "does_not_count",
        "take: counts each push",
        ("take",),
        [(NOW, "        shard.update(gradient)\n        return\n")],
        r"after push 1, of worker 0, the clocks are \[0 0 0\], and \[1 0 0\] is right",
    ),
    Mutant(
        "waits_anyway",
        "take: at once",
        ("take",),
        [("    if not shard.together:\n", "    if not shard.together and (shard.kept or shard.clocks.any()):\n")],
        r"after push 1, of worker 0, the weights are \[0, 0, 0, 0\], and",
    ),
    Mutant(
        "takes_the_mean",
        "take: the sum",
        ("take_together",),
        [("    shard.update(total)\n", "    shard.update(total / shard.clocks.size)\n")],
        r"after push 3, of worker 2, the weights are",
    ),
    Mutant(
        "one_update_each",
        "take: one update",
        ("take_together",),
        [
            (
                IN_ORDER + "        total += shard.kept[w]\n    shard.update(total)\n",
                IN_ORDER + "        shard.update(shard.kept[w])\n",
            )
        ],
        r"after push 3, of worker 2, shard.update has been called 3 times; 1 is right",
    ),
    Mutant(
        "keeps_them",
        "take: empties what was kept",
        ("take_together",),
        [(EMPTIED, "")],
        r"after push 4, of worker 0, the weights are",
    ),
    Mutant(
        "counts_the_last",
        "take: counts everyone",
        ("take_together",),
        [(EMPTIED + "    shard.clocks += 1\n", EMPTIED + "    shard.clocks[worker] += 1\n")],
        r"after push 3, of worker 2, the clocks are \[0 0 1\], and \[1 1 1\] is right",
    ),
    Mutant(
        "as_they_came",
        "take: the same bits",
        ("take_order",),
        [(IN_ORDER, "    for w in shard.kept:\n")],
        r"weight \d+ is [-\d.e]+; when they come in the order 0, 1, 2 it is [-\d.e]+\. Floating-point sums",
    ),
    Mutant(
        "first_stop",
        "serve: until everyone has stopped",
        ("serve",),
        [("    while stopped < workers:\n", "    while stopped < 1:\n")],
        r"On 3 workers and 1 server, async, 4 iterations: the weights on rank 3 are \[.* in the end; with all that was",
    ),
    Mutant(
        "one_array_for_all",
        "serve: a new array for each push",
        ("serve",),
        [(ROOM, ""), ("    stopped = 0\n", "    stopped = 0\n    gradient = np.empty_like(shard.weights)\n")],
        r"On 3 workers and 1 server, bsp, 1 iteration: the weights on rank 3 are",
    ),
    Mutant(
        "answers_at_once",
        "serve: holds back",
        ("serve_holds",),
        [(READY, "            if True:\n")],
        r"staleness 0, worker 1 beginning late: worker 0 asked at clock 1, and was sent .* \[1, 0, 0\]",
    ),
    Mutant(
        "forgets_who_waits",
        "serve: answers later",
        ("serve_holds",),
        [(GATED, "        for worker in [who] if kind == PULL else []:\n" + READY)],
        r"(?s)staleness 0, worker 1 beginning late: hung|no rank can go on",
    ),
    Mutant(
        "waits_until_it_is_received",
        "serve: never waits for one worker",
        ("timing",),
        [("    comm.post(shard.weights, worker)\n", "    comm.send(shard.weights, worker)\n")],
        r"(?s)hung.*A cycle of waits",
    ),
]
