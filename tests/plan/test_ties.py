"""Rows that are as fast as each other, in a plan."""

import itertools

from minidist.plan import command, search
from minidist.plan.choice import ask
from minidist.plan.profiles import ProfileOptions
from minidist.plan.search import best_chunks
from minidist.plan.ties import SAME
from minidist.plan.traffic import sent

PAPER = ProfileOptions(profile="paper")
SMALL = command.PlanOptions(
    model="gpt2-medium", ranks=8, device_memory=16 * 10**9, batch=2**16, context=1024, system=PAPER
)


def test_fewer_bytes_then_the_lower_stage() -> None:
    """GPT-2 medium on eight devices, where all messages are hidden: plain data parallelism, and not ZeRO-3."""
    wanted = command.wanted_of(SMALL)
    rows = search.search(wanted, command.cluster_of(SMALL)).rows
    fastest = min(row.seconds.step for row in rows)
    tied = [row for row in rows if row.seconds.step <= fastest * (1 + SAME)]
    assert {row.choice.zero for row in tied} == {0, 1, 2, 3}
    found = [(sum(max(one.nbytes) for one in sent(ask(wanted, row.choice)).values()), row.choice.zero) for row in tied]
    assert found == sorted(found)
    assert rows[0].choice.zero == 0


def test_rows_that_tie_and_are_arranged_alike_are_one() -> None:
    rows = best_chunks(search.search(command.wanted_of(SMALL), command.cluster_of(SMALL)).rows)
    for a, b in itertools.combinations(rows[:40], 2):
        alike = [
            (row.choice.dp, row.choice.tp, row.choice.cp, row.choice.pp, row.choice.ep, row.choice.schedule)
            for row in (a, b)
        ]
        slower = max(a.seconds.step, b.seconds.step) / min(a.seconds.step, b.seconds.step)
        assert alike[0] != alike[1] or slower > 1 + SAME / 2
    assert all(a.seconds.step < (1 + SAME) * b.seconds.step for a, b in itertools.pairwise(rows))
