"""The logical clock: the time that a cluster would show, on any number of cores. The time is simulated, not measured.

Each rank has its own time. Work adds its cost. The sender's time travels along with a message, on the control channel,
and the receiver is at least as late as the message:

    t = max(t, t_message + latency + bytes / bandwidth)

(Lamport, "Time, clocks, and the ordering of events in a distributed system", CACM 1978, with durations.) However the
operating system schedules the processes, the times come out the same, to the last digit.

Messages that are sent while the rank works go over its channel, one by one, in the order in which they were started. A
rank that waits for one is at least as late as its end:

    channel = max(channel, t) + latency + bytes / bandwidth
"""

import math


class Clock:
    """One rank's time, in the same unit as the costs of work and the latency. bandwidth: bytes per unit of time."""

    def __init__(self, latency: float = 0.0, bandwidth: float = math.inf) -> None:
        self.now = 0.0
        self.channel = 0.0  # when the last started message arrives
        self.latency, self.bandwidth = latency, bandwidth

    def work(self, cost: float) -> None:
        """Work for `cost` units of time."""
        self.now += cost

    def receive(self, sent: float, nbytes: int = 0) -> None:
        """Wait for a message of `nbytes` that was sent at the sender's time `sent`."""
        self.wait(sent + self.latency + nbytes / self.bandwidth)

    def start(self, nbytes: int) -> float:
        """Start sending `nbytes`, without waiting. Returns the time at which they arrive."""
        self.channel = max(self.channel, self.now) + self.latency + nbytes / self.bandwidth
        return self.channel

    def wait(self, until: float) -> None:
        """Wait until `until`, unless it is later already."""
        self.now = max(self.now, until)
