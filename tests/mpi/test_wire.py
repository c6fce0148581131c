"""Requests that outlive their phase, and values on the control channel."""

from minidist.launch.launcher import launch


def test_a_request_may_outlive_its_phase():
    sender, receiver = launch("jobs.wire:requests_left_open", 2, timeout=30).values
    assert sender == [False, True, 8_000_000, 0, "closed phases still refuse"]
    assert receiver == ["go", 1e6, 1e6]
