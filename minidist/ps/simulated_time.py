"""Simulated time for ranks that do not wait for one another: how long a step takes, and how long a message.

Two cores cannot show which rank would wait for which on a cluster, and wall time differs from run to run. So ranks
carry a simulated time. A step costs what its arithmetic would cost at a fixed speed, times the worker's luck. A message
leaves when the sender's link is free, and has arrived when its last byte is through the receiver's link.

Luck is a deck of cards: in every 32 steps each worker draws the same 32 factors, in an order of its own. So at any
moment some workers are fast and some are slow, as on a shared cluster, but in the long run all are equally fast. A
worker that is always slower than the others (--slow) is different: sooner or later every bound makes them wait for it.
"""

import numpy as np

SPEED = 20e9  # floating-point operations a second and worker
BANDWIDTH = 1.25e9  # bytes a second in each direction: 10 Gbit/s Ethernet, as in Li et al., OSDI 2014, section 5.1
LATENCY = 50e-6  # seconds from one rank to another
DECK = -np.log(1 - (np.arange(32) + 0.5) / 32)  # quantiles of an exponential distribution: mostly fast, rarely slow
DECK /= DECK.mean()


def step_seconds(parameters: int, tokens: int, jitter: float, slow: float, key: tuple[int, int, int]) -> float:
    """Seconds for forward and backward of `tokens` tokens: 6 operations a parameter and token (2 forward, 4 backward).

    jitter: how much of it is luck, from 0 (none) to 1 (all). key: (seed, worker, step).
    """
    seed, worker, step = key
    deal, card = divmod(step, len(DECK))
    luck = DECK[np.random.default_rng((seed, worker, deal)).permutation(len(DECK))[card]]
    return slow * (1 - jitter + jitter * float(luck)) * 6 * parameters * tokens / SPEED


class CableDirection:
    """One direction of a rank's cable: one message after another."""

    def __init__(self) -> None:
        self.free = 0.0  # when the last byte so far is through

    def send(self, ready: float, nbytes: int) -> float:
        """When the last byte of a message, ready to go at `ready`, has left."""
        self.free = max(self.free, ready) + nbytes / BANDWIDTH
        return self.free

    def receive(self, left: float, nbytes: int) -> float:
        """When the last byte of a message arrives that left its sender's link at `left`."""
        self.free = max(self.free + nbytes / BANDWIDTH, left + LATENCY)
        return self.free


class Cable:
    """A worker's or a server's simulated time, and its cable: one link out and one in."""

    def __init__(self) -> None:
        self.now = 0.0
        self.out, self.into = CableDirection(), CableDirection()

    def send(self, nbytes: int) -> float:
        """When the last byte of a message that is sent now will have left. The sender does not wait for it."""
        return self.out.send(self.now, nbytes)

    def receive(self, left: float, nbytes: int) -> None:
        """Wait until the last byte of a message has arrived that left its sender at `left`."""
        self.now = max(self.now, self.into.receive(left, nbytes))
