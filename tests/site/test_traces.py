"""Recorded collectives: who sends what to whom, by the algorithms' definitions, and bytes by the formulas."""

import functools
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from minidist.memory import colors
from minidist.papers import collectives as formulas
from minidist.site import content, traces

WIDTH = 8  # bytes of a number
COSTS: dict[str, Callable[[int, int], formulas.Cost]] = {
    "reduce-scatter": formulas.ring_reduce_scatter,
    "all-gather": formulas.ring_all_gather,
    "all-reduce": formulas.ring_all_reduce,
    "recursive-doubling": formulas.doubling_all_reduce,
    "tree": partial(formulas.binary_tree_all_reduce, blocks=1),
    "hierarchical": lambda s, n: formulas.hierarchical_all_reduce(s, n, 1 if n % 2 else n // 2),
    "all-to-all": formulas.all_to_all,
}


@functools.cache
def trace(name: str, n: int) -> dict[str, Any]:
    return traces.trace(name, n)


def parts(*ranks: int) -> int:
    return sum(1 << rank for rank in ranks)


@pytest.mark.parametrize("n", traces.RANKS)
def test_bytes_and_steps_are_those_of_the_formula(n: int) -> None:
    for name, formula in COSTS.items():
        steps, cost = trace(name, n)["messages"], formula(n, n)
        sent = [sum(nbytes for step in steps for source, _, _, nbytes in step if source == rank) for rank in range(n)]
        assert sent == [WIDTH * elements for elements in cost.sent], name
        assert len(steps) == cost.steps or (name == "tree" and len(steps) <= 4 * n.bit_length()), name
    steps = trace("keys-and-values", n)["messages"]  # a key and a value of one position, N-1 times
    sent = [sum(nbytes for step in steps for source, _, _, nbytes in step if source == rank) for rank in range(n)]
    assert sent == [2 * (n - 1) * WIDTH] * n


@pytest.mark.parametrize("n", traces.RANKS)
def test_rings_send_what_their_definition_says(n: int) -> None:
    """To the right neighbor; in step s of a reduce-scatter rank r sends chunk r-s, with the parts of s ranks."""
    for step, found in enumerate(trace("reduce-scatter", n)["messages"], start=1):
        everyone = [(r, (r - step) % n, parts(*((r - k) % n for k in range(step)))) for r in range(n)]
        assert found == [[r, (r + 1) % n, [(chunk, of)], WIDTH] for r, chunk, of in everyone]
    for step, found in enumerate(trace("all-gather", n)["messages"], start=1):
        chunks = [(r - step + 1) % n for r in range(n)]
        assert found == [[r, (r + 1) % n, [(chunk, parts(chunk))], WIDTH] for r, chunk in enumerate(chunks)]
    for step, found in enumerate(trace("keys-and-values", n)["messages"], start=1):
        blocks = [(r - step + 1) % n for r in range(n)]
        assert found == [[r, (r + 1) % n, [(block, parts(block))] * 2, 2 * WIDTH] for r, block in enumerate(blocks)]
    halves = trace("all-reduce", n)["messages"]
    assert halves[: n - 1] == trace("reduce-scatter", n)["messages"]
    gathered = [[[*message[:2], [(chunk, parts(*range(n))) for chunk, _ in message[2]], WIDTH] for message in step]
                for step in trace("all-gather", n)["messages"]]  # fmt: skip
    assert halves[n - 1 :] == gathered


@pytest.mark.parametrize("n", traces.RANKS)
def test_an_all_to_all_is_in_pairs(n: int) -> None:
    for step, found in enumerate(trace("all-to-all", n)["messages"], start=1):
        assert found == [[r, (r + step) % n, [((r + step) % n, parts(r))], WIDTH] for r in range(n)]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_recursive_doubling_swaps_at_distance_1_2_4(n: int) -> None:
    for k, found in enumerate(trace("recursive-doubling", n)["messages"]):
        for r, (source, dest, items, _) in enumerate(found):
            assert (source, dest) == (r, r ^ (1 << k))
            summed = parts(*(rank for rank in range(n) if rank >> k == r >> k))
            assert items == [(chunk, summed) for chunk in range(n)]


@pytest.mark.parametrize("n", traces.RANKS)
def test_in_a_step_a_rank_sends_one_message_and_receives_one(n: int) -> None:
    for name in traces.COLLECTIVES:
        for found in trace(name, n)["messages"]:
            sources, dests = [message[0] for message in found], [message[1] for message in found]
            assert len({*sources}) == len(sources) > 0
            assert len({*dests}) == len(dests), name


@pytest.mark.parametrize("n", traces.RANKS)
def test_what_a_rank_holds_is_what_it_had_or_was_sent(n: int) -> None:
    """At the end what the collective promises; and at no step a part that has not yet come."""
    everyone = parts(*range(n))
    for name in traces.COLLECTIVES:
        found = trace(name, n)
        for rank, steps in enumerate(found["held"]):
            has = {(chunk, rank) for chunk in range(n)}  # (chunk, rank whose part it is)
            for step, held in enumerate(steps):
                if step:
                    came = [m for m in found["messages"][step - 1] if m[1] == rank]
                    has |= {(c, r) for _, _, items, _ in came for c, of in items for r in range(n) if of >> r & 1}
                assert {(c, r) for c, of in filter(None, held) for r in range(n) if of >> r & 1} <= has, (name, step)
            end = [item for item in steps[-1] if item]
            promised = {
                "reduce-scatter": [(rank, everyone)],
                "all-gather": [(chunk, parts(chunk)) for chunk in range(n)],
                "all-to-all": [(rank, parts(source)) for source in range(n)],
                "keys-and-values": sorted((block, parts(block)) for block in {rank, (rank + 1) % n}),
            }.get(name, [(chunk, everyone) for chunk in range(n)])
            assert end == promised, (name, rank)


# ---- the pictures ----------------------------------------------------------------------------------------------------


def rows_of(view: str) -> list[list[str]]:
    """Of a step's table: what a rank holds, what it sends, its bytes."""
    return [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", view.split("<tbody>")[1])]


def boxes(cell: str) -> list[tuple[int, int] | None]:
    """Chunk and ranks of each box, as its color and its number say; and its title says the same."""
    found = list[tuple[int, int] | None]()
    for of, told, chunk in re.findall(
        r'<span class="cell[ a-z]*"(?: style="background:var\(--of-(\d+)\)" title="(.*?)")?>(.*?)<', cell
    ):
        if chunk == "·":
            found.append(None)
            continue
        found.append((int(chunk), int(of)))
        ranks = [rank for rank in range(8) if int(of) >> rank & 1]
        assert told.startswith(f"chunk {chunk} of rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}")
    return found


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_pictures_show_what_was_recorded(n: int) -> None:
    """Of each collective and each step: every rank's boxes, messages and bytes; and a frame around what has come."""
    for name in traces.COLLECTIVES:
        run = trace(name, n)
        views = content.draw_collective({(name, n): run}, name, n)
        assert len(views) == len(run["messages"]) + 1
        for step, view in enumerate(views):
            rows = rows_of(view)
            assert len(rows) == n
            for rank, (holds, sends, nbytes) in enumerate(rows):
                assert boxes(holds) == [tuple(item) if item else None for item in run["held"][rank][step]]
                left, *right = holds.split('class="bar"')  # what is still to be sent, and what has come
                assert [len(boxes(part)) for part in (left, *right)] == [n, n] if name == "all-to-all" else not right
                ahead = [m for m in (run["messages"] + [[]])[step] if m[0] == rank]
                assert boxes(sends) == [item for m in ahead for item in m[2]]
                assert re.findall(r"to rank (\d+)", sends) == [str(m[1]) for m in ahead]
                assert int(nbytes) == sum(m[3] for done in run["messages"][:step] for m in done if m[0] == rank)
                came = [m for m in run["messages"][step - 1] if m[1] == rank] if step else []
                framed = re.findall(r'cell new" style="[^"]*" title="chunk (\d+) ', holds)
                if name in ("reduce-scatter", "all-gather", "all-reduce", "recursive-doubling"):
                    assert framed == sorted(str(chunk) for m in came for chunk, _ in m[2]), (name, step)
                else:
                    assert len(framed) <= sum(len(m[2]) for m in came)


def test_colors_are_those_of_the_ranks() -> None:
    """Every set of ranks that a box shows has its stripes: equally wide, in the ranks' colors."""
    recorded = {("all-reduce", 3): trace("all-reduce", 3)}
    stripes = dict(re.findall(r"--of-(\d+):linear-gradient\(90deg,(.*?)\)", content.stripes(recorded)))
    shown = boxes("".join(content.draw_collective(recorded, "all-reduce", 3)))
    used = {item[1] for item in shown if item}
    assert {int(of) for of in stripes} == used == {1, 2, 4, 3, 5, 6, 7}
    assert stripes["1"] == f"{colors.RANKS[0]} 0% 100%"
    assert stripes["6"] == f"{colors.RANKS[1]} 0% 50%,{colors.RANKS[2]} 50% 100%"
