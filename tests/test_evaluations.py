"""An evaluation leaves nothing behind, whichever engine makes it: units that it has gathered are forgotten."""

from minidist.programs.chapter import Chapter, find_all
from ranks import launch


def test_an_evaluation_leaves_nothing_on_a_device() -> None:
    job = launch("jobs.evaluations:held_around_an_evaluation", 2, timeout=200)
    for of_rank in job.values:
        assert {line.split()[0] for line in of_rank} | {"train"} == {
            name for name, chapter in find_all().items() if isinstance(chapter, Chapter)
        }
        assert "fsdp --strategy shard_grad_op" in of_rank
        for line, (before, after) in of_rank.items():
            left = {kind: after[kind] - before.get(kind, 0) for kind in after if kind != "workspace"}
            assert not any(left.values()), f"{line}: {left}"
