"""lessons/13_pipelines"""

from classroom.mutants.mutant import Mutant

EARLIEST = "                start = max(free[s], earliest)\n"
UNTIL = "                end = start + sum(costs[each] for each in letter)\n"
STUCK = '            raise ValueError("deadlock")\n'
AHEAD = "    ahead = min(p - s, m)\n"
NEXT = '        if k + ahead < m:\n            order.append(("F", k + ahead))\n    return order\n\n\ndef late'
LATE = "    return late_weights(m, p - s, s)\n"
RECEIVED = "        out = np.empty(stage.shape)\n"
WAITED = "    for request in requests:\n        request.wait()\n"
HALVES = (
    '            if letter == "BW":\n                stage.weight(k)\n'
    "            if before >= 0:\n                requests.append(comm.isend(dx, before))\n"
)
MINE = "    ahead = min(limit - s, 2 * (p - s) - 1)\n"

MUTANTS = [
    Mutant(
        "does_all_at_once",
        "clock: one thing at a time",
        ("clock", "clock_latency"),
        [(EARLIEST, "                start = earliest\n")],
        r"stage 0 has F of 1 from 0 to 1|is wanted",
    ),
    Mutant(
        "bw_takes_b",
        "clock: BW takes the time of both",
        ("clock",),
        [(UNTIL, "                end = start + costs[letter[0]]\n")],
        r"stage 0 has BW of 0 from 1 to 2; BW of 0 from 1 to 3 is wanted",
    ),
    Mutant(
        "w_at_any_time",
        "clock: on the last stage B waits for nobody else",
        ("clock",),
        [("            return forward[s, k]\n", "            return max(forward.values())\n")],
        r"is wanted",
    ),
    Mutant(
        "messages_take_no_time",
        "clock: latency",
        ("clock_latency",),
        [
            ("forward[s - 1, k] + latency", "forward[s - 1, k]"),
            ("backward[s + 1, k] + latency", "backward[s + 1, k]"),
        ],
        r"latency 0\.5, .*stage 0 has B of 0 from 10 to 12; B of 0 from 12 to 14 is wanted",
    ),
    Mutant(
        "gradients_take_no_time",
        "clock: latency of gradients, too",
        ("clock_latency",),
        [("backward[s + 1, k] + latency", "backward[s + 1, k]")],
        r"stage 0 has B of 0 from 11 to 13; B of 0 from 12 to 14 is wanted",
    ),
    Mutant(
        "stops_quietly",
        "clock: a deadlock is a ValueError",
        ("clock_deadlock",),
        [(STUCK, "            break\n")],
        r"On orders that wait for ever, stage 0 wants BW.*: clock returns; ValueError is wanted",
    ),
    Mutant(
        "another_error",
        "clock: ... and no other error",
        ("clock_deadlock",),
        [(STUCK, '            raise RuntimeError("deadlock")\n')],
        r"clock raises RuntimeError; ValueError is wanted",
    ),
    Mutant(
        "sees_deadlocks_everywhere",
        "clock: no error where there is none",
        ("clock", "clock_latency", "clock_deadlock"),
        [("                    break\n", '                    raise ValueError("deadlock")\n')],
        r"raises ValueError; spans are wanted",
    ),
    Mutant(
        "first_micro_batch_first",
        "gpipe: the last micro-batch's backward first",
        ("gpipe",),
        [("range(m - 1, -1, -1)", "range(m)")],
        r"stage 0 begins its backwards with micro-batch 0; the last one's is wanted",
    ),
    Mutant(
        "leaves_one_out",
        "gpipe: every micro-batch",
        ("gpipe",),
        [("range(m - 1, -1, -1)", "range(m - 1, 0, -1)")],
        r"of micro-batch 0 stage 0 does 1 F; one F and one BW",
    ),
    Mutant(
        "gpipe_apart",
        "gpipe: B and W in one",
        ("gpipe",),
        [
            (
                '    order += [("BW", k) for k in range(m - 1, -1, -1)]\n',
                '    order += [(letter, k) for k in range(m - 1, -1, -1) for letter in "BW"]\n',
            )
        ],
        r"first all F, then all BW",
    ),
    Mutant(
        "one_forward_too_few",
        "one_f_one_b: p - s forwards first",
        ("one_f_one_b",),
        [(AHEAD, "    ahead = min(p - s - 1, m)\n")],
        r"deadlock: stage 0 waits at BW of 0 for F of 0 on stage 0",
    ),
    Mutant(
        "beyond_the_last",
        "one_f_one_b: no more than m",
        ("one_f_one_b",),
        [(AHEAD, "    ahead = p - s\n")],
        r"a micro-batch that there is not: k goes from 0 to 1",
    ),
    Mutant(
        "one_f_one_b_apart",
        "one_f_one_b: B and W in one",
        ("one_f_one_b",),
        [
            (
                '        order.append(("BW", k))\n' + NEXT,
                '        order += [("B", k), ("W", k)]\n' + NEXT,
            )
        ],
        r"B and W are apart; 1F1B has them in one",
    ),
    Mutant(
        "one_forward_too_many",
        "one_f_one_b: at most p - s",
        ("one_f_one_b_memory",),
        [(AHEAD, "    ahead = min(p - s + 1, m)\n")],
        r"stage 0 holds 3 micro-batches at a time; at most 2 are wanted",
    ),
    Mutant(
        "as_many_everywhere",
        "one_f_one_b: fewer on later stages",
        ("one_f_one_b", "one_f_one_b_memory"),
        [(AHEAD, "    ahead = min(p, m)\n")],
        r"stage 1 holds 2 micro-batches at a time; at most 1 are wanted",
    ),
    Mutant(
        "w_right_behind",
        "zb_h1: W waits",
        ("zb_h1",),
        [(LATE, "    return late_weights(m, p - s, 0)\n")],
        r"F 3, B 3, W 2: a stage needs .* units of time .* is wanted: m\(F\+B\+W\)",
    ),
    Mutant(
        "w_never",
        "zb_h1: every W",
        ("zb_h1", "shorter", "shorter_more"),
        [('    order += [("W", k) for k in range(max(0, m - late), m)]\n', "")],
        r"does 1 F, 1 B; one F and one BW, or one F, B and W, are wanted",
    ),
    Mutant(
        "w_too_late",
        "zb_h1: at most p",
        ("zb_h1_memory",),
        [(LATE, "    return late_weights(m, p - s, s + 1)\n")],
        r"stage 0 holds 3 micro-batches at a time; at most 2 are wanted",
    ),
    Mutant(
        "hands_dy_on",
        "perform: what backward has made",
        ("perform",),
        [
            (
                "            dx = stage.backward(k, received(after) if after < comm.size else None)\n",
                "            dy = received(after) if after < comm.size else None\n"
                "            dx = stage.backward(k, dy)\n"
                "            dx = dx if dy is None else dy\n",
            )
        ],
        r"the gradient of stage 0 is .*% off",
    ),
    Mutant(
        "forgets_w_in_bw",
        "perform: BW is both",
        ("perform",),
        [(HALVES, HALVES.replace('if letter == "BW"', "if False"))],
        r"thing 2 that stage \d does is F of 1; W of 0 is wanted",
    ),
    Mutant(
        "receives_on_the_first",
        "perform: None on the first stage",
        ("perform",),
        [("received(before) if before >= 0 else None", "received(before) if before >= 0 else np.zeros(stage.shape)")],
        r"forward\(0, \.\.\.\) of stage 0 was handed an array; None is wanted",
    ),
    Mutant(
        "one_buffer",
        "perform: an array for each micro-batch",
        ("perform_arrays",),
        [
            ("    requests = []\n", "    requests = []\n    buffers: dict[int, Array] = {}\n"),
            (RECEIVED, "        out = buffers.setdefault(source, np.empty(stage.shape))\n"),
        ],
        r"stage \d received the input of micro-batch 1 into an array of micro-batch 0, which W of 0 had yet to read",
    ),
    Mutant(
        "two_buffers",
        "perform: ... and not two in turns",
        ("perform_arrays",),
        [
            ("    requests = []\n", "    requests = []\n    buffers = [np.empty(stage.shape) for _ in range(4)]\n"),
            (RECEIVED, "        out = buffers[0]\n        buffers.append(buffers.pop(0))\n"),
        ],
        r"stage \d received the (input|gradient) of micro-batch \d into an array of micro-batch \d",
    ),
    Mutant(
        "w_before_it_sends",
        "perform: the gradient goes before W",
        ("perform_early",),
        [
            (
                '        elif letter == "W":\n            stage.weight(k)\n',
                '        elif letter == "W":\n            stage.weight(k)\n'
                "            for dx in made:\n                requests.append(comm.isend(dx, before))\n"
                "            made.clear()\n",
            ),
            ("    requests = []\n", "    requests = []\n    made: list[Array] = []\n"),
            (
                "            if before >= 0:\n                requests.append(comm.isend(dx, before))\n",
                '            at_once = letter == "B" and order.index(("W", k)) == order.index(("B", k)) + 1\n'
                "            if before >= 0:\n"
                "                (made.append(dx) if at_once else requests.append(comm.isend(dx, before)))\n",
            ),
        ],
        r"when stage \d begins W of 0, the gradient that B has made has not been sent",
    ),
    Mutant(
        "sends_that_wait",
        "perform: sends wait for nobody",
        ("perform_waits",),
        [
            ("                requests.append(comm.isend(y, after))\n", "                comm.send(y, after)\n"),
            ("                requests.append(comm.isend(dx, before))\n", "                comm.send(dx, before)\n"),
        ],
        r"(?s)3 ranks, 1F1B.*send",
    ),
    Mutant(
        "never_waits",
        "perform: requests are waited for",
        ("perform_waits",),
        [(WAITED, "")],
        r"(?i)wait",
    ),
    Mutant(
        "one_f_one_b_at_p",
        "shorter: than 1F1B",
        ("shorter",),
        [(MINE, "    if limit == p:\n        return one_f_one_b(s, p, m)\n" + MINE)],
        r"a stage needs 15 units .*; 14 or less is wanted: 1F1B needs 15",
    ),
    Mutant(
        "always_h1",
        "shorter: more memory, less time",
        ("shorter_more",),
        [(MINE, "    limit = p\n" + MINE)],
        r"or less is wanted: with limit = 3 yours needs 20",
    ),
    Mutant(
        "one_over_the_limit",
        "shorter: within the limit",
        ("shorter", "shorter_more"),
        [(MINE, "    limit += 1\n    ahead = limit - s\n")],
        r"holds \d micro-batches at a time; at most \d are wanted",
    ),
    Mutant(
        "chunks_in_order",
        "interleaved: backwards from the last chunk",
        ("interleaved",),
        [("v - 1 - chunk", "chunk")],
        r"interleaved with .*deadlock",
    ),
    Mutant(
        "as_without_chunks",
        "interleaved: enough forwards first",
        ("interleaved",),
        [("    ahead = 2 * (p - s - 1) + (v - 1) * p + 1 if v > 1 else p - s\n", "    ahead = p - s\n")],
        r"interleaved with .*(deadlock|a stage needs)",
    ),
]
