"""The grade of lesson 13: `pytest lessons/13_pipelines`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew. A schedule is not compared with another one:
it is put on the clock of this file, which finds deadlocks, idle time and what is held, and it is performed on ranks
whose gradients are compared with those of a run without a pipeline. A part earns its points or not; none needs a later
one, and one mistake costs one part: what a part does not ask for is the lesson's own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from minidist.classroom.checks import together
from minidist.classroom.submission import STRICT, Case, Outcome, Submission, lose
from minidist.engine import Engine, Settings
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import SGD
from minidist.nn.precision import PRECISIONS

Array = np.ndarray
ASKED = ("clock", "gpipe", "one_f_one_b", "zb_h1", "perform", "shorter", "interleaved")
HIDDEN = ("given", "minidist.pp.schedules", "minidist.pipeline")  # what a submission cannot import
PRECISE = 1e-9
ONE = {"F": 1.0, "B": 1.0, "W": 1.0}
MODEL = {"vocabulary": 16, "context": 6, "layers": 2, "heads": 2, "width": 8, "tied": False}

# ---- the truth: a clock ----------------------------------------------------------------------------------------------


class Wrong(Exception):
    """What is wrong with some orders."""


def named(thing: Sequence[Any]) -> str:
    return f"{thing[0]} of {thing[1]}" + (f" in chunk {thing[2]}" if len(thing) > 2 else "")


def check_things(orders: Sequence[Any], m: int, v: int = 0) -> None:
    """Every stage does everything once. v: how many chunks it has, where things name one. Raises Wrong."""
    wanted = [(k, c) for k in range(m) for c in range(max(v, 1))]
    shape = '("F", k, chunk)' if v else '("F", k)'
    for s, order in enumerate(orders):
        if not isinstance(order, list):
            raise Wrong(
                f"stage {s} has {'None' if order == 'NoneType' else order}, not a list of things such as {shape}"
            )
        for thing in order:
            if not isinstance(thing, list) or len(thing) != 2 + (v > 0) or thing[0] not in ("F", "B", "W", "BW"):
                raise Wrong(f"stage {s} has {thing!r}, where something such as {shape} is wanted")
        done = {letter: [tuple((*thing, 0)[1:3]) for thing in order if thing[0] == letter]
                for letter in ("F", "B", "W", "BW")}  # fmt: skip
        for k, c in wanted:
            counts = [done[letter].count((k, c)) for letter in ("F", "B", "W", "BW")]
            if counts not in ([1, 0, 0, 1], [1, 1, 1, 0]):
                what = ", ".join(f"{n} {letter}" for n, letter in zip(counts, ("F", "B", "W", "BW"), strict=True) if n)
                at = f"micro-batch {k}" + f", chunk {c}" * (v > 0)
                raise Wrong(
                    f"of {at} stage {s} does {what or 'nothing'}; one F and one BW, or one F, B and W, are wanted"
                )
        if any(set(of) - set(wanted) for of in done.values()):
            raise Wrong(f"stage {s} does something of a micro-batch that there is not: k goes from 0 to {m - 1}")


def check_mail(orders: Sequence[Any], v: int = 0) -> None:
    """What a stage sends to the next is asked for in the order in which it was sent. Raises Wrong."""
    p = len(orders)
    for letters, step in (("F",), 1), (("B", "BW"), -1):
        for s in range(p if v else p - 1):
            source, dest = (s, (s + 1) % p) if step > 0 else ((s + 1) % p, s)
            turn = (s + 1) // p  # behind the last stage comes the first, one chunk later
            sent = [(k, c + step * turn) for _, k, c in padded(orders[source], letters)]
            asked = [(k, c) for _, k, c in padded(orders[dest], letters)]
            crossing = set(sent) & set(asked)
            sent, asked = ([thing for thing in of if thing in crossing] for of in (sent, asked))
            if sent != asked:
                i = next(i for i, both in enumerate(zip(sent, asked, strict=True)) if both[0] != both[1])
                raise Wrong(
                    f"stage {source} does {letters[0]} of {sent[i][0]} before {letters[0]} of {asked[i][0]}, and stage"
                    f" {dest} the other way: what arrives first would be taken for the other micro-batch"
                )


def padded(order: Sequence[Any], letters: Sequence[str]) -> list[tuple[str, int, int]]:
    return [tuple((*thing, 0)[:3]) for thing in order if thing[0] in letters]  # type: ignore[misc]


def true_clock(
    orders: Sequence[Any], costs: dict[str, float], latency: float = 0, v: int = 0
) -> list[list[tuple[str, int, float, float]]]:
    """When each stage does what. Raises Wrong at a deadlock."""
    p, time = len(orders), {**costs, "BW": costs["B"] + costs["W"]}
    spans: list[list[Any]] = [[] for _ in orders]
    ended: dict[Any, float] = {}  # (letter, part of the model, micro-batch)
    waits: dict[int, Any] = {}
    moved = True
    while moved:
        moved = False
        for s, order in enumerate(orders):
            for letter, k, *rest in order[len(spans[s]) :]:
                part = (rest[0] if rest else 0) * p + s
                before = {"F": ("F", part - 1), "W": ("B", part)}.get(letter, ("B", part + 1))
                own = [("F", part)] if letter in ("B", "BW") else []
                need = [(*thing, k) for thing in [before, *own] if 0 <= thing[1] < max(v, 1) * p]
                if missing := [thing for thing in need if thing not in ended]:
                    waits[s] = (letter, k, missing[0])
                    break
                ready = [ended[thing] + latency * (thing[1] != part) for thing in need]
                start = max([spans[s][-1][3] if spans[s] else 0.0, *ready])
                spans[s].append((letter, k, start, start + time[letter]))
                ended[letter[0], part, k] = start + time[letter]
                moved = True
    if stuck := [s for s in range(p) if len(spans[s]) < len(orders[s])]:
        said = "; ".join(
            f"stage {s} waits at {waits[s][0]} of {waits[s][1]} for {waits[s][2][0]} of {waits[s][2][2]} on stage"
            f" {waits[s][2][1] % p}"
            for s in stuck
        )
        raise Wrong(f"deadlock: {said}")
    return spans


def held(order: Sequence[Any]) -> int:
    now = most = 0
    for letter, *_ in order:
        now += (letter == "F") - (letter in ("W", "BW"))
        most = max(most, now)
    return most


def longest(spans: Sequence[Sequence[Any]]) -> float:
    """The longest time that a stage needs from its first thing to its last."""
    return max(of_stage[-1][3] - of_stage[0][2] for of_stage in spans)


# ---- the truth: a run without a pipeline -----------------------------------------------------------------------------


def a_batch(submission: Submission, m: int) -> Array:
    """Random tokens (m, sequences, context + 1)."""
    return submission.random.integers(0, MODEL["vocabulary"], (m, 2, MODEL["context"] + 1))


def serial(tokens: Array) -> tuple[float, list[Array]]:
    """The loss of all micro-batches, and the gradient of each unit."""
    settings = Settings(PRECISIONS["fp64"], SGD(), accumulate=len(tokens))
    engine = Engine(gpt(GPTConfig(**MODEL)), settings)
    loss = 0.0
    for of in tokens:
        loss += (found := engine.forward(of[:, :-1], of[:, 1:])).value
        engine.backward(found)
    return loss, [flat.grad for flat in engine.flats]


# ---- orders for the clock and for ranks ------------------------------------------------------------------------------


def one_at_a_time(p: int, m: int, apart: bool = False) -> list[Any]:
    """All of a micro-batch before the next."""
    letters = ("F", "B", "W") if apart else ("F", "BW")
    return [[[letter, k] for k in range(m) for letter in letters]] * p


def in_turns(p: int, m: int, late: Callable[[int], int], apart: bool = True) -> list[Any]:
    """p - s forwards, then a backward and a forward; each W so many backwards late."""
    found = []
    for s in range(p):
        order: list[Any] = [["F", k] for k in range(min(p - s, m))]
        for k in range(m):
            order.append(["B" if apart else "BW", k])
            order += [["W", k - late(s)]] if apart and k >= late(s) else []
            order += [["F", k + p - s]] if k + p - s < m else []
        found.append(order + [["W", k] for k in range(max(m - late(s), 0), m)] * apart)
    return found


def forwards_first(p: int, m: int) -> list[Any]:
    return [[["F", k] for k in range(m)] + [["BW", k] for k in reversed(range(m))]] * p


# ---- clock -----------------------------------------------------------------------------------------------------------


def check_clock(submission: Submission, pipelines: dict[str, Any], costs: dict[str, float], latency: float = 0) -> None:
    costs_said = ", ".join(f"{letter} {cost:g}" for letter, cost in costs.items())
    each = Case(1, f"clock with {costs_said}, latency {latency:g}", [list(pipelines.values())],
                {"costs": costs, "latency": latency})  # fmt: skip
    [[outcome]] = submission.run("times", [each], ["clock"])
    for (name, orders), found in zip(pipelines.items(), outcome.value, strict=True):
        on = f"On {each.label}, {name}"
        if isinstance(found, str):
            lose(
                f"{on}: {'it raises ' + found if found.endswith('Error') else f'it returns {found}'}; spans are wanted."
            )
        wanted = true_clock(orders, costs, latency)
        if len(found) != len(wanted):
            lose(f"{on}: there are spans of {len(found)} stages; {len(wanted)} are wanted.")
        for s, (of_stage, right) in enumerate(zip(found, wanted, strict=True)):
            if isinstance(of_stage, str) or len(of_stage) != len(right):
                much = of_stage if isinstance(of_stage, str) else f"{len(of_stage)} spans"
                lose(
                    f"{on}: stage {s} has {much}; a (letter, k, start, end) for each of {len(right)} things is wanted."
                )
            for span, (letter, k, start, end) in zip(of_stage, right, strict=True):
                if span[:2] != [letter, k] or not np.allclose(span[2:], (start, end), rtol=PRECISE, atol=PRECISE):
                    lose(
                        f"{on}: stage {s} has {span[0]} of {span[1]} from {span[2]:g} to {span[3]:g}; {letter} of {k}"
                        f" from {start:g} to {end:g} is wanted."
                    )


@pytest.mark.points(2, "clock: as early as it can")
def test_clock(submission: Submission) -> None:
    pipelines = {
        "1 stage, 2 micro-batches": one_at_a_time(1, 2),
        "2 stages, 1 micro-batch": one_at_a_time(2, 1),
        "2 stages, 1 micro-batch, W apart": one_at_a_time(2, 1, apart=True),
        "3 stages, all forwards first": forwards_first(3, 4),
        "3 stages, in turns": in_turns(3, 5, lambda s: 0, apart=False),
        "4 stages, W apart and late": in_turns(4, 6, lambda s: s),
    }
    check_clock(submission, pipelines, ONE)
    check_clock(submission, pipelines, {"F": 3.0, "B": 2.5, "W": 1.25})


@pytest.mark.points(1, "clock: messages take time")
def test_clock_latency(submission: Submission) -> None:
    pipelines = {"3 stages, W apart": one_at_a_time(3, 2, apart=True), "2 stages, late": in_turns(2, 3, lambda s: s)}
    check_clock(submission, pipelines, {"F": 2.0, "B": 2.0, "W": 1.0}, latency=0.5)


@pytest.mark.points(1, "clock: a deadlock is an error, and nothing else is")
def test_clock_deadlock(submission: Submission) -> None:
    stuck = {
        "stage 0 wants BW of 0 before F of 1, stage 1 F of 1 before BW of 0": [
            [["F", 0], ["BW", 0], ["F", 1], ["BW", 1]], [["F", 0], ["F", 1], ["BW", 0], ["BW", 1]],
        ],
        "one stage with W of 0 before B of 0": [[["F", 0], ["W", 0], ["B", 0]]],
        "the last stage with BW of 0 before F of 0": [[["F", 0], ["BW", 0]], [["BW", 0], ["F", 0]]],
        "a stage that leaves F of 0 out": [[["F", 0], ["BW", 0]], []],
    }  # fmt: skip
    fine = {"3 stages, W apart and late": in_turns(3, 4, lambda s: s), "all forwards first": forwards_first(3, 3)}
    each = Case(1, "clock", [[*stuck.values(), *fine.values()]], {"costs": ONE, "latency": 0})
    [[outcome]] = submission.run("times", [each], ["clock"])
    for name, found in zip([*stuck, *fine], outcome.value, strict=True):
        if name in stuck and found != "ValueError":
            what = f"raises {found}" if isinstance(found, str) and found.endswith("Error") else "returns"
            lose(f"On orders that wait for ever, {name}: clock {what}; ValueError is wanted.")
        if name in fine and isinstance(found, str) and found.endswith("Error"):
            lose(f"On orders without a deadlock, {name}: clock raises {found}.")


# ---- schedules -------------------------------------------------------------------------------------------------------


def asked_for(submission: Submission, function: str, pipelines: Sequence[tuple[int, ...]]) -> list[list[Any]]:
    """Of each (p, m, ...) the orders of all stages."""
    mine = [[s, *of] for of in pipelines for s in range(of[0])]
    [[outcome]] = submission.run("orders", [Case(1, function, [mine], {"function": function})], [function])
    orders = iter(outcome.value)
    return [[next(orders) for _ in range(of[0])] for of in pipelines]


def on_clock(orders: Sequence[Any], label: str, m: int, costs: dict[str, float] = ONE, v: int = 0) -> list[Any]:
    """Spans. Loses the part for orders that cannot be performed."""
    try:
        check_things(orders, m, v)
        spans = true_clock(orders, costs, v=v)
        check_mail(orders, v)
    except Wrong as wrong:
        lose(f"On {label}: {wrong}.")
    return spans


def said(function: str, of: Sequence[int]) -> str:
    names = ("p", "m", "v" if function == "interleaved" else "limit")
    return f"{function} with " + ", ".join(f"{name} = {value}" for name, value in zip(names, of, strict=False))


def check_gradients(submission: Submission, function: str, p: int, m: int, *more: int) -> None:
    """The schedule on ranks, performed by the lesson's own `perform`."""
    tokens = a_batch(submission, m)
    label = f"{said(function, (p, m, *more))} on {p} ranks"
    each = Case(p, label, [tokens] * p, {"function": function, "more": list(more), "model": MODEL})
    check_step(each, submission.run("with_orders", [each], [function])[0], tokens)


def check_step(each: Case, outcomes: Sequence[Outcome], tokens: Array) -> None:
    loss, truth = serial(tokens)
    found = [gradient for outcome in outcomes for gradient in outcome.value["gradients"]]
    if not abs(outcomes[-1].value["loss"] - loss) <= PRECISE * loss:
        lose(f"On {each.label}: the loss is {outcomes[-1].value['loss']:.6g}; without a pipeline it is {loss:.6g}.")
    stage_of = [s for s, outcome in enumerate(outcomes) for _ in outcome.value["gradients"]]
    for s, gradient, right in zip(stage_of, found, truth, strict=True):
        size = float(np.linalg.norm(right))
        if not np.linalg.norm(gradient - right) <= PRECISE * size:
            off = 100 * np.linalg.norm(gradient - right) / size
            lose(f"On {each.label}: the gradient of stage {s} is {off:.2g}% off, beside a run without a pipeline.")


@pytest.mark.points(2, "gpipe: all forwards, then all backwards")
def test_gpipe(submission: Submission) -> None:
    pipelines = ((2, 1), (1, 3), (2, 3), (4, 8), (8, 2))
    for (p, m), orders in zip(pipelines, asked_for(submission, "gpipe", pipelines), strict=True):
        label = said("gpipe", (p, m))
        on_clock(orders, label, m)
        for s, order in enumerate(orders):
            letters = "".join(letter[0] for letter, _ in order)
            if letters != "F" * m + "B" * m or any(letter != "BW" for letter, _ in order[m:]):
                lose(f"On {label}: stage {s} does {', '.join(map(named, order))}: first all F, then all BW.")
            if [k for _, k in order[m:]] != [*reversed(range(m))]:
                lose(
                    f"On {label}: stage {s} begins its backwards with micro-batch {order[m][1]}; the last one's is"
                    " wanted."
                )
    check_gradients(submission, "gpipe", 3, 4)


def check_span(label: str, spans: Sequence[Any], wanted: float, than: str) -> None:
    if longest(spans) > wanted + PRECISE:
        lose(
            f"On {label}: a stage needs {longest(spans):g} units of time from its first thing to its last; {wanted:g}"
            f" {than}."
        )


@pytest.mark.points(2, "one_f_one_b: no deadlock, and it idles no longer than GPipe")
def test_one_f_one_b(submission: Submission) -> None:
    pipelines = ((1, 2), (2, 3), (3, 2), (4, 8), (6, 6))
    for (p, m), orders in zip(pipelines, asked_for(submission, "one_f_one_b", pipelines), strict=True):
        label = said("one_f_one_b", (p, m))
        check_span(label, on_clock(orders, label, m), 3 * (m + p - 1), "is wanted")
        if any(letter in ("B", "W") for order in orders for letter, _ in order):
            lose(f"On {label}: B and W are apart; 1F1B has them in one, BW.")
    check_gradients(submission, "one_f_one_b", 3, 4)


@pytest.mark.points(1, "one_f_one_b: p - s micro-batches on stage s")
def test_one_f_one_b_memory(submission: Submission) -> None:
    pipelines = ((2, 4), (4, 8), (5, 12))
    for (p, m), orders in zip(pipelines, asked_for(submission, "one_f_one_b", pipelines), strict=True):
        check_held(said("one_f_one_b", (p, m)), orders, [p - s for s in range(p)])


def check_held(label: str, orders: Sequence[Any], limits: Sequence[int]) -> None:
    """No stage holds more than its limit."""
    for s, (order, limit) in enumerate(zip(orders, limits, strict=True)):
        if not isinstance(order, list) or not all(isinstance(thing, list) and len(thing) >= 2 for thing in order):
            lose(f'On {label}: stage {s} has no list of things such as ("F", 0).')
        if not order:
            lose(f"On {label}: stage {s} does nothing.")
        if held(order) > limit:
            lose(f"On {label}: stage {s} holds {held(order)} micro-batches at a time; at most {limit} are wanted.")


@pytest.mark.points(2, "zb_h1: W fills what was idle")
def test_zb_h1(submission: Submission) -> None:
    pipelines = ((1, 2), (2, 4), (4, 8), (5, 5), (4, 2), (3, 1))
    costs = {"F": 3.0, "B": 3.0, "W": 2.0}
    for (p, m), orders in zip(pipelines, asked_for(submission, "zb_h1", pipelines), strict=True):
        label = said("zb_h1", (p, m))
        spans = on_clock(orders, f"{label}, F 3, B 3, W 2", m, costs)
        if m >= 2 * p:
            check_span(f"{label}, F 3, B 3, W 2", spans, 8 * m + 4 * (p - 1), "is wanted: m(F+B+W) + (p-1)(F+B-W)")
    check_gradients(submission, "zb_h1", 3, 4)


@pytest.mark.points(1, "zb_h1: p micro-batches on every stage")
def test_zb_h1_memory(submission: Submission) -> None:
    pipelines = ((2, 4), (4, 8), (5, 12))
    for (p, m), orders in zip(pipelines, asked_for(submission, "zb_h1", pipelines), strict=True):
        check_held(said("zb_h1", (p, m)), orders, [p] * p)


# ---- perform ---------------------------------------------------------------------------------------------------------


def performed(
    submission: Submission, kinds: dict[str, tuple[list[Any], int]], **how: Any
) -> list[tuple[Case, list[Outcome], Array]]:
    """What became of these orders, by name: (orders, m)."""
    cases, batches = [], []
    for name, (orders, m) in kinds.items():
        tokens = a_batch(submission, m)
        ranks = f"{len(orders)} rank{'s' * (len(orders) > 1)}"
        cases.append(Case(len(orders), f"{ranks}, {name}", [tokens] * len(orders), {"orders": orders, "model": MODEL}))
        batches.append(tokens)
    return list(zip(cases, submission.run("performing", cases, ["perform"], **how), batches, strict=True))


def check_done(each: Case, outcomes: Sequence[Outcome]) -> None:
    for s, outcome in enumerate(outcomes):
        for wrong in outcome.value["wrong"]:
            lose(f"On {each.label}: {wrong}.")
        done = [list(thing) for thing in outcome.value["done"]]
        wanted = [[letter, k] for both, k in each.arguments["orders"][s] for letter in both]
        if done != wanted:
            i = next(
                (i for i, (a, b) in enumerate(zip(done, wanted, strict=False)) if a != b), min(len(done), len(wanted))
            )
            found, right = (named(of[i]) if i < len(of) else "nothing" for of in (done, wanted))
            lose(f"On {each.label}: thing {i} that stage {s} does is {found}; {right} is wanted.")


@pytest.mark.points(2, "perform: one micro-batch after the other")
def test_perform(submission: Submission) -> None:
    kinds = {
        "one after the other": (one_at_a_time(2, 3), 3),
        "one after the other, B and W apart": (one_at_a_time(3, 2, apart=True), 2),
        "alone": (one_at_a_time(1, 2), 2),
    }
    for each, outcomes, tokens in performed(submission, kinds):
        check_done(each, outcomes)
        check_step(each, outcomes, tokens)


@pytest.mark.points(2, "perform: an array of its own for each micro-batch")
def test_perform_arrays(submission: Submission) -> None:
    both_ways = [*one_at_a_time(1, 1)[0], *[[letter, 1] for letter in ("F", "B", "W")]]
    kinds = {
        "one after the other": ([both_ways] * 3, 2),
        "all forwards first": (forwards_first(3, 4), 4),
        "1F1B": (in_turns(3, 5, lambda s: 0, apart=False), 5),
        "W late": (in_turns(3, 4, lambda s: s), 4),
    }
    (plain, first, at_first), *runs = performed(submission, kinds)
    try:
        check_step(plain, first, at_first)
        right = True
    except pytest.fail.Exception:
        right = False
    for each, outcomes, tokens in runs:
        for s, outcome in enumerate(outcomes):
            for k, other, what in outcome.value["overwritten"]:
                lose(
                    f"On {each.label}: stage {s} received the {what} of micro-batch {other} into an array of"
                    f" micro-batch {k}, which W of {k} had yet to read."
                )
        if right:
            check_step(each, outcomes, tokens)


@pytest.mark.points(1, "perform: a gradient goes as soon as it is made")
def test_perform_early(submission: Submission) -> None:
    kinds = {"B and W apart": (one_at_a_time(3, 2, apart=True), 2), "W late": (in_turns(3, 4, lambda s: s), 4)}
    for each, outcomes, _ in performed(submission, kinds):
        for s, outcome in enumerate(outcomes):
            if ["W", 0] not in [list(thing) for thing in outcome.value["done"]]:
                lose(f"On {each.label}: stage {s} never comes to W of 0.")
            if outcome.value["late"]:
                k = outcome.value["late"][0]
                lose(
                    f"On {each.label}: when stage {s} begins W of {k}, the gradient that B has made has not been sent."
                )


@pytest.mark.points(1, "perform: sends wait for nobody, and are waited for")
def test_perform_waits(submission: Submission) -> None:
    kinds = {"1F1B": (in_turns(3, 4, lambda s: 0, apart=False), 4)}
    performed(submission, kinds, rules=STRICT, guarded=True)


# ---- a goal ----------------------------------------------------------------------------------------------------------


@pytest.mark.points(1, "shorter: than 1F1B, in its memory")
def test_shorter(submission: Submission) -> None:
    pipelines = ((2, 4, 2), (3, 6, 3), (4, 8, 4), (4, 11, 4))
    for (p, m, limit), orders in zip(pipelines, asked_for(submission, "shorter", pipelines), strict=True):
        label = said("shorter", (p, m, limit))
        spans = on_clock(orders, label, m)
        check_held(label, orders, [limit] * p)
        check_span(label, spans, 3 * (m + p - 1) - 1, f"or less is wanted: 1F1B needs {3 * (m + p - 1)}")
    check_gradients(submission, "shorter", 3, 6, 3)


@pytest.mark.points(1, "shorter: with each micro-batch more")
def test_shorter_more(submission: Submission) -> None:
    pipelines = [(p, m, limit) for p, m in ((3, 6), (4, 9)) for limit in range(p, 2 * p)]
    before = 0.0
    for (p, m, limit), orders in zip(pipelines, asked_for(submission, "shorter", pipelines), strict=True):
        label = said("shorter", (p, m, limit))
        spans = on_clock(orders, label, m)
        if limit > p:
            check_held(label, orders, [limit] * p)
            check_span(label, spans, before - 1, f"or less is wanted: with limit = {limit - 1} yours needs {before:g}")
        before = longest(spans)


@pytest.mark.points(0, "bonus, interleaved: v chunks on each stage")
def test_interleaved(submission: Submission) -> None:
    pipelines = ((2, 2, 2), (2, 4, 1), (4, 8, 2), (3, 6, 3))
    for (p, m, v), orders in zip(pipelines, asked_for(submission, "interleaved", pipelines), strict=True):
        label = said("interleaved", (p, m, v))
        spans = on_clock(orders, label, m, v=v)
        check_span(
            label,
            spans,
            3 * (v * m + p - 1),
            f"is wanted (a chunk's F is one unit): (p-1)/(v·m) = {p - 1}/{v * m} idle",
        )


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


def check_values(submission: Submission, function: str, cases: dict[str, tuple[list[Any], Any]], target: str) -> None:
    """A gap's function on some arguments: by name, (arguments, what is wanted)."""
    each = Case(1, function, [[arguments for arguments, _ in cases.values()]],
                {"function": function} if target == "order_of" else {})  # fmt: skip
    [[outcome]] = submission.run(target, [each], [function])
    for (name, (_, wanted)), found in zip(cases.items(), outcome.value, strict=True):
        if isinstance(wanted, list):
            if found != wanted:
                shown = ", ".join(str(tuple(thing)) for thing in found) if isinstance(found, list) else found
                lose(f"{function}({name}) is {shown}; {', '.join(str(tuple(thing)) for thing in wanted)} is wanted.")
        elif not isinstance(found, float) or abs(found - wanted) > PRECISE:
            was = f"{found:.4g}" if isinstance(found, float) else "None" if found == "NoneType" else found
            lose(f"{function}: {name}: it is {was}; {wanted:.4g} is wanted.")


def check_idle_share(submission: Submission) -> None:
    cases = {}
    for name, orders in {
        "one stage": one_at_a_time(1, 2), "2 stages, 1 micro-batch": one_at_a_time(2, 1),
        "3 stages, 4 micro-batches": forwards_first(3, 4),
    }.items():  # fmt: skip
        spans = true_clock(orders, ONE)
        step = max(of[-1][3] for of in spans)
        busy = sum(end - start for of in spans for *_, start, end in of)
        cases[name] = ([[list(span) for span in of] for of in spans], 1 - busy / (len(spans) * step))
    check_values(submission, "idle_share", cases, "share")


def check_forwards_first(submission: Submission) -> None:
    cases = {str(m): ([m], forwards_first(1, m)[0]) for m in (1, 2, 4)}
    check_values(submission, "forwards_first", cases, "order_of")


def check_in_flight(submission: Submission) -> None:
    kinds = {
        "all forwards first, 4 micro-batches": forwards_first(1, 4)[0],
        "one at a time": one_at_a_time(1, 3)[0],
        "in turns": in_turns(3, 5, lambda s: 0, apart=False)[0],
        "B and W apart, W late": in_turns(3, 5, lambda s: s)[2],
    }
    check_values(submission, "in_flight", {name: ([order], held(order)) for name, order in kinds.items()}, "order_of")


def check_updates_between(submission: Submission) -> None:
    turns = in_turns(4, 8, lambda s: 0, apart=False)
    cases = {f"stage {s} of 4, micro-batch {k}": ([turns[s], k], min(3 - s, k)) for s in range(4) for k in (0, 1, 5)}
    check_values(submission, "updates_between", cases, "order_of")


def check_b_and_w_apart(submission: Submission) -> None:
    pipelines = ((4, 6, 2, 2), (3, 5, 0, 0), (5, 7, 1, 1), (2, 4, 0, 3))  # p, m, the stage, how late
    cases = {
        f"{m}, {p - s}, {late}": ([m, p - s, late], in_turns(p, m, lambda s, late=late: late)[s])
        for p, m, s, late in pipelines
    }
    check_values(submission, "b_and_w_apart", cases, "order_of")


GAPS = {
    "idle_share": check_idle_share,
    "forwards_first": check_forwards_first,
    "in_flight": check_in_flight,
    "b_and_w_apart": check_b_and_w_apart,
    "updates_between": check_updates_between,
}


PARTS = {
    "clock": together(test_clock, test_clock_latency, test_clock_deadlock),
    "one_f_one_b": together(test_one_f_one_b, test_one_f_one_b_memory),
    "zb_h1": together(test_zb_h1, test_zb_h1_memory),
    "perform": together(test_perform, test_perform_arrays, test_perform_early, test_perform_waits),
    "shorter": together(test_shorter, test_shorter_more),
}
