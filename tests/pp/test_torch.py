"""Our orders next to those that an installed PyTorch makes (torch.distributed.pipelining, 2.13). Nothing of it is
copied: without PyTorch, these tests are skipped."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minidist.pp.instructions import Backward, Both, Forward, StagePlace, Weight
from minidist.pp.schedules import SCHEDULES

torch = pytest.importorskip("torch", reason="an optional cross-check: it needs PyTorch, minidist does not")
theirs = pytest.importorskip("torch.distributed.pipelining.schedules")

Work = tuple[str, int, int]  # F, I (the input's gradient), W or B (both); part of the model; micro-batch
SIZES = [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, 2, 3, 4, 6, 8, 12, 16, 24)]


def joined(order: list[tuple[Work, ...]]) -> list[tuple[Work, ...]]:
    """A W that follows its I at once is one backward."""
    made: list[tuple[Work, ...]] = []
    for slot in order:
        work = slot[-1]
        if work[0] == "W" and made and made[-1][-1] == ("I", *work[1:]):
            made[-1] = (*made[-1][:-1], ("B", *work[1:]))
        else:
            made.append(slot)
    return made


def of_torch(kind: str, p: int, m: int, v: int, v_shaped: bool) -> list[list[tuple[Work, ...]]]:
    """Every rank's order; work that overlaps is one slot."""
    parts = p * v
    mine = [0, parts - 1] if v_shaped else range(0, parts, p)
    stages: list[Any] = [
        SimpleNamespace(
            num_stages=parts, group_size=p, group_rank=0, stage_index=part, is_first=part == 0,
            is_last=part == parts - 1, has_backward=True, submod=torch.nn.Module(),
        )
        for part in mine
    ]  # fmt: skip
    made = getattr(theirs, kind)(stages if v > 1 or "Zero" in kind else stages[0], m, loss_fn=lambda y, target: y)
    orders = []
    for rank in range(p):
        slots = [action.sub_actions or (action,) for action in made.pipeline_order[rank] if action is not None]
        work = [tuple((one[1].value, one[0], one[2]) for one in slot) for slot in slots]
        orders.append(joined([slot for slot in work if slot[0][0] in {"F", "I", "B", "W"}]))
    return orders


def of_ours(name: str, p: int, m: int, v: int) -> list[list[tuple[Work, ...]]]:
    orders = []
    for at in SCHEDULES[name].places(p, m, v):
        order = list[tuple[Work, ...]]()
        for one in SCHEDULES[name].instructions(at):
            if isinstance(one, Both):
                order.append((work_of(at, "F", one.forward), work_of(at, "B", one.backward)))
            elif isinstance(one, Forward | Backward | Weight):
                order.append((work_of(at, {Forward: "F", Backward: "I", Weight: "W"}[type(one)], one),))
        orders.append(joined(order))
    return orders


def work_of(at: StagePlace, letter: str, one: Forward | Backward | Weight) -> Work:
    return letter, at.positions[one.chunk], one.micro_batch


def backwards_reversed(orders: list[Any], p: int, m: int) -> list[Any]:
    """The order of micro-batches in the backward, turned around."""
    return [[tuple((x, part, m - 1 - k if x == "B" else k) for x, part, k in slot) for slot in of] for of in orders]


def last_from_one(orders: list[Any], p: int, m: int) -> list[Any]:
    """PyTorch 2.13 numbers the forwards of 1F1B's last stage from 1, though there is no micro-batch m."""
    last = [tuple((x, part, k + (x == "F")) for x, part, k in slot) for slot in orders[-1]]
    return [*orders[:-1], last]


def as_it_is(orders: list[Any], p: int, m: int) -> list[Any]:
    return orders


@pytest.mark.parametrize(
    ("name", "kind", "v", "differs"),
    [
        ("gpipe", "ScheduleGPipe", 1, backwards_reversed),  # the paper's figure 2c has the last micro-batch first
        ("1f1b", "Schedule1F1B", 1, last_from_one),
        ("interleaved", "ScheduleInterleaved1F1B", 2, as_it_is),
        ("interleaved", "ScheduleInterleaved1F1B", 3, as_it_is),
        ("breadth-first", "ScheduleLoopedBFS", 2, backwards_reversed),
        ("zb-h1", "ScheduleInterleavedZeroBubble", 1, as_it_is),
        ("zb-v", "ScheduleZBVZeroBubble", 2, as_it_is),
        ("dualpipe-v", "ScheduleDualPipeV", 2, as_it_is),
    ],
)
def test_orders_are_pytorchs(name: str, kind: str, v: int, differs: Callable[..., Any]) -> None:
    schedule, compared = SCHEDULES[name], 0
    for p, m in SIZES:
        if m % schedule.micro_batches_in(p) or m < schedule.at_least(p) or (name == "1f1b" and m < p):
            continue  # PyTorch refuses 1F1B with fewer micro-batches than stages
        if name == "zb-h1" and m % max(m // p, 1):
            continue  # and ZB1P if m is not divisible by the number of rounds
        assert differs(of_ours(name, p, m, v), p, m) == of_torch(kind, p, m, v, schedule.shape == "v"), (p, m)
        compared += 1
    assert compared >= 10
