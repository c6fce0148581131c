"""Every claim falls under a program that breaks its promise, and only that; and a sweep shows the worst of each."""

import re
from functools import cache

import pytest

from minidist.claims.claim import Claim
from minidist.launch.launcher import launch
from minidist.ps.report import merge_claims

SMALL = "--layers=1 --width=12 --heads=2 --context=8 --batch=9 --steps=3 --warmup=1"
WORKER, INTO, OUT = "pushed and pulled by a worker", "into each server", "out of each server"
CASES = {
    ("every_push_twice", "--servers=2"): [WORKER, INTO],
    ("every_push_twice", "--servers=2 --placement=hash"): [WORKER, INTO],
    ("every_push_twice", "--colocated"): ["sent by a rank", "as in a ring"],
    ("every_push_twice", "--colocated --placement=hash"): ["sent by a rank", "sent, as in a ring"],
    ("every_push_twice", "--servers=2 --filter=1e-3"): ["pushed by a worker in the run"],
    ("every_push_twice", "--colocated --filter=1e-3"): ["pushed by a worker in the run"],
    ("every_pull_twice", "--consistency=async"): [WORKER, OUT],
    ("every_pull_twice", "--servers=3 --placement=hash --virtual=3"): [WORKER, OUT],
    ("a_clock_for_half_a_range", ""): ["clocks of each server"],
    ("a_clock_for_half_a_range", "--servers=2 --placement=hash --virtual=3"): ["clocks of each server"],
    ("weights_as_old_as_may_be", "--consistency=ssp --staleness=1 --slow=0:9 --jitter=0"): ["reads, too stale"],
    ("keys_every_time", "--servers=2 --keys=cached"): ["keys from a worker in the run"],
    ("keys_only_once", "--servers=2 --keys=list"): ["keys from a worker in the run"],
    ("keys_cut_evenly_again", "--servers=2 --placement=hash"): ["keys moved between old servers"],
    ("every_copy_sent_twice", "--servers=2 --replicas=1"): ["copied, after aggregation"],
    ("every_copy_sent_twice", "--servers=2 --replicas=1 --consistency=async"): ["copied, push by push"],
    ("copies_that_only_nod", "--servers=2 --replicas=1"): ["clocks of each server", "copies that differ in any bit"],
}


@cache
def fallen() -> dict[tuple[str, str], list[str]]:
    """All broken programs, one after the other."""
    cases = [(mutant, [*SMALL.split(), *options.split()]) for mutant, options in CASES]
    return dict(zip(CASES, launch("jobs.ps_mutants:fallen", 4, cases, timeout=240).values[0], strict=True))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_every_claim_has_a_mutant(case: tuple[str, str]) -> None:
    names = [re.sub(r"of \d+ ", "", name) for name in fallen()[case]]  # how many reads there were is no matter
    assert names == CASES[case]


def test_a_sweep_shows_the_worst_training_of_each_promise() -> None:
    good, bad = Claim("PS", "sent", "S", 3, 3, "bytes"), Claim("PS", "sent", "S", 3, 4, "bytes")
    other = Claim("PS", "copied", "r·S", 6, 6, "bytes")
    assert merge_claims([[good], [good, other]]) == [good, other]
    assert merge_claims([[good], [bad, other], [good]]) == [bad, other]
    assert merge_claims([[bad], [good]]) == [bad]
