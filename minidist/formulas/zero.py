"""What ZeRO holds of whole units for a moment, and its buffer for gradients."""

import math

from minidist.formulas.asked import Asked
from minidist.papers import deepspeed


def buffer_size(bucket_size: int, n: int, psi: int) -> int:
    """B: elements of the buffer through which Ψ gradients go. It is a multiple of n, so that ranks can share it."""
    return min(max(bucket_size // n, 1) * n, psi)


def constant_buffer_size(run: Asked) -> int:
    """B, on the data axis, where all ranks share the batch; 0 if there is no buffer."""
    return buffer_size(run.bucket_size, run.ranks, run.model.parameters(run.ranks)) if run.bucket_size else 0


def in_passing(run: Asked) -> int:
    """Elements of gathered parameters and of gradients at the fullest moment, within DeepSpeed's limits for stage 3."""
    model = run.model
    divided = model.divided(run.ranks)
    parts = [(whole - part, part) for whole, part in zip(model.units(run.ranks), divided, strict=True)]
    live = math.inf if run.live is None else run.live
    return deepspeed.in_passing(
        parts, model.tied, model.apart, model.v * model.h, run.ahead, live, constant_buffer_size(run),
        run.gradient_bytes // run.bytes.stored,
    )  # fmt: skip
