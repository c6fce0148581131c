"""The grade of lesson 14: `pytest lessons/14_three_axes`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew. Models, clusters, meshes and gradients are
drawn for each grade. No part compares with another solution. It asks for what holds of every right answer: how many
bytes there are for each parameter and each micro-batch, that a place leads back to its rank, that groups share out the
ranks. Sums and norms are computed here from the inputs of all ranks. Each rank has only its own. A part earns its
points or not; none needs a later one, and one mistake costs one part.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import an_array, check_handed, gaps, is_right, lessons_own, parts_by_function
from minidist.classroom.grading.parts import ask, by_case, describe, large, named, on
from minidist.classroom.grading.submission import Case, Outcome, Submission, lose

Array = np.ndarray
ASKED = ("memory", "sent", "choose", "place", "along", "shard_gradient", "sum_gradients", "gradient_norm")
HIDDEN = ("answers", "given", "minidist.layout", "minidist.parallel3d")  # what a submission cannot import
CLOSE = 1e-9  # relative
AXES = ("data", "pipeline", "tensor")

# Model: layers, width, heads, length, batch, parameters. Layout: data, pipeline, tensor.
LARGE = [48, 8192, 64, 2048, 512, 39_096_025_088]
MODEL = ("layers", "width", "heads", "length", "batch", "parameters")
CLUSTER = ("ranks", "per_host", "memory", "speed", "inside", "between")

# ---- comparing -------------------------------------------------------------------------------------------------------


own = partial(lessons_own, __file__)  # which layout is best, and how long another one takes


def fields(names: Sequence[str], values: Sequence[float]) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip(names, values, strict=True)))


def close(found: float, expected: float) -> bool:
    return abs(found - expected) <= CLOSE * abs(expected)


def words(layout: Sequence[float]) -> str:
    return f"Layout({', '.join(f'{n:g}' for n in layout)})"


def a_model(submission: Submission) -> list[int]:
    """Sizes that hold no product by accident."""
    draw = submission.random.integers
    return [24, int(draw(300, 900)), 16, int(draw(100, 400)), 48, int(draw(10, 99) * 1e6)]


def draw_layouts(submission: Submission, count: int) -> list[tuple[int, int, int]]:
    """Layouts that divide such a model."""
    drawn = (
        [int(submission.random.choice(sizes)) for sizes in ((2, 3, 6, 8, 16), (2, 3, 4, 8), (2, 4, 8))]
        for _ in range(count)
    )
    return [(d, p, t) for d, p, t in drawn]


# ---- a layout in bytes -----------------------------------------------------------------------------------------------


@pytest.mark.points(2, "memory: states and activations")
def test_memory(submission: Submission) -> None:
    """States are what a model has whose sequences are empty, activations what one has without parameters."""
    layouts = [(1, 1, 1), (4, 1, 1), (1, 1, 4), (1, 6, 1), (2, 3, 4), (24, 4, 2), *draw_layouts(submission, 3)]
    asked = []
    for layout in layouts:
        layers, width, heads, length, batch, parameters = a_model(submission)
        for of in ((length, parameters), (0, parameters), (length, 0)):
            asked.append([[layers, width, heads, of[0], batch, of[1]], layout])
    values = ask(submission, "memories", "memory", asked)
    for number, (d, p, t) in enumerate(layouts):
        where = f"On memory(model, {words((d, p, t))})"
        both, states, activations = values[3 * number : 3 * number + 3]
        for found in (both, states, activations):
            if not isinstance(found, float):
                lose(f"{where}: it returned {found}; a number is wanted.")
        (layers, width, _, length, batch, parameters), _ = asked[3 * number]
        each = states / (parameters / p / t)
        if not close(each, 4 + 12 / d):
            lose(
                f"{where}: of states it counts {each:.4g} bytes for each of the rank's Ψ/{p * t} parameters;"
                f" {4 + 12 / d:.4g} are wanted: 2 for the parameter, 2 for its gradient, and 12/{d} for the optimizer."
            )
        in_flight = activations / (34 * length * width / t * layers / p)
        if not close(in_flight, min(p, batch / d)):
            lose(
                f"{where}: activations are those of {in_flight:.4g} micro-batches (each layer of the stage keeps"
                f" 34sh/{t} bytes of one); {min(p, batch // d)} are in flight: one for each of {p} stages, but no more"
                f" than the {batch // d} that there are."
            )
        if not close(both, states + activations):
            lose(
                f"{where}: it is {both:,.0f} bytes, where states alone are {states:,.0f} and activations alone"
                f" {activations:,.0f}: add them."
            )


HowOften = Callable[[int, int, int], float]  # by d, p and t


def check_sent(
    submission: Submission, axis: str, layouts: Sequence[tuple[int, int, int]], how_often: HowOften, hint: str
) -> None:
    """What is sent along an axis, counted in numbers of 2 bytes: `how_often` of each kind of message a rank sends."""
    asked = [[a_model(submission), layout] for layout in [*layouts, *draw_layouts(submission, 3)]]
    values = ask(submission, "all_sent", "sent", asked)
    for ((layers, width, _, length, batch, parameters), (d, p, t)), found in zip(asked, values, strict=True):
        where = f"On sent(model, {words((d, p, t))})"
        if not isinstance(found, dict):
            lose(f"{where}: it returned {found}; a dictionary is wanted.")
        if axis not in found or not isinstance(found[axis], float):
            lose(f"{where}: there is no number for {axis!r}.")
        size = {
            "tensor": layers / p * batch / d * length * width,
            "pipeline": batch / d * length * width / t,
            "data": parameters / p / t,
        }[axis]
        wanted = 2 * size * how_often(d, p, t)
        if not close(found[axis], wanted):
            times = f"; that is {found[axis] / wanted:.3g} times as much" if wanted else ""
            lose(f"{where}: {axis} is {found[axis]:,.0f} bytes; it should be {wanted:,.0f}{times}. {hint}")


@pytest.mark.points(1, "sent: along the tensor axis")
def test_sent_tensor(submission: Submission) -> None:
    hint = "Count all-reduces: four for each layer of the stage and each micro-batch; each sends 2S(t-1)/t numbers."
    layouts = [(1, 1, 2), (1, 1, 1), (1, 1, 8), (2, 3, 4)]
    check_sent(submission, "tensor", layouts, lambda d, p, t: 4 * 2 * (t - 1) / t, hint)


@pytest.mark.points(1, "sent: along the pipeline")
def test_sent_pipeline(submission: Submission) -> None:
    hint = "One stage has no neighbor, the ends have one, a stage in between two. A rank sends its t-th alone."
    layouts = [(1, 2, 1), (1, 1, 4), (1, 4, 1), (2, 3, 4)]
    check_sent(submission, "pipeline", layouts, lambda d, p, t: (0, 1, 2)[min(p, 3) - 1], hint)


@pytest.mark.points(1, "sent: along the data axis")
def test_sent_data(submission: Submission) -> None:
    hint = "A reduce-scatter and an all-gather of the ψ parameters that the rank has, once a step."
    layouts = [(2, 1, 1), (1, 2, 2), (8, 1, 1), (4, 3, 2)]
    check_sent(submission, "data", layouts, lambda d, p, t: 2 * (d - 1) / d, hint)


def draw_cluster(submission: Submission) -> tuple[list[float], list[float]]:
    """A model, and ranks on which a drawn layout, and few others, fit."""
    model, ranks = a_model(submission), int(submission.random.choice([16, 32]))
    layout = (0, 0, 0)
    while layout[0] * layout[1] * layout[2] != ranks:
        [layout] = draw_layouts(submission, 1)
    room = own("memory")(fields(MODEL, model), layout)
    return [*model], [ranks, 8, 1.01 * room, 140e12, 300e9, 12.5e9]


@pytest.mark.points(2, "choose: fits, and is the fastest")
def test_choose(submission: Submission) -> None:
    fast, slow = 300e9, 12.5e9
    clusters: list[Any] = [
        (LARGE, [64, 8, 32e9, 140e12, fast, slow]),
        (LARGE, [64, 8, 13e9, 140e12, fast, slow]),  # little memory
        (LARGE, [64, 8, 5e9, 140e12, fast, slow]),  # nothing fits
        (LARGE, [64, 64, 200e9, 140e12, fast, slow]),
        # 4 and 8 do not divide 6 heads, nor 2 three layers, nor 4 six sequences
        ([1, 4096, 6, 1024, 96, 2_000_000_000], [8, 8, 6e9, 10e12, fast, slow]),
        ([3, 4096, 1, 1024, 96, 2_000_000_000], [8, 8, 9e9, 10e12, fast, slow]),
        ([4, 4096, 8, 8192, 6, 200_000_000], [8, 8, 100e9, 1e12, fast, slow]),
        *(draw_cluster(submission) for _ in range(4)),
    ]
    chosen = ask(submission, "choices", "choose", [list(each) for each in clusters])
    for (model, cluster), found in zip(clusters, chosen, strict=True):
        ranks, per_host, room = int(cluster[0]), int(cluster[1]), cluster[2]
        where = f"On {ranks} ranks, {per_host} on a host, each with {room / 1e9:.4g} GB"
        asked = fields(MODEL, model), fields(CLUSTER, cluster)
        best = own("choose")(*asked)
        wanted = f"{words(best)} is a layout that fits" if best else "nothing fits, so None is wanted"
        if found is None and best is None:
            continue
        if not isinstance(found, list) or len(found) != 3 or any(not isinstance(n, float) for n in found):
            lose(f"{where}: it returned {describe(found)}; {wanted}.")
        said = tuple(found)
        if math.prod(said) != ranks:
            lose(f"{where}: {words(said)} has {math.prod(said):g} ranks.")
        if any(n < 1 or n != int(n) for n in said) or any(
            whole % n for whole, n in zip((model[4], model[0], model[2]), said, strict=True)
        ):
            lose(f"{where}: {words(said)} cannot divide {model[0]} layers, {model[2]} heads or {model[4]} sequences.")
        if best is None:
            lose(f"{where}: it returned {words(said)}; {wanted}.")
        layout = tuple(int(n) for n in said)
        if (needed := own("memory")(asked[0], layout)) > room:
            lose(f"{where}: {words(said)} needs {needed / 1e9:.1f} GB, which does not fit.")
        taken, least = (own("seconds")(asked[0], each, asked[1]) for each in (layout, best))
        if taken > least * (1 + CLOSE):
            lose(f"{where}: {words(said)} fits and takes {taken:.2f} s; {words(best)} takes {least:.2f} s.")


# ---- the mesh --------------------------------------------------------------------------------------------------------

MESHES: list[tuple[tuple[str, ...], tuple[int, ...]]] = [
    (AXES, (2, 2, 2)),
    (AXES, (2, 3, 4)),
    (("shard", "host"), (3, 2)),  # in no order but that of the mesh
    (("a", "b", "c", "d"), (2, 1, 3, 2)),
]


def draw_mesh(submission: Submission) -> tuple[tuple[str, ...], tuple[int, ...]]:
    a, b, c = (int(n) for n in submission.random.integers(2, 5, 3))
    return AXES, (a, b + 4 * (a == b), c)


@pytest.mark.points(2, "place: the last axis is the innermost")
def test_place(submission: Submission) -> None:
    """From a place one comes back to the rank."""
    meshes = [*MESHES, draw_mesh(submission)]
    places = ask(submission, "places", "place", [list(map(list, mesh)) for mesh in meshes])
    for (names, sizes), of_ranks in zip(meshes, places, strict=True):
        shown = dict(zip(names, sizes, strict=True))
        for rank, found in enumerate(of_ranks):
            where = f"On place({rank}, {shown})"
            if isinstance(found, str):
                lose(f"{where}: it returned {found}; a dictionary is wanted.")
            if found[0] != list(names):
                lose(f"{where}: its names are {', '.join(found[0])}; {', '.join(names)} are wanted, in this order.")
            at = [int(n) if isinstance(n, float) and n == int(n) else n for n in found[1]]
            for name, n, size in zip(names, at, sizes, strict=True):
                if not isinstance(n, int) or not 0 <= n < size:
                    lose(f"{where}: on the axis {name} it is {n}; an integer from 0 to {size - 1} is wanted.")
            number = int(np.ravel_multi_index(at, sizes))
            if number != rank:
                backwards = int(np.ravel_multi_index(at[::-1], sizes[::-1])) == rank
                lose(
                    f"{where}: it is {dict(zip(names, at, strict=True))}, and there stands rank {number}."
                    + " Which axis is the innermost?" * backwards
                )


def along_case(names: Sequence[str], sizes: Sequence[int], asked: Sequence[Sequence[str]]) -> Case:
    n, shown = math.prod(sizes), " x ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
    arguments = {"names": list(names), "sizes": list(sizes), "asked": [list(axes) for axes in asked]}
    return Case(n, f"{n} ranks, {shown}", [None] * n, arguments)


def check_groups(label: str, mesh: dict[str, int], axes: Sequence[str], groups: Sequence[Any]) -> None:
    """Groups share out the ranks: each rank is in its own, all members have the same, and from its first member the
    others are as far as steps along these axes lead."""
    strides, stride = dict[str, int](), 1
    for name in reversed(mesh):
        strides[name], stride = stride, stride * mesh[name]
    distances = [0]
    for name in axes:
        distances = sorted(far + step * strides[name] for far in distances for step in range(mesh[name]))
    for rank, found in enumerate(groups):
        who = f"On {label}: along {' and '.join(axes)}, rank {rank}"
        if isinstance(found, str):
            lose(f"On {label}: along({', '.join(axes)}) returned {found}, not a communicator.")
        if [other - min(found) for other in sorted(found)] == distances and found != sorted(found):
            lose(f"{who} is with the ranks {found}. They are the right ones in another order.")
        if [other - found[0] for other in found] != distances or any(groups[other] != found for other in found):
            far = f"{distances[1]} apart" if len(axes) == 1 else f"{distances} from the first"
            lose(f"{who} is with the ranks {found}; a group has {len(distances)} ranks, {far}.")
        if rank not in found:
            lose(f"{who} is not in its own group, {found}.")


def check_along(each: Case, outcomes: Sequence[Outcome]) -> None:
    mesh = dict(zip(each.arguments["names"], each.arguments["sizes"], strict=True))
    for number, axes in enumerate(each.arguments["asked"]):
        check_groups(each.label, mesh, axes, [outcome.value[number] for outcome in outcomes])


@pytest.mark.points(2, "along: one axis")
def test_along(submission: Submission) -> None:
    cases = [
        along_case(names, sizes, [[name] for name in names]) for names, sizes in ((AXES, (2, 2, 2)), (AXES[:2], (2, 3)))
    ]
    for each, outcomes in by_case(submission, "groups", cases, ["along"]):
        check_along(each, outcomes)


@pytest.mark.points(1, "along: several axes")
def test_along_several(submission: Submission) -> None:
    """If one axis is not right, several need be no better."""
    one, several = [[axis] for axis in AXES], [["data", "tensor"], ["pipeline", "tensor"], AXES]
    plain, each = along_case(AXES, (2, 2, 2), one), along_case(AXES, (2, 2, 2), several)
    singles, outcomes = submission.run("groups", [plain, each], ["along"])
    if is_right(check_along, plain, singles):
        check_along(each, outcomes)
    for found in [found for outcome in outcomes for found in outcome.value if isinstance(found, str)]:
        lose(f"On {each.label}: along returned {found}, not a communicator.")


# ---- who sums what ---------------------------------------------------------------------------------------------------


near = partial(np.allclose, rtol=1e-9, atol=1e-12)


def check_equal(each: Case, found: Any, name: str, expected: Array, mistakes: Mapping[str, Array]) -> None:
    if not near(an_array(each, found, name, expected), expected):
        lose(f"On {each.label}: {name} is wrong{named(found, mistakes, near, before='. It is ')}.")


def shard_case(submission: Submission, n: int, per_host: int, size: int, function: str = "shard_gradient") -> Case:
    label = f"{n} ranks, {per_host} on a host, {size} numbers"
    inputs = [submission.random.standard_normal(size) for _ in range(n)]
    return Case(n, label, inputs, {"per_host": per_host, "function": function})


def check_shard(each: Case, outcomes: Sequence[Outcome]) -> None:
    g = each.arguments["per_host"]
    total = np.sum(each.inputs, axis=0)
    for rank, outcome in enumerate(outcomes):
        first = rank // g * g
        of_host, of_shard = (
            np.sum(some, axis=0) for some in (each.inputs[first : first + g], each.inputs[rank % g :: g])
        )
        wanted, here, there = (np.array_split(x, g)[rank % g] for x in (total, of_host, of_shard))
        mistakes = {"that of this host alone": here, "that of the ranks with the same shard alone": there}
        check_equal(each, outcome.value["returned"], f"rank {rank}'s shard", wanted, mistakes)
        check_handed(each.label, [outcome.value["gradient"]], [each.inputs[rank]], [f"rank {rank}'s gradient"])


def check_left(each: Case, outcomes: Sequence[Outcome]) -> None:
    """What goes to ranks of other hosts."""
    g, m = each.arguments["per_host"], each.inputs[0].nbytes
    wanted = 2 * m * (each.n - g) // (g * each.n)
    for rank, outcome in enumerate(outcomes):
        left = sum(nbytes for (_, peer, _), (nbytes, _) in outcome.sent.items() if peer // g != rank // g)
        if not left:
            lose(f"{on(each, rank)} sends nothing to other hosts, so nobody has the sum over all ranks.")
        if left > wanted:
            lose(
                f"{on(each, rank)} sends {left} bytes to other hosts; 2M(W-G)/(GW) = {wanted} are enough,"
                f" with M = {m}. Sum within the host first."
            )


@pytest.mark.points(1, "shard_gradient: a shard of the sum over all ranks")
def test_shard_gradient(submission: Submission) -> None:
    cases = [
        shard_case(submission, *each)
        for each in ((4, 2, 8), (6, 3, 7), (4, 1, 5), (3, 3, 6), (4, 2, large(submission)))
    ]
    for each, outcomes in by_case(submission, "shard", cases, ["shard_gradient"]):
        check_shard(each, outcomes)


@pytest.mark.points(1, "shard_gradient: 2M(W-G)/(GW) to other hosts")
def test_shard_gradient_hosts(submission: Submission) -> None:
    cases = [shard_case(submission, *each) for each in ((8, 4, 64), (8, 2, 64), (6, 2, 36))]
    for each, outcomes in by_case(submission, "shard", cases, ["shard_gradient"]):
        check_left(each, outcomes)


def sums_case(submission: Submission, n: int, stages: int, tied: int = -1, size: int = 5) -> Case:
    inputs = [[submission.random.standard_normal(size) for size in (size, 4, 3)] for _ in range(n)]
    label = f"{n // stages} x {stages} ranks (data x stages)" + (", piece 1 tied" if tied >= 0 else "")
    return Case(n, label, inputs, {"stages": stages, "tied": tied})


def over_data(each: Case, rank: int, number: int) -> Array:
    stages = each.arguments["stages"]
    return np.sum([grads[number] for grads in each.inputs[rank % stages :: stages]], axis=0)


@pytest.mark.points(1, "sum_gradients: over the data axis, in place")
def test_sum_gradients(submission: Submission) -> None:
    cases = [sums_case(submission, n, stages) for n, stages in ((4, 2), (3, 1), (2, 2))]
    cases.append(sums_case(submission, 4, 2, size=large(submission)))
    for each, outcomes in by_case(submission, "sums", cases, ["sum_gradients"]):
        copies = each.n // each.arguments["stages"]
        for rank, outcome in enumerate(outcomes):
            for number, found in enumerate(outcome.value["grad"]):
                wanted, own = over_data(each, rank, number), each.inputs[rank][number]
                name = f"grad of piece {number} on rank {rank}"
                mistakes = {"this rank's own, not summed": own} if copies > 1 else {}
                if copies > 1:
                    mistakes["the mean; losses have been divided by the size of the batch already"] = wanted / copies
                check_equal(each, found, name, wanted, mistakes)
                if not np.array_equal(outcome.value["handed"][number], found):
                    lose(f"On {each.label}: {name} is another array; put the sum into the one that was there.")


@pytest.mark.points(2, "sum_gradients: what is tied, over both ends, too")
def test_sum_gradients_tied(submission: Submission) -> None:
    """The sum of what both ends have when it is not tied: so a factor costs nothing here."""
    for n, stages in ((2, 2), (4, 2), (6, 3)):
        each = sums_case(submission, n, stages, tied=1)
        plain = Case(n, each.label, each.inputs, {"stages": stages, "tied": -1})
        [alone, outcomes] = submission.run("sums", [plain, each], ["sum_gradients"])
        for rank, outcome in enumerate(outcomes):
            stage, name = rank % stages, f"grad of piece 1 on rank {rank}"
            if stage not in (0, stages - 1):
                continue
            ends = [rank - stage, rank - stage + stages - 1]
            wanted = np.sum([over_data(each, end, 1) for end in ends], axis=0)
            found = an_array(each, outcome.value["grad"][1], name, wanted)
            untied = [alone[end].value["grad"][1] for end in ends]
            moved = n == stages or not np.allclose(untied, [each.inputs[end][1] for end in ends])
            if moved and np.allclose(found, np.sum(untied, axis=0)):
                continue
            alone_words = (
                "the sum over the data axis alone" if n > stages else "this stage's own, without the other end's"
            )
            mistakes = {
                alone_words: over_data(each, rank, 1),
                "the sum over the ends alone": np.sum([each.inputs[end][1] for end in ends], axis=0),
            }
            check_equal(each, found, name, wanted, mistakes)


# ---- who counts what -------------------------------------------------------------------------------------------------


def norm_case(
    submission: Submission, n: int, stages: int, cut: Sequence[bool], label: str = "", tied: int = -1
) -> Case:
    """Pieces 0, 1, ... of each stage. A piece that is not cut is the same on all tensor ranks. The piece `tied` is the
    same on the first and the last stage, if it is cut part by part."""
    t = n // stages
    inputs: list[list[Array]] = []
    for rank in range(n):
        stage, part = divmod(rank, t)
        mine: list[Array] = []
        for number, is_cut in enumerate(cut):
            if number == tied and stage == stages - 1 and stages > 1:
                mine.append(inputs[part][number])
            elif not is_cut and part:
                mine.append(inputs[stage * t][number])
            else:
                mine.append(submission.random.standard_normal(4 + number))
        inputs.append(mine)
    arguments = {"stages": stages, "cut": list(cut), "tied": [number == tied for number in range(len(cut))]}
    return Case(n, f"{stages} x {t} ranks (stages x tensor){label}", inputs, arguments)


def norms_of(submission: Submission, cases: Sequence[Case]) -> list[list[float]]:
    found = []
    for each, outcomes in by_case(submission, "norm", cases, ["gradient_norm"]):
        values = []
        for rank, outcome in enumerate(outcomes):
            value = outcome.value["returned"]
            if not isinstance(value, np.ndarray):
                lose(f"{on(each, rank)} returned {value}; a float is wanted.")
            values.append(float(value[0]))
        found.append(values)
    return found


@pytest.mark.points(2, "gradient_norm: what is cut everywhere, what is whole once")
def test_norm(submission: Submission) -> None:
    mixed = [True, False]
    shapes = [(2, 1, [True]), (2, 1, mixed), (2, 2, mixed), (4, 2, mixed), (6, 2, [False, True, False])]
    cases = [norm_case(submission, *shape) for shape in shapes]
    for each, values in zip(cases, norms_of(submission, cases), strict=True):
        t, cut = each.n // each.arguments["stages"], each.arguments["cut"]
        squares = [[float((grad**2).sum()) for grad in grads] for grads in each.inputs]
        counting = [[is_cut or rank % t == 0 for is_cut in cut] for rank in range(each.n)]
        once = sum(np.sum(np.array(of)[which]) for of, which in zip(squares, counting, strict=True))
        wanted = math.sqrt(once)
        mistakes = {
            f"what is whole counted {t} times": math.sqrt(sum(map(sum, squares))),
            "the square of the norm": once,
            "that of one rank alone": math.sqrt(sum(squares[0])),
        }
        for rank, value in enumerate(values):
            if not close(value, wanted):
                what = named(value, mistakes, close, before=". It is ")
                lose(f"On {each.label}: on rank {rank} the norm is {value:.6g}; {wanted:.6g} is wanted{what}.")


@pytest.mark.points(1, "gradient_norm: what is tied counts once")
def test_norm_tied(submission: Submission) -> None:
    """Compared with the same pieces without one or both copies: so nothing else matters."""
    for n, stages, is_cut in ((4, 2, True), (3, 3, True), (2, 1, True), (4, 2, False)):
        ends = {0, stages - 1}
        have = {"both ends have it": ends, "the first stage has it": {0}, "the last stage has it": {stages - 1}}
        cases = [
            norm_case(submission, n, stages, [True, is_cut], f", a tied piece: {which}", tied=1)
            for which in [*have, "no stage has it"]
        ]
        for each, stages_with in zip(cases, [*have.values(), set[int]()], strict=True):  # all else as in the first
            for rank, mine in enumerate(each.inputs):
                plain, tied = cases[0].inputs[rank]
                mine[:] = [plain, tied if rank // (n // stages) in stages_with else np.zeros(0)]
        both, first, last, none = norms_of(submission, cases)
        missed = [rank for rank, norms in enumerate(zip(both, none, strict=True)) if close(*norms)]
        agree = all(close(norm, none[0]) for norm in none)  # else stages miss each other's pieces: test_norm tells that
        if missed and (agree or len(missed) == n):
            lose(f"On {cases[0].label}: on rank {missed[0]} the tied piece does not count at all.")
        for rank, (value, *once) in enumerate(zip(both, first, last, strict=True)):
            if rank not in missed and not any(close(value, one) for one in once):
                lose(
                    f"On {cases[0].label}: on rank {rank} the norm is {value:.6g}, and {max(once):.6g} where one of"
                    " these stages alone has the tied piece. After sum_gradients the two copies are the same"
                    " parameter's gradient."
                )


# ---- the notebook's gaps, which earn no points: check("place_of") runs these -----------------------------------------


def check_place_of(submission: Submission) -> None:
    asked = [[rank, p, t] for d, p, t in ((2, 2, 2), (2, 3, 4)) for rank in range(d * p * t)]
    for (rank, p, t), found in zip(asked, ask(submission, "places_of", "place_of", asked), strict=True):
        wanted = [rank // t // p, rank // t % p, rank % t]
        if not isinstance(found, list) or found != wanted:
            said = describe(found)
            if isinstance(found, list):
                said = str(tuple(int(n) if isinstance(n, float) else n for n in found))
            lose(f"On place_of({rank}, p={p}, t={t}): it is {said}; {tuple(wanted)} is wanted.")


def check_color_of(submission: Submission) -> None:
    asked = [(list(names), list(sizes), axis) for names, sizes in MESHES[:3] for axis in names]
    for (names, sizes, axis), found in zip(asked, ask(submission, "colors_of", "color_of", asked), strict=True):
        where = f"On {' x '.join(f'{n} {s}' for n, s in zip(names, sizes, strict=True))}, axis {axis}"
        if any(not isinstance(color, float) or color != int(color) for color in found):
            lose(f"{where}: color_of returned {found[0]}; an integer is wanted.")
        groups = [[other for other, color in enumerate(found) if color == mine] for mine in found]
        check_groups(where[3:], dict(zip(names, sizes, strict=True)), [axis], groups)


def check_two_levels(submission: Submission) -> None:
    cases = [shard_case(submission, n, g, size, "two_levels") for n, g, size in ((4, 2, 8), (8, 4, 64))]
    for each, outcomes in by_case(submission, "shard", cases, ["two_levels"]):
        check_shard(each, outcomes)
        check_left(each, outcomes)


def check_my_squares(submission: Submission) -> None:
    whole, *parts = [submission.random.standard_normal(size) for size in (3, 5, 5, 5)]
    counted = ask(submission, "squares", "my_squares", [whole, *parts])
    if wrong := [found for found in counted if not isinstance(found, float)]:
        lose(f"On my_squares: it returned {wrong[0]}; a float is wanted.")
    wanted = float((whole**2).sum() + sum((part**2).sum() for part in parts))
    total, times = sum(counted), wanted + 2 * float((whole**2).sum())
    if not close(total, wanted):
        again = " It counts what is whole three times." if close(total, times) else ""
        lose(f"On three ranks: together they count {total:.6g}; it should be {wanted:.6g}.{again}")


GAPS = gaps(globals(), "place_of", "color_of", "two_levels", "my_squares")
PARTS = parts_by_function(globals())
