"""An evaluation leaves nothing behind, whichever engine makes it: units that it has gathered are forgotten."""

import pytest

from cases import job_of
from jobs.evaluations import CHAPTERS, SMALL, every_line
from ranks import launch
from sampling import shard_of_this_run

KEEPS = f"fsdp {SMALL} --strategy shard_grad_op"  # what it has gathered, from the forward to the backward


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_evaluation_leaves_nothing_on_a_device(every: bool) -> None:
    """Of every chapter the first line that it takes on two ranks, and of all others a part in each run."""
    lines = [line for line in every_line() if job_of(line, 2)]
    first = {line.split()[0]: line for line in reversed(lines)}
    chosen = lines if every else [*first.values(), KEEPS, *shard_of_this_run(lines, 10)]
    job = launch("jobs.evaluations:held_around_an_evaluation", 2, [*dict.fromkeys(chosen)], timeout=200)
    for of_rank in job.values:
        assert {line.split()[0] for line in of_rank} | {"train"} == {*CHAPTERS}
        assert KEEPS in of_rank
        for line, (before, after) in of_rank.items():
            left = {kind: after[kind] - before.get(kind, 0) for kind in after if kind != "workspace"}
            assert not any(left.values()), f"{line}: {left}"
