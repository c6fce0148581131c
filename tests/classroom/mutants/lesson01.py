"""lessons/01_mapreduce"""

from classroom.mutants.mutant import Mutant

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

MUTANTS = [
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
