"""lessons/04_ring_all_reduce"""

from classroom.mutants.mutant import Mutant

RS, AG, AR = "reduce_scatter", "all_gather", "all_reduce"
TOTAL = "        total = incoming + own\n"
STEP = "        comm.sendrecv(total, right, incoming, left)\n"
FIRST = "    total = x[chunk(x.size, n, (rank - 1) % n)].copy()\n"
LAST = "    if out is None:\n        return total\n    out[:] = total\n    return out\n"
PLACED = "    out = np.empty(size, x.dtype) if out is None else out\n"
PASSED = "        comm.sendrecv(out[chunk(size, n, sending)], right, out[chunk(size, n, receiving)], left)\n"
REDUCED = "    return all_gather(comm, reduce_scatter(comm, x), x.size, out)\n"

MUTANTS = [
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
