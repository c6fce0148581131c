"""Bubbles, and what crosses hosts: against numbers worked out by hand."""

import itertools
import math

import pytest

from minidist.papers import fsdp, gpipe, pipedream, pipelines, ptd, zero_bubble


def test_bubbles() -> None:
    assert ptd.bubble(4, 8, 2) == 0.1875
    assert ptd.bubble(8, 16, 2) == 0.21875
    assert ptd.bubble(8, 32, 4) == 0.0546875
    assert [round(100 * gpipe.bubble(k, 4 * k), 1) for k in (2, 4, 8, 16)] == [11.1, 15.8, 17.9, 19.0]


def test_zero_bubble_with_equal_times() -> None:
    """A third of 1F1B's, and none."""
    assert [zero_bubble.idle(name, 8, 1, 1, 1) for name in ("1f1b", "zb-h1", "zb-h2")] == [21, 7, 0]


def test_hybrid_sharding() -> None:
    """The FSDP paper's figure 4, 16 GPUs on hosts of 8, and larger: by its formula, and as sent, in models."""
    for w, printed, exact in [(16, 0.2344, 0.1250), (64, 0.2461, 0.2188), (512, 0.2495, 0.2461)]:
        assert round(fsdp.across_hosts_as_printed(1, w, 8), 4) == printed
        assert round(fsdp.across_hosts(1, w, 8), 4) == exact


def test_messages_are_as_many_at_both_ends_of_the_model() -> None:
    """Of 3 stages: m micro-batches cross each boundary, there and back; with 2 chunks to a stage there are 5."""
    assert [ptd.count_messages(3, 8, stage) for stage in (1, 2, 3)] == [(8, 0), (8, 8), (0, 8)]
    assert [ptd.count_messages(3, 6, stage, 2) for stage in (1, 2, 3)] == [(12, 6), (12, 12), (6, 12)]
    assert ptd.count_messages(1, 8, 1, 4) == (0, 0)


def test_pipedreams_figure_4() -> None:
    """4 workers with one minibatch each before the first backward of the last: 4, 3, 2, 1; and 2-1 in figure 8."""
    assert [pipedream.noam((1, 1, 1, 1), stage) for stage in (1, 2, 3, 4)] == [4, 3, 2, 1]
    assert [pipedream.noam((2, 1), stage) for stage in (1, 2)] == [2, 1]


@pytest.mark.parametrize("replicas", [(1, 1, 1), (2, 1), (1, 2), (3, 1, 2)])
def test_what_is_left_when_the_last_update_begins(replicas: tuple[int, ...]) -> None:
    """By going through 1F1B one forward and one backward after the other."""
    for stage, updates, multiple in itertools.product(range(1, len(replicas) + 1), (1, 2, 5), (1, 2)):
        m = 6 * multiple
        each, forwards, done = m // replicas[stage - 1], 0, 0
        while forwards < (updates - 1) * each + 1:  # the first forward of the last update is about to run
            if forwards - done == pipedream.noam(replicas, stage):
                done += 1
            forwards += 1
        assert pipedream.backwards_left(replicas, stage, m, updates) == updates * each - done


def test_versions_as_the_papers_write_them() -> None:
    """PipeDream's w_i^(t-n+i), i from 1, of 3 stages; vertical sync's w^(t-n+1); 2BW's, m = 2 micro-batches."""
    used = {
        name: [[pipelines.version_used(name, 3, i, t, 1) for t in range(5)] for i in (1, 2, 3)]
        for name in ("pipedream", "vertical-sync")
    }
    assert used["pipedream"] == [[0, 0, 0, 1, 2], [0, 0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert used["vertical-sync"] == [[0, 0, 0, 1, 2]] * 3
    assert [pipelines.version_used("2bw", 3, 1, k, 2) for k in range(8)] == [0, 0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("replicas", [(1, 1, 1), (2, 1), (1, 3), (3, 2, 1)])
@pytest.mark.parametrize("multiple", [1, 2])
def test_versions_with_replicas_by_going_through_1f1b(replicas: tuple[int, ...], multiple: int) -> None:
    """A worker takes in as many minibatches as it may, and then one after each backward. All workers of a stage do so
    in turn, and m of their backwards make an update."""
    m = multiple * math.lcm(*replicas)
    for stage, workers in enumerate(replicas, 1):
        for k in range(30):
            done = 0
            for taken_in in range(k // workers + 1):
                done += taken_in - done == pipedream.noam(replicas, stage)
            found = pipelines.version_with_replicas("pipedream", replicas, stage, k, m)
            assert found == done * workers // m
            if m == 1:
                assert found == pipelines.version_used("pipedream", len(replicas), stage, k, m)
                synced = pipelines.version_with_replicas("vertical-sync", replicas, stage, k, m)
                assert synced == pipelines.version_used("vertical-sync", len(replicas), stage, k, m)
    twice = [pipelines.version_with_replicas("2bw", replicas, 1, k, m) for k in range(4 * m)]
    assert twice == [pipelines.version_used("2bw", len(replicas), 1, k, m) for k in range(4 * m)]
