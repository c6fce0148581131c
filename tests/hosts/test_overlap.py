"""Sending that is hidden behind computing, on the wall clock, in slow motion: a rank sleeps where it would compute."""

import pytest

from jobs import overlap
from minidist import UsageError
from minidist.hosts.network import check_programs


@pytest.mark.slow
def test_half_of_what_can_be_hidden_is() -> None:
    """Eight tenths are, if nothing else runs; a step has the same bytes."""
    try:
        check_programs()
    except UsageError as error:
        pytest.skip(str(error))
    taken = overlap.measure("slow", 4, 75e6)
    c, t, both, share, same = overlap.summary(taken[0]["FSDP"])
    assert same
    assert share > 0.5, (c, t, both)
    assert overlap.summary(taken[0]["data parallelism"])[3] > 0.25
