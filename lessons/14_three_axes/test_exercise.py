"""The grade of lesson 14: `pytest lessons/14_three_axes`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew. Truth is computed here: bytes from the papers'
formulas, groups by going through all ranks, sums and norms from everybody's inputs, which each rank has only for
itself. A part earns its points or not; none needs a later one, and one mistake costs one part.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from minidist.classroom.checks import together
from minidist.classroom.submission import Case, Outcome, Submission, lose

Array = np.ndarray
ASKED = ("memory", "sent", "choose", "place", "along", "shard_gradient", "sum_gradients", "gradient_norm")
HIDDEN = ("given", "minidist.layout", "minidist.parallel3d")  # what a submission cannot import
CLOSE = 1e-9  # relative
NONE: Mapping[str, Any] = MappingProxyType({})
AXES = ("data", "pipeline", "tensor")

# Model: layers, width, heads, length, batch, parameters. Layout: data, pipeline, tensor.
SMALL = [24, 1024, 16, 512, 48, 330_000_000]
LARGE = [48, 8192, 64, 2048, 512, 39_096_025_088]


# ---- the truth -------------------------------------------------------------------------------------------------------


def true_memory(model: Sequence[float], layout: Sequence[float], in_flight: float = -1) -> float:
    layers, width, _, length, batch, parameters = model
    d, p, t = layout
    psi = parameters / (p * t)
    in_flight = min(p, batch / d) if in_flight < 0 else in_flight
    return 4 * psi + 12 * psi / d + layers / p * in_flight * 34 * length * width / t


def true_sent(model: Sequence[float], layout: Sequence[float]) -> dict[str, float]:
    layers, width, _, length, batch, parameters = model
    d, p, t = layout
    psi, m, sh = parameters / (p * t), batch / d, length * width
    return {
        "data": 4 * psi * (d - 1) / d,
        "pipeline": 2 * m * sh / t * (0 if p == 1 else 1 if p == 2 else 2),
        "tensor": 2 * layers / p * m * 8 * sh * (t - 1) / t,
    }


def true_seconds(model: Sequence[float], layout: Sequence[float], cluster: Sequence[float]) -> float:
    ranks, per_host, _, speed, inside, between = cluster
    d, p, t = layout
    work = 6 * model[5] * model[4] * model[3] / ranks / speed
    reach = {"tensor": t, "pipeline": p * t, "data": d * p * t}
    sending = sum(
        nbytes / (inside if per_host % reach[axis] == 0 else between)
        for axis, nbytes in true_sent(model, layout).items()
    )
    return work * (1 + (p - 1) * d / model[4]) + sending


def close(found: float, expected: float) -> bool:
    return abs(found - expected) <= CLOSE * abs(expected)


def words(layout: Sequence[float]) -> str:
    return f"Layout({', '.join(f'{n:g}' for n in layout)})"


def a_model(submission: Submission) -> list[float]:
    """Sizes that hold no product by accident."""
    draw = submission.random.integers
    return [24, int(draw(300, 900)), 16, int(draw(100, 400)), 48, int(draw(10, 99) * 1e6)]


# ---- a layout in bytes -----------------------------------------------------------------------------------------------


@pytest.mark.points(2, "memory: states and activations")
def test_memory(submission: Submission) -> None:
    layouts = [(1, 1, 1), (4, 1, 1), (1, 1, 4), (1, 6, 1), (2, 3, 4), (24, 4, 2)]
    asked = [[a_model(submission), layout] for layout in layouts]
    [[outcome]] = submission.run("memories", [Case(1, "memory", [asked])], ["memory"])
    for (model, layout), found in zip(asked, outcome.value, strict=True):
        where, wanted = f"On memory(model, {words(layout)})", true_memory(model, layout)
        if not isinstance(found, float):
            lose(f"{where}: it returned {found}; a number is wanted.")
        if not close(found, wanted):
            states = true_memory(model, layout, 0)
            more = " Of a micro-batch in flight every layer of the stage keeps something." * close(found, states)
            lose(
                f"{where}: it is {found:,.0f} bytes; {wanted:,.0f} are wanted, of which {states:,.0f} are parameters,"
                f" gradients and optimizer.{more}"
            )


def check_sent(submission: Submission, axis: str, layouts: Sequence[tuple[int, int, int]], hint: str) -> None:
    asked = [[a_model(submission), layout] for layout in layouts]
    [[outcome]] = submission.run("all_sent", [Case(1, "sent", [asked])], ["sent"])
    for (model, layout), found in zip(asked, outcome.value, strict=True):
        where = f"On sent(model, {words(layout)})"
        if not isinstance(found, dict):
            lose(f"{where}: it returned {found}; a dictionary is wanted.")
        if axis not in found or not isinstance(found[axis], float):
            lose(f"{where}: there is no number for {axis!r}.")
        wanted = true_sent(model, layout)[axis]
        if not close(found[axis], wanted):
            times = f"; that is {found[axis] / wanted:.3g} times as much" if wanted else ""
            lose(f"{where}: {axis} is {found[axis]:,.0f} bytes; it should be {wanted:,.0f}{times}. {hint}")


@pytest.mark.points(1, "sent: along the tensor axis")
def test_sent_tensor(submission: Submission) -> None:
    hint = "Count all-reduces: four for each layer of the stage and each micro-batch; each sends 2S(t-1)/t numbers."
    check_sent(submission, "tensor", [(1, 1, 2), (1, 1, 1), (1, 1, 8), (2, 3, 4)], hint)


@pytest.mark.points(1, "sent: along the pipeline")
def test_sent_pipeline(submission: Submission) -> None:
    hint = "One stage has no neighbour, the ends have one, a stage in between two. A rank sends its t-th alone."
    check_sent(submission, "pipeline", [(1, 2, 1), (1, 1, 4), (1, 4, 1), (2, 3, 4)], hint)


@pytest.mark.points(1, "sent: along the data axis")
def test_sent_data(submission: Submission) -> None:
    hint = "A reduce-scatter and an all-gather of the ψ parameters that the rank has, once a step."
    check_sent(submission, "data", [(2, 1, 1), (1, 2, 2), (8, 1, 1), (4, 3, 2)], hint)


def layouts_of(model: Sequence[float], ranks: int) -> list[tuple[int, int, int]]:
    layers, _, heads, _, batch, _ = model
    found = []
    for p, t in itertools.product(range(1, ranks + 1), repeat=2):
        d = ranks // (p * t) if ranks % (p * t) == 0 else 0
        if d and layers % p == 0 and heads % t == 0 and batch % d == 0:
            found.append((d, p, t))
    return found


@pytest.mark.points(2, "choose: fits, and is the fastest")
def test_choose(submission: Submission) -> None:
    fast, slow = 300e9, 12.5e9
    clusters = [
        (LARGE, [64, 8, 32e9, 140e12, fast, slow]),
        (LARGE, [64, 8, 13e9, 140e12, fast, slow]),  # little memory
        (LARGE, [64, 8, 5e9, 140e12, fast, slow]),  # nothing fits
        (LARGE, [64, 64, 200e9, 140e12, fast, slow]),
        # 4 and 8 do not divide 6 heads, nor 2 three layers, nor 4 six sequences
        ([1, 4096, 6, 1024, 96, 2_000_000_000], [8, 8, 6e9, 10e12, fast, slow]),
        ([3, 4096, 1, 1024, 96, 2_000_000_000], [8, 8, 9e9, 10e12, fast, slow]),
        ([4, 4096, 8, 8192, 6, 200_000_000], [8, 8, 100e9, 1e12, fast, slow]),
    ]
    [[outcome]] = submission.run("choices", [Case(1, "choose", [[list(each) for each in clusters]])], ["choose"])
    for (model, cluster), found in zip(clusters, outcome.value, strict=True):
        ranks, per_host, room = int(cluster[0]), int(cluster[1]), cluster[2]
        where = f"On {ranks} ranks, {per_host} on a host, each with {room / 1e9:g} GB"
        every = layouts_of(model, ranks)
        fit = [layout for layout in every if true_memory(model, layout) <= room]
        best = min(fit, key=lambda layout: true_seconds(model, layout, cluster), default=None)
        wanted = f"{words(best)} is a layout that fits" if best else "nothing fits, so None is wanted"
        if found is None and best is None:
            continue
        if found is None or isinstance(found, str) or len(found) != 3 or any(isinstance(n, str) for n in found):
            lose(f"{where}: it returned {found}; {wanted}.")
        said = tuple(found)
        if math.prod(said) != ranks:
            lose(f"{where}: {words(said)} has {math.prod(said):g} ranks.")
        if said not in every:
            lose(f"{where}: {words(said)} cannot divide {model[0]} layers, {model[2]} heads or {model[4]} sequences.")
        if best is None:
            lose(f"{where}: it returned {words(said)}; {wanted}.")
        if said not in fit:
            lose(f"{where}: {words(said)} needs {true_memory(model, said) / 1e9:.1f} GB, which does not fit.")
        taken, least = true_seconds(model, said, cluster), true_seconds(model, best, cluster)
        if taken > least * (1 + CLOSE):
            lose(f"{where}: {words(said)} fits and takes {taken:.2f} s; {words(best)} takes {least:.2f} s.")


# ---- the mesh --------------------------------------------------------------------------------------------------------

MESHES: list[tuple[tuple[str, ...], tuple[int, ...]]] = [
    (AXES, (2, 2, 2)),
    (AXES, (2, 3, 4)),
    (("host", "shard"), (3, 2)),
    (("a", "b", "c", "d"), (2, 1, 3, 2)),
]


def true_place(rank: int, sizes: Sequence[int]) -> list[int]:
    return list(itertools.product(*map(range, sizes)))[rank]  # type: ignore[return-value]


@pytest.mark.points(2, "place: the last axis is the innermost")
def test_place(submission: Submission) -> None:
    [[outcome]] = submission.run("places", [Case(1, "place", [[list(map(list, mesh)) for mesh in MESHES]])], ["place"])
    for (names, sizes), of_ranks in zip(MESHES, outcome.value, strict=True):
        shown = dict(zip(names, sizes, strict=True))
        for rank, found in enumerate(of_ranks):
            where = f"On place({rank}, {shown})"
            if isinstance(found, str):
                lose(f"{where}: it returned {found}; a dictionary is wanted.")
            wanted = dict(zip(names, true_place(rank, sizes), strict=True))
            if found[0] != list(names):
                lose(f"{where}: its names are {', '.join(found[0])}; {', '.join(names)} are wanted, in this order.")
            at = {name: int(n) if isinstance(n, float) else n for name, n in zip(*found, strict=True)}
            if at != wanted:
                backwards = list(true_place(rank, sizes[::-1]))[::-1]
                instead = " Which axis is the innermost?" if list(at.values()) == backwards else ""
                lose(f"{where}: it is {at}; {wanted} is wanted.{instead}")


def true_group(rank: int, names: Sequence[str], sizes: Sequence[int], axes: Sequence[str]) -> list[int]:
    every = list(itertools.product(*map(range, sizes)))
    others = [number for number, name in enumerate(names) if name not in axes]
    return [r for r, at in enumerate(every) if all(at[n] == every[rank][n] for n in others)]


def along_case(names: Sequence[str], sizes: Sequence[int], asked: Sequence[Sequence[str]]) -> Case:
    n, shown = math.prod(sizes), " x ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
    arguments = {"names": list(names), "sizes": list(sizes), "asked": [list(axes) for axes in asked]}
    return Case(n, f"{n} ranks, {shown}", [None] * n, arguments)


def check_group(each: Case, rank: int, axes: Sequence[str], found: Any) -> None:
    wanted = true_group(rank, each.arguments["names"], each.arguments["sizes"], axes)
    if isinstance(found, str):
        lose(f"On {each.label}: along({', '.join(axes)}) returned {found}, not a communicator.")
    if found != wanted:
        order = " They are the right ones in another order." if sorted(found) == wanted else ""
        lose(
            f"On {each.label}: along {' and '.join(axes)}, rank {rank} is with the ranks {found}; {wanted} are"
            f" wanted.{order}"
        )


def check_along(submission: Submission, cases: Sequence[Case], of_axes: Callable[[int], bool]) -> None:
    """The groups along as many axes as `of_axes` says."""
    for each, outcomes in zip(cases, submission.run("groups", cases, ["along"]), strict=True):
        for rank, outcome in enumerate(outcomes):
            for axes, found in zip(each.arguments["asked"], outcome.value, strict=True):
                if of_axes(len(axes)):
                    check_group(each, rank, axes, found)


@pytest.mark.points(2, "along: one axis")
def test_along(submission: Submission) -> None:
    cases = [
        along_case(names, sizes, [[name] for name in names]) for names, sizes in ((AXES, (2, 2, 2)), (AXES[:2], (2, 3)))
    ]
    check_along(submission, cases, lambda number: number == 1)


@pytest.mark.points(1, "along: several axes")
def test_along_several(submission: Submission) -> None:
    """If one axis is not right, several need be no better."""
    one, several = [[axis] for axis in AXES], [["data", "tensor"], ["pipeline", "tensor"], AXES]
    plain, each = along_case(AXES, (2, 2, 2), one), along_case(AXES, (2, 2, 2), several)
    singles, outcomes = submission.run("groups", [plain, each], ["along"])
    for rank, (of_one, of_several) in enumerate(zip(singles, outcomes, strict=True)):
        groups = [true_group(rank, AXES, (2, 2, 2), axes) for axes in one]
        for axes, found in zip(each.arguments["asked"], of_several.value, strict=True):
            if of_one.value == groups or isinstance(found, str):
                check_group(each, rank, axes, found)


# ---- who sums what ---------------------------------------------------------------------------------------------------


def an_array(where: str, found: Any, name: str, like: Array) -> Array:
    """What was found. Loses the part if it is no array of this shape and dtype."""
    if not isinstance(found, np.ndarray):
        lose(f"{where}: {name} is {'None' if found == 'NoneType' else found}, not an array.")
    if found.shape != like.shape or found.dtype != like.dtype:
        lose(f"{where}: {name} is {found.dtype} {found.shape}; {like.dtype} {like.shape} is wanted.")
    return found


def known(found: Array, mistakes: Mapping[str, Array]) -> str:
    """Which mistake it is, if it is one of these."""
    return next((f" It is {what}." for what, wrong in mistakes.items() if np.allclose(found, wrong, rtol=1e-9)), "")


def check_equal(where: str, found: Any, name: str, expected: Array, mistakes: Mapping[str, Array] = NONE) -> None:
    if not np.allclose(an_array(where, found, name, expected), expected, rtol=1e-9, atol=1e-12):
        lose(f"{where}: {name} is wrong.{known(found, mistakes)}")


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
        where, found = f"On {each.label}", outcome.value["returned"]
        if isinstance(found, np.ndarray) and found.shape == total.shape and g > 1:
            lose(f"{where}: rank {rank} returned {found.size} numbers; its shard has {wanted.size}.")
        check_equal(where, found, f"rank {rank}'s shard", wanted, mistakes)
        if not np.array_equal(outcome.value["gradient"], each.inputs[rank]):
            lose(f"{where}: rank {rank}'s gradient was changed.")


def check_left(each: Case, outcomes: Sequence[Outcome]) -> None:
    """What goes to ranks of other hosts."""
    g, m = each.arguments["per_host"], each.inputs[0].nbytes
    wanted = 2 * m * (each.n - g) // (g * each.n)
    for rank, outcome in enumerate(outcomes):
        left = sum(nbytes for (_, peer, _), (nbytes, _) in outcome.sent.items() if peer // g != rank // g)
        if not left:
            lose(f"On {each.label}: rank {rank} sends nothing to other hosts, so nobody has the sum over all ranks.")
        if left > wanted:
            lose(
                f"On {each.label}: rank {rank} sends {left} bytes to other hosts; 2M(W-G)/(GW) = {wanted} are enough,"
                f" with M = {m}. Sum within the host first."
            )


@pytest.mark.points(1, "shard_gradient: a shard of everybody's sum")
def test_shard_gradient(submission: Submission) -> None:
    cases = [shard_case(submission, *each) for each in ((4, 2, 8), (6, 3, 7), (4, 1, 5), (3, 3, 6))]
    for each, outcomes in zip(cases, submission.run("shard", cases, ["shard_gradient"]), strict=True):
        check_shard(each, outcomes)


@pytest.mark.points(1, "shard_gradient: 2M(W-G)/(GW) to other hosts")
def test_shard_gradient_hosts(submission: Submission) -> None:
    cases = [shard_case(submission, *each) for each in ((8, 4, 64), (8, 2, 64), (6, 2, 36))]
    for each, outcomes in zip(cases, submission.run("shard", cases, ["shard_gradient"]), strict=True):
        check_left(each, outcomes)


def sums_case(submission: Submission, n: int, stages: int, tied: int = -1) -> Case:
    inputs = [[submission.random.standard_normal(size) for size in (5, 4, 3)] for _ in range(n)]
    label = f"{n // stages} x {stages} ranks (data x stages)" + (", piece 1 tied" if tied >= 0 else "")
    return Case(n, label, inputs, {"stages": stages, "tied": tied})


def over_data(each: Case, rank: int, number: int) -> Array:
    stages = each.arguments["stages"]
    return np.sum([grads[number] for grads in each.inputs[rank % stages :: stages]], axis=0)


@pytest.mark.points(1, "sum_gradients: over the data axis, in place")
def test_sum_gradients(submission: Submission) -> None:
    cases = [sums_case(submission, n, stages) for n, stages in ((4, 2), (3, 1), (2, 2))]
    for each, outcomes in zip(cases, submission.run("sums", cases, ["sum_gradients"]), strict=True):
        copies = each.n // each.arguments["stages"]
        for rank, outcome in enumerate(outcomes):
            for number, found in enumerate(outcome.value["grad"]):
                wanted, own = over_data(each, rank, number), each.inputs[rank][number]
                where, name = f"On {each.label}", f"grad of piece {number} on rank {rank}"
                mistakes = {"this rank's own, not summed": own} if copies > 1 else {}
                if copies > 1:
                    mistakes["the mean; losses have been divided by the size of the batch already"] = wanted / copies
                check_equal(where, found, name, wanted, mistakes)
                if not np.array_equal(outcome.value["handed"][number], found):
                    lose(f"{where}: {name} is another array; put the sum into the one that was there.")


@pytest.mark.points(2, "sum_gradients: what is tied, over both ends as well")
def test_sum_gradients_tied(submission: Submission) -> None:
    """The sum of what both ends have when it is not tied: so a factor costs nothing here."""
    for n, stages in ((2, 2), (4, 2), (6, 3)):
        each = sums_case(submission, n, stages, tied=1)
        plain = Case(n, each.label, each.inputs, {"stages": stages, "tied": -1})
        [alone, outcomes] = submission.run("sums", [plain, each], ["sum_gradients"])
        for rank, outcome in enumerate(outcomes):
            stage, where, name = rank % stages, f"On {each.label}", f"grad of piece 1 on rank {rank}"
            if stage not in (0, stages - 1):
                continue
            ends = [rank - stage, rank - stage + stages - 1]
            wanted = np.sum([over_data(each, end, 1) for end in ends], axis=0)
            found = an_array(where, outcome.value["grad"][1], name, wanted)
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
            check_equal(where, found, name, wanted, mistakes)


# ---- who counts what -------------------------------------------------------------------------------------------------


def norm_case(
    submission: Submission,
    n: int,
    stages: int,
    cut: Sequence[bool],
    label: str = "",
    tied: int = -1,
    absent: Sequence[int] = (),
) -> Case:
    """Pieces 0, 1, ... of each stage. A piece that is not cut is the same on all tensor ranks; the piece `tied` the
    same on the first and the last stage, if it is cut part by part. On the stages `absent` it is not there."""
    t = n // stages
    inputs: list[list[Array]] = []
    for rank in range(n):
        stage, part = divmod(rank, t)
        mine: list[Array] = []
        for number, is_cut in enumerate(cut):
            if number == tied and stage in absent:
                mine.append(np.zeros(0))
            elif number == tied and stage == stages - 1 and stages > 1 and inputs[part][number].size:
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
    for each, outcomes in zip(cases, submission.run("norm", cases, ["gradient_norm"]), strict=True):
        values = []
        for rank, outcome in enumerate(outcomes):
            value = outcome.value["returned"]
            if not isinstance(value, np.ndarray):
                lose(f"On {each.label}: rank {rank} returned {value}; a float is wanted.")
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
                what = next((f" It is {what}." for what, wrong in mistakes.items() if close(value, wrong)), "")
                lose(f"On {each.label}: on rank {rank} the norm is {value:.6g}; {wanted:.6g} is wanted.{what}")


@pytest.mark.points(1, "gradient_norm: what is tied counts once")
def test_norm_tied(submission: Submission) -> None:
    """Compared with the same pieces without one or both copies: so nothing else matters."""
    for n, stages, is_cut in ((4, 2, True), (3, 3, True), (2, 1, True), (4, 2, False)):
        have = {"both ends have it": (), "the first stage has it": range(1, stages), "no stage has it": range(stages)}
        cases = [
            norm_case(submission, n, stages, [True, is_cut], f", a tied piece: {which}", 1, absent)
            for which, absent in have.items()
        ]
        for each in cases[1:]:  # else as in the first
            for mine, of_both in zip(each.inputs, cases[0].inputs, strict=True):
                mine[:] = [of_both[0], of_both[1] if mine[1].size else mine[1]]
        if stages == 3:  # a stage in between has no copy
            cases[0].inputs[1][1] = np.zeros(0)
        both, first, none = norms_of(submission, cases)
        for rank, (value, once, without) in enumerate(zip(both, first, none, strict=True)):
            if rank == 0 and close(once, without):
                lose(f"On {cases[1].label}: on rank {rank} the tied piece does not count at all.")
            if not close(value, once):
                lose(
                    f"On {cases[0].label}: on rank {rank} the norm is {value:.6g}, and {once:.6g} where the first stage"
                    " alone has the tied piece. After sum_gradients the two copies are the same parameter's gradient."
                )


# ---- the notebook's gaps, which earn no points: check("place_of") runs these -----------------------------------------


def check_place_of(submission: Submission) -> None:
    asked = [[rank, p, t] for d, p, t in ((2, 2, 2), (2, 3, 4)) for rank in range(d * p * t)]
    [[outcome]] = submission.run("places_of", [Case(1, "place_of", [asked])], ["place_of"])
    for (rank, p, t), found in zip(asked, outcome.value, strict=True):
        wanted = [rank // t // p, rank // t % p, rank % t]
        if isinstance(found, str) or found != wanted:
            said = found if isinstance(found, str) else tuple(int(n) if isinstance(n, float) else n for n in found)
            lose(f"On place_of({rank}, p={p}, t={t}): it is {said}; {tuple(wanted)} is wanted.")


def check_color_of(submission: Submission) -> None:
    asked = [(list(names), list(sizes), axis) for names, sizes in MESHES[:3] for axis in names]
    [[outcome]] = submission.run("colors_of", [Case(1, "color_of", [asked])], ["color_of"])
    for (names, sizes, axis), found in zip(asked, outcome.value, strict=True):
        where = f"On {' x '.join(f'{n} {s}' for n, s in zip(names, sizes, strict=True))}, axis {axis}"
        if any(not isinstance(color, float) or color != int(color) for color in found):
            lose(f"{where}: color_of returned {found[0]}; an integer is wanted.")
        for rank in range(len(found)):
            alike = [other for other, color in enumerate(found) if color == found[rank]]
            wanted = true_group(rank, names, sizes, [axis])
            if alike != wanted:
                lose(f"{where}: the ranks {alike} have the color of rank {rank}; {wanted} should have it.")


def check_two_levels(submission: Submission) -> None:
    cases = [shard_case(submission, n, g, size, "two_levels") for n, g, size in ((4, 2, 8), (8, 4, 64))]
    for each, outcomes in zip(cases, submission.run("shard", cases, ["two_levels"]), strict=True):
        check_shard(each, outcomes)
        check_left(each, outcomes)


def check_my_squares(submission: Submission) -> None:
    whole, *parts = [submission.random.standard_normal(size) for size in (3, 5, 5, 5)]
    [[outcome]] = submission.run("squares", [Case(1, "my_squares", [[whole, *parts]])], ["my_squares"])
    if wrong := [found for found in outcome.value if not isinstance(found, float)]:
        lose(f"On my_squares: it returned {wrong[0]}; a float is wanted.")
    wanted = float((whole**2).sum() + sum((part**2).sum() for part in parts))
    total, times = sum(outcome.value), wanted + 2 * float((whole**2).sum())
    if not close(total, wanted):
        again = " It counts what is whole three times." if close(total, times) else ""
        lose(f"On three ranks: together they count {total:.6g}; it should be {wanted:.6g}.{again}")


GAPS = {
    "place_of": check_place_of,
    "color_of": check_color_of,
    "two_levels": check_two_levels,
    "my_squares": check_my_squares,
}


PARTS = {
    "sent": together(test_sent_tensor, test_sent_pipeline, test_sent_data),
    "along": together(test_along, test_along_several),
    "shard_gradient": together(test_shard_gradient, test_shard_gradient_hosts),
    "sum_gradients": together(test_sum_gradients, test_sum_gradients_tied),
    "gradient_norm": together(test_norm, test_norm_tied),
}
