"""lessons/11_offload_and_infinity"""

from classroom.mutants.mutant import Mutant

WAYS = "        if saved > 0:\n"
LEAST = "    least = min(ways)[:2]\n    return [host for sent, saved, host in ways if (sent, saved) == least]\n"
SENT = "if (a in host) != (b in host))"
READ = (
    "        if i + 1 < count:\n            if i >= 2:\n                writes.pop(i - 2).wait()\n"
    "            reads[i + 1] = disk.read(i + 1, rooms[(i + 1) % 3])\n        reads.pop(i).wait()\n"
)
WRITTEN = "        writes[i] = disk.write(i, room)\n"
PENDING = "        g = gradient(parameters, batch)\n        if pending is not None:\n"
RESULT = "            parameters = pending.result()\n            pending = None\n"
TILE = "        give(i, part.T @ x)\n        del weights\n"

MUTANTS = [
    Mutant(
        "offloads_nothing",
        "best_placements: at least one byte off the device",
        ("best_placements", "best_placements_several"),
        [(WAYS, "        if saved >= 0:\n")],
        r"{} on the host sends 0 bytes and leaves \d+ on the device; {.+} sends \d+ bytes and leaves \d+ on the device",
    ),
    Mutant(
        "moves_the_passes",
        "best_placements: one node must stay",
        ("best_placements", "best_placements_several"),
        [("        if node != on_device:\n", "        if node:\n")],
        r"cannot be on the host: passes cannot",
    ),
    Mutant(
        "counts_down_alone",
        "best_placements: both ways over the link",
        ("best_placements", "best_placements_several"),
        [(SENT, "if a not in host and b in host)")],
        r"on the host sends \d+ bytes and leaves \d+ on the device; {.+} sends \d+",
    ),
    Mutant(
        "first_of_several",
        "best_placements: all that are equally good",
        ("best_placements_several",),
        [(LEAST, LEAST.replace("return [host", "return [next(host").replace("== least]", "== least)]"))],
        r"on the host is missing: it sends \d+ bytes and leaves \d+ on the device, which is best",
    ),
    Mutant(
        "all_that_send_least",
        "best_placements: of these, those that leave least",
        ("best_placements",),
        [(LEAST, LEAST.replace("(sent, saved) == least]", "sent == least[0]]"))],
        r"on the host sends (\d+) bytes and leaves \d+ on the device; {.+} sends \1 bytes and leaves",
    ),
    Mutant(
        "forgets_the_last_unit",
        "update_all: every unit is written",
        ("update_all",),
        [(WRITTEN, "        if i + 1 < count:\n    " + WRITTEN)],
        r"of 3 units, a disk that takes no time: file 2 is not the updated unit 2. It is as it was before",
    ),
    Mutant(
        "writes_to_its_neighbour",
        "update_all: into its own file",
        ("update_all",),
        [(WRITTEN, "        writes[i] = disk.write((i + 1) % count, room)\n")],
        r"file 0 is not the updated unit 0. It is something else",
    ),
    Mutant(
        "updates_twice",
        "update_all: each unit once",
        ("update_all", "update_all_overlap"),
        [("        update(i, room)\n", "        update(i, room)\n        update(i, room)\n")],
        r"file 0 is not the updated unit 0. It is something else; unit 0 was updated 2 times",
    ),
    Mutant(
        "reads_twice",
        "update_all: each unit is read once",
        ("update_all", "update_all_overlap"),
        [
            (
                "        reads.pop(i).wait()\n",
                "        reads.pop(i).wait()\n        if i == 0:\n            disk.read(i, room).wait()\n",
            )
        ],
        r"of 3 units, a disk that takes no time: the read of unit 0 begins 2 times; once is wanted",
    ),
    Mutant(
        "never_waits_for_a_read",
        "update_all: a room is the disk's while it is read into",
        ("update_all_rooms",),
        [("        reads.pop(i).wait()\n", "")],
        r"the update of unit 0 begins in the room of the read of unit 0, and nobody has waited for that",
    ),
    Mutant(
        "reads_over_a_write",
        "update_all: a room is the disk's while it is written from",
        ("update_all_rooms",),
        [("                writes.pop(i - 2).wait()\n", "                writes.pop(i - 2)\n")],
        r"the read of unit 3 begins in the room of the write of unit 0, and nobody has waited for that",
    ),
    Mutant(
        "leaves_writes_under_way",
        "update_all: at the end every move has been waited for",
        ("update_all_rooms",),
        [("    for write in writes.values():\n        write.wait()\n", "")],
        r"at the end nobody has waited for the write of unit 4",
    ),
    Mutant(
        "waits_for_each_write",
        "update_all: writes beside updates",
        ("update_all_overlap",),
        [
            (WRITTEN, "        disk.write(i, room).wait()\n"),
            ("            if i >= 2:\n                writes.pop(i - 2).wait()\n", ""),
        ],
        r"of 6 units, a read takes 3, an update 4, a write 3: it takes 45; one read, 6 updates and one write take 30",
    ),
    Mutant(
        "reads_when_it_needs",
        "update_all: reads beside updates",
        ("update_all_overlap",),
        [
            (
                READ,
                "        if i >= 3:\n            writes.pop(i - 3).wait()\n"
                "        if i:\n            reads[i] = disk.read(i, room)\n        reads.pop(i).wait()\n",
            )
        ],
        r"it takes 45; one read, 6 updates and one write take 30",
    ),
    Mutant(
        "always_late",
        "train_delayed: at first each update is complete",
        ("train_delayed_at_first",),
        [("        if step < after:\n", "        if step < 0:\n")],
        r"of 6 steps, after = 3: step 1 is to compute with the parameters after 1 update; it gets those after 0",
    ),
    Mutant(
        "late_a_step_too_soon",
        "train_delayed: up to step after-1",
        ("train_delayed_at_first",),
        [("        if step < after:\n", "        if step < after - 1:\n")],
        r"after = 3: step 3 is to compute with the parameters after 3 updates; it gets those after 2",
    ),
    Mutant(
        "never_late",
        "train_delayed: then an update is late",
        ("train_delayed", "train_delayed_beside"),
        [("        if step < after:\n", "        if step < len(batches):\n")],
        r"after = 0: step 1 is to compute with the parameters after 0 updates; it gets those after 1",
    ),
    Mutant(
        "two_behind",
        "train_delayed: one update, not two",
        ("train_delayed",),
        [
            ("    pending = None\n    for", "    pending, queue = None, []\n    for"),
            (
                RESULT,
                "            queue.append(pending)\n            pending = None\n        if len(queue) == 2:\n"
                "            parameters = queue.pop(0).result()\n",
            ),
            (
                "    if pending is not None:\n        parameters = pending.result()\n",
                "    for each in [*queue, pending]:\n        parameters = each.result() if each else parameters\n",
            ),
        ],
        r"step 2 is to compute with the parameters after 1 update; it gets those after 0",
    ),
    Mutant(
        "late_and_alone",
        "train_delayed: an update beside the passes",
        ("train_delayed_beside",),
        [
            (RESULT, "            parameters, pending = host.submit(update, pending).result(), None\n"),
            ("            pending = host.submit(update, g)\n", "            pending = g\n"),
            ("        parameters = pending.result()\n    return", "        parameters = update(pending)\n    return"),
        ],
        r"when step 1 begins its passes, the update with the gradient of step 0 has not been submitted",
    ),
    Mutant(
        "waits_before_the_passes",
        "train_delayed: nobody waits for an update before the passes",
        ("train_delayed", "train_delayed_beside"),
        [
            (
                PENDING + RESULT,
                "        if pending is not None:\n" + RESULT + "        g = gradient(parameters, batch)\n",
            )
        ],
        r"the update of step 0 is waited for before step 1 begins its passes",
    ),
    Mutant(
        "loses_the_last_gradient",
        "train_delayed: the last update is waited for",
        ("train_delayed_end",),
        [("    if pending is not None:\n        parameters = pending.result()\n    return", "    return")],
        r"of 4 steps, after = 0: return the parameters after all 4 updates; these are those after 3",
    ),
    Mutant(
        "dx_of_the_last_tile",
        "tiled_backward: dx of all tiles",
        ("tiled_backward",),
        [("        dx += part @ weights\n", "        dx = part @ weights\n")],
        r"the gradient of x is not dy W, summed over all tiles",
    ),
    Mutant(
        "turned_gradient",
        "tiled_backward: the gradient of a tile",
        ("tiled_backward",),
        [("part.T @ x", "x.T @ part")],
        r"of W \(8, 2\) in 4 tiles: the gradient of tile 0 is wrong",
    ),
    Mutant(
        "gives_nothing",
        "tiled_backward: gives each gradient away",
        ("tiled_backward",),
        [(TILE, "        if i:\n            give(i, part.T @ x)\n        del weights\n")],
        r"the gradient of tile 0 was not given away",
    ),
    Mutant(
        "fetches_everything_first",
        "tiled_backward: a tile at a time",
        ("tiled_backward_memory",),
        [
            ("    rows = dy", "    every = [fetch(i) for i in range(tiles)]\n    rows = dy"),
            ("weights = fetch(i)", "weights = every[i]"),
        ],
        r"when tile 2 is fetched, 2 others and the gradients of 0 are still held",
    ),
    Mutant(
        "keeps_gradients",
        "tiled_backward: a gradient at a time",
        ("tiled_backward_memory",),
        [
            ("    rows = dy", "    gradients = []\n    rows = dy"),
            (TILE, "        gradients.append(part.T @ x)\n        give(i, gradients[-1])\n        del weights\n"),
        ],
        r"when tile 2 is fetched, 1 others and the gradients of 2 are still held|when tile 2 is fetched, 0 others",
    ),
    Mutant(
        "fetches_twice",
        "tiled_backward: each tile once",
        ("tiled_backward_memory",),
        [("        dx += part @ weights\n", "        dx += part @ fetch(i)\n")],
        r"tile 0 is fetched twice: each comes from far away",
    ),
]
