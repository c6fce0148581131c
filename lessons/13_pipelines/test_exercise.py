"""The grade of lesson 13: `pytest lessons/13_pipelines`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew. Orders, costs and sizes are drawn for each
grade. No part compares with another solution. It asks for what holds of every right answer. On a clock each thing
begins as soon as what it needs is there. A schedule has no deadlock, and idles no longer and holds no more than it may.
Its gradients on ranks are those of a run without a pipeline. A part earns its points or not; none needs a later one,
and one mistake costs one part.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import gaps, is_right, lessons_own, parts_by_function
from minidist.classroom.grading.parts import ask, describe, ranks
from minidist.classroom.grading.submission import STRICT, Case, Outcome, Submission, lose
from minidist.engine import Engine, Settings
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import SGD
from minidist.nn.precision import PRECISIONS

Array = np.ndarray
ASKED = ("clock", "gpipe", "one_f_one_b", "zb_h1", "perform", "shorter", "interleaved")
# What a submission cannot import.
HIDDEN = ("answers", "given", "minidist.pp.schedules", "minidist.pp.folded", "minidist.pipeline")
PRECISE = 1e-9
ONE = {"F": 1.0, "B": 1.0, "W": 1.0}
MODEL = {"vocabulary": 16, "context": 6, "layers": 2, "heads": 2, "width": 8, "tied": False}

Thing = tuple[str, int, int]  # "F", "B" (or "BW") or "W"; the micro-batch; the part of the model


# ---- what holds of every order and of every clock --------------------------------------------------------------------


class Wrong(Exception):
    """What is wrong with some orders."""


own = partial(lessons_own, __file__)  # its functions say when a student's schedule does what


def named(thing: Sequence[Any]) -> str:
    return f"{thing[0]} of {thing[1]}" + (f" in chunk {thing[2]}" if len(thing) > 2 else "")


def check_things(orders: Sequence[Any], m: int, v: int = 0) -> None:
    """Every stage does everything once. v: how many chunks it has, where things name one. Raises Wrong."""
    letters = ("F", "BW") if v else ("F", "B", "W", "BW")
    wanted = [(k, c) for k in range(m) for c in range(max(v, 1))]
    shape = '("F", k, chunk)' if v else '("F", k)'
    for s, order in enumerate(orders):
        if not isinstance(order, list):
            raise Wrong(f"stage {s} has {describe(order)}, not a list of things such as {shape}")
        for thing in order:
            if not isinstance(thing, list) or len(thing) != 2 + (v > 0) or thing[0] not in letters:
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


def thing_of(stage: int, p: int, thing: Sequence[Any]) -> Thing:
    letter, k, chunk = padded([thing], [thing[0]])[0]
    return letter[0], k, chunk * p + stage


def needs(thing: Thing, parts: int) -> list[Thing]:
    """What must have ended before, in addition to what the stage itself did last."""
    letter, k, part = thing
    if letter == "F":
        return [("F", k, part - 1)] if part > 0 else []
    if letter == "W":
        return [("B", k, part)]
    return [("F", k, part), *([("B", k, part + 1)] if part < parts - 1 else [])]


def check_deadlock(orders: Sequence[Any], v: int = 0) -> None:
    """No thing waits for itself, through others. Raises Wrong."""
    p, graph, letters = len(orders), TopologicalSorter[Thing](), dict[Thing, str]()
    for s, order in enumerate(orders):
        before: list[Thing] = []
        for thing in order:
            node = thing_of(s, p, thing)
            graph.add(node, *before, *needs(node, p * max(v, 1)))
            before, letters[node] = [node], thing[0]
    try:
        graph.prepare()
    except CycleError as error:
        first, *others = (f"{letters[node]} of {node[1]} on stage {node[2] % p}" for node in reversed(error.args[1]))
        raise Wrong(f"deadlock: {first} waits for {', which waits for '.join(others)}") from None


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


def draw_orders(submission: Submission, p: int, m: int, letters: str = "", first: str = "") -> list[Any]:
    """Any orders that can be performed, of m micro-batches. Each thing is drawn from those that can be done next.

    letters: "BW" for a backward in one, "B W" for one in two; else each is drawn
    first: "F" for all forwards before anything else
    """
    orders: list[list[Any]] = [[] for _ in range(p)]
    while choice := list(can_be_done(orders, m)):
        choice = [each for each in choice if each[1][0] == first] or choice
        s, (letter, k) = choice[submission.random.integers(len(choice))]
        if letter == "B" and (letters or ("BW", "B W")[submission.random.integers(2)]) == "BW":
            letter = "BW"
        orders[s].append([letter, k])
    return orders


def can_be_done(orders: Sequence[Any], m: int) -> Iterator[tuple[int, list[Any]]]:
    """What each stage could do next, with (letter, k): what it needs is there, and arrives in the order of sending."""
    p = len(orders)
    done = [{letter: [k for each, k in order if each[0] == letter] for letter in "FBW"} for order in orders]
    for s, (mine, order) in enumerate(zip(done, orders, strict=True)):
        forwards = done[s - 1]["F"] if s > 0 else range(m)
        backwards = done[s + 1]["B"] if s < p - 1 else mine["F"]
        yield from ((s, ["F", k]) for k in forwards[len(mine["F"]) : len(mine["F"]) + 1])
        waiting = [k for k in backwards if k not in mine["B"] and k in mine["F"]]
        yield from ((s, ["B", k]) for k in (waiting if s == p - 1 else waiting[:1]))
        yield from ((s, ["W", k]) for k in mine["B"] if k not in mine["W"] and ["BW", k] not in order)


def one_at_a_time(p: int, m: int, apart: bool = False) -> list[Any]:
    """All of a micro-batch before the next."""
    letters = ("F", "B", "W") if apart else ("F", "BW")
    return [[[letter, k] for k in range(m) for letter in letters]] * p


def draw_costs(submission: Submission) -> dict[str, float]:
    return {letter: float(cost) for letter, cost in zip("FBW", submission.random.integers(2, 20, 3) / 4, strict=True)}


def draw_sizes(submission: Submission, count: int, least: int = 1) -> list[tuple[int, int]]:
    """(p, m), with at least `least` micro-batches for each stage."""
    stages = [int(p) for p in submission.random.integers(2, 7, count)]
    return [(p, least * p + int(submission.random.integers(0, 4))) for p in stages]


# ---- clock -----------------------------------------------------------------------------------------------------------


def check_clock(submission: Submission, pipelines: dict[str, Any], costs: dict[str, float], latency: float = 0) -> None:
    costs_said = ", ".join(f"{letter} {cost:g}" for letter, cost in costs.items())
    label, given = f"clock with {costs_said}, latency {latency:g}", list(pipelines.values())
    times = ask(submission, "times", "clock", given, label, costs=costs, latency=latency)
    for (name, orders), found in zip(pipelines.items(), times, strict=True):
        on = f"On {label}, {name}"
        if isinstance(found, str):
            lose(
                f"{on}: {'it raises ' + found if found.endswith('Error') else f'it returns {found}'}; spans are wanted."
            )
        if len(found) != len(orders):
            lose(f"{on}: there are spans of {len(found)} stages; {len(orders)} are wanted.")
        for s, (of_stage, order) in enumerate(zip(found, orders, strict=True)):
            if isinstance(of_stage, str) or len(of_stage) != len(order):
                much = of_stage if isinstance(of_stage, str) else f"{len(of_stage)} spans"
                lose(
                    f"{on}: stage {s} has {much}; a (letter, k, start, end) for each of {len(order)} things is wanted."
                )
            if wrong := [(span, thing) for span, thing in zip(of_stage, order, strict=True) if span[:2] != thing]:
                span, thing = wrong[0]
                lose(f"{on}: stage {s} has a span of {named(span)} where its order has {named(thing)}.")
        check_spans(on, orders, found, costs, latency)


def check_spans(on: str, orders: Sequence[Any], spans: Any, costs: dict[str, float], latency: float) -> None:
    """Each thing begins as early as it can, and takes its time: seen from the ends of what it needs. In an order
    without a deadlock only one set of times has this property."""
    p = len(orders)
    ends = {thing_of(s, p, span[:2]): span[3] for s, of_stage in enumerate(spans) for span in of_stage}
    for s, of_stage in enumerate(spans):
        bounds = {"everything begins at 0": 0.0}
        for letter, k, start, end in of_stage:
            for before in needs(thing_of(s, p, (letter, k)), p):
                far = before[2] != s
                message = f", and a message takes {latency:g}" if far and latency else ""
                bounds[f"{named(before[:2])} on stage {before[2]} ends at {ends[before]:g}{message}"] = (
                    ends[before] + latency * far
                )
            earliest, time = max(bounds.values()), sum(costs[each] for each in letter)
            if not np.allclose((start, end), (earliest, earliest + time), rtol=PRECISE, atol=PRECISE):
                why = next(words for words, bound in bounds.items() if bound == earliest)
                lose(
                    f"{on}: stage {s} has {letter} of {k} from {start:g} to {end:g}; from {earliest:g} to"
                    f" {earliest + time:g} is wanted: {why}."
                )
            bounds = {f"{letter} of {k} ends on the same stage at {end:g}": end}


@pytest.mark.points(2, "clock: as early as it can")
def test_clock(submission: Submission) -> None:
    pipelines = {
        "1 stage, 2 micro-batches": one_at_a_time(1, 2),
        "2 stages, 1 micro-batch": one_at_a_time(2, 1),
        "2 stages, 1 micro-batch, W apart": one_at_a_time(2, 1, apart=True),
        "3 stages, all forwards first": draw_orders(submission, 3, 4, "BW", first="F"),
        "3 stages": draw_orders(submission, 3, 5, "BW"),
        "4 stages, W apart": draw_orders(submission, 4, 6, "B W"),
        "5 stages, some W apart": draw_orders(submission, 5, 4),
    }
    check_clock(submission, pipelines, ONE)
    check_clock(submission, pipelines, draw_costs(submission))


@pytest.mark.points(1, "clock: messages take time")
def test_clock_latency(submission: Submission) -> None:
    """Of one micro-batch, so that no thing waits until its stage has done another one."""
    pipelines = {f"{p} stages, 1 micro-batch, W apart": one_at_a_time(p, 1, apart=True) for p in (2, 3, 5)}
    check_clock(submission, pipelines, draw_costs(submission), latency=float(submission.random.integers(1, 9) / 4))


@pytest.mark.points(1, "clock: a deadlock is an error, and nothing else is")
def test_clock_deadlock(submission: Submission) -> None:
    i, j = (int(k) for k in submission.random.permutation(3)[:2])
    stuck = {
        f"stage 0 wants BW of {i} before F of {j}, stage 1 F of {j} before BW of {i}": [
            [["F", i], ["BW", i], ["F", j], ["BW", j]], [["F", i], ["F", j], ["BW", i], ["BW", j]],
        ],
        f"one stage with W of {i} before B of {i}": [[["F", i], ["W", i], ["B", i]]],
        f"the last stage with BW of {j} before F of {j}": [[["F", j], ["BW", j]], [["BW", j], ["F", j]]],
        f"a stage that leaves F of {j} out": [[["F", j], ["BW", j]], []],
    }  # fmt: skip
    fine = {f"{p} stages": draw_orders(submission, p, m) for p, m in ((3, 4), (2, 6), (5, 3))}
    found_in = ask(submission, "times", "clock", [*stuck.values(), *fine.values()], costs=ONE, latency=0)
    for name, found in zip([*stuck, *fine], found_in, strict=True):
        if name in stuck and found != "ValueError":
            what = f"raises {found}" if isinstance(found, str) and found.endswith("Error") else "returns"
            lose(f"On orders that wait for ever, {name}: clock {what}; ValueError is wanted.")
        if name in fine and isinstance(found, str) and found.endswith("Error"):
            lose(f"On orders without a deadlock, {name}: clock raises {found}.")


# ---- schedules -------------------------------------------------------------------------------------------------------


def asked_for(
    submission: Submission, function: str, pipelines: Sequence[tuple[int, ...]]
) -> Iterator[tuple[tuple[int, ...], str, list[Any]]]:
    """Each (p, m, ...), the call in words, and the orders of all stages."""
    mine = [[s, *of] for of in pipelines for s in range(of[0])]
    orders = iter(ask(submission, "orders", function, mine, function=function))
    for of in pipelines:
        yield of, said(function, of), [next(orders) for _ in range(of[0])]


def on_clock(orders: Sequence[Any], label: str, m: int, costs: dict[str, float] = ONE, v: int = 0) -> list[Any]:
    """Spans. Loses the part for orders that cannot be performed."""
    try:
        check_things(orders, m, v)
        check_deadlock(orders, v)
        check_mail(orders, v)
    except Wrong as wrong:
        lose(f"On {label}: {wrong}.")
    return list(own("clock_of_chunks" if v else "clock")(orders, costs))


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
            lose(f"On {each.label}: the gradient of stage {s} is {off:.2g}% off that of a run without a pipeline.")


@pytest.mark.points(2, "gpipe: all forwards, then all backwards")
def test_gpipe(submission: Submission) -> None:
    pipelines = [(2, 1), (1, 3), (2, 3), (8, 2), *draw_sizes(submission, 3)]
    for (_, m), label, orders in asked_for(submission, "gpipe", pipelines):
        on_clock(orders, label, m)
        for s, order in enumerate(orders):
            check_forwards_first(f"On {label}: stage {s}", order, m)
    check_gradients(submission, "gpipe", 3, 4)


def check_forwards_first(who: str, order: Sequence[Any], m: int) -> None:
    """Of an order that does everything once."""
    letters = "".join(letter[0] for letter, _ in order)
    if letters != "F" * m + "B" * m or any(letter != "BW" for letter, _ in order[m:]):
        lose(f"{who} does {', '.join(map(named, order))}: first all F, then all BW.")
    if any(later > earlier for (_, earlier), (_, later) in itertools.pairwise(order[m:])):
        lose(f"{who} begins its backwards with micro-batch {order[m][1]}; the last one's is wanted.")


def check_span(label: str, spans: Sequence[Any], wanted: float, than: str) -> None:
    if longest(spans) > wanted + PRECISE:
        lose(
            f"On {label}: a stage needs {longest(spans):g} units of time from its first thing to its last; {wanted:g}"
            f" {than}."
        )


@pytest.mark.points(2, "one_f_one_b: no deadlock, and it idles no longer than GPipe")
def test_one_f_one_b(submission: Submission) -> None:
    """A stage that holds more than p - s may idle as long as one that takes turns so: the part on memory asks for
    p - s."""
    pipelines = [(1, 2), (2, 3), (3, 2), (4, 8), *draw_sizes(submission, 2)]
    for (p, m), label, orders in asked_for(submission, "one_f_one_b", pipelines):
        spans = on_clock(orders, label, m)
        ahead = [max(p - s, held(order)) for s, order in enumerate(orders)]
        in_turns = own("clock")([own("one_f_one_b")(0, most, m) for most in ahead], ONE)  # (0, p, m) begins with p
        check_span(label, spans, max(3 * (m + p - 1), longest(in_turns)), "is wanted")
        if any(letter in ("B", "W") for order in orders for letter, _ in order):
            lose(f"On {label}: B and W are apart; 1F1B has them in one, BW.")
    check_gradients(submission, "one_f_one_b", 3, 4)


@pytest.mark.points(1, "one_f_one_b: p - s micro-batches on stage s")
def test_one_f_one_b_memory(submission: Submission) -> None:
    pipelines = [(2, 4), (4, 8), *draw_sizes(submission, 2)]
    for (p, _), label, orders in asked_for(submission, "one_f_one_b", pipelines):
        check_held(label, orders, [p - s for s in range(p)])


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
    pipelines = [(1, 2), (2, 4), (4, 8), (5, 5), (4, 2), (3, 1), *draw_sizes(submission, 2, least=2)]
    costs = {"F": 3.0, "B": 3.0, "W": 2.0}
    for (p, m), label, orders in asked_for(submission, "zb_h1", pipelines):
        spans = on_clock(orders, f"{label}, F 3, B 3, W 2", m, costs)
        if m >= 2 * p:
            check_span(f"{label}, F 3, B 3, W 2", spans, 8 * m + 4 * (p - 1), "is wanted: m(F+B+W) + (p-1)(F+B-W)")
    check_gradients(submission, "zb_h1", 3, 4)


@pytest.mark.points(1, "zb_h1: p micro-batches on every stage")
def test_zb_h1_memory(submission: Submission) -> None:
    pipelines = [(2, 4), (4, 8), *draw_sizes(submission, 2, least=2)]
    for (p, _), label, orders in asked_for(submission, "zb_h1", pipelines):
        check_held(label, orders, [p] * p)
        if not any(thing[0] == "W" for order in orders for thing in order):
            lose(f"On {label}: B and W are in one, as in 1F1B; here they are apart.")


# ---- perform ---------------------------------------------------------------------------------------------------------


def performed(
    submission: Submission, kinds: dict[str, tuple[list[Any], int]], **how: Any
) -> list[tuple[Case, list[Outcome], Array]]:
    """What became of these orders, by name: (orders, m)."""
    cases, batches = [], []
    for name, (orders, m) in kinds.items():
        tokens = a_batch(submission, m)
        cases.append(
            Case(
                len(orders), f"{ranks(len(orders))}, {name}", [tokens] * len(orders), {"orders": orders, "model": MODEL}
            )
        )
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
        "all forwards first": (draw_orders(submission, 3, 4, "BW", first="F"), 4),
        "a drawn order": (draw_orders(submission, 3, 5, "BW"), 5),
        "a drawn order, W apart": (draw_orders(submission, 3, 4, "B W"), 4),
    }
    (plain, first, at_first), *runs = performed(submission, kinds)
    right = is_right(check_step, plain, first, at_first)
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
    kinds = {
        "B and W apart": (one_at_a_time(3, 2, apart=True), 2),
        "a drawn order, W apart": (draw_orders(submission, 3, 4, "B W"), 4),
    }
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
    crossing = [[["F", 0], ["F", 1], ["BW", 0], ["BW", 1]], [["F", 0], ["BW", 0], ["F", 1], ["BW", 1]]]
    kinds = {
        "F of 1 and the gradient of 0 crossing": (crossing, 2),
        "a drawn order": (draw_orders(submission, 3, 4, "BW"), 4),
    }
    performed(submission, kinds, rules=STRICT, guarded=True)


# ---- a goal ----------------------------------------------------------------------------------------------------------


@pytest.mark.points(1, "shorter: than 1F1B, in its memory")
def test_shorter(submission: Submission) -> None:
    pipelines = [(2, 4, 2), (3, 6, 3), (4, 8, 4), *((p, m, p) for p, m in draw_sizes(submission, 2, least=2))]
    for (p, m, limit), label, orders in asked_for(submission, "shorter", pipelines):
        spans = on_clock(orders, label, m)
        check_held(label, orders, [limit] * p)
        check_span(label, spans, 3 * (m + p - 1) - 1, f"or less is wanted: 1F1B needs {3 * (m + p - 1)}")
    check_gradients(submission, "shorter", 3, 6, 3)


@pytest.mark.points(1, "shorter: with each micro-batch more")
def test_shorter_more(submission: Submission) -> None:
    sizes = [(3, 6), *draw_sizes(submission, 1, least=2)]
    pipelines = [(p, m, limit) for p, m in sizes for limit in range(p, 2 * p)]
    before = 0.0
    for (p, m, limit), label, orders in asked_for(submission, "shorter", pipelines):
        spans = on_clock(orders, label, m)
        if limit > p:
            check_held(label, orders, [limit] * p)
            check_span(label, spans, before - 1, f"or less is wanted: with limit = {limit - 1} yours needs {before:g}")
        before = longest(spans)


@pytest.mark.points(0, "bonus, interleaved: v chunks on each stage")
def test_interleaved(submission: Submission) -> None:
    pipelines = ((2, 2, 2), (2, 4, 1), (4, 8, 2), (3, 6, 3))
    for (p, m, v), label, orders in asked_for(submission, "interleaved", pipelines):
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
    values = ask(submission, target, function, [arguments for arguments, _ in cases.values()], function=function)
    for (name, (_, wanted)), found in zip(cases.items(), values, strict=True):
        if isinstance(wanted, list):
            if found != wanted:
                shown = ", ".join(str(tuple(thing)) for thing in found) if isinstance(found, list) else found
                lose(f"{function}({name}) is {shown}; {', '.join(str(tuple(thing)) for thing in wanted)} is wanted.")
        elif not isinstance(found, float) or abs(found - wanted) > PRECISE:
            was = f"{found:.4g}" if isinstance(found, float) else describe(found)
            lose(f"{function}: {name}: it is {was}; {wanted:.4g} is wanted.")


def check_idle_share(submission: Submission) -> None:
    cases = {}
    for name, orders in {
        "one stage": one_at_a_time(1, 2), "2 stages, 1 micro-batch": one_at_a_time(2, 1),
        "3 stages, 4 micro-batches": draw_orders(submission, 3, 4, first="F"),
    }.items():  # fmt: skip
        spans = own("clock")(orders, ONE)
        cases[name] = ([spans], own("idle_share")(spans))
    check_values(submission, "idle_share", cases, "share")


def orders_of(submission: Submission, function: str, asked: Sequence[list[Any]]) -> Iterator[tuple[str, list[Any]]]:
    """What a gap's function returns for each list of arguments, with the call in words."""
    for arguments, found in zip(asked, ask(submission, "order_of", function, asked, function=function), strict=True):
        call = f"{function}({', '.join(map(str, arguments))})"
        try:
            check_things([found], arguments[0])
        except Wrong as wrong:
            lose(f"{call}: {wrong}.")
        yield call, found


def check_forwards_first_gap(submission: Submission) -> None:
    for call, order in orders_of(submission, "forwards_first", [[m] for m in (1, 2, 4)]):
        check_forwards_first(f"{call}: it", order, len(order) // 2)


def check_in_flight(submission: Submission) -> None:
    kinds = {
        "all forwards first, 4 micro-batches": draw_orders(submission, 1, 4, "BW", first="F")[0],
        "one at a time": one_at_a_time(1, 3)[0],
        "a drawn order": draw_orders(submission, 3, 5, "BW")[0],
        "a drawn order, W apart": draw_orders(submission, 3, 5, "B W")[2],
    }
    check_values(submission, "in_flight", {name: ([order], held(order)) for name, order in kinds.items()}, "order_of")


def check_updates_between(submission: Submission) -> None:
    turns = [[list(thing) for thing in own("one_f_one_b")(s, 4, 8)] for s in range(4)]
    cases = {f"stage {s} of 4, micro-batch {k}": ([turns[s], k], min(3 - s, k)) for s in range(4) for k in (0, 1, 5)}
    check_values(submission, "updates_between", cases, "order_of")


def check_b_and_w_apart(submission: Submission) -> None:
    """How many of each letter stand before a thing says where it belongs."""
    asked = [[6, 2, 2], [5, 3, 0], [7, 4, 1], [4, 2, 3]]  # m, ahead, late
    for (m, ahead, late), (call, order) in zip(asked, orders_of(submission, "b_and_w_apart", asked), strict=True):
        before = {"F": 0, "B": 0, "W": 0}
        for letter, k in order:
            others = {
                "F": {"F": k, "B": max(k - ahead + 1, 0), "W": max(k - ahead - late + 1, 0)},
                "B": {"F": min(k + ahead, m), "B": k, "W": max(k - late, 0)},
                "W": {"W": k, "B": min(k + late + 1, m)},
            }.get(letter, {"F": -1})
            for other, number in others.items():
                if before[other] != number:
                    lose(
                        f"{call}: before {letter} of {k} there are {before[other]} {other}; {max(number, 0)} are"
                        f" wanted. It is {', '.join(map(named, order))}."
                    )
            before[letter] += 1


def check_stage_of(submission: Submission) -> None:
    """Neighbors: in a V, parts 2p-1-i and i meet; crossed, stage and part count from opposite ends."""
    cases = {}
    for p in (1, 3, 4):
        there = [*range(p)]
        for shape, stages in {"loop": there * 2, "v": there + there[::-1], "cross": there[::-1]}.items():
            for part, s in enumerate(stages):
                cases[f"part {part}, p = {p}, {shape}"] = [part, p, shape], s
    check_values(submission, "stage_of", cases, "order_of")


GAPS = gaps(globals(), "idle_share", "in_flight", "b_and_w_apart", "updates_between", "stage_of") | {
    "forwards_first": check_forwards_first_gap,
}
PARTS = parts_by_function(globals())
