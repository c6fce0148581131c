"""The chapter's master with simulated workers: locality, backups and re-execution at a tenth of the paper's size."""

from collections import Counter
from functools import cache

import pytest

from minidist.mapreduce import FaultTolerantMaster
from minidist.mr.cluster import MAPS, REDUCES, WORKERS, Case, print_cluster, simulate
from minidist.mr.report import EndedJob, failures

CASES = {
    "well": Case(),
    "slow": Case(slow={88: 4.0}),
    "slow, no backup": Case(slow={88: 4.0}, backup=False),
    "dead": Case(killed=dict.fromkeys(range(1, 21), 150.0)),
    "one copy": Case(replicas=1),
}


@cache
def run(name: str) -> tuple[float, EndedJob]:
    return simulate(FaultTolerantMaster, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_every_task_is_done_and_every_execution_has_its_reason(name: str) -> None:
    _, outcome = run(name)
    assert outcome.failure is None
    done = {(event.kind, event.number) for event in outcome.events if event.what == "done"}
    assert Counter(kind for kind, _ in done) == {"map": MAPS, "reduce": REDUCES}
    extra = outcome.count("again") + outcome.count("assigned", "backup")
    assert outcome.count("assigned") == MAPS + REDUCES + extra
    again = {event.worker for event in outcome.events if event.what == "lost"}
    assert again == set(CASES[name].killed)


def test_a_cluster_on_which_nothing_happens_takes_the_time_of_its_waves() -> None:
    """Nine maps and three reduces, one after another on every worker, each within a quarter of its usual time."""
    seconds, outcome = run("well")
    assert 0.75 * 891 < seconds < 1.25 * 891
    assert outcome.count("assigned", "backup") == outcome.count("again") == 0


def test_backups_save_the_tail_for_a_few_executions_more() -> None:
    """The paper: 44 % longer without them (section 5.4), which cost no more than a few percent (3.6)."""
    well, (slow, outcome), (without, _) = run("well")[0], run("slow"), run("slow, no backup")
    assert well < slow < 1.1 * well
    assert without > 1.25 * slow
    assert 0 < outcome.count("assigned", "backup") < 0.05 * (MAPS + REDUCES)


def test_dead_workers_cost_their_maps_and_little_time() -> None:
    """The paper: 5 % (section 5.5). What is done again is what they had done or begun (3.3)."""
    seconds, outcome = run("dead")
    lost, repeated = failures(outcome.events)
    assert repeated["map"] == lost["map"] > 20 * MAPS / WORKERS / 2
    assert repeated["reduce, completed"] == 0
    assert run("well")[0] < seconds < 1.2 * run("well")[0]


def test_more_copies_bring_more_maps_near() -> None:
    """With one copy still most: there are many more maps than workers."""

    def near(name: str) -> float:
        return run(name)[1].count("assigned", "near") / MAPS

    assert 0.6 < near("one copy") < near("well") < 1


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minidist.mr.cluster.simulate", lambda make, case: (891.0 * (2 - case.backup), run("well")[1]))
    print_cluster(FaultTolerantMaster)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    without = ("no backup tasks", "1782", "2.00", "1283 s", "1.44")
    for cells in (("all is well", "891", "1.00"), without, ("933 s", "1.05")):
        assert any(all(cell in line for cell in cells) for line in printed.splitlines()), cells
