"""The grade of lesson 11: `pytest lessons/11_offload_and_infinity`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew. Graphs, states and batches are drawn afresh;
what is right is found by trying all placements, by training in a plain loop, by a product of whole matrices.
The disk has a clock of its own (minidist/classroom/notebook/slow_disk.py): nothing depends on how fast a machine is.
A part earns its points or not; none needs a later one, and one mistake costs one part. What an update finds
in a room is asked with a disk that takes no time; whether the room was its own, with a slow one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import an_array, gaps, parts_by_function
from minidist.classroom.grading.parts import alone, large
from minidist.classroom.grading.submission import Case, Submission, lose
from minidist.memory.partition import Partition, best, partitions

Array = np.ndarray
ASKED = ("best_placements", "update_all", "train_delayed", "tiled_backward")
HIDDEN = (  # what a submission cannot import
    "answers",
    "given",
    "minidist.memory.partition",
    "minidist.memory.tiles",
    "minidist.offload",
    "minidist.infinity",
)
SLACK = 1 << 13  # bytes of Python objects and of temporary results


def same(found: Array, expected: Array) -> bool:
    return bool(np.allclose(found, expected, rtol=1e-9, atol=1e-12))


# ---- placements ------------------------------------------------------------------------------------------------------

Edges = list[tuple[str, str, int]]


def a_graph(submission: Submission, both_ways: bool = False) -> dict[str, Any]:
    """A training step of some shape: data around a computation and an update, of sizes as they come. both_ways: as much
    flows back, so that it is no matter which way over the link is counted."""
    random = submission.random.integers
    nodes = ["passes", "p", "g", "update", "s", "t"]
    sizes = {node: int(random(1, 5)) * 2 for node in nodes} | {"passes": 0, "update": 0}
    pairs = [("p", "passes"), ("passes", "g"), ("g", "update"), ("s", "update"), ("update", "s"), ("update", "p")]
    pairs.append(("t", ("s", "update")[random(2)]))
    edges = [(*pair, int(random(1, 5))) for pair in pairs]
    if both_ways:
        edges += [(end, start, nbytes) for start, end, nbytes in edges]
    return {"sizes": sizes, "edges": edges, "on_device": "passes"}


def cheapest_of(every: Sequence[Partition]) -> list[Partition]:
    """Those that take something off the device and send least."""
    everything = max(each.device for each in every)
    least = min(each.moved for each in every if each.device < everything)
    return [each for each in every if each.device < everything and each.moved == least]


def one_way(every: Sequence[Partition], edges: Edges, down: bool) -> list[Partition]:
    """The same, if only what goes down to the host, or up to the device, were counted."""
    return [
        each._replace(moved=sum(n for *ends, n in edges if [end in each.host for end in ends] == [not down, down]))
        for each in every
    ]


def graphs(
    submission: Submission,
    wanted: Callable[[list[Partition], list[Partition]], bool],
    count: int,
    both_ways: bool = False,
) -> list[Case]:
    """`count` graphs whose best placements are as wanted. Both ways over the link must be counted, unless as much flows
    both ways."""
    cases: list[Case] = []
    while len(cases) < count:
        graph = a_graph(submission, both_ways)
        every = list(partitions(**graph))
        found = best(every)
        by_one = [{each.host for each in best(one_way(every, graph["edges"], down))} for down in (True, False)]
        if wanted(cheapest_of(every), found) and ({each.host for each in found} in by_one) == both_ways:
            flows = ", ".join(f"{start}→{end} {nbytes}" for start, end, nbytes in graph["edges"])
            keeps = ", ".join(f"{node} {nbytes}" for node, nbytes in graph["sizes"].items() if nbytes)
            label = f"best_placements where {keeps} bytes are kept and {flows} flow"
            cases.append(Case(1, label, [None], graph))
    return cases


def check_best(submission: Submission, cases: Sequence[Case]) -> None:
    for each, found in zip(cases, alone(submission, "place", "best_placements", cases), strict=True):
        if not isinstance(found, list) or not all(isinstance(host, list) for host in found):
            lose(f"On {each.label}: return a list of sets of nodes; it was {found}.")
        every = list(partitions(**each.arguments))
        by_host = {host: (sent, left) for host, sent, left in every}
        wanted = {host: f"sends {sent} bytes and leaves {left} on the device" for host, sent, left in best(every)}
        for host in map(frozenset, found):
            if host not in by_host:
                lose(f"On {each.label}: {braced(host)} cannot be on the host: {each.arguments['on_device']} cannot.")
            if host not in wanted:
                sent, left = by_host[host]
                one, said = next(iter(wanted.items()))
                lose(
                    f"On {each.label}: {braced(host)} on the host sends {sent} bytes and leaves {left} on the device;"
                    f" {braced(one)} {said}."
                )
        for host, said in wanted.items():
            if host not in map(frozenset, found):
                lose(f"On {each.label}: {braced(host)} on the host is missing: it {said}, which is best.")
        if len(found) > len(wanted):
            lose(f"On {each.label}: a placement is there twice.")


def braced(host: frozenset[str]) -> str:
    return "{" + ", ".join(sorted(host)) + "}"


@pytest.mark.points(3, "best_placements: what sends least, and of that what leaves least")
def test_best_placements(submission: Submission) -> None:
    one = graphs(submission, lambda cheapest, _: len(cheapest) == 1, 3)
    check_best(submission, one + graphs(submission, larger_is_better, 4))


def larger_is_better(cheapest: list[Partition], found: list[Partition]) -> bool:
    """Several send least, one of them leaves least, and it is not the first that one finds, from few nodes to many."""
    return len(found) == 1 and len(found[0].host) > min(len(each.host) for each in cheapest)


@pytest.mark.points(1, "best_placements: all that are equally good")
def test_best_placements_several(submission: Submission) -> None:
    """Which ways over the link count is asked in the part above: here as much flows back."""
    several = graphs(submission, lambda cheapest, found: len(cheapest) == len(found) > 1, 4, both_ways=True)
    check_best(submission, several)


# ---- states from a disk ----------------------------------------------------------------------------------------------


def disk_case(submission: Submission, units: int, read: float, took: float, write: float) -> Case:
    states = submission.random.standard_normal((units, 4))
    speeds = (
        "a disk that takes no time" if read == write == 0 else f"a read takes {read}, an update {took}, a write {write}"
    )
    arguments = {"read": read, "took": took, "write": write}
    return Case(1, f"update_all of {units} unit{'s' * (units > 1)}, {speeds}", [states], arguments)


@pytest.mark.points(2, "update_all: every unit is read, updated and written, once")
def test_update_all(submission: Submission) -> None:
    cases = [disk_case(submission, units, 0, 1, 0) for units in (3, 1, 2, 4, 9)]
    for each, found in zip(cases, alone(submission, "updating", "update_all", cases), strict=True):
        states = each.inputs[0]
        for i, (file, before) in enumerate(zip(found["files"], states, strict=True)):
            if not same(file, 2 * (before + 1)):
                times = found["updated"].count(i)
                what = "was not updated" if times == 0 else f"was updated {times} times" if times > 1 else ""
                instead = "It is as it was before" if same(file, before) else "It is something else"
                lose(
                    f"On {each.label}: file {i} is not the updated unit {i}. {instead}{what and f'; unit {i} {what}'}."
                )
        for what, units in found["moved"].items():
            for i in range(len(states)):
                if units.count(i) != 1:
                    lose(f"On {each.label}: the {what} of unit {i} begins {units.count(i)} times; once is wanted.")


@pytest.mark.points(2, "update_all: a room is the disk's until a move was waited for")
def test_update_all_rooms(submission: Submission) -> None:
    cases = [disk_case(submission, 7, *speeds) for speeds in ((3, 4, 3), (6, 1, 2), (2, 1, 6))]
    for each, found in zip(cases, alone(submission, "updating", "update_all", cases), strict=True):
        check_in_rooms(each, found)
        for what, number, move, moved in found["conflicts"]:
            lose(
                f"On {each.label}: the {what} of unit {number} begins in the room of the {move} of unit {moved}, and"
                " nobody has waited for that."
            )
        for what, number in found["left"][:1]:
            lose(f"On {each.label}: at the end nobody has waited for the {what} of unit {number}.")


@pytest.mark.points(2, "update_all: reads and writes while others are updated")
def test_update_all_overlap(submission: Submission) -> None:
    cases = [disk_case(submission, units, 3, 4, 3) for units in (6, 10)]
    for each, found in zip(cases, alone(submission, "updating", "update_all", cases), strict=True):
        units = len(each.inputs[0])
        check_in_rooms(each, found)
        if found["time"] > 3 + 4 * units + 3:
            lose(
                f"On {each.label}: it takes {found['time']:g}; one read, {units} updates and one write take"
                f" {3 + 4 * units + 3}. One unit after the other would take {10 * units}."
            )


def check_in_rooms(each: Case, found: dict[str, Any]) -> None:
    for what, number in found["elsewhere"]:
        lose(
            f"On {each.label}: the {what} of unit {number} is asked for with an array of its own. There is no memory"
            " but the three rooms."
        )


# ---- a late update ---------------------------------------------------------------------------------------------------


def late_case(submission: Submission, steps: int, after: int, late: bool) -> Case:
    mine = [submission.random.standard_normal(3), submission.random.standard_normal((steps, 3))]
    label = f"train_delayed of {steps} step{'s' * (steps > 1)}, after = {after}"
    return Case(1, label, [mine], {"after": after, "late": late})


def trained(start: Array, gradients: Sequence[Array]) -> list[Array]:
    """The parameters after 0, 1, 2, ... of these updates."""
    p, speed, found = start.copy(), np.zeros_like(start), [start.copy()]
    for g in gradients:
        speed = 0.5 * speed + g
        p = p - 0.1 * speed
        found.append(p)
    return found


def which(found: Array, after_updates: Sequence[Array]) -> str:
    """Whose parameters these are, in words."""
    known = [n for n, value in enumerate(after_updates) if same(found, value)]
    return f"those after {known[0]}" if known else "others"


def check_seen(submission: Submission, cases: Sequence[Case], until: Callable[[Case], int]) -> None:
    """That each step up to one sees as many updates as it should."""
    for each, found in zip(cases, alone(submission, "train_late", "train_delayed", cases), strict=True):
        steps, after = len(each.inputs[0][1]), each.arguments["after"]
        if len(found["seen"]) != steps:
            lose(f"On {each.label}: {len(found['seen'])} gradients were asked for; {steps} batches have one each.")
        after_updates = trained(each.inputs[0][0], found["gradients"])
        for step in range(min(steps, until(each))):
            wanted = step if step <= after else step - 1
            parameters = an_array(each, found["seen"][step], f"what gradient gets in step {step}", (3,))
            if not same(parameters, after_updates[wanted]):
                lose(
                    f"On {each.label}: step {step} is to compute with the parameters after {wanted}"
                    f" update{'s' * (wanted != 1)}; it gets {which(parameters, after_updates)}."
                )


@pytest.mark.points(1, "train_delayed: at first no update is late")
def test_train_delayed_at_first(submission: Submission) -> None:
    cases = [late_case(submission, 6, after, late) for after in (3, 1, 9) for late in (False, True)]
    check_seen(submission, cases, lambda each: each.arguments["after"] + 1)


@pytest.mark.points(2, "train_delayed: then one update late")
def test_train_delayed(submission: Submission) -> None:
    check_seen(submission, [late_case(submission, 5, 0, late) for late in (False, True)], lambda each: 5)


@pytest.mark.points(2, "train_delayed: an update during the next step's passes")
def test_train_delayed_beside(submission: Submission) -> None:
    each = late_case(submission, 5, 0, True)
    [found] = alone(submission, "train_late", "train_delayed", [each])
    events = [tuple(event) for event in found["events"]]
    ran_in = [number for what, number in events if what == "updated"]  # of each update, the submission in which it ran
    if len(ran_in) < 4:
        lose(f"On {each.label}: {len(ran_in)} of 5 updates ran. Submit each, and ask for its result().")
    for step in range(1, 5):
        begin, end, update = ("gradient", step), ("gradient is there", step), ran_in[step - 1]
        if begin not in events:
            lose(f"On {each.label}: no gradient was asked for in step {step}.")
        before = events[: events.index(begin)]
        if ("submitted", update) not in before:
            lose(
                f"On {each.label}: when step {step} begins its passes, the update with the gradient of step {step - 1}"
                " has not been submitted: so it does not run during them."
            )
        if ("waited for", update) in events[: events.index(end)]:
            lose(f"On {each.label}: the update of step {step - 1} is waited for before step {step} begins its passes.")


@pytest.mark.points(1, "train_delayed: no gradient is lost")
def test_train_delayed_end(submission: Submission) -> None:
    cases = [late_case(submission, steps, after, True) for steps, after in ((4, 0), (4, 2), (3, 9), (1, 0))]
    for each, found in zip(cases, alone(submission, "train_late", "train_delayed", cases), strict=True):
        after_updates = trained(each.inputs[0][0], found["gradients"])
        end = an_array(each, found["returned"], "what is returned", (3,))
        if not same(end, after_updates[-1]):
            lose(
                f"On {each.label}: return the parameters after all {len(after_updates) - 1} updates; these are"
                f" {which(end, after_updates)}."
            )


# ---- a layer in tiles ------------------------------------------------------------------------------------------------


def tiles_case(submission: Submission, function: str, n: int, width: int, out: int, tiles: int) -> Case:
    random = submission.random.standard_normal
    dy = [random((n, out))] if function == "tiled_backward" else []
    mine = [*dy, random((n, width)), random((out, width))]
    label = f"{function} of W ({out}, {width}) in {tiles} tile{'s' * (tiles > 1)}"
    return Case(1, label, [mine], {"tiles": tiles})


@pytest.mark.points(2, "tiled_backward: the gradients of x and of each tile")
def test_tiled_backward(submission: Submission) -> None:
    shapes = (3, 2, 8, 4), (2, 5, 6, 1), (1, 3, 6, 6), (2, 3, large(submission, 4, most=10_000), 4)
    cases = [tiles_case(submission, "tiled_backward", *of) for of in shapes]
    for each, found in zip(cases, alone(submission, "backward_in_tiles", "tiled_backward", cases), strict=True):
        dy, x, w = each.inputs[0]
        tiles, (out, width) = each.arguments["tiles"], w.shape
        if not same(an_array(each, found["returned"], "the gradient of x", x.shape), dy @ w):
            lose(f"On {each.label}: the gradient of x is not dy W, summed over all tiles.")
        for i, (gradient, expected) in enumerate(zip(found["given"], np.split(dy.T @ x, tiles), strict=True)):
            if isinstance(gradient, str) and gradient == "nothing":
                lose(f"On {each.label}: the gradient of tile {i} was not given away.")
            if not same(an_array(each, gradient, f"the gradient of tile {i}", (out // tiles, width)), expected):
                lose(f"On {each.label}: the gradient of tile {i} is wrong.")
        if not found["same"]:
            lose(f"On {each.label}: dy or x was changed.")


@pytest.mark.points(2, "tiled_backward: a tile and its gradient at a time")
def test_tiled_backward_memory(submission: Submission) -> None:
    each = tiles_case(submission, "tiled_backward", 2, 3, 10, 5)
    [found] = alone(submission, "backward_in_tiles", "tiled_backward", [each])
    check_fetched(each, found["fetched"])
    large = tiles_case(submission, "tiled_backward", 1, 64, 256, 16)
    [taken] = alone(submission, "take_in_tiles", "tiled_backward", [large])
    _, x, w = large.inputs[0]
    tile = w.nbytes // 16
    if taken > 4 * tile + x.nbytes + SLACK:
        lose(
            f"On {large.label}: it takes {taken:,} bytes at a time, where a tile has {tile:,}. There is room for two"
            " tiles, two gradients of tiles and the gradient of x."
        )


def check_fetched(each: Case, fetched: Sequence[Sequence[int]]) -> None:
    tiles = each.arguments["tiles"]
    for number, (tile, tiles_held, gradients_held) in enumerate(fetched):
        if max(tiles_held, gradients_held) > 1:  # one: a variable may still name the last one
            lose(
                f"On {each.label}: when tile {tile} is fetched, {tiles_held} others and the gradients of"
                f" {gradients_held} are still held. Forget each before the next one comes."
            )
        if tile in [before for before, *_ in fetched[:number]]:
            lose(f"On {each.label}: tile {tile} is fetched twice: each comes from far away.")
    if len(fetched) < tiles:
        lose(f"On {each.label}: {len(fetched)} tiles were fetched.")


# ---- the notebook's gaps, which earn no points: check("moved") runs these --------------------------------------------


def check_moved(submission: Submission) -> None:
    graph = a_graph(submission)
    hosts = [["s"], ["update", "s"], ["g", "update", "s", "t"], []]
    label = "moved"
    [found] = alone(submission, "count_moved", "moved", [Case(1, label, [graph["edges"]], {"hosts": hosts})])
    sent = {host: nbytes for host, nbytes, _ in partitions(**graph)}
    for host, nbytes in zip(hosts, found, strict=True):
        if nbytes != sent[frozenset(host)]:
            flows = ", ".join(f"{start}→{end} {flow}" for start, end, flow in graph["edges"])
            lose(
                f"With {braced(frozenset(host))} on the host, where {flows} flow: {nbytes} was returned;"
                f" {sent[frozenset(host)]} bytes go over the link."
            )


def check_placements(submission: Submission) -> None:
    for nodes in (["a", "b", "c"], ["a"], list("abcdef")):
        label = f"placements of {nodes}"
        [found] = alone(submission, "all_placements", "placements", [Case(1, label, [nodes])])
        if not isinstance(found, list) or not all(isinstance(each, list) for each in found):
            lose(f"On {label}: return a list of sets; it was {found}.")
        different = set(map(frozenset, found))
        if len(different) != len(found):
            lose(f"On {label}: a set is there twice.")
        if len(found) != 2 ** len(nodes):
            lose(
                f"On {label}: there are {len(found)} sets; {len(nodes)} nodes can be placed in {2 ** len(nodes)} ways."
            )


def check_delayed_step(submission: Submission) -> None:
    start, *batches = (round(float(value), 2) for value in submission.random.random(5))
    label = f"delayed_step from w = {start}, gradient w² + batch, update w - 0.1 gradient"
    case = Case(1, label, [start], {"batches": batches})
    [found] = alone(submission, "steps_delayed", "delayed_step", [case])
    w, waiting = start, None
    for step, batch in enumerate(batches):
        fresh = w * w + batch
        w, waiting = w if waiting is None else w - 0.1 * waiting, fresh
        if not isinstance(found[step], list):
            lose(f"On {label}: return two things, w and the new gradient; it was {found[step]}.")
        for name, value, expected in zip(("w", "the gradient that waits"), found[step], (w, waiting), strict=True):
            if isinstance(value, str) or not np.isclose(value, expected):
                lose(f"On {label}: after step {step}, batch {batch}, {name} is {value}; {expected:g} is wanted.")


def check_tiled(submission: Submission) -> None:
    for of in ((3, 2, 8, 4), (2, 5, 6, 1)):
        each = tiles_case(submission, "tiled", *of)
        [found] = alone(submission, "forward_in_tiles", "tiled", [each])
        x, w = each.inputs[0]
        if not same(an_array(each, found["returned"], "y", (len(x), len(w))), x @ w.T):
            lose(f"On {each.label}: y is not x Wᵀ.")
        check_fetched(each, found["fetched"])


GAPS = gaps(globals(), "moved", "placements", "delayed_step", "tiled")
PARTS = parts_by_function(globals())
