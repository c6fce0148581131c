"""Simulated time for ranks that do not wait for one another: how long a step takes, and how long a message.

Two cores cannot show who would wait for whom on a cluster, and wall time differs from run to run. So ranks carry a
simulated time: a step costs what its arithmetic would cost at a fixed speed, times the worker's luck; a message leaves
when the sender's link is free, and has arrived when its last byte is through the receiver's link.
"""

import numpy as np

SPEED = 20e9  # floating-point operations a second and worker
BANDWIDTH = 1.25e9  # bytes a second in each direction: 10 Gbit/s Ethernet, as in Li et al., OSDI 2014, section 5.1
LATENCY = 50e-6  # seconds from one rank to another


def step_seconds(parameters: int, tokens: int, jitter: float, slow: float, key: tuple[int, ...]) -> float:
    """What forward and backward of `tokens` tokens cost: 6 operations a parameter and token (2 forward, 4 backward).

    jitter: how much of it is luck, from 0 (none) to 1 (all): an exponential with mean 1, drawn from the key.
    """
    luck = np.random.default_rng(key).exponential()
    return slow * (1 - jitter + jitter * luck) * 6 * parameters * tokens / SPEED


class Link:
    """One direction of a rank's cable: one message after the other."""

    def __init__(self) -> None:
        self.free = 0.0  # when the last byte so far is through

    def send(self, ready: float, nbytes: int) -> float:
        """When the last byte of a message, ready to go at `ready`, has left."""
        self.free = max(self.free, ready) + nbytes / BANDWIDTH
        return self.free

    def receive(self, left: float, nbytes: int) -> float:
        """When the last byte of a message is here that left its sender's link at `left`."""
        self.free = max(self.free + nbytes / BANDWIDTH, left + LATENCY)
        return self.free
