"""lessons/05_data_parallel"""

from classroom.mutants.mutant import Mutant

REDUCED = "            gradients[i] = ring.all_reduce(comm, gradient)\n"
CLIPPING = "    scale = clip / norm if clip and norm > clip else 1.0\n"
NORM = "    norm = float(np.sqrt(sum((gradient**2).sum() for gradient in gradients)))\n"
UPDATE = "        flat -= rate * scale * gradient\n"
SHARES = "    sizes = [rows // n + (r < rows % n) for r in range(n)]\n"
PART = "    loss = float(((h[-1] - y) ** 2).sum() / 2 / batch)\n"
SLOPE = "    dh = (h[-1] - y) / batch\n"
COPIED = (
    "        for flat, total in zip(self.waiting, np.split(buffer, np.cumsum(sizes)[:-1]), strict=True):\n"
    "            flat.grad[:] = total\n"
)
SUMMED = "            ring.all_reduce(self.comm, buffer, buffer)\n"
SENT = "        self.waiting = []\n"
FULL = (
    "        self.waiting.append(flat)\n"
    "        if sum(flat.padded for flat in self.waiting) >= self.bucket_size:\n"
    "            self.send_bucket()\n"
)
LAST = "        if self.waiting:\n            self.send_bucket()\n"

MUTANTS = [
    Mutant(
        "never_sums",
        "train_step: every rank's gradient is in the sum",
        ("train_step",),
        [(REDUCED, "            gradients[i] = gradient\n            ring.all_reduce(comm, gradient)\n")],
        r"it was updated by this rank's own gradient, not summed over the ranks",
    ),
    Mutant(
        "averages_gradients",
        "train_step: the sum, for the loss is divided already",
        ("train_step",),
        [(REDUCED, REDUCED.replace("gradient)\n", "gradient) / comm.size\n"))],
        r"the gradient was divided by the number of ranks once too often",
    ),
    Mutant(
        "goes_uphill",
        "train_step: minus rate times the gradient",
        ("train_step",),
        [(UPDATE, UPDATE.replace("-=", "+="))],
        r"the gradient was added; go against it",
    ),
    Mutant(
        "loss_of_a_share",
        "train_step: this rank's part of the loss",
        ("train_step",),
        [(PART, PART.replace("batch", "max(1, len(x))"))],
        r"the ranks' parts of the loss add up to [\d.]+, where it is [\d.]+",
    ),
    Mutant(
        "means_of_means",
        "train_step: a share weighs what it has",
        ("shares",),
        [(SLOPE, "    dh = (h[-1] - y) / max(1, len(x)) / comm.size\n")],
        r"it is the mean of the ranks' means, in which a row of a small share weighs more",
    ),
    Mutant(
        "mean_of_no_rows",
        "train_step: a share may be empty",
        ("shares",),
        [(PART, PART.replace(".sum() / 2 / batch", ".sum(axis=1).mean() / 2 * len(x) / batch"))],
        r"On 4 ranks, 3 layers, 3 rows: rank 3's part of the loss is nan\. Of a share without rows it is 0",
    ),
    Mutant(
        "clips_its_own",
        "train_step: clipped after the sum",
        ("clip",),
        [
            (
                "    gradients = [np.empty(0)] * len(flats)\n",
                "    gradients, own, d = [np.empty(0)] * len(flats), [], dh\n"
                "    for i in reversed(range(len(flats))):\n"
                "        g, d = layer_backward(flats[i], h[i], h[i + 1], d)\n        own.append(g)\n"
                "    length = np.sqrt(sum((g**2).sum() for g in own))\n"
                "    dh = dh * (clip / length if clip and length > clip else 1.0)\n",
            ),
            (
                NORM,
                "    sums = [ring.all_reduce(comm, g) for g in own] if clip else gradients\n"
                + NORM.replace("gradients)))", "sums)))"),
            ),
            (CLIPPING, "    scale = 1.0\n"),
        ],
        r"each rank clips its own gradient, before the sum\. Clip the sum",
    ),
    Mutant(
        "clips_each_layer",
        "train_step: all layers by one number",
        ("clip",),
        [
            (
                UPDATE,
                "        length = np.linalg.norm(gradient)\n"
                "        scale = clip / length if clip and length > clip else 1.0\n" + UPDATE,
            )
        ],
        r"it has another direction\. All layers' gradients are multiplied by one number",
    ),
    Mutant(
        "never_clips",
        "train_step: no more than the limit",
        ("clip",),
        [(CLIPPING, "    scale = 1.0\n")],
        r"nothing is clipped",
    ),
    Mutant(
        "always_to_the_limit",
        "train_step: a small norm is left alone",
        ("clip",),
        [(CLIPPING, CLIPPING.replace(" and norm > clip", ""))],
        r"changes a gradient whose norm, [\d.]+, is below the limit",
    ),
    Mutant(
        "returns_what_is_left",
        "train_step: the norm before clipping",
        ("norm",),
        [("    return loss, norm\n", "    return loss, norm * scale\n")],
        r"it is what is left after clipping; the norm before that is wanted",
    ),
    Mutant(
        "adds_up_norms",
        "train_step: the norm of all layers together",
        ("norm",),
        [("    return loss, norm\n", "    return loss, float(sum(np.linalg.norm(g) for g in gradients))\n")],
        r"it is the sum of the layers' norms",
    ),
    Mutant(
        "after_the_backward",
        "train_step: each gradient before the backward of the layer below",
        ("train_step_wire",),
        [
            ('        with comm.phase("all-reduce gradients"):\n' + REDUCED, "        gradients[i] = gradient\n"),
            (
                NORM,
                '    with comm.phase("all-reduce gradients"):\n'
                "        gradients = [ring.all_reduce(comm, g) for g in gradients]\n" + NORM,
            ),
        ],
        r"what rank 0 sends first is layer 0's gradient; it should be layer 2's",
    ),
    Mutant(
        "all_layers_at_once",
        "train_step: an all-reduce for each layer",
        ("train_step_wire",),
        [
            ('        with comm.phase("all-reduce gradients"):\n' + REDUCED, "        gradients[i] = gradient\n"),
            (
                NORM,
                '    with comm.phase("all-reduce gradients"):\n'
                "        gradients = np.split(ring.all_reduce(comm, np.concatenate(gradients)), len(flats))\n" + NORM,
            ),
        ],
        r"in 6 messages; \d+ bytes are the most that one of them needs",
    ),
    Mutant(
        "no_phase",
        "train_step: its phase",
        ("train_step_wire",),
        [('        with comm.phase("all-reduce gradients"):\n' + REDUCED, REDUCED[4:])],
        r"outside of every phase; use 'all-reduce gradients'",
    ),
    Mutant(
        "through_rank_0",
        "train_step: around a ring",
        ("train_step_wire",),
        [(REDUCED, REDUCED.replace("ring.all_reduce", "ring.server_all_reduce"))],
        r"a ring all-reduce sends to the right neighbour alone|messages",
    ),
    Mutant(
        "loss_is_a_mean_of_means",
        "train_step: parts of the loss that add up",
        ("shares",),
        [(PART, PART.replace("batch", "max(1, len(x)) / comm.size"))],
        r"On 4 ranks, 3 layers, 10 rows: the ranks' parts of the loss add up to [\d.]+, where it is [\d.]+",
    ),
    Mutant(
        "drops_the_rest",
        "rows: every sequence",
        ("rows",),
        [
            (
                "        return share(n, self.comm.size, self.comm.rank)\n",
                "        each = n // self.comm.size\n"
                "        return range(self.comm.rank * each, self.comm.rank * each + each)\n",
            )
        ],
        r"Of 10 sequences on 4 ranks \(from, to\): 0:2, 2:4, 4:6, 6:8: nobody gets number 8",
    ),
    Mutant(
        "rest_to_the_last",
        "rows: the first n mod N have one more",
        ("rows",),
        [
            (
                "        return share(n, self.comm.size, self.comm.rank)\n",
                "        each, rank = n // self.comm.size, self.comm.rank\n"
                "        return range(rank * each, n if rank == self.comm.size - 1 else rank * each + each)\n",
            )
        ],
        r"rank 0 gets 0:2, where 0:3 is wanted",
    ),
    Mutant(
        "rounds_up",
        "rows: nobody else's",
        ("rows",),
        [
            (
                "        return share(n, self.comm.size, self.comm.rank)\n",
                "        each = -(-n // self.comm.size)\n"
                "        return range(self.comm.rank * each, self.comm.rank * each + each)\n",
            )
        ],
        r"number 10 is in a share, and there is none",
    ),
    Mutant(
        "puts_another_array",
        "send_bucket: in place",
        ("send_bucket",),
        [(COPIED, COPIED.replace("flat.grad[:] = total", "flat.grad = total"))],
        r"it is as it was: copy the sums back into the array itself",
    ),
    Mutant(
        "in_the_wrong_order",
        "send_bucket: each sum into its own Flat",
        ("send_bucket",),
        [(COPIED, COPIED.replace("flat.grad[:] = total", "flat.grad[:] = np.roll(total, 1)"))],
        r"wrong first at index \d+: it holds element \d+ of the sum",
    ),
    Mutant(
        "divides_the_sum",
        "send_bucket: the sum is the mean",
        ("factor",),
        [(COPIED, COPIED.replace("= total", "= total / self.comm.size"))],
        r"rank 0's flat.grad is the sum divided by 3\. The sum is wanted",
    ),
    Mutant(
        "never_empties",
        "send_bucket: none waits any more",
        ("bucket_again",),
        [(SENT, "")],
        r"What has been sent does not wait any more",
    ),
    Mutant(
        "one_message_for_each",
        "send_bucket: one all-reduce",
        ("bucket_wire",),
        [
            (
                SUMMED,
                "            for some in np.split(buffer, np.cumsum(sizes)[:-1]):\n"
                "                ring.all_reduce(self.comm, some, some)\n",
            )
        ],
        r"rank 0 sends 12 messages, [\d,]+ bytes; 6 messages, [\d,]+ bytes, are needed and enough",
    ),
    Mutant(
        "widens_buckets",
        "send_bucket: as stored",
        ("bucket_wire",),
        [("np.concatenate([flat.grad for", "np.concatenate([flat.grad.astype(np.float64) for")],
        r"On 4 ranks, mixed: rank 0 sends [\d,]+ bytes .*; [\d,]+ bytes are the most that one of them needs",
    ),
    Mutant(
        "another_phase",
        "send_bucket: its phase",
        ("bucket_wire",),
        [('        with self.comm.phase("all-reduce gradients"):\n', '        with self.comm.phase("buckets"):\n')],
        r"in phase 'buckets'; use 'all-reduce gradients'",
    ),
    Mutant(
        "one_too_late",
        "reduce: at least bucket_size",
        ("reduce",),
        [(FULL, FULL.replace(">=", ">"))],
        r"rank 0 has sent nothing; it should be head",
    ),
    Mutant(
        "of_its_own_size",
        "reduce: of all that wait together",
        ("reduce",),
        [(FULL, FULL.replace("sum(flat.padded for flat in self.waiting)", "flat.padded"))],
        r"has sent nothing; it should be",
    ),
    Mutant(
        "never_waits_for_others",
        "reduce: until so many wait",
        ("reduce",),
        [(FULL, "        self.waiting.append(flat)\n        self.send_bucket()\n")],
        r"rank 0 has sent head; it should be nothing",
    ),
    Mutant(
        "sends_before_it_receives",
        "no send takes for granted that it does not wait",
        ("messages",),
        [
            (
                SUMMED,
                "            n, rank = self.comm.size, self.comm.rank\n"
                "            parts = [buffer[ring.chunk(buffer.size, n, i)] for i in range(n)]\n"
                "            for step in range(2 * (n - 1)):\n"
                "                here, there = ((rank - k - step) % n for k in (1, 2))\n"
                "                incoming = np.empty_like(parts[there])\n"
                "                self.comm.send(parts[here], (rank + 1) % n)\n"
                "                self.comm.recv(incoming, (rank - 1) % n)\n"
                "                parts[there][:] = incoming + (parts[there] if step < n - 1 else 0)\n",
            )
        ],
        r"A cycle of waits",
    ),
    Mutant(
        "forgets_the_last_bucket",
        "sum_over_axes: what still waits",
        ("sum_over_axes",),
        [("    def sum_over_axes(self) -> None:\n" + LAST, "    def sum_over_axes(self) -> None:\n        pass\n")],
        r"still waits, and its gradient is this rank's own",
    ),
    Mutant(
        "sends_nothing",
        "sum_over_axes: perhaps nothing does",
        ("sum_over_axes",),
        [
            (
                "    def sum_over_axes(self) -> None:\n" + LAST,
                "    def sum_over_axes(self) -> None:\n        self.send_bucket()\n",
            )
        ],
        r"sends a bucket of nothing\. Perhaps none waits: ask first",
    ),
]
