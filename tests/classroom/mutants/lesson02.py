"""lessons/02_transformer_by_hand"""

from classroom.mutants.mutant import Mutant

# Of lesson 02's answer, what its mistakes change.
ORDER = "    for step in reversed(steps):\n"
GUARD = "        if step.output not in slopes:\n            continue\n"
START = "    slopes = {number: gradient}\n"
SUM = (
    "            if i in slopes:\n                slopes[i] = slopes[i] + dx\n"
    "            else:\n                slopes[i] = dx\n"
)
NONE = "            if dx is None:\n                continue\n"
ROWS = "    dy, x = dy.reshape(-1, w.shape[0]), x.reshape(-1, w.shape[1])\n"
HOT = "    hot = np.eye(prob.shape[-1])[targets]\n"
LOSS = "    return dlogits * dloss / targets.size\n"
DX = "    dx = (dn - shift - stretch) * rstd\n"
MOVED = "    p = p - lr * m_hat / (np.sqrt(v_hat) + eps) - lr * weight_decay * p\n"

MUTANTS = [
    Mutant(
        "first_to_last",
        "walk_back: from the last step",
        ("walk_back", "walk_back_twice", "walk_back_none", "walk_back_shared"),
        [(ORDER, "    for step in steps:\n")],
        r"for three steps in a row: there is no gradient for value 0",
    ),
    Mutant(
        "starts_from_one",
        "walk_back: from the gradient that it is handed",
        ("walk_back",),
        [(START, "    slopes = {number: np.ones_like(gradient)}\n")],
        r"for one step: the gradient of value 0 is wrong first at \[0, 0\]",
    ),
    Mutant(
        "stores",
        "walk_back: a value used by several steps gets the sum",
        ("walk_back_twice",),
        [(SUM, "            slopes[i] = dx\n")],
        r"for a parameter that two steps use: .* Value 1 is used twice: .* Here it is that of one use alone",
    ),
    Mutant(
        "keeps_the_first",
        "walk_back: of all uses",
        ("walk_back_twice",),
        [(SUM, "            slopes.setdefault(i, dx)\n")],
        r"Here it is that of one use alone",
    ),
    Mutant(
        "sums_between_steps_alone",
        "walk_back: a step may take a value twice",
        ("walk_back_twice",),
        [
            (SUM, SUM.replace("i in slopes", "i in before").replace("slopes[i] + dx", "before[i] + dx")),
            ("        gradients = step.back", "        before = dict(slopes)\n        gradients = step.back"),
        ],
        r"for a step that takes one value twice: the gradient of value 1 is wrong",
    ),
    Mutant(
        "expects_every_gradient",
        "walk_back: steps on which the loss does not depend",
        ("walk_back_none",),
        [(GUARD, "")],
        r"(?s)for a step on which the loss does not depend, it failed:\n.*KeyError: 4",
    ),
    Mutant(
        "adds_none",
        "walk_back: None for an input without a gradient",
        ("walk_back_none",),
        [(NONE, "            dx = np.asarray(dx)[..., None] * 1.0 if dx is None else dx\n")],
        r"(?s)for a step whose backward returns None for an input, it failed:\n.*TypeError",
    ),
    Mutant(
        "stops_at_none",
        "walk_back: and goes on with the others",
        ("walk_back_none",),
        [(NONE, "            if dx is None:\n                return slopes\n")],
        r"returns None for an input: there is no gradient for value 0; \(3, 3\) is wanted. It is to be as without that",
    ),
    Mutant(
        "adds_in_place",
        "walk_back: does not write into a gradient that it was given",
        ("walk_back_shared",),
        [("slopes[i] = slopes[i] + dx", "slopes[i] += dx")],
        r"for residuals: the gradient that step 4 \(add\) was handed was changed later. .* not with \+=",
    ),
    Mutant(
        "dx_of_the_transposed",
        "linear_backward: dx",
        ("linear_dx",),
        [("    dx = dy @ w\n", "    dx = dy @ w[::-1]\n")],
        r"for dy \(3, 2\), x \(3, 4\), w \(2, 4\): dx is wrong first at \[0, 0\]: .* where moving the number up",
    ),
    Mutant(
        "means_over_the_rows",
        "linear_backward: dw, the sum over the rows",
        ("linear_dw",),
        [("    dw = dy.T @ x\n", "    dw = dy.T @ x / len(dy)\n")],
        r"dw is wrong first at \[0, 0\]: .* It is the mean over the rows; the sum is wanted",
    ),
    Mutant(
        "dw_turned",
        "linear_backward: dw in the shape of w",
        ("linear_dw",),
        [("    dw = dy.T @ x\n", "    dw = x.T @ dy\n")],
        r"dw has the shape \(4, 2\); \(2, 4\) is wanted. Is it transposed",
    ),
    Mutant(
        "db_of_the_last_row",
        "linear_backward: db",
        ("linear_db",),
        [("    db = dy.sum(axis=0)\n", "    db = dy.sum(axis=0) / len(dy) * len(dy.T)\n")],
        r"db is wrong first at \[0\]",
    ),
    Mutant(
        "matrices_alone",
        "linear_backward: any number of axes",
        ("linear_axes",),
        [(ROWS, "")],
        r"(?s)linear_backward for dy \(2, 3, 2\), x \(2, 3, 4\), w \(2, 4\)",
    ),
    Mutant(
        "never_one_row",
        "linear_backward: none before the last as well",
        ("linear_axes",),
        [(ROWS, "    assert x.ndim > 1\n" + ROWS)],
        r"(?s)for dy \(2,\), x \(4,\), w \(2, 4\), it failed:.*AssertionError: `assert x.ndim > 1` does not hold",
    ),
    Mutant(
        "forgets_the_target",
        "cross_entropy_backward: 1 less at the target",
        ("cross_entropy",),
        [(HOT, "    hot = 0 * prob\n")],
        r"dlogits is wrong first at .* It is prob: what of the target",
    ),
    Mutant(
        "sums_positions",
        "cross_entropy_backward: the mean",
        ("cross_entropy_factor",),
        [(LOSS, "    return dlogits * dloss\n")],
        r"dlogits is 6 times the slope; there are 6 positions, and the loss is the mean over all positions",
    ),
    Mutant(
        "divides_by_sequences",
        "cross_entropy_backward: over all positions",
        ("cross_entropy_factor",),
        [(LOSS, "    return dlogits * dloss / len(targets)\n")],
        r"dlogits is 3 times the slope; there are 6 positions, and what is it divided by\?",
    ),
    Mutant(
        "forgets_dloss",
        "cross_entropy_backward: times dloss",
        ("cross_entropy_factor",),
        [(LOSS, "    return dlogits / targets.size\n")],
        r"for the same with dloss = 0.5: dlogits should be half of what it is for dloss = 1",
    ),
    Mutant(
        "gain_by_x",
        "layer_norm_backward: dgain, of the normalised x",
        ("layer_norm_gain",),
        [("    dgain = (dy * n).sum(axis=rows)\n", "    dgain = (dy * x).sum(axis=rows)\n")],
        r"dgain is wrong first at \[0\]: .* It is made with x, not with the normalised x",
    ),
    Mutant(
        "bias_of_one_axis",
        "layer_norm_backward: dbias, summed over all rows",
        ("layer_norm_gain",),
        [("    dbias = dy.sum(axis=rows)\n", "    dbias = dy.sum(axis=0)\n")],
        r"dbias has the shape \(3, 5\); \(5,\) is wanted",
    ),
    Mutant(
        "constant_statistics",
        "layer_norm_backward: dx through mean and variance",
        ("layer_norm_dx",),
        [(DX, "    dx = dn * rstd\n")],
        r"dx is wrong first at .* The mean and the variance were taken for constants",
    ),
    Mutant(
        "constant_variance",
        "layer_norm_backward: dx through the variance",
        ("layer_norm_dx",),
        [(DX, "    dx = (dn - shift) * rstd\n")],
        r"The variance was taken for a constant: it moves with x, too",
    ),
    Mutant(
        "without_gain",
        "layer_norm_backward: dx with the gain",
        ("layer_norm_dx",),
        [("    dn = dy * gain\n", "    dn = dy\n")],
        r"The gain is missing",
    ),
    Mutant(
        "values_not_turned",
        "values_backward: dv from every query",
        ("values",),
        [('"bhqk,bhqd->bhkd"', '"bhqk,bhkd->bhqd"')],
        r"dv is wrong first at .* prob was not transposed",
    ),
    Mutant(
        "diagonal_softmax",
        "softmax_backward: every score moves all probabilities",
        ("softmax",),
        [("    return prob * (dprob - weighted)\n", "    return dprob * prob * (1 - prob)\n")],
        r"dscores is wrong first at .* Every score was taken to move its own probability alone",
    ),
    Mutant(
        "sum_over_queries",
        "softmax_backward: summed over the keys",
        ("softmax",),
        [("    weighted = (prob * dprob).sum(axis=-1, ", "    weighted = (prob * dprob).sum(axis=-2, ")],
        r"The sum is over the queries; it should be over the keys",
    ),
    Mutant(
        "moments_exchanged",
        "adamw: the weights of the moments",
        ("adamw_moments",),
        [("    m = beta1 * m + (1 - beta1) * g\n", "    m = (1 - beta1) * m + beta1 * g\n")],
        r"adamw for step 1: m is wrong first at \[0\]: .* The two weights are exchanged",
    ),
    Mutant(
        "returns_corrected_moments",
        "adamw: the moments themselves",
        ("adamw_moments",),
        [("    return p, m, v\n", "    return p, m_hat, v_hat\n")],
        r"It is the corrected one: return the moment itself",
    ),
    Mutant(
        "eps_under_the_root",
        "adamw: ε beside the root",
        ("adamw_update",),
        [("(np.sqrt(v_hat) + eps)", "np.sqrt(v_hat + eps)")],
        r"p moves by .* ε is under the root; it belongs beside it",
    ),
    Mutant(
        "uphill",
        "adamw: against the slope",
        ("adamw_update",),
        [(MOVED, MOVED.replace("p - lr * m_hat", "p + lr * m_hat"))],
        r"It goes uphill: subtract",
    ),
    Mutant(
        "no_correction",
        "adamw: bias corrections",
        ("adamw_bias",),
        [("    m_hat = m / (1 - beta1**step)\n", "    m_hat = m\n")],
        r"for the same at step 1: p moves 0.316228 times as far .* = 1.58114 times is wanted, with t = 1",
    ),
    Mutant(
        "counts_from_0",
        "adamw: steps count from 1",
        ("adamw_bias",),
        [("    m_hat = m / (1 - beta1**step)\n", "    step += 1\n    m_hat = m / (1 - beta1**step)\n")],
        r"for the same at step 1: p moves .* with t = 1",
    ),
    Mutant(
        "decay_in_the_gradient",
        "adamw: the decay is no part of the gradient",
        ("adamw_decay",),
        [
            ("    m = beta1 * m", "    g = g + weight_decay * p\n    m = beta1 * m"),
            (MOVED, MOVED.replace(" - lr * weight_decay * p", "")),
        ],
        r"for λ = 0.2: the decay moves p by .* It is no part of the gradient, and not divided by √v̂",
    ),
    Mutant(
        "decay_without_rate",
        "adamw: the decay times the learning rate",
        ("adamw_decay",),
        [(MOVED, MOVED.replace("lr * weight_decay", "weight_decay"))],
        r"lr is missing: p shrinks by lr λ p",
    ),
    Mutant(
        "writes_into_prob",
        "nothing that is handed over is changed",
        ("handed",),
        [
            (
                HOT,
                "    flat = prob.reshape(-1, prob.shape[-1])\n"
                "    flat[np.arange(len(flat)), targets.reshape(-1)] -= 1\n    hot = 0\n",
            )
        ],
        r"cross_entropy_backward for prob \(2, 3, 5\), targets \(2, 3\): prob was changed",
    ),
]
