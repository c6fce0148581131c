"""lessons/12_tensor_parallel"""

from classroom.mutants.mutant import Mutant

SECTION = "        start = first + rank * each\n"
DX = "    dx = dy @ w.T\n    dx = all_reduce(comm, dx)\n"
COLUMN = DX + '    dw = np.einsum("bti,bto->io", x, dy)\n    dbias = dy.sum(axis=(0, 1))\n'
TOTAL = "    y = all_reduce(comm, y)\n    return y + bias\n"
ROW = '    dx = dy @ w.T\n    dw = np.einsum("bti,bto->io", x, dy)\n    dbias = dy.sum(axis=(0, 1))\n'
SEEDED = "    random = np.random.default_rng([len(key), *key])\n"
PIECE = "    mine = whole[piece * shape[0] : (piece + 1) * shape[0]]\n"
LARGEST = "    largest = all_reduce(comm, logits.max(axis=1), np.maximum)\n"
LOSS = "    loss = np.log(total) - of_target\n    return float(loss.mean()), prob / total[:, None]\n"
SHARD = "    shard = ring.reduce_scatter(comm, turned.reshape(-1))\n"

MUTANTS = [
    Mutant(
        "every_fourth_column",
        "column_part: columns that lie beside one another",
        ("column_part",),
        [
            (SECTION, SECTION.replace("rank * each", "rank")),
            ("w[:, start : start + each]", "w[:, start : first + size : t]"),
        ],
        r"rank 0's part is wrong: .* These are columns rank, rank \+ t",
    ),
    Mutant(
        "the_next_rank",
        "column_part: this rank's, in order",
        ("column_part",),
        [(SECTION, "        start = first + (rank + 1) % t * each\n")],
        r"rank 0's part is wrong: \[0, 0\] is .* These are another rank's\.",
    ),
    Mutant(
        "a_view_of_w",
        "column_part: a copy",
        ("column_part",),
        [("    return np.hstack(parts)\n", "    return parts[0] if len(parts) == 1 else np.hstack(parts)\n")],
        r"the part is a view of w\. As long as it is there, all of w is",
    ),
    Mutant(
        "equal_blocks",
        "column_part: of each section",
        ("column_part_sections",),
        [("    for size in sections:\n", "    for size in [sum(sections)]:\n")],
        r"It is a part of all columns together: rank 0 has of Q alone then",
    ),
    Mutant(
        "forgets_the_bias",
        "column_forward: with its bias",
        ("column_forward",),
        [("    y = x @ w\n    return y + bias\n", "    y = x @ w\n    return y\n")],
        r"rank 0's y is wrong: .* Where is the bias\?",
    ),
    Mutant(
        "gathers_its_columns",
        "column_forward: its own columns alone",
        ("column_forward",),
        [
            (
                "    y = x @ w\n    return y + bias\n",
                "    y = (x @ w + bias).transpose(2, 0, 1)\n"
                "    whole = ring.all_gather(comm, y.reshape(-1), y.size * comm.size)\n"
                "    return whole.reshape(-1, *y.shape[1:]).transpose(1, 2, 0)\n",
            )
        ],
        r"column_forward, 2 ranks: rank 0's y has the shape \(2, 3, 4\); \(2, 3, 2\) is wanted",
    ),
    Mutant(
        "writes_into_x",
        "column_forward: what comes in does not change",
        ("column_forward",),
        [("    y = x @ w\n    return y + bias\n", "    y = x @ w + bias\n    x += 1\n    return y\n")],
        r"column_forward, 1 rank: x was changed",
    ),
    Mutant(
        "own_dx",
        "column_backward: dx of all ranks",
        ("column_backward",),
        [(COLUMN, COLUMN.replace("    dx = all_reduce(comm, dx)\n", ""))],
        r"rank 0's dx is wrong: .* It is what this rank's columns alone have made of x\.",
    ),
    Mutant(
        "mean_dx",
        "column_backward: the sum, not the mean",
        ("column_backward",),
        [(COLUMN, COLUMN.replace("all_reduce(comm, dx)", "all_reduce(comm, dx) / comm.size"))],
        r"rank 0's dx is wrong: .* It is divided by the number of ranks\.",
    ),
    Mutant(
        "sums_dw",
        "column_backward: dw of its own",
        ("column_backward_own",),
        [(COLUMN, COLUMN.replace("y)\n    db", "y)\n    dw = all_reduce(comm, dw)\n    db"))],
        r"rank 0's dw is wrong: .* It is summed over the ranks",
    ),
    Mutant(
        "mean_over_positions",
        "column_backward: dbias, the sum over positions",
        ("column_backward_own",),
        [(COLUMN, COLUMN.replace("dy.sum(", "dy.mean("))],
        r"column_backward, 1 rank: rank 0's dbias is wrong",
    ),
    Mutant(
        "no_g",
        "row_forward: the sum",
        ("row_forward",),
        [(TOTAL, "    return y + bias\n")],
        r"rank 0's y is wrong: .* It is this rank's part of the sum\.",
    ),
    Mutant(
        "averages",
        "row_forward: not the mean",
        ("row_forward",),
        [(TOTAL, "    y = all_reduce(comm, y) / comm.size\n    return y + bias\n")],
        r"rank 0's y is wrong: .* It is divided by the number of ranks\.",
    ),
    Mutant(
        "bias_before_the_sum",
        "row_forward: the bias once",
        ("row_forward_bias",),
        [(TOTAL, "    y = all_reduce(comm, y + bias)\n    return y\n")],
        r"the bias belongs into rank 0's y once; it is 2 times in it",
    ),
    Mutant(
        "bias_of_rank_0",
        "row_forward: on every rank",
        ("row_forward_bias",),
        [(TOTAL, "    y = all_reduce(comm, y)\n    return y + bias if comm.rank == 0 else y\n")],
        r"the bias belongs into rank 1's y once; it is 0 times in it",
    ),
    Mutant(
        "sums_dx_again",
        "row_backward: dx of its own",
        ("row_backward",),
        [(ROW + "    return dx", ROW + "    dx = all_reduce(comm, dx)\n    return dx")],
        r"row_backward, 2 ranks: rank 0's dx is wrong: .* dy is whole on each of them already",
    ),
    Mutant(
        "sums_dbias",
        "row_backward: dbias is whole already",
        ("row_backward_bias",),
        [(ROW + "    return dx", ROW + "    dbias = all_reduce(comm, dbias)\n    return dx")],
        r"rank 0's dbias is wrong: .* It is 2 times what it should be",
    ),
    Mutant(
        "sums_twice",
        "f and g: one all-reduce each",
        ("wire",),
        [(TOTAL, "    y = all_reduce(comm, y)\n    all_reduce(comm, y)\n    return y + bias\n")],
        r"row_forward, 2 ranks: rank 0 sends 384 bytes; around a ring it is 192",
    ),
    Mutant(
        "sends_for_nothing",
        "the others: nothing",
        ("wire",),
        [(ROW + "    return dx", ROW + "    all_reduce(comm, dbias)\n    return dx")],
        r"row_backward, 2 ranks: rank 0 sends \d+ bytes; nothing need be sent",
    ),
    Mutant(
        "drawn_anew",
        "dropout_mask: the same for the same key",
        ("dropout_mask",),
        [(SEEDED, "    random = np.random.default_rng()\n")],
        r"asked a second time with the same key, it is another mask",
    ),
    Mutant(
        "one_seed_for_all_steps",
        "dropout_mask: another one for another key",
        ("dropout_mask",),
        [(SEEDED, "    random = np.random.default_rng(key[0])\n")],
        r"with another key it is the same mask",
    ),
    Mutant(
        "turned_around",
        "dropout_mask: false with probability p",
        ("dropout_mask",),
        [("    return mine >= p\n", "    return mine < p\n")],
        r"dropout_mask, p = 0\.3: \d\d\.\d% of it is false",
    ),
    Mutant(
        "same_for_all_ranks",
        "dropout_mask: another one for other heads",
        ("dropout_mask_parts",),
        [(PIECE, "    mine = whole[: shape[0]]\n")],
        r"pieces 0 and 1 are equal\. They are of different heads, on different ranks",
    ),
    Mutant(
        "seeded_by_rank",
        "dropout_mask: the pieces of one mask",
        ("dropout_mask_parts",),
        [
            (SEEDED, "    random = np.random.default_rng([*key, piece])\n"),
            ("random.random((pieces * shape[0], *shape[1:]))", "random.random(shape)"),
            (PIECE, "    mine = whole\n"),
        ],
        r"behind one another they are not the mask of \(8, 6, 6\) for the same key",
    ),
    Mutant(
        "own_softmax",
        "loss_forward: of all entries",
        ("loss_forward",),
        [("    total = all_reduce(comm, prob.sum(axis=1))\n", "    total = prob.sum(axis=1)\n")],
        r"rank 0's prob is wrong: .* It is a softmax over this rank's columns alone",
    ),
    Mutant(
        "own_largest",
        "loss_forward: one largest for all ranks",
        ("loss_forward",),
        [(LARGEST, "    largest = logits.max(axis=1)\n")],
        r"loss_forward, 2 ranks, V = 6, .* rank 0's prob is wrong",
    ),
    Mutant(
        "target_of_its_own",
        "loss_forward: the target's logit, from whoever has it",
        ("loss_forward",),
        [
            (
                "    of_target = all_reduce(comm, (logits * hot(comm, logits, targets)).sum(axis=1))\n",
                "    of_target = (logits * hot(comm, logits, targets)).sum(axis=1)\n",
            )
        ],
        r"loss_forward, 2 ranks, .*rank 0's loss is [\d.]+; [\d.]+ is wanted",
    ),
    Mutant(
        "sum_of_losses",
        "loss_forward: the mean",
        ("loss_forward",),
        [(LOSS, LOSS.replace("loss.mean()", "loss.sum()"))],
        r"rank 0's loss is [\d.]+; [\d.]+ is wanted\. It is the sum over the positions",
    ),
    Mutant(
        "overflows",
        "loss_forward: large logits",
        ("loss_large",),
        [(LARGEST, "    largest = all_reduce(comm, np.zeros(len(logits)), np.maximum)\n")],
        r"2000 added to all logits: rank 0's loss is \w+, and without it",
    ),
    Mutant(
        "gathers_logits",
        "loss_forward: not the logits",
        ("loss_wire",),
        [(LARGEST, LARGEST + "    ring.all_gather(comm, logits.reshape(-1), logits.size * comm.size)\n")],
        r"loss_forward, 2 ranks, V = 16, .*rank 0 sends \d+ bytes; around a ring it is 288",
    ),
    Mutant(
        "not_divided",
        "loss_backward: of the mean",
        ("loss_backward",),
        [("    return dlogits / len(targets)\n", "    return dlogits\n")],
        r"rank 0's slope is wrong: .* Divide by the number of positions: the loss is a mean",
    ),
    Mutant(
        "sums_slopes",
        "loss_backward: its own",
        ("loss_backward",),
        [("    return dlogits / len(targets)\n", "    return all_reduce(comm, dlogits) / len(targets)\n")],
        r"loss_backward, 2 ranks, V = 6: rank 0's slope is wrong",
    ),
    Mutant(
        "cuts_the_batch",
        "scatter_sum: positions are the second axis",
        ("scatter_sum",),
        [
            (
                "    turned = np.swapaxes(y, 0, 1).copy()\n" + SHARD,
                SHARD.replace("turned", "y") + "    return shard.reshape(y.shape[0], -1, y.shape[2])\n",
            ),
            ("    shard = shard.reshape(-1, y.shape[0], y.shape[2])\n", ""),
            ("    return np.swapaxes(shard, 0, 1).copy()\n", ""),
        ],
        r"rank 0's part is wrong: .* It is cut through the sequences: their positions are the second axis",
    ),
    Mutant(
        "cuts_an_all_reduce",
        "scatter_sum: half an all-reduce",
        ("scatter_sum",),
        [
            (
                SHARD,
                "    turned = all_reduce(comm, turned)\n    shard = np.split(turned, comm.size)[comm.rank]\n",
            )
        ],
        r"scatter_sum, \d ranks: rank 0 sends \d+ bytes; around a ring it is \d+",
    ),
    Mutant(
        "behind_one_another",
        "gather_whole: positions in their places",
        ("gather_whole",),
        [
            (
                "    turned = np.swapaxes(x, 0, 1).copy()\n    whole = ring.all_gather(comm, turned",
                "    whole = ring.all_gather(comm, x",
            ),
            ("    whole = whole.reshape(-1, x.shape[0], x.shape[2])\n", ""),
            ("    return np.swapaxes(whole, 0, 1).copy()\n", "    return whole.reshape(len(x), -1, x.shape[2])\n"),
        ],
        r"The ranks' parts lie behind one another in memory; positions are the second axis",
    ),
]
