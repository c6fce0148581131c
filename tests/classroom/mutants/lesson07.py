"""lessons/07_zero_1"""

from classroom.mutants.mutant import Mutant

SCATTERED = "        ring.reduce_scatter(comm, grad, shard)\n"
CLEARED = "        unit.grad[:] = 0\n"
MASTER_ADDED = "    master += change\n"
STORED = "    shard[:] = master\n"
GATHERED = "        ring.all_gather(comm, shard, param.size, param)\n"
TO_OPTIMIZER = "        gradient = shard.astype(np.float32) * np.float32(factor)\n"
FACTOR = "    factor = clip / norm if clip and norm > clip else 1.0\n"
EVERYONES = (
    "        everyones = ring.all_gather(comm, np.array([squares]), comm.size)\n"
    "    return float(np.sqrt(np.sum(everyones)))\n"
)
INTO_SHARD = "            ring.reduce_scatter(self.comm, flat.grad, flat.grad[self.piece(flat)])\n"
PIECE = "        return slice(self.comm.rank * each, (self.comm.rank + 1) * each)\n"
OWNED = "        return flat.param[self.piece(flat)], flat.grad[self.piece(flat)]\n"
SHARD_WIDENED = "            wide = flat.grad[self.piece(flat)].astype(np.float64)\n"
OF_ALL = "            everyones = ring.all_gather(self.comm, np.array([squares]), self.comm.size)\n"
ADDED_UP = "        return float(np.sum(everyones))\n"
NORM_LOOP = "        for flat in self.flats:\n" + SHARD_WIDENED
WHOLE = "                ring.all_gather(self.comm, flat.param[self.piece(flat)], flat.padded, flat.param)\n"
AFTER = '        for flat in self.flats:\n            with self.comm.phase("all-gather parameters"):\n'

MUTANTS = [
    Mutant(
        "keeps_its_own",
        "train_step: summed over the ranks",
        ("train_step",),
        [(SCATTERED, "        pass\n")],
        r"layer \d is wrong: it is that of this rank's rows alone, not summed over the ranks",
    ),
    Mutant(
        "divides_the_shard",
        "train_step: not divided",
        ("train_step",),
        [(SCATTERED, SCATTERED + "        shard /= comm.size\n")],
        r"layer \d is wrong: it is the sum divided by the number of ranks",
    ),
    Mutant(
        "loss_of_its_rows",
        "train_step: this rank's part of the loss",
        ("train_step",),
        [
            (
                "    loss = fill_gradients(units, x, y, batch)\n",
                "    loss = fill_gradients(units, x, y, batch) * comm.size\n",
            )
        ],
        r"the ranks' parts of the loss add up to [\d.]+, where it is [\d.]+",
    ),
    Mutant(
        "never_clears",
        "train_step: each step's own gradient",
        ("train_step",),
        [(CLEARED, "")],
        r"is right in the first step, but not in the second, where nothing has changed. Is unit.grad zero",
    ),
    Mutant(
        "hands_what_is_stored",
        "train_step: float32 to the optimizer",
        ("train_step",),
        [(TO_OPTIMIZER, "        gradient = shard * factor\n")],
        r"hands the optimizer float16 \(3,\) for layer 0; its shard, float32 \(3,\), is wanted",
    ),
    Mutant(
        "no_master",
        "train_step: the master copy is updated",
        ("update",),
        [(STORED, "    shard += change.astype(np.float16)\n")],
        r"rank \d's param of layer \d was changed in float16; it is the master copy, rounded",
    ),
    Mutant(
        "a_new_master",
        "train_step: the master copy in place",
        ("update",),
        [(MASTER_ADDED, "    master = master + change\n")],
        r"rank \d's master copy of layer \d is as it was. Add the change to the array itself, in place",
    ),
    Mutant(
        "never_gathers",
        "train_step: everyone's shard",
        ("update",),
        [(GATHERED, "        pass\n")],
        r"param of layer \d is wrong first at index \d+, in rank \d's shard(: it is as it was there)?",
    ),
    Mutant(
        "gathers_first",
        "train_step: the new parameters are gathered",
        ("update",),
        [(STORED, ""), (GATHERED, GATHERED + STORED)],
        r"param of layer \d is wrong first at index \d+, in rank \d's shard(: it is as it was there)?",
    ),
    Mutant(
        "its_own_norm",
        "train_step: clipped by everybody's norm",
        ("clip",),
        [(EVERYONES, "        pass\n    return float(np.sqrt(squares))\n")],
        r"and clips its own shards by their own norm. It is one number for all ranks: the norm of the whole",
    ),
    Mutant(
        "adds_up_norms",
        "train_step: squares are added up",
        ("clip",),
        [
            (
                EVERYONES,
                EVERYONES.replace("np.array([squares])", "np.sqrt(np.array([squares]))").replace(
                    "np.sqrt(np.sum(everyones))", "np.sum(everyones)"
                ),
            )
        ],
        r"it multiplies by 0\.\d+ instead of clip / norm = 0.02",
    ),
    Mutant(
        "always_clips",
        "train_step: not clipped where the norm is below the limit",
        ("clip",),
        [(FACTOR, "    factor = clip / norm\n")],
        r"changes a gradient that is shorter than the limit, or whose limit is 0: none",
    ),
    Mutant(
        "never_clips",
        "train_step: clipped where it is above",
        ("clip",),
        [(FACTOR, "    factor = 1.0\n")],
        r"is to clip a gradient of norm [\d.e+-]+ to [\d.e+-]+: it does not",
    ),
    Mutant(
        "returns_the_square",
        "train_step: the norm is returned",
        ("clip",),
        [("    return loss, norm\n", "    return loss, norm**2\n")],
        r"returned the norm [\d.e+-]+, where it is [\d.e+-]+: it is its square: take the root",
    ),
    Mutant(
        "returns_what_is_left",
        "train_step: the norm before clipping",
        ("clip",),
        [("    return loss, norm\n", "    return loss, norm * factor\n")],
        r"it is what is left after clipping; the norm before that is wanted",
    ),
    Mutant(
        "all_reduces_layers",
        "train_step: a reduce-scatter",
        ("train_step_wire",),
        [(SCATTERED, "        ring.all_reduce(comm, grad, grad)\n")],
        r"rank \d sends \d+ bytes in phase 'reduce-scatter gradients'; \d+ are enough",
    ),
    Mutant(
        "gathers_masters",
        "train_step: parameters are sent as they are stored",
        ("train_step_wire",),
        [(GATHERED, "        param[:] = ring.all_gather(comm, master, param.size)\n")],
        r"rank \d sends \d+ bytes in phase 'all-gather parameters'; \d+ are enough",
    ),
    Mutant(
        "one_phase_for_layers",
        "train_step: a phase for each",
        ("train_step_wire",),
        [('    with comm.phase("norm"):\n', '    with comm.phase("gradients"):\n')],
        r"in phase 'gradients'; what is sent here belongs into phase 'reduce-scatter gradients' or",
    ),
    Mutant(
        "a_norm_for_each_layer",
        "train_step: one number for the norm",
        ("train_step_wire",),
        [
            (
                "    norm = norm_of(comm, shards)\n",
                "    norm = float(np.sqrt(sum(norm_of(comm, [s]) ** 2 for s in shards)))\n",
            ),
        ],
        r"in 9 messages for the norm; 6 are enough: one number for all Flats",
    ),
    Mutant(
        "every_nth",
        "piece: in one piece",
        ("piece",),
        [(PIECE, "        return slice(self.comm.rank, None, self.comm.size)\n")],
        r"Of \w+ on \d ranks, rank \d's piece is \d+:\d+:4, where \d+:\d+ is wanted",
    ),
    Mutant(
        "without_padding",
        "piece: of the padded Flat",
        ("piece",),
        [("        each = flat.padded // self.comm.size\n", "        each = flat.size // self.comm.size\n")],
        r"rank \d's piece is \d+:\d+, where \d+:\d+ is wanted: of \d+ elements, \d+ with padding, each of",
    ),
    Mutant(
        "of_the_next",
        "piece: the rank-th",
        ("piece",),
        [
            (
                PIECE,
                PIECE.replace("self.comm.rank *", "(self.comm.rank - 1) % self.comm.size *").replace(
                    "(self.comm.rank + 1)", "((self.comm.rank - 1) % self.comm.size + 1)"
                ),
            )
        ],
        r"rank 0's piece is \d+:\d+, where 0:\d+ is wanted",
    ),
    Mutant(
        "owns_copies",
        "owned: views",
        ("owned",),
        [(OWNED, OWNED.replace("\n", "").replace("(flat)]", "(flat)].copy()") + "\n")],
        r"its flat.param has become 1 more nowhere: return a view, not a copy",
    ),
    Mutant(
        "owns_everything",
        "owned: of the shard",
        ("owned",),
        [(OWNED, "        return flat.param, flat.grad\n")],
        r"(?s)its flat.param has become 1 more at \d+ places of it. It should be at \d+:\d+|could not broadcast",
    ),
    Mutant(
        "owns_parameters_alone",
        "owned: both",
        ("owned",),
        [(OWNED, "        return flat.param[self.piece(flat)]\n")],
        r"owned returned ndarray where two arrays are wanted: parameters, gradient",
    ),
    Mutant(
        "forgets_the_sum",
        "reduce: in flat.grad itself",
        ("reduce",),
        [(INTO_SHARD, INTO_SHARD.replace(", flat.grad[self.piece(flat)])", ")"))],
        r"rank \d's flat.grad of \w+ is wrong first at index \d+, in this rank's shard \d+:\d+: it is as it was",
    ),
    Mutant(
        "replaces_the_gradient",
        "reduce: flat.grad stays whole",
        ("reduce",),
        [(INTO_SHARD, INTO_SHARD.replace("ring.", "flat.grad = ring.").replace(", flat.grad[self.piece(flat)])", ")"))],
        r"rank \d's flat.grad of \w+ is float64 \(\d+,\); it stays an array \(\d+,\)",
    ),
    Mutant(
        "divides",
        "reduce: the sum",
        ("reduce",),
        [(INTO_SHARD, INTO_SHARD + "        flat.grad /= self.comm.size\n")],
        r"it holds the mean; the sum is wanted, not divided by the number of ranks",
    ),
    Mutant(
        "at_the_beginning",
        "reduce: in the rank's own shard",
        ("reduce",),
        [
            (
                INTO_SHARD,
                INTO_SHARD.replace("flat.grad[self.piece(flat)])", "flat.grad[: flat.padded // self.comm.size])"),
            )
        ],
        r"rank [1-3]'s flat.grad of \w+ is wrong first at index \d+, in this rank's shard",
    ),
    Mutant(
        "norm_of_its_own",
        "squared_norm: over all ranks",
        ("squared_norm",),
        [(OF_ALL, "            pass\n"), (ADDED_UP, "        return squares\n")],
        r"rank \d's squared_norm is [\d.e+-]+, where it is [\d.e+-]+: it is the sum of this rank's own shards",
    ),
    Mutant(
        "norm_of_everything",
        "squared_norm: of shards alone",
        ("squared_norm",),
        [(NORM_LOOP, NORM_LOOP.replace("[self.piece(flat)]", ""))],
        r"everybody's flat.grad is in it; of each rank the shard alone holds a sum",
    ),
    Mutant(
        "takes_the_root",
        "squared_norm: the square",
        ("squared_norm",),
        [(ADDED_UP, "        return float(np.sqrt(np.sum(everyones)))\n")],
        r"it is the norm; the square of it is wanted",
    ),
    Mutant(
        "squares_as_stored",
        "squared_norm: in float64",
        ("squared_norm",),
        [(SHARD_WIDENED, SHARD_WIDENED.replace(".astype(np.float64)", ""))],
        r"gradients of several hundred in float16: rank \d's squared_norm is inf, where it is",
    ),
    Mutant(
        "in_its_own_order",
        "squared_norm: the same to the last bit",
        ("squared_norm",),
        [(ADDED_UP, "        return float(sum(np.roll(everyones, -self.comm.rank)))\n")],
        r"rank [1-3]'s squared_norm is [\d.]+, and rank 0's [\d.]+: they must be the same to the last bit",
    ),
    Mutant(
        "overlooks_infinity",
        "squared_norm: not finite on any rank",
        ("squared_norm",),
        [(OF_ALL, "            squares = float(np.nan_to_num(squares, posinf=0.0))\n" + OF_ALL)],
        r"rank \d's squared_norm is [\d.e+-]+. It must not be finite, or this rank does not skip the step",
    ),
    Mutant(
        "counts_a_tied_head_twice",
        "squared_norm: every Flat once",
        ("squared_norm",),
        [(NORM_LOOP, NORM_LOOP.replace("in self.flats", "in [flat for unit in self.units for flat in unit.reads]"))],
        r"On 3 ranks, squared_norm, a tied head: rank \d's squared_norm is",
    ),
    Mutant(
        "puts_nothing_together",
        "after_update: everyone's shard",
        ("after_update",),
        [(WHOLE, WHOLE.replace(", flat.param)", ")"))],
        r"rank \d's flat.param of \w+ is wrong first at index \d+, in rank \d's shard: there it is as it was",
    ),
    Mutant(
        "in_a_new_array",
        "after_update: in place",
        ("after_update",),
        [(WHOLE, WHOLE.replace("ring.", "flat.param = ring.").replace(", flat.param)", ")"))],
        r"rank \d's flat.param of \w+ is another array now. Put the shards together in the array itself",
    ),
    Mutant(
        "the_first_alone",
        "after_update: every Flat",
        ("after_update",),
        [(AFTER, AFTER.replace("in self.flats", "in self.flats[:1]"))],
        r"rank \d's flat.param of block0 is wrong first at index \d+",
    ),
    Mutant(
        "gathers_a_tied_matrix_twice",
        "after_update: every Flat once",
        ("wire",),
        [(AFTER, AFTER.replace("in self.flats", "in [flat for unit in self.units for flat in unit.reads]"))],
        r"a tied head: rank \d sends [\d,]+ bytes in phase 'all-gather parameters'; [\d,]+ are enough",
    ),
    Mutant(
        "all_reduces",
        "reduce: a reduce-scatter",
        ("wire",),
        [(INTO_SHARD, "            ring.all_reduce(self.comm, flat.grad, flat.grad)\n")],
        r"rank \d sends [\d,]+ bytes in phase 'reduce-scatter gradients'; [\d,]+ are enough",
    ),
    Mutant(
        "outside_of_phases",
        "after_update: in its phase",
        ("wire",),
        [(AFTER, AFTER.replace('self.comm.phase("all-gather parameters")', 'self.comm.phase("main")'))],
        r"outside of every comm.phase; what is sent here belongs into phase 'all-gather parameters'",
    ),
    Mutant(
        "all_send_first",
        "a send may wait",
        ("messages",),
        [
            (
                OF_ALL,
                "            right = (self.comm.rank + 1) % self.comm.size\n"
                "            left = (self.comm.rank - 1) % self.comm.size\n"
                "            everyones = np.full(self.comm.size, squares)\n"
                "            for step in range(1, self.comm.size):\n"
                "                self.comm.send(everyones[step - 1 : step].copy(), right)\n"
                "                self.comm.recv(everyones[step : step + 1], left)\n"
                "            everyones = np.roll(everyones[::-1], self.comm.rank + 1)\n",
            )
        ],
        r"(?s)On 4 ranks, squared_norm: hung.*A cycle of waits",
    ),
]
