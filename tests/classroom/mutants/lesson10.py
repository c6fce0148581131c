"""lessons/10_activations"""

from classroom.mutants.mutant import Mutant

SEGMENTS = (
    "    for first in range(0, len(layers), k):\n        inputs.append(x)\n"
    "        for layer in layers[first : first + k]:\n            x, _ = layer.forward(x)\n            del _\n"
)
WAYBACK = "    while waiting:\n        layer, kept = waiting.pop()\n"
ALL = "    while inputs:\n        first = (len(inputs) - 1) * k\n"
ONE = "        dy = run_segment(layers[first : first + k], inputs.pop(), dy)\n"
SEED = "    seed = [*key, *name.encode()]\n"
MASK = "    random = np.random.default_rng(seed)\n    return random.random(shape) >= p\n"
BEST = "        segments = (n + k - 1) // k\n        held = segments * given + k * layer\n"
PART = "    return flat[mine].copy()\n"

MUTANTS = [
    Mutant(
        "keeps_outputs",
        "run_forward: the input of each segment",
        ("run_forward",),
        [
            ("        inputs.append(x)\n        for", "        for"),
            ("            del _\n", "            del _\n        inputs.append(x)\n"),
        ],
        r"inputs\[0\] is not the input of layer 0. It is what layer 1 makes",
    ),
    Mutant(
        "returns_the_last_input",
        "run_forward: y",
        ("run_forward",),
        [("    return x, inputs\n", "    return inputs[-1], inputs\n")],
        r"y is not what the last layer makes",
    ),
    Mutant(
        "whole_segments_alone",
        "run_forward: a shorter segment at the end",
        ("run_forward_short",),
        [
            (
                "        inputs.append(x)\n        for",
                "        if first + k <= len(layers):\n            inputs.append(x)\n        for",
            )
        ],
        r"of 5 layers, k = 2: there are 2 inputs, where those of the layers 0, 2, 4 are wanted",
    ),
    Mutant(
        "keeps_every_tape",
        "run_forward: not what layers keep",
        ("run_forward_memory",),
        [
            ("    inputs = []\n", "    inputs, tapes = [], []\n"),
            ("            del _\n", "            tapes.append(_)\n"),
        ],
        r"when layer 2 has run, what 3 layers keep is still held. Of what forward returns take y alone",
    ),
    Mutant(
        "keeps_every_value",
        "run_forward: no input in between",
        ("run_forward_memory",),
        [
            ("    inputs = []\n", "    values = [x]\n"),
            ("        inputs.append(x)\n", ""),
            ("            del _\n", "            values.append(x)\n"),
            ("    return x, inputs\n", "    return x, values[:-1:k]\n"),
        ],
        r"arrays that layers have made are held: more than the inputs of segments",
    ),
    Mutant(
        "backward_in_order",
        "run_segment: the last layer first",
        ("run_segment",),
        [
            ("waiting.pop()", "waiting.pop(0)"),
            ("    del kept\n    while", "    waiting.reverse()\n    waiting.reverse()\n    del kept\n    while"),
        ],
        r"run_segment of 2 layers: the gradient of x is wrong",
    ),
    Mutant(
        "kept_of_its_neighbour",
        "run_segment: with what its own forward kept",
        ("run_segment",),
        [("waiting.append((layer, kept))", "waiting.append((layer, waiting[-1][1] if waiting else kept))")],
        r"run_segment of 2 layers: the gradient of x is wrong: .* by moving it up and down it is",
    ),
    Mutant(
        "from_the_start_each_time",
        "run_segment: each forward once",
        ("run_segment_calls",),
        [
            (
                WAYBACK,
                "    inputs, x = len(waiting), start\n    waiting = list(layers)\n    while waiting:\n"
                "        x = start\n        for layer in waiting:\n            x, kept = layer.forward(x)\n"
                "        waiting.pop()\n",
            ),
            ("    waiting = []\n", "    waiting, start = [], x\n"),
        ],
        r"run_segment of 2 layers: 5 forwards were run; each layer's once makes 2",
    ),
    Mutant(
        "forgets_at_the_end",
        "run_segment: what has been used is gone",
        ("run_segment_memory",),
        [(WAYBACK, "    for layer, kept in reversed(waiting):\n")],
        r"when layer 3's backward begins, what 6 layers keep is held; 2 have been used",
    ),
    Mutant(
        "first_segment_first",
        "run_backward: the last segment first",
        ("run_backward",),
        [
            (ALL, "    count = len(inputs)\n    while inputs:\n        first = (count - len(inputs)) * k\n"),
            (ONE, ONE.replace("pop()", "pop(0)")),
        ],
        r"run_backward of 4 layers, k = 2: the gradient of x is wrong",
    ),
    Mutant(
        "counts_from_the_end",
        "run_backward: where a shorter segment is",
        ("run_backward_short",),
        [
            (ALL, "    end = len(layers)\n    while inputs:\n        end -= k\n        first = max(end, 0)\n"),
            (ONE, ONE.replace("first + k", "end + k")),
        ],
        r"run_backward of 5 layers, k = 2",
    ),
    Mutant(
        "leaves_inputs",
        "run_backward: takes inputs out of the list",
        ("run_backward_memory",),
        [
            (ALL, "    for number in reversed(range(len(inputs))):\n        first = number * k\n"),
            (ONE, ONE.replace("inputs.pop()", "inputs[number]")),
        ],
        r"when layer \d's backward begins, 5 inputs are held; 2 of 5 segments are done with",
    ),
    Mutant(
        "one_stream",
        "mask: the same again",
        ("mask_again",),
        [
            (
                MASK,
                "    drawn.append(len(drawn))\n    random = np.random.default_rng([*seed, *drawn])\n"
                "    return random.random(shape) >= p\n",
            ),
            ("def mask(", "drawn: list[int] = []\n\n\ndef mask("),
        ],
        r"the second time it is another mask, for the same key and name",
    ),
    Mutant(
        "one_for_all_layers",
        "mask: another one for another name",
        ("mask_differs",),
        [(SEED, "    seed = list(key)\n")],
        r"for another name it is the same mask",
    ),
    Mutant(
        "adds_up_the_key",
        "mask: another one for another key",
        ("mask_differs",),
        [(SEED, "    seed = [sum(key), *name.encode()]\n")],
        r"for seed and step exchanged it is the same mask",
    ),
    Mutant(
        "turned_around",
        "mask: false with probability p",
        ("mask_share",),
        [("random.random(shape) >= p", "random.random(shape) < p")],
        r"90.\d% of it is false, with p = 0.1. Is it turned around",
    ),
    Mutant(
        "ready_to_multiply",
        "mask: bool",
        ("mask_share",),
        [("random.random(shape) >= p", "(random.random(shape) >= p) / (1 - p)")],
        r"the mask has the dtype float64; bool is wanted, one byte an element",
    ),
    Mutant(
        "whole_rows",
        "mask: each element for itself",
        ("mask_share",),
        [("random.random(shape) >= p", "np.broadcast_to(random.random(shape[-1]) >= p, shape)")],
        r"% of it is false|rows or columns are equal",
    ),
    Mutant(
        "seeds_everybody",
        "mask: leaves NumPy's own generator alone",
        ("mask_alone",),
        [
            (
                MASK,
                "    np.random.seed(abs(int(np.random.default_rng(seed).integers(1 << 31))))\n"
                "    return np.random.random(shape) >= p\n",
            )
        ],
        r"NumPy's own generator is not as it was",
    ),
    Mutant(
        "square_root",
        "best_interval: layers of any size",
        ("best_interval_bytes",),
        [(BEST, "        held = abs(k * k - n)\n"), ("best, least = 1, n * given + layer", "best, least = 1, n - 1")],
        r"On best_interval\(24, 2, 8\): with k = 5, 50 bytes are held; with k = 2 it is 40",
    ),
    Mutant(
        "rounds_down",
        "best_interval: a shorter segment has an input, too",
        ("best_interval",),
        [
            (
                BEST,
                "        segments = n // k if given == layer else -(-n // k)\n"
                "        held = segments * given + k * layer\n",
            )
        ],
        r"On best_interval\(\d+, 1, 1\): with k = \d+, \d+ bytes are held",
    ),
    Mutant(
        "cuts_rows",
        "cut: chunks of all elements",
        ("cut",),
        [
            (
                "    mine = chunk(flat.size, comm.size, comm.rank)\n",
                "    mine = chunk(flat.size, comm.size, comm.size - 1 - comm.rank)\n",
            )
        ],
        r"cut of \(2, 3, 4\), 2 ranks: rank 0's part is not chunk 0 of x's elements",
    ),
    Mutant(
        "a_view",
        "cut: memory of its own",
        ("cut_own",),
        [(PART, "    return flat[mine]\n")],
        r"rank 0's part of 24 bytes is a view of 96 bytes. As long as it is there, all of them are: make a copy",
    ),
    Mutant(
        "flat_and_whole",
        "whole: in x's shape",
        ("whole",),
        [("    return flat.reshape(shape)\n", "    return flat\n")],
        r"x on rank 0 has the shape \(24,\); \(2, 3, 4\) is wanted",
    ),
    Mutant(
        "sums_with_zeros",
        "whole: sends each part once",
        ("whole_sent",),
        [
            (
                "    flat = ring.all_gather(comm, part, size)\n",
                "    flat = np.zeros(size, part.dtype)\n    flat[chunk(size, comm.size, comm.rank)] = part\n"
                "    flat = ring.all_reduce(comm, flat)\n",
            )
        ],
        r"whole of \(4, 6\), 2 ranks: rank 0 sends 96 bytes; around a ring it is 48",
    ),
]
