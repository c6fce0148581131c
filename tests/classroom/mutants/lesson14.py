"""lessons/14_three_axes"""

from classroom.mutants.mutant import Mutant

STATES = "    states = (2 + 2) * psi + 12 * psi / d\n"
COUNTED = "        counted = piece.cut or tensor.rank == 0\n"
COPY = "        if piece.tied and pipeline.rank > 0:\n            counted = False\n"
AROUND = "    for comm in (tensor, pipeline):\n"
OVER_DATA = "        piece.grad[:] = all_reduce(data, piece.grad)\n"
OVER_ENDS = "        if piece.tied:\n            piece.grad[:] = all_reduce(ends, piece.grad)\n"
TWO_LEVELS = "    shard = reduce_scatter(host, gradient)\n    return all_reduce(across, shard)\n"

MUTANTS = [
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
