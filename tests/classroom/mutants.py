"""What each lesson's skeleton demands, and in which part; each demand with a mistake: a patch of the right answer.

Mutant(name, demand, parts that it loses, [(text of the answer, text in its place), ...], what is said of it)
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    name: str
    demand: str
    loses: tuple[str, ...]
    patch: list[tuple[str, str]]
    says: str  # a pattern

    def text(self, answer: Path) -> str:
        text = answer.read_text()
        for old, new in self.patch:
            assert text.count(old) == 1, f"{self.name}: {old!r} is in {answer.name} {text.count(old)} times"
            text = text.replace(old, new)
        return text


PARTITION = "    return crc32(key.encode()) % reducers\n"
COMBINED = (
    "    if job.combine is not None:\n"
    "        values = {key: list(job.combine(key, of_key)) for key, of_key in values.items()}\n"
)
INTO = '        for value in values[key]:\n            regions[r] += f"{key}\\t{value}\\n"\n'
TURN = (
    "        for dest in range(comm.size):\n            if dest != comm.rank:\n"
    "                send_text(comm, regions[dest], dest)\n"
)
TURNS = (
    "    for sender in range(comm.size):\n        if sender != comm.rank:\n"
    "            runs[sender] = receive_text(comm, sender)\n            continue\n"
)
LATER = TURN + "    return runs\n"
MERGED = "heapq.merge(*runs, key=lambda pair: pair[0])"
OWN = '    own = path.parent / f".{path.name}.{worker}"\n'
OPENED = '    with own.open("w", encoding="utf-8", newline="\\n") as file:\n'
TEXTS = "            for text in job.reduce(key, values):\n"
RENAMED = "    os.replace(own, path)\n"

MAPREDUCE = [
    Mutant(
        "salted",
        "partition: the same in every process",
        ("partition",),
        [(PARTITION, "    return hash(key) % reducers\n")],
        r"partition\('\w+', 4\) is \d; it should be \d: .* Is that hash\(\)\?",
    ),
    Mutant(
        "of_characters",
        "partition: of the bytes of any text",
        ("partition",),
        [(PARTITION, '    return crc32(key.encode("ascii", "replace")) % reducers\n')],
        r"partition\('straße', 4\) is \d; it should be \d: the crc32 of its bytes, modulo 4",
    ),
    Mutant(
        "from_one",
        "partition: from 0 to reducers - 1",
        ("partition",),
        [(PARTITION, PARTITION.replace("reducers", "reducers + 1"))],
        r"it should be \d: the crc32 of its bytes, modulo 4",
    ),
    Mutant(
        "forgets_the_last_line",
        "map_task: every line",
        ("map_task",),
        [("for line in lines for pair", "for line in list(lines)[:-1] for pair")],
        r"The pair \('[\wé]+', 'a.txt:\d+'\) is missing",
    ),
    Mutant(
        "one_pair_for_each_key",
        "map_task: every pair",
        ("map_task",),
        [("values.setdefault(key, []).append(value)", "values[key] = [*values.get(key, [])[1:], value]")],
        r"The pair .* is missing",
    ),
    Mutant(
        "always_combines",
        "map_task: a job may have no combine",
        ("map_task",),
        [(COMBINED, COMBINED.replace("job.combine is not None", "True"))],
        r"(?s)with no combine, (rank 0|it) failed.*TypeError: 'NoneType' object is not callable",
    ),
    Mutant(
        "by_length",
        "map_task: in the region that partition names",
        ("map_regions",),
        [("        r = partition(key, reducers)\n", "        r = len(key) % reducers\n")],
        r"Of 3 regions, '\w+' is in region \d; partition says \d",
    ),
    Mutant(
        "leaves_out_empty_regions",
        "map_task: a region for each reduce task",
        ("map_regions",),
        [("    return regions\n", "    return [region for region in regions if region]\n")],
        r"For 40 reduce tasks map_task returned \d+ regions|Of 40 regions|Of 3 regions",
    ),
    Mutant(
        "as_they_come",
        "map_task: in order of keys",
        ("map_sorted",),
        [("for key in sorted(values):", "for key in values:")],
        r"In a region '[\wé]+' comes after '[\wé]+'\. The reduce task merges",
    ),
    Mutant(
        "sorts_values_too",
        "map_task: values of a key in the order of map",
        ("map_sorted",),
        [(INTO, INTO.replace("values[key]", "sorted(values[key], reverse=True)"))],
        r"map has emitted it before. Sort by the key alone",
    ),
    Mutant(
        "never_combines",
        "map_task: combine is called",
        ("map_combine",),
        [(COMBINED, COMBINED.replace("job.combine is not None", "False"))],
        r"combine, called once with all these values, returns 1, and \d are in the regions",
    ),
    Mutant(
        "takes_the_first",
        "map_task: all that combine returns",
        ("map_combine",),
        [("list(job.combine(key, of_key))", "[next(iter(job.combine(key, of_key)))]")],
        r"For the key '[\wé]+' map emits the values .*; what combine was given is",
    ),
    Mutant(
        "in_another_order",
        "shuffle: in order of ranks",
        ("shuffle",),
        [(LATER, LATER.replace("return runs", "return runs[::-1]"))],
        r"rank 0's run 0 is not what rank 0 has for it: it is the region that rank 3 has for rank 0",
    ),
    Mutant(
        "sends_its_own_region",
        "shuffle: region r to rank r",
        ("shuffle",),
        [(TURN, TURN.replace("regions[dest]", "regions[comm.rank]"))],
        r"rank 0's run 1 is not what rank 1 has for it: it is the region that rank 1 has for rank 1",
    ),
    Mutant(
        "counts_characters",
        "shuffle: any text",
        ("shuffle_any",),
        [("comm.send(np.array([data.size]), dest)", "comm.send(np.array([len(text)]), dest)")],
        r"(?s)On 4 ranks, words of other alphabets, rank \d failed.*expected \d+ x uint8 from rank \d, which sent",
    ),
    Mutant(
        "sends_nothing_for_nothing",
        "shuffle: empty regions too",
        ("shuffle_any",),
        [(TURN, TURN.replace("if dest != comm.rank", "if dest != comm.rank and regions[dest]"))],
        r"(?s)On 4 ranks, some regions empty: hung|On 4 ranks, some regions empty, rank \d failed",
    ),
    Mutant(
        "never_alone",
        "shuffle: any number of ranks",
        ("shuffle_any",),
        [("    runs = list(regions)\n", "    assert comm.size > 1\n    runs = list(regions)\n")],
        r"(?s)On 1 rank, (rank 0|it) failed.*`assert comm.size > 1` does not hold",
    ),
    Mutant(
        "sends_wide",
        "shuffle: the bytes of a region",
        ("shuffle_bytes",),
        [
            (
                "    data = np.frombuffer(text.encode(), np.uint8)\n",
                "    data = np.frombuffer(text.encode(), np.uint8).astype(np.int64)\n",
            ),
            ("np.empty(size[0], np.uint8)", "np.empty(size[0], np.int64)"),
            ("data.tobytes().decode()", "data.astype(np.uint8).tobytes().decode()"),
        ],
        r"On 4 ranks: rank 0 sends [\d,]+ bytes, at \w+\.py:\d+.*\. Its regions for other ranks are \d+ bytes",
    ),
    Mutant(
        "in_three_messages",
        "shuffle: two messages to a rank",
        ("shuffle_bytes",),
        [
            ("    comm.send(data, dest)\n", "    comm.send(data[:9], dest)\n    comm.send(data[9:], dest)\n"),
            ("    comm.recv(data, source)\n", "    comm.recv(data[:9], source)\n    comm.recv(data[9:], source)\n"),
        ],
        r"rank 0 sends 3 messages to rank 1; a length and a region are two",
    ),
    Mutant(
        "all_send_first",
        "shuffle: a send may wait",
        ("timing",),
        [
            (
                TURNS + LATER,
                TURN.replace("\n    ", "\n")[4:] + "    for sender in range(comm.size):\n"
                "        if sender != comm.rank:\n            runs[sender] = receive_text(comm, sender)\n"
                "    return runs\n",
            )
        ],
        r"(?s)hung.*rank 1: send\(dest=0\) at \w+\.py:\d+ in send_text.*A cycle of waits",
    ),
    Mutant(
        "never_waits",
        "shuffle: every request is waited for",
        ("timing",),
        [("    comm.send(data, dest)\n", "    comm.isend(data, dest)\n")],
        r"never waited for, so the data may be missing: isend to rank \d at \w+\.py:\d+",
    ),
    Mutant(
        "forgets_the_last_key",
        "merge: every key",
        ("merge",),
        [("    if values:\n        yield key, values\n", "")],
        r"merge of 4 runs of 22 pairs: the key '\w+' is missing",
    ),
    Mutant(
        "one_run_after_the_other",
        "merge: a key's values from all runs",
        ("merge",),
        [(MERGED, "(pair for run in runs for pair in run)")],
        r"On merge of 4 runs of 22 pairs: '\w+' comes after '\w+'; keys are to come in increasing order",
    ),
    Mutant(
        "last_run_first",
        "merge: values in order of runs",
        ("merge",),
        [(MERGED, "heapq.merge(*list(runs)[::-1], key=lambda pair: pair[0])")],
        r"On merge of 4 runs of 22 pairs: the values of '\w+' are in another order",
    ),
    Mutant(
        "sorts_everything",
        "merge: reads on only when it must",
        ("merge_slowly",),
        [(MERGED, "sorted((pair for run in runs for pair in run), key=lambda pair: pair[0])")],
        r"When merge yields the key '\w+', it has read 30 pairs of run 0; \d+ were needed",
    ),
    Mutant(
        "one_line_a_key",
        "reduce_task: all that reduce returns",
        ("reduce_task",),
        [(TEXTS, TEXTS.replace("job.reduce(key, values)", "list(job.reduce(key, values))[:1]"))],
        r"On reduce_task of 4 runs of 22 pairs: it has (the line|\d+ lines)",
    ),
    Mutant(
        "writes_in_place",
        "reduce_task: nothing under its name before it is complete",
        ("commit",),
        [(OWN, "    own = path\n")],
        r"There was a file at `path` while job\.reduce was still being called",
    ),
    Mutant(
        "copies",
        "reduce_task: renamed, not copied",
        ("commit",),
        [(RENAMED, "    path.write_bytes(own.read_bytes())\n    own.unlink()\n")],
        r"it changed under the reader's eyes. os.replace",
    ),
    Mutant(
        "renames_what_has_failed",
        "reduce_task: nothing after a failure",
        ("commit",),
        [
            (OPENED, "    file = " + OPENED.strip()[5:-9] + "\n    try:\n"),
            (RENAMED, "    finally:\n        file.close()\n        os.replace(own, path)\n"),
        ],
        r"After job\.reduce had raised an exception, there is a file at `path`",
    ),
    Mutant(
        "never_renames",
        "reduce_task: its name in the end",
        ("commit",),
        [(RENAMED, "")],
        r"There is no file at `path` in the end",
    ),
    Mutant(
        "one_unfinished_file_for_all",
        "reduce_task: several workers at the same time",
        ("twice",),
        [(OWN, OWN.replace(".{worker}", ".unfinished"))],
        r"(?s)On reduce_task done by two workers at the same time, (rank 0|it) failed.*FileNotFoundError",
    ),
    Mutant(
        "appends",
        "reduce_task: again after a failure",
        ("twice",),
        [(OPENED, OPENED.replace('"w"', '"a"'))],
        r"When reduce_task is done by the same worker again, after it has failed: it has",
    ),
]

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

SERVERS = [
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

RS, AG, AR = "reduce_scatter", "all_gather", "all_reduce"
TOTAL = "        total = incoming + own\n"
STEP = "        comm.sendrecv(total, right, incoming, left)\n"
FIRST = "    total = x[chunk(x.size, n, (rank - 1) % n)].copy()\n"
LAST = "    if out is None:\n        return total\n    out[:] = total\n    return out\n"
PLACED = "    out = np.empty(size, x.dtype) if out is None else out\n"
PASSED = "        comm.sendrecv(out[chunk(size, n, sending)], right, out[chunk(size, n, receiving)], left)\n"
REDUCED = "    return all_gather(comm, reduce_scatter(comm, x), x.size, out)\n"

RING = [
    Mutant(
        "forgets_its_own_part",
        "reduce_scatter: every rank's part is in the sum",
        (RS,),
        [(TOTAL, "        total = incoming + own if step < n else incoming\n")],
        r"rank 0 is wrong first at index 0, in chunk 0: rank 0's chunk 0 is missing",
    ),
    Mutant(
        "adds_twice",
        "reduce_scatter: once",
        (RS,),
        [(LAST, "    if rank == 1:\n        total = total + x[chunk(x.size, n, rank)]\n" + LAST)],
        r"rank 1 is wrong first at index 0 \(element 3 of x\), in chunk 1: rank 1's chunk 1 was added twice",
    ),
    Mutant(
        "ends_a_chunk_early",
        "reduce_scatter: rank r gets chunk r",
        (RS, f"{RS}_any"),
        [(FIRST, "    total = x[chunk(x.size, n, rank)].copy()\n"), ("range(2, n + 1)", "range(1, n)")],
        r"it holds element 3 of the sum, of chunk 1",
    ),
    Mutant(
        "averages",
        "reduce_scatter: the sum",
        ("factor",),
        [(LAST, "    total = total / n\n" + LAST)],
        r"reduce_scatter of 12 float64: rank 0 .* it holds the mean; the sum is wanted",
    ),
    Mutant(
        "averages_at_the_end",
        "all_reduce: the sum",
        ("factor",),
        [(REDUCED, REDUCED.replace("return", "total =") + "    total /= comm.size\n    return total\n")],
        r"all_reduce of 12 float64: rank 0 .* it holds the mean; the sum is wanted",
    ),
    Mutant(
        "divisible_only",
        "reduce_scatter: each size",
        (f"{RS}_any",),
        [("own = x[chunk(x.size, n, (rank - step) % n)]", "own = x.reshape(n, x.size // n)[(rank - step) % n]")],
        r"(?s)reduce_scatter of 13 float64, rank \d failed:.*cannot reshape array of size 13",
    ),
    Mutant(
        "never_alone",
        "reduce_scatter: each N >= 1",
        (f"{RS}_any",),
        [(FIRST, "    assert n > 1\n" + FIRST)],
        r"(?s)On 1 rank, .*AssertionError: `assert n > 1` does not hold",
    ),
    Mutant(
        "odd_numbers_of_ranks",
        "reduce_scatter: odd N as well",
        (f"{RS}_any",),
        [(STEP, STEP.replace("left)", "left if rank or n % 2 == 0 else n - 1 - n % 2)"))],
        r"(?s)On 3 ranks, .*hung: .*rank 0: sendrecv\(dest=1, source=1\) at \w+.py:\d+ in reduce_scatter",
    ),
    Mutant(
        "adds_up_in_x",
        "reduce_scatter: x is not changed",
        (f"{RS}_out",),
        [(TOTAL, "        own += incoming\n        total = own\n")],
        r"reduce_scatter of 12 float64: rank 0's x was changed, first at index 0",
    ),
    Mutant(
        "forgets_out",
        "reduce_scatter: the result is in out",
        (f"{RS}_out",),
        [(LAST, "    return total\n")],
        r"out apart from x: rank 0: out does not hold what is returned without it",
    ),
    Mutant(
        "returns_another",
        "reduce_scatter: out is returned",
        (f"{RS}_out",),
        [(LAST, LAST.replace("    return out\n", "    return total.copy()\n"))],
        r"Return out itself",
    ),
    Mutant(
        "clears_out_first",
        "reduce_scatter: out may be a view of x",
        (f"{RS}_out",),
        [(FIRST, "    if out is not None:\n        out[:] = 0\n" + FIRST)],
        r"out is a view of x: rank 0: out does not hold what is returned without it",
    ),
    Mutant(
        "widens",
        "reduce_scatter: a chunk as it is, in each message",
        (f"{RS}_steps",),
        [
            (FIRST, FIRST.replace(".copy()", ".astype(np.float64)")),
            ("incoming = np.empty_like(own)", "incoming = np.empty(own.size)"),
            (LAST, "    total = total.astype(x.dtype)\n" + LAST),
        ],
        r"(?s)sent 7,200 bytes where the ring sends 3,600\..*in 3 messages at \w+.py:\d+\n.*float32 sent as float64\?",
    ),
    Mutant(
        "in_halves",
        "reduce_scatter: N-1 messages",
        (f"{RS}_steps",),
        [
            (
                STEP,
                "        for part in (slice(None, own.size // 2), slice(own.size // 2, None)):\n"
                "            comm.sendrecv(np.array_split(total, [total.size // 2])[part.start is not None],"
                " right, incoming[part], left)\n",
            ),
            ("own = x[chunk(x.size, n, (rank - step) % n)]", "own = x[chunk(x.size, n, (rank - step) % n)] + 0"),
        ],
        r"rank 0 sent 6 messages; there are 3 steps",
    ),
    Mutant(
        "to_the_left",
        "reduce_scatter: to the right neighbour",
        (f"{RS}_steps",),
        [
            (FIRST, FIRST.replace("rank - 1", "rank + 1")),
            ("own = x[chunk(x.size, n, (rank - step) % n)]", "own = x[chunk(x.size, n, (rank + step) % n)]"),
            (STEP, "        comm.sendrecv(total, left, incoming, right)\n"),
        ],
        r"rank 0 sends to rank 3 at \w+.py:\d+; around the ring it sends to its right neighbour alone, rank 1",
    ),
    Mutant(
        "blocking_sends",
        "messages: no rank may rely on a send that does not wait",
        ("timing",),
        [(STEP, "        comm.send(total, right)\n        comm.recv(incoming, left)\n")],
        r"(?s)rank 2: send\(dest=3\) at \w+.py:\d+ in reduce_scatter.*A cycle of waits: 0 -> 1 -> 2 -> 3 -> 0",
    ),
    Mutant(
        "reuses_a_buffer",
        "messages: what is being sent stays as it is until wait()",
        ("timing",),
        [
            (STEP, "        request = comm.isend(total, right)\n        comm.recv(incoming, left)\n"),
            (TOTAL, "        total[: own.size] = 0\n        request.wait()\n" + TOTAL),
        ],
        r"isend to rank \d at \w+.py:\d+ was changed before its wait\(\)",
    ),
    Mutant(
        "reads_too_early",
        "messages: what is received is there after wait()",
        ("timing",),
        [
            (STEP, "        request = comm.irecv(incoming, left)\n        comm.send(total, right)\n"),
            (TOTAL, "        request.wait()\n" + TOTAL + "        comm.irecv(np.empty(0), rank)\n"),
        ],
        r"never waited for|cycle of waits",
    ),
    Mutant(
        "never_waits",
        "messages: every request is waited for",
        ("timing",),
        [
            (
                PASSED,
                PASSED.replace("comm.sendrecv(", "comm.isend(").replace(", out[chunk(size, n, receiving)], left", "")
                + "        comm.recv(out[chunk(size, n, receiving)], left)\n",
            )
        ],
        r"never waited for, so the data may be missing: isend to rank \d at \w+.py:\d+",
    ),
    Mutant(
        "turns_its_chunk_round",
        "all_gather: each chunk as it is",
        (AG,),
        [("    out[chunk(size, n, rank)] = x\n", "    out[chunk(size, n, rank)] = x[::-1].copy()\n")],
        r"all_gather of 12 float64: rank 0 is wrong first at index 0, .*: it holds element 2, of rank 0's chunk",
    ),
    Mutant(
        "one_step_short",
        "all_gather: all chunks",
        (AG, f"{AG}_steps"),
        [("range(n - 1)", "range(n - 2)"), (PLACED, PLACED.replace("np.empty", "np.zeros"))],
        r"all_gather of 12 float64: rank 0 is wrong first at index 3, in chunk 1: it holds what is in nobody's chunk",
    ),
    Mutant(
        "chunks_of_its_own",
        "all_gather: each size, as chunk cuts it",
        (f"{AG}_any",),
        [("    out[chunk(size, n, rank)] = x\n", "    out[rank * (size // n) : (rank + 1) * (size // n)] = x\n")],
        r"(?s)all_gather of 13 float64, rank \d failed:.*could not broadcast",
    ),
    Mutant(
        "clears_x",
        "all_gather: x is not changed",
        (f"{AG}_out",),
        [
            (
                "    out[chunk(size, n, rank)] = x\n",
                "    out[chunk(size, n, rank)] = x\n    x *= 1 if np.shares_memory(x, out) else 0\n",
            )
        ],
        r"all_gather of 12 float64: rank 0's x was changed",
    ),
    Mutant(
        "makes_its_own_out",
        "all_gather: the result is in out",
        (f"{AG}_out",),
        [(PLACED, "    out = np.empty(size, x.dtype)\n")],
        r"all_gather .* out apart from x: rank 0: out does not hold what is returned without it",
    ),
    Mutant(
        "takes_turns",
        "all_gather: around the ring",
        (f"{AG}_steps",),
        [
            (
                "    for step in range(n - 1):\n        sending, receiving = (rank - step) % n, (rank - step - 1) % n\n"
                + PASSED,
                "    for owner in range(n):\n        for dest in range(n):\n"
                "            if rank == owner != dest:\n                comm.send(out[chunk(size, n, owner)], dest)\n"
                "            elif rank == dest != owner:\n"
                "                comm.recv(out[chunk(size, n, owner)], owner)\n",
            )
        ],
        r"rank 0 sends to rank 2 at \w+.py:\d+; around the ring",
    ),
    Mutant(
        "swaps_neighbours",
        "all_gather: from the left, to the right",
        (AG, f"{AG}_any", f"{AG}_steps"),
        [(PASSED, PASSED.replace("right", "L").replace("left", "right").replace("L", "left"))],
        r"rank 0 is wrong first at index 3, in chunk 1: it holds element 9, of rank 3's chunk",
    ),
    Mutant(
        "large_ones_only",
        "all_reduce: each size",
        (AR,),
        [(REDUCED, "    if x.size < comm.size:\n        return x\n" + REDUCED)],
        r"all_reduce of 3 float64: rank 0 is wrong first at index 0, in chunk 0: rank 1's chunk 0 is missing",
    ),
    Mutant(
        "ignores_out",
        "all_reduce: the result is in out",
        (f"{AR}_out",),
        [(REDUCED, REDUCED.replace(", out)", ")"))],
        r"all_reduce .* out apart from x: rank 0: out does not hold",
    ),
    Mutant(
        "writes_to_x",
        "all_reduce: x is not changed",
        (f"{AR}_out",),
        [(REDUCED, REDUCED.replace(", out)", ", x)"))],
        r"all_reduce of 12 float64: rank 0's x was changed",
    ),
    Mutant(
        "takes_turns_in_the_end",
        "all_reduce: around the ring",
        (f"{AR}_steps",),
        [
            (
                REDUCED,
                "    n, rank, mine = comm.size, comm.rank, reduce_scatter(comm, x)\n"
                "    out = np.empty_like(x) if out is None else out\n"
                "    out[chunk(x.size, n, rank)] = mine\n"
                "    for owner in range(n):\n        for dest in range(n):\n"
                "            if rank == owner != dest:\n"
                "                comm.send(out[chunk(x.size, n, owner)], dest)\n"
                "            elif rank == dest != owner:\n"
                "                comm.recv(out[chunk(x.size, n, owner)], owner)\n"
                "    return out\n",
            )
        ],
        r"all_reduce of 1,200 float32: rank 0 sends to rank 2 at \w+.py:\d+; around the ring",
    ),
    Mutant(
        "holds_a_copy",
        "all_reduce: no more than three chunks besides x and the result",
        ("memory",),
        [
            (
                REDUCED,
                REDUCED.replace("reduce_scatter(comm, x)", "reduce_scatter(comm, copy)").replace(
                    "    return", "    copy = x.copy()\n    return"
                ),
            )
        ],
        r"the result and 3 chunks are 440,000\. Which array is as large as x",
    ),
]

ENGINE = [
    Mutant(
        "without_a_sum",
        "train_step: every rank's gradient is in the sum",
        ("train_step",),
        [
            (
                "        gradient = ring.reduce_scatter(comm, gradient)\n    return gradient, dz",
                "        ring.reduce_scatter(comm, gradient)\n"
                "    return np.split(gradient, comm.size)[comm.rank].copy(), dz",
            )
        ],
        r"it was updated by this rank's own gradient, not summed over the ranks",
    ),
    Mutant(
        "averages_layers",
        "train_step: the sum, for the loss is divided already",
        ("train_step",),
        [("        shard -= rate * gradient\n", "        shard -= rate * gradient / comm.size\n")],
        r"its gradient was divided by the number of ranks",
    ),
    Mutant(
        "updates_a_copy",
        "train_step: shards are updated in place",
        ("train_step",),
        [("        shard -= rate * gradient\n", "        shard = shard - rate * gradient\n")],
        r"it is as it was: update the array itself",
    ),
    Mutant(
        "without_padding_of_the_gradient",
        "train_step: any N and width",
        ("train_step",),
        [("    gradient = np.zeros(comm.size * shard.size)\n", "    gradient = np.zeros(width * width)\n")],
        r"(?s)On 4 ranks, 3 layers \(W is 5 x 5\), 6 rows, rank \d failed:.*",
    ),
    Mutant(
        "loss_of_its_rows",
        "train_step: this rank's part of the loss",
        ("train_step",),
        [(".sum() / 2 / batch)", ".sum() / 2 / len(x))")],
        r"the ranks' parts of the loss add up to [\d.]+, where it is [\d.]+",
    ),
    Mutant(
        "one_phase_for_layers",
        "train_step: its phases",
        ("train_step_wire",),
        [('comm.phase("all-gather backward")', 'comm.phase("all-gather forward")')],
        r"rank 0 sends 18 messages in phase 'all-gather forward'; 9 are needed",
    ),
    Mutant(
        "all_reduces_layers",
        "train_step: N-1 messages of a shard",
        ("train_step_wire",),
        [
            (
                "ring.reduce_scatter(comm, gradient)\n",
                "np.split(ring.all_reduce(comm, gradient), comm.size)[comm.rank].copy()\n",
            )
        ],
        r"rank 0 sends 18 messages in phase 'reduce-scatter gradients'; 9 are needed",
    ),
    Mutant(
        "keeps_layers",
        "train_step: no more than one W is whole at a time",
        ("train_step_memory",),
        [
            ("Array = np.ndarray\n", "Array = np.ndarray\nkept = []\n"),
            ("    return np.tanh(h @ w)\n", "    kept.append(w)\n    return np.tanh(h @ w)\n"),
        ],
        r"as many as \d\d whole layers have\. One W and its gradient are needed at a time",
    ),
    Mutant(
        "takes_a_neighbours_shard",
        "allocate: this rank's shard",
        ("allocate",),
        [("start[self.piece(flat)]", "np.roll(start, -(flat.padded // self.comm.size))[self.piece(flat)]")],
        r"it is rank 1's shard at the start",
    ),
    Mutant(
        "stores_wide",
        "allocate: as stored",
        ("allocate", "memory_for_good"),
        [("start[self.piece(flat)].astype(self.precision.stored)", "start[self.piece(flat)].astype(np.float64)")],
        r"is float64 \(\d+,\) where float16 \(\d+,\) is wanted",
    ),
    Mutant(
        "grad_is_not_zero",
        "allocate: a gradient of zeros",
        ("allocate",),
        [("np.zeros_like(flat.param)", "np.ones_like(flat.param)")],
        r"rank 0's flat.grad of embedding is wrong first at index 0",
    ),
    Mutant(
        "without_padding",
        "allocate: padded/N elements",
        ("allocate",),
        [("start[self.piece(flat)].astype", "start[ring.chunk(flat.size, self.comm.size, self.comm.rank)].astype")],
        r"is float\d+ \(\d+,\) where float\d+ \(\d+,\) is wanted: the unit has 125 elements, \d+ with padding",
    ),
    Mutant(
        "keeps_a_view",
        "allocate: no view of start is kept",
        ("memory_for_good",),
        [("flat.grad = np.zeros_like(flat.param)", "flat.grad, flat.start = np.zeros_like(flat.param), start[:1]")],
        r"holds [\d,]+ bytes of arrays before the first step; 16Ψ/N are",
    ),
    Mutant(
        "owns_a_copy",
        "owned: the arrays themselves",
        ("owned",),
        [("return flat.param, flat.grad", "return flat.param.copy(), flat.grad")],
        r"its flat.param has not become 1 more. Return the array itself, not a copy",
    ),
    Mutant(
        "gathers_the_start",
        "parameters_of: from everyone's shard",
        ("parameters_of", "parameters_of_again", "messages"),
        [
            (
                "flat.gathered = ring.all_gather(self.comm, flat.param, flat.padded)",
                "ring.all_gather(self.comm, flat.param, flat.padded)\n"
                "            flat.gathered = flat.initial(self.settings.seed).astype(self.precision.stored)",
            )
        ],
        r"what parameters_of returned on rank 0 is wrong first at index 0, in the shard of rank 0",
    ),
    Mutant(
        "keeps_nothing",
        "parameters_of: flat.gathered holds them",
        ("parameters_of", "parameters_of_again"),
        [
            ("                flat.gathered = ring", "                return ring"),
        ],
        r"what parameters_of put into flat.gathered on rank 0 is None, not an array of numbers",
    ),
    Mutant(
        "halves_its_shard",
        "parameters_of: the shard stays",
        ("parameters_of",),
        [("        return flat.gathered\n", "            flat.param /= 2\n        return flat.gathered\n")],
        r"parameters_of changed flat.param on rank \d",
    ),
    Mutant(
        "gathers_again",
        "parameters_of: what is here is not sent again",
        ("parameters_of_again",),
        [("if flat.gathered is None:", "if True:")],
        r"rank 0 sent 36 messages, where 18 are sent when it is asked for once",
    ),
    Mutant(
        "remembers",
        "parameters_of: what was forgotten is gathered anew",
        ("parameters_of_again", "memory_forward", "memory_backward"),
        [
            ("    accumulated = 1\n", "    accumulated = 1\n    seen = {}\n"),
            (
                "        return flat.gathered\n",
                "        self.seen.setdefault((flat, self.direction), flat.gathered)\n"
                "        return self.seen[flat, self.direction]\n",
            ),
        ],
        r"still gets the parameters of before. Gather them anew",
    ),
    Mutant(
        "one_phase",
        "parameters_of: in phase all-gather forward or backward",
        ("parameters_of_wire",),
        [('"all-gather " + self.direction', '"all-gather"')],
        r"in phase 'all-gather', where phase 'all-gather forward' is asked for",
    ),
    Mutant(
        "widens_what_it_sends",
        "parameters_of: sent as stored",
        ("parameters_of_wire",),
        [
            (
                "ring.all_gather(self.comm, flat.param, flat.padded)",
                "ring.all_gather(self.comm, flat.param.astype(np.float64), flat.padded).astype(flat.param.dtype)",
            )
        ],
        r"a shard as stored has \d+. Is it widened before it is sent",
    ),
    Mutant(
        "never_forgets",
        "forget: gathered parameters go",
        ("memory_forward",),
        [("        flat.gathered = None\n", "        pass\n")],
        r"bytes of arrays beyond what it held before the forward after forget of embedding, where 0 are needed",
    ),
    Mutant(
        "keeps_until_backward",
        "forget: already in the forward",
        ("memory_forward",),
        [
            (
                "        flat.gathered = None\n",
                "        if self.direction == 'backward' or not self.training:\n            flat.gathered = None\n",
            )
        ],
        r"after forget of embedding, where 0 are needed",
    ),
    Mutant(
        "forgets_in_the_forward_only",
        "forget: in the backward as well",
        ("memory_backward",),
        [
            (
                "        flat.gathered = None\n",
                "        if self.direction == 'forward':\n            flat.gathered = None\n",
            )
        ],
        r"beyond what it held before the backward",
    ),
    Mutant(
        "gathers_everything",
        "parameters_of: this unit alone",
        ("parameters_of_wire", "memory_forward", "memory_backward"),
        [
            (
                "        if flat.gathered is None:\n",
                "        if flat is self.flats[0 if self.direction == 'forward' else -1]:\n"
                "            for other in self.flats:\n"
                "                if other is not flat and other.gathered is None:\n"
                "                    with self.comm.phase('all-gather ' + self.direction):\n"
                "                        other.gathered = ring.all_gather(self.comm, other.param, other.padded)\n"
                "        if flat.gathered is None:\n",
            )
        ],
        r"Whose parameters or gradients are still here, or already\?",
    ),
    Mutant(
        "a_new_bucket",
        "collect: adds to a bucket that is there",
        ("collect",),
        [("        if flat.bucket is None:\n            flat.bucket", "        flat.bucket")],
        r"it is the second one's gradient alone; a tied head leaves a part in the bucket",
    ),
    Mutant(
        "a_wide_bucket",
        "collect: the bucket as stored",
        ("collect", "memory_backward"),
        [("np.zeros(flat.padded, self.precision.stored)", "np.zeros(flat.padded)")],
        r"flat.bucket is float64 \(126,\) after a unit's backward, where float16 \(126,\) is wanted",
    ),
    Mutant(
        "shifts_its_shard",
        "reduce: element by element",
        ("reduce",),
        [("        flat.grad += mine\n", "        flat.grad += np.roll(mine, 1)\n")],
        r"rank 0's flat.grad is wrong first at index 0: it holds element 31 of the sum",
    ),
    Mutant(
        "never_reduces",
        "reduce: over the ranks",
        ("reduce", "messages"),
        [
            (
                "            mine = ring.reduce_scatter(self.comm, flat.bucket)\n",
                "            ring.reduce_scatter(self.comm, flat.bucket)\n"
                "            mine = flat.bucket[self.piece(flat)]\n",
            )
        ],
        r"it is this rank's own part, not summed over the ranks",
    ),
    Mutant(
        "averages",
        "reduce: the sum, for losses are weighted",
        ("factor",),
        [("flat.grad += mine", "flat.grad += mine / self.comm.size")],
        r"rank 0's flat.grad is the sum divided by 4\. The sum is wanted",
    ),
    Mutant(
        "overwrites",
        "reduce: adds to flat.grad",
        ("accumulation",),
        [("flat.grad += mine", "flat.grad[:] = mine")],
        r"after two micro-batches: it is the second one's alone: add to what is there",
    ),
    Mutant(
        "all_reduces",
        "reduce: each rank its shard, N-1 messages",
        ("reduce_wire", "messages"),
        [("ring.reduce_scatter(self.comm, flat.bucket)", "ring.all_reduce(self.comm, flat.bucket)[self.piece(flat)]")],
        r"rank 0 sends 6 messages, [\d,]+ bytes; 3 of a shard",
    ),
    Mutant(
        "another_phase",
        "reduce: in phase reduce-scatter gradients",
        ("reduce_wire",),
        [('self.comm.phase("reduce-scatter gradients"', 'self.comm.phase("gradients"')],
        r"in phase 'gradients', where phase 'reduce-scatter gradients' is asked for",
    ),
    Mutant(
        "keeps_the_bucket",
        "reduce: the bucket is given back",
        ("memory_backward",),
        [("        flat.bucket = None\n", "        flat.bucket.fill(0)\n")],
        r"after reduce of head, where 0 are needed",
    ),
    Mutant(
        "gathers_after_the_update",
        "after_update: nothing",
        ("memory_afterwards",),
        [("        pass\n", "        for flat in self.flats:\n            self.parameters_of(flat)\n")],
        r"bytes more after a step than before the first one",
    ),
    Mutant(
        "sends_after_the_update",
        "after_update: nothing is sent",
        ("memory_afterwards",),
        [
            (
                "        pass\n",
                "        for flat in self.flats:\n            with self.comm.phase('all-gather parameters'):\n"
                "                ring.all_gather(self.comm, flat.param, flat.padded)\n",
            )
        ],
        r"in phase 'all-gather parameters'",
    ),
    Mutant(
        "a_ring_of_its_own",
        "messages: no rank may rely on a send that does not wait",
        ("messages",),
        [
            (
                "                flat.gathered = ring.all_gather(self.comm, flat.param, flat.padded)\n",
                "                n, rank = self.comm.size, self.comm.rank\n"
                "                whole = np.empty(flat.padded, flat.param.dtype)\n"
                "                whole[self.piece(flat)] = flat.param\n"
                "                for step in range(n - 1):\n"
                "                    here, there = ((rank - step - k) % n for k in (0, 1))\n"
                "                    self.comm.send(whole[ring.chunk(flat.padded, n, here)], (rank + 1) % n)\n"
                "                    self.comm.recv(whole[ring.chunk(flat.padded, n, there)], (rank - 1) % n)\n"
                "                flat.gathered = whole\n",
            )
        ],
        r"(?s)rank 2: send\(dest=3\) at \w+.py:\d+ in parameters_of.*A cycle of waits: 0 -> 1 -> 2 -> 3 -> 0",
    ),
]
# Of lesson 02's answer, what its mistakes change.
ORDER = "    for step in reversed(steps):\n"
GUARD = "        if step.output not in slopes:\n            continue\n"
START = "    slopes = {number: gradient}\n"
SUM = (
    "            if i in slopes:\n                slopes[i] = slopes[i] + dx\n"
    "            else:\n                slopes[i] = dx\n"
)
NONE = "            if dx is None:\n                continue\n"
ROWS = "    dy, x = dy.reshape(-1, w.shape[0]), x.reshape(-1, w.shape[1])\n"
HOT = "    hot = np.eye(prob.shape[-1])[targets]\n"
LOSS = "    return dlogits * dloss / targets.size\n"
DX = "    dx = (dn - shift - stretch) * rstd\n"
MOVED = "    p = p - lr * m_hat / (np.sqrt(v_hat) + eps) - lr * weight_decay * p\n"

BY_HAND = [
    Mutant(
        "first_to_last",
        "walk_back: from the last step",
        ("walk_back", "walk_back_twice", "walk_back_none", "walk_back_shared"),
        [(ORDER, "    for step in steps:\n")],
        r"for three steps in a row: there is no gradient for value 0",
    ),
    Mutant(
        "starts_from_one",
        "walk_back: from the gradient that it is handed",
        ("walk_back",),
        [(START, "    slopes = {number: np.ones_like(gradient)}\n")],
        r"for one step: the gradient of value 0 is wrong first at \[0, 0\]",
    ),
    Mutant(
        "stores",
        "walk_back: a value used by several steps gets the sum",
        ("walk_back_twice",),
        [(SUM, "            slopes[i] = dx\n")],
        r"for a parameter that two steps use: .* Value 1 is used twice: .* Here it is that of one use alone",
    ),
    Mutant(
        "keeps_the_first",
        "walk_back: of all uses",
        ("walk_back_twice",),
        [(SUM, "            slopes.setdefault(i, dx)\n")],
        r"Here it is that of one use alone",
    ),
    Mutant(
        "sums_between_steps_alone",
        "walk_back: a step may take a value twice",
        ("walk_back_twice",),
        [
            (SUM, SUM.replace("i in slopes", "i in before").replace("slopes[i] + dx", "before[i] + dx")),
            ("        gradients = step.back", "        before = dict(slopes)\n        gradients = step.back"),
        ],
        r"for a step that takes one value twice: the gradient of value 1 is wrong",
    ),
    Mutant(
        "expects_every_gradient",
        "walk_back: steps on which the loss does not depend",
        ("walk_back_none",),
        [(GUARD, "")],
        r"(?s)for a step on which the loss does not depend, it failed:\n.*KeyError: 4",
    ),
    Mutant(
        "adds_none",
        "walk_back: None for an input without a gradient",
        ("walk_back_none",),
        [(NONE, "            dx = np.asarray(dx)[..., None] * 1.0 if dx is None else dx\n")],
        r"(?s)for a step whose backward returns None for an input, it failed:\n.*TypeError",
    ),
    Mutant(
        "stops_at_none",
        "walk_back: and goes on with the others",
        ("walk_back_none",),
        [(NONE, "            if dx is None:\n                return slopes\n")],
        r"returns None for an input: there is no gradient for value 0; \(3, 3\) is wanted. It is to be as without that",
    ),
    Mutant(
        "adds_in_place",
        "walk_back: does not write into a gradient that it was given",
        ("walk_back_shared",),
        [("slopes[i] = slopes[i] + dx", "slopes[i] += dx")],
        r"for residuals: the gradient that step 4 \(add\) was handed was changed later. .* not with \+=",
    ),
    Mutant(
        "dx_of_the_transposed",
        "linear_backward: dx",
        ("linear_dx",),
        [("    dx = dy @ w\n", "    dx = dy @ w[::-1]\n")],
        r"for dy \(3, 2\), x \(3, 4\), w \(2, 4\): dx is wrong first at \[0, 0\]: .* where moving the number up",
    ),
    Mutant(
        "means_over_the_rows",
        "linear_backward: dw, the sum over the rows",
        ("linear_dw",),
        [("    dw = dy.T @ x\n", "    dw = dy.T @ x / len(dy)\n")],
        r"dw is wrong first at \[0, 0\]: .* It is the mean over the rows; the sum is wanted",
    ),
    Mutant(
        "dw_turned",
        "linear_backward: dw in the shape of w",
        ("linear_dw",),
        [("    dw = dy.T @ x\n", "    dw = x.T @ dy\n")],
        r"dw has the shape \(4, 2\); \(2, 4\) is wanted. Is it transposed",
    ),
    Mutant(
        "db_of_the_last_row",
        "linear_backward: db",
        ("linear_db",),
        [("    db = dy.sum(axis=0)\n", "    db = dy.sum(axis=0) / len(dy) * len(dy.T)\n")],
        r"db is wrong first at \[0\]",
    ),
    Mutant(
        "matrices_alone",
        "linear_backward: any number of axes",
        ("linear_axes",),
        [(ROWS, "")],
        r"(?s)linear_backward for dy \(2, 3, 2\), x \(2, 3, 4\), w \(2, 4\)",
    ),
    Mutant(
        "never_one_row",
        "linear_backward: none before the last as well",
        ("linear_axes",),
        [(ROWS, "    assert x.ndim > 1\n" + ROWS)],
        r"(?s)for dy \(2,\), x \(4,\), w \(2, 4\), it failed:.*AssertionError: `assert x.ndim > 1` does not hold",
    ),
    Mutant(
        "forgets_the_target",
        "cross_entropy_backward: 1 less at the target",
        ("cross_entropy",),
        [(HOT, "    hot = 0 * prob\n")],
        r"dlogits is wrong first at .* It is prob: what of the target",
    ),
    Mutant(
        "sums_positions",
        "cross_entropy_backward: the mean",
        ("cross_entropy_factor",),
        [(LOSS, "    return dlogits * dloss\n")],
        r"dlogits is 6 times the slope; there are 6 positions, and the loss is the mean over all positions",
    ),
    Mutant(
        "divides_by_sequences",
        "cross_entropy_backward: over all positions",
        ("cross_entropy_factor",),
        [(LOSS, "    return dlogits * dloss / len(targets)\n")],
        r"dlogits is 3 times the slope; there are 6 positions, and what is it divided by\?",
    ),
    Mutant(
        "forgets_dloss",
        "cross_entropy_backward: times dloss",
        ("cross_entropy_factor",),
        [(LOSS, "    return dlogits / targets.size\n")],
        r"for the same with dloss = 0.5: dlogits should be half of what it is for dloss = 1",
    ),
    Mutant(
        "gain_by_x",
        "layer_norm_backward: dgain, of the normalised x",
        ("layer_norm_gain",),
        [("    dgain = (dy * n).sum(axis=rows)\n", "    dgain = (dy * x).sum(axis=rows)\n")],
        r"dgain is wrong first at \[0\]: .* It is made with x, not with the normalised x",
    ),
    Mutant(
        "bias_of_one_axis",
        "layer_norm_backward: dbias, summed over all rows",
        ("layer_norm_gain",),
        [("    dbias = dy.sum(axis=rows)\n", "    dbias = dy.sum(axis=0)\n")],
        r"dbias has the shape \(3, 5\); \(5,\) is wanted",
    ),
    Mutant(
        "constant_statistics",
        "layer_norm_backward: dx through mean and variance",
        ("layer_norm_dx",),
        [(DX, "    dx = dn * rstd\n")],
        r"dx is wrong first at .* The mean and the variance were taken for constants",
    ),
    Mutant(
        "constant_variance",
        "layer_norm_backward: dx through the variance",
        ("layer_norm_dx",),
        [(DX, "    dx = (dn - shift) * rstd\n")],
        r"The variance was taken for a constant: it moves with x, too",
    ),
    Mutant(
        "without_gain",
        "layer_norm_backward: dx with the gain",
        ("layer_norm_dx",),
        [("    dn = dy * gain\n", "    dn = dy\n")],
        r"The gain is missing",
    ),
    Mutant(
        "values_not_turned",
        "values_backward: dv from every query",
        ("values",),
        [('"bhqk,bhqd->bhkd"', '"bhqk,bhkd->bhqd"')],
        r"dv is wrong first at .* prob was not transposed",
    ),
    Mutant(
        "diagonal_softmax",
        "softmax_backward: every score moves all probabilities",
        ("softmax",),
        [("    return prob * (dprob - weighted)\n", "    return dprob * prob * (1 - prob)\n")],
        r"dscores is wrong first at .* Every score was taken to move its own probability alone",
    ),
    Mutant(
        "sum_over_queries",
        "softmax_backward: summed over the keys",
        ("softmax",),
        [("    weighted = (prob * dprob).sum(axis=-1, ", "    weighted = (prob * dprob).sum(axis=-2, ")],
        r"The sum is over the queries; it should be over the keys",
    ),
    Mutant(
        "moments_exchanged",
        "adamw: the weights of the moments",
        ("adamw_moments",),
        [("    m = beta1 * m + (1 - beta1) * g\n", "    m = (1 - beta1) * m + beta1 * g\n")],
        r"adamw for step 1: m is wrong first at \[0\]: .* The two weights are exchanged",
    ),
    Mutant(
        "returns_corrected_moments",
        "adamw: the moments themselves",
        ("adamw_moments",),
        [("    return p, m, v\n", "    return p, m_hat, v_hat\n")],
        r"It is the corrected one: return the moment itself",
    ),
    Mutant(
        "eps_under_the_root",
        "adamw: ε beside the root",
        ("adamw_update",),
        [("(np.sqrt(v_hat) + eps)", "np.sqrt(v_hat + eps)")],
        r"p moves by .* ε is under the root; it belongs beside it",
    ),
    Mutant(
        "uphill",
        "adamw: against the slope",
        ("adamw_update",),
        [(MOVED, MOVED.replace("p - lr * m_hat", "p + lr * m_hat"))],
        r"It goes uphill: subtract",
    ),
    Mutant(
        "no_correction",
        "adamw: bias corrections",
        ("adamw_bias",),
        [("    m_hat = m / (1 - beta1**step)\n", "    m_hat = m\n")],
        r"for the same at step 1: p moves 0.316228 times as far .* = 1.58114 times is wanted, with t = 1",
    ),
    Mutant(
        "counts_from_0",
        "adamw: steps count from 1",
        ("adamw_bias",),
        [("    m_hat = m / (1 - beta1**step)\n", "    step += 1\n    m_hat = m / (1 - beta1**step)\n")],
        r"for the same at step 1: p moves .* with t = 1",
    ),
    Mutant(
        "decay_in_the_gradient",
        "adamw: the decay is no part of the gradient",
        ("adamw_decay",),
        [
            ("    m = beta1 * m", "    g = g + weight_decay * p\n    m = beta1 * m"),
            (MOVED, MOVED.replace(" - lr * weight_decay * p", "")),
        ],
        r"for λ = 0.2: the decay moves p by .* It is no part of the gradient, and not divided by √v̂",
    ),
    Mutant(
        "decay_without_rate",
        "adamw: the decay times the learning rate",
        ("adamw_decay",),
        [(MOVED, MOVED.replace("lr * weight_decay", "weight_decay"))],
        r"lr is missing: p shrinks by lr λ p",
    ),
    Mutant(
        "writes_into_prob",
        "nothing that is handed over is changed",
        ("handed",),
        [
            (
                HOT,
                "    flat = prob.reshape(-1, prob.shape[-1])\n"
                "    flat[np.arange(len(flat)), targets.reshape(-1)] -= 1\n    hot = 0\n",
            )
        ],
        r"cross_entropy_backward for prob \(2, 3, 5\), targets \(2, 3\): prob was changed",
    ),
]

SEGMENTS = (
    "    for first in range(0, len(layers), k):\n        inputs.append(x)\n"
    "        for layer in layers[first : first + k]:\n            x, _ = layer.forward(x)\n            del _\n"
)
WAYBACK = "    while waiting:\n        layer, kept = waiting.pop()\n"
ALL = "    while inputs:\n        first = (len(inputs) - 1) * k\n"
ONE = "        dy = run_segment(layers[first : first + k], inputs.pop(), dy)\n"
SEED = "    seed = [*key, *name.encode()]\n"
MASK = "    random = np.random.default_rng(seed)\n    return random.random(shape) >= p\n"
BEST = "        segments = (n + k - 1) // k\n        held = segments * given + k * layer\n"
PART = "    return flat[mine].copy()\n"

RECOMPUTED = [
    Mutant(
        "keeps_outputs",
        "run_forward: the input of each segment",
        ("run_forward",),
        [
            ("        inputs.append(x)\n        for", "        for"),
            ("            del _\n", "            del _\n        inputs.append(x)\n"),
        ],
        r"inputs\[0\] is not the input of layer 0. It is what layer 1 makes",
    ),
    Mutant(
        "returns_the_last_input",
        "run_forward: y",
        ("run_forward",),
        [("    return x, inputs\n", "    return inputs[-1], inputs\n")],
        r"y is not what the last layer makes",
    ),
    Mutant(
        "whole_segments_alone",
        "run_forward: a shorter segment at the end",
        ("run_forward_short",),
        [
            (
                "        inputs.append(x)\n        for",
                "        if first + k <= len(layers):\n            inputs.append(x)\n        for",
            )
        ],
        r"of 5 layers, k = 2: there are 2 inputs, where those of the layers 0, 2, 4 are wanted",
    ),
    Mutant(
        "keeps_every_tape",
        "run_forward: not what layers keep",
        ("run_forward_memory",),
        [
            ("    inputs = []\n", "    inputs, tapes = [], []\n"),
            ("            del _\n", "            tapes.append(_)\n"),
        ],
        r"when layer 2 has run, what 3 layers keep is still held. Of what forward returns take y alone",
    ),
    Mutant(
        "keeps_every_value",
        "run_forward: no input in between",
        ("run_forward_memory",),
        [
            ("    inputs = []\n", "    values = [x]\n"),
            ("        inputs.append(x)\n", ""),
            ("            del _\n", "            values.append(x)\n"),
            ("    return x, inputs\n", "    return x, values[:-1:k]\n"),
        ],
        r"arrays that layers have made are held: more than the inputs of segments",
    ),
    Mutant(
        "backward_in_order",
        "run_segment: the last layer first",
        ("run_segment",),
        [
            ("waiting.pop()", "waiting.pop(0)"),
            ("    del kept\n    while", "    waiting.reverse()\n    waiting.reverse()\n    del kept\n    while"),
        ],
        r"run_segment of 2 layers: the gradient of x is wrong",
    ),
    Mutant(
        "kept_of_its_neighbour",
        "run_segment: with what its own forward kept",
        ("run_segment",),
        [("waiting.append((layer, kept))", "waiting.append((layer, waiting[-1][1] if waiting else kept))")],
        r"run_segment of 2 layers: the gradient of x is wrong: .* by moving it up and down it is",
    ),
    Mutant(
        "from_the_start_each_time",
        "run_segment: each forward once",
        ("run_segment_calls",),
        [
            (
                WAYBACK,
                "    inputs, x = len(waiting), start\n    waiting = list(layers)\n    while waiting:\n"
                "        x = start\n        for layer in waiting:\n            x, kept = layer.forward(x)\n"
                "        waiting.pop()\n",
            ),
            ("    waiting = []\n", "    waiting, start = [], x\n"),
        ],
        r"run_segment of 2 layers: 5 forwards were run; each layer's once makes 2",
    ),
    Mutant(
        "forgets_at_the_end",
        "run_segment: what has been used is gone",
        ("run_segment_memory",),
        [(WAYBACK, "    for layer, kept in reversed(waiting):\n")],
        r"when layer 3's backward begins, what 6 layers keep is held; 2 have been used",
    ),
    Mutant(
        "first_segment_first",
        "run_backward: the last segment first",
        ("run_backward",),
        [
            (ALL, "    count = len(inputs)\n    while inputs:\n        first = (count - len(inputs)) * k\n"),
            (ONE, ONE.replace("pop()", "pop(0)")),
        ],
        r"run_backward of 4 layers, k = 2: the gradient of x is wrong",
    ),
    Mutant(
        "counts_from_the_end",
        "run_backward: where a shorter segment is",
        ("run_backward_short",),
        [
            (ALL, "    end = len(layers)\n    while inputs:\n        end -= k\n        first = max(end, 0)\n"),
            (ONE, ONE.replace("first + k", "end + k")),
        ],
        r"run_backward of 5 layers, k = 2",
    ),
    Mutant(
        "leaves_inputs",
        "run_backward: takes inputs out of the list",
        ("run_backward_memory",),
        [
            (ALL, "    for number in reversed(range(len(inputs))):\n        first = number * k\n"),
            (ONE, ONE.replace("inputs.pop()", "inputs[number]")),
        ],
        r"when layer \d's backward begins, 5 inputs are held; 2 of 5 segments are done with",
    ),
    Mutant(
        "one_stream",
        "mask: the same again",
        ("mask_again",),
        [
            (
                MASK,
                "    drawn.append(len(drawn))\n    random = np.random.default_rng([*seed, *drawn])\n"
                "    return random.random(shape) >= p\n",
            ),
            ("def mask(", "drawn: list[int] = []\n\n\ndef mask("),
        ],
        r"the second time it is another mask, for the same key and name",
    ),
    Mutant(
        "one_for_all_layers",
        "mask: another one for another name",
        ("mask_differs",),
        [(SEED, "    seed = list(key)\n")],
        r"for another name it is the same mask",
    ),
    Mutant(
        "adds_up_the_key",
        "mask: another one for another key",
        ("mask_differs",),
        [(SEED, "    seed = [sum(key), *name.encode()]\n")],
        r"for seed and step exchanged it is the same mask",
    ),
    Mutant(
        "turned_around",
        "mask: false with probability p",
        ("mask_share",),
        [("random.random(shape) >= p", "random.random(shape) < p")],
        r"90.\d% of it is false, with p = 0.1. Is it turned around",
    ),
    Mutant(
        "ready_to_multiply",
        "mask: bool",
        ("mask_share",),
        [("random.random(shape) >= p", "(random.random(shape) >= p) / (1 - p)")],
        r"the mask has the dtype float64; bool is wanted, one byte an element",
    ),
    Mutant(
        "whole_rows",
        "mask: each element for itself",
        ("mask_share",),
        [("random.random(shape) >= p", "np.broadcast_to(random.random(shape[-1]) >= p, shape)")],
        r"% of it is false|rows or columns are equal",
    ),
    Mutant(
        "seeds_everybody",
        "mask: leaves NumPy's own generator alone",
        ("mask_alone",),
        [
            (
                MASK,
                "    np.random.seed(abs(int(np.random.default_rng(seed).integers(1 << 31))))\n"
                "    return np.random.random(shape) >= p\n",
            )
        ],
        r"NumPy's own generator is not as it was",
    ),
    Mutant(
        "square_root",
        "best_interval: layers of any size",
        ("best_interval_bytes",),
        [(BEST, "        held = abs(k * k - n)\n"), ("best, least = 1, n * given + layer", "best, least = 1, n - 1")],
        r"On best_interval\(24, 2, 8\): with k = 5, 50 bytes are held; with k = 2 it is 40",
    ),
    Mutant(
        "rounds_down",
        "best_interval: a shorter segment has an input, too",
        ("best_interval",),
        [
            (
                BEST,
                "        segments = n // k if given == layer else -(-n // k)\n"
                "        held = segments * given + k * layer\n",
            )
        ],
        r"On best_interval\(\d+, 1, 1\): with k = \d+, \d+ bytes are held",
    ),
    Mutant(
        "cuts_rows",
        "cut: chunks of all elements",
        ("cut",),
        [
            (
                "    mine = chunk(flat.size, comm.size, comm.rank)\n",
                "    mine = chunk(flat.size, comm.size, comm.size - 1 - comm.rank)\n",
            )
        ],
        r"cut of \(2, 3, 4\), 2 ranks: rank 0's part is not chunk 0 of x's elements",
    ),
    Mutant(
        "a_view",
        "cut: memory of its own",
        ("cut_own",),
        [(PART, "    return flat[mine]\n")],
        r"rank 0's part of 24 bytes is a view of 96 bytes. As long as it is there, all of them are: make a copy",
    ),
    Mutant(
        "flat_and_whole",
        "whole: in x's shape",
        ("whole",),
        [("    return flat.reshape(shape)\n", "    return flat\n")],
        r"x on rank 0 has the shape \(24,\); \(2, 3, 4\) is wanted",
    ),
    Mutant(
        "sums_with_zeros",
        "whole: sends each part once",
        ("whole_sent",),
        [
            (
                "    flat = ring.all_gather(comm, part, size)\n",
                "    flat = np.zeros(size, part.dtype)\n    flat[chunk(size, comm.size, comm.rank)] = part\n"
                "    flat = ring.all_reduce(comm, flat)\n",
            )
        ],
        r"whole of \(4, 6\), 2 ranks: rank 0 sends 96 bytes; around a ring it is 48",
    ),
]

SCALED = "    scaled = gradient * np.float32(scale)\n    return scaled.astype(np.float16)\n"
WIDE = "    wide = stored.astype(np.float32)\n    return wide / np.float32(scale)\n"
ADDED = "    master += change\n    param[:] = master\n"
SQUARES = "        wide = piece.grad.astype(np.float64)\n        total += wide @ wide\n"
SUMMED = "    total = all_reduce(comm, total)\n"
ROOTED = "    return math.sqrt(total[0]) / scale\n"
FORGIVEN = "    if overflow and state.forgiven > 0:\n"
AT_THE_MINIMUM = (
    "        if state.scale == minimum:\n"
    '            raise OverflowError("the gradients are not finite for another reason")\n'
)
HALVED = "        return state._replace(scale=max(state.scale / 2, minimum), clean=0)\n"
DOUBLED = (
    "    if state.clean > 0 and state.clean % window == 0:\n"
    "        state = state._replace(scale=state.scale * 2, forgiven=hysteresis - 1)\n"
)
CLIPPED = "        if clip > 0 and norm > clip:\n            factor = clip / norm\n"
UNSCALED = "            gradient = widen(piece.grad, state.scale)\n"
EMPTIED = "    for piece in pieces:\n        piece.grad[:] = 0\n"

MIXED = [
    Mutant(
        "rounds_first",
        "narrow: multiply, then round",
        ("narrow",),
        [(SCALED, "    return gradient.astype(np.float16) * np.float16(scale)\n")],
        r"It was zero before it was multiplied|multiply in float32",
    ),
    Mutant(
        "scale_in_float16",
        "narrow: the scale may be larger than float16's largest",
        ("narrow",),
        [("np.float32(scale)\n    return scaled", "np.float16(scale)\n    return scaled")],
        r"scale 131072: \[0\] is -?inf.*The scale 131072 itself is no float16 number",
    ),
    Mutant(
        "narrows_to_float32",
        "narrow: float16",
        ("narrow",),
        [("    return scaled.astype(np.float16)\n", "    return scaled\n")],
        r"it is float32; float16 is wanted",
    ),
    Mutant(
        "narrows_in_place",
        "narrow: a new array",
        ("narrow",),
        [("    scaled = gradient * np.float32(scale)\n", "    gradient *= np.float32(scale)\n    scaled = gradient\n")],
        r"the gradient that it was handed was changed",
    ),
    Mutant(
        "divides_in_float16",
        "widen: float32 before it is divided",
        ("widen",),
        [(WIDE, "    return (stored / np.float16(scale)).astype(np.float32)\n")],
        r"It was divided as float16, and rounded once more",
    ),
    Mutant(
        "stays_narrow",
        "widen: float32",
        ("widen",),
        [("    return wide / np.float32(scale)\n", "    return (wide / np.float32(scale)).astype(np.float16)\n")],
        r"it is float16; float32 is wanted",
    ),
    Mutant(
        "widens_with_the_scale",
        "widen: without the scale",
        ("widen",),
        [("    return wide / np.float32(scale)\n", "    return wide\n")],
        r"That is with the scale",
    ),
    Mutant(
        "master_from_the_parameters",
        "update: small changes add up in the master copy",
        ("update_master",),
        [(ADDED, "    master[:] = param + change\n    param[:] = master\n    master[:] = param\n")],
        r"the master copy is .* (was it rounded to float16 on the way\?|what is added to what\?)",
    ),
    Mutant(
        "takes_the_change_away",
        "update: the change is added",
        ("update_master",),
        [(ADDED, ADDED.replace("+=", "-="))],
        r"The change is to be added",
    ),
    Mutant(
        "a_new_master",
        "update: the master copy in place",
        ("update_master", "update_param"),
        [(ADDED, "    master = master + change\n    param[:] = master\n")],
        r"Nothing has changed in it\. Work in place",
    ),
    Mutant(
        "adds_to_both",
        "update: the parameters are the master copy, rounded",
        ("update_param",),
        [(ADDED, "    master += change\n    param += change.astype(np.float16)\n")],
        r"where the master copy is .*, rounded .* Which of the two is the change added to\?",
    ),
    Mutant(
        "a_new_param",
        "update: the parameters in place",
        ("update_param",),
        [(ADDED, "    master += change\n    param = master.astype(np.float16)\n")],
        r"the parameters are as they were\. Write into the array that is there",
    ),
    Mutant(
        "without_a_root",
        "gradient_norm: the root",
        ("norm",),
        [(ROOTED, "    return total[0] / scale\n")],
        r"That is the sum of squares: the root is missing",
    ),
    Mutant(
        "a_mean_over_ranks",
        "gradient_norm: a sum over the ranks",
        ("norm",),
        [(ROOTED, "    return math.sqrt(total[0] / comm.size) / scale\n")],
        r"That is a mean over the ranks: sum",
    ),
    Mutant(
        "first_piece_alone",
        "gradient_norm: of all pieces",
        ("norm",),
        [("    for piece in pieces:\n        wide", "    for piece in pieces[:1]:\n        wide")],
        r"rank 0 returned [\d.]+; [\d.]+ is wanted",
    ),
    Mutant(
        "squares_in_float16",
        "gradient_norm: squares in float64",
        ("norm_wide",),
        [(SQUARES, "        total += (piece.grad**2).sum(dtype=np.float64)\n")],
        r"numbers near 1024: it is inf, .* In which dtype are the squares\?",
    ),
    Mutant(
        "norm_with_the_scale",
        "gradient_norm: without the scale",
        ("norm_scale",),
        [(ROOTED, "    return math.sqrt(total[0])\n")],
        r"It is the norm with the scale",
    ),
    Mutant(
        "scale_under_the_root",
        "gradient_norm: the norm is divided, not the sum of squares",
        ("norm_scale",),
        [(ROOTED, "    return math.sqrt(total[0] / scale)\n")],
        r"The sum of squares was divided by the scale",
    ),
    Mutant(
        "leaves_out_what_is_not_finite",
        "gradient_norm: one rank's overflow is everyone's",
        ("norm_overflow",),
        [("        total += wide @ wide\n", "        total += wide[np.isfinite(wide)] @ wide[np.isfinite(wide)]\n")],
        r"inf on rank 2: rank 0 returned [\d.]+; inf or nan on every rank, or one skips alone, is wanted",
    ),
    Mutant(
        "all_send_first",
        "gradient_norm: nothing depends on who sends first",
        ("timing",),
        [
            (
                SUMMED,
                "    mine, incoming = total.copy(), np.zeros(1)\n"
                "    for step in range(1, comm.size):\n"
                "        comm.send(mine, (comm.rank + step) % comm.size)\n"
                "        comm.recv(incoming, (comm.rank - step) % comm.size)\n"
                "        total += incoming\n",
            )
        ],
        r"(?s)gradient_norm.*(rank 0: send|cycle)",
    ),
    Mutant(
        "forgives_nothing",
        "next_scale: an overflow is forgiven",
        ("scale_halves",),
        [(FORGIVEN, "    if False:\n")],
        r"after step 1, an overflow: the scale is 2048; 4096 is wanted",
    ),
    Mutant(
        "forgives_once_more",
        "next_scale: forgiven counts down",
        ("scale_halves",),
        [("forgiven=state.forgiven - 1, clean=0", "forgiven=state.forgiven, clean=0")],
        r"after step 3, an overflow: the scale is 4096; 2048 is wanted",
    ),
    Mutant(
        "below_the_minimum",
        "next_scale: never below the minimum",
        ("scale_minimum",),
        [(HALVED, HALVED.replace("max(state.scale / 2, minimum)", "state.scale / 2"))],
        r"after step 2, an overflow: the scale is 2; 3 is wanted",
    ),
    Mutant(
        "says_nothing_at_the_minimum",
        "next_scale: OverflowError at the minimum",
        ("scale_minimum",),
        [(AT_THE_MINIMUM, "")],
        r"after step 3, an overflow: the scale is 3; OverflowError is wanted",
    ),
    Mutant(
        "gives_up_at_once",
        "next_scale: at the minimum, too, what is forgiven is forgiven",
        ("scale_halves",),
        [(FORGIVEN, "    if overflow and state.scale == minimum:\n        raise OverflowError\n" + FORGIVEN)],
        r"at the minimum, 1 to be forgiven, after step 1, an overflow: the scale is OverflowError; 1 is wanted",
    ),
    Mutant(
        "doubles_at_once",
        "next_scale: not where clean is 0",
        ("scale_doubles",),
        [("    if state.clean > 0 and state", "    if state")],
        r"after step 1, no overflow: the scale is 32; 16 is wanted",
    ),
    Mutant(
        "a_step_early",
        "next_scale: after a whole window",
        ("scale_doubles",),
        [(DOUBLED, DOUBLED.replace("state.clean > 0 and state.clean % window", "(state.clean + 1) % window"))],
        r"after step 3, no overflow: the scale is 32; 16 is wanted",
    ),
    Mutant(
        "goes_on_counting",
        "next_scale: an overflow begins the window anew",
        ("scale_doubles",),
        [("forgiven=state.forgiven - 1, clean=0)", "forgiven=state.forgiven - 1)")],
        r"with an overflow in between, after step 3: the scale is 2 times what it was after the overflow; 1 times",
    ),
    Mutant(
        "never_afresh",
        "next_scale: forgiven is fresh when it doubles",
        ("scale_afresh",),
        [(", forgiven=hysteresis - 1)", ")")],
        r"after step 3: the scale has doubled, and forgiven is 0; 3 is wanted",
    ),
    Mutant(
        "afresh_every_step",
        "next_scale: forgiven is fresh only then",
        ("scale_afresh",),
        [
            (
                "    return state._replace(clean=state.clean + 1)\n",
                "    return state._replace(clean=state.clean + 1, forgiven=hysteresis - 1)\n",
            )
        ],
        r"after step 1: the scale has not doubled yet, and forgiven is 3; 0 is wanted",
    ),
    Mutant(
        "leaves_the_scale",
        "apply_gradients: the update without the scale",
        ("step",),
        [(UNSCALED, "            gradient = piece.grad.astype(np.float32)\n")],
        r"It has moved 1024 times as far as it should\. Is the scale undone, once\?",
    ),
    Mutant(
        "skips_every_step",
        "apply_gradients: a step without overflow is not skipped",
        ("step", "step_clip", "step_skip"),
        [("    if not overflow:\n        factor", "    if False:\n        factor")],
        r"has called the optimizer for the pieces \[\]; once for each piece",
    ),
    Mutant(
        "every_piece_is_the_first",
        "apply_gradients: the optimizer is told which piece",
        ("step",),
        [("optimizer(i, gradient)", "optimizer(0, gradient)")],
        r"has called the optimizer for the pieces \[0, 0\]",
    ),
    Mutant(
        "clips_the_scaled_norm",
        "apply_gradients: clips by the true norm",
        ("step_clip",),
        [
            (
                CLIPPED,
                CLIPPED.replace("norm > clip", "norm * state.scale > clip").replace(
                    "clip / norm", "clip / (norm * state.scale)"
                ),
            )
        ],
        r"The limit was compared with the norm of the scaled gradient",
    ),
    Mutant(
        "never_clips",
        "apply_gradients: clips",
        ("step_clip",),
        [(CLIPPED, "")],
        r"moves 1 times as far as without clipping; 0\.25 is wanted\. Nothing was clipped",
    ),
    Mutant(
        "always_clips",
        "apply_gradients: a shorter gradient stays",
        ("step_clip",),
        [("if clip > 0 and norm > clip", "if clip > 0")],
        r"A gradient that is shorter stays as it is",
    ),
    Mutant(
        "looks_at_its_own",
        "apply_gradients: all ranks skip, or none",
        ("step_skip",),
        [
            (
                "    overflow = not math.isfinite(norm)\n",
                "    overflow = not all(np.isfinite(piece.grad).all() for piece in pieces)\n",
            )
        ],
        r"rank 0 has (changed master|called the optimizer).*The overflow is on the other rank; who tells it\?",
    ),
    Mutant(
        "never_skips",
        "apply_gradients: an overflow skips the step",
        ("step_skip",),
        [("    if not overflow:\n        factor", "    if True:\n        factor")],
        r"has changed master of piece \d, at \[\d\] to -?[\d.]+\. The step is to be skipped",
    ),
    Mutant(
        "asks_the_optimizer_first",
        "apply_gradients: the optimizer is not called where the step is skipped",
        ("step_skip",),
        [
            (
                "    overflow = not math.isfinite(norm)\n",
                "    overflow = not math.isfinite(norm)\n"
                "    for i, piece in enumerate(pieces if overflow else []):\n"
                "        optimizer(i, widen(piece.grad, state.scale))\n",
            ),
        ],
        r"has called the optimizer, which remembers what it is handed",
    ),
    Mutant(
        "keeps_the_state",
        "apply_gradients: the next state",
        ("step_scale",),
        [("    return next_scale(state, overflow)\n", "    next_scale(state, overflow)\n    return state\n")],
        r"returned \[1024\.0, 0\.0, 1\.0\]; next_scale gives \[1024\.0, 0, 2\] here",
    ),
    Mutant(
        "never_empties",
        "apply_gradients: gradients are zero afterwards",
        ("step_zero",),
        [(EMPTIED, "")],
        r"no overflow: grad of piece 0 on rank 0 is not zero afterwards",
    ),
    Mutant(
        "returns_before_it_empties",
        "apply_gradients: ... after a skipped step, too",
        ("step_zero",),
        [(EMPTIED, "    if overflow:\n        return next_scale(state, overflow)\n" + EMPTIED)],
        r"Also after a step that is skipped: else inf stays in it for good",
    ),
]

STATES = "    states = (2 + 2) * psi + 12 * psi / d\n"
COUNTED = "        counted = piece.cut or tensor.rank == 0\n"
COPY = "        if piece.tied and pipeline.rank > 0:\n            counted = False\n"
AROUND = "    for comm in (tensor, pipeline):\n"
OVER_DATA = "        piece.grad[:] = all_reduce(data, piece.grad)\n"
OVER_ENDS = "        if piece.tied:\n            piece.grad[:] = all_reduce(ends, piece.grad)\n"
TWO_LEVELS = "    shard = reduce_scatter(host, gradient)\n    return all_reduce(across, shard)\n"

THREE_AXES = [
    Mutant(
        "optimizer_on_every_rank",
        "memory: the optimizer's states are divided",
        ("memory",),
        [(STATES, STATES.replace(" / d", ""))],
        r"On memory\(model, Layout\(4, 1, 1\)\): it is [\d,]+ bytes; [\d,]+ are wanted, of which",
    ),
    Mutant(
        "all_in_flight",
        "memory: at most p micro-batches in flight",
        ("memory",),
        [("in_flight = min(p, model.batch // d)", "in_flight = model.batch // d")],
        r"On memory\(model, Layout\(1, 1, 1\)\): it is [\d,]+ bytes",
    ),
    Mutant(
        "no_more_than_there_are",
        "memory: no more in flight than there are",
        ("memory",),
        [("in_flight = min(p, model.batch // d)", "in_flight = p")],
        r"On memory\(model, Layout\(24, 4, 2\)\): it is [\d,]+ bytes",
    ),
    Mutant(
        "forgets_activations",
        "memory: activations",
        ("memory",),
        [("    return states + in_flight", "    return states + 0 * in_flight")],
        r"Of a micro-batch in flight every layer of the stage keeps something",
    ),
    Mutant(
        "elements",
        "sent, tensor: bytes",
        ("sent_tensor",),
        [('"tensor": 2 * all_reduces', '"tensor": all_reduces')],
        r"On sent\(model, Layout\(1, 1, 2\)\): tensor is [\d,]+ bytes; it should be [\d,]+; that is 0\.5 times",
    ),
    Mutant(
        "all_layers",
        "sent, tensor: the layers of a stage",
        ("sent_tensor",),
        [("4 * micro_batches * model.layers / p\n", "4 * micro_batches * model.layers\n")],
        r"On sent\(model, Layout\(2, 3, 4\)\): tensor is .* that is 3 times",
    ),
    Mutant(
        "always_two_neighbours",
        "sent, pipeline: ends have one neighbour",
        ("sent_pipeline",),
        [("{1: 0, 2: 1}.get(p, 2)", "{1: 0}.get(p, 2)")],
        r"On sent\(model, Layout\(1, 2, 1\)\): pipeline is .* that is 2 times",
    ),
    Mutant(
        "whole_boundaries",
        "sent, pipeline: a t-th",
        ("sent_pipeline",),
        [("neighbours * micro_batches * sh / t", "neighbours * micro_batches * sh")],
        r"On sent\(model, Layout\(2, 3, 4\)\): pipeline is .* that is 4 times",
    ),
    Mutant(
        "whole_model",
        "sent, data: of this rank's parameters",
        ("sent_data",),
        [("    psi = model.parameters / p / t\n", "    psi = model.parameters\n")],
        r"On sent\(model, Layout\(4, 3, 2\)\): data is .* that is 6 times",
    ),
    Mutant(
        "each_micro_batch",
        "sent, data: once a step",
        ("sent_data",),
        [("2 * 2 * psi * (d - 1) / d", "2 * 2 * psi * (d - 1) / d * micro_batches")],
        r"On sent\(model, Layout\(2, 1, 1\)\): data is .* that is 24 times",
    ),
    Mutant(
        "whatever_it_needs",
        "choose: fits",
        ("choose",),
        [("if memory(model, layout) > cluster.memory:", "if False:")],
        r"On 64 ranks, 8 on a host, each with \d+ GB: Layout\(.*\) needs [\d.]+ GB, which does not fit",
    ),
    Mutant(
        "least_memory",
        "choose: the fastest",
        ("choose",),
        [
            (
                "seconds(model, layout, cluster) < seconds(model, best, cluster)",
                "memory(model, layout) < memory(model, best)",
            )
        ],
        r"fits and takes [\d.]+ s; Layout\(.*\) takes [\d.]+ s",
    ),
    Mutant(
        "cuts_heads",
        "choose: what can be divided",
        ("choose",),
        [(" or model.heads % t:", ":"), ("range(1, model.heads + 1)", "range(1, cluster.ranks + 1)")],
        r"cannot divide 1 layers, 6 heads or 96 sequences",
    ),
    Mutant(
        "cuts_layers",
        "choose: whole layers",
        ("choose",),
        [(" or model.layers % p or", " or"), ("range(1, model.layers + 1)", "range(1, cluster.ranks + 1)")],
        r"cannot divide 48 layers, 64 heads or 512 sequences",
    ),
    Mutant(
        "cuts_sequences",
        "choose: whole sequences",
        ("choose",),
        [("if model.batch % layout.data or ", "if ")],
        r"cannot divide 4 layers, 8 heads or 6 sequences",
    ),
    Mutant(
        "all_data_for_none",
        "choose: None if nothing fits",
        ("choose",),
        [("    return best\n", "    return best or Layout(cluster.ranks, 1, 1)\n")],
        r"it returned Layout\(64, 1, 1\); nothing fits, so None is wanted",
    ),
    Mutant(
        "first_axis_innermost",
        "place: the innermost axis",
        ("place",),
        [("tuple(sizes.values()))\n", "tuple(sizes.values()), order='F')\n")],
        r"On place\(1, .*\): it is .* is wanted. Which axis is the innermost\?",
    ),
    Mutant(
        "names_the_other_way",
        "place: names in their order",
        ("place",),
        [
            (
                "return {axis: int(index) for axis, index in zip(sizes, at, strict=True)}",
                "return {axis: int(index) for axis, index in list(zip(sizes, at, strict=True))[::-1]}",
            )
        ],
        r"its names are tensor, pipeline, data; data, pipeline, tensor are wanted, in this order",
    ),
    Mutant(
        "the_others",
        "along: the ranks that differ on this axis",
        ("along",),
        [("if axis not in axes]", "if axis in axes]")],
        r"along data, rank 0 is with the ranks \[0, 1, 2, 3\]; \[0, 4\] are wanted",
    ),
    Mutant(
        "backwards",
        "along: in order of rank",
        ("along",),
        [("    return comm.split(color)\n", "    return comm.split(color, -comm.rank)\n")],
        r"They are the right ones in another order",
    ),
    Mutant(
        "adds_places",
        "along: a color for each group",
        ("along",),
        [("color = color * sizes[axis] + mine[axis]", "color += mine[axis]")],
        r"along data, rank 1 is with the ranks \[1, 2, 5, 6\]; \[1, 5\] are wanted",
    ),
    Mutant(
        "one_axis_alone",
        "along: several axes",
        ("along_several",),
        [("if axis not in axes]", "if axis != axes[0]]")],
        r"along data and tensor, rank 0 is with the ranks \[0, 4\]; \[0, 1, 4, 5\] are wanted",
    ),
    Mutant(
        "this_host_alone",
        "shard_gradient: over the hosts",
        ("shard_gradient",),
        [("    return all_reduce(across, shard)\n", "    all_reduce(across, shard)\n    return shard\n")],
        r"rank 0's shard is wrong. It is that of this host alone",
    ),
    Mutant(
        "changes_the_gradient",
        "shard_gradient: the gradient does not change",
        ("shard_gradient",),
        [(TWO_LEVELS, TWO_LEVELS.replace("    return", "    gradient[:] = 0\n    return"))],
        r"rank 0's gradient was changed",
    ),
    Mutant(
        "across_first",
        "shard_gradient: within the host first",
        ("shard_gradient_hosts",),
        [(TWO_LEVELS, "    return reduce_scatter(host, all_reduce(across, gradient))\n")],
        r"rank 0 sends 512 bytes to other hosts; 2M\(W-G\)/\(GW\) = 128 are enough",
    ),
    Mutant(
        "averages_gradients",
        "sum_gradients: the sum",
        ("sum_gradients",),
        [(OVER_DATA, OVER_DATA.replace("piece.grad)\n", "piece.grad) / data.size\n"))],
        r"grad of piece 0 on rank 0 is wrong. It is the mean; losses have been divided",
    ),
    Mutant(
        "another_array",
        "sum_gradients: in place",
        ("sum_gradients",),
        [(OVER_DATA + OVER_ENDS, (OVER_DATA + OVER_ENDS).replace("piece.grad[:] =", "piece.grad ="))],
        r"grad of piece 0 on rank 0 is another array; put the sum into the one that was there",
    ),
    Mutant(
        "one_axis_only",
        "sum_gradients: what is tied, over both ends",
        ("sum_gradients_tied",),
        [(OVER_ENDS, "")],
        r"piece 1 tied: grad of piece 1 on rank 0 is wrong. It is this stage's own, without the other end's",
    ),
    Mutant(
        "the_other_axis_only",
        "sum_gradients: what is tied, over the data axis as well",
        ("sum_gradients_tied",),
        [
            (
                OVER_DATA + OVER_ENDS,
                "        ranks = ends if piece.tied else data\n" + OVER_DATA.replace("(data", "(ranks"),
            )
        ],
        r"piece 1 tied: grad of piece 1 on rank 0 is wrong. It is the sum over the ends alone",
    ),
    Mutant(
        "counts_t_times",
        "gradient_norm: what is whole counts once",
        ("norm",),
        [(COUNTED, "        counted = True\n")],
        r"on rank 0 the norm is [\d.]+; [\d.]+ is wanted. It is what is whole counted 2 times",
    ),
    Mutant(
        "first_rank_alone",
        "gradient_norm: what is cut counts everywhere",
        ("norm",),
        [(COUNTED, "        counted = tensor.rank == 0\n")],
        r"On 1 x 2 ranks \(stages x tensor\): on rank 0 the norm is [\d.]+; [\d.]+ is wanted",
    ),
    Mutant(
        "without_the_stages",
        "gradient_norm: over the stages",
        ("norm",),
        [(AROUND, "    for comm in (tensor,):\n")],
        r"On 2 x 1 ranks \(stages x tensor\): on rank 0 the norm is",
    ),
    Mutant(
        "without_the_root",
        "gradient_norm: the root",
        ("norm",),
        [("    return math.sqrt(squares)\n", "    return squares\n")],
        r"It is the square of the norm",
    ),
    Mutant(
        "adds_norms",
        "gradient_norm: squares are added",
        ("norm",),
        [
            (AROUND, "    squares = math.sqrt(squares)\n" + AROUND),
            ("    return math.sqrt(squares)\n", "    return squares\n"),
        ],
        r"on rank 0 the norm is [\d.]+; [\d.]+ is wanted",
    ),
    Mutant(
        "both_copies",
        "gradient_norm: a copy does not count",
        ("norm_tied",),
        [(COPY, "")],
        r"where the first stage alone has the tied piece. After sum_gradients the two copies",
    ),
    Mutant(
        "neither_copy",
        "gradient_norm: one of the copies counts",
        ("norm_tied",),
        [(COPY, COPY.replace("piece.tied and pipeline.rank > 0", "piece.tied"))],
        r"on rank 0 the tied piece does not count at all",
    ),
]

MUTANTS = {
    "01": MAPREDUCE,
    "02": BY_HAND,
    "03": SERVERS,
    "04": RING,
    "06": MIXED,
    "09": ENGINE,
    "10": RECOMPUTED,
    "14": THREE_AXES,
}
