"""lessons/06_mixed_precision"""

from classroom.mutants.mutant import Mutant

SCALED = "    scaled = gradient * np.float32(scale)\n    return scaled.astype(np.float16)\n"
WIDE = "    wide = stored.astype(np.float32)\n    return wide / np.float32(scale)\n"
ADDED = "    master += change\n    param[:] = master\n"
SQUARES = "        wide = piece.grad.astype(np.float64)\n        total += wide @ wide\n"
SUMMED = "    total = all_reduce(comm, total)\n"
ROOTED = "    return math.sqrt(total[0]) / scale\n"
FORGIVEN = "    if overflow and state.forgiven > 0:\n"
AT_THE_MINIMUM = (
    "        if state.scale == minimum:\n"
    '            raise OverflowError("the gradients are not finite for another reason")\n'
)
HALVED = "        return state._replace(scale=max(state.scale / 2, minimum), clean=0)\n"
DOUBLED = (
    "    if state.clean > 0 and state.clean % window == 0:\n"
    "        state = state._replace(scale=state.scale * 2, forgiven=hysteresis - 1)\n"
)
CLIPPED = "        if clip > 0 and norm > clip:\n            factor = clip / norm\n"
UNSCALED = "            gradient = widen(piece.grad, state.scale)\n"
EMPTIED = "    for piece in pieces:\n        piece.grad[:] = 0\n"

MUTANTS = [
    Mutant(
        "rounds_first",
        "narrow: multiply, then round",
        ("narrow",),
        [(SCALED, "    return gradient.astype(np.float16) * np.float16(scale)\n")],
        r"It was zero before it was multiplied|multiply in float32",
    ),
    Mutant(
        "scale_in_float16",
        "narrow: the scale may be larger than float16's largest",
        ("narrow",),
        [("np.float32(scale)\n    return scaled", "np.float16(scale)\n    return scaled")],
        r"scale 131072: \[0\] is -?inf.*The scale 131072 itself is no float16 number",
    ),
    Mutant(
        "narrows_to_float32",
        "narrow: float16",
        ("narrow",),
        [("    return scaled.astype(np.float16)\n", "    return scaled\n")],
        r"it is float32; float16 is wanted",
    ),
    Mutant(
        "narrows_in_place",
        "narrow: a new array",
        ("narrow",),
        [("    scaled = gradient * np.float32(scale)\n", "    gradient *= np.float32(scale)\n    scaled = gradient\n")],
        r"the gradient that it was handed was changed",
    ),
    Mutant(
        "divides_in_float16",
        "widen: float32 before it is divided",
        ("widen",),
        [(WIDE, "    return (stored / np.float16(scale)).astype(np.float32)\n")],
        r"It was divided as float16, and rounded once more",
    ),
    Mutant(
        "stays_narrow",
        "widen: float32",
        ("widen",),
        [("    return wide / np.float32(scale)\n", "    return (wide / np.float32(scale)).astype(np.float16)\n")],
        r"it is float16; float32 is wanted",
    ),
    Mutant(
        "widens_with_the_scale",
        "widen: without the scale",
        ("widen",),
        [("    return wide / np.float32(scale)\n", "    return wide\n")],
        r"That is with the scale",
    ),
    Mutant(
        "master_from_the_parameters",
        "update: small changes add up in the master copy",
        ("update_master",),
        [(ADDED, "    master[:] = param + change\n    param[:] = master\n    master[:] = param\n")],
        r"the master copy is .* (was it rounded to float16 on the way\?|what is added to what\?)",
    ),
    Mutant(
        "takes_the_change_away",
        "update: the change is added",
        ("update_master",),
        [(ADDED, ADDED.replace("+=", "-="))],
        r"The change is to be added",
    ),
    Mutant(
        "a_new_master",
        "update: the master copy in place",
        ("update_master", "update_param"),
        [(ADDED, "    master = master + change\n    param[:] = master\n")],
        r"Nothing has changed in it\. Work in place",
    ),
    Mutant(
        "adds_to_both",
        "update: the parameters are the master copy, rounded",
        ("update_param",),
        [(ADDED, "    master += change\n    param += change.astype(np.float16)\n")],
        r"where the master copy is .*, rounded .* Which of the two is the change added to\?",
    ),
    Mutant(
        "a_new_param",
        "update: the parameters in place",
        ("update_param",),
        [(ADDED, "    master += change\n    param = master.astype(np.float16)\n")],
        r"the parameters are as they were\. Write into the array that is there",
    ),
    Mutant(
        "without_a_root",
        "gradient_norm: the root",
        ("norm",),
        [(ROOTED, "    return total[0] / scale\n")],
        r"That is the sum of squares: the root is missing",
    ),
    Mutant(
        "a_mean_over_ranks",
        "gradient_norm: a sum over the ranks",
        ("norm",),
        [(ROOTED, "    return math.sqrt(total[0] / comm.size) / scale\n")],
        r"That is a mean over the ranks: sum",
    ),
    Mutant(
        "first_piece_alone",
        "gradient_norm: of all pieces",
        ("norm",),
        [("    for piece in pieces:\n        wide", "    for piece in pieces[:1]:\n        wide")],
        r"rank 0 returned [\d.]+; [\d.]+ is wanted",
    ),
    Mutant(
        "squares_in_float16",
        "gradient_norm: squares in float64",
        ("norm_wide",),
        [(SQUARES, "        total += (piece.grad**2).sum(dtype=np.float64)\n")],
        r"numbers near 1024: it is inf, .* In which dtype are the squares\?",
    ),
    Mutant(
        "norm_with_the_scale",
        "gradient_norm: without the scale",
        ("norm_scale",),
        [(ROOTED, "    return math.sqrt(total[0])\n")],
        r"It is the norm with the scale",
    ),
    Mutant(
        "scale_under_the_root",
        "gradient_norm: the norm is divided, not the sum of squares",
        ("norm_scale",),
        [(ROOTED, "    return math.sqrt(total[0] / scale)\n")],
        r"The sum of squares was divided by the scale",
    ),
    Mutant(
        "leaves_out_what_is_not_finite",
        "gradient_norm: one rank's overflow is everyone's",
        ("norm_overflow",),
        [("        total += wide @ wide\n", "        total += wide[np.isfinite(wide)] @ wide[np.isfinite(wide)]\n")],
        r"inf on rank 2: rank 0 returned [\d.]+; inf or nan on every rank, or one skips alone, is wanted",
    ),
    Mutant(
        "all_send_first",
        "gradient_norm: nothing depends on who sends first",
        ("timing",),
        [
            (
                SUMMED,
                "    mine, incoming = total.copy(), np.zeros(1)\n"
                "    for step in range(1, comm.size):\n"
                "        comm.send(mine, (comm.rank + step) % comm.size)\n"
                "        comm.recv(incoming, (comm.rank - step) % comm.size)\n"
                "        total += incoming\n",
            )
        ],
        r"(?s)gradient_norm.*(rank 0: send|cycle)",
    ),
    Mutant(
        "forgives_nothing",
        "next_scale: an overflow is forgiven",
        ("scale_halves",),
        [(FORGIVEN, "    if False:\n")],
        r"after step 1, an overflow: the scale is 2048; 4096 is wanted",
    ),
    Mutant(
        "forgives_once_more",
        "next_scale: forgiven counts down",
        ("scale_halves",),
        [("forgiven=state.forgiven - 1, clean=0", "forgiven=state.forgiven, clean=0")],
        r"after step 3, an overflow: the scale is 4096; 2048 is wanted",
    ),
    Mutant(
        "below_the_minimum",
        "next_scale: never below the minimum",
        ("scale_minimum",),
        [(HALVED, HALVED.replace("max(state.scale / 2, minimum)", "state.scale / 2"))],
        r"after step 2, an overflow: the scale is 2; 3 is wanted",
    ),
    Mutant(
        "says_nothing_at_the_minimum",
        "next_scale: OverflowError at the minimum",
        ("scale_minimum",),
        [(AT_THE_MINIMUM, "")],
        r"after step 3, an overflow: the scale is 3; OverflowError is wanted",
    ),
    Mutant(
        "gives_up_at_once",
        "next_scale: at the minimum, too, what is forgiven is forgiven",
        ("scale_halves",),
        [(FORGIVEN, "    if overflow and state.scale == minimum:\n        raise OverflowError\n" + FORGIVEN)],
        r"at the minimum, 1 to be forgiven, after step 1, an overflow: the scale is OverflowError; 1 is wanted",
    ),
    Mutant(
        "doubles_at_once",
        "next_scale: not where clean is 0",
        ("scale_doubles",),
        [("    if state.clean > 0 and state", "    if state")],
        r"after step 1, no overflow: the scale is 32; 16 is wanted",
    ),
    Mutant(
        "a_step_early",
        "next_scale: after a whole window",
        ("scale_doubles",),
        [(DOUBLED, DOUBLED.replace("state.clean > 0 and state.clean % window", "(state.clean + 1) % window"))],
        r"after step 3, no overflow: the scale is 32; 16 is wanted",
    ),
    Mutant(
        "goes_on_counting",
        "next_scale: an overflow begins the window anew",
        ("scale_doubles",),
        [("forgiven=state.forgiven - 1, clean=0)", "forgiven=state.forgiven - 1)")],
        r"with an overflow in between, after step 3: the scale is 2 times what it was after the overflow; 1 times",
    ),
    Mutant(
        "never_afresh",
        "next_scale: forgiven is fresh when it doubles",
        ("scale_afresh",),
        [(", forgiven=hysteresis - 1)", ")")],
        r"after step 3: the scale has doubled, and forgiven is 0; 3 is wanted",
    ),
    Mutant(
        "afresh_every_step",
        "next_scale: forgiven is fresh only then",
        ("scale_afresh",),
        [
            (
                "    return state._replace(clean=state.clean + 1)\n",
                "    return state._replace(clean=state.clean + 1, forgiven=hysteresis - 1)\n",
            )
        ],
        r"after step 1: the scale has not doubled yet, and forgiven is 3; 0 is wanted",
    ),
    Mutant(
        "leaves_the_scale",
        "apply_gradients: the update without the scale",
        ("step",),
        [(UNSCALED, "            gradient = piece.grad.astype(np.float32)\n")],
        r"It has moved 1024 times as far as it should\. Is the scale undone, once\?",
    ),
    Mutant(
        "skips_every_step",
        "apply_gradients: a step without overflow is not skipped",
        ("step", "step_clip", "step_skip"),
        [("    if not overflow:\n        factor", "    if False:\n        factor")],
        r"has called the optimizer for the pieces \[\]; once for each piece",
    ),
    Mutant(
        "every_piece_is_the_first",
        "apply_gradients: the optimizer is told which piece",
        ("step",),
        [("optimizer(i, gradient)", "optimizer(0, gradient)")],
        r"has called the optimizer for the pieces \[0, 0\]",
    ),
    Mutant(
        "clips_the_scaled_norm",
        "apply_gradients: clips by the true norm",
        ("step_clip",),
        [
            (
                CLIPPED,
                CLIPPED.replace("norm > clip", "norm * state.scale > clip").replace(
                    "clip / norm", "clip / (norm * state.scale)"
                ),
            )
        ],
        r"The limit was compared with the norm of the scaled gradient",
    ),
    Mutant(
        "never_clips",
        "apply_gradients: clips",
        ("step_clip",),
        [(CLIPPED, "")],
        r"moves 1 times as far as without clipping; 0\.25 is wanted\. Nothing was clipped",
    ),
    Mutant(
        "always_clips",
        "apply_gradients: a shorter gradient stays",
        ("step_clip",),
        [("if clip > 0 and norm > clip", "if clip > 0")],
        r"A gradient that is shorter stays as it is",
    ),
    Mutant(
        "looks_at_its_own",
        "apply_gradients: all ranks skip, or none",
        ("step_skip",),
        [
            (
                "    overflow = not math.isfinite(norm)\n",
                "    overflow = not all(np.isfinite(piece.grad).all() for piece in pieces)\n",
            )
        ],
        r"rank 0 has (changed master|called the optimizer).*The overflow is on the other rank; who tells it\?",
    ),
    Mutant(
        "never_skips",
        "apply_gradients: an overflow skips the step",
        ("step_skip",),
        [("    if not overflow:\n        factor", "    if True:\n        factor")],
        r"has changed master of piece \d, at \[\d\] to -?[\d.]+\. The step is to be skipped",
    ),
    Mutant(
        "asks_the_optimizer_first",
        "apply_gradients: the optimizer is not called where the step is skipped",
        ("step_skip",),
        [
            (
                "    overflow = not math.isfinite(norm)\n",
                "    overflow = not math.isfinite(norm)\n"
                "    for i, piece in enumerate(pieces if overflow else []):\n"
                "        optimizer(i, widen(piece.grad, state.scale))\n",
            ),
        ],
        r"has called the optimizer, which remembers what it is handed",
    ),
    Mutant(
        "keeps_the_state",
        "apply_gradients: the next state",
        ("step_scale",),
        [("    return next_scale(state, overflow)\n", "    next_scale(state, overflow)\n    return state\n")],
        r"returned \[1024\.0, 0\.0, 1\.0\]; next_scale gives \[1024\.0, 0, 2\] here",
    ),
    Mutant(
        "never_empties",
        "apply_gradients: gradients are zero afterwards",
        ("step_zero",),
        [(EMPTIED, "")],
        r"no overflow: grad of piece 0 on rank 0 is not zero afterwards",
    ),
    Mutant(
        "returns_before_it_empties",
        "apply_gradients: ... after a skipped step, too",
        ("step_zero",),
        [(EMPTIED, "    if overflow:\n        return next_scale(state, overflow)\n" + EMPTIED)],
        r"Also after a step that is skipped: else inf stays in it for good",
    ),
]
