"""The grade of lesson 20: `pytest lessons/20_slow_wire`, or `make grade` for a table.

Arrays are drawn for each grade, on one to five ranks that know only their own. Sums are compared with what is computed
here from the inputs of all ranks; every message passes through here, and is counted. Parts on bytes ask only roughly
for the result. Where a function may call another one, the lesson's own takes that one's place: one mistake costs one
part. Losses are those of small trainings, with the student's step, next to the same training here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist.classroom.grading.checks import (
    an_array,
    check_array,
    check_handed,
    gaps,
    lessons_own,
    parts_by_function,
    shape,
    things,
)
from minidist.classroom.grading.parts import by_case, by_rank, on, part, ranks
from minidist.classroom.grading.submission import Case, Outcome, Submission, lose

Array = np.ndarray
ASKED = ("quantize", "add_quantized", "send_with_feedback", "add_largest", "top_k_step", "outer_step")
HIDDEN = ("answers", "given", "minidist.compression", "minidist.zeropp", "minidist.local_sgd")


def label(function: str, n: int, size: int, more: str = "") -> str:
    return f"{ranks(n)}, {function} of {size:,} elements{more}"


# ---- blocks ----------------------------------------------------------------------------------------------------------


def quantized(each: Case, outcome: Outcome) -> tuple[Array, Array, Array]:
    """(numbers, scales, each element's scale) that were returned, in the form that is asked for."""
    x, block, _ = each.inputs[0]
    found, scales = things(f"On {each.label}: it", outcome.value["returned"], ("numbers", "scales"))
    found = an_array(each, found, "numbers", x.shape)
    scales = an_array(each, scales, "scales", (len(x), -(-x.shape[1] // block)))
    if (found.dtype, scales.dtype) != (np.dtype("int8"), np.dtype("float32")):
        lose(
            f"On {each.label}: numbers are {found.dtype} and scales {scales.dtype}; int8 and float32 are wanted: every"
            " byte counts."
        )
    if not np.isfinite(scales).all():
        lose(f"On {each.label}: scales are not finite.")
    check_handed(each.label, outcome.value["handed"], [x], ["x"])
    return found, scales, np.repeat(scales.astype(float), block, axis=1)[:, : x.shape[1]]


def quantize_cases(submission: Submission, shapes: Sequence[tuple[int, int, int, int]]) -> list[Case]:
    cases = []
    for rows, c, block, most in shapes:
        x = submission.random.standard_normal((rows, c)) * 10.0 ** submission.random.integers(-3, 4, (rows, 1))
        of = f"quantize of {shape(x)}, blocks of {block}, to {most}"
        cases.append(Case(1, of, [[x, block, most]], {"function": "quantize"}))
    return cases


def check_half(submission: Submission) -> None:
    cases = quantize_cases(submission, [(3, 64, 16, 127), (2, 64, 8, 7), (1, 32, 32, 7)])
    for each, [outcome] in by_case(submission, "call", cases, ["quantize"]):
        x, block, most = each.inputs[0]
        found, scales, of_element = quantized(each, outcome)
        if abs(found.astype(int)).max() > most:
            lose(f"On {each.label}: numbers go up to {abs(found.astype(int)).max()}; {most} is the most.")
        wanted = abs(x.reshape(len(x), -1, block)).max(axis=2) / most
        check_array(each, scales.astype(float), "scales", wanted)
        off = abs(x - found * of_element) / of_element
        if off.max() > 0.5 + 1e-4:
            i, j = (int(at) for at in np.unravel_index(off.argmax(), off.shape))
            lose(
                f"On {each.label}: x[{i}, {j}] is {x[i, j]:.5g}, and {found[i, j]} · {of_element[i, j]:.5g} is off by"
                f" {off[i, j]:.2f} of the scale. The nearest number is off by half at most."
            )


def check_odd(submission: Submission) -> None:
    """Short last blocks, and blocks of zeros. How numbers are rounded, and the scales of other blocks, are asked
    elsewhere."""
    cases = quantize_cases(submission, [(2, 21, 8, 7), (3, 5, 16, 127), (2, 17, 4, 127)])
    for each in cases:
        x, block, _ = each.inputs[0]
        x[0, :block] = 0
        x[1:, :block] *= 100  # larger than all that follows in the row
    for each, [outcome] in by_case(submission, "call", cases, ["quantize"]):
        x, block, _ = each.inputs[0]
        found, scales, of_element = quantized(each, outcome)
        if scales[0, 0] != 0 or found[0, :block].any():
            lose(f"On {each.label}: the first block has zeros alone. Its scale and its numbers are to be 0.")
        if np.any(abs(x - found * of_element) > 1.01 * of_element + 1e-12):
            lose(f"On {each.label}: numbers · scales are further from x than a whole scale.")
        check_short(each, scales)


def check_short(each: Case, scales: Array) -> None:
    """That a short block's scale is made of its own elements, in the same way as those of the blocks before it."""
    x, block, _ = each.inputs[0]
    largest = abs(np.pad(x, ((0, 0), (0, -x.shape[1] % block)))).reshape(len(x), -1, block).max(axis=2)
    for row in range(1, len(x)):
        *full, own = scales[row] / largest[row]
        if full and np.allclose(full, full[0], rtol=1e-4) and not np.isclose(own, full[0], rtol=1e-4):
            lose(
                f"On {each.label}: block {len(full)} of row {row} is a short one, and its scale is"
                f" {scales[row, -1]:.5g}. Of its own elements it is {full[0] * largest[row, -1]:.5g}."
            )


def add_quantized_cases(submission: Submission) -> list[Case]:
    cases = []
    for n, c, block in ((4, 24, 8), (2, 21, 8), (5, 16, 4), (3, 7, 16), (1, 12, 4)):
        inputs = [[submission.random.standard_normal(n * c), block] for _ in range(n)]
        more = f", blocks of {block}"
        cases.append(Case(n, label("add_quantized", n, n * c, more), inputs, {"function": "add_quantized"}))
    return cases


def rounded_once(x: Array, n: int, block: int) -> Array:
    rows = x.reshape(n, -1)
    numbers, scales = lessons_own(__file__, "quantize")(rows, block, 7)
    return numbers * np.repeat(scales.astype(float), block, axis=1)[:, : rows.shape[1]]


def around_a_ring(each: Case, rank: int) -> Array:
    """A rank's chunk, if partial sums are rounded before each step."""
    parts, block = [x.reshape(each.n, -1)[rank] for x, _ in each.inputs], each.inputs[0][1]
    total = parts[(rank + 1) % each.n]
    for step in range(2, each.n + 1):
        total = rounded_once(total, 1, block)[0] + parts[(rank + step) % each.n]
    return total


def check_rounded_once(submission: Submission) -> None:
    for each, rank, outcome in by_rank(submission, "call", add_quantized_cases(submission), ["add_quantized"]):
        block = each.inputs[0][1]
        exact = np.sum([x.reshape(each.n, -1)[rank] for x, _ in each.inputs], axis=0)
        wanted = np.sum([rounded_once(x, each.n, block)[rank] for x, _ in each.inputs], axis=0)
        own = each.inputs[rank][0].reshape(each.n, -1)[rank]
        own_exact = wanted - rounded_once(each.inputs[rank][0], each.n, block)[rank] + own
        wrong = {
            "It is the exact sum: nothing was rounded.": exact,
            "This rank's own chunk was not rounded.": own_exact,
            "Partial sums were rounded on their way around a ring.": around_a_ring(each, rank),
        }
        found = outcome.value["returned"]
        check_array(each, found, f"rank {rank}'s chunk", wanted, wrong if each.n > 1 else {})
        check_handed(f"{each.label}: rank {rank}", outcome.value["handed"], each.inputs[rank][:1], ["x"])
        if each.n > 1 and not outcome.nbytes:
            lose(f"{on(each, rank)} sent nothing.")


def check_quantized_bytes(submission: Submission) -> None:
    for each, rank, outcome in by_rank(submission, "call", add_quantized_cases(submission), ["add_quantized"]):
        x, block = each.inputs[rank]
        c = x.size // each.n
        parts = [x.reshape(each.n, -1)[rank] for x, _ in each.inputs]
        wanted = (each.n - 1) * (-(-c // 2) + 4 * -(-c // block))
        why = f"to each of {each.n - 1} ranks {c} numbers, two in a byte, and {-(-c // block)} scales of 4 bytes"
        check_bytes(each, rank, outcome.value["returned"], parts, outcome.nbytes, wanted, why)


def check_bytes(each: Case, rank: int, found: Any, parts: Sequence[Array], nbytes: int, wanted: int, why: str) -> None:
    """That a rank has sent as many bytes as are wanted, for a result that has to do with the sum."""
    total = np.sum(parts, axis=0)
    found = an_array(each, found, f"rank {rank}'s result", total.shape)
    if not np.vdot(found, total) > 0.6 * np.linalg.norm(found) * np.linalg.norm(total):  # nor zeros or nan
        lose(f"{on(each, rank)} returned what is not near the sum: bytes are only counted of a sum.")
    if nbytes != wanted:
        lose(f"{on(each, rank)} sent {nbytes:,} bytes; {wanted:,} are wanted: {why}.")


# ---- error feedback --------------------------------------------------------------------------------------------------


def feedback_case(submission: Submission, times: int, size: int, k: int) -> Case:
    vectors = submission.random.standard_normal((times, size))
    error = submission.random.standard_normal(size)
    return Case(1, f"{times} vectors of {size}, whose {k} largest are sent", [[vectors, error]], {"k": k})


def check_telescopes(submission: Submission) -> None:
    cases = [feedback_case(submission, *of) for of in ((6, 12, 3), (10, 30, 2), (4, 5, 5), (1, 8, 2))]
    for each, [outcome] in by_case(submission, "feed", cases, ["send_with_feedback"]):
        vectors, error = each.inputs[0]
        sent = [an_array(each, one, "what was sent", error.shape) for one in outcome.value["sent"]]
        whole = np.sum(sent, axis=0) + outcome.value["error"]
        wanted = np.sum(vectors, axis=0) + error
        if not np.allclose(whole, wanted, atol=1e-9):
            worst = float(abs(whole - wanted).max())
            lose(
                f"On {each.label}: all that was sent and what remains do not add up to all that was to be sent: off by"
                f" {worst:.3g}. Something is forgotten, or sent twice."
            )
        check_handed(each.label, outcome.value["handed"], vectors, ["x"] * len(vectors))


def check_waiting(submission: Submission) -> None:
    """What the compressor gets in the first call. What becomes of the error is asked elsewhere."""
    cases = [feedback_case(submission, 1, size, k) for size, k in ((12, 3), (7, 1))]
    for each, [outcome] in by_case(submission, "feed", cases, ["send_with_feedback"]):
        [[x], error] = each.inputs[0]
        if len(outcome.value["got"]) != 1:
            lose(f"On {each.label}: compress was called {len(outcome.value['got'])} times in a step; once is wanted.")
        mistakes = {"It is x alone: what was not sent before will never be.": x, "The error is subtracted.": x - error}
        check_array(each, outcome.value["got"][0], "what compress gets", x + error, mistakes)
        mistakes = {"It was not compressed.": x + error}
        check_array(each, outcome.value["sent"][0], "what was sent", kept(x + error, each.arguments["k"]), mistakes)


# ---- the largest -----------------------------------------------------------------------------------------------------


def largest_cases(submission: Submission) -> list[Case]:
    cases = []
    for n, size, k, dtype in (
        (2, 12, 3, "float32"),
        (4, 30, 8, "float64"),
        (3, 40, 5, "float32"),
        (1, 9, 2, "float64"),
    ):
        common = submission.random.standard_normal(size) * 5  # so that ranks choose some of the same places
        inputs = [[(common + submission.random.standard_normal(size)).astype(dtype), k] for _ in range(n)]
        of = label("add_largest", n, size, f" {dtype}, k = {k}")
        cases.append(Case(n, of, inputs, {"function": "add_largest"}))
    return cases


def kept(x: Array, k: int) -> Array:
    chosen = np.argsort(-abs(x), kind="stable")[:k]
    found = np.zeros_like(x)
    found[chosen] = x[chosen]
    return found


def check_largest(submission: Submission) -> None:
    for each, rank, outcome in by_rank(submission, "call", largest_cases(submission), ["add_largest"]):
        total, sent = things(on(each, rank), outcome.value["returned"], ("total", "sent"))
        parts = [kept(*of) for of in each.inputs]
        last = np.zeros_like(parts[0])
        for one in parts:
            last[one != 0] = one[one != 0]
        mistakes = {
            "Where ranks chose the same place, only one of them counts.": last,
            "It is the sum of all, not of the largest.": np.sum([x for x, _ in each.inputs], axis=0),
            "It is the mean.": np.sum(parts, axis=0) / each.n,
        }
        check_array(each, total, f"rank {rank}'s total", np.sum(parts, axis=0), mistakes if each.n > 1 else {})
        check_array(each, sent, f"what rank {rank} sent", parts[rank])
        check_handed(f"{each.label}: rank {rank}", outcome.value["handed"], each.inputs[rank][:1], ["x"])
        if each.n > 1 and not outcome.nbytes:
            lose(f"{on(each, rank)} sent nothing.")


def check_largest_bytes(submission: Submission) -> None:
    for each, rank, outcome in by_rank(submission, "call", largest_cases(submission), ["add_largest"]):
        x, k = each.inputs[rank]
        total, _ = things(on(each, rank), outcome.value["returned"], ("total", "sent"))
        wanted = (each.n - 1) * k * (4 + x.itemsize)
        why = (
            f"{k} values of {x.itemsize} bytes and {k} places of 4, which {each.n - 1} messages of an all-gather pass"
            " on"
        )
        check_bytes(each, rank, total, [kept(*of) for of in each.inputs], outcome.nbytes, wanted, why)


def top_k_case(submission: Submission, n: int, size: int, k: int, momentum: float) -> Case:
    weight = submission.random.uniform(0.5, 1.5, (n, size))
    target = submission.random.standard_normal((n, size))
    steps = np.array([30])
    inputs = [[target[rank], weight[rank], steps] for rank in range(n)]
    of = f"{ranks(n)}, 30 steps of {size} parameters, k = {k}, momentum {momentum}"
    return Case(n, of, inputs, {"k": k, "momentum": momentum, "lr": 0.1})


def trained_top_k(each: Case, masks: str = "both") -> tuple[list[Array], list[list[float]]]:
    """(total, the ranks' losses) of each step. masks: what is 0 where a rank has sent: "both", or one alone; or both
    where any of "all ranks" has."""
    targets, weights = (np.array([of[i] for of in each.inputs]) for i in (0, 1))
    parameters, velocity, error = np.zeros(targets.shape[1]), np.zeros_like(targets), np.zeros_like(targets)
    totals, losses = list[Array](), list[list[float]]()
    for _ in range(30):
        velocity = each.arguments["momentum"] * velocity + weights * (parameters - targets) / each.n
        error = error + velocity
        sent = np.array([kept(x, each.arguments["k"]) for x in error])
        chosen = sent.any(axis=0) if masks == "all ranks" else sent != 0
        error = np.where(chosen, 0, error) if masks != "velocity" else error
        velocity = np.where(chosen, 0, velocity) if masks != "error" else velocity
        totals.append(sent.sum(axis=0))
        parameters = parameters - each.arguments["lr"] * totals[-1]
        losses.append([float(np.sum(w * (parameters - t) ** 2) / 2) for t, w in zip(targets, weights, strict=True)])
    return totals, losses


def check_top_k(submission: Submission) -> None:
    cases = [top_k_case(submission, *of) for of in ((2, 12, 3, 0.9), (4, 20, 2, 0.9), (3, 15, 15, 0.9), (1, 8, 2, 0.5))]
    for each, outcomes in by_case(submission, "train_top_k", cases, ["top_k_step"]):
        totals, losses = trained_top_k(each)
        others = {
            "the velocity is not 0 where this rank has sent, and pushes once more": trained_top_k(each, "error"),
            "the error is not 0 where this rank has sent, and is sent again": trained_top_k(each, "velocity"),
            "error and velocity are 0 also where only other ranks have sent": trained_top_k(each, "all ranks"),
        }
        for rank, outcome in enumerate(outcomes):
            if outcome.value["changed"]:
                lose(f"{on(each, rank)}: gradient was changed.")
            for step, found in enumerate(outcome.value["totals"]):
                found = an_array(each, found, f"rank {rank}'s sum of step {step + 1}", totals[step].shape)
                if not np.allclose(found, totals[step], atol=1e-8):
                    why = [words for words, (other, _) in others.items() if np.allclose(found, other[step], atol=1e-8)]
                    end = outcome.value["losses"][-1] if outcome.value["losses"] else float("nan")
                    lose(
                        f"{on(each, rank)}'s sum of step {step + 1} is wrong{': ' + why[0] if why else ''}. The loss"
                        f" after 30 steps is {end:.4g}; {losses[-1][rank]:.4g} is wanted."
                    )
            check_losses(each, rank, outcome.value["losses"], [of[rank] for of in losses])


def check_losses(each: Case, rank: int, found: Sequence[float], wanted: Sequence[float]) -> None:
    if not np.allclose(found, wanted, rtol=1e-7):
        lose(f"{on(each, rank)}'s loss at the end is {found[-1]:.6g}; {wanted[-1]:.6g} is wanted.")


# ---- steps alone -----------------------------------------------------------------------------------------------------


def check_outer(submission: Submission) -> None:
    cases = []
    for n, size, lr, momentum in ((2, 8, 0.7, 0.9), (3, 10, 0.5, 0.6), (1, 4, 0.7, 0.9), (4, 6, 1.0, 0.0)):
        start, velocity = submission.random.standard_normal((2, size))
        inputs = [[start, submission.random.standard_normal((2, size)), start, velocity] for _ in range(n)]
        of = label("outer_step", n, size, f", lr {lr}, momentum {momentum}")
        cases.append(Case(n, of, inputs, {"lr": lr, "momentum": momentum}))
    for each, rank, outcome in by_rank(submission, "outer", cases, ["outer_step"]):
        lr, momentum = each.arguments["lr"], each.arguments["momentum"]
        first, velocity = each.inputs[0][2], each.inputs[0][3]
        start = first
        for step, (found, found_velocity) in enumerate(outcome.value["after"]):
            here = [start + of[1][step] for of in each.inputs]
            delta = start - np.mean(here, axis=0)
            since = first - np.mean(here, axis=0)
            from_first = first - lr * (since + momentum * (momentum * velocity + since))
            velocity = momentum * velocity + delta
            outer = lr * (delta + momentum * velocity)
            apart = here[rank] - np.mean(here, axis=0)
            own = lr * (apart + momentum * (velocity - delta + apart))
            mistakes = {
                "It measures from where this rank is, not from where the inner steps began.": here[rank] - own,
                "It is a step from where this rank is, not from where the inner steps began.": here[rank] - outer,
                "It is a step from the mean, not from where the inner steps began.": np.mean(here, axis=0) - outer,
                "It is a step away from the mean: delta has the wrong sign.": start + outer,
                "The momentum looks back, not ahead (Nesterov).": start - lr * velocity,
                "It is a step from where the first inner steps began: start was not set to the new ones.": from_first,
            }
            start = start - outer
            name = f"after step {step + 1} rank {rank}'s"
            check_array(each, found, f"{name} parameters", start, mistakes if momentum else {})
            check_array(each, found_velocity, f"{name} velocity", velocity)


def alone_case(submission: Submission, n: int, size: int) -> Case:
    inputs = [[submission.random.standard_normal(size), submission.random.uniform(0.5, 1.5, size)] for _ in range(n)]
    of = f"{ranks(n)}, 5 times 4 steps alone, {size} parameters"
    return Case(n, of, inputs, {"every": 4, "rounds": 5, "lr": 0.05})


def check_alone(submission: Submission) -> None:
    """As the mean, whatever the outer momentum does: lr is 1 and momentum 0."""
    cases = [alone_case(submission, n, size) for n, size in ((2, 8), (4, 16), (3, 9))]
    for each, outcomes in by_case(submission, "train_alone", cases, ["outer_step"]):
        losses = trained_alone(each)
        averaged = trained_alone(each, moments_too=True)
        size = each.inputs[0][0].size
        for rank, outcome in enumerate(outcomes):
            found = outcome.value["losses"]
            if not np.allclose(found, [of[rank] for of in losses], rtol=1e-7):
                too = np.allclose(found, [of[rank] for of in averaged], rtol=1e-7)
                lose(
                    f"{on(each, rank)}'s loss at the end is {found[-1]:.6g}; {losses[-1][rank]:.6g} is wanted."
                    + " The moments were averaged, too: each rank is to go on with its own." * too
                )
        whole = 2 * (each.n - 1) * size * 8 * each.arguments["rounds"]
        total = sum(outcome.nbytes for outcome in outcomes)
        if total != whole:
            lose(
                f"On {each.label}: {total:,} bytes were sent in all; {whole:,} are wanted: five all-reduces of the"
                " parameters, and nothing else."
            )


def trained_alone(each: Case, moments_too: bool = False) -> list[list[float]]:
    """The ranks' losses after each round."""
    target, weight = (np.array([of[i] for of in each.inputs]) for i in (0, 1))
    parameters, m, v = (np.zeros_like(target) for _ in range(3))
    losses = []
    for _ in range(each.arguments["rounds"]):
        for _ in range(each.arguments["every"]):
            gradient = weight * (parameters - target)
            m, v = 0.9 * m + 0.1 * gradient, 0.9 * v + 0.1 * gradient**2
            parameters = parameters - each.arguments["lr"] * m / (np.sqrt(v) + 1e-3)
        parameters = np.broadcast_to(parameters.mean(axis=0), target.shape)
        if moments_too:
            m, v = (np.broadcast_to(of.mean(axis=0), target.shape) for of in (m, v))
        losses.append([float(np.sum(w * (p - t) ** 2) / 2) for p, t, w in zip(parameters, target, weight, strict=True)])
    return losses


# ---- parts -----------------------------------------------------------------------------------------------------------

test_half = part(3, "quantize: off by half a scale at most", check_half)
test_odd = part(1, "quantize: zeros, and short blocks", check_odd)
test_rounded_once = part(3, "add_quantized: each part is rounded once", check_rounded_once)
test_quantized_bytes = part(1, "add_quantized: bytes", check_quantized_bytes)
test_telescopes = part(2, "send_with_feedback: nothing is lost", check_telescopes)
test_waiting = part(1, "send_with_feedback: what waits is compressed, too", check_waiting)
test_largest = part(2, "add_largest: the sum", check_largest)
test_largest_bytes = part(1, "add_largest: bytes", check_largest_bytes)
test_top_k = part(3, "top_k_step: momentum, masks and the loss", check_top_k)
test_outer = part(2, "outer_step: from where the inner steps began", check_outer)
test_alone = part(1, "outer_step: bytes and the loss", check_alone)


# ---- the notebook's gaps, which earn no points -----------------------------------------------------------------------


def check_gap(submission: Submission, function: str, asked: Sequence[tuple[list[Any], Any]]) -> None:
    cases = [Case(1, function, [arguments], {"function": function}) for arguments, _ in asked]
    for (_, wanted), (each, [outcome]) in zip(asked, by_case(submission, "call", cases, [function]), strict=True):
        found = outcome.value["returned"]
        if isinstance(wanted, float):
            if not isinstance(found, float) or not np.isclose(found, wanted):
                arguments = ", ".join(map(str, each.inputs[0]))
                lose(f"{function}({arguments}) returned {found}; {wanted:g} is wanted.")
        else:
            check_array(each, found, "its result", wanted)


def check_advantage(submission: Submission) -> None:
    drawn = [(2, 0.001, 4), (64, 0.001, 4), (1000, 0.001, 4), (16, 0.01, 2)]
    check_gap(submission, "advantage", [([n, d, w], w / (4 * n * d)) for n, d, w in drawn])


def check_one_bit(submission: Submission) -> None:
    x = submission.random.standard_normal(9)
    check_gap(submission, "one_bit", [([x], np.where(x >= 0, 1, -1) * np.sqrt(np.mean(x**2)))])


def check_restore(submission: Submission) -> None:
    numbers, scales = submission.random.integers(-7, 8, (2, 7)).astype(np.int8), submission.random.uniform(1, 2, (2, 3))
    wanted = np.array([[numbers[i, j] * scales[i, j // 3] for j in range(7)] for i in range(2)])
    check_gap(submission, "restore", [([numbers, scales, 3], wanted)])


GAPS = gaps(globals(), "advantage", "one_bit", "restore")
PARTS = parts_by_function(globals())
