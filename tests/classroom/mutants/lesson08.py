"""lessons/08_zero_2"""

from classroom.mutants.mutant import Mutant

SHARD = "        shard = reduce_scatter(comm, bucket)\n"
WENT_BACK = "        backward(comm, units, h, wrong / batch)\n"
MADE = "        flat.param = start.astype(self.precision.stored)\n"
BUCKET = "            flat.bucket = np.zeros(flat.padded, self.precision.stored)\n"
MINE = "            mine = reduce_scatter(self.comm, flat.bucket)\n"
GIVEN_BACK = "        flat.bucket = None\n"
IMPORTED = "from minidist.ring import all_gather, chunk, reduce_scatter\n"

MUTANTS = [
    Mutant(
        "without_a_sum_of_layers",
        "train_step: gradients are summed over the ranks",
        ("train_step",),
        [
            (
                SHARD,
                "        reduce_scatter(comm, bucket)\n        shard = np.split(bucket, comm.size)[comm.rank].copy()\n",
            )
        ],
        r"each rank's shard is updated by its own gradient, not by the sum",
    ),
    Mutant(
        "averages_ranks",
        "train_step: the sum, for the loss is divided already",
        ("train_step",),
        [("        units[i].grad += shard\n", "        units[i].grad += shard / comm.size\n")],
        r"the gradient was divided by the number of ranks",
    ),
    Mutant(
        "averages_micro_batches",
        "train_step: batch is of all micro-batches",
        ("train_step",),
        [(WENT_BACK, WENT_BACK.replace("/ batch", "/ batch / len(parts)"))],
        r"the gradient was divided by the number of micro-batches",
    ),
    Mutant(
        "last_micro_batch_alone",
        "train_step: micro-batches add up",
        ("train_step",),
        [("        units[i].grad += shard\n", "        units[i].grad[:] = shard\n")],
        r"the gradient is the last micro-batch's alone",
    ),
    Mutant(
        "without_zeros",
        "train_step: any N and width",
        ("train_step",),
        [
            (
                "    bucket = np.zeros(-(-gradient.size // comm.size) * comm.size)\n",
                "    bucket = np.zeros(gradient.size)\n",
            )
        ],
        r"(?s)On 4 ranks, 3 layers of 30 parameters, 2 micro-batches of 3 rows, rank \d failed:.*broadcast",
    ),
    Mutant(
        "mean_of_its_rows",
        "train_step: this rank's part of the loss",
        ("train_step",),
        [("(wrong**2).sum() / 2 / batch", "(wrong**2).sum() / 2 / len(x)")],
        r"the ranks' parts of the loss add up to [\d.]+, where it is [\d.]+",
    ),
    Mutant(
        "climbs",
        "train_step: against the gradient",
        ("train_step",),
        [("-rate * unit.grad", "rate * unit.grad")],
        r"the gradient was added: go against it",
    ),
    Mutant(
        "leaves_gradients",
        "train_step: gradients are zero between two steps",
        ("train_step",),
        [("        unit.grad[:] = 0\n", "")],
        r"grad of layer 0 after the step does not hold what it should: at index 0 there is -?[\d.e-]+, not 0",
    ),
    Mutant(
        "gathers_every_micro_batch",
        "train_step: parameters are sent once a step",
        ("train_step_wire",),
        [
            (
                WENT_BACK,
                WENT_BACK + "        for unit in units:\n            with comm.phase('all-gather parameters'):\n"
                "                all_gather(comm, unit.master, unit.param.size)\n",
            )
        ],
        r"rank 0 sends 36 messages in phase 'all-gather parameters'; 9 are needed and enough",
    ),
    Mutant(
        "all_reduces_units",
        "train_step: gradients are reduce-scattered",
        ("train_step_wire",),
        [
            (IMPORTED, IMPORTED.replace("all_gather", "all_gather, all_reduce")),
            (SHARD, "        shard = np.split(all_reduce(comm, bucket), comm.size)[comm.rank].copy()\n"),
        ],
        r"rank 0 sends 54 messages in phase 'reduce-scatter gradients'; 27 are needed and enough",
    ),
    Mutant(
        "one_name_for_all",
        "train_step: its phases",
        ("train_step_wire",),
        [('    with comm.phase("reduce-scatter gradients"):\n', '    with comm.phase("gradients"):\n')],
        r"sends in phase 'gradients'.*; what is sent here belongs into phase 'reduce-scatter gradients' or 'all-gather",
    ),
    Mutant(
        "keeps_gradients",
        "train_step: one gradient at a time is whole",
        ("train_step_memory",),
        [
            ("Array = np.ndarray\n", "Array = np.ndarray\nkept = []\n"),
            (
                "        shard = reduce_unit(comm, gradient)\n",
                "        shard = reduce_unit(comm, gradient)\n        kept.append(gradient)\n",
            ),
        ],
        r"as many as \d\d whole gradients have\. One layer's, and its bucket, are needed at a time",
    ),
    Mutant(
        "a_shard_of_parameters",
        "allocate: all parameters",
        ("allocate",),
        [(MADE, MADE.replace("start.", "start[self.piece(flat)]."))],
        r"flat.param of embedding is float\d+ \(\d+,\) where float\d+ \(\d+,\) is wanted: the unit has 125 elements",
    ),
    Mutant(
        "parameters_of_its_own",
        "allocate: from start",
        ("allocate",),
        [(MADE, MADE.replace("start.", "np.roll(start, 1)."))],
        r"flat.param of embedding is wrong first at index 0, element 0 of the unit, of .*: it is not `start`",
    ),
    Mutant(
        "stores_wide_parameters",
        "allocate: as stored",
        ("allocate", "memory_for_good"),
        [(MADE, MADE.replace("start.astype(self.precision.stored)", "start.copy()"))],
        r"flat.param of embedding is float64 \(\d+,\) where float16 \(\d+,\) is wanted",
    ),
    Mutant(
        "a_whole_gradient",
        "allocate: a shard of the gradient",
        ("allocate", "memory_for_good"),
        [("np.zeros(flat.padded // self.comm.size,", "np.zeros(flat.padded,")],
        r"flat.grad of embedding is float16 \(128,\) where float16 \(32,\) is wanted",
    ),
    Mutant(
        "a_gradient_of_ones",
        "allocate: a gradient of zeros",
        ("allocate",),
        [("np.zeros(flat.padded // self.comm.size,", "np.ones(flat.padded // self.comm.size,")],
        r"flat.grad of embedding is not zero at the start",
    ),
    Mutant(
        "keeps_start",
        "allocate: nothing else is held",
        ("memory_for_good",),
        [(MADE, MADE + "        flat.start = start[:1]\n")],
        r"holds [\d,]+ bytes of arrays before the first step; 2Ψ \+ 14Ψ/N are",
    ),
    Mutant(
        "owns_copies",
        "owned: in place",
        ("owned",),
        [("return flat.param[self.piece(flat)], flat.grad", "return flat.param[self.piece(flat)].copy(), flat.grad")],
        r"1 was added to it, and flat.param is as it was. Return a view, not a copy",
    ),
    Mutant(
        "owns_everything",
        "owned: a shard of the parameters",
        ("owned",),
        [("return flat.param[self.piece(flat)], flat.grad", "return flat.param, flat.grad")],
        r"what owned returned on rank 0 for embedding is, of flat.param, \(128,\); this rank's shard \(32,\) is wanted",
    ),
    Mutant(
        "owns_a_neighbours",
        "owned: this rank's shard",
        ("owned",),
        [("return flat.param[self.piece(flat)], flat.grad", "return flat.param[: flat.grad.size], flat.grad")],
        r"what owned returned on rank 1 for embedding is, of flat.param, not this rank's shard: 1 was added elsewhere",
    ),
    Mutant(
        "a_bucket_each_time",
        "collect: adds to a bucket that is there",
        ("collect",),
        [("        if flat.bucket is None:\n    " + BUCKET[4:], BUCKET[4:])],
        r"it is the second one's gradient alone; a tied head leaves a part in the bucket",
    ),
    Mutant(
        "a_bucket_of_float64",
        "collect: a bucket as stored",
        ("collect", "memory_backward"),
        [(BUCKET, "            flat.bucket = np.zeros(flat.padded)\n")],
        r"flat.bucket is float64 \(126,\) after a unit's backward, where float16 \(126,\) is wanted",
    ),
    Mutant(
        "a_bucket_of_ones",
        "collect: a bucket of zeros",
        ("collect",),
        [(BUCKET, BUCKET.replace("np.zeros", "np.ones"))],
        r"flat.bucket is wrong after a unit's backward: it is not the sum of what they wrote",
    ),
    Mutant(
        "reduces_nothing",
        "reduce: over the ranks",
        ("reduce",),
        [(MINE, MINE.replace("mine = ", "") + "            mine = flat.bucket[self.piece(flat)]\n")],
        r"it is this rank's own part, not summed over the ranks",
    ),
    Mutant(
        "averages_buckets",
        "reduce: the sum, for losses are weighted",
        ("reduce",),
        [("        flat.grad += mine\n", "        flat.grad += mine / self.comm.size\n")],
        r"it holds the mean; the sum is wanted, not divided by the number of ranks",
    ),
    Mutant(
        "shifts_shards",
        "reduce: element by element",
        ("reduce",),
        [("        flat.grad += mine\n", "        flat.grad += np.roll(mine, 1)\n")],
        r"rank 0's flat.grad is wrong first at index 0: it holds element 31 of the sum",
    ),
    Mutant(
        "forgets_the_first_micro_batch",
        "reduce: adds to flat.grad",
        ("accumulation",),
        [("        flat.grad += mine\n", "        flat.grad[:] = mine\n")],
        r"after two micro-batches: it is the second one's alone. Add to what is there",
    ),
    Mutant(
        "all_reduces_buckets",
        "reduce: N-1 messages of a shard",
        ("reduce_wire",),
        [
            (IMPORTED, IMPORTED.replace("all_gather", "all_gather, all_reduce")),
            (MINE, "            mine = all_reduce(self.comm, flat.bucket)[self.piece(flat)].copy()\n"),
        ],
        r"rank 0 sends 6 messages in phase 'reduce-scatter gradients'; 3 are needed and enough",
    ),
    Mutant(
        "widens_buckets",
        "reduce: sent as stored",
        ("reduce_wire",),
        [(MINE, MINE.replace("flat.bucket)", "flat.bucket.astype(np.float64)).astype(flat.bucket.dtype)"))],
        r"bytes in 3 messages; a shard as stored has \d+. Is it wider\?",
    ),
    Mutant(
        "a_phase_of_its_own",
        "reduce: in phase reduce-scatter gradients",
        ("reduce_wire",),
        [('self.comm.phase("reduce-scatter gradients")', 'self.comm.phase("bucket")')],
        r"sends in phase 'bucket'.*; what is sent here belongs into phase 'reduce-scatter gradients'",
    ),
    Mutant(
        "clears_the_bucket",
        "reduce: the bucket is given back",
        ("memory_backward",),
        [(GIVEN_BACK, "        flat.bucket.fill(0)\n")],
        r"after reduce of head, where 0 are needed. Whose gradient is still here\?",
    ),
    Mutant(
        "keeps_a_view_of_the_bucket",
        "reduce: nothing of the bucket stays",
        ("memory_backward",),
        [
            (MINE, MINE.replace("flat.bucket)", "flat.bucket, out=flat.bucket[self.piece(flat)])")),
            (GIVEN_BACK, "        flat.last = mine\n" + GIVEN_BACK),
        ],
        r"after reduce of head, where 0 are needed. Whose gradient is still here\?",
    ),
]
