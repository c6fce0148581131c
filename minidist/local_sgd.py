"""Local SGD and DiLoCo: every rank takes H steps of its own; then parameters are averaged, not gradients.

    mpirun -n 4 python -m minidist.local_sgd --every 10
    mpirun -n 4 python -m minidist.local_sgd --every 10 --outer-lr 0.7 --outer-momentum 0.9

Stich, "Local SGD converges fast and communicates little", ICLR 2019, arXiv 1805.09767.
Douillard et al., "DiLoCo: Distributed low-communication training of language models", 2023, arXiv 2311.08105.

In data parallelism all ranks agree after every step, and send 2Ψ(N-1)/N elements for that. Here rank r follows the mean
gradient of its own rows, and sends nothing for H steps. Then θ becomes the mean of the ranks' θᵣ: 2Ψ(N-1)/N elements.
The price is that ranks drift apart in between: losses are not those of serial training. DiLoCo's "500 times less" is
its H, and counts averagings. In bytes it is 250 times: parameters travel in float32, gradients could in 16 bits.

DiLoCo (algorithm 1) treats how far the mean has moved since the last averaging as a gradient, Δ = θ - mean θᵣ. SGD with
Nesterov momentum follows it (section 3.1): v ← μ v + Δ, θ ← θ - η (Δ + μ v). With η = 1 and μ = 0 that is the mean.
Every rank keeps θ and v for this: 8Ψ bytes in float32, in addition to data parallelism's 16Ψ.
"""

from functools import partial

import numpy as np

from minidist import Stopped, collectives, contents
from minidist.data_parallel import DataParallel
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit
from minidist.nn.optim import sum_of_squares


class LocalSGD(DataParallel):
    """Data parallelism whose ranks average their parameters, and only after every H steps."""

    sums_gradients = False

    def __init__(
        self, units: list[Unit], settings: Settings, comm: Comm, every: int, lr: float = 1.0, momentum: float = 0.0
    ) -> None:
        """every: H. lr, momentum: η and μ."""
        super().__init__(units, settings, comm)
        self.every, self.lr, self.momentum = every, lr, momentum
        for flat in self.flats:  # each rank's optimizer has seen other gradients, and goes on with what it has seen
            flat.own = {f"moment{i}": moment for i, moment in enumerate(flat.moments, 1)}
        if (lr, momentum) != (1.0, 0.0):
            hold = partial(self.device.hold, "outer")
            for flat in self.flats:  # θ after the last averaging, and v: each (padded,)
                flat.added = {"outer": hold(flat.master.copy()), "velocity": hold(0 * flat.master)}

    # ---- H steps alone ----------------------------------------------------------------------------------------------

    def weight(self, share: float) -> float:
        """A rank's gradient is the mean over its own rows, not its part of a mean over all rows."""
        return 1 / self.settings.accumulate

    def reduce(self, flat: Flat) -> None:
        """Send nothing: the gradient stays on this rank."""

    def squares(self) -> float:
        return sum(sum_of_squares(flat.grad) for flat in self.flats)

    def apply_gradients(self) -> None:
        try:
            super().apply_gradients()
        except OverflowError as error:  # on this rank only: the others would wait for it
            raise Stopped(error) from None
        if self.steps % self.every == 0:
            self.average()

    # ---- and together -----------------------------------------------------------------------------------------------

    @np.errstate(over="ignore", invalid="ignore")  # the next norm finds what has grown too large
    def average(self) -> None:
        """Replace parameters by their mean over the ranks; with an outer optimizer, take a step toward that mean."""
        for flat in self.flats:
            with self.comm.phase("all-reduce parameters"):
                collectives.all_reduce(self.comm, flat.master, flat.master)
            flat.master /= self.comm.size
            if flat.added:
                start, v = flat.added.values()
                delta = start - flat.master
                v[...] = self.momentum * v + delta
                start -= self.lr * (delta + self.momentum * v)
                flat.master[...] = start
            self.refresh(flat)

    def settle(self) -> None:
        """After the last step the ranks average once more, if they have taken steps alone since."""
        if self.steps % self.every:
            self.average()


if __name__ == "__main__":
    contents.run("local_sgd")  # its options, and what the papers promise: programs/local_sgd.py
