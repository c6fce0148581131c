"""lessons/09_zero_3"""

from classroom.mutants.mutant import Mutant

MUTANTS = [
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
