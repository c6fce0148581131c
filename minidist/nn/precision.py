"""The dtypes for storing, sending and computing, and the loss scale that mixed precision needs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minidist.nn.tensor import ArrayPool, Store


@dataclass(frozen=True)
class Precision:
    """stored: parameters, kept activations and, unless `gradient` says otherwise, gradients, in memory and on the
    wire. computed: arithmetic.

    updated: what the optimizer works on. In mixed precision (Micikevicius et al. 2018) that is a float32 master copy,
    in addition to the float16 parameters: an update smaller than 2⁻¹¹ of a weight is lost when added in float16, and
    training stalls. NumPy has no float16 matrix product, so arithmetic is done in float32 on widened copies.
    """

    name: str
    stored: type[np.generic]
    computed: type[np.floating]
    updated: type[np.floating]
    loss_scale: float = 1.0  # the initial one; 1 stays 1
    gradient: type[np.generic] | None = None  # in which gradients are added up and sent; None: as they are stored

    @property
    def mixed(self) -> bool:
        """Whether the optimizer keeps a master copy of its own."""
        return self.stored is not self.updated

    @property
    def summed(self) -> type[np.generic]:
        """The dtype of gradients. In float32, sums over micro-batches and over ranks lose nothing to rounding, for
        twice the bytes: Megatron-LM's --accumulate-allreduce-grads-in-fp32, its default with bfloat16."""
        return self.gradient or self.stored

    @property
    def bytes(self) -> int:
        """Bytes of one stored element: of a parameter, of an activation, and on the wire."""
        return np.dtype(self.stored).itemsize

    def store(self, pool: ArrayPool, kind: str) -> Store:
        """A store in which tapes keep activations; the pool counts them under this kind."""
        return Store(self.stored if self.mixed else None, pool, kind)


PRECISIONS = {
    "mixed": Precision("mixed", np.float16, np.float32, np.float32, loss_scale=65536.0),
    "fp32": Precision("fp32", np.float32, np.float32, np.float32),
    "fp64": Precision("fp64", np.float64, np.float64, np.float64),
}
NAMES = ("mixed", "bf16", "fp32", "fp64")


def precision(name: str) -> Precision:
    """A precision by its name. bf16 (bfloat16, which has float32's range, so that no gradient vanishes and none is
    scaled) is made on demand. Raises ImportError if ml_dtypes, which has the type, is not installed."""
    if name == "bf16":
        from ml_dtypes import bfloat16

        return Precision(name, bfloat16, np.float32, np.float32)
    return PRECISIONS[name]


class LossScale:
    """Dynamic loss scaling, by DeepSpeed's rule (runtime/fp16/loss_scaler.py), step by step.

    Gradients below 2⁻²⁴ are zero in float16, so the loss is multiplied by `scale` before the backward and gradients are
    divided by it before the update. An overflow means that the scale is too large: that step is skipped, and the scale
    is halved, except that the first `hysteresis` - 1 overflows are forgiven. After `window` steps without overflow it
    doubles, and the hysteresis starts afresh.
    """

    def __init__(self, scale: float = 65536.0, window: int = 1000, hysteresis: int = 2, minimum: float = 1.0) -> None:
        self.scale, self.window, self.hysteresis, self.minimum = scale, window, hysteresis, minimum
        self.forgiven_left = hysteresis - 1
        self.step, self.last_overflow = 0, -1

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint of another loss scale (its `vars`). The rule stays this one's own."""
        self.scale = max(state["scale"], self.minimum)
        self.forgiven_left = min(state["forgiven_left"], self.hysteresis - 1)
        self.step, self.last_overflow = state["step"], state["last_overflow"]

    def update(self, overflow: bool) -> None:
        """Account for one step. Raises OverflowError on an overflow at the minimum scale: the gradients are not finite
        for another reason."""
        if overflow:
            if self.scale == self.minimum and self.forgiven_left == 0:
                raise OverflowError(f"gradients overflow at the minimum loss scale {self.minimum:g}: lower --lr")
            if self.forgiven_left > 0:
                self.forgiven_left -= 1
            else:
                self.scale = max(self.scale / 2, self.minimum)
            self.last_overflow = self.step
        else:
            stable = self.step - self.last_overflow - 1
            if stable > 0 and stable % self.window == 0:
                self.forgiven_left = self.hysteresis - 1
                self.scale *= 2
        self.step += 1
