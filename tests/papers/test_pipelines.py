"""Bubbles, and what crosses hosts: against numbers worked out by hand."""

from minidist.papers import fsdp, gpipe, ptd, zero_bubble


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
