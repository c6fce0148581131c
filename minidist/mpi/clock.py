"""The logical clock: the time that a cluster would show, on any number of cores. The time is simulated, not measured.

Each rank carries a time of its own. Work adds its cost. A message carries the sender's time beside it, on the control
channel, and whoever receives it is at least as late as the message:

    t = max(t, t_message + latency + bytes / bandwidth)

(Lamport, "Time, clocks, and the ordering of events in a distributed system", CACM 1978, with durations.) However the
operating system schedules the processes, the times come out the same, to the last digit.

What is sent while the rank works goes over its channel, one after the other in the order in which it was started, and
whoever waits for it is at least as late as it is through:

    channel = max(channel, t) + latency + bytes / bandwidth
"""

import math


class Clock:
    """One rank's time, in whatever unit the costs of work and the latency are. bandwidth: bytes to a unit of time."""

    def __init__(self, latency: float = 0.0, bandwidth: float = math.inf) -> None:
        self.now = 0.0
        self.channel = 0.0  # when all that has been started is through
        self.latency, self.bandwidth = latency, bandwidth

    def work(self, cost: float) -> None:
        """Be busy for `cost`."""
        self.now += cost

    def receive(self, sent: float, nbytes: int = 0) -> None:
        """A message of `nbytes`, sent when it was `sent` over there, has been waited for."""
        self.wait(sent + self.latency + nbytes / self.bandwidth)

    def start(self, nbytes: int) -> float:
        """Send so much without waiting; when it will be through."""
        self.channel = max(self.channel, self.now) + self.latency + nbytes / self.bandwidth
        return self.channel

    def wait(self, until: float) -> None:
        """Do nothing before `until`."""
        self.now = max(self.now, until)
